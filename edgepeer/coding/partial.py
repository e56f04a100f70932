"""Gradient coding that uses what slow workers have done: Algorithm 1 of Ramamoorthy, Meng, Girimaji 2024, §II.

A gradient g of d elements is cut into l blocks; G is the matrix whose k-th column is block k, shape (d / l, l). With
psi, the number of chunks that each worker has computed, everybody knows the set S of workers that have computed chunk
i. X = R[:, S] has shape (l, |S|), and pinv(X) shape (|S|, l): its row of worker j holds the coefficients with which j
takes the l blocks of that chunk (eq. (5), the shortest least squares solution). Worker j sends the sum over its chunks
of G_i times that row, a vector of d / l. Adding it up with the weights R[k, j] into block k gives of each chunk

    sum over j in S of outer(G_i pinv(X)[j], R[:, j]) = G_i (X pinv(X))^T.

- |S| >= l: X pinv(X) = I. All of the chunk, exactly; nobody needs more than R and psi to know its coefficients.
- |S| = D < l: a projection of rank D. Whatever R is, its squared distance from I is l - D, so that

      sum over i of max(0, l - D_i)

  is what the paper plots, and not just its expectation (eq. (6)). In units of a squared gradient norm, if its direction
  is random, or R is, that is a l-th of it: `Recovery.error` = sum over i of max(0, l - D_i) / l.
- l = 1 (Remark 1): R is all ones, each copy of a chunk counts 1 / |S|: weighted partial sums of whole gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edgepeer.coding.assignment import Assignment
from edgepeer.coding.code import GradientCode, Recovery
from edgepeer.coding.spread import spread_columns
from edgepeer.errors import ConfigError

__all__ = ["PartialCode"]

_RANK: Final = 1e-9
"""Singular values below this part of the greatest are zeros."""
_NEVER: Final = np.iinfo(np.int64).max


class PartialCode(GradientCode):
    """Partial stragglers' protocol on any assignment, sending vectors that are `blocks` times shorter.

    Args:
        columns: R, shape (blocks, workers); None: `spread_columns`, which is better conditioned than random ones.

    Raises:
        ConfigError: a chunk is with fewer than `blocks` workers, so that it could never be had.
    """

    def __init__(
        self, name: str, assignment: Assignment, blocks: int, columns: NDArray[np.float64] | None = None
    ) -> None:
        fewest = min(assignment.replication)
        if not 1 <= blocks <= fewest:
            raise ConfigError(
                f"l must be 1 to {fewest}, not {blocks}: each chunk must be with l workers at least, "
                f"and chunk {assignment.replication.index(fewest)} is with {fewest}"
            )
        super().__init__(name, assignment, blocks)
        self.columns = spread_columns(assignment, blocks) if columns is None else columns
        if self.columns.shape != (blocks, assignment.workers):
            raise ConfigError(f"R has shape {self.columns.shape}, must have {(blocks, assignment.workers)}")
        self._sums = blocks == 1 and columns is None
        """Whether workers send weighted partial sums, for which nothing need be solved."""
        most = max(assignment.replication)
        self._holders = np.zeros((assignment.chunks, most), np.int64)
        """By chunk its workers, then worker 0 again and again, shape (chunks, most)."""
        self._places = np.full((assignment.chunks, most), _NEVER)
        """By chunk at which place in their orders they have it, from 1 on."""
        for chunk, row in enumerate(assignment.ordering):
            holders = np.flatnonzero(row)
            self._holders[chunk, : len(holders)] = holders
            self._places[chunk, : len(holders)] = row[holders]

    def copies(self, done: Sequence[int]) -> NDArray[np.int64]:
        """How many workers have computed each chunk (the paper's Delta_i), shape (chunks,)."""
        return np.asarray((self._places <= np.asarray(done)[self._holders]).sum(axis=1, dtype=np.int64))

    def recovery(self, done: Sequence[int]) -> Recovery:
        copies = np.minimum(self.copies(done), self.blocks)
        missing = self.chunks * self.blocks - int(copies.sum())
        return Recovery(missing == 0, copies / self.blocks, missing / self.blocks)

    def brings(self, done: Sequence[int]) -> tuple[bool, ...]:
        return tuple(bool(count > 0 and load > 0) for count, load in zip(done, self.assignment.loads, strict=True))

    def _systems(self, chunks: NDArray[np.int64], done: Sequence[int]) -> NDArray[np.float64]:
        """X of these chunks, shape (len(chunks), blocks, most); zeros in the place of who hasn't computed them."""
        holders = self._holders[chunks]
        computed = self._places[chunks] <= np.asarray(done)[holders]
        return np.where(computed[:, None, :], self.columns[:, holders].transpose(1, 0, 2), 0.0)

    def encoding(self, worker: int, done: Sequence[int]) -> NDArray[np.float64]:
        order = self.assignment.orders[worker]
        out = np.zeros((len(order), self.blocks))
        chunks = np.array(order[: done[worker]], dtype=np.int64)
        if self._sums:
            out[: len(chunks), 0] = 1 / (self._places[chunks] <= np.asarray(done)[self._holders[chunks]]).sum(axis=1)
        elif len(chunks):
            inverses = np.linalg.pinv(self._systems(chunks, done), rcond=_RANK)
            mine = (self._holders[chunks] == worker) & (self._places[chunks] < _NEVER)
            out[: len(chunks)] = inverses[np.arange(len(chunks)), np.argmax(mine, axis=1)]
        return out

    def column(self, worker: int, done: Sequence[int]) -> NDArray[np.float64]:
        return self.columns[:, worker].copy()
