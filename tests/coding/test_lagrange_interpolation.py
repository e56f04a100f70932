"""Why not Lagrange interpolation: it loses what the partial stragglers' protocol keeps (ibid., Appendix A).

The exact protocol that could be had by interpolation recovers l values of a polynomial of degree m - l from its values
at m - l + 1 points. Here, as in Fig. 4, degrees 20, 25 and 30 (m = 22, 27, 32 workers, l = 2).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from partial_stragglers_model import sum_of

from edgepeer.coding.assignment import cyclic_assignment
from edgepeer.coding.partial import PartialCode

BLOCKS = 2


def interpolate(points: list[Fraction], values: list[float], at: Fraction) -> float:
    """The value at another point, with basis polynomials that are exact before they are rounded to float64."""
    total = 0.0
    for i, (point, value) in enumerate(zip(points, values, strict=True)):
        basis = Fraction(1)
        for j, other in enumerate(points):
            if j != i:
                basis *= (at - other) / (point - other)
        total += float(basis) * value
    return total


def lagrange_error(workers: int, dtype: type[np.float32] | type[np.float64], rng: np.random.Generator) -> float:
    """Relative error at l points, of values at the others that are sent as this type."""
    degree = workers - BLOCKS
    coefficients = [Fraction(int(c)) for c in rng.integers(-1000, 1001, degree + 1)]

    def polynomial(x: Fraction) -> Fraction:
        total = Fraction(0)
        for c in coefficients:
            total = total * x + c
        return total

    points = [Fraction(2 * k - degree, degree) for k in range(degree + 1)]  # equally spaced in [-1, 1]
    wanted_at = [Fraction(6, 5) + Fraction(k, 10) for k in range(BLOCKS)]
    sent = [float(dtype(float(polynomial(x)))) for x in points]
    wanted = np.array([float(polynomial(x)) for x in wanted_at])
    got = np.array([interpolate(points, sent, x) for x in wanted_at])
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))


def our_error(workers: int, dtype: type[np.float32] | type[np.float64], rng: np.random.Generator) -> float:
    code = PartialCode("x", cyclic_assignment(workers, 4), BLOCKS)
    gradients: NDArray[np.floating] = rng.standard_normal((workers, 20)).astype(dtype)
    failed = rng.choice(workers, 2, replace=False)
    done = tuple(0 if worker in failed else 4 for worker in range(workers))
    wanted = gradients.astype(np.float64).sum(axis=0)
    return float(np.linalg.norm(sum_of(code, gradients, done) - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("workers", [22, 27, 32])
def test_lagrange_fails_where_this_does_not(workers: int) -> None:
    rng = np.random.default_rng(workers)
    lagrange32 = np.median([lagrange_error(workers, np.float32, rng) for _ in range(15)])
    lagrange64 = np.median([lagrange_error(workers, np.float64, rng) for _ in range(15)])
    assert lagrange32 > 1e-3, "of a float32's seven digits, two are left, or none"
    assert lagrange64 > 1e-12, "and of a float64's sixteen, four or more are gone"
    for _ in range(15):
        assert our_error(workers, np.float32, rng) < 1e-6
        assert our_error(workers, np.float64, rng) < 1e-14
