"""When a run is over, by what is known of who takes part in it and has its state."""

from __future__ import annotations

import pytest

from edgepeer.protocol.limits import Limits
from edgepeer.protocol.over import NOBODY, Over, Stands

LIMITS = Limits()
HEARD_S = 2 * LIMITS.heartbeat_s
STEP_S = 0.25


def watched(
    over: Over, stands: Stands | None, seconds: float, *, now: float = 0.0, alone: bool = False
) -> float | None:
    """It stands so for so long: after how many seconds the run is over, if it is."""
    for step in range(int(seconds / STEP_S)):
        at = now + step * STEP_S
        over.see(stands, at)
        if over.holds(stands, at, alone=alone):
            return at - now
    return None


@pytest.fixture
def over() -> Over:
    found = Over(LIMITS)
    found.enter(("r", 1), 0.0)
    return found


@pytest.mark.parametrize(
    ("stands", "after_s"),
    [
        pytest.param((7, 7), None, id="there is a state"),
        pytest.param(None, None, id="it is not known"),
        pytest.param((-1, -1), None, id="the run has not begun"),
        pytest.param((NOBODY, 7), HEARD_S, id="nobody takes part"),
        pytest.param((NOBODY, -1), HEARD_S, id="nor has anybody begun"),
        pytest.param((-1, 7), LIMITS.anew_s, id="nobody has the state"),
        pytest.param((5, 7), LIMITS.anew_s, id="there is an earlier one"),
    ],
)
def test_it_is_over(over: Over, stands: Stands | None, after_s: float | None) -> None:
    found = watched(over, stands, 60.0)
    assert found == after_s if after_s is None else found is not None and after_s <= found <= after_s + 2 * STEP_S


def test_who_is_alone_hears_nothing_more(over: Over) -> None:
    assert watched(over, (-1, 7), 1.0, alone=True) == 0.0
    assert watched(over, (5, 7), LIMITS.anew_s - 1.0, alone=True) is None


@pytest.mark.parametrize("unknown_s", [0.0, 1.0])
def test_views_and_links_that_come_and_go_do_not_put_it_off_for_ever(over: Over, unknown_s: float) -> None:
    now, found = 0.0, None
    while found is None and now < 60.0:
        found = watched(over, (-1, 7), 3.0, now=now)
        now += 3.0
        watched(over, None, unknown_s, now=now)
        now += unknown_s
        over.enter(("r", 1), now)
    assert now <= 3 * LIMITS.anew_s


def test_what_was_missed_before_there_was_a_state_does_not_count(over: Over) -> None:
    assert watched(over, (-1, 7), LIMITS.anew_s - 1.0) is None
    assert watched(over, (7, 7), 1.0, now=10.0) is None
    assert watched(over, (-1, 7), LIMITS.anew_s - 1.0, now=11.0) is None


def test_nor_does_what_was_missed_of_another_beginning(over: Over) -> None:
    assert watched(over, (-1, 7), LIMITS.anew_s - 1.0) is None
    over.enter(("r", 2), 10.0)
    assert watched(over, (-1, 3), LIMITS.anew_s - 1.0, now=10.0) is None


def test_rounds_that_go_on_are_heard_of_late(over: Over) -> None:
    """The head has always seen one more end than those below have said."""
    for number in range(200):
        assert watched(over, (number, number + 1), 0.5, now=number / 2) is None


def test_a_process_that_was_stopped_has_not_waited_meanwhile(over: Over) -> None:
    assert watched(over, (-1, 7), 5.0) is None
    over.excuse(30.0, 35.0)
    assert watched(over, (-1, 7), 4.5, now=35.0) is None
