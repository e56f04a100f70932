"""Where to evaluate polynomials so that their coefficients can be had back from the values at some of the nodes.

Node p of P evaluates at z_p and multiplies by s_p: with Q coefficients, row p of the generator is

    s_p (1, z_p, z_p^2, ..., z_p^(Q-1)).

Two kinds of points:

    real     z = cos(pi (k + 1/2) / P)          Chebyshev's: of real points, among the best, and still the condition
                                                grows like (1 + sqrt 2)^Q (Gautschi 1975, "Norm estimates for inverses
                                                of Vandermonde matrices"). One equation a node.
    pairs    z = exp(i pi (k + 1/2) / P)        on the unit circle, with coefficients that are real: the value at the
                                                conjugate is known, too. So a node is two equations, the real and the
                                                imaginary part, and stores two numbers for one. The 2P points are all
                                                the roots of z^2P = -1: without losses the columns are orthogonal, at
                                                every size.

The rule is `kind_for`: real points up to Q = 11 in float32 and Q = 19 in float64, pairs above. (1 + sqrt 2)^11 takes 14
of float32's 24 bits and leaves three digits; (1 + sqrt 2)^19 takes 24 of float64's 53 and leaves seven or eight.

**Order.** Neighbours on the curve are nearly the same equation: losing a run of them costs the most digits. Machines
that fail together have numbers that are near. So k goes round with a step near the golden section of P: no two of few
nodes in a row are near each other on the curve. Over all sets of losses the worst is as bad as before.

**Factors.** With s = 1, equal errors at two nodes can look like one error at a third. s_p = 2^(frac(p sqrt 2)/2 - 1/4),
between 0.84 and 1.19, has no such relations, for the cost of a condition that is sqrt 2 times larger at most.

Fahim, Cadambe 2021 ("Numerically stable polynomially coded computing") and Ramamoorthy, Tang 2022 ("Numerically stable
coded matrix computations via circulant and rotation matrix embeddings") have the conditions of both kinds of points.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from edgepeer.errors import ConfigError

__all__ = [
    "Kind",
    "WorstLoss",
    "evaluation_points",
    "group_of",
    "kind_for",
    "lost_sets",
    "scales",
    "vandermonde",
    "worst_loss",
]

Kind = Literal["real", "pairs"]

_REAL_UP_TO: Final = {np.dtype(np.float32): 11, np.dtype(np.float64): 19}
_SETS: Final = 3000
"""Up to so many sets of lost nodes, all are tried."""
_DRAWN: Final = 1000
"""Otherwise so many are drawn, beside those that are likely to be bad."""
_EXACT: Final = 8
"""So many of the worst sets are then computed exactly."""


def kind_for(threshold: int, dtype: np.dtype[np.floating]) -> Kind:
    """Real points while they leave three digits to float32 and seven to float64, pairs for larger thresholds.

    Raises:
        ConfigError: of another type than these.
    """
    if dtype not in _REAL_UP_TO:
        raise ConfigError(f"numbers of type {dtype} can't be coded: float32 and float64 can")
    return "real" if threshold <= _REAL_UP_TO[dtype] else "pairs"


def group_of(kind: Kind) -> int:
    """Equations that a node brings, and numbers that it stores for one: 1 at a real point, 2 at a pair."""
    return 1 if kind == "real" else 2


def evaluation_points(count: int, kind: Kind) -> NDArray[np.float64] | NDArray[np.complex128]:
    """z of each node, shape (count,): float64 of kind real, complex128 of kind pairs."""
    angles = np.pi * (_order(count) + 0.5) / count
    return np.cos(angles) if kind == "real" else np.exp(1j * angles)


def scales(count: int) -> NDArray[np.float64]:
    """s of each node, shape (count,), between 2^(-1/4) and 2^(1/4)."""
    return np.asarray(2 ** (np.arange(count) * math.sqrt(2) % 1 / 2 - 0.25))


def vandermonde(count: int, kind: Kind, threshold: int) -> NDArray[np.float64]:
    """The generator, shape (count * group, threshold): of a pair, the real row and then the imaginary one."""
    rows = scales(count)[:, None] * evaluation_points(count, kind)[:, None] ** np.arange(threshold)
    parts = rows[:, None] if kind == "real" else np.stack([rows.real, rows.imag], axis=1)
    return np.asarray(parts.reshape(-1, threshold), np.float64)


def _order(count: int) -> NDArray[np.int64]:
    """Which place on the curve each node has."""
    golden = (math.sqrt(5) - 1) / 2 * count
    step = min((k for k in range(1, count + 1) if math.gcd(k, count) == 1), key=lambda k: abs(k - golden))
    return np.arange(count) * step % count


@dataclass(frozen=True, slots=True)
class WorstLoss:
    """The set of lost nodes that costs most."""

    amplification: float
    """Relative error of what is decoded, over that of what the nodes send; infinite if it can't be decoded."""
    nodes: tuple[int, ...]
    exhaustive: bool
    """Whether all sets were tried, or only the likeliest to be bad."""


def worst_loss(
    generator: NDArray[np.float64],
    group: int,
    wanted: NDArray[np.int64],
    sizes: NDArray[np.float64],
    lost: int,
    seed: int = 0,
) -> WorstLoss:
    """What any `lost` of the nodes cost: the largest relative error of a wanted coefficient, for relative errors of 1
    in what each of the other nodes sends, independent of each other.

        amplification = max over wanted w and lost sets of  sqrt(sum over rows i left (pinv(G left)[w, i] sizes[i])^2)

    Of many sets only those of `lost_sets` are tried, so it may come out too small then, and says so. All of them are
    compared by updating (G'G)^-1 for the lost rows (Woodbury), the worst then by the pseudoinverse.

    Args:
        generator: G, shape (nodes * group, coefficients).
        wanted: indices of coefficients.
        sizes: of each row's numbers, where the wanted coefficients have size 1; shape (nodes * group,).
    """
    nodes, unknown = len(generator) // group, generator.shape[1]
    if (nodes - lost) * group < unknown:
        return WorstLoss(math.inf, tuple(range(lost)), True)
    ranking = _Ranking(generator, group, wanted)
    sets, exhaustive = lost_sets(nodes, lost, ranking.variances, seed)
    worst = np.argsort(-ranking.variances(sets), kind="stable")[:_EXACT]
    found = [(_amplification(generator, group, wanted, sizes, sets[k]), sets[k]) for k in worst]
    amplification, chosen = max(found, key=lambda pair: pair[0])
    return WorstLoss(amplification, tuple(sorted(chosen.tolist())), exhaustive)


def lost_sets(
    nodes: int, lost: int, badness: Callable[[NDArray[np.int64]], NDArray[np.float64]], seed: int = 0
) -> tuple[NDArray[np.int64], bool]:
    """Sets of so many nodes among which to look for the worst, shape (sets, lost), and whether they are all that there
    are: up to 3000 sets.

    Otherwise these: each run of neighbours on the curve, whole or with a gap of one, 1000 random ones, and what comes
    of giving up, one by one, the node that is missed most.

    Args:
        badness: how bad each of some sets is, shape (sets, any number of nodes).
    """
    if math.comb(nodes, lost) <= _SETS:
        return np.array(list(combinations(range(nodes), lost)), np.int64).reshape(math.comb(nodes, lost), lost), True
    order = np.argsort(_order(nodes))
    runs = order[(np.arange(nodes)[:, None] + np.arange(lost + 1)) % nodes]
    gapped = [np.delete(runs, gap, axis=1) for gap in range(lost + 1)]
    drawn = np.random.default_rng(seed).random((_DRAWN, nodes)).argsort(axis=1)[:, :lost]
    greedy: list[int] = []
    for _ in range(lost):
        others = [node for node in range(nodes) if node not in greedy]
        greedy.append(others[int(np.argmax(badness(np.array([[*greedy, node] for node in others]))))])
    return np.concatenate([*gapped, drawn, np.array([greedy])]), False


def _amplification(
    generator: NDArray[np.float64],
    group: int,
    wanted: NDArray[np.int64],
    sizes: NDArray[np.float64],
    lost: NDArray[np.int64],
) -> float:
    there = np.repeat(~np.isin(np.arange(len(generator) // group), lost), group)
    inverse = np.linalg.pinv(generator[there], rcond=0.0)[wanted] * sizes[there]
    return float(np.sqrt((inverse**2).sum(axis=1)).max())


class _Ranking:
    """How large the worst wanted coefficient's variance is without these nodes, up to rounding, for many sets at once.

    With G = QR, (G'G without rows L)^-1 = R^-1 (I + Q_L' (I - Q_L Q_L')^-1 Q_L) R^-T.
    """

    def __init__(self, generator: NDArray[np.float64], group: int, wanted: NDArray[np.int64]) -> None:
        q, r = np.linalg.qr(generator)
        self._rows = q.reshape(-1, group, q.shape[1])
        self._wanted = np.linalg.solve(r, np.eye(len(r)))[wanted]

    def variances(self, sets: NDArray[np.int64]) -> NDArray[np.float64]:
        """Of each set, shape (sets,); `sets` has shape (sets, lost)."""
        base = (self._wanted**2).sum(axis=1)
        if sets.shape[1] == 0:
            return np.full(len(sets), base.max())
        rows = self._rows[sets].reshape(len(sets), -1, self._rows.shape[-1])
        left = np.eye(rows.shape[1]) * (1 + 1e-15) - rows @ rows.transpose(0, 2, 1)  # never exactly singular
        seen = rows @ self._wanted.T
        more = (seen * np.linalg.solve(left, seen)).sum(axis=1)
        return np.asarray((base + np.abs(more)).max(axis=1))
