"""Running for a part of the time, however late each turn is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepeer.emulation.faults.duty_cycle import LONGEST_S, PERIOD_S, DutyCycle


def lived(cycle: DutyCycle, lateness: list[tuple[float, float]]) -> float:
    """The time after turns that were so late, each: the stop's, and that of going on."""
    now = 0.0
    for late_to_stop, late_to_go_on in lateness:
        now += late_to_stop
        now += cycle.stop(now) + late_to_go_on
        now += cycle.go_on(now)
    return now


def test_punctual_turns_are_periods() -> None:
    cycle = DutyCycle(4, 0.0)
    assert lived(cycle, [(0.0, 0.0)] * 100) == pytest.approx(100 * PERIOD_S)
    assert cycle.share == pytest.approx(1 / 4, rel=0.02)


@given(
    st.floats(1.1, 50.0),
    st.lists(st.tuples(st.floats(0.0, 2.0), st.floats(0.0, 2.0)), max_size=30),
)
def test_the_share_is_kept_over_the_whole_time(factor: float, lateness: list[tuple[float, float]]) -> None:
    cycle = DutyCycle(factor, 0.0)
    now = lived(cycle, lateness)
    for _ in range(round(2 * now * factor / LONGEST_S) + 10):  # then it is punctual, for long enough
        now += cycle.stop(now)
        now += cycle.go_on(now)
        if cycle.is_even:
            break
    assert cycle.is_even
    cycle.stop(now)
    cycle.go_on(now + cycle.stop(now))
    assert cycle.running_s <= (cycle.running_s + cycle.stopped_s) / factor + PERIOD_S


def test_who_ran_too_long_pays_it_back_in_stops_that_are_not_too_long() -> None:
    cycle = DutyCycle(50, 0.0)
    now, stops = 0.04, []  # for which it is to be stopped for 2 s
    while True:
        stops.append(cycle.stop(now))
        now += stops[-1]
        if cycle.is_even:
            break
        now += cycle.go_on(now)
    assert max(stops) == LONGEST_S
    assert 4 <= len(stops) <= 6
    cycle.go_on(now)
    assert cycle.share < 1.01 / 50


def test_who_was_stopped_too_long_may_run_for_longer() -> None:
    cycle = DutyCycle(2, 0.0)
    stop = cycle.stop(PERIOD_S / 2)
    assert cycle.go_on(PERIOD_S / 2 + stop + 0.2) == pytest.approx(0.2 + stop - PERIOD_S / 2)
