"""What follows when a machine acknowledges nothing of what was sent. The tree: a over bc, b over de, c over fg."""

from __future__ import annotations

import math

import pytest
from company import Company
from hypothesis import given
from hypothesis import strategies as st
from transcript import Machine, vector, view, when

from edgepeer.ids import PeerId
from edgepeer.peer.driver import LOOK_S, LOOK_SELDOM_S
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.timing import RoundTrip
from edgepeer.wire import frames as fr

SEVEN = view(1, "abcdefg")
A, B, D = PeerId("a"), PeerId("b"), PeerId("d")
SPARE = 0.02
"""What a scheduler on a busy device may take."""
ALONE = 0.042
"""Within what a single packet is acknowledged, and if not, what goes behind it, on a path that takes 1 ms."""


def connected(name: str = "b") -> Machine:
    """One of the seven, with all its links, whose other ends say that they reach everybody."""
    machine = Machine(name).join(SEVEN)
    for peer in sorted({*SEVEN.neighbours(PeerId(name)), *SEVEN.backups(PeerId(name))}):
        machine.level(peer)
    machine.until(2.0)
    everybody = fr.pack_set((1 << len(SEVEN.ids)) - 1)
    for peer, _ in machine.node.parts.links.connected():
        machine.frame(peer, fr.Ping(waiting=False, stamp=1.0, every=1.0, epoch=1, reaches=everybody))
    return machine


def unacknowledged(machine: Machine, for_s: float, *, within_s: float = 0.002, peer: PeerId = D) -> bool:
    """Whether the machine closes the connection for that."""
    machine.hear(ev.Unacknowledged(peer, machine.now - for_s, within_s))
    closes = [effect for effect in machine.effects if isinstance(effect, fx.CloseLink)]
    assert [(close.peer, close.abrupt) for close in closes] in ([], [(peer, True)])
    return bool(closes)


def pings(machine: Machine) -> list[PeerId]:
    sends = [effect for effect in machine.effects if isinstance(effect, fx.Send)]
    return [send.peer for send in sends if isinstance(send.frame, fr.Ping)]


@pytest.mark.parametrize("within_s", [0.0, 0.002, 0.05, 0.4])
def test_a_connection_is_closed_when_an_acknowledgement_is_overdue_and_not_before(within_s: float) -> None:
    b = connected()
    assert not unacknowledged(b, within_s + SPARE - 1e-6, within_s=within_s)
    assert b.node.parts.links.is_direct(D)
    assert unacknowledged(b, within_s + SPARE + 1e-6, within_s=within_s)
    assert not b.node.parts.links.is_up(D)


def test_and_a_way_around_is_looked_for_at_once() -> None:
    b = connected()
    assert unacknowledged(b, 0.1)
    asking = {effect.peer for effect in b.effects if isinstance(effect, fx.Send) and isinstance(effect.frame, fr.Via)}
    assert asking == set("acef")
    assert set(pings(b)) == set("acefg")  # they hear who can't be reached any more
    assert when(b.until(2.3), "dial d") < 2.3


def test_both_ends_of_a_cut_soon_have_the_same_tunnel() -> None:
    company = Company(SEVEN)
    company.until(1.0)
    company.sever("bd")
    company.hear("b", ev.Contribute(vector(1), 1.0))
    company.hear("d", ev.Contribute(vector(1), 1.0))
    company.until(1.1)
    assert company.path("b", "d").startswith("via")
    assert company.path("d", "b") == company.path("b", "d")


def test_no_other_connection_suffers() -> None:
    b = connected()
    assert unacknowledged(b, 0.1)
    assert [str(peer) for peer, _ in b.node.parts.links.connected()] == list("acefg")


def test_what_is_not_known_and_what_is_down_is_none_of_it() -> None:
    b = connected()
    assert not unacknowledged(b, 5.0, peer=PeerId("stranger"))
    assert unacknowledged(b, 0.1)
    assert not unacknowledged(b, 5.0)
    b.hear(ev.LinkDown(A, "reset"))
    assert not unacknowledged(b, 5.0, peer=A)


def test_of_a_tunnel_no_kernel_knows() -> None:
    company = Company(SEVEN)
    company.until(1.0)
    company.sever("bd")
    company.until(3.0)
    path = company.path("b", "d")
    assert path.startswith("via")
    company.hear("b", ev.Unacknowledged(D, 1.0, 0.002))
    assert company.path("b", "d") == path


def test_nobody_waits_longer_than_a_peer_may_be_away() -> None:
    b = connected()
    assert not unacknowledged(b, 2.99, within_s=60.0)
    assert unacknowledged(b, 3.01, within_s=60.0)


def test_who_is_there_again_at_once_was_not_cut_off_and_is_given_twice_the_time() -> None:
    b = connected()
    patience = 0.002 + SPARE
    for doublings in (1, 2, 4, 8, 16, 16):
        assert not unacknowledged(b, doublings * patience - 1e-6)
        assert unacknowledged(b, doublings * patience + 1e-6)
        b.hear(ev.LinkUp(D, 1), b.now + 0.1)


def test_a_cut_that_lasts_makes_nobody_patient() -> None:
    b = connected()
    assert unacknowledged(b, 0.1)
    b.hear(ev.LinkUp(D, 1), b.now + 0.5)
    assert unacknowledged(b, 0.1)


def test_a_false_alarm_of_one_kind_makes_patient_in_the_other() -> None:
    clock = RoundTrip()
    clock.sample(0.04)
    plain, silent = clock.unacknowledged_after(0.04, 60.0), clock.silent_after(0.1, 60.0)
    clock.false_alarm(100.0)
    assert clock.unacknowledged_after(0.04, 60.0) == pytest.approx(2 * plain)
    assert clock.silent_after(0.1, 60.0) == pytest.approx(2 * silent)
    clock.forgive(120.0)
    assert clock.unacknowledged_after(0.04, 60.0) == pytest.approx(plain)


# -- in doubt ------------------------------------------------------------------------------------------------


def test_a_ping_goes_behind_a_packet_that_may_be_all_that_was_lost() -> None:
    b = connected()
    since = b.now + 0.02  # seen to be under way
    b.now = since + 0.04
    assert not unacknowledged(b, 0.04, within_s=ALONE)
    assert pings(b) == []
    b.now = since + 0.042
    assert not unacknowledged(b, 0.042, within_s=ALONE)
    assert pings(b) == [D]
    b.now = since + 0.06
    assert not unacknowledged(b, 0.06, within_s=ALONE)
    assert pings(b) == []  # one is enough
    b.now = since + 0.063
    assert unacknowledged(b, 0.063, within_s=ALONE)


@given(st.floats(0.0001, 1.0), st.floats(0.0, 1.0), st.floats(LOOK_S, LOOK_SELDOM_S))
def test_a_single_packet_is_waited_for_until_the_ping_behind_it_is_acknowledged(
    trip_s: float, more_s: float, look_s: float
) -> None:
    """Whoever looks so often sends the Ping at the first look that is late enough, and gives up at another. That is as
    long as what is waited for stays the same: the Ping itself changes it (tests/transport/test_acknowledged.py)."""
    clock = RoundTrip()
    within_s = trip_s + more_s + 0.04 + trip_s  # of a single packet
    asked, given_up = clock.in_doubt_after(within_s), clock.unacknowledged_after(within_s, 60.0)
    assert asked + trip_s < given_up
    answered = (math.floor(asked / look_s) + 1) * look_s + trip_s
    assert answered < (math.floor(given_up / look_s) + 1) * look_s


def test_where_something_else_was_sent_since_that_tells_as_much() -> None:
    b = connected()
    since = b.now + 0.02
    b.now = since + 0.01
    b.frame("d", fr.Sync(epoch=0, run="", committed=0))  # is answered
    b.now = since + 0.05
    assert not unacknowledged(b, 0.05, within_s=ALONE)
    assert pings(b) == []


def test_nothing_is_said_to_who_is_not_wanted() -> None:
    b = connected()
    stranger = PeerId("stranger")
    b.hear(ev.LinkUp(stranger, 1))
    b.now += 0.06
    assert not unacknowledged(b, 0.05, within_s=ALONE, peer=stranger)
    assert pings(b) == []
