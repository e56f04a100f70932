"""Random regular graphs with a small second eigenvalue, and the assignments that they define."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edgepeer.coding.assignment import Assignment
from edgepeer.errors import ConfigError

__all__ = ["adjacency_assignment", "expander", "ramanujan_bound", "random_regular_graph", "second_eigenvalue"]

_ATTEMPTS: Final = 50
_EXCHANGES: Final = 10_000
"""After so many without success all is drawn anew."""


def random_regular_graph(vertices: int, degree: int, seed: int = 0) -> NDArray[np.bool_]:
    """The adjacency matrix of a simple graph whose vertices all have this degree, shape (vertices, vertices).

    Half-edges are paired at random; pairs that would be loops or double edges are then made good by exchanging ends
    with random other pairs.

    Raises:
        ConfigError: there is none.
    """
    if not 1 <= degree < vertices or vertices * degree % 2:
        raise ConfigError(
            f"there is no graph of {vertices} vertices with degree {degree}: the degree must be 1 to {vertices - 1}"
            + (", and even, since their number is odd" if vertices % 2 else "")
        )
    rng = np.random.default_rng(seed)
    if degree > (vertices - 1) / 2:
        return ~(_paired(vertices, vertices - 1 - degree, rng) | np.eye(vertices, dtype=np.bool_))
    return _paired(vertices, degree, rng)


def _paired(vertices: int, degree: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    while True:
        ends = rng.permutation(np.repeat(np.arange(vertices), degree)).tolist()
        pairs = list(zip(ends[::2], ends[1::2], strict=True))
        count = np.zeros((vertices, vertices), np.int64)
        for a, b in pairs:
            count[a, b] += 1
            count[b, a] += 1
        for _ in range(_EXCHANGES):
            wrong = [at for at, (a, b) in enumerate(pairs) if a == b or count[a, b] > 1]
            if not wrong:
                return count > 0
            _exchange(pairs, count, wrong[0], int(rng.integers(len(pairs))))


def _exchange(pairs: list[tuple[int, int]], count: NDArray[np.int64], one: int, other: int) -> None:
    """Pair the ends of two pairs crosswise, if neither new pair is there already."""
    (a, b), (c, d) = pairs[one], pairs[other]
    if len({a, b} | {c, d}) < len({a, b}) + len({c, d}) or count[a, c] or count[b, d] or (a == b and c == d):
        return
    for x, y, by in ((a, b, -1), (c, d, -1), (a, c, 1), (b, d, 1)):
        count[x, y] += by
        count[y, x] += by
    pairs[one], pairs[other] = (a, c), (b, d)


def second_eigenvalue(graph: NDArray[np.bool_]) -> float:
    """The second largest absolute value of the adjacency matrix's eigenvalues; the first is the degree."""
    values = np.sort(np.abs(np.linalg.eigvalsh(graph.astype(np.float64))))
    return float(values[-2]) if len(values) > 1 else 0.0


def ramanujan_bound(degree: int) -> float:
    """2 sqrt(degree - 1): graphs whose second eigenvalue is not above it are called Ramanujan graphs."""
    return 2 * math.sqrt(degree - 1)


def expander(vertices: int, degree: int, seed: int = 0) -> NDArray[np.bool_]:
    """A random regular graph whose second eigenvalue is below the bound; of 50 without one, the one closest to it.

    With 200 vertices of degree 8 about every second graph is below. Small graphs may have none: even circles have not.

    Raises:
        ConfigError: there is no regular graph of this degree.
    """
    best: tuple[float, NDArray[np.bool_]] | None = None
    for attempt in range(_ATTEMPTS):
        graph = random_regular_graph(vertices, degree, seed * _ATTEMPTS + attempt)
        value = round(second_eigenvalue(graph), 9)  # the same everywhere, whatever computes eigenvalues
        if value < ramanujan_bound(degree):
            return graph
        if best is None or value < best[0]:
            best = (value, graph)
    assert best is not None
    return best[1]


def adjacency_assignment(graph: NDArray[np.bool_]) -> Assignment:
    """As many chunks as workers; worker j has the chunks of its vertex's neighbours, in their order.

    Source: Raviv, Tandon, Dimakis, Tamo 2018; Ramamoorthy, Meng, Girimaji 2024, §III.
    """
    orders = tuple(tuple(np.flatnonzero(row).tolist()) for row in graph)
    return Assignment(len(graph), orders)
