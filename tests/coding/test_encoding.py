"""Encoding and expanding vectors; closing rounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepeer.coding.encode import encode, expand, padded
from edgepeer.coding.wait import parse_wait
from edgepeer.errors import ConfigError

SIZE = 407_050


@given(st.integers(1, 8), st.integers(1, 5), st.sampled_from([1, 7, 16_384, 16_385, 40_000]), st.integers(0, 9))
def test_encode_and_expand(blocks: int, count: int, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    gradients = rng.standard_normal((count, rows * blocks)).astype(np.float32)
    coefficients = rng.standard_normal((count, blocks)) * rng.integers(0, 2, (count, 1))
    column = rng.standard_normal(blocks)
    narrow = encode(list(gradients), coefficients)
    assert narrow.shape == (rows,)
    assert narrow.dtype == np.float32
    wanted = np.zeros(rows)
    for gradient, row in zip(gradients, coefficients, strict=True):
        for k in range(blocks):
            wanted += gradient[k::blocks] * row[k]
    np.testing.assert_allclose(narrow, wanted, atol=1e-4)

    out = np.ones(rows * blocks, np.float32)
    expand(narrow, column, out)
    for k in range(blocks):
        np.testing.assert_allclose(out[k::blocks], 1 + narrow * column[k], atol=1e-4)


def test_what_is_left_out_may_be_anything() -> None:
    nothing = np.full(4, np.nan, np.float32)
    assert encode([nothing, np.ones(4, np.float32)], np.array([[0.0, 0.0], [1.0, 2.0]])).tolist() == [3.0, 3.0]


def test_padding() -> None:
    assert [padded(size, 3) for size in range(7)] == [0, 3, 3, 3, 6, 6, 6]
    assert padded(SIZE, 1) == SIZE


def test_wait() -> None:
    assert [parse_wait("exact").enough(error) for error in (0.0, 0.01, 2.0)] == [False, False, False]
    assert [parse_wait("error<0.5").enough(error) for error in (0.01, 0.5, 2.0)] == [True, False, False]
    assert parse_wait("deadline:1.5").deadline_s == 1.5
    assert [str(parse_wait(text)) for text in ("exact", "error<0.5", "deadline:2")] == [
        "exact",
        "error<0.5",
        "deadline:2",
    ]


@pytest.mark.parametrize("text", ["", "error<0", "error<x", "deadline:-1", "deadline:inf", "soon"])
def test_no_way_to_wait(text: str) -> None:
    with pytest.raises(ConfigError, match="must be exact, error<E or deadline:SECONDS"):
        parse_wait(text)
