"""Blocks, and nothing else: what training is without any protection, to compare with.

Node (i, j) = i n + j stores W_ij. Row sums are the result, whatever is in them. A missing node can't be made up for.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgepeer.errors import Undecodable
from edgepeer.training.split.network import Direction
from edgepeer.training.split.strategy import Reading, Shape, Split

__all__ = ["Uncoded"]

Array = NDArray[Any]


class Uncoded(Split):
    """m n nodes, one for each block."""

    name = "none"
    compares: ClassVar[bool] = False

    def __init__(self, m: int, n: int, dtype: np.dtype[Any]) -> None:
        super().__init__(m, n, m * n, dtype)

    def row_weights(self, node: int) -> Array:
        return np.asarray(np.eye(self.m)[node // self.n])

    def column_weights(self, node: int) -> Array:
        return np.asarray(np.eye(self.n)[node % self.n])

    def lines(self, direction: Direction) -> int:
        return self.m if direction == "forward" else self.n

    def line(self, node: int, direction: Direction) -> int | None:
        return node // self.n if direction == "forward" else node % self.n

    def read(
        self, direction: Direction, rows: Array, shape: Shape, batch: int, lost: Collection[int], updates: int
    ) -> Reading:
        if lost:
            raise Undecodable(f"without a code nothing makes up for the missing lines {sorted(lost)}")
        return Reading(rows.reshape(-1, batch)[: shape[0] if direction == "forward" else shape[1]])

    def inspect(self, probes: Array, shape: Shape, lost: Collection[int], updates: int) -> tuple[int, ...]:
        return ()
