"""What the protocol asks of a gradient code: `edgepeer.coding` has several that fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

__all__ = ["Code", "Coding", "Recovery"]


class Recovery(Protocol):
    """What sum can be had of what is computed."""

    @property
    def exact(self) -> bool:
        """Whether it is the plain sum over all chunks."""

    @property
    def enough(self) -> bool:
        """Whether the code itself does not ask for more."""

    @property
    def coverage(self) -> NDArray[Any]:
        """How much of each chunk it holds, shape (chunks,); 1: the whole."""

    @property
    def error(self) -> float:
        """Expected squared error, in units of one chunk's squared gradient norm; 0 if exact."""


class Code(Protocol):
    """A code over `workers` slots. `done` is how many of its chunks each slot has computed, in the code's order."""

    @property
    def workers(self) -> int: ...

    @property
    def chunks(self) -> int: ...

    @property
    def loads(self) -> Sequence[int]:
        """How many chunks each worker has."""

    @property
    def blocks(self) -> int:
        """By how many times a worker's vector is shorter than the sum."""

    def recovery(self, done: Sequence[int]) -> Recovery:
        """What sum can be had now."""

    def brings(self, done: Sequence[int]) -> tuple[bool, ...]:
        """Which workers have something to send."""

    def column(self, worker: int, done: Sequence[int]) -> NDArray[Any]:
        """With which weights a worker's vector enters each block of the sum, shape (blocks,)."""


class Coding(Protocol):
    """How a run's rounds are coded: the same at all peers."""

    @property
    def name(self) -> str:
        """By which peers find out whether it is."""

    @property
    def deadline_s(self) -> float | None:
        """After how long the root closes a round in any case; None: never."""

    def build(self, workers: int, fanout: int, /) -> Code:
        """The code for so many workers, in a tree of that fan-out."""

    def enough(self, error: float, /) -> bool:
        """Whether the root may close a round with that expected squared error."""
