"""CodedReduce (Reisizadeh, Prakash, Pedarsani, Avestimehr 2021): a gradient code for every parent of a tree.

The root hands its data to its children so that any s of them may be missing (`siblings`). Each of them keeps the share
of one worker, coefficients included, and hands on the rest to its own children in the same way, down to the leaves. On
the way up a parent waits for enough of its children, takes the weighted sum of their messages that is the sum of what
it handed on, and adds what it has computed itself.

Positions are those of a heap: 0 is the root, which computes nothing, and i has the parent (i - 1) // fanout.

What holds on any tree, full or not: a parent with c children does with any c - min(s, c - 1) of them, so one with a
single child needs it. (That many always do; where children are grouped, fewer often do.) Everybody computes the same
share of the data, up to whole chunks, apart from subtrees whose siblings can't hold as much: theirs is smaller. On a
full tree the share is r_CR of the paper's equation (5), the least that any scheme needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import lcm

import numpy as np
from numpy.typing import NDArray

from edgepeer.coding.assignment import Assignment
from edgepeer.coding.siblings import SiblingGroup, share_out
from edgepeer.errors import ConfigError

__all__ = ["MAX_CHUNKS", "Allocation", "Share", "allocate"]

MAX_CHUNKS = 4096
_UNEVEN = 1.05  # the most a worker may have to compute, of what it would in chunks of any size

Share = Callable[[tuple[Fraction, ...], int], tuple[SiblingGroup, ...]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Allocation:
    """Who computes what, and how its parent makes use of it (the paper's CR.Allocate)."""

    fanout: int
    s: int
    load: Fraction
    """What part of the data a worker computes, in chunks of any size (r)."""
    assignment: Assignment
    coefficients: tuple[NDArray[np.float64], ...]
    """By worker, those of its chunks, in its order."""
    groups: tuple[tuple[SiblingGroup, ...], ...]
    """By worker, how its children share what it hands on; members are numbered from 0, as its children are."""

    def children(self, parent: int) -> range:
        return _children(parent, self.assignment.workers, self.fanout)


def allocate(workers: int, fanout: int, s: int, *, chunks: int | None = None, share: Share = share_out) -> Allocation:
    """Spread chunks over a tree of `workers` positions, the root among them.

    Args:
        chunks: how many; None: on a full tree the fewest of which everybody has equally many, on others the fewest of
            which nobody has 5 % too many; at most MAX_CHUNKS.
        share: how siblings share data; any gradient code will do.

    Raises:
        ConfigError: nobody would compute, or s is not below the fan-out.
    """
    if workers < 2:
        raise ConfigError(f"coded-reduce on {workers} peers: the root computes nothing, so it takes at least 2")
    if not 0 <= s < fanout:
        raise ConfigError(f"coded-reduce:s={s} on a tree of fan-out {fanout}: s must be below the fan-out, from 0 on")
    groups: list[tuple[SiblingGroup, ...]] = [()] * workers
    capacities = [Fraction(0)] * workers  # what a subtree can take, in units of one worker's share
    for node in reversed(range(workers)):
        below = tuple(capacities[child] for child in _children(node, workers, fanout))
        if below:
            groups[node] = share(below, min(s, len(below) - 1))
        capacities[node] = (1 if node else 0) + sum((group.share for group in groups[node]), Fraction(0))
    tree = _Tree(workers, fanout, s, tuple(groups), tuple(capacities))
    if chunks is not None:
        return tree.cut(chunks)
    fewest = tree.even()
    if fewest is not None and tree.full:
        return tree.cut(fewest)
    ladder = [1 << power for power in range(MAX_CHUNKS.bit_length()) if 1 << power >= min(workers, MAX_CHUNKS)]
    for count in sorted({*ladder, MAX_CHUNKS} | ({fewest} if fewest is not None else set())):
        cut = tree.cut(count)
        if int(cut.assignment.loads.max()) <= _UNEVEN * cut.load * count:
            return cut
    return cut


@dataclass(frozen=True)
class _Tree:
    workers: int
    fanout: int
    s: int
    groups: tuple[tuple[SiblingGroup, ...], ...]
    capacities: tuple[Fraction, ...]

    @property
    def full(self) -> bool:
        """Whether all leaves are in one layer and every parent has `fanout` children."""
        last = 0
        while last < self.workers - 1:
            last = last * self.fanout + self.fanout
        return last == self.workers - 1

    def even(self) -> int | None:
        """The fewest chunks that can be shared out without rounding; None: more than MAX_CHUNKS."""
        amounts = [Fraction(0)] * self.workers  # of data, as parts of the whole
        amounts[0] = Fraction(1)
        count = 1
        for node in range(self.workers):
            own, ends = self._cuts(node, amounts[node])
            pieces = [after - before for before, after in zip([own, *ends], ends, strict=False)]
            count = lcm(count, own.denominator, *(end.denominator for end in ends))
            if count > MAX_CHUNKS:
                return None
            for child, piece, _ in self._handed(node):
                amounts[child] += pieces[piece]
        return count

    def cut(self, chunks: int) -> Allocation:
        """The allocation of so many chunks, to the nearest whole ones."""
        held: list[list[NDArray[np.int64]]] = [[] for _ in range(self.workers)]
        carried: list[list[NDArray[np.float64]]] = [[] for _ in range(self.workers)]
        held[0], carried[0] = [np.arange(chunks)], [np.ones(chunks)]
        orders: list[tuple[int, ...]] = []
        coefficients: list[NDArray[np.float64]] = []
        for node in range(self.workers):
            data, factors = np.concatenate(held[node]), np.concatenate(carried[node])
            own, ends = self._cuts(node, Fraction(len(data)))
            cuts = [round(own), *(round(end) for end in ends)]
            orders.append(tuple(data[: cuts[0]].tolist()))
            coefficients.append(factors[: cuts[0]])
            for child, piece, coefficient in self._handed(node):
                part = slice(cuts[piece], cuts[piece + 1])
                held[child].append(data[part])
                carried[child].append(factors[part] * coefficient)
        return Allocation(
            fanout=self.fanout,
            s=self.s,
            load=1 / self.capacities[0],
            assignment=Assignment(chunks, tuple(orders)),
            coefficients=tuple(coefficients),
            groups=self.groups,
        )

    def _cuts(self, node: int, amount: Fraction) -> tuple[Fraction, list[Fraction]]:
        """Where the node's own data ends, of so much, and where each piece of its children's does, group by group."""
        scale = amount / self.capacities[node]
        own = scale if node else Fraction(0)
        widths = [width * scale for group in self.groups[node] for width in group.widths]
        return own, list(accumulate(widths, initial=own))[1:]

    def _handed(self, node: int) -> list[tuple[int, int, float]]:
        """Which child has which piece with which coefficient."""
        children = _children(node, self.workers, self.fanout)
        out, before = [], 0
        for group in self.groups[node]:
            for row, piece in np.argwhere(group.matrix).tolist():
                out.append((children[group.members[row]], before + piece, float(group.matrix[row, piece])))
            before += len(group.widths)
        return out


def _children(parent: int, workers: int, fanout: int) -> range:
    first = parent * fanout + 1
    return range(min(first, workers), min(first + fanout, workers))
