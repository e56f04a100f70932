"""What the checks of a code can still see without the worst of its nodes.

Whoever corrects errors must be able to see those that are left. Checks of the nodes that remain see an error of size 1
in a row as a syndrome of the norm of that row's column of H. Where few checks remain, and the missing nodes are the
row's neighbours on the curve, that norm may be 1e-4, and no more than what rounding does. There are equations enough
then, and not digits enough. `decode` gives no answer that it couldn't check; `plan` promises none.

With the checks H of all nodes, those that don't read the missing nodes L are the combinations a'H with a'h_l = 0 for
all l in L. So what is left of a row's column is its distance to the space that the columns of L span:

    visible(i, L) = |h_i - projection of h_i on span{h_l : l in L}|.

It only becomes less with more of them missing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from edgepeer.coding.matrix.decode import MatrixCode, visible
from edgepeer.coding.matrix.nodes import lost_sets
from edgepeer.coding.matrix.tolerance import column_bound

__all__ = ["Sight", "least_sight"]

_NUMBERS = 1_000_000
"""In a row, at most: their number hardly matters to the tolerance."""
_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Sight:
    """The set of missing nodes without which least is seen."""

    visible: float
    """The least norm of a remaining row's column of H."""
    nodes: tuple[int, ...]
    """Those missing."""
    checks: int
    """How many are left."""
    exhaustive: bool
    """Whether all sets were tried, or only the likeliest to be bad (`nodes.lost_sets`)."""

    def sees(self, noise: float) -> float:
        """From which size on errors are seen in every row, as a part of the largest number of all rows.

        Args:
            noise: of a number by rounding, likewise (`tolerance.relative_noise`).
        """
        return noise * column_bound(self.checks, _NUMBERS) / self.visible if self.visible else math.inf


def least_sight(code: MatrixCode, lost: int) -> Sight:
    """Without any `lost` of the nodes. At least one check must be left."""
    distances = _Distances(code)
    sets, exhaustive = lost_sets(code.nodes, lost, lambda some: -distances.least(some))
    worst = sets[int(np.argmin(distances.least(sets)))].tolist()
    checks = (code.nodes - lost) * code.group - code.symbols
    return Sight(visible(code, frozenset(worst)), tuple(sorted(worst)), checks, exhaustive)


class _Distances:
    """How far the nearest of the other rows' columns of H is from the span of some nodes' columns."""

    def __init__(self, code: MatrixCode) -> None:
        self._columns = np.linalg.qr(code.generator, mode="complete").Q[:, code.symbols :]
        self._group = code.group

    def least(self, sets: NDArray[np.int64]) -> NDArray[np.float64]:
        """Of each set, shape (sets,); `sets` has shape (sets, nodes)."""
        edges = [*range(0, len(sets), _AT_ONCE), len(sets)]
        return np.concatenate([self._some(sets[a:b]) for a, b in pairwise(edges)])

    def _some(self, sets: NDArray[np.int64]) -> NDArray[np.float64]:
        rows = (sets[:, :, None] * self._group + np.arange(self._group)).reshape(len(sets), -1)
        q = np.linalg.qr(self._columns[rows].transpose(0, 2, 1)).Q
        rest = self._columns - (self._columns @ q) @ q.transpose(0, 2, 1)
        norms = np.linalg.norm(rest, axis=2)
        np.put_along_axis(norms, rows, np.inf, axis=1)
        return np.asarray(norms.min(axis=1))
