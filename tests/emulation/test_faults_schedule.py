"""The schedule against an oracle that looks at one fault at a time, over random jobs that go on in leaps."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from edgepeer.emulation.faults.kinds import BrokerDown, Cut, Kill, Pause, PlannedFault, Restart, Span, Who
from edgepeer.emulation.faults.schedule import FaultSchedule, FaultStep, Instant

A, B = Who("number", 0), Who("number", 1)


@st.composite
def links(draw: st.DrawFn) -> PlannedFault:
    """Faults without a subject: each is on its own."""
    if draw(st.booleans()):
        start = draw(st.integers(1, 12))
        return Cut(source=A, target=B, span=Span("round", start, draw(st.none() | st.integers(start, 14))))
    begin = draw(st.integers(0, 12)) / 2
    length = draw(st.none() | st.integers(1, 12))
    return Cut(source=A, target=B, span=Span("second", begin, None if length is None else begin + length / 2))


@st.composite
def journeys(draw: st.DrawFn) -> list[Instant]:
    leaps = draw(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30))
    instants, done, half_seconds = [], 0, 0
    for rounds, time in leaps:
        done, half_seconds = done + rounds, half_seconds + time
        instants.append(Instant(done, half_seconds / 2))
    return instants


def oracle(fault: PlannedFault, journey: list[Instant]) -> tuple[int | None, int | None]:
    """At which instant of the journey a fault on its own comes and goes, by trying all."""
    span = fault.span

    def passed(instant: Instant) -> float:
        return instant.round if span.unit == "round" else instant.second

    first = span.start - 1 if span.unit == "round" else span.start
    begins = next((at for at, instant in enumerate(journey) if passed(instant) >= first), None)
    if begins is None or span.end is None:
        return begins, None
    asked = span.end - first
    since = passed(journey[begins])
    return begins, next((at for at, instant in enumerate(journey) if passed(instant) - since >= asked), None)


@given(st.lists(links(), max_size=6), journeys())
def test_links_against_the_oracle(faults: list[PlannedFault], journey: list[Instant]) -> None:
    schedule = FaultSchedule(faults)
    happened: dict[FaultStep, int] = {}
    for at, instant in enumerate(journey):
        for step in schedule.due(instant):
            assert step not in happened, "each step comes once"
            happened[step] = at
    for at, fault in enumerate(faults):
        assert (happened.get(FaultStep(at, lift=False)), happened.get(FaultStep(at, lift=True))) == oracle(
            fault, journey
        )
    assert schedule.waiting == tuple(at for at in range(len(faults)) if FaultStep(at, lift=False) not in happened)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=6), journeys())
def test_one_life_is_lived_in_order(parts: list[tuple[int, int]], journey: list[Instant]) -> None:
    """Pauses and deaths of one peer never overlap, however far the job leaps, and nothing is left out."""
    faults: list[PlannedFault] = []
    at = 1
    for kind, length in parts:
        if kind:
            faults.append(Pause(peer=A, span=Span("round", at, at + length - 1)))
        else:
            faults += [Kill(peer=A, span=Span("round", at)), Restart(peer=A, span=Span("round", at + length))]
        at += length + (0 if kind else 1)
    schedule = FaultSchedule(list(reversed(faults)))
    steps: list[tuple[FaultStep, Instant]] = []
    for instant in [*journey, *(Instant(1000 + number, 1000) for number in range(50))]:
        steps += [(step, instant) for step in schedule.due(instant)]
    wanted = []
    for number, fault in enumerate(faults):
        index = len(faults) - 1 - number
        wanted.append(FaultStep(index, lift=False))
        if fault.lasts:
            wanted.append(FaultStep(index, lift=True))
    assert [step for step, _ in steps] == wanted
    for (begun, since), (ended, until) in pairwise(steps):
        if begun.at == ended.at:
            assert until.round - since.round >= (list(reversed(faults))[begun.at].span.length or 0)
    assert schedule.waiting == ()


def test_a_fault_that_comes_late_lasts_as_long_as_asked() -> None:
    schedule = FaultSchedule([BrokerDown(span=Span("round", 5, 6)), Kill(peer=A, span=Span("second", 2.0))])
    assert schedule.due(Instant(3, 0.0)) == []
    assert schedule.due(Instant(9, 1.0)) == [FaultStep(0, lift=False)]
    assert schedule.due(Instant(10, 2.0)) == [FaultStep(1, lift=False)]
    assert not schedule.over
    assert schedule.due(Instant(11, 2.5)) == [FaultStep(0, lift=True)]
    assert schedule.over


def test_what_lasts_to_the_end_is_not_waited_for() -> None:
    schedule = FaultSchedule([Pause(peer=A, span=Span("round", 5))])
    assert not schedule.over
    assert schedule.due(Instant(9, 1.0)) == [FaultStep(0, lift=False)]
    assert schedule.over
    assert FaultSchedule([]).over


def test_a_kill_and_a_restart_that_are_both_due() -> None:
    schedule = FaultSchedule([Restart(peer=A, span=Span("round", 6)), Kill(peer=A, span=Span("round", 4))])
    assert schedule.due(Instant(20, 0.0)) == [FaultStep(1, lift=False), FaultStep(0, lift=False)]
