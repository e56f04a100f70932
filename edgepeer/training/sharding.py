"""Who trains on which sample in which round: pure functions, so that nobody has to be told.

The samples of a data set, in a seeded order, are cut into one shard per peer: no sample in two, none left
out, sizes at most 1 apart. A peer walks over its shard in passes, each in a new order; a batch never
crosses from one pass into the next, so the last batch of a pass may be smaller. Any peer can compute any
other's batch of any round at any time; nothing is remembered from one round to the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from edgepeer.training.datasets import Dataset
from edgepeer.training.seeded import permutation

__all__ = ["Shard", "shard_of"]


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One peer's part of the samples 0 to samples-1. Raises ValueError where the fields make no sense."""

    samples: int
    """How many samples all peers have together; may be fewer than there are peers."""
    position: int
    """The peer's position, 0 to peers-1."""
    peers: int
    batch_size: int
    """The most samples that a batch holds."""
    seed: int

    def __post_init__(self) -> None:
        if self.samples < 0 or self.batch_size < 1 or not 0 <= self.position < self.peers:
            raise ValueError(f"no such shard: {self}")

    @property
    def size(self) -> int:
        """How many samples are in this shard."""
        return self._end - self._start

    @property
    def batches(self) -> int:
        """Batches in one pass over the shard."""
        return -(-self.size // self.batch_size)

    @cached_property
    def indices(self) -> NDArray[np.int64]:
        """The shard's samples, shape (size,)."""
        return permutation(self.samples, "shards", self.seed)[self._start : self._end].copy()

    def batch(self, round_number: int) -> NDArray[np.int64]:
        """The samples for a round (from 1 on), shape (1 to batch_size,); none where the shard is empty."""
        return self.indices[self.within(round_number)]

    def within(self, round_number: int) -> NDArray[np.int64]:
        """At which places of `indices` those are."""
        if round_number < 1:
            raise ValueError(f"rounds count from 1, not {round_number}")
        if not self.size:
            return np.empty(0, np.int64)
        walk, at = divmod(round_number - 1, self.batches)
        order = _order(self.size, self.seed, walk, self.position)
        return order[at * self.batch_size : (at + 1) * self.batch_size]

    @property
    def _start(self) -> int:
        return self.samples * self.position // self.peers

    @property
    def _end(self) -> int:
        return self.samples * (self.position + 1) // self.peers


def shard_of(dataset: Dataset, *, position: int, peers: int, batch_size: int, seed: int) -> Shard:
    """A peer's shard of the training samples; all of them where each device brought its own data."""
    if dataset.local:
        position, peers = 0, 1
    samples = len(dataset.x_train)
    return Shard(samples=samples, position=position, peers=peers, batch_size=batch_size, seed=seed)


@lru_cache(maxsize=4)
def _order(size: int, seed: int, walk: int, position: int) -> NDArray[np.int64]:
    order = permutation(size, "pass", seed, walk, position)
    order.flags.writeable = False  # shared by whoever asks again
    return order
