"""Segment sizes and the rates they follow from."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepeer.ids import PeerId
from edgepeer.protocol.headers import Shape
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.rates import Rates
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


def test_the_pace_of_a_neighbour_counts_the_pauses_between_its_segments() -> None:
    estimate = RateEstimate()
    assert estimate.pace_bytes_per_s == inf
    for number in range(10):  # each is read at once, and the next one comes 13 ms later
        estimate.add(SMALLEST, 2e-4, now=1.0 + 0.013 * number)
    estimate.close_round()
    assert estimate.bytes_per_s == pytest.approx(82e6, rel=0.01)
    assert estimate.pace_bytes_per_s == pytest.approx(10 * SMALLEST / 0.1172, rel=0.01)
    estimate.add(10 * SMALLEST, 0.0131, now=7.0)  # what is whole has no pauses, and those before it don't count
    estimate.close_round()
    assert estimate.pace_bytes_per_s == pytest.approx(12.5e6, rel=0.01)


def test_what_comes_together_slowly_is_passed_on_in_small_segments() -> None:
    """Though its link is fast, or looks as if it were: an inner peer above a leaf behind a slow line."""
    assert size(152_000, 82e6, 4) == 152_000
    assert segment_bytes(152_000, 82e6, 4, smallest=SMALLEST, unknown=UNKNOWN, pace_bytes_per_s=1.25e6) == SMALLEST
    large = size(MODEL, 82e6, 4)
    cut = segment_bytes(MODEL, 82e6, 4, smallest=SMALLEST, unknown=UNKNOWN, pace_bytes_per_s=1.25e6)
    assert cut == size(MODEL, 1.25e6, 4)
    assert large > 8 * cut


@pytest.mark.parametrize(("pace", "slow"), [(0.3e6, True), (1.5e6, False)])
def test_of_several_trees_each_brings_a_part(pace: float, slow: bool) -> None:
    """Four fill a line of 12 MB/s at 1.5 MB/s up and as much down; who is behind a line of a tenth gives each a quarter
    of that."""

    def cut(rate: float, pace: float = inf) -> int:
        return segment_bytes(MODEL // 4, rate, 4, smallest=SMALLEST, unknown=UNKNOWN, lanes=4, pace_bytes_per_s=pace)

    assert cut(12e6, pace) == cut(pace if slow else 12e6)


@pytest.mark.parametrize(("rate", "pace"), [(12.5e6, 6e6), (1e9, 20e6)])
def test_a_pace_not_far_below_the_rate_changes_nothing(rate: float, pace: float) -> None:
    """Processors that are busy with other peers, on one machine."""
    told = segment_bytes(MODEL, rate, 4, smallest=SMALLEST, unknown=UNKNOWN, pace_bytes_per_s=pace)
    assert told == size(MODEL, rate, 4)


def test_an_inner_peer_goes_by_the_slowest_of_those_it_adds_up() -> None:
    slow, fast, parent = PeerId("slow"), PeerId("fast"), PeerId("up")
    rates = Rates(Limits())
    rates.keep([slow, fast, parent], 4)
    rates.told(parent, 82e6)
    shape = Shape(38_000, "<f4")
    for peer, gap in ((slow, 0.013), (fast, 1e-4)):
        for number in range(10):
            rates.of(peer).add(SMALLEST, 1e-4, now=1.0 + gap * number)
        rates.of(peer).close_round()
    assert list(rates.segments(parent, shape, -1, 10_000, [fast])) == []  # it waits for all of it
    assert list(rates.segments(parent, shape, -1, 10_000, [fast, slow])) == [(0, 4096), (4096, 8192)]


def test_what_came_of_a_round_that_was_given_up_is_no_part_of_the_next_ones_pace() -> None:
    estimate = RateEstimate()
    estimate.add(20_000, 0.01, now=1.0)
    estimate.add(100_000, 0.02, now=601.0)
    estimate.close_round()
    assert estimate.pace_bytes_per_s == pytest.approx(5e6)
