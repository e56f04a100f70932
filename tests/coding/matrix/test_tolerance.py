"""The tolerance: above all rounding, and close enough to find single wrong numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from generators import parity_check
from numpy.typing import NDArray

from edgepeer.coding.matrix.decode import MatrixCode, decode, discrepancy
from edgepeer.coding.matrix.mds import mds_code
from edgepeer.coding.matrix.tolerance import column_bound, relative_noise
from edgepeer.errors import ConfigError

FLOATS = (np.float32, np.float64)
Floats = type[np.floating[Any]]


def blocks(rng: np.random.Generator, code: MatrixCode, height: int, length: int, dtype: Floats) -> NDArray[Any]:
    """Random weights in coded block rows, shape (nodes, height, length)."""
    weights = rng.standard_normal((code.symbols, height, length)).astype(dtype)
    return np.tensordot(code.generator.astype(dtype), weights, 1)


def test_the_formulas() -> None:
    assert relative_noise(100, np.float32) == pytest.approx(10 * 2.0**-24)
    assert relative_noise(100, np.float64, updates=300) == pytest.approx(20 * 2.0**-53)
    factors = [column_bound(checks, columns) for checks in (1, 4, 35) for columns in (1, 400, 10**6)]
    assert min(factors) == column_bound(1, 1) == pytest.approx(4 * (1 + np.sqrt(2 * np.log(1e15))))
    assert 37 < min(factors) < 38
    assert 62 < max(factors) < 64  # of u, so 32 ε


@pytest.mark.parametrize(
    ("length", "dtype", "updates", "text"),
    [
        (0, np.float32, 0, "length is 1 or more"),
        (1, np.float32, -1, "updates 0 or more"),
        (10, np.int64, 0, "not of int64"),
        (10**7, np.float16, 0, "float16 has no digits left"),
    ],
)
def test_what_has_no_noise_is_refused(length: int, dtype: type, updates: int, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        relative_noise(length, dtype, updates)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("nodes", [7, 9])
@pytest.mark.parametrize("kind", ["normal", "relu", "sparse", "ones"])
def test_products_of_coded_blocks_stay_far_below_it(dtype: Floats, nodes: int, kind: str) -> None:
    """300 products each, none of them above a fiftieth of the tolerance."""
    rng, code, length = np.random.default_rng(0), mds_code(nodes, 5), 784
    coded = blocks(rng, code, 20, length, dtype)
    noise, worst = relative_noise(length, dtype), 0.0
    for _ in range(300):
        x = rng.standard_normal(length)
        if kind == "relu":
            x = np.maximum(x, 0)
        elif kind == "sparse":
            x *= rng.random(length) < 0.02
        elif kind == "ones":
            x = np.ones(length)
        worst = max(worst, discrepancy(code, coded @ x.astype(dtype), noise=noise))
    assert worst < 0.02


@pytest.mark.parametrize("positive", [False, True])
def test_sums_one_after_the_other_stay_below_it(positive: bool) -> None:
    """Without the blocks in which BLAS adds up, and with all terms of one sign: what the analysis is for."""
    rng, code = np.random.default_rng(0), mds_code(9, 5)
    for length in (10, 1000, 20_000):
        data = rng.random((5, 20, length)) if positive else rng.standard_normal((5, 20, length))
        coded = np.tensordot(code.generator, data, 1).astype(np.float32)
        x = rng.random(length).astype(np.float32)
        rows = (coded * x).cumsum(axis=2, dtype=np.float32)[:, :, -1]
        assert discrepancy(code, rows, noise=relative_noise(length, np.float32)) < 0.04


def test_weights_updated_in_place_for_2000_iterations_stay_below_it() -> None:
    rng, code, length, steps = np.random.default_rng(0), mds_code(7, 5), 100, 2000
    coded, generator = blocks(rng, code, 8, length, np.float32), code.generator.astype(np.float32)
    worst = 0.0
    for step in range(steps):
        x = rng.standard_normal(length).astype(np.float32)
        worst = max(worst, discrepancy(code, coded @ x, noise=relative_noise(length, np.float32, step)))
        delta = np.float32(0.01) * rng.standard_normal((5, 8)).astype(np.float32)
        coded += (generator @ delta)[:, :, None] * x
    assert worst < 0.05


@pytest.mark.parametrize("dtype", FLOATS)
def test_rounding_of_any_size_is_no_error(dtype: Floats) -> None:
    rng, code = np.random.default_rng(0), mds_code(9, 5)
    for scale in (1e-20, 1.0, 1e20):
        for data in (rng.standard_normal((5, 40)), np.zeros((5, 40)), np.eye(5, 40), np.diag([1e9, 1, 1, 1, 1])):
            assert discrepancy(code, (code.generator @ (scale * data)).astype(dtype)) < 0.3


@pytest.mark.parametrize("dtype", FLOATS)
def test_single_numbers_above_it_are_found_in_every_row(dtype: Floats) -> None:
    """One of 180,000 numbers is wrong, by 1.1 times what the tolerance comes to in its row."""
    code, columns, length = mds_code(9, 5), 20_000, 784
    rng = np.random.default_rng(0)
    data = rng.standard_normal((5, columns))
    clean = code.generator @ data
    noise = relative_noise(length, dtype)
    clean += 0.3 * noise * rng.standard_normal(clean.shape)  # as such products have
    visible = np.linalg.norm(parity_check(code.generator), axis=0)
    for node in range(9):
        rows = clean.astype(dtype)
        least = noise * column_bound(4, columns) * np.abs(rows).max() / visible[node]
        rows[node, 77] += dtype(1.1 * least)
        assert discrepancy(code, rows, noise=noise) > 1
        assert decode(code, rows, noise=noise).wrong == (node,)


def test_discrepancy_without_redundancy_or_with_broken_rows() -> None:
    code = mds_code(4, 2)
    rows = np.ones((4, 3))
    assert discrepancy(code, rows) > 1
    assert discrepancy(code, rows, (0, 1)) == discrepancy(code, rows, range(4)) == 0.0
    rows[0, 1] = np.nan
    assert discrepancy(code, rows) == np.inf
    assert discrepancy(code, rows, (0, 1)) == 0.0
