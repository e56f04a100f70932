"""How the children of one parent share its data, so that any enough of them give the sum over all of it.

Siblings are split into groups, each with a part of the data of its own. A group of s+1 holds everything s+1 times, and
any one member will do. Where s+1 does not divide the siblings, or they can carry different amounts, one larger group is
coded: its data is laid around a circle s+1 times, each member takes an arc in proportion to what it can carry, and the
coefficients B of the members solve A B = 1 for a matrix A of s+1 rows any s+1 columns of which are independent. Without
any s members Z there is a row in the span of A's that is zero on Z and still gives the sum. (Tandon, Lei, Dimakis,
Karampatziakis 2017, where all carry the same; Wang, Guo, Tang, Li, Chen 2019, where they don't.) Small groups keep the
coefficients small, whatever the number of siblings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import combinations, pairwise
from math import comb

import numpy as np
from numpy.typing import NDArray

from edgepeer.coding.nearest import LEAST, nearest

__all__ = ["SiblingGroup", "share_out"]

_DRAWS = 40  # of the matrix A; the one with the smallest coefficients is taken
_PATTERNS = 300  # of stragglers, at most, by which a draw is judged


@dataclass(frozen=True, kw_only=True, eq=False)
class SiblingGroup:
    """Siblings who share one part of their parent's data."""

    members: tuple[int, ...]
    """Which of the siblings, by their number among them, from 0."""
    widths: tuple[Fraction, ...]
    """How large each piece of the group's data is; in units of what a worker computes."""
    matrix: NDArray[np.float64]
    """With which coefficient each member has each piece, shape (members, pieces); 0: it does not have it (B)."""
    spare: int
    """Without how many of its members, whichever, the group's sum can be had (s)."""

    @property
    def share(self) -> Fraction:
        """How much data the group holds, copies counted once."""
        return sum(self.widths, Fraction(0))

    @property
    def replicated(self) -> bool:
        """Whether every member has all of it, with coefficient 1."""
        return len(self.widths) == 1

    def enough(self, usable: Sequence[bool]) -> bool:
        """Whether the members with messages, by position in `members`, give the sum of the group's data."""
        return len(self.members) - sum(usable) <= self.spare

    def decoding(self, usable: tuple[bool, ...]) -> NDArray[np.float64]:
        """The weights of the members' messages, shape (members,): the smallest that give the sum of the group's data.

        Of too few messages, those that come nearest to it with no piece below 0 (`nearest`), pieces counting by their
        width; none, where next to nothing of it would come. 0: not used."""
        weights = np.zeros(len(self.members))
        if self.replicated:
            weights[list(usable).index(True) if any(usable) else []] = 1.0
        elif self.enough(usable):
            those = np.flatnonzero(usable)
            weights[those] = np.linalg.lstsq(self.matrix[those].T, np.ones(len(self.widths)), rcond=None)[0]
        elif any(usable):
            those, scale = np.flatnonzero(usable), np.sqrt(np.array(self.widths, float))
            found = nearest((self.matrix[those] * scale).T, scale)
            if np.linalg.norm(found @ self.matrix[those] * scale) ** 2 > LEAST:
                weights[those] = found
        return weights


@lru_cache(maxsize=1024)
def share_out(capacities: tuple[Fraction, ...], s: int) -> tuple[SiblingGroup, ...]:
    """Have siblings hold as much data as they can, each piece s+1 times.

    Args:
        capacities: how much data each sibling can take for itself and its descendants.
        s: how many of any group may be missing, fewer than there are siblings.

    Returns:
        Groups of s+1 or more, every sibling in one. Their shares add up to the largest D for which the sum over the
        siblings of min(capacity, D) is (s+1) D, which no scheme can exceed.
    """
    alike: dict[Fraction, list[int]] = {}
    for sibling, capacity in enumerate(capacities):
        alike.setdefault(capacity, []).append(sibling)
    groups: list[list[int]] = []
    rest: list[int] = []
    for siblings in alike.values():
        full = len(siblings) // (s + 1) * (s + 1)
        groups += [siblings[at : at + s + 1] for at in range(0, full, s + 1)]
        rest += siblings[full:]

    def held() -> Fraction:
        parts = [*groups, rest] if rest else groups
        return sum((_level([capacities[i] for i in part], s) for part in parts), Fraction(0))

    most = _level(capacities, s)
    while rest and groups and (len(rest) <= s or held() < most):
        rest += groups.pop()
    return tuple(_group(sorted(part), capacities, s) for part in ([*groups, rest] if rest else groups))


def _level(capacities: Sequence[Fraction], s: int) -> Fraction:
    """The largest D that siblings can hold s+1 times, none of it twice at one of them; 0: they are s or fewer."""
    falling = sorted(capacities, reverse=True)
    for full in range(min(s + 1, len(falling))):  # so many of them hold all of it
        level = sum(falling[full:], Fraction(0)) / (s + 1 - full)
        if falling[full] <= level:
            return level
    return Fraction(0)


def _group(members: list[int], capacities: Sequence[Fraction], s: int) -> SiblingGroup:
    level = _level([capacities[member] for member in members], s)
    ends = [Fraction(0)]
    for member in members:
        ends.append(ends[-1] + min(capacities[member], level))
    cuts = [*sorted({end % level for end in ends}), level]
    # A member's arc begins at ends[i] and may go past the end of the circle.
    holds = [
        [any(start <= cut + turn * level < end for turn in range(s + 2)) for cut in cuts[:-1]]
        for start, end in pairwise(ends)
    ]
    widths = tuple(after - before for before, after in pairwise(cuts))
    return SiblingGroup(members=tuple(members), widths=widths, matrix=_coefficients(np.array(holds), s), spare=s)


def _coefficients(holds: NDArray[np.bool_], s: int) -> NDArray[np.float64]:
    """B with B[i, k] = 0 unless member i holds piece k, such that all ones are in the span of any len(B) - s rows."""
    if holds.all():
        return np.ones(holds.shape)
    members = len(holds)
    owners = np.array([np.flatnonzero(column) for column in holds.T])  # (pieces, s + 1)
    random = np.random.default_rng([members, s])
    if comb(members, s) <= _PATTERNS:
        missing = np.array(list(combinations(range(members), s)), int)
    else:
        missing = np.array([random.permutation(members)[:s] for _ in range(_PATTERNS)])
    best, least = np.ones(holds.shape), np.inf
    for _ in range(_DRAWS):
        spread = random.standard_normal((s + 1, members))
        spread /= np.linalg.norm(spread, axis=0)
        matrix = np.zeros(holds.shape)
        pieces = np.linalg.solve(spread.T[owners].transpose(0, 2, 1), np.ones((len(owners), s + 1, 1)))
        np.put_along_axis(matrix.T, owners, pieces[:, :, 0], axis=1)
        # Rows of weights that are zero on those missing and decode, by missing set: what an error may grow by.
        system = np.concatenate([spread.T[missing], np.ones((len(missing), 1, s + 1))], axis=1)
        right = np.zeros((len(missing), s + 1, 1))
        right[:, -1] = 1
        weights = np.linalg.solve(system, right)[:, :, 0] @ spread
        growth = (np.abs(weights) @ np.abs(matrix)).max()
        if growth < least * (1 - 1e-6):  # not by rounding, which may differ between machines
            best, least = matrix, growth
    return best
