"""What every gradient code has: an assignment of chunks to workers, and coefficients for whatever has been computed.

With `done[j]` the number of chunks that worker j has computed, in its order,

    sum over j of expand(narrow_j, column(j, done)),    narrow_j = encode(its gradients, encoding(j, done))

is the sum over all chunks of coverage[i] * gradient_i, where `recovery(done)` gives the coverage (all ones: exact).
With blocks > 1, a chunk that isn't whole enters by a projection that mixes the blocks of each of its rows, and
coverage[i] is the mean over directions: `partial.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeer.coding.assignment import Assignment

__all__ = ["GradientCode", "Recovery"]


@dataclass(frozen=True, slots=True, eq=False)
class Recovery:
    """What sum can be had of what has been computed."""

    exact: bool
    """Whether it is the plain sum over all chunks."""
    coverage: NDArray[np.float64]
    """How much of each chunk it holds, shape (chunks,); 1: the whole."""
    error: float
    """Expected squared error of the sum, in units of one chunk's squared gradient norm; 0 if exact.

    As in the papers, gradients of different chunks count as equally long and orthogonal; with one block it is the sum
    of (1 - coverage[i])^2. What they have in common, and they have something, is missing on top of that."""
    enough: bool = False
    """Whether the code asks for no more than this, although it isn't exact ("the first k", or all there are)."""


class GradientCode(ABC):
    """A gradient code over `workers` workers and `chunks` chunks. Pure functions of `done`, the same at every peer."""

    def __init__(self, name: str, assignment: Assignment, blocks: int = 1) -> None:
        self.name = name
        self.assignment = assignment
        self.blocks = blocks
        """By how many times a worker's vector is shorter than the sum (the papers' l)."""
        self.loads = tuple(len(order) for order in assignment.orders)
        """How many chunks each worker has."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.workers} workers)"

    @property
    def workers(self) -> int:
        return self.assignment.workers

    @property
    def chunks(self) -> int:
        return self.assignment.chunks

    @abstractmethod
    def recovery(self, done: Sequence[int]) -> Recovery:
        """What sum can be had now. Cheap: the root asks whenever a chunk is computed."""

    @abstractmethod
    def brings(self, done: Sequence[int]) -> tuple[bool, ...]:
        """Which workers have something to send."""

    @abstractmethod
    def encoding(self, worker: int, done: Sequence[int]) -> NDArray[np.float64]:
        """Coefficients of a worker's chunks, in its order, shape (chunks of the worker, blocks); zeros: not used."""

    def column(self, worker: int, done: Sequence[int]) -> NDArray[Any]:
        """With which weights the worker's vector enters each block of the sum, shape (blocks,)."""
        return np.ones(self.blocks)
