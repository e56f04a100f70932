"""Every block at several nodes, which are compared: two find an error, three correct one by majority.

Node c m n + i n + j stores copy c of W_ij. Each has a slot of its own, so that an error is one copy's of one block, as
voting wants it; blocks are added up after the vote. The copies are a code with one symbol, G = (1, ..., 1)', and are
read by the decoder of all codes: k wrong and e missing of c copies are corrected if 2k + e <= c - 1. What differs by no
more than rounding is equal, so machines need not compute alike bit by bit. Where two of three copies have the same
error, they win; that is voting's own limit.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeer.coding.matrix.decode import MatrixCode, decode
from edgepeer.coding.matrix.tolerance import relative_noise
from edgepeer.errors import ConfigError
from edgepeer.training.split.network import Direction
from edgepeer.training.split.strategy import Reading, Shape, Split

__all__ = ["Replicate"]

Array = NDArray[Any]


class Replicate(Split):
    """copies m n nodes; (copies - 1) // 2 wrong copies of each block a step."""

    name = "replicate"

    def __init__(self, m: int, n: int, copies: int, dtype: np.dtype[Any]) -> None:
        if copies < 2:
            raise ConfigError(f"split replicate: copies={copies}: there is nothing to compare; take 2 or more, or none")
        super().__init__(m, n, m * n * copies, dtype)
        self.copies = copies
        self._code = MatrixCode(np.ones((copies, 1)))

    def row_weights(self, node: int) -> Array:
        return np.asarray(np.eye(self.m)[node // self.n % self.m])

    def column_weights(self, node: int) -> Array:
        return np.asarray(np.eye(self.n)[node % self.n])

    def lines(self, direction: Direction) -> int:
        return self.nodes

    def line(self, node: int, direction: Direction) -> int | None:
        return node

    def read(
        self, direction: Direction, rows: Array, shape: Shape, batch: int, lost: Collection[int], updates: int
    ) -> Reading:
        result, summed = shape if direction == "forward" else shape[::-1]
        noise = self.noise(-(-summed // (self.n if direction == "forward" else self.m)), updates)
        blocks, wrong = self._vote(rows, lost, noise)
        grid = blocks.reshape(self.m, self.n, -1)
        total = grid.sum(axis=1 if direction == "forward" else 0)
        return Reading(total.reshape(-1, batch)[:result], wrong)

    def inspect(self, probes: Array, shape: Shape, lost: Collection[int], updates: int) -> tuple[int, ...]:
        return self._vote(probes, lost, relative_noise(self.m * self.n, self.dtype, updates))[1]

    def groups(self, node: int) -> tuple[tuple[int, ...], ...]:
        return (tuple(range(node % (self.m * self.n), self.nodes, self.m * self.n)),)

    def _vote(self, rows: Array, lost: Collection[int], noise: float) -> tuple[Array, tuple[int, ...]]:
        """Each block's numbers, shape (m n, numbers), and the nodes that were wrong."""
        copies = rows.reshape(self.copies, self.m * self.n, -1)
        if not lost and np.isfinite(copies[0]).all() and (copies == copies[0]).all():
            return copies[0], ()  # machines that compute alike: no need to look closer
        out, wrong = np.empty_like(copies[0]), set[int]()
        for block in range(len(out)):
            gone = [copy for copy in range(self.copies) if copy * len(out) + block in lost]
            found = decode(self._code, copies[:, block], gone, noise=noise)
            out[block] = found.data[0]
            wrong |= {copy * len(out) + block for copy in found.wrong}
        return out, tuple(sorted(wrong))
