"""SGD and Adam on flat float32 vectors, in place, with Keras' formulas and defaults.

A step allocates nothing and reads each vector a fixed number of times; the same bits in give the same bits
out. What an optimizer remembers is in `slots` and `iterations`, so that a replica can carry on elsewhere.
"""

from __future__ import annotations

import math
from typing import Final, Literal, Protocol

import numpy as np

from edgepeer.training.trainer import Float32Vector

__all__ = ["Adam", "Optimizer", "Sgd", "make_optimizer"]


class Optimizer(Protocol):
    """Changes parameters by a gradient."""

    learning_rate: float
    iterations: int
    """Steps taken so far."""
    slots: dict[str, Float32Vector]
    """What it remembers per parameter, by name; shape (size,) each."""

    def step(self, parameters: Float32Vector, gradient: Float32Vector) -> None:
        """One step, into `parameters`. Both of shape (size,); `gradient` is left as it is."""


class Sgd:
    """w ← w − η·g."""

    def __init__(self, size: int, learning_rate: float) -> None:
        self.learning_rate = learning_rate
        self.iterations = 0
        self.slots: dict[str, Float32Vector] = {}
        self._scratch = np.empty(size, np.float32)

    def step(self, parameters: Float32Vector, gradient: Float32Vector) -> None:
        self.iterations += 1
        np.multiply(gradient, np.float32(self.learning_rate), out=self._scratch)
        parameters -= self._scratch


class Adam:
    """m ← m + (1−β₁)(g−m);  v ← v + (1−β₂)(g²−v);  w ← w − η·√(1−β₂ᵗ)/(1−β₁ᵗ) · m/(√v+ε).

    Kingma and Ba, "Adam", end of section 2, where ε is called ε̂.
    """

    BETA_1: Final = 0.9
    BETA_2: Final = 0.999
    EPSILON: Final = 1e-7

    def __init__(self, size: int, learning_rate: float) -> None:
        self.learning_rate = learning_rate
        self.iterations = 0
        self.slots = {"momentum": np.zeros(size, np.float32), "velocity": np.zeros(size, np.float32)}
        self._scratch = np.empty(size, np.float32)

    def step(self, parameters: Float32Vector, gradient: Float32Vector) -> None:
        self.iterations += 1
        momentum, velocity, scratch = self.slots["momentum"], self.slots["velocity"], self._scratch
        np.subtract(gradient, momentum, out=scratch)
        scratch *= np.float32(1 - self.BETA_1)
        momentum += scratch
        np.multiply(gradient, gradient, out=scratch)
        scratch -= velocity
        scratch *= np.float32(1 - self.BETA_2)
        velocity += scratch
        np.sqrt(velocity, out=scratch)
        scratch += np.float32(self.EPSILON)
        np.divide(momentum, scratch, out=scratch)
        unbiased = math.sqrt(1 - self.BETA_2**self.iterations) / (1 - self.BETA_1**self.iterations)
        scratch *= np.float32(self.learning_rate * unbiased)
        parameters -= scratch


def make_optimizer(name: Literal["sgd", "adam"], *, size: int, learning_rate: float) -> Optimizer:
    """A fresh optimizer for `size` parameters."""
    return (Adam if name == "adam" else Sgd)(size, learning_rate)
