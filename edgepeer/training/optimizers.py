"""Optimizers by name, as in "sgd:momentum=0.9"; and those of the NumPy trainer, with Keras' formulas and defaults.

A step reads each vector a fixed number of times; the same bits in give the same bits out. So there is nothing here
that adds up over parameters, such as a gradient's norm: that may come out differently on machines with another number
of cores. What an optimizer remembers is in `slots` and `iterations`, so that a replica can carry on elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from edgepeer.errors import ConfigError
from edgepeer.training.named import Named, Range, parse_named
from edgepeer.training.powers import power
from edgepeer.training.trainer import Float32Vector

__all__ = ["KERAS_NAMES", "NUMPY_NAMES", "Optimizer", "make_optimizer", "parse_optimizer", "slots_of", "unbiased"]

_BELOW_ONE: Final = Range(0, 1, below=True)
_LEAST: Final = 1e-37
"""A number that must not be 0: the least that float32 has in full."""
_EPSILON: Final = Range(_LEAST, 1)
_ALL: Final[dict[str, Range | None]] = {"weight_decay": Range(0, 1), "clipvalue": Range(_LEAST, 1e6)}
_MOMENTS: Final[dict[str, Range | None]] = {"beta_1": _BELOW_ONE, "beta_2": _BELOW_ONE}
_START: Final = Range(0, 1e6)

_KNOWN: Final[dict[str, dict[str, Range | None]]] = {
    "sgd": {"momentum": _BELOW_ONE, "nesterov": None, **_ALL},
    "adam": {**_MOMENTS, "epsilon": _EPSILON, "amsgrad": None, **_ALL},
    "adamw": {**_MOMENTS, "epsilon": _EPSILON, "amsgrad": None, **_ALL},
    "rmsprop": {"rho": _BELOW_ONE, "momentum": _BELOW_ONE, "epsilon": _EPSILON, "centered": None, **_ALL},
    "adagrad": {"initial_accumulator_value": _START, "epsilon": _EPSILON, **_ALL},
    "adadelta": {"rho": _BELOW_ONE, "epsilon": _EPSILON, **_ALL},
    "adamax": {**_MOMENTS, "epsilon": _EPSILON, **_ALL},
    "nadam": {**_MOMENTS, "epsilon": _EPSILON, **_ALL},
    "ftrl": {
        "learning_rate_power": Range(-10, 0),
        "initial_accumulator_value": _START,
        "l1_regularization_strength": Range(0, 1e6),
        "l2_regularization_strength": Range(0, 1e6),
        "beta": Range(0, 1e6),
        **_ALL,
    },
    "lion": {**_MOMENTS, "beta_1": Range(0, 1, above=True, below=True), **_ALL},
}
"""What each takes; the defaults are Keras'."""

KERAS_NAMES: Final[Mapping[str, str]] = {
    "sgd": "SGD",
    "adam": "Adam",
    "adamw": "AdamW",
    "rmsprop": "RMSprop",
    "adagrad": "Adagrad",
    "adadelta": "Adadelta",
    "adamax": "Adamax",
    "nadam": "Nadam",
    "ftrl": "Ftrl",
    "lion": "Lion",
}
NUMPY_NAMES: Final = ("sgd", "adam", "adamw", "rmsprop", "adagrad")


def parse_optimizer(text: str, *, trainer: str) -> Named:
    """The optimizer that a text names.

    Raises:
        ConfigError: it names none, or one that this trainer does not have.
    """
    named = parse_named("optimizer", text, _KNOWN)
    if trainer == "numpy" and named.kind not in NUMPY_NAMES:
        raise ConfigError(
            f"optimizer = {text}: trainer numpy has only {', '.join(NUMPY_NAMES)}; use one of them, or trainer keras"
        )
    return named


def slots_of(named: Named) -> int:
    """How many numbers it remembers of each parameter, at most."""
    return {"sgd": int("momentum" in named.values), "lion": 1, "adagrad": 1}.get(named.kind, 3)


class Optimizer:
    """Changes parameters by a gradient: clipping and the decay of weights, which are alike for all."""

    def __init__(self, size: int, learning_rate: float, *, weight_decay: float = 0.0, clipvalue: float = 0.0) -> None:
        self.learning_rate = learning_rate
        self.iterations = 0
        """Steps taken so far."""
        self.slots: dict[str, Float32Vector] = {}
        """What it remembers per parameter, by name; shape (size,) each."""
        self._decay, self._clip = weight_decay, clipvalue
        self._size = size
        self._scratch = np.empty(size, np.float32)

    def step(self, parameters: Float32Vector, gradient: Float32Vector) -> None:
        """One step, into `parameters`. Both of shape (size,); `gradient` is left as it is."""
        self.iterations += 1
        if self._clip:
            gradient = np.clip(gradient, np.float32(-self._clip), np.float32(self._clip))
        if self._decay:
            np.multiply(parameters, np.float32(self._decay * self.learning_rate), out=self._scratch)
            parameters -= self._scratch
        self._update(parameters, gradient)

    def _update(self, parameters: Float32Vector, gradient: Float32Vector) -> None:
        raise NotImplementedError

    def _remember(self, name: str, value: float = 0.0) -> Float32Vector:
        self.slots[name] = np.full(self._size, value, np.float32)
        return self.slots[name]


class _Sgd(Optimizer):
    """w ← w − η·g;  with momentum m ← μ·m − η·g, w ← w + m;  after Nesterov w ← w + μ·m − η·g."""

    def __init__(
        self, size: int, learning_rate: float, *, momentum: float = 0.0, nesterov: bool = False, **common: float
    ) -> None:
        super().__init__(size, learning_rate, **common)
        self._momentum, self._nesterov = momentum, nesterov
        if momentum:
            self._remember("momentum")

    def _update(self, parameters: Float32Vector, gradient: Float32Vector) -> None:
        scratch = self._scratch
        np.multiply(gradient, np.float32(self.learning_rate), out=scratch)
        if not self._momentum:
            parameters -= scratch
            return
        moving = self.slots["momentum"]
        moving *= np.float32(self._momentum)
        moving -= scratch
        if not self._nesterov:
            parameters += moving
            return
        parameters -= scratch
        np.multiply(moving, np.float32(self._momentum), out=scratch)
        parameters += scratch


class _Adam(Optimizer):
    """m ← m + (1−β₁)(g−m);  v ← v + (1−β₂)(g²−v);  w ← w − η·√(1−β₂ᵗ)/(1−β₁ᵗ) · m/(√v+ε).

    Kingma and Ba, "Adam", end of section 2, where ε is called ε̂. With amsgrad the largest v so far counts.
    """

    def __init__(
        self,
        size: int,
        learning_rate: float,
        *,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        **common: float,
    ) -> None:
        super().__init__(size, learning_rate, **common)
        self._beta_1, self._beta_2, self._epsilon = beta_1, beta_2, epsilon
        for name in ("momentum", "velocity", *(["largest"] if amsgrad else [])):
            self._remember(name)

    def _update(self, parameters: Float32Vector, gradient: Float32Vector) -> None:
        momentum, velocity, scratch = self.slots["momentum"], self.slots["velocity"], self._scratch
        np.subtract(gradient, momentum, out=scratch)
        scratch *= np.float32(1 - self._beta_1)
        momentum += scratch
        np.multiply(gradient, gradient, out=scratch)
        scratch -= velocity
        scratch *= np.float32(1 - self._beta_2)
        velocity += scratch
        if (largest := self.slots.get("largest")) is not None:
            velocity = np.maximum(largest, velocity, out=largest)
        np.sqrt(velocity, out=scratch)
        scratch += np.float32(self._epsilon)
        np.divide(momentum, scratch, out=scratch)
        scratch *= np.float32(self.learning_rate * unbiased(self._beta_1, self._beta_2, self.iterations))
        parameters -= scratch


def unbiased(beta_1: float, beta_2: float, step: int) -> float:
    """By how much moments that began at zero fall short, in Adam's step of that number, from 1 on."""
    return math.sqrt(1 - power(beta_2, step)) / (1 - power(beta_1, step))


class _AdamW(_Adam):
    """Adam with decay of weights, 0.004 unless told otherwise. Loshchilov and Hutter, "Decoupled Weight Decay"."""

    def __init__(self, size: int, learning_rate: float, *, weight_decay: float = 0.004, **rest: float) -> None:
        super().__init__(size, learning_rate, weight_decay=weight_decay, **rest)  # type: ignore[arg-type]  # amsgrad


class _RmsProp(Optimizer):
    """v ← ρ·v + (1−ρ)g²;  u = η·g/√(v+ε), centered: √(v−a²+ε) with a ← ρ·a + (1−ρ)g;  m ← μ·m + u;  w ← w − m."""

    def __init__(
        self,
        size: int,
        learning_rate: float,
        *,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-7,
        centered: bool = False,
        **common: float,
    ) -> None:
        super().__init__(size, learning_rate, **common)
        self._rho, self._momentum, self._epsilon, self._centered = rho, momentum, epsilon, centered
        for name, wanted in (("velocity", True), ("average", centered), ("momentum", momentum > 0)):
            if wanted:
                self._remember(name)

    def _update(self, parameters: Float32Vector, gradient: Float32Vector) -> None:
        velocity, scratch = self.slots["velocity"], self._scratch
        rho, rest = np.float32(self._rho), np.float32(1 - self._rho)
        np.multiply(gradient, gradient, out=scratch)
        scratch *= rest
        velocity *= rho
        velocity += scratch
        np.copyto(scratch, velocity)
        if self._centered:
            average = self.slots["average"]
            average *= rho
            average += gradient * rest
            scratch -= average * average
        scratch += np.float32(self._epsilon)
        np.sqrt(scratch, out=scratch)
        np.divide(gradient, scratch, out=scratch)
        scratch *= np.float32(self.learning_rate)
        if self._momentum:
            moving = self.slots["momentum"]
            moving *= np.float32(self._momentum)
            moving += scratch
            parameters -= moving
        else:
            parameters -= scratch


class _Adagrad(Optimizer):
    """a ← a + g²;  w ← w − η·g/√(a+ε)."""

    def __init__(
        self,
        size: int,
        learning_rate: float,
        *,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        **common: float,
    ) -> None:
        super().__init__(size, learning_rate, **common)
        self._epsilon = epsilon
        self._remember("accumulator", initial_accumulator_value)

    def _update(self, parameters: Float32Vector, gradient: Float32Vector) -> None:
        accumulator, scratch = self.slots["accumulator"], self._scratch
        np.multiply(gradient, gradient, out=scratch)
        accumulator += scratch
        np.add(accumulator, np.float32(self._epsilon), out=scratch)
        np.sqrt(scratch, out=scratch)
        np.divide(gradient, scratch, out=scratch)
        scratch *= np.float32(self.learning_rate)
        parameters -= scratch


_NUMPY: Final[dict[str, type[Optimizer]]] = {
    "sgd": _Sgd,
    "adam": _Adam,
    "adamw": _AdamW,
    "rmsprop": _RmsProp,
    "adagrad": _Adagrad,
}


def make_optimizer(text: str, *, size: int, learning_rate: float) -> Optimizer:
    """A fresh optimizer of the NumPy trainer for `size` parameters.

    Raises:
        ConfigError: the text names none.
    """
    named = parse_optimizer(text, trainer="numpy")
    return _NUMPY[named.kind](size, learning_rate, **named.values)
