"""Small fleets whose rounds are coded, gone through exhaustively: nothing breaks, and what is broken on purpose is
found. Each broken rule is tried beside the rule as it is, in the same course of things."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import pytest

from edgepeer.coding.fractional import FractionalCode
from edgepeer.coding.scheme import parse_scheme
from edgepeer.protocol import allreduce
from edgepeer.protocol.allreduce import Allreduce
from edgepeer.protocol.closing import Closing
from edgepeer.protocol.inview import InView
from edgepeer.protocol.round import Round
from edgepeer.simulation.exploration.calls import OTHER_CALLS
from edgepeer.simulation.exploration.checks import Violation
from edgepeer.simulation.exploration.fleet import Fleet
from edgepeer.simulation.exploration.life import Facts
from edgepeer.simulation.exploration.search import Bounds, Find, Search, recover
from edgepeer.simulation.exploration.shared import explore
from edgepeer.simulation.exploration.state import Setting, State
from edgepeer.simulation.exploration.telling import lines
from edgepeer.topology.view import View
from edgepeer.wire.frames import Frame, Progress, Release, Result

TRIO = Setting(peers=3, faults=1, kinds=("power",), rounds=2, code="fractional:s=1")
"""Each of them has both chunks."""
SOME = 3000
"""States of those that a test can not go through to the end."""
CHAIN = replace(TRIO, fanout=1)
_Course: TypeAlias = Callable[[Fleet], object]
"""Something that happens to a fleet; what breaks it raises, or is returned."""


def found(setting: Setting, bounds: Bounds) -> tuple[Find | None, Search]:
    search = Search(setting, bounds)
    return search.run(), search


def facts(fleet: Fleet, state: State, peer: int) -> Facts:
    found = fleet.facts(state, peer)
    assert found is not None
    return found


def usually(fleet: Fleet, state: State, until: Callable[[State], bool]) -> State:
    """The usual takes its course until something is true."""
    for _ in range(500):
        if until(state):
            return state
        action = fleet.usual(state)
        assert action is not None, "nothing happens any more"
        state = fleet.after(state, action)
    raise AssertionError("not within 500 steps")


def next_is(fleet: Fleet, kind: type[Frame], a: int, b: int) -> Callable[[State], bool]:
    """Whether such a frame is what comes next from a to b."""

    def check(state: State) -> bool:
        channel = state.channels[a * fleet.n + b]
        return bool(channel) and isinstance(fleet.frames[channel[0]][0], kind)

    return check


def late(fleet: Fleet, state: State, a: int, b: int) -> State:
    """What comes next from a to b is late."""
    return fleet.after(state, ("hold", fleet.sources.index(("bring", a, b))))


# -- the fleet -----------------------------------------------------------------------------------------------------


def test_a_round_is_closed_with_what_is_computed_first() -> None:
    fleet = Fleet(replace(TRIO, code="cyclic:s=1"))
    state = usually(fleet, fleet.formed(), lambda state: facts(fleet, state, 0).over == 2)
    ends = [end.end.contributors for _, end in state.history.ends]
    assert ends == [("p1", "p2")] * 2  # any two are enough, and the last of the order computes first


@pytest.mark.parametrize("kind", OTHER_CALLS)
def test_a_call_that_does_not_fit_ends_the_round_for_all(kind: str) -> None:
    fleet = Fleet(replace(TRIO, kinds=(kind,)))
    state = fleet.after(fleet.formed(), (kind, 1))
    state = usually(fleet, state, lambda state: facts(fleet, state, 2).over == 2)
    assert [end.end.contributors for _, end in state.history.ends] == [("p2",), ()]
    assert recover(fleet, state) is None


def test_a_machine_in_coded_rounds_that_is_put_back_is_in_the_same_state() -> None:
    fleet = Fleet(replace(TRIO, code="partial:l=2,replication=2"))
    state, met = fleet.formed(), 0
    while (action := fleet.usual(state)) is not None and met < 60:
        state, met = fleet.after(state, action), met + 1
        for lives, number in zip(fleet.lives, state.lives, strict=True):
            lives._canon.put(lives._states[number])
            assert lives._number(2.0**20) == number
    assert facts(fleet, state, 0).over == 2


def test_codes_are_the_same_value_in_all_processes() -> None:
    scheme = parse_scheme("fractional:s=1", "deadline:0.5")
    assert scheme is not None
    assert repr(scheme) == "CodingScheme('fractional:s=1 deadline:0.5')"
    assert repr(scheme.build(3, 2)) == "FractionalCode('fractional:s=1', 3 workers)"
    setting, bounds = Setting(peers=2, faults=0, rounds=2, code="first:s=1"), Bounds(depth=1)
    alone, _ = explore(setting, bounds, lambda tally: True)
    shared, find = explore(setting, bounds, lambda tally: True, jobs=2)
    assert find is None
    assert (shared.states, shared.by_depth, shared.whole) == (alone.states, alone.by_depth, True)


# -- nothing breaks ------------------------------------------------------------------------------------------------


def test_two_peers_and_one_surprise() -> None:
    setting = Setting(peers=2, faults=1, rounds=2, kinds=("kill", *OTHER_CALLS), code="first:s=1")
    find, search = found(setting, Bounds(depth=1, probe_every=50))
    assert find is None, "\n".join(lines(setting, find))
    assert search.tally.whole
    assert search.tally.states > 500
    assert search.tally.probes >= 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "bounds"),
    [
        (replace(TRIO, kinds=("power", "isolate", *OTHER_CALLS)), Bounds(depth=1, probe_every=100)),
        (replace(CHAIN, code="cyclic:s=1", kinds=("kill", "leave", *OTHER_CALLS)), Bounds(depth=1, probe_every=100)),
        (replace(TRIO, code="partial:l=2,replication=2", wait="deadline:0.5"), Bounds(depth=1, probe_every=100)),
        (replace(CHAIN, kinds=("recode",)), Bounds(depth=2)),
        (replace(TRIO, peers=4, fanout=3, kinds=("power", "plain")), Bounds(depth=1, probe_every=100, states=SOME)),
        (
            replace(CHAIN, faults=0, code="cyclic:s=1", wait="deadline:0.5"),
            Bounds(depth=2),
        ),  # p2 alone: nothing is whole
        (replace(TRIO, run="", kinds=("kill", *OTHER_CALLS)), Bounds(depth=1, probe_every=100)),
    ],
    ids=["star", "chain", "blocks", "codes", "four", "nothing", "plain"],
)
def test_nothing_breaks(setting: Setting, bounds: Bounds) -> None:
    find, search = found(setting, bounds)
    assert find is None, "\n".join(lines(setting, find))
    assert search.tally.states > 1000
    assert search.tally.probes > 10


# -- what is broken is found ---------------------------------------------------------------------------------------


def broken(course: _Course, monkeypatch: pytest.MonkeyPatch, of: object, name: str, rule: object) -> str:
    """What breaks in a course of things if a rule is another one; with the rule as it is, nothing does."""
    assert course(Fleet(TRIO)) is None
    monkeypatch.setattr(of, name, rule)
    try:
        return str(course(Fleet(TRIO)))
    except Violation as violation:
        return str(violation)


def head_dies_and_one_holds(fleet: Fleet) -> None:
    """Round 2 is over at p0, which dies. p2 holds it, and p1, the next head, hears late of whatever p2 says."""
    state = usually(fleet, fleet.formed(), next_is(fleet, Result, 0, 1))
    state = usually(fleet, late(fleet, state, 0, 1), lambda state: facts(fleet, state, 0).over == 2)
    state = fleet.after(state, ("power", 0))
    for _ in range(200):
        if facts(fleet, state, 1).over == 2:
            return
        if next_is(fleet, Progress, 2, 1)(state):
            state = late(fleet, state, 2, 1)
        action = fleet.usual(state)
        assert action is not None
        state = fleet.after(state, action)
    raise AssertionError("round 2 is never over at p1")


def test_a_head_that_asks_for_no_promises_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Closing.judge

    def judge(self: Closing) -> None:
        self._promised = self._place.view.everyone if self._place.view is not None else 0
        real(self)

    wrong = broken(head_dies_and_one_holds, monkeypatch, Closing, "judge", judge)
    assert wrong == "p1 ends round 2 with the sum over p1, but p0 with the sum over p2"


def head_dies_beside_a_plain_vector(fleet: Fleet) -> str | None:
    """p1 brings it; whether the round was decided before, only its promise can tell."""
    state = fleet.after(fleet.formed(), ("plain", 1))
    return recover(fleet, fleet.after(state, ("power", 0)))


def test_a_plain_vector_without_a_promise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_plain(self: Allreduce) -> None:
        self._want_abort("mismatch", "rounds are coded here")

    wrong = broken(head_dies_beside_a_plain_vector, monkeypatch, Allreduce, "_refuse_plain", refuse_plain)
    assert wrong.startswith("the fleet does not find together again: p0 is dead; p1 is in view 2 of p1, p2, ")


def closed_without_who_wants_another_code(fleet: Fleet) -> str | None:
    """In a chain p1 says so too late; below it is p2, which is to hold the round as well."""
    fleet = Fleet(replace(CHAIN, kinds=("recode",)))
    state = fleet.after(fleet.formed(), ("recode", 1))
    state = late(fleet, usually(fleet, state, next_is(fleet, Progress, 1, 0)), 1, 0)
    return recover(fleet, usually(fleet, state, next_is(fleet, Release, 0, 1)))


def test_a_release_for_another_code_that_is_not_passed_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_other_release(self: Closing, view: View, frame: Release) -> str:
        return ""

    course = closed_without_who_wants_another_code
    wrong = broken(course, monkeypatch, Closing, "_on_other_release", on_other_release)
    assert wrong.startswith("the fleet does not find together again: p0 is in view 1 of p0, p1, p2, after round 1; ")


@pytest.mark.slow
def test_a_way_that_ends_before_the_rounds_do_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """That nothing is with the rule, in all states: test_nothing_breaks[codes]."""
    monkeypatch.setattr(Closing, "_on_other_release", lambda self, view, frame: "")
    find, _ = found(replace(CHAIN, kinds=("recode",)), Bounds(depth=2))
    assert find is not None
    assert find.complaint.startswith("the fleet does not find together again: p0 is in view 1 of p0, p1, p2, ")


def test_a_round_that_counts_where_one_holder_is_missing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """That nothing is with the rule, in all states: test_nothing_breaks[star]."""

    def enough_hold(here: InView, rd: Round) -> bool:
        return rd.held is not None

    monkeypatch.setattr(allreduce, "enough_hold", enough_hold)
    find, _ = found(TRIO, Bounds(depth=1, states=2000))
    assert find is not None
    assert find.complaint == "nobody in view 2 (p1/1, p2/1) holds the end of round 2, which counts"
    assert sum(line.startswith(" ! ") for line in lines(TRIO, find)) == 1


def damaged(fleet: Fleet) -> None:
    state = fleet.after(usually(fleet, fleet.formed(), next_is(fleet, Result, 0, 1)), ("damage", 0, 1))
    usually(fleet, state, lambda state: all(facts(fleet, state, peer).over == 2 for peer in range(3)))


def test_a_bit_that_differs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = broken(damaged, monkeypatch, allreduce, "what_is_wrong", lambda total, commit, view: "")
    assert wrong == "p1 ends round 2 with the sum over p2, but p0 with the sum over p2"


def test_a_chunk_that_counts_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = FractionalCode.encoding

    def one_round(fleet: Fleet) -> None:
        fleet.formed()

    wrong = broken(
        one_round, monkeypatch, FractionalCode, "encoding", lambda self, worker, done: 2 * real(self, worker, done)
    )
    assert wrong == "p0: round 1 is not the sum over p2"
