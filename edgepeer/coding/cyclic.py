"""Cyclic repetition: any `s` of the workers may be missing, each worker computes s + 1 chunks.

Tandon, Lei, Dimakis, Karampatziakis 2017, §3.2 and Algorithm 2: take H with s rows, a column per worker, with H 1 = 0
and any s columns independent. Worker j has chunks j, ..., j + s (modulo their number), and for coefficients the vector
with this support in the null space of H. Any m - s of these span that null space, and 1 lies in it: so the sum over all
chunks is a combination of what any m - s workers send.

They draw H at random. Then a few stragglers among 10 workers can cost four digits, and among 200 eight. Here

    H = P diag(w),   P: the moment curve of `spread.py` at m angles, some step from one worker to the next;
                     w: of sizes near 1, with P w = 0; alternating signs along the curve if m - s is odd
                        (with step 1 that is a cyclic MDS code: Raviv, Tandon, Dimakis, Tamo 2018).

Any s of P's columns are independent, for certain. The step is the one with which a worker's coefficients have the
largest sum: then workers bring much of what all gradients have in common, and need no large weights.

There are very many sets of stragglers, though, and of any such code some are bad if s is large: gradients of float32
keep five digits with s up to 3 of 100 workers, or 5 of 12; four with s = 5 of 20; two or three with s = 7 of 200, where
float64 keeps ten. Of s = 8 of 40 a few sets leave one digit: those sums are not called exact (linear.py). Fractional
repetition does not have this problem.
"""

from __future__ import annotations

from math import gcd

import numpy as np
from numpy.typing import NDArray

from edgepeer.coding.assignment import cyclic_assignment
from edgepeer.coding.linear import LinearCode, check_stragglers
from edgepeer.coding.spread import moment_curve

__all__ = ["CyclicCode"]


class CyclicCode(LinearCode):
    """Exact without any s of the workers; with fewer, what comes nearest. As many chunks as workers."""

    def __init__(self, name: str, workers: int, s: int) -> None:
        check_stragglers(workers, s)
        super().__init__(name, cyclic_assignment(workers, s + 1), _coefficients(workers, s))
        self.s = s


def _curve(workers: int, s: int, steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """Points at so many of `workers` steps round the circle, shape (s, len(steps))."""
    points = moment_curve(s, 2 * np.pi * steps / workers)
    return np.asarray(points * np.sqrt(s / workers))  # orthonormal rows if it is all of them


def _step(workers: int, s: int) -> int:
    """The best step from one worker to the next. All are tried, with alternating signs."""

    def sum_of_coefficients(step: int) -> float:
        steps = (step * np.arange(s + 1)) % workers
        null = np.linalg.svd(_curve(workers, s, steps) * _signs(steps))[2][-1]
        return round(abs(float(null.sum())), 6)  # the same choice everywhere, whatever the last digits

    return max((q for q in range(1, workers // 2 + 1) if gcd(q, workers) == 1), key=sum_of_coefficients)


def _signs(steps: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.where(steps % 2, -1.0, 1.0)


def _null(workers: int, s: int) -> NDArray[np.float64]:
    """H, shape (s, workers)."""
    steps = (_step(workers, s) * np.arange(workers)) % workers
    curve, weights = _curve(workers, s, steps), _signs(steps)
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
