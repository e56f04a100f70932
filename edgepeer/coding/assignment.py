"""Which worker computes the gradients of which chunks of the data set, and in what order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from edgepeer.errors import ConfigError

__all__ = ["Assignment", "cyclic_assignment", "paired_assignment"]


@dataclass(frozen=True)
class Assignment:
    """Chunks 0..chunks-1 on workers 0..m-1. A chunk may be with many workers; a worker may have none.

    Args:
        chunks: how many there are (the papers' N).
        orders: by worker, its chunks in the order of computing.

    Raises:
        ConfigError: a worker has a chunk twice or one that doesn't exist, or nobody has a chunk.
    """

    chunks: int
    orders: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        assigned: set[int] = set()
        for worker, order in enumerate(self.orders):
            if len(set(order)) != len(order):
                raise ConfigError(f"assignment: worker {worker} has a chunk twice: {order}")
            assigned.update(order)
        if wrong := sorted(assigned - set(range(self.chunks))):
            raise ConfigError(f"assignment: there is no chunk {wrong[0]}, only 0 to {self.chunks - 1}")
        if len(assigned) < self.chunks or not self.chunks:
            missing = next((i for i in range(self.chunks) if i not in assigned), 0)
            raise ConfigError(f"assignment: nobody has chunk {missing}; every chunk needs a worker")

    @property
    def workers(self) -> int:
        """The papers' m."""
        return len(self.orders)

    @cached_property
    def loads(self) -> NDArray[np.int64]:
        """How many chunks each worker has (the papers' delta_j), shape (workers,)."""
        return np.array([len(order) for order in self.orders])

    @cached_property
    def ordering(self) -> NDArray[np.int64]:
        """The ordering matrix O, shape (chunks, workers): chunk i is the O[i, j]-th that worker j computes, from 1 on;
        0: j does not have it (Ramamoorthy, Meng, Girimaji 2024, §III)."""
        out = np.zeros((self.chunks, self.workers), np.int64)
        for worker, order in enumerate(self.orders):
            out[list(order), worker] = range(1, len(order) + 1)
        out.setflags(write=False)
        return out

    def matrix(self) -> NDArray[np.float64]:
        """The assignment matrix A, shape (chunks, workers): 1 where worker j has chunk i, else 0."""
        return (self.ordering > 0).astype(np.float64)

    @property
    def replication(self) -> tuple[int, ...]:
        """With how many workers each chunk is (the papers' gamma_i)."""
        return tuple(int(count) for count in np.count_nonzero(self.ordering, axis=1))

    def computed(self, done: Sequence[int]) -> NDArray[np.bool_]:
        """Which worker has computed which chunk, shape (chunks, workers): the first done[j] of its own."""
        return (self.ordering > 0) & (self.ordering <= np.asarray(done))

    def complete(self, done: Sequence[int]) -> NDArray[np.bool_]:
        """Which workers have computed all of their chunks, and have any, shape (workers,)."""
        return (self.loads > 0) & (np.asarray(done) >= self.loads)


def cyclic_assignment(workers: int, load: int) -> Assignment:
    """As many chunks as workers; worker j has chunks j, j+1, ..., j+load-1 modulo their number, in this order.

    Source: Tandon, Lei, Dimakis, Karampatziakis 2017, §3.2 (cyclic repetition).

    Raises:
        ConfigError: a worker would have a chunk twice, or none.
    """
    if not 1 <= load <= workers:
        raise ConfigError(f"{load} copies of each chunk can't be spread over {workers} workers: needs 1 to {workers}")
    return Assignment(workers, tuple(tuple((j + k) % workers for k in range(load)) for j in range(workers)))


def paired_assignment(workers: int, load: int) -> Assignment:
    """As many chunks as workers; every worker has its own chunk first and then its partner's, whose second is its own.

    Orders are optimal (ordering.py), as those of every assignment are in which each place is a permutation. What is
    better here: a chunk takes longer than two where its first and its second worker lag, and there are half as many
    such pairs of workers as in cyclic orders. Of an odd number of workers the last three go round.

    Raises:
        ConfigError: there are not enough workers.
    """
    if not 2 <= load <= workers - 2:
        raise ConfigError(
            f"in pairs, each chunk can have 2 to workers - 2 copies, not {load} with {workers}; "
            "cyclically, 1 to as many as there are workers"
        )
    paired = workers - 3 * (workers % 2)
    partner = [j ^ 1 for j in range(paired)] + [*range(paired + 1, workers), paired][: workers - paired]
    others = range(2, load)  # steps of 2 to workers - 3 lead neither to oneself nor to the partner
    return Assignment(
        workers,
        tuple((j, partner[j], *((j + step) % workers for step in others)) for j in range(workers)),
    )
