"""Of generator matrices: what they check, and how well what is left of them can be solved."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

__all__ = ["parity_check", "worst_condition"]


def parity_check(generator: NDArray[np.float64]) -> NDArray[np.float64]:
    """H with H G = 0 and H Hᵀ = I, shape (rows - symbols, rows); G has shape (rows, symbols) and full rank."""
    complete = np.linalg.qr(generator, mode="complete").Q
    return np.ascontiguousarray(complete[:, generator.shape[1] :].T)


def worst_condition(generator: NDArray[np.float64], losses: int) -> float:
    """The largest condition number of G without any `losses` of its rows. All sets are tried: for small codes."""
    rows = len(generator)
    left = np.array(list(combinations(range(rows), rows - losses)))
    values = np.linalg.svd(generator[left], compute_uv=False)
    return float(np.max(values[:, 0] / values[:, -1]))
