"""Codes in which a worker sends one combination of all of its chunks or nothing: gradient coding as first proposed.

Worker j sends g_j = sum over i of A[i, j] * gradient_i once it has computed all of its chunks. With decoding weights r,
zero at workers that are not available, the sum is sum over j of r[j] * g_j = sum over i of (A r)[i] * gradient_i: exact
where A r = 1 (Ramamoorthy, Meng, Girimaji 2024, eq. (1)). In the running system the workers apply r themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edgepeer.coding.assignment import Assignment
from edgepeer.coding.code import GradientCode, Recovery
from edgepeer.coding.nearest import LEAST, RANK, nearest
from edgepeer.errors import ConfigError

__all__ = ["Decoding", "LinearCode", "check_stragglers"]

_TOLERANCE: Final = 1e-9
"""A sum is exact if no chunk's coverage is further from 1. What is solved is exact to about 1e-16 * condition."""
_UNIT_ROUNDOFF: Final = float(np.finfo(np.float32).eps) / 2
_LOST: Final = 0.01
"""Nor is it if rounding may take so much of a chunk's gradient, in float32: of large weights only the difference is
wanted, and has fewer digits than they have."""
_BLURRED: Final = 0.03
"""Where rounding may take more than this part of a sum, in float32, a shorter r is taken, though A r is less near then.
Each worker solves for its own weight, and machines that round otherwise find other ones where r is so long: `cyclic`,
s = 20 of 100 workers, some with the one's weights and some with the other's, was off by up to 600 chunks; by less than
0.001 of one with shorter r."""
_COARSE: Final = 1e-5
"""Up to this part of the greatest, singular values are zeros then."""


@dataclass(frozen=True, slots=True, eq=False)
class Decoding:
    """How to add up what some of the workers send."""

    vector: NDArray[np.float64]
    """Weights r of the workers' vectors, shape (workers,); 0 where a worker isn't needed or isn't there."""
    coverage: NDArray[np.float64]
    """A r, shape (chunks,)."""
    residual: float
    """Squared norm of A r - 1, and of what rounding may take where that is too much; 0 if exact."""

    @property
    def exact(self) -> bool:
        return self.residual == 0.0


def check_stragglers(workers: int, s: int) -> None:
    """Raises ConfigError if a code can't be had that is exact without any s of so many workers."""
    if workers < 2:
        raise ConfigError("a code takes two workers at least")
    if not 1 <= s < workers:
        raise ConfigError(
            f"s, the stragglers that do no harm, must be 1 to {workers - 1}, not {s}; the code none has 0"
        )


class LinearCode(GradientCode):
    """The code with these coefficients, decoded by least squares: of all r that come closest to A r = 1, with no chunk
    below 0 (`nearest`), the shortest; or by none, where A r would be next to nothing.

    Args:
        coefficients: A, shape (chunks, workers), zero where a worker does not have a chunk; None: the assignment's own
            matrix, all ones. That is the original protocol on any assignment (ibid., §IV).
    """

    def __init__(self, name: str, assignment: Assignment, coefficients: NDArray[np.float64] | None = None) -> None:
        super().__init__(name, assignment)
        given = assignment.matrix() if coefficients is None else coefficients
        if given.shape != (assignment.chunks, assignment.workers) or np.any(given[assignment.ordering == 0]):
            raise ConfigError("the coefficients are not of this assignment")
        self.coefficients = given
        self._last: tuple[bytes, Decoding] | None = None

    def decoding(self, available: Sequence[bool] | NDArray[np.bool_]) -> Decoding:
        """The best decoding of what these workers send; `available` has shape (workers,)."""
        there = np.asarray(available, dtype=np.bool_)
        key, last = there.tobytes(), self._last
        if last is not None and last[0] == key:
            return last[1]
        vector = self._solve(there)
        coverage, lost = self._what_comes(vector)
        if _is_blurred(coverage, lost):
            vector = self._nearest(there, _COARSE)
            coverage, lost = self._what_comes(vector)
        if float(coverage @ coverage) < LEAST or _is_blurred(coverage, lost):
            vector, coverage, lost = np.zeros_like(vector), np.zeros_like(coverage), np.zeros_like(lost)
        wrong = coverage - 1
        if np.max(lost) > _LOST:
            found = Decoding(vector, coverage, float(wrong @ wrong + lost @ lost))
        elif np.max(np.abs(wrong)) <= _TOLERANCE:
            found = Decoding(vector, np.ones(self.chunks), 0.0)
        else:
            found = Decoding(vector, coverage, float(wrong @ wrong))
        self._last = (key, found)
        return found

    def _solve(self, there: NDArray[np.bool_]) -> NDArray[np.float64]:
        return self._nearest(there, RANK)

    def _nearest(self, there: NDArray[np.bool_], rank: float) -> NDArray[np.float64]:
        vector = np.zeros(self.workers)
        if there.any():
            vector[there] = nearest(self.coefficients[:, there], np.ones(self.chunks), rank=rank)
        return vector

    def _what_comes(self, vector: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """A r, and what rounding may take of each chunk."""
        return self.coefficients @ vector, _UNIT_ROUNDOFF * (np.abs(self.coefficients) @ np.abs(vector))

    def _decoding_of(self, done: Sequence[int]) -> Decoding:
        return self.decoding(self.assignment.complete(done))

    def recovery(self, done: Sequence[int]) -> Recovery:
        found, everybody = self._decoding_of(done), bool(self.assignment.complete(done).all())
        # Of a few codes with large weights not even all make a sum that is exact, and nobody is left to be waited for.
        return Recovery(found.exact, found.coverage, found.residual, enough=everybody and not found.exact)

    def brings(self, done: Sequence[int]) -> tuple[bool, ...]:
        # not those whose weight isn't 0: what is 0 at one machine may be 1e-17 at another
        return tuple(self.assignment.complete(done).tolist())

    def encoding(self, worker: int, done: Sequence[int]) -> NDArray[np.float64]:
        order = list(self.assignment.orders[worker])
        weights: NDArray[np.float64] = self.coefficients[order, worker] * self._decoding_of(done).vector[worker]
        return weights[:, None]


def _is_blurred(coverage: NDArray[np.float64], lost: NDArray[np.float64]) -> bool:
    return float(lost @ lost) > _BLURRED**2 * float(coverage @ coverage)
