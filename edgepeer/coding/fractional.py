"""Fractional repetition: groups of at least s + 1 workers that all have the same chunks; one of each group is enough.

Tandon, Lei, Dimakis, Karampatziakis 2017, §3.1, for s + 1 dividing the number of workers m. For any other m, there are
floor(m / (s + 1)) groups, and the first m - (s + 1) * groups workers that are left over join the groups in turn. Each
group has s + 1 chunks, so that all workers have the same load: 1 / groups of the data.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgepeer.coding.assignment import Assignment
from edgepeer.coding.linear import LinearCode, check_stragglers

__all__ = ["FractionalCode"]


class FractionalCode(LinearCode):
    """Exact if no group is missing as a whole, so without any s workers; else without that group's chunks.

    Coefficients are ones, and the first of a group that is there stands for it: condition numbers don't arise.
    """

    def __init__(self, name: str, workers: int, s: int) -> None:
        check_stragglers(workers, s)
        self.s = s
        count = workers // (s + 1)
        self.groups = tuple(tuple(range(group, workers, count)) for group in range(count))
        """By group, its workers: next to each other in the order are never of one group, unless there is only one."""
        load = s + 1
        orders = [
            tuple(group * load + (place + k) % load for k in range(load))
            for worker in range(workers)
            for group, place in [(worker % count, worker // count)]
        ]
        super().__init__(name, Assignment(count * load, tuple(orders)))

    def _solve(self, there: NDArray[np.bool_]) -> NDArray[np.float64]:
        vector = np.zeros(self.workers)
        for group in self.groups:
            present = [worker for worker in group if there[worker]]
            vector[present[:1]] = 1.0
        return vector

    def brings(self, done: Sequence[int]) -> tuple[bool, ...]:
        return tuple((self._decoding_of(done).vector != 0).tolist())
