"""Segment sizes and the rates they follow from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepeer.protocol.segments import LARGEST_BYTES, SEGMENT_COST_S, RateEstimate, segment_bytes

SMALLEST, UNKNOWN = 16 << 10, 256 << 10
MODEL = 407_050 * 4


def size(total: int, rate: float, hops: int) -> int:
    return segment_bytes(total, rate, hops, smallest=SMALLEST, unknown=UNKNOWN)


def test_an_unknown_rate_begins_in_the_middle() -> None:
    assert size(MODEL, 0.0, 4) == UNKNOWN


def test_on_loopback_vectors_stay_whole() -> None:
    assert size(MODEL, 1e9, 4) >= MODEL


def test_at_100_mbit_they_are_cut() -> None:
    assert 16 << 10 <= size(MODEL, 12.5e6, 4) <= 64 << 10


@given(total=st.integers(0, 1 << 30), rate=st.floats(0, 1e12), hops=st.integers(0, 24))
def test_sizes_are_whole_elements_within_bounds(total: int, rate: float, hops: int) -> None:
    found = size(total, rate, hops)
    assert found % 8 == 0
    assert found >= SMALLEST
    assert found <= max(LARGEST_BYTES, total + 7)


@given(
    total=st.integers(1, 1 << 26), hops=st.integers(1, 24), rates=st.tuples(st.floats(1e3, 1e12), st.floats(1e3, 1e12))
)
def test_faster_links_get_larger_segments(total: int, hops: int, rates: tuple[float, float]) -> None:
    slow, fast = sorted(rates)
    assert size(total, slow, hops) <= size(total, fast, hops)


@pytest.mark.parametrize("rate", [1e5, 1e6, 1e7])
@pytest.mark.parametrize("hops", [2, 6, 10])
def test_the_size_is_near_the_best_for_the_model_of_the_docstring(rate: float, hops: int) -> None:
    def seconds(segment: int) -> float:
        return (MODEL / segment + hops) * (segment / rate + SEGMENT_COST_S)

    best = min(seconds(at) for at in range(SMALLEST, MODEL, 1024))
    assert seconds(size(MODEL, rate, hops)) <= 1.05 * best


def test_where_several_trees_share_a_line_segments_are_not_cut_for_a_share_of_it() -> None:
    lanes, share = 7, 12.5e6 / 7
    part = MODEL // lanes
    alone = segment_bytes(part, share, 4, smallest=SMALLEST, unknown=UNKNOWN)
    together = segment_bytes(part, share, 4, smallest=SMALLEST, unknown=UNKNOWN, lanes=lanes)
    assert alone == SMALLEST
    assert 2 * SMALLEST <= together <= 3 * SMALLEST


def test_rates_are_the_best_of_the_last_rounds() -> None:
    estimate = RateEstimate()
    assert estimate.bytes_per_s == 0.0
    estimate.add(50_000, 0.5, now=1.0)
    estimate.add(50_000, 0.5, now=1.0)
    assert estimate.bytes_per_s == 0.0  # not before the round is complete
    estimate.close_round()
    assert estimate.bytes_per_s == 100_000
    estimate.add(100_000, 0.1, now=1.0)
    estimate.close_round()
    for _ in range(7):  # the receiver is busy: it only looks slower
        estimate.add(100_000, 10.0, now=1.0)
        estimate.close_round()
    assert estimate.bytes_per_s == 1_000_000
    estimate.add(100_000, 10.0, now=1.0)
    estimate.close_round()
    assert estimate.bytes_per_s == 10_000  # it has been slow for long: that is its rate


def test_little_data_says_nothing_about_a_rate() -> None:
    estimate = RateEstimate()
    estimate.add(100, 1e-6, now=1.0)
    estimate.close_round()
    assert estimate.bytes_per_s == 0.0


def test_a_clock_too_coarse_to_see_the_transfer_does_not_divide_by_zero() -> None:
    estimate = RateEstimate()
    estimate.add(1 << 20, 0.0, now=1.0)
    estimate.close_round()
    assert estimate.bytes_per_s > 1e9
