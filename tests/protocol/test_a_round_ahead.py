"""What a neighbour sends of a round that comes later here is thrown away, and asked for again when that begins.

b, under a and over d and e, lacks the end of round 1, which was decided in an earlier view. d's copy of it is under way
when e's comes, and what e brings to round 2 right behind that.
"""

from __future__ import annotations

import pytest
from codes import PAIRS
from transcript import Machine, vector, view

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.streams import digest_of
from edgepeer.topology.view import View
from edgepeer.wire import frames as fr

TOTAL = vector(7, 8)
SMALL = Limits(smallest_segment_bytes=8, first_segment_bytes=8)


def handed_over(b: Machine, peer: str, start: int, end: int, decided: View) -> list[str]:
    """A part of the end of round 1, from a neighbour; the last one has the commit."""
    commit = None
    if end == TOTAL.size:
        contributors = fr.pack_set((1 << decided.size) - 1)
        commit = fr.Commit(
            decided_in=decided.stamp,
            held_in=decided.stamp,
            contributors=contributors,
            weight=5.0,
            exact=True,
            digest=digest_of(TOTAL),
            final=True,
        )
    assert b.node.view is not None
    said = [] if start else b.view_frame(peer, decided)
    frame = fr.Result(
        epoch=b.node.view.stamp, round=1, offset=start, total=TOTAL.size, dtype=TOTAL.dtype.str, commit=commit
    )
    return said + b.frame(peer, frame, TOTAL[start:end])


def between_two(*, coded: bool, known: bool) -> tuple[Machine, View]:
    """b as it waits for the rest of d's copy. `known`: that e stands after round 1."""
    order = "aedbc" if known else "adcbe"
    before = view(1, order, slots=order if coded else "")
    now = view(2, "abcde", slots="abcde" if coded else "", after=before)
    b = Machine("b")
    if coded:
        b.hear(ev.CodeWanted(PAIRS))
    b.join(before, up="a")
    b.join(now, up="a")
    b.level("d", 1)
    b.level("e", 1 if known else 0)
    handed_over(b, "d", 0, 1, before)
    handed_over(b, "e", 0, 2, before)
    return b, before


def asked(b: Machine) -> list[tuple[PeerId, int]]:
    """Whom it has just asked to say again what was thrown away, and after which round it stands."""
    sends = [each for each in b.effects if isinstance(each, fx.Send) and isinstance(each.frame, fr.Sync)]
    return [(each.peer, each.frame.committed) for each in sends if isinstance(each.frame, fr.Sync) and each.frame.again]


@pytest.mark.parametrize("known", [True, False])
def test_a_contribution_that_has_come_too_soon_is_asked_for_again(known: bool) -> None:
    b, before = between_two(coded=False, known=known)
    b.reduce("e", vector(1, 1), "e", number=2)
    handed_over(b, "d", 1, 2, before)
    assert b.node.allreduce.committed == 1
    assert asked(b) == [(PeerId("e"), 1)]


@pytest.mark.parametrize("known", [True, False])
def test_so_is_what_somebody_has_computed_of_a_coded_round(known: bool) -> None:
    b, before = between_two(coded=True, known=known)
    b.progress("e", "e", "....2", PAIRS.name, number=2)
    handed_over(b, "d", 1, 2, before)
    assert b.node.allreduce.committed == 1
    assert asked(b) == [(PeerId("e"), 1)]


def test_nobody_is_asked_who_has_said_nothing_of_it() -> None:
    b, before = between_two(coded=False, known=True)
    handed_over(b, "d", 1, 2, before)
    assert b.node.allreduce.committed == 1
    assert asked(b) == []


def test_the_rest_of_what_was_thrown_away_costs_no_link_and_what_is_said_again_counts() -> None:
    """The first segment has come a moment too soon, the second is still under way as all is asked for again."""
    b, before = between_two(coded=False, known=True)
    b.reduce("e", vector(1), "e", number=2, total=2)
    handed_over(b, "d", 1, 2, before)
    assert b.reduce("e", vector(1), "e", number=2, offset=1, total=2) == []
    b.contribute(1, 1)
    b.reduce("d", vector(1, 1), "d", number=2)
    b.reduce("e", vector(1), "e", number=2, total=2)
    b.sync("a", 1)
    b.reduce("e", vector(1), "e", number=2, offset=1, total=2)
    stream = b.node.allreduce.round.lane.streams[PeerId("e")]
    assert stream.received == 2


def test_a_gap_that_nobody_has_asked_to_fill_costs_the_link() -> None:
    b, before = between_two(coded=False, known=True)
    b.reduce("e", vector(1), "e", number=2, total=2)
    handed_over(b, "d", 1, 2, before)
    b.reduce("e", vector(1), "e", number=2, total=3)
    b.reduce("e", vector(1), "e", number=2, offset=2, total=3)
    assert [each.peer for each in b.effects if isinstance(each, fx.CloseLink)] == [PeerId("e")]


def test_a_result_that_has_begun_to_come_too_soon_is_asked_for_again_though_it_is_not_all_here_before() -> None:
    before = view(1, "pde")
    c = Machine("c").join(view(2, "pcd", fanout=1, after=before), up="dp")
    for peer in "dp":
        c.sync(peer, 1)
        c.view_frame(peer, before)
    assert c.node.view is not None
    epoch, following = c.node.view.stamp, vector(5, 6)
    handed_over(c, "d", 0, 1, before)
    later = fr.Result(epoch=epoch, round=2, offset=0, total=2, dtype=following.dtype.str)
    assert c.node.sink(PeerId("p"), later, following.nbytes) is None
    handed_over(c, "d", 1, 2, before)
    assert c.node.allreduce.committed == 1
    assert asked(c) == [(PeerId("p"), 1)]
    assert c.hear(ev.FrameReceived(PeerId("p"), later, None, following.nbytes, False)) == []


def test_who_is_asked_sends_all_of_it_again_and_only_then() -> None:
    e = Machine("e", limits=SMALL).join(view(2, "abcde"), up="b", committed=0)
    first = e.contribute(1, 2, 3, 4)
    assert e.sync("b", 0) == []
    assert e.node.view is not None
    again = fr.Sync(epoch=e.node.view.stamp, run="", committed=0, again=True)
    assert [line for line in e.frame("b", again) if "reduce" in line] == [line for line in first if "reduce" in line]


def test_with_several_trees_that_the_next_round_is_over_without_a_sum_is_asked_for_as_well() -> None:
    world = view(1, "abcdef", lanes=2)
    f = Machine("f").join(world, up="cd")
    f.contribute(1, 2, 3, 4)
    f.result("c", vector(6, 12), "abcdef", lane=1, whole=4)
    for peer in "dc":
        f.frame(peer, fr.Abort(epoch=world.stamp, round=2, cause="timeout", reason="", over=True))
    f.result("d", vector(18, 24), "abcdef", lane=2, whole=4)
    assert f.node.allreduce.committed == 1
    assert sorted(asked(f)) == [(PeerId("c"), 1), (PeerId("d"), 1)]
