"""Measured timeouts: RFC 6298 against its own formulas, lateness, back-off, pace; and stamps between two machines."""

from __future__ import annotations

import math

import pytest
from company import Company
from hypothesis import given
from hypothesis import strategies as st
from transcript import Machine, view

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.timing import Pace, RoundTrip
from edgepeer.wire import frames as fr

SAMPLES = st.lists(st.floats(0, 60), min_size=1, max_size=50)


def rfc_6298(samples: list[float]) -> tuple[float, float, float]:
    """SRTT, RTTVAR and RTO by section 2 of the RFC, with clock granularity G = 20 ms and without the least RTO."""
    first, *rest = samples
    srtt, rttvar = first, first / 2
    for r in rest:
        rttvar = (1 - 1 / 4) * rttvar + 1 / 4 * abs(srtt - r)
        srtt = (1 - 1 / 8) * srtt + 1 / 8 * r
    return srtt, rttvar, srtt + max(0.02, 4 * rttvar)


@given(SAMPLES)
def test_smoothed_time_variance_and_timeout_are_those_of_the_rfc(samples: list[float]) -> None:
    clock = RoundTrip()
    for sample in samples:
        clock.sample(sample)
    srtt, rttvar, rto = rfc_6298(samples)
    assert clock.srtt == pytest.approx(srtt, abs=1e-9)
    assert clock.var == pytest.approx(rttvar, abs=1e-9)
    assert clock.answer_within() == pytest.approx(rto, abs=1e-9)


@given(SAMPLES, st.sampled_from([-1e-9, -5.0, 60.1, 1e9, math.inf, math.nan]))
def test_what_can_not_be_true_is_ignored(samples: list[float], wrong: float) -> None:
    clean, dirty = RoundTrip(), RoundTrip()
    for sample in samples:
        clean.sample(sample)
        dirty.sample(sample)
        dirty.sample(wrong)
    assert (clean.srtt, clean.var) == (dirty.srtt, dirty.var)


def test_before_the_first_round_trip() -> None:
    clock = RoundTrip()
    assert clock.answer_within() is None
    assert clock.silent_after(0.0, 3.0) == 3.0  # nothing was promised
    assert clock.silent_after(0.1, 3.0) == pytest.approx(1.1)  # the RFC's first second


def test_the_deadline_is_what_was_promised_an_answer_and_how_late_heartbeats_come() -> None:
    clock = RoundTrip()
    for _ in range(200):
        clock.sample(0.05)
    assert clock.silent_after(0.1, 3.0) == pytest.approx(0.1 + 0.05 + 0.02)
    clock.gap(0.13, 0.1)
    assert clock.silent_after(0.1, 3.0) == pytest.approx(0.1 + 0.05 + 0.02 + 0.03)
    assert clock.silent_after(5.0, 3.0) == 3.0  # never longer than a peer may be away


def test_lateness_is_the_worst_of_the_last_ones() -> None:
    clock = RoundTrip()
    clock.gap(0.05, 0.1)
    assert clock.late == 0.0  # early is not late
    clock.gap(0.15, 0.1)
    clock.gap(0.1, 0.1)
    assert clock.late == pytest.approx(0.05 * 0.95)
    assert clock.silent_after(0.1, 60.0) > 0.15
    for _ in range(150):
        clock.gap(0.1, 0.1)
    assert clock.late < 0.005  # it has been punctual for long
    clock.gap(1e9, 0.1)
    assert clock.late <= 60.0


def test_lateness_is_forgotten_by_beats_however_many_frames_come_in_them() -> None:
    seldom, often = RoundTrip(), RoundTrip()
    for clock, frames in ((seldom, 1), (often, 20)):
        clock.gap(0.14, 0.04)
        for _ in range(20 * frames):
            clock.gap(0.04 / frames, 0.04)
    assert seldom.late == pytest.approx(often.late) == pytest.approx(0.1 * 0.95**20)


@given(st.lists(st.floats(0, 0.5), min_size=20, max_size=60), st.floats(0.02, 1.0))
def test_a_jitter_that_has_been_seen_raises_no_alarm(delays: list[float], every: float) -> None:
    """Heartbeats that are each delayed by up to the worst that has come lately stay within the deadline."""
    clock = RoundTrip()
    for delay in delays:
        clock.sample(delay)
    worst = max(delays) - min(delays)
    clock.gap(every + worst, every)
    assert every + worst <= clock.silent_after(every, 60.0)


def test_a_false_alarm_doubles_the_deadline_and_is_forgiven() -> None:
    clock = RoundTrip()
    clock.sample(0.04)
    plain = clock.silent_after(0.1, 60.0)
    for doublings in (2, 4, 8, 16, 16):
        clock.false_alarm(100.0)
        assert clock.silent_after(0.1, 60.0) == pytest.approx(doublings * plain)
    clock.forgive(109.0)
    assert clock.silent_after(0.1, 60.0) == pytest.approx(16 * plain)
    for at, doublings in ((111.0, 8), (112.0, 8), (122.0, 4), (133.0, 2), (144.0, 1), (155.0, 1)):
        clock.forgive(at)
        assert clock.silent_after(0.1, 60.0) == pytest.approx(doublings * plain)


def test_what_was_measured_at_rest_counts_until_the_first_sample_after_rounds_have_begun() -> None:
    clock = RoundTrip()
    for sample in (0.2, 0.1, 0.3):
        clock.sample(sample)
    clock.gap(1.3, 1.0)
    before = clock.answer_within()
    clock.hurry()
    assert clock.late == 0.0
    assert clock.answer_within() == before
    clock.sample(0.002)
    assert (clock.srtt, clock.var) == (0.002, 0.001)  # as of a path of which nothing is known
    clock.false_alarm(100.0)
    doubled = clock.silent_after(0.04, 60.0)
    clock.hurry()
    assert clock.silent_after(0.04, 60.0) == doubled  # a lesson is not forgotten


# -- pace --------------------------------------------------------------------------------------------------


def pace(*ends: float) -> Pace:
    found = Pace(0.2, 1.0)
    for end in ends:
        found.round_ended(end)
    return found


def test_while_nothing_happens_heartbeats_are_seldom() -> None:
    assert pace().every_s(5.0, contributed=False) == 1.0


def test_the_first_rounds_are_watched_closely() -> None:
    assert pace().every_s(5.0, contributed=True) == 0.2
    assert pace(5.0).every_s(5.0, contributed=True) == 0.2


@pytest.mark.parametrize(("period", "every"), [(0.1, 0.2), (1.6, 0.4), (3.0, 0.75), (1000.0, 1.0)])
def test_then_four_times_a_round_within_limits(period: float, every: float) -> None:
    found = pace(*(number * period for number in range(10)))
    for contributed in (False, True):
        assert found.every_s(9 * period + 0.5, contributed=contributed) == pytest.approx(every)


def test_a_round_that_takes_long_is_still_one_of_many() -> None:
    found = pace(0.0, 1.6, 3.2)
    assert found.every_s(1000.0, contributed=True) == pytest.approx(0.4)


def test_when_rounds_have_ended_heartbeats_become_seldom_again() -> None:
    found = pace(0.0, 0.2, 0.4)
    assert found.every_s(4.3, contributed=False) == 0.2
    assert found.every_s(4.5, contributed=False) == 1.0


def test_the_period_follows_the_rounds() -> None:
    found = pace(*(number * 1.6 for number in range(10)))
    for number in range(1, 30):
        found.round_ended(9 * 1.6 + number * 3.2)
    assert found.every_s(110.0, contributed=True) == pytest.approx(0.8, rel=1e-3)


# -- stamps ------------------------------------------------------------------------------------------------


def ping(machine: Machine, peer: str, **fields: float) -> None:
    machine.frame(peer, fr.Ping(waiting=False, epoch=1, **fields))  # type: ignore[arg-type]


def sent_ping(machine: Machine) -> fr.Ping:
    return next(e.frame for e in machine.effects if isinstance(e, fx.Send) and isinstance(e.frame, fr.Ping))


def paired() -> Machine:
    a = Machine("a").join(view(1, "ab"))
    a.hear(ev.LinkUp(PeerId("b"), 1), 10.0)
    return a


def rtt(machine: Machine) -> float | None:
    (state,) = machine.node.link_states()
    return state.rtt_s


def test_a_machine_that_was_busy_before_rounds_began_is_not_waited_for_longer_in_them() -> None:
    a = paired()
    for at in (10.0, 11.4, 12.4):  # it makes a model: once its heartbeat is 0.4 s late
        a.until(at)  # it is not late itself
        ping(a, "b", stamp=at, every=1.0)
    link = a.node.parts.links[PeerId("b")]
    assert link.clock.late > 0.3
    ping(a, "b", stamp=12.4, every=0.9)  # not the pace of rounds
    assert link.clock.late > 0.3
    ping(a, "b", stamp=12.4, every=0.2)
    assert link.clock.late == 0.0


def test_a_late_echo_gives_the_right_sample() -> None:
    """Each Ping says which stamp it answers, and for how long that has lain there: none can be taken for another."""
    a = paired()
    assert rtt(a) is None
    a.now = 17.0  # the Ping of 10.0 reached b at 12.0, was answered 4 s later, and the answer took a second
    ping(a, "b", stamp=1000.0, echo=10.0, held=4.0)
    assert rtt(a) == pytest.approx(3.0)


def test_what_is_echoed_twice_measures_two_round_trips() -> None:
    """Karn: an answer to a repeated question says nothing, unless it says which of them it answers."""
    a = paired()
    a.now = 10.2
    ping(a, "b", stamp=1000.0, echo=10.0, held=0.1)
    a.now = 12.2  # no other Ping of a has reached b meanwhile
    ping(a, "b", stamp=1002.0, echo=10.0, held=2.1)
    assert rtt(a) == pytest.approx(0.1)
    assert a.node.parts.links[PeerId("b")].clock.var == pytest.approx(0.1 / 2 * 3 / 4)


def test_an_echo_from_nowhere_measures_nothing() -> None:
    a = paired()
    a.now = 11.0
    ping(a, "b", stamp=1000.0)
    ping(a, "b", stamp=1000.0, echo=50.0, held=0.0)  # of the future
    ping(a, "b", stamp=1000.0, echo=10.0, held=9.0)  # held for longer than it is old
    assert rtt(a) is None


def test_a_ping_echoes_the_last_stamp_and_says_how_long_it_was_held() -> None:
    a = paired()
    assert sent_ping(a).echo == 0.0
    a.now = 10.3
    ping(a, "b", stamp=777.0)
    a.until(11.0)
    answer = sent_ping(a)
    assert (answer.stamp, answer.echo) == (11.0, 777.0)
    assert answer.held == pytest.approx(0.7)
    assert answer.every == 1.0


@pytest.mark.parametrize("latency_s", [0.001, 0.01, 0.1, 0.7])
def test_two_machines_measure_the_latency_between_them(latency_s: float) -> None:
    company = Company(view(1, "abc"), latency_s=latency_s)
    company.until(30.0)
    for machine in company.machines.values():
        for state in machine.node.link_states():
            assert state.rtt_s == pytest.approx(2 * latency_s, rel=1e-6)
    assert not any("close" in line for line in company.lines())


def test_an_alarm_that_proves_false_makes_patient() -> None:
    """A connection that is there again at once was not cut."""
    a = paired()
    ping(a, "b", stamp=1.0, every=0.1)
    a.until(12.5)
    assert not a.node.parts.links.is_up(PeerId("b"))
    clock = a.node.parts.links[PeerId("b")].timing
    before = clock.silent_after(0.1, 60.0)
    a.hear(ev.LinkUp(PeerId("b"), 1), a.node.parts.links[PeerId("b")].closed_at + 0.1)
    assert clock.silent_after(0.1, 60.0) == pytest.approx(2 * before)


def test_a_cut_that_lasts_does_not() -> None:
    a = paired()
    ping(a, "b", stamp=1.0, every=0.1)
    a.until(12.5)
    link = a.node.parts.links[PeerId("b")]
    before = link.timing.silent_after(0.1, 60.0)
    a.hear(ev.LinkUp(PeerId("b"), 1), link.closed_at + 0.5)
    assert link.timing.silent_after(0.1, 60.0) == pytest.approx(before)
