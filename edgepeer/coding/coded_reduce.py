"""CodedReduce as a code of the running system: any s children of any parent may be missing from a round.

Worker 0 is the root and computes nothing; the others are positions of the tree (`tree_allocation`). A worker's message
is of use once it has computed all of its chunks and its own children's are of use, as many as it needs. Parents'
decoding coefficients are multiplied into the workers', layer by layer, so that the plain sum of all vectors is the
gradient, whatever path they take to the root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from edgepeer.coding.code import GradientCode, Recovery
from edgepeer.coding.siblings import SiblingGroup
from edgepeer.coding.tree_allocation import Allocation, allocate

__all__ = ["CodedReduceCode"]

_REMEMBERED = 128  # plans, and decodings


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """What is made of the workers who are complete."""

    exact: bool
    weights: NDArray[np.float64]
    """What each worker's own vector is multiplied by, shape (workers,)."""
    used: NDArray[np.bool_]
    """Whose vector is. A weight may be 0 by rounding at one machine and not at another; this is the same at all."""


class CodedReduceCode(GradientCode):
    """Recovers the sum exactly if every parent on the way has enough of its children.

    If the root does not, every parent on the way makes the best of what it has: the most complete message of a group of
    which any will do, and of a coded group those that are whole, by least squares.

    Args:
        name: the spec it is made from.
        workers: positions in the tree, the root included.
        fanout: children per parent.
        s: how many of them may be missing; of a parent with c children, min(s, c - 1).

    Raises:
        ConfigError: there is no such tree, or s is not below the fan-out.
    """

    def __init__(self, name: str, workers: int, fanout: int, s: int) -> None:
        self.allocation: Allocation = allocate(workers, fanout, s)
        super().__init__(name, self.allocation.assignment)
        orders = self.assignment.orders
        self._loads = self.assignment.loads
        self._chunk = np.array([chunk for order in orders for chunk in order])
        self._owner = np.repeat(np.arange(workers), self._loads)
        self._coefficient = np.concatenate(self.allocation.coefficients)
        self._children = [self.allocation.children(parent) for parent in range(workers)]
        self._plan = lru_cache(_REMEMBERED)(self._make_plan)
        self._decoding = lru_cache(_REMEMBERED)(SiblingGroup.decoding)

    def recovery(self, done: Sequence[int]) -> Recovery:
        plan = self._plan(self._complete(done))
        if plan.exact:
            return Recovery(True, np.ones(self.chunks), 0.0)
        coverage = self._by_chunk(plan.weights[self._owner] * self._coefficient)
        return Recovery(False, coverage, float(((1 - coverage) ** 2).sum()))

    def brings(self, done: Sequence[int]) -> tuple[bool, ...]:
        return tuple((self._plan(self._complete(done)).used & (self._loads > 0)).tolist())

    def encoding(self, worker: int, done: Sequence[int]) -> NDArray[np.float64]:
        """The worker's coefficients times its ancestors' decoding coefficients, shape (chunks of the worker, 1)."""
        weight = float(self._plan(self._complete(done)).weights[worker])
        return weight * self.allocation.coefficients[worker].reshape(-1, 1)

    def _by_chunk(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """The sum of all workers' weights of each chunk, of weights in the order of `_chunk`."""
        out = np.zeros(self.chunks)
        np.add.at(out, self._chunk, weights)
        return out

    def _complete(self, done: Sequence[int]) -> bytes:
        """Who has computed everything, the root included; hashable."""
        return (np.asarray(done) >= self._loads).tobytes()

    def _make_plan(self, complete: bytes) -> _Plan:
        exact = [False] * self.workers
        counts = [0] * self.workers  # how much of what the message should hold is in it: breaks ties by whole numbers,
        local = np.zeros(self.workers)  # so that all peers choose alike whatever their rounding
        taken = np.zeros(self.workers, np.bool_)
        for node in reversed(range(self.workers)):
            if not complete[node]:
                continue
            exact[node], counts[node] = True, int(self._loads[node])
            for group in self.allocation.groups[node]:
                members = [self._children[node][member] for member in group.members]
                usable = tuple(exact[member] for member in members)
                exact[node] &= group.enough(usable)
                best = max(members, key=lambda member: (exact[member], counts[member]))
                if group.replicated:
                    local[best] = taken[best] = counts[best] > 0
                else:
                    local[members], taken[members] = self._decoding(group, usable), usable
                counts[node] += counts[best]
        weights, used = np.zeros(self.workers), np.zeros(self.workers, np.bool_)
        weights[0] = used[0] = True
        for node in range(self.workers):
            if used[node]:
                below = slice(self._children[node].start, self._children[node].stop)
                weights[below], used[below] = weights[node] * local[below], taken[below]
        return _Plan(exact[0], weights, used)
