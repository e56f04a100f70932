"""The columns of R, by which workers' vectors enter the blocks of the sum: any that meet in a chunk are far apart.

Algorithm 1 of Ramamoorthy, Meng, Girimaji 2024 draws R from a normal distribution. Then any `blocks` columns are
independent with probability 1, but with 200 chunks and 8 blocks some chunk's columns are nearly dependent (condition
numbers above 10^4), which costs a float32 gradient four digits. What the algorithm needs is only that columns of
workers with a chunk in common are independent. So the workers are coloured, those with a common chunk differently, and
colour c of C has the point of a trigonometric moment curve at the angle 2 pi c / C:

    sqrt(2 / l) * (cos(f t), sin(f t)) for f = (l - 1) / 2, (l - 3) / 2, ... > 0, and 1 / sqrt(l) if l is odd.

These functions are a Chebyshev system: any l different points are independent, for certain. Where replication divides
the number of workers, cyclic assignments have as many colours as replicas.

On cyclic assignments a float32 gradient keeps five digits or more with up to 8 blocks and 200 workers. Random graphs
need more colours, so that points are closer: with 200 workers and degree 8 to 12, five digits with up to 4 blocks, and
with 8 blocks four, if many chunks have just the copies that they need.
"""

from __future__ import annotations

from math import gcd

import numpy as np
from numpy.typing import NDArray

from edgepeer.coding.assignment import Assignment

__all__ = ["moment_curve", "spread_columns", "stride"]


def stride(points: int, apart: int) -> int:
    """The step, coprime to `points`, with which `apart` consecutive steps go round a circle of points about once."""
    return min((q for q in range(1, points + 1) if gcd(q, points) == 1), key=lambda q: abs(q - points / apart))


def moment_curve(dimension: int, angles: NDArray[np.float64]) -> NDArray[np.float64]:
    """Unit vectors, shape (dimension, len(angles)); any `dimension` at different angles in [0, 2π) are independent."""
    rows = [np.full(len(angles), np.sqrt(1 / dimension))] if dimension % 2 else []
    for k in range(dimension // 2):
        frequency = (dimension - 1) / 2 - k
        rows += [np.sqrt(2 / dimension) * wave(frequency * angles) for wave in (np.cos, np.sin)]
    return np.array(rows)


def colours(assignment: Assignment) -> list[int]:
    """For each worker the first colour that none before it with a common chunk has."""
    holders = [np.flatnonzero(row).tolist() for row in assignment.ordering]
    found: list[int] = []
    for worker, order in enumerate(assignment.orders):
        taken = {found[other] for chunk in order for other in holders[chunk] if other < worker}
        found.append(next(colour for colour in range(len(taken) + 1) if colour not in taken))
    return found


def spread_columns(assignment: Assignment, blocks: int) -> NDArray[np.float64]:
    """R, shape (blocks, workers), unit columns; any `blocks` of workers with a chunk in common are independent."""
    of = np.array(colours(assignment))
    count = max(int(of.max()) + 1, blocks)
    return moment_curve(blocks, 2 * np.pi * ((stride(count, blocks) * of) % count) / count)
