"""Blocks with their own checksums: each node checks itself (Huang and Abraham 1984, "Algorithm-based fault tolerance
for matrix operations").

Node (i, j) stores W_ij with a row of its columns' sums and a column of its rows' sums, the full-checksum matrix

    W^ = (W, W 1; 1' W, 1' W 1),    so    the last row of (W; 1' W) x is the sum of the others,

and of the columns backward. Updates keep that: W^ += step (delta, 1' delta) (x, 1' x)'. If a product's sums disagree by
more than rounding, the node computes it once more. If they disagree again, what is stored is wrong: the node says so
by NaN, and all go back to the last checkpoint, for there is no other copy. So it costs no second node, and nothing
corrects what is stored, or makes up for a missing node.

What it sees is what a node's own arithmetic does to its block. An operand that is wrong before both products, or an
error after the check, passes.

Tolerance. The sum of h results is compared with their checksum. By `tolerance`, each result is off by u (w + updates)^½
times the largest, M; h of them, independent, by h^½ times that; the sum and the checksum, which is a sum of w terms of
its own, by the same part of the largest checksum M_c. Together u (h + w + updates)^½ (h^½ M + M_c), times the bound for
the largest of so many numbers. What is less is not seen in any of the h results. Of results of both signs M_c is about
h^½ M: so wide blocks, and many updates, are refused, in which 1 % of M would not be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import sqrt
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from edgepeer.coding.matrix.scrub import PROBES
from edgepeer.coding.matrix.tolerance import column_bound, relative_noise
from edgepeer.errors import Undecodable
from edgepeer.training.split.network import Direction, Network
from edgepeer.training.split.strategy import Reading, Shape, Strike, combine, largest
from edgepeer.training.split.uncoded import Uncoded

__all__ = ["Checksums"]

Array = NDArray[Any]

_NUMBERS: Final = 1_000_000
"""In a product, at most: their number hardly matters to the tolerance."""


class Checksums(Uncoded):
    """m n nodes, one for each block; errors of a product are corrected at the node itself."""

    name = "abft"
    compares: ClassVar[bool] = True

    def fit(self, network: Network, updates: int = 0) -> None:
        """Also raises ConfigError: at its sizes, and after so many updates, errors can't be told from rounding."""
        super().fit(network, updates)
        for layer in range(network.layers):
            sides = self.block_shape(network.shape(layer))
            noise = relative_noise(sum(sides) + 2, self.dtype, updates)
            for direction, summed in zip(("forward", "backward"), sides, strict=True):
                sees = noise * column_bound(1, _NUMBERS) * 2 * sqrt(summed)
                self.check_sight(sees, layer, direction, updates, "more blocks or float64")

    def checks(self, direction: Direction, lost: frozenset[int]) -> bool:
        """Each node checks itself."""
        return True

    def inspects(self, lost: frozenset[int]) -> bool:
        return True

    def stored_shape(self, shape: Shape) -> Shape:
        h, w = self.block_shape(shape)
        return h + 1, w + 1

    def store(self, node: int, shape: Shape, rows: Callable[[int], Array]) -> Array:
        return _bordered(super().store(node, shape, rows))

    def product(
        self, node: int, direction: Direction, block: Array, operand: Array, updates: int, strike: Strike
    ) -> Array:
        noise = relative_noise(sum(block.shape), self.dtype, updates)
        for struck in (True, False):  # errors pass, so the second time there is none
            result = self.multiply(direction, block, operand)
            if struck:
                strike("product", result)
            if _sums_agree(result, noise):
                if not struck:
                    self.caught.add(node)
                return result[:-1].ravel()
        return np.full(result[:-1].size, np.nan, self.dtype)

    def multiply(self, direction: Direction, block: Array, operand: Array) -> Array:
        return super().multiply(direction, block[:, :-1] if direction == "forward" else block[:-1], operand)

    def update(
        self, node: int, block: Array, delta: Array, x: Array, step: float, decay: float, strike: Strike
    ) -> None:
        left = combine(self.row_weights(node), delta, block.shape[0] - 1, self.dtype)
        right = combine(self.column_weights(node), x, block.shape[1] - 1, self.dtype)
        strike("encoding", right, lambda change: abs(step) * largest(left @ change.T) / (largest(block) or 1.0))
        if decay != 1:
            block *= self.dtype.type(decay)
        block += (self.dtype.type(step) * _summed(left)) @ _summed(right).T

    def read(
        self, direction: Direction, rows: Array, shape: Shape, batch: int, lost: Collection[int], updates: int
    ) -> Reading:
        if not np.isfinite(rows).all():
            raise Undecodable("a node's stored weights don't agree with their checksums, and there is no copy")
        return super().read(direction, rows, shape, batch, lost, updates)

    def inspect(self, probes: Array, shape: Shape, lost: Collection[int], updates: int) -> tuple[int, ...]:
        h, _ = self.stored_shape(shape)
        noise = relative_noise(self.m * self.n, self.dtype, updates)
        wrong = []
        for node, numbers in enumerate(probes):
            right, left = numbers[: PROBES * h].reshape(h, -1), numbers[PROBES * h :].reshape(-1, PROBES)
            if node not in lost and not (_sums_agree(right, noise) and _sums_agree(left, noise)):
                wrong.append(node)
        return tuple(wrong)


def _summed(rows: Array) -> Array:
    """With one row more: their sum."""
    return np.concatenate([rows, rows.sum(axis=0, keepdims=True)])


def _bordered(block: Array) -> Array:
    return np.ascontiguousarray(_summed(_summed(block).T).T)


def _sums_agree(result: Array, noise: float) -> bool:
    """Whether the last row is the sum of the others, but for rounding. NaN agrees with nothing."""
    exact = result.astype(np.float64)
    off = np.abs(exact[:-1].sum(axis=0) - exact[-1]).max()
    sizes = np.abs(exact).max(axis=1)
    scale = sqrt(len(exact) - 1) * sizes[:-1].max() + sizes[-1]
    return bool(off <= noise * column_bound(1, exact.shape[1]) * scale)
