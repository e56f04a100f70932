"""Rounds of a view with three trees of three peers: a, b and c are each the root of one, and leaves of the others."""

from __future__ import annotations

import msgspec
from states import put_to_use, state
from transcript import VIEWS, Machine, vector, view

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.streams import digest_of
from edgepeer.topology.view import Form
from edgepeer.wire import frames as fr

ALL = 0b111


def b(*, up: str = "ac") -> Machine:
    return Machine("b").join(view(1, "abc", lanes=3), up=up)


def part(machine: Machine, source: str, lane: int, value: float, *, final: bool = False) -> list[str]:
    """The sum of a lane's range comes, from its root."""
    return machine.result(source, vector(value), "abc", lane=lane, whole=3, final=final)


def added_up(*, up: str = "ac") -> Machine:
    """b has contributed, and what is to come of the others for its own range is here."""
    it = b(up=up)
    it.contribute(1, 2, 3)
    it.reduce("c", vector(20), "c", lane=2, total=3)
    it.reduce("a", vector(200), "a", lane=2, total=3)
    return it


def test_each_range_goes_to_the_root_of_its_tree() -> None:
    assert b().contribute(1, 2, 3) == ["a <- reduce 1 lane 1 [0:] 1 of 10", "c <- reduce 1 lane 3 [0:] 3 of 10"]


def test_the_root_of_a_range_adds_it_up_and_hands_it_down() -> None:
    it = b()
    it.contribute(1, 2, 3)
    assert it.reduce("c", vector(20), "c", lane=2, total=3) == []
    said = it.reduce("a", vector(200), "a", lane=2, total=3)
    assert said == ["c <- result 1 lane 2 [0:] 222 complete", "a <- result 1 lane 2 [0:] 222 complete"]


def test_who_has_all_ranges_holds_the_result_and_it_counts_when_the_coordinator_says_so() -> None:
    it = added_up()
    assert part(it, "a", 1, 111) == []
    assert part(it, "c", 3, 333) == ["a <- have 1"]
    assert it.decide("a") == ["round 1 = 111 222 333 of abc"]


def test_the_word_that_it_counts_may_come_before_the_last_range() -> None:
    it = added_up()
    part(it, "a", 1, 111)
    assert it.decide("a") == []
    assert part(it, "c", 3, 333) == ["round 1 = 111 222 333 of abc"]


def test_a_neighbour_that_has_committed_says_so_in_the_commit_of_a_range() -> None:
    it = added_up()
    part(it, "c", 3, 333)
    assert part(it, "a", 1, 111, final=True) == ["round 1 = 111 222 333 of abc"]


def test_the_commit_of_all_speaks_of_the_whole() -> None:
    it = added_up()
    part(it, "a", 1, 111)
    part(it, "c", 3, 333)
    it.decide("a")
    (committed,) = [effect for effect in it.effects if isinstance(effect, fx.RoundCommitted)]
    assert committed.digest == digest_of(vector(111, 222, 333))
    assert committed.weight == 3
    assert committed.exact


def test_a_range_that_is_not_what_its_root_says_costs_the_link_and_comes_again() -> None:
    it = added_up()
    part(it, "a", 1, 111)
    world = it.node.view
    assert world is not None
    commit = fr.Commit(
        decided_in=world.stamp, contributors=b"\x07", weight=3.0, exact=True, digest=digest_of(vector(9)), final=False
    )
    frame = fr.Result(epoch=world.stamp, round=1, offset=0, total=3, dtype="<f4", commit=commit, lane=3)
    assert "close c: result of round 1 does not have the root's digest" in it.frame("c", frame, vector(333))
    it.level("c")
    assert part(it, "c", 3, 333) == ["a <- have 1"]
    assert it.decide("a") == ["round 1 = 111 222 333 of abc"]


def test_a_range_of_another_view_is_none() -> None:
    it = added_up()
    assert "close a: result of round 1 was decided in an unknown view" in it.result(
        "a", vector(111), "abc", lane=1, whole=3, final=False, decided_in=7 << 32
    )


def test_only_the_parent_in_its_tree_hands_down_a_range() -> None:
    it = added_up()
    assert part(it, "c", 1, 666) == []
    part(it, "c", 3, 333)
    part(it, "a", 1, 111)
    assert it.decide("a") == ["round 1 = 111 222 333 of abc"]


def test_a_commit_before_the_end_of_a_range_costs_the_link() -> None:
    it = Machine("b").join(view(1, "abc", lanes=3), up="ac")
    it.contribute(1, 2, 3, 4, 5, 6)
    said = it.result("a", vector(111), "abc", lane=1, whole=6, final=False)
    assert "close a: result of round 1 has the commit of lane 1 elsewhere than at its end" in said


def test_what_goes_beyond_a_range_costs_the_link() -> None:
    it = b()
    it.contribute(1, 2, 3)
    said = it.reduce("c", vector(20, 30), "c", lane=2, total=3)
    assert "close c: Reduce at 0 of lane 2, which has 1 elements" in said


def test_a_range_of_no_lane_of_this_peer_is_dropped() -> None:
    it = b()
    it.contribute(1, 2, 3)
    for lane in (0, 1, 3, 4, 16):
        assert it.reduce("c", vector(20), "c", lane=lane, total=3) == []


def test_a_child_that_is_ahead_by_a_round_is_heard() -> None:
    """c has been told that round 1 counts, and has contributed to round 2, before b knows of it."""
    it = added_up()
    part(it, "a", 1, 111)
    assert it.reduce("c", vector(21), "c", number=2, lane=2, total=3) == []
    part(it, "c", 3, 333)
    assert it.decide("a") == ["round 1 = 111 222 333 of abc"]
    it.contribute(4, 5, 6)
    said = it.reduce("a", vector(201), "a", number=2, lane=2, total=3)
    assert said == ["c <- result 2 lane 2 [0:] 227 complete", "a <- result 2 lane 2 [0:] 227 complete"]


def test_nobody_is_ahead_by_two() -> None:
    it = added_up()
    it.reduce("c", vector(21), "c", number=3, lane=2, total=3)
    part(it, "a", 1, 111)
    part(it, "c", 3, 333)
    it.decide("a")
    it.contribute(4, 5, 6)
    assert it.reduce("a", vector(201), "a", number=2, lane=2, total=3) == []


def test_a_child_that_gives_up_the_next_round_is_heard() -> None:
    a = Machine("a").join(view(1, "abc", lanes=3), up="bc")
    a.contribute(1, 2, 3)
    abort = fr.Abort(epoch=1, round=2, cause="timeout", reason="tired", over=False)
    assert a.frame("c", abort) == []
    for child, value in (("b", 10), ("c", 100)):
        a.reduce(child, vector(value), child, lane=1, total=3)
    part(a, "b", 2, 222)
    part(a, "c", 3, 333)
    said = a.have("b")
    assert said[-3:] == [
        "round 1 = 111 222 333 of abc",
        "b <- drop 2: timeout complete",
        "c <- drop 2: timeout complete",
    ]


def test_after_a_reconnect_the_rest_of_each_range_goes_on() -> None:
    it = b(up="c")
    it.contribute(1, 2, 3, 4, 5, 6)
    world = it.node.view
    assert world is not None
    it.hear(ev.LinkUp(PeerId("a"), 1))
    said = it.frame("a", fr.Sync(epoch=1, run="", committed=0, have=(0, 1)))
    assert said == ["a <- reduce 1 lane 1 [1:] 2 of 10"]


def test_who_has_committed_hands_over_its_range_and_its_word_and_no_more() -> None:
    it = added_up()
    part(it, "a", 1, 111)
    part(it, "c", 3, 333)
    it.decide("a")
    it.hear(ev.LinkDown(PeerId("c"), "reset"))
    assert it.level("c") == ["c <- result 1 lane 2 [0:] 222 committed", "c <- decide 1"]


def test_the_coordinator_gives_up_a_round_only_while_it_has_something_left_to_give() -> None:
    a = Machine("a").join(view(1, "abc", lanes=3), up="bc")
    a.contribute(1, 2, 3)
    a.reduce("b", vector(10), "b", lane=1, total=3)
    a.reduce("c", vector(100), "c", lane=1, total=3)  # now somebody may come to hold the sum
    assert a.hear(ev.TimedOut("enough")) == []
    part(a, "b", 2, 222)
    part(a, "c", 3, 333)
    assert a.have("b")[-1] == "round 1 = 111 222 333 of abc"

    early = Machine("a").join(view(1, "abc", lanes=3), up="bc")
    early.contribute(1, 2, 3)
    early.reduce("b", vector(10), "b", lane=1, total=3)
    assert early.hear(ev.TimedOut("enough")) == ["b <- drop 1: timeout complete", "c <- drop 1: timeout complete"]


def test_but_it_gives_it_up_where_somebody_can_not_give_its_part() -> None:
    """What can't be rounded never comes, so nobody will have the sum."""
    a = Machine("a").join(view(1, "abc", lanes=3), up="bc")
    a.contribute(1, 2, 3)
    a.reduce("b", vector(10), "b", lane=1, total=3)
    a.reduce("c", vector(100), "c", lane=1, total=3)
    abort = fr.Abort(epoch=1, round=1, cause="nonfinite", reason="so", over=False)
    assert a.frame("c", abort) == ["b <- drop 1: nonfinite complete", "c <- drop 1: nonfinite complete"]


def test_what_it_has_given_it_has_given_even_if_it_is_to_be_sent_again() -> None:
    """b is a round ahead, and will hand over what has become of this one: until then nothing is sent to it again."""
    a = Machine("a").join(view(1, "abc", lanes=3), up="bc")
    a.contribute(1, 2, 3)
    a.reduce("b", vector(10), "b", lane=1, total=3)
    a.reduce("c", vector(100), "c", lane=1, total=3)
    a.hear(ev.LinkDown(PeerId("b"), "reset"))
    a.level("b", 1)
    assert a.hear(ev.TimedOut("enough")) == []
    assert a.result("b", vector(111, 222, 333), "abc")[-1] == "round 1 = 111 222 333 of abc"


def test_who_holds_something_from_the_view_before_adds_nothing() -> None:
    it = added_up()
    part(it, "a", 1, 111)
    part(it, "c", 3, 333)
    following = view(2, "abc", lanes=3, after=it.node.view)
    said = it.learn(following)
    assert not any("reduce" in line for line in said)
    said = it.sync("a", 0) + it.sync("c", 0)
    assert [line for line in said if "view" not in line] == ["a <- result 1 [0:] 111 222 333 complete"]
    assert it.reduce("c", vector(20), "c", lane=2, total=3) == []
    assert it.reduce("a", vector(200), "a", lane=2, total=3) == []


def test_vectors_of_other_lengths_are_a_mismatch() -> None:
    it = b()
    it.contribute(1, 2, 3)
    assert it.reduce("c", vector(20, 30), "c", lane=2, total=6) == ["a <- abort 1: mismatch"]


def test_a_vector_shorter_than_there_are_trees_leaves_some_without_a_range() -> None:
    it = b()
    assert it.contribute(7) == ["a <- reduce 1 lane 1 [0:]  of 10", "c <- reduce 1 lane 3 [0:] 7 of 10"]
    empty = it.result("a", vector(), "abc", lane=1, whole=1, final=False)
    assert empty == []
    assert it.result("c", vector(777), "abc", lane=3, whole=1, final=False) == ["a <- have 1"]
    assert it.decide("a") == ["round 1 = 777 of abc"]


def test_an_abandoned_contribution_closes_the_links_that_it_may_be_on() -> None:
    it = b()
    it.contribute(1, 2, 3)
    said = it.hear(ev.Abandoned())
    assert [line.split(":")[0] for line in said if line.startswith("close")] == ["close a", "close c"]


def test_a_frame_says_of_which_lane_it_is() -> None:
    it = b()
    it.contribute(1, 2, 3)
    frames = [effect.frame for effect in it.effects if isinstance(effect, fx.Send)]
    assert [msgspec.structs.asdict(f)["lane"] for f in frames if isinstance(f, fr.Reduce)] == [1, 3]


def test_garbage_does_not_end_a_round_that_somebody_may_hold_the_sum_of() -> None:
    a = Machine("a").join(view(1, "abc", lanes=3), up="bc")
    a.contribute(1, 2, 3)
    a.reduce("b", vector(10), "b", lane=1, total=3)
    a.reduce("c", vector(100), "c", lane=1, total=3)
    assert a.reduce("c", vector(1, 2), "c", lane=1, total=6) == []
    part(a, "b", 2, 222)
    part(a, "c", 3, 333)
    assert a.have("b")[-1] == "round 1 = 111 222 333 of abc"


def test_who_hands_over_a_result_that_another_has_sent_may_say_that_it_counts() -> None:
    """What is held from the view before comes to d by the first tree, from b; that it counts it hears from a."""
    before, here = view(1, "abcdef"), view(2, "abcde", lanes=2)
    assert (here.parent(PeerId("d")), here.shortest(PeerId("d"))[0]) == ("b", "a")
    d = Machine("d").join(here, up="ab")
    d.view_frame("b", before)
    assert d.result("b", vector(5), "abcdef", decided_in=before.stamp, of="abcdef", final=False) == []
    d.view_frame("a", before)
    said = d.result("a", vector(5), "abcdef", decided_in=before.stamp, of="abcdef")
    assert [line for line in said if line.startswith("round")] == ["round 1 = 5 of abcdef (not mine)"]


def test_or_before_the_other_one_has_sent_all_of_it() -> None:
    before, here = view(1, "abcdef"), view(2, "abcde", lanes=2)
    d = Machine("d").join(here, up="ab")
    d.view_frame("b", before)
    d.frame("b", fr.Result(epoch=2, round=1, offset=0, total=2, dtype="<f4"), vector(5))
    d.view_frame("a", before)
    d.result("a", vector(5, 6), "abcdef", decided_in=before.stamp, of="abcdef")
    assert d.node.allreduce.committed == 0
    commit = fr.Commit(
        decided_in=before.stamp,
        contributors=b"\x3f",
        weight=6.0,
        exact=True,
        digest=digest_of(vector(5, 6)),
        final=False,
    )
    last = fr.Result(epoch=2, round=1, offset=1, total=2, dtype="<f4", commit=commit)
    assert [line for line in d.frame("b", last, vector(6)) if line.startswith("round")] == [
        "round 1 = 5 6 of abcdef (not mine)"
    ]


def test_but_not_of_another_than_is_held() -> None:
    before, here = view(1, "abcdef"), view(2, "abcde", lanes=2)
    d = Machine("d").join(here, up="ab")
    d.view_frame("b", before)
    d.result("b", vector(5), "abcdef", decided_in=before.stamp, of="abcdef", final=False)
    d.view_frame("a", before)
    d.result("a", vector(6), "abcdef", decided_in=before.stamp, of="abcdef")
    assert d.node.allreduce.committed == 0


def test_a_range_that_has_come_is_not_written_to_any_more() -> None:
    it = added_up()
    part(it, "a", 1, 111)
    part(it, "a", 1, 999)
    part(it, "c", 3, 333)
    assert it.decide("a") == ["round 1 = 111 222 333 of abc"]


def test_no_range_says_that_the_round_is_dropped() -> None:
    it = b()
    it.contribute()
    commit = fr.Commit(
        decided_in=1, held_in=1, contributors=b"", weight=0.0, exact=False, digest=digest_of(vector()), final=True,
        dropped="timeout",
    )  # fmt: skip
    frame = fr.Result(epoch=1, round=1, offset=0, total=0, dtype="<f4", commit=commit, lane=1)
    assert "close a: result of round 1 was decided in an unknown view" in it.frame("a", frame, vector())


def test_what_was_given_to_several_roots_may_have_been_decided_too() -> None:
    """b has given all to every range in view 1, so a may hold the sum of it, and b drops the round before a speaks."""
    b = added_up()
    b.learn(view(2, "bac", after=b.node.view))
    b.level("c")
    assert not any("drop" in line for line in b.hear(ev.TimedOut("enough")))
    early = Machine("b").join(view(1, "abc", lanes=3), up="ac")
    early.contribute(1, 2, 3)
    early.learn(view(2, "bac", after=early.node.view))
    early.level("c")
    assert "c <- drop 1: timeout complete" in early.hear(ev.TimedOut("enough"))


def test_who_holds_something_gives_to_no_root_before_all_below_have_spoken_either() -> None:
    a = Machine("a").join(view(1, "abc", lanes=3), up="bc")
    a.contribute(1, 2, 3)
    a.reduce("b", vector(10), "b", lane=1, total=3)
    a.reduce("c", vector(100), "c", lane=1, total=3)
    part(a, "b", 2, 222)
    part(a, "c", 3, 333)
    following = view(2, "abc", lanes=3, after=a.node.view)
    said = a.learn(following) + a.level("b") + a.level("c")
    assert not any("reduce" in line for line in said)


def test_the_next_round_may_have_been_decided_too_before_whoever_has_come_late_to_the_view() -> None:
    """It has a state of two rounds before the view's first, and hears of the second of these first."""
    world = view(4, "bac", lanes=3, run="r", first_round=5)
    it = Machine("b").join(world, up="ac", committed=2)
    state(it, "a", b"two", number=2)
    put_to_use(it)
    assert it.node.allreduce.committed == 2
    it.reduce("c", vector(20), "c", number=4, lane=1, total=3)
    before = view(3, "abc", run="r", first_round=1)
    it.view_frame("a", before)
    it.result("a", vector(1, 2, 3), "abc", number=3, decided_in=before.stamp, of="abc")
    assert it.node.allreduce.committed == 3
    it.contribute(1, 2, 3)
    assert not any("drop" in line for line in it.hear(ev.TimedOut("enough")))


def test_who_carries_the_word_of_others_says_it_again_over_another_connection_whatever_is_here_by_then() -> None:
    """e need not hold the result before it counts, but d must, whose shortest way to a is over e. Else the round would
    wait until e, which may be slow, has all of it."""
    seven = view(1, "abcdefg")
    form = Form(order=seven.ids, fanout=1, lanes=2, leaves=2)
    VIEWS[2] = seven.successor(first_round=1, form=form)
    e = Machine("e").join(VIEWS[2], up="ad")
    assert e.have("d") == ["a <- have 1"]
    e.hear(ev.LinkDown(PeerId("a"), "reset"))
    assert "a <- have 1" in e.level("a")
