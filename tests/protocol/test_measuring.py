"""What a peer measures of its line and its links, and when it says so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepeer.ids import PeerId
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.links import Links
from edgepeer.protocol.measuring import AGAIN_S, MOST_LINKS, Arrivals, Measuring
from edgepeer.protocol.timing import RoundTrip
from edgepeer.protocol.tunnel import Tunnel
from edgepeer.topology.view import Member, View

A, B, C = (PeerId(name) for name in "abc")
VIEW = View(epoch=1, members=tuple(Member(id=name, incarnation=1) for name in "abcdefg"))
SOME = 200_000


def test_what_comes_at_once_adds_up() -> None:
    """Two senders share the line: each seems to send at half of its rate, for the same time."""
    line, one = Arrivals(), Arrivals()
    for at in (0.1, 0.2, 0.3):
        line.add(SOME, 0.1, at)
        line.add(SOME, 0.1, at + 0.001)
        one.add(SOME, 0.1, at)
    line.close_round()
    one.close_round()
    assert one.bytes_per_s == pytest.approx(SOME / 0.1)
    assert line.bytes_per_s == pytest.approx(2 * SOME / 0.1, rel=0.01)


def test_pauses_do_not_count_and_the_best_round_does() -> None:
    line = Arrivals()
    assert line.bytes_per_s == 0
    for slower in (1.0, 0.5, 1.0):
        for start in (0.0, 10.0):
            line.add(SOME, 0.1 * slower, start + 0.1 * slower)
        line.close_round()
    assert line.bytes_per_s == pytest.approx(SOME / 0.05)
    line.add(100, 1e-9, 99.0)
    line.close_round()
    assert line.bytes_per_s == pytest.approx(SOME / 0.05)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.02, 0.3)), min_size=1, max_size=12))
def test_the_time_is_that_in_which_something_comes(parts: list[tuple[float, float]]) -> None:
    """Against counting milliseconds in which anything is under way, or has been 10 ms before and is again."""
    line, ended = Arrivals(), sorted((start + seconds, seconds) for start, seconds in parts)
    for end, seconds in ended:
        line.add(SOME, seconds, end)
    line.close_round()
    busy, until = 0.0, float("-inf")
    for start, end in sorted((end - seconds, end) for end, seconds in ended):
        busy += max(end - (max(start, until) if start > until + 0.01 else until), 0.0) if until > -1 else end - start
        until = max(until, end)
    assert line.bytes_per_s == pytest.approx(SOME * len(parts) / busy, rel=0.01)


def measuring() -> Measuring:
    links = Links(Limits(), lambda effect: None)
    links.want([(VIEW.member(PeerId(name)), "child") for name in "bc"], 0.0)
    links.on_up(B, 1, 0.0, dialled=True)
    links.on_dial_failed(C, refused=False, now=0.0)
    links[B].timing.sample(0.02)
    found = Measuring(A, links, tells=True)
    found.enter(VIEW, 0.0)
    return found


def round_of(peer: Measuring, seconds: float, now: float) -> None:
    peer.arrived(B, SOME, seconds, now)
    peer.round_ended()


def test_what_is_told_and_when() -> None:
    a = measuring()
    assert a.due(5.0) is None  # no round was over
    round_of(a, 0.1, 5.0)
    told = a.due(5.0)
    assert told is not None
    assert (told.epoch, told.peer) == (VIEW.stamp, "a")
    assert told.rate_bytes_per_s == pytest.approx(SOME / 0.1)
    assert [(link.position, link.reach) for link in told.links] == [(1, 1), (2, -1)]
    assert told.links[0].trip_s == 0.02
    assert told.links[1].rate_bytes_per_s == told.links[1].trip_s == 0
    round_of(a, 0.09, 7.0)
    assert a.due(7.0) is None  # as good as the same
    round_of(a, 0.02, 8.0)
    assert a.due(8.0) is not None
    round_of(a, 0.005, 8.1)
    assert a.due(8.1) is None  # too soon
    assert a.due(9.1) is not None
    assert a.due(9.1 + AGAIN_S) is None  # nothing goes on
    round_of(a, 0.1, 9.1 + AGAIN_S)
    assert a.due(9.1 + AGAIN_S) is not None


def test_a_connection_that_breaks_and_can_not_be_made_again_is_told_at_once_and_once() -> None:
    a = measuring()
    round_of(a, 0.1, 5.0)
    assert a.due(5.0) is not None
    a._links.on_down(B, 5.05)
    a._links.on_dial_failed(B, False, 5.1)
    assert a.due(5.1) is None  # there is no way around yet
    a._links.on_tunnel(B, Tunnel(1, C, 0.0), 1, 0.0, 5.15)
    assert a.due(5.15) is None  # it may be whole again soon
    a._links.on_dial_failed(B, False, 5.2)
    assert a.due(5.2) is None  # it may have been whole when that attempt had only just begun
    a._links.on_dial_failed(B, False, 5.25)
    told = a.due(5.25)
    assert told is not None
    assert [(link.position, link.around, link.trip_s) for link in told.links] == [(1, True, 0.0), (2, False, 0.0)]
    assert a.due(5.3) is None
    a._links.on_up(B, 1, 6.0)
    assert a.due(6.0) is None  # that it is whole again can wait for the end of a round
    round_of(a, 0.1, 6.5)
    told = a.due(6.5)
    assert told is not None
    assert [link.around for link in told.links] == [False, False]
    a._links.on_down(B, 7.0)
    a._links.on_tunnel(B, Tunnel(2, C, 0.0), 1, 0.0, 7.0)
    a._links.on_dial_failed(B, False, 7.0)
    a._links.on_dial_failed(B, False, 7.1)
    assert a.due(7.1) is not None


def test_each_view_hears_of_it() -> None:
    a = measuring()
    round_of(a, 0.1, 5.0)
    assert a.due(5.0) is not None
    a.enter(VIEW.successor(first_round=1), 6.0)
    round_of(a, 0.1, 6.5)
    assert a.due(6.5) is None
    assert a.due(7.0) is not None


def test_who_has_nothing_to_choose_tells_nothing() -> None:
    a = Measuring(A, Links(Limits(), lambda effect: None), tells=False)
    a.enter(VIEW, 0.0)
    round_of(a, 0.1, 5.0)
    assert a.due(60.0) is None


def test_a_report_has_room_for_so_many_links() -> None:
    many = View(epoch=1, members=tuple(Member(id=f"p{at:03d}", incarnation=1) for at in range(300)), fanout=64)
    links = Links(Limits(), lambda effect: None)
    links.want([(member, "child") for member in many.members[1:]], 0.0)
    hub = Measuring(many.ids[0], links, tells=True)
    hub.enter(many, 0.0)
    hub.round_ended()
    told = hub.due(2.0)
    assert told is not None
    assert len(told.links) == MOST_LINKS


def test_the_shortest_round_trip_of_late() -> None:
    path = RoundTrip()
    for seconds in (0.03, 0.01, 0.5):
        path.sample(seconds)
    assert path.least == 0.01
    for _ in range(130):
        path.sample(0.04)
    assert path.least == 0.04
