"""What the model of a round says, by which trees are chosen, is what simulated fleets take."""

from __future__ import annotations

import pytest
from shapes import expected_s, simulated_s

LINES = 11.85e6, 0.01
SHAPES = {"int8": ((2, 1), (2, 2), (2, 4)), "bf16": ((2, 1), (2, 4), (3, 3))}


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int8", "bf16"])
def test_more_lanes_pay_where_vectors_are_small(precision: str) -> None:
    simulated = [simulated_s(15, *shape, precision, 407_050, *LINES) for shape in SHAPES[precision]]
    expected = [expected_s(15, *shape, precision, 407_050, *LINES) for shape in SHAPES[precision]]
    assert expected == pytest.approx(simulated, rel=0.16)
    assert sorted(simulated, reverse=True) == simulated
    assert sorted(expected, reverse=True) == expected
