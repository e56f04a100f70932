"""Systematic real MDS codes: any K rows give the data back, and with how many digits."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from generators import parity_check, worst_condition
from numpy.typing import NDArray

from edgepeer.coding.matrix.decode import MatrixCode, Undecodable, decode
from edgepeer.coding.matrix.mds import mds_code
from edgepeer.coding.spread import moment_curve
from edgepeer.errors import ConfigError

SMALL = [(nodes, symbols) for nodes in range(2, 13) for symbols in range(1, nodes)]


def without_factors(nodes: int, symbols: int) -> NDArray[np.float64]:
    """The same code with D = I, rows in the same order."""
    points = moment_curve(symbols, 2 * np.pi * np.arange(nodes) / nodes).T
    data = np.arange(symbols) * nodes // symbols
    generator = points @ np.linalg.inv(points[data])
    return generator[np.concatenate([data, np.setdiff1d(np.arange(nodes), data)])]


@pytest.mark.parametrize(("nodes", "symbols"), SMALL)
def test_data_rows_come_first_and_any_rows_give_the_data_back(nodes: int, symbols: int) -> None:
    generator = mds_code(nodes, symbols).generator
    assert generator.shape == (nodes, symbols)
    assert np.array_equal(generator[:symbols], np.eye(symbols))
    assert worst_condition(generator, nodes - symbols) < 1e5


@pytest.mark.parametrize(("nodes", "symbols"), [*SMALL, (40, 36), (60, 40)])
def test_parity_checks_are_orthonormal_and_zero_on_code_words(nodes: int, symbols: int) -> None:
    generator = mds_code(nodes, symbols, digits=0).generator
    checks = parity_check(generator)
    assert checks.shape == (nodes - symbols, nodes)
    assert np.abs(checks @ generator).max() < 1e-13 * np.abs(generator).max()
    assert np.abs(checks @ checks.T - np.eye(nodes - symbols)).max() < 1e-13


def test_conditions_over_all_losses() -> None:
    for (nodes, symbols), ours, bare in (((7, 5), 13.2, 12.6), ((9, 5), 50.2, 35.6)):
        assert worst_condition(mds_code(nodes, symbols).generator, nodes - symbols) < ours
        assert worst_condition(without_factors(nodes, symbols), nodes - symbols) < bare
        points = np.cos((2 * np.arange(nodes) + 1) * np.pi / (2 * nodes))
        curve = np.polynomial.chebyshev.chebvander(points, symbols - 1)
        data = np.arange(symbols) * nodes // symbols
        chebyshev = curve @ np.linalg.inv(curve[data])
        assert worst_condition(chebyshev, nodes - symbols) > 10 * ours


@pytest.mark.parametrize(("nodes", "symbols"), [(4, 2), (7, 5), (9, 5), (12, 5), (12, 8), (11, 3)])
def test_what_is_promised_is_the_worst_of_all_losses(nodes: int, symbols: int) -> None:
    """The code looks at neighbours on the circle only."""
    worst = worst_condition(mds_code(nodes, symbols).generator, nodes - symbols)
    digits = -np.log10(np.finfo(np.float32).eps * worst)
    accepted = mds_code(nodes, symbols, np.float32, digits=digits - 1e-6).generator
    assert np.array_equal(accepted, mds_code(nodes, symbols).generator)
    with pytest.raises(ConfigError, match="keeps"):
        mds_code(nodes, symbols, np.float32, digits=digits + 1e-6)


def test_factors_keep_equal_errors_apart_from_single_ones() -> None:
    def least_angle(generator: NDArray[np.float64]) -> float:
        checks = parity_check(generator)
        unit = checks / np.linalg.norm(checks, axis=0)
        least = np.pi
        for i, j in combinations(range(len(generator)), 2):
            others = np.setdiff1d(np.arange(len(generator)), [i, j])
            for sign in (1, -1):
                both = checks[:, i] + sign * checks[:, j]
                both /= np.linalg.norm(both)
                cross = np.abs(both[0] * unit[1, others] - both[1] * unit[0, others])
                least = min(least, float(np.arcsin(np.minimum(cross, 1)).min()))
        return least

    for nodes in range(3, 14):
        assert least_angle(mds_code(nodes, nodes - 2).generator) > 0.004
        assert least_angle(without_factors(nodes, nodes - 2)) < 1e-9


def test_two_equal_errors_are_never_taken_for_one() -> None:
    """0 wrong of 1500. On equal angles without factors, some pairs of every code are believed."""
    rng, believed = np.random.default_rng(1), 0
    codes = {
        nodes: (mds_code(nodes, nodes - 2), MatrixCode(without_factors(nodes, nodes - 2))) for nodes in range(4, 10)
    }
    for case in range(1500):
        nodes = 4 + case % 6
        code, bare = codes[nodes]
        data, error = rng.standard_normal((nodes - 2, 10)), rng.standard_normal(10)
        pair = rng.choice(nodes, 2, replace=False)
        dtype = (np.float32, np.float64)[case % 2]
        for each in (code, bare):
            rows = each.generator @ data
            rows[pair] += error
            try:
                decode(each, rows.astype(dtype))
            except Undecodable:
                continue
            assert each is bare
            believed += 1
    assert believed > 300


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_digits_after_the_worst_losses(dtype: type[np.floating]) -> None:
    for nodes, symbols in ((7, 5), (9, 5), (12, 8)):
        code = mds_code(nodes, symbols, dtype)
        bound = 4 * float(np.finfo(dtype).eps) * worst_condition(code.generator, nodes - symbols)
        data = np.random.default_rng(0).standard_normal((symbols, 50))
        rows = (code.generator @ data).astype(dtype)
        for lost in combinations(range(nodes), nodes - symbols):
            assert np.abs(decode(code, rows, lost).data - data).max() < bound * np.abs(data).max()


@pytest.mark.parametrize(
    ("nodes", "symbols", "dtype", "text"),
    [
        (5, 5, np.float64, "5 symbols has 6 nodes or more, not 5"),
        (3, 0, np.float64, "1 symbol or more, not 0"),
        (40, 20, np.float32, r"keeps 0.0 digits of float32 when 20 are lost, not 2; use fewer parity nodes"),
        (12, 5, np.float16, "of float16"),
    ],
)
def test_what_cannot_be_is_refused(nodes: int, symbols: int, dtype: type, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        mds_code(nodes, symbols, dtype)
    assert mds_code(40, 20).redundancy == 20
