"""How far coded rows may disagree by rounding alone. What disagrees by more has an error.

Rows Z, shape (rows, N), of a code with parity checks H, H Hᵀ = I, satisfy H Z = 0 but for rounding. Each number z of
them is a dot product Σ_i w_i x_i of `length` terms, computed in floating point with unit roundoff u = ε/2:

1.  The computed z is z + Σ_i δ_i s_i, where s_i are the partial sums and |δ_i| ≤ u. Higham and Mary 2019, "A new
    approach to probabilistic rounding error analysis", Theorem 2.4: if the δ_i are of mean zero and independent (or
    mean-independent: Connolly, Higham, Mary 2021), the error is a martingale, and by Azuma and Hoeffding it is
    sub-Gaussian with parameter u (Σ_i s_i²)^½ ≤ u length^½ S, where S is the largest partial sum. The bound that is
    certain has `length` for its root.
2.  The weights w are coded once, and then updated in place, with a rounding each time. After `updates` of them
    w_i is off by up to u |w_i| updates^½ in the same sense, and z by u (updates Σ_i (w_i x_i)²)^½ ≤ u updates^½ S.
    Both together:

        parameter ≤ σ = u (length + updates)^½ S.      (`relative_noise` is σ / S)

3.  What is rounded in different rows is independent, and H has orthonormal rows. So a column h of H Z, of c numbers,
    is a sub-Gaussian vector with parameter σ, and by Hsu, Kakade, Zhang 2012, Theorem 2.1,

        P(|h| > σ (√c + √(2 t))) ≤ e^-t.

    With t = ln(N / f) none of N columns is larger with probability 1 - f.
4.  The partial sums aren't known, the results are: S ≤ G M with M the largest number of the rows. Partial sums of terms
    of one sign grow until the last, and G = 1. Those of random signs exceed their own last by 1.25 in the mean, but M
    is the largest of many, not of one. G = 4 leaves two bits for results in which terms cancel.

So columns are compared with

    G (√c + √(2 ln(N / f))) u (length + updates)^½ M,    f = 1e-15.

With c = 1 to 35 checks and N = 1 to 10⁶ columns the factor is 37 to 64 times u, or 19 to 32 times ε. The largest
column counts, not the norm of them all, which may be √N times as large by rounding: it would hide single numbers.

M is taken of the rows that are held to be right. A row with an error of size A may raise M to A; its own syndrome is
A |h| then, with h its column of H, and that is more than the tolerance as long as |h| is.

Where the rows are computed with more digits than stated, or summed in blocks as BLAS does, noise is less.
"""

from __future__ import annotations

from functools import lru_cache
from math import log, sqrt
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike

from edgepeer.errors import ConfigError

__all__ = ["column_bound", "relative_noise"]

_GROWTH: Final = 4.0
"""G: by how much partial sums may exceed the largest result."""

_FALSE_ALARMS: Final = 1e-15
"""f: the probability that a check of rows without errors fails. With a million checks a second: one in 30 years."""


def relative_noise(length: int, dtype: DTypeLike, updates: int = 0) -> float:
    """Rounding noise of a number of a coded row, as a part of the largest partial sum: u (length + updates)^½.

    Args:
        length: of the dot products that were computed, at least 1.
        dtype: in which they were computed; float16, float32 or float64.
        updates: how often the coded weights have been updated in place.

    Raises:
        ConfigError: another dtype; or so many terms that nothing is left of its digits.
    """
    unit = _unit_roundoff(np.dtype(dtype))
    if length < 1 or updates < 0:
        raise ConfigError(f"length is 1 or more and updates 0 or more, not {length} and {updates}")
    noise = unit * sqrt(length + updates)
    if noise * _LEAST_BOUND >= 1:
        raise ConfigError(
            f"{np.dtype(dtype)} has no digits left after {length} terms and {updates} updates; use a wider dtype"
        )
    return noise


@lru_cache(maxsize=16)
def _unit_roundoff(kind: np.dtype[Any]) -> float:
    if kind.kind != "f":
        raise ConfigError(f"rounding noise is of floats, not of {kind}; convert to float32 or float64")
    return float(np.finfo(kind).eps) / 2


def column_bound(checks: int, columns: int) -> float:
    """G (√checks + √(2 ln(columns / f))): times the relative noise and the largest number, the largest column of H Z.

    Args:
        checks: parity checks, rows of H, which has orthonormal rows.
        columns: numbers in a row.
    """
    return _GROWTH * (sqrt(checks) + sqrt(2 * log(max(columns, 1) / _FALSE_ALARMS)))


_LEAST_BOUND: Final = column_bound(1, 1)
