"""Rounds, cell by cell of the tables in allreduce.py and past.py. The tree: a over bc, b over de."""

from __future__ import annotations

import numpy as np
import pytest
from transcript import Machine, vector, view

from edgepeer.errors import ProtocolBug
from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.limits import Limits
from edgepeer.wire import frames as fr

FIVE = view(1, "abcde")


@pytest.fixture
def b() -> Machine:
    """An inner node, with links to all its neighbours."""
    return Machine("b").join(FIVE, up="ade")


@pytest.fixture
def a() -> Machine:
    """The root of three."""
    return Machine("a").join(view(1, "abc"), up="bc")


@pytest.fixture
def c() -> Machine:
    """A leaf."""
    return Machine("c").join(view(1, "abc"), up="a")


# -- up ----------------------------------------------------------------------------------------------------


def test_a_leaf_sends_its_vector_as_it_is(c: Machine) -> None:
    own = vector(1, 2)
    assert c.hear(ev.Contribute(own, 1.0)) == ["a <- reduce 1 [0:] 1 2 of 100"]
    (sent,) = c.effects
    assert isinstance(sent, fx.Send)
    assert np.shares_memory(np.frombuffer(sent.payload or b"", "<f4"), own)


def test_an_inner_node_adds_in_position_order_whoever_comes_first(b: Machine) -> None:
    assert b.reduce("e", vector(1e8), "e") == []
    assert b.contribute(1.0) == []
    # (1 + -1e8) + 1e8 is 0 in float32, 1 + (-1e8 + 1e8) would be 1: own first, then d, then e.
    assert b.reduce("d", vector(-1e8), "d") == ["a <- reduce 1 [0:] 0 of 11010"]


def test_weights_multiply_and_add(b: Machine) -> None:
    b.reduce("d", vector(10, 20), "d", weight=2.0)
    b.reduce("e", vector(1, 1), "e", weight=0.5)
    b.contribute(1, 2, weight=3.0)
    (sent,) = b.effects
    assert isinstance(sent, fx.Send)
    assert isinstance(sent.frame, fr.Reduce)
    assert sent.frame.weight == 5.5
    assert b.said == ["a <- reduce 1 [0:] 14 27 of 11010"]


def test_element_ranges_go_up_as_they_become_complete() -> None:
    limits = Limits(smallest_segment_bytes=8, first_segment_bytes=8)
    b = Machine("b", limits=limits).join(FIVE, up="ade")
    b.contribute(1, 1, 1, 1, 1)
    assert b.reduce("d", vector(1, 1, 1, 1), "d", total=5) == []
    assert b.reduce("e", vector(1, 1, 1), "e", total=5) == ["a <- reduce 1 [0:] 3 3 of 11010"]
    assert b.reduce("e", vector(1, 1), "e", total=5, offset=3) == ["a <- reduce 1 [2:] 3 3 of 11010"]
    assert b.reduce("d", vector(1), "d", total=5, offset=4) == ["a <- reduce 1 [4:] 3 of 11010"]


def test_nothing_goes_up_before_the_parent_is_level() -> None:
    c = Machine("c").join(view(1, "abc"))
    assert c.contribute(1) == []
    c.hear(ev.LinkUp(PeerId("a"), 1))
    assert c.frame("a", fr.Sync(epoch=0, run="", committed=0)) == ["a <- view 1", "a <- sync 1 after 0"]
    assert c.sync("a", 0) == ["a <- reduce 1 [0:] 1 of 100"]
    assert c.sync("a", 0) == []  # said again: nothing is lost on a link, so nothing is sent again


def test_after_a_new_connection_all_is_sent_again(c: Machine) -> None:
    c.contribute(1)
    c.hear(ev.LinkDown(PeerId("a"), "reset"))
    assert c.level("a") == ["a <- reduce 1 [0:] 1 of 100"]


def test_after_a_new_connection_only_the_rest_is_sent_if_the_other_end_says_what_it_has() -> None:
    c = Machine("c", limits=Limits(smallest_segment_bytes=8, first_segment_bytes=8)).join(FIVE, up="a")
    c.contribute(1, 2, 3, 4)
    c.hear(ev.LinkDown(PeerId("a"), "reset"))
    assert c.level("a", have=2) == ["a <- reduce 1 [2:] 3 4 of 100"]
    c.hear(ev.LinkDown(PeerId("a"), "reset"))
    assert c.level("a", have=4) == []  # all of it had come
    c.hear(ev.LinkDown(PeerId("a"), "reset"))
    assert c.level("a") == ["a <- reduce 1 [0:] 1 2 of 100", "a <- reduce 1 [2:] 3 4 of 100"]


def test_what_is_here_of_a_neighbours_part_is_said_when_its_link_comes_up(b: Machine) -> None:
    def have(peer: str) -> list[tuple[int, ...]]:
        b.hear(ev.LinkDown(PeerId(peer), "reset"))
        b.hear(ev.LinkUp(PeerId(peer), 1))
        syncs = [effect.frame for effect in b.effects if isinstance(effect, fx.Send) and effect.peer == peer]
        return [frame.have for frame in syncs if isinstance(frame, fr.Sync)]

    assert (have("d"), have("a")) == ([()], [()])
    b.reduce("d", vector(1, 2), "d", total=5)
    b.level("a")
    b.frame("a", fr.Result(epoch=1, round=1, offset=0, total=5, dtype="<f4"), vector(1, 2, 3))
    assert (have("d"), have("e"), have("a")) == ([(2,)], [()], [(3,)])


@pytest.mark.parametrize(
    ("have", "sent"),
    [
        (0, ["d <- result 1 [0:] 1 2 3 committed"]),
        (2, ["d <- result 1 [2:] 3 committed"]),
        (3, ["d <- decide 1"]),
        (9, ["d <- decide 1"]),  # more than there is: it says later what it lacks
    ],
)
def test_a_child_that_missed_the_end_gets_what_it_lacks_of_it(b: Machine, have: int, sent: list[str]) -> None:
    b.hear(ev.LinkDown(PeerId("d"), "reset"))
    b.result("a", vector(1, 2, 3), "abcde")
    assert [line for line in b.level("d", have=have) if "sync" not in line] == sent


def test_a_vector_of_nothing_goes_up_and_down(b: Machine) -> None:
    b.contribute()
    b.reduce("d", vector(), "d")
    assert b.reduce("e", vector(), "e") == ["a <- reduce 1 [0:]  of 11010"]
    assert b.result("a", vector(), "abcde") == [
        "d <- result 1 [0:]  committed",
        "e <- result 1 [0:]  committed",
        "d <- decide 1",
        "e <- decide 1",
        "round 1 =  of abcde",
    ]


# -- what is dropped ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "epoch"), [(0, 1), (2, 1), (1, 2), (1, 0)])
def test_frames_of_another_round_or_epoch_have_no_sink_and_no_effect(b: Machine, number: int, epoch: int) -> None:
    b.contribute(1)
    assert b.reduce("d", vector(5), "d", number=number, epoch=epoch) == []
    assert b.reduce("d", vector(7), "d") == []
    assert b.reduce("e", vector(0), "e") == ["a <- reduce 1 [0:] 8 of 11010"]


def test_who_is_no_child_is_not_added(b: Machine) -> None:
    b.contribute(1)
    assert b.reduce("a", vector(5), "c") == []
    assert b.reduce("x", vector(5), "c") == []


@pytest.mark.parametrize("who", ["e", "b", "c", "ad", ""])
def test_a_child_may_only_speak_for_its_subtree(b: Machine, who: str) -> None:
    assert b.reduce("d", vector(5), who)[0].startswith("close d: Reduce for")


def test_contributors_may_not_change_within_a_round() -> None:
    b = Machine("b").join(view(1, "abcdefghi"), up="ade")  # d is over h and i
    b.reduce("d", vector(5), "dhi", total=2)
    assert b.reduce("d", vector(5), "dh", total=2, offset=1)[0].startswith("close d: Reduce for")


def test_a_gap_costs_the_link(b: Machine) -> None:
    b.reduce("d", vector(5), "d", total=9)
    assert b.reduce("d", vector(5), "d", total=9, offset=3)[0].startswith("close d: Reduce at 3, only 1")


def test_a_repeated_segment_is_not_added_twice(b: Machine) -> None:
    b.contribute(1)
    b.reduce("d", vector(5), "d")
    assert b.reduce("d", vector(5), "d") == []
    assert b.reduce("e", vector(1), "e") == ["a <- reduce 1 [0:] 7 of 11010"]


def test_a_vector_larger_than_allowed_is_not_made_room_for() -> None:
    b = Machine("b", limits=Limits(max_vector_bytes=100)).join(FIVE, up="ade")
    frame = fr.Reduce(epoch=1, round=1, offset=0, total=26, dtype="<f4", contributors=b"\x08", weight=1.0)
    assert b.node.sink(PeerId("d"), frame, 104) is None
    assert b.frame("d", frame, vector(*[1.0] * 26)) == ["a <- abort 1: mismatch"]


# -- down --------------------------------------------------------------------------------------------------


def test_the_root_adds_up_when_all_have_come_and_commits_when_enough_hold_it(a: Machine) -> None:
    a.contribute(1, 2)
    a.reduce("b", vector(10, 20), "b")
    assert a.reduce("c", vector(100, 200), "c") == [
        "b <- result 1 [0:] 111 222 complete",
        "c <- result 1 [0:] 111 222 complete",
    ]
    assert a.have("b") == ["b <- decide 1", "c <- decide 1", "round 1 = 111 222 of abc"]


def test_segments_go_down_but_the_last_waits_for_the_commit() -> None:
    limits = Limits(smallest_segment_bytes=8, first_segment_bytes=8)
    a = Machine("a", limits=limits).join(view(1, "ab"), up="b")
    a.contribute(1, 1, 1, 1)
    assert a.reduce("b", vector(1, 1, 1), "b", total=4) == ["b <- result 1 [0:] 2 2"]
    assert a.reduce("b", vector(1), "b", total=4, offset=3) == [
        "b <- result 1 [2:] 2 2 complete",
        "b <- decide 1",
        "round 1 = 2 2 2 2 of ab",
    ]


def test_a_single_peer_commits_by_itself() -> None:
    alone = Machine("a").join(view(1, "a"))
    assert alone.contribute(1, 2, weight=2.0) == ["round 1 = 2 4 of a"]
    assert alone.contribute(5) == ["round 2 = 5 of a"]


def test_the_sum_is_read_only_and_not_the_contribution() -> None:
    alone = Machine("a").join(view(1, "a"))
    own = vector(1, 2)
    alone.hear(ev.Contribute(own, 1.0))
    (committed,) = alone.effects
    assert isinstance(committed, fx.RoundCommitted)
    assert not committed.sum.flags.writeable
    assert not np.shares_memory(committed.sum, own)


def test_a_result_without_the_roots_digest_is_refused(b: Machine) -> None:
    b.contribute(1)
    commit = fr.Commit(decided_in=1, contributors=b"\x1f", weight=5.0, exact=True, digest=bytes(16))
    frame = fr.Result(epoch=1, round=1, offset=0, total=1, dtype="<f4", commit=commit)
    said = b.frame("a", frame, vector(5))
    assert "close a: result of round 1 does not have the root's digest" in said
    assert not any(line.startswith("round") for line in said)
    b.level("a")
    assert b.result("a", vector(5), "abcde")[-1] == "round 1 = 5 of abcde"


def test_one_contribution_a_round(c: Machine) -> None:
    c.contribute(1)
    with pytest.raises(ProtocolBug, match="two contributions"):
        c.contribute(1)


def test_only_one_source_writes_a_result(b: Machine) -> None:
    """The parent has begun; what a child hands over meanwhile is not stored, unless the parent's link breaks."""
    b.contribute(1, 1)
    half = fr.Result(epoch=1, round=1, offset=0, total=2, dtype="<f4")
    assert b.frame("a", half, vector(7)) == []
    assert b.result("d", vector(7, 7), "abcde") == []
    b.hear(ev.LinkDown(PeerId("a"), "gone"))
    assert b.result("d", vector(7, 7), "abcde")[-1] == "round 1 = 7 7 of abcde"


# -- rounds that come to nothing ---------------------------------------------------------------------------


def test_a_child_that_brings_another_size(b: Machine) -> None:
    b.contribute(1, 2)
    assert b.reduce("d", vector(1, 2, 3), "d") == ["a <- abort 1: mismatch"]
    assert b.frame("a", fr.Abort(epoch=1, round=1, cause="mismatch", reason="so", over=True)) == [
        "d <- abort 1: mismatch",
        "e <- abort 1: mismatch",
        "round 1 aborted: mismatch",
    ]
    assert b.contribute(1) == []


def test_one_that_contributes_another_size_than_below(b: Machine) -> None:
    b.reduce("d", vector(1, 2, 3), "d")
    assert b.contribute(1, 2) == ["a <- abort 1: mismatch"]


def test_another_dtype_is_a_mismatch_too(b: Machine) -> None:
    b.contribute(1)
    assert b.reduce("d", vector(1, dtype="<f8"), "d") == ["a <- abort 1: mismatch"]


def test_the_root_ends_it_for_all(a: Machine) -> None:
    a.contribute(1)
    assert a.frame("b", fr.Abort(epoch=1, round=1, cause="timeout", reason="b waits", over=False)) == [
        "b <- drop 1: timeout complete",
        "c <- drop 1: timeout complete",
    ]
    a.have("c")
    assert a.have("b") == ["b <- abort 1: timeout", "c <- abort 1: timeout", "round 1 aborted: timeout"]


def test_a_new_root_takes_the_old_ones_word_from_a_child() -> None:
    b = Machine("b").join(view(1, "abc"), up="a")
    b.contribute(1)  # all of it has gone to a: b could not decide by itself that the round is dropped
    b.learn(view(2, "bc"))
    b.hear(ev.LinkUp(PeerId("c"), 1))
    b.sync("c", 1)
    verdict = fr.Abort(epoch=2, round=1, cause="timeout", reason="a gave up", over=True)
    closed = "close a: a is out of the view, and what it was sent is over"
    assert b.frame("c", verdict) == ["round 1 aborted: timeout", closed]


def test_an_abort_that_could_not_be_sent_is_sent_when_the_link_is_back(c: Machine) -> None:
    c.contribute(1)
    c.hear(ev.LinkDown(PeerId("a"), "gone"))
    assert c.hear(ev.TimedOut("too long")) == []
    assert c.level("a") == ["a <- abort 1: timeout", "a <- reduce 1 [0:] 1 of 100"]
    assert c.sync("a", 0) == []


def test_a_new_root_does_not_drop_what_the_old_one_may_have_committed() -> None:
    """b had sent all it had to a, and a is gone: c may have a's result."""
    b = Machine("b").join(view(1, "abc"), up="a")
    b.contribute(1)
    b.hear(ev.TimedOut("too long"))
    b.learn(view(2, "bc"))
    assert b.node.allreduce.committed == 0
    b.hear(ev.LinkUp(PeerId("c"), 1))
    b.sync("c", 1)
    b.view_frame("c", view(1, "abc"))
    assert b.result("c", vector(3), "abc", decided_in=1, of="abc")[-1] == "round 1 = 3 of abc"


def test_a_new_root_that_had_not_sent_all_may_drop_the_round() -> None:
    b = Machine("b").join(FIVE, up="ade")
    b.contribute(1)
    b.learn(view(2, "bdce"))
    b.sync("d", 0)
    assert b.hear(ev.TimedOut("too long")) == ["d <- drop 1: timeout complete"]
    assert b.have("d") == ["d <- abort 1: timeout", "round 1 aborted: timeout"]


def test_who_has_not_contributed_yet_is_answered_when_it_does(c: Machine) -> None:
    abort = fr.Abort(epoch=1, round=1, cause="timeout", reason="others gave up", over=True)
    assert c.frame("a", abort) == ["round 1 aborted: timeout (not mine)"]
    assert c.contribute(1) == ["round 1 aborted: timeout"]
    assert c.contribute(2) == ["a <- reduce 2 [0:] 2 of 100"]


def test_who_does_not_answer_for_long_falls_behind_instead_of_owing_for_ever(c: Machine) -> None:
    for number in range(1, 18):
        c.frame("a", fr.Abort(epoch=1, round=number, cause="timeout", reason="again", over=True))
    assert c.said == ["round 17 aborted: timeout (not mine)", "behind: 17"]
    assert c.contribute(1) == ["a <- reduce 18 [0:] 1 of 100"]


def test_timing_out_without_a_contribution_means_nothing(c: Machine) -> None:
    assert c.hear(ev.TimedOut("never mind")) == []


# -- new views ---------------------------------------------------------------------------------------------


def test_a_round_that_a_new_view_cuts_short_starts_again(c: Machine) -> None:
    c.contribute(1, 2)
    c.learn(view(2, "ac"))
    assert c.sync("a", 0) == ["a <- reduce 1 [0:] 1 2 of 10"]


def test_children_of_an_earlier_view_do_not_count(b: Machine) -> None:
    b.contribute(1)
    b.reduce("d", vector(10), "d")
    b.learn(view(2, "abcde"))
    for name in "ade":
        b.sync(name, 0)
    assert b.reduce("e", vector(100), "e") == []
    assert b.reduce("d", vector(10), "d") == ["a <- reduce 1 [0:] 111 of 11010"]


def test_a_round_without_one_that_was_there_at_its_beginning_is_not_exact() -> None:
    a = Machine("a").join(view(1, "abc"), up="bc")
    a.contribute(1)
    a.learn(view(2, "ab"))
    a.sync("b", 0)
    assert a.reduce("b", vector(1), "b")[-1] == "round 1 = 2 of ab inexact"
    a.contribute(1)
    assert a.reduce("b", vector(1), "b", number=2)[-1] == "round 2 = 2 of ab"


def test_a_neighbour_that_missed_the_end_is_handed_it_with_its_view(c: Machine) -> None:
    c.contribute(1)
    c.result("a", vector(6), "abc")
    c.learn(view(2, "bca"))
    c.hear(ev.LinkUp(PeerId("b"), 1))
    assert c.sync("b", 0) == ["b <- view 1", "b <- result 1 [0:] 6 committed"]
    assert c.contribute(2) == ["b <- reduce 2 [0:] 2 of 10"]


def test_what_is_handed_over_is_committed_under_the_names_of_its_own_view() -> None:
    b = Machine("b").join(view(2, "bx", first_round=1), up="x")
    b.contribute(5)
    b.view_frame("x", view(1, "xyz"))
    assert b.result("x", vector(9), "xy", decided_in=1, of="xyz") == ["round 1 = 9 of xy"]


def test_a_stale_view_from_a_hand_over_that_was_not_needed_does_not_stick() -> None:
    b = Machine("b").join(view(2, "xbc", fanout=1), up="xc")
    for _ in range(2):  # handed over twice: the second time it is old news
        b.view_frame("x", view(1, "xyb"))
        b.result("x", vector(9), "xyb", decided_in=1, of="xyb")
    b.sync("c", 1)
    b.contribute(1)
    assert b.result("x", vector(7), "xbc", number=2)[-1] == "round 2 = 7 of xbc"


def test_a_commit_from_a_view_that_was_never_told_costs_the_link(b: Machine) -> None:
    b.contribute(1)
    said = b.result("a", vector(7), "abcde", decided_in=9)
    assert said == ["close a: result of round 1 was decided in an unknown view"]


def test_who_is_handed_a_result_tells_the_others_that_are_ahead() -> None:
    b = Machine("b").join(FIVE, up="ade")
    b.contribute(1)
    b.sync("e", 1)  # e has it already, and waits for b to get there
    said = b.result("a", vector(5), "abcde")
    assert "e <- sync 1 after 1" in said
    assert "d <- result 1 [0:] 5 committed" in said


def test_a_neighbour_whose_sync_crosses_a_commit_hears_of_it() -> None:
    """The link came up before the round's end here, the neighbour's Sync arrived after it."""
    b = Machine("b").join(FIVE, up="ad")
    b.hear(ev.LinkUp(PeerId("e"), 1))
    assert b.said == ["e <- sync 1 after 0"]
    b.result("a", vector(5), "abcde")
    assert b.sync("e", 1) == ["e <- sync 1 after 1"]


def test_without_a_run_who_is_far_behind_jumps() -> None:
    c = Machine("c").join(view(1, "abc"))
    c.contribute(1)
    assert c.level("a", committed=4) == ["round 1 aborted: run", "behind: 3", "a <- sync 1 after 3"]


def test_two_kept_results_are_handed_over_in_order() -> None:
    c = Machine("c", limits=Limits(kept_results=2)).join(view(1, "abc"), up="a")
    for number in (1, 2):
        c.contribute(1)
        c.result("a", vector(number), "abc", number=number)
    c.learn(view(2, "bca"))
    c.hear(ev.LinkUp(PeerId("b"), 1))
    assert c.sync("b", 0) == [
        "b <- view 1", "b <- result 1 [0:] 1 committed",
        "b <- view 1", "b <- result 2 [0:] 2 committed",
    ]  # fmt: skip


def test_buffers_are_used_again_only_for_the_round_after(b: Machine) -> None:
    memories = []
    for number in (1, 2, 3):
        b.contribute(1)
        b.reduce("d", vector(1), "d", number=number)
        b.reduce("e", vector(1), "e", number=number)
        (sent,) = b.effects
        assert isinstance(sent, fx.Send)
        memories.append(np.frombuffer(sent.payload or b"", "<f4"))
        b.result("a", vector(5), "abcde", number=number)
    assert np.shares_memory(memories[1], memories[2])
    b.contribute(1)
    b.learn(view(2, "abcde"))  # frames of the old epoch may still be under way
    for name in "ade":
        b.sync(name, 3)
    b.reduce("d", vector(1), "d", number=4)
    b.reduce("e", vector(1), "e", number=4)
    (sent,) = b.effects
    assert isinstance(sent, fx.Send)
    assert not np.shares_memory(np.frombuffer(sent.payload or b"", "<f4"), memories[2])


def test_without_a_run_a_member_does_not_jump_over_a_round_that_it_has_not_seen_the_end_of(c: Machine) -> None:
    """It would have nothing to hand over to a neighbour below that waits for just that."""
    c.learn(view(2, "abc", first_round=2))
    c.hear(ev.LinkUp(PeerId("a"), 1))
    assert c.said == ["a <- sync 2 after 0"]
    assert c.frame("a", fr.Abort(epoch=2, round=1, cause="timeout", reason="over", over=True)) == []  # not level yet
    c.sync("a", 1)
    assert c.frame("a", fr.Abort(epoch=2, round=1, cause="timeout", reason="over", over=True)) == [
        "round 1 aborted: timeout (not mine)"
    ]


def test_without_a_run_a_joiner_begins_with_the_views_round(c: Machine) -> None:
    late = Machine("c").join(view(4, "abc", first_round=9), up="a", committed=8)
    assert late.contribute(1) == ["a <- reduce 9 [0:] 1 of 100"]


def test_who_waits_below_one_that_joined_after_the_round_gives_it_up() -> None:
    c = Machine("c").join(view(1, "abc"))
    c.contribute(1)
    assert c.level("a", committed=1) == []  # a is one ahead, and should hand over
    said = []
    for half in range(1, 13):
        c.frame("a", fr.Ping(waiting=False))
        said += c.until(half / 2)
    assert [line for line in said if "behind" in line] == ["5.05: behind: 1"]


def test_a_leaf_sends_its_vector_weighted() -> None:
    d = Machine("d").join(view(1, "abcde"), up="b")
    assert d.hear(ev.Contribute(vector(3), 2.0)) == ["b <- reduce 1 [0:] 6 of 1000"]
    nothing = Machine("d").join(view(1, "abcde"), up="b")
    assert nothing.hear(ev.Contribute(vector(float("nan")), 0.0)) == ["b <- reduce 1 [0:] 0 of 1000"]


def test_what_was_asked_for_in_vain_is_asked_for_again_over_a_new_link() -> None:
    b = Machine("b").join(view(1, "abc"), up="a")
    b.contribute(1)
    assert b.hear(ev.TimedOut("enough")) == ["a <- abort 1: timeout"]
    b.hear(ev.LinkDown(PeerId("a"), "reset"))
    assert "a <- abort 1: timeout" in b.level("a")


def test_that_no_sum_can_come_is_news_where_somebody_has_waited_too_long() -> None:
    b = Machine("b").join(view(1, "abcde"), up="ade")
    b.contribute(1)
    assert b.hear(ev.TimedOut("enough")) == ["a <- abort 1: timeout"]
    assert b.reduce("d", vector(1, 2), "d") == ["a <- abort 1: mismatch"]
