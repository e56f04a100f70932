"""What a sum counts for, by what it holds itself: of every chunk what the code says, whoever has computed it."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from partial_stragglers_model import sum_of

from edgepeer.coding.scheme import parse_scheme
from edgepeer.coding.weighing import weight_in, weight_rows

CODES = (
    "partial:l=1,replication=2",
    "partial:l=2,replication=2",
    "partial:l=2,replication=3",
    "partial:l=2,replication=4",
    "partial:l=3,replication=4",
    "cyclic:s=1",
    "fractional:s=1",
    "graph:degree=2",
    "first:s=1",
)


@pytest.mark.parametrize("text", CODES)
@pytest.mark.parametrize("workers", [5, 6, 7])
def test_a_sum_weighs_what_it_covers(text: str, workers: int) -> None:
    """Of two blocks one row of weights was next to nothing where all that was there were first chunks of a worker whose
    column stands across it, and twice as much with another."""
    scheme = parse_scheme(text)
    assert scheme is not None
    if text.startswith("graph") and workers == 5:
        pytest.skip("not of so many")
    code = scheme.build(workers, 2)
    weights = np.random.default_rng(workers).integers(1, 100, code.chunks)
    rows = np.array([weight_rows(weight, code.blocks) for weight in weights])
    for done in product(range(3), repeat=workers):
        if max(done) > max(code.loads):
            continue
        found = weight_in(sum_of(code, rows, done), code.blocks)
        assert found == pytest.approx(code.recovery(done).coverage @ weights, abs=1e-9)


@pytest.mark.parametrize("blocks", [2, 3, 4])
def test_a_mean_is_no_longer_than_blocks_allow(blocks: int) -> None:
    """A gradient alone with its weight: of the projection that is there, never more than so many times its length."""
    scheme = parse_scheme(f"partial:l={blocks},replication=5")
    assert scheme is not None
    code = scheme.build(8, 2)
    gradient = np.random.default_rng(0).standard_normal(60)
    vectors = np.array([np.concatenate([9 * gradient, weight_rows(9, blocks)])] * code.chunks)
    for worker in range(code.workers):
        total = sum_of(code, vectors, tuple(int(each == worker) for each in range(code.workers)))
        weight = weight_in(total[60:], blocks)
        assert weight == pytest.approx(9 / blocks)
        assert np.linalg.norm(total[:60] / weight) <= blocks * np.linalg.norm(gradient)
