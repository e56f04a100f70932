"""Systematic real MDS codes: `symbols` blocks become `nodes` blocks, any `symbols` of which give all of them back.

    G = D V (D_S V_S)⁻¹,   shape (nodes, symbols), rows of S in front: there G is the identity

    V: row j is the point at the angle 2 π j / nodes of a trigonometric moment curve (`spread.moment_curve`)
    S: the data's nodes, spread evenly round the circle, at the angles of j = ⌊i nodes / symbols⌋
    D: positive factors near 1

Any `symbols` points of that curve are independent, so any `symbols` rows of G are: the code is MDS, which is all that
CodeNet asks for (Dutta, Bai, Low, Grover 2019, §IV). Without D it is the real BCH code, whose words have no part at
nodes - symbols consecutive frequencies (Marshall 1984, "Coding of real-number sequences").

Conditioning: losing neighbours on the circle is worst. Over all sets of rows that may be left, G's condition number is
at most 13 for (7, 5) and 50 for (9, 5), without D 12.5 and 36. A random code has 21 and 154 at best, one of Chebyshev
points 193 and 2030. It grows with what can be lost, and with the number of nodes: (20, 10) has 2e4, (40, 20) 1e9.

Why D. On equal angles columns of the parity check satisfy relations with small whole coefficients, such as
h_0 + h_2 = a h_1. Then equal errors at two nodes look exactly like one error at a third, and with two parity rows a
decoder believes it. Factors that have nothing to do with each other rule that out. Here they are

    D_j = 2^(frac(j φ) - 1/2), j = 1, 2, ...,   φ = (√5 - 1) / 2.

Up to 13 nodes with two parity rows h_i ± h_j then is at an angle of at least 0.004 to any other column.
"""

from __future__ import annotations

from math import log10, sqrt

import numpy as np
from numpy.typing import DTypeLike, NDArray

from edgepeer.coding.matrix.decode import MatrixCode
from edgepeer.coding.spread import moment_curve
from edgepeer.errors import ConfigError

__all__ = ["mds_code"]


def mds_code(nodes: int, symbols: int, dtype: DTypeLike = np.float64, digits: float = 2.0) -> MatrixCode:
    """The code with so many nodes for so many symbols; any nodes - symbols rows may be lost.

    Node i < symbols holds block i itself, and the others are parity nodes, in the order of their angles. In matrix
    form: blocks B, shape (symbols, ...), are coded as tensordot(G, B, 1).

    Args:
        nodes: P, more than symbols.
        symbols: K, at least 1.
        dtype: of the blocks.
        digits: how many decimal digits must be right in what is decoded after the worst losses, so ε cond ≤ 10^-digits.

    Raises:
        ConfigError: there is no such code, or dtype has too few digits for it.
    """
    if symbols < 1:
        raise ConfigError(f"an MDS code has 1 symbol or more, not {symbols}")
    if nodes <= symbols:
        raise ConfigError(f"an MDS code of {symbols} symbols has {symbols + 1} nodes or more, not {nodes}")
    data = np.arange(symbols) * nodes // symbols
    exponents = (np.arange(1, nodes + 1) * ((sqrt(5) - 1) / 2)) % 1 - 0.5
    points = moment_curve(symbols, 2 * np.pi * np.arange(nodes) / nodes).T * np.exp2(exponents)[:, None]
    generator = points @ np.linalg.inv(points[data])
    left = digits_left(_neighbours_condition(generator), dtype)
    if left < digits:
        raise ConfigError(
            f"an MDS code of {nodes} nodes and {symbols} symbols keeps {max(left, 0):.1f} digits of {np.dtype(dtype)} "
            f"when {nodes - symbols} are lost, not {digits:g}; use fewer parity nodes or a wider dtype"
        )
    generator[data] = np.eye(symbols)  # and not 1e-17 beside the ones: data rows are taken as they are
    parity = np.setdiff1d(np.arange(nodes), data)
    return MatrixCode(generator[np.concatenate([data, parity])])


def digits_left(condition: float, dtype: DTypeLike) -> float:
    """Decimal digits that are right after solving with this condition number: -log10(ε condition)."""
    return -log10(float(np.finfo(np.dtype(dtype)).eps) * condition)


def _neighbours_condition(generator: NDArray[np.float64]) -> float:
    """The largest over all sets of `symbols` neighbours on the circle, rows in the order of angles."""
    rows, symbols = generator.shape
    left = (np.arange(rows)[:, None] + np.arange(symbols)) % rows
    values = np.linalg.svd(generator[left], compute_uv=False)
    return float(np.max(values[:, 0] / np.maximum(values[:, -1], np.finfo(np.float64).tiny)))
