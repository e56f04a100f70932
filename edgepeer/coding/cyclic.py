"""Cyclic repetition: any `s` of the workers may be missing, each worker computes s + 1 chunks.

Tandon, Lei, Dimakis, Karampatziakis 2017, §3.2 and Algorithm 2: take H with s rows, a column per worker, with H 1 = 0
and any s columns independent. Worker j has chunks j, ..., j + s (modulo their number), and for coefficients the vector
with this support in the null space of H. Any m - s of these span that null space, and 1 lies in it: so the sum over all
chunks is a combination of what any m - s workers send.

They draw H at random. Then a few stragglers among 10 workers can cost four digits, and among 200 eight. Here

    H = P diag(w),   P: the moment curve of `spread.py` at m angles, a step of about 1 / (s + 1) turn from one worker to
                     the next, so that a worker's chunks are spread over the circle;
                     w: of sizes near 1, with P w = 0; alternating signs if m - s is odd.

Any s of P's columns are independent, for certain. It remains that there are very many sets of stragglers, and some are
bad if s is large: up to s = 3 of 200 workers, or s = 5 of 12, gradients of float32 keep five digits, with s = 7 of 200
two or three; float64 has enough. `condition` tells. Fractional repetition does not have this problem.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgepeer.coding.assignment import cyclic_assignment
from edgepeer.coding.linear import LinearCode
from edgepeer.coding.spread import moment_curve, stride
from edgepeer.errors import ConfigError

__all__ = ["CyclicCode"]


class CyclicCode(LinearCode):
    """Exact without any s of the workers; with fewer, what comes nearest. As many chunks as workers."""

    def __init__(self, name: str, workers: int, s: int) -> None:
        if not 1 <= s < workers:
            raise ConfigError(
                f"code {name}: s must be 1 to {workers - 1} with {workers} workers; without stragglers: none"
            )
        super().__init__(name, cyclic_assignment(workers, s + 1), _coefficients(workers, s))
        self.s = s


def _null(workers: int, s: int) -> NDArray[np.float64]:
    """H, shape (s, workers)."""
    steps = (stride(workers, s + 1) * np.arange(workers)) % workers
    curve = moment_curve(s, 2 * np.pi * steps / workers) * np.sqrt(s / workers)  # its rows are orthonormal
    weights: NDArray[np.float64] = np.where(steps % 2, -1.0, 1.0)
    for _ in range(300):
        weights = np.sign(weights) * np.clip(np.abs(weights), 0.6, 1.6)
        weights = weights - curve.T @ (curve @ weights)
    return np.asarray(curve * weights)


def _coefficients(workers: int, s: int) -> NDArray[np.float64]:
    """A, shape (chunks, workers), columns of unit length; a worker's own chunk has a positive coefficient."""
    null = _null(workers, s)
    out = np.zeros((workers, workers))
    for worker in range(workers):
        chunks = (worker + np.arange(s + 1)) % workers
        vector = np.linalg.svd(null[:, chunks])[2][-1]
        out[chunks, worker] = vector * np.sign(vector[0])
    return out
