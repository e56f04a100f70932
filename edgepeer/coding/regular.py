"""Codes from regular graphs, for approximate sums: chunks are vertices, a worker has its vertex's neighbours' chunks.

Raviv, Tandon, Dimakis, Tamo 2018, as used for comparison by Ramamoorthy, Meng, Girimaji 2024, §IV: coefficients are the
adjacency matrix A of a regular graph with a small second eigenvalue; decoding is by least squares, min ||A r - 1||^2
with r zero at stragglers, whose partial work is lost. For the same protocol on any other assignment: `LinearCode`.
"""

from __future__ import annotations

from edgepeer.coding.graphs import adjacency_assignment, expander
from edgepeer.coding.linear import LinearCode

__all__ = ["RegularCode"]


class RegularCode(LinearCode):
    """On a random regular graph. Exact with all workers (r = 1 / degree), approximate with any fewer.

    Raises:
        ConfigError: there is no such graph.
    """

    def __init__(self, name: str, workers: int, degree: int, seed: int = 0) -> None:
        super().__init__(name, adjacency_assignment(expander(workers, degree, seed)))
        self.degree = degree
