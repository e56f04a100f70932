"""The state of a run: who asks whom, what comes too late, and where a run begins."""

from __future__ import annotations

import pytest
from states import RUN, at_seven, put_to_use, state
from transcript import Machine, letter_to, member, vector, view, when

from edgepeer.ids import Generation, Lineage, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.limits import Limits
from edgepeer.topology.view import View
from edgepeer.wire import frames as fr
from edgepeer.wire.documents import pack

WINDOW = Limits().state_window_bytes
A, D = PeerId("a"), PeerId("d")


def asked_by_c(b: Machine, before: View) -> tuple[int, bool]:
    """What b votes when a is lost, and c, in the view that follows, asks."""
    b.hear(ev.LinkDown(A, "reset"))
    following = view(2, "cb", run="r", first_round=8, after=before)
    b.learn(following)
    b.hear(ev.LinkUp(PeerId("c"), 1))
    b.frame("c", fr.Poll(epoch=following.stamp, candidate="c", number=1))
    return vote_of(b)


def test_a_joiner_asks_for_the_state_loads_it_and_goes_on() -> None:
    b = Machine("b").join(RUN)
    assert b.level("a", committed=7) == ["a <- state of r?"]
    assert state(b, "a", b"sta", number=7, total=5) == ["a <- state 7 [3:]?"]
    assert state(b, "a", b"te", number=7, offset=3, total=5) == ["state of r after 7: state"]
    assert b.hear(ev.Adopted("r", 7)) == ["a <- sync 3 r after 7"]
    b.hear(ev.Contribute(vector(1), 1.0))
    for name in "de":
        b.level(name, committed=7)
        b.reduce(name, vector(1), name, number=8)
    assert b.said == ["a <- reduce 8 [0:] 3 of 11010"]


def test_a_state_may_be_empty() -> None:
    """A program that needs none gives none: it has come all the same, or who joins would wait for ever."""
    a = Machine("a").join(view(1, "ab", run="r"))
    a.level("b", committed=-1)
    a.frame("b", fr.StateRequest(run="r"))
    assert a.hear(ev.StateReady(PeerId("b"), "r", 0, b"")) == ["b <- state 0 [0:] "]
    b = Machine("b").join(RUN)
    assert b.level("a", committed=7) == ["a <- state of r?"]
    assert state(b, "a", b"", number=7) == ["state of r after 7: "]
    assert b.hear(ev.Adopted("r", 7)) == ["a <- sync 3 r after 7"]


def test_while_the_state_is_being_loaded_no_round_ends() -> None:
    b = Machine("b").join(RUN)
    b.level("a", committed=7)
    state(b, "a", b"state", number=7)
    assert b.result("a", vector(1), "abcde", number=8) == []
    assert b.node.allreduce.committed == -1


def test_a_state_that_is_overtaken_by_hand_overs_is_thrown_away() -> None:
    b = at_seven("b", RUN)
    b.hear(ev.LinkDown(A, "reset"))
    assert b.level("a", committed=9) == ["a <- state of r?"]
    b.result("a", vector(8), "abcde", number=8)
    b.result("a", vector(9), "abcde", number=9)
    assert state(b, "a", b"nine", number=9) == []
    assert b.node.allreduce.committed == 9


def test_one_round_behind_it_waits_to_be_handed_over_and_asks_only_if_nothing_comes() -> None:
    b = Machine("b").join(RUN)
    b.tick(0.0)
    b.level("a", committed=7)
    state(b, "a", b"seven", number=7)
    b.hear(ev.Adopted("r", 7))
    assert b.sync("a", 8) == []
    assert when(b.until(0.5), "a <- state of r?") < 0.5


def test_a_neighbour_that_does_not_deliver_is_passed_over() -> None:
    b = Machine("b", limits=Limits(silence_s=60.0)).join(RUN)
    b.level("a", committed=7)
    assert b.level("d", committed=7) == []
    said = [line for line in b.until(42.0) if "state of r?" in line]
    assert [line.split(": ")[1] for line in said] == ["d <- state of r?", "a <- state of r?", "d <- state of r?"]
    assert [float(line.split(": ")[0]) for line in said] == pytest.approx([5, 35, 40], abs=1)


def test_a_neighbour_that_takes_its_time_is_not_asked_in_vain() -> None:
    """As where the owner computes for longer than others are waited for: each in turn would come too late."""
    b = Machine("b", limits=Limits(silence_s=60.0)).join(RUN)
    b.level("a", committed=7)
    b.level("d", committed=7)
    assert when(b.until(7.0), "d <- state of r?") < 7
    assert state(b, "a", b"sta", number=7, total=5) == ["a <- state 7 [3:]?"]
    assert state(b, "d", b"other", number=7) == []  # one at a time
    assert state(b, "a", b"te", number=7, offset=3, total=5) == ["state of r after 7: state"]


def test_of_two_who_deliver_the_one_that_goes_on_counts() -> None:
    b = Machine("b", limits=Limits(silence_s=60.0)).join(RUN)
    b.level("a", committed=7)
    b.level("d", committed=7)
    state(b, "a", b"sta", number=7, total=5)
    assert when(b.until(7.0), "d <- state of r?") < 7
    assert state(b, "d", b"oth", number=7, total=5) == ["d <- state 7 [3:]?"]
    assert state(b, "a", b"te", number=7, offset=3, total=5) == []
    assert state(b, "d", b"er", number=7, offset=3, total=5) == ["state of r after 7: other"]


def test_a_piece_that_is_long_on_its_way_counts() -> None:
    """The first one may take longer than the patience of whoever asked."""
    b = Machine("b", limits=Limits(silence_s=60.0)).join(RUN)
    b.level("a", committed=7)
    piece = fr.State(run="r", round=7, offset=0, total=5)
    sink = b.node.sink(A, piece, 3)
    assert sink is not None
    assert not any("state of r?" in line for line in b.until(8.0))
    sink[:] = b"sta"
    assert b.hear(ev.FrameReceived(A, piece, None, 3, True, 8.0)) == ["a <- state 7 [3:]?"]
    assert state(b, "a", b"te", number=7, offset=3, total=5) == ["state of r after 7: state"]


@pytest.mark.parametrize("source", ["a", "d"])
def test_who_still_delivers_is_not_asked_again(source: str) -> None:
    """Over a slow line a piece takes longer than the patience of whoever asked: it would come once more behind the
    first, and all that comes next behind that. So would what is thrown away, since another one delivers."""
    b = Machine("b", limits=Limits(silence_s=600.0)).join(RUN)
    for name in dict.fromkeys(("a", source)):
        b.level(name, committed=7)
    said: list[str] = []
    for at in range(20):
        said += b.until(6.0 * (at + 1))
        state(b, "a", b"ab", number=7, offset=2 * at, total=99)
        if source == "d":
            assert state(b, "d", b"cd", number=7, offset=2 * at, total=99) == []
    asked = [line.split(": ")[1] for line in said if "state of r?" in line]
    assert asked == ([] if source == "a" else ["d <- state of r?"])


def test_who_delivers_slowly_is_left_to_it_once_it_is_known_how_long_a_piece_takes() -> None:
    """Others that could give one were asked in every piece, took over, and began with the first: none ever came to the
    end of it."""
    b = Machine("b", limits=Limits(silence_s=600.0)).join(RUN)
    b.level("a", committed=7)
    b.level("d", committed=7)
    said: list[str] = []
    for number in range(20):
        piece = fr.State(run="r", round=7, offset=2 * number, total=99)
        sink = b.node.sink(A, piece, 2)
        assert sink is not None
        sink[:] = b"ab"
        said += b.until(8.0 * (number + 1))
        b.hear(ev.FrameReceived(A, piece, None, 2, True, 8.0))
    assert [line.split(": ")[1] for line in said if "state of r?" in line] == ["d <- state of r?"]
    said = b.until(b.now + 40.0)  # nothing comes any more
    assert [line.split(": ")[1] for line in said if "state of r?" in line][:1] == ["d <- state of r?"]


def test_a_lost_neighbour_is_replaced_at_once() -> None:
    b = Machine("b").join(RUN)
    b.level("a", committed=7)
    b.level("d", committed=7)
    b.hear(ev.LinkDown(A, "reset"), 0.1)
    assert any(line.endswith("d <- state of r?") for line in b.until(0.6))


def test_and_by_one_whose_state_was_thrown_away_beside_its_own() -> None:
    b = Machine("b", limits=Limits(silence_s=60.0)).join(RUN)
    b.level("a", committed=7)
    b.level("d", committed=7)
    assert when(b.until(7.0), "d <- state of r?") < 7
    state(b, "a", b"sta", number=7, total=5)
    assert state(b, "d", b"other", number=7) == []
    b.hear(ev.LinkDown(A, "reset"), 7.0)
    assert when(b.until(20.0), "d <- state of r?") < 13
    assert state(b, "d", b"other", number=7) == ["state of r after 7: other"]


def sent_to(b: Machine, peer: str) -> int:
    """How much of a state is sent to it with that."""
    pieces = [e for e in b.effects if isinstance(e, fx.Send) and isinstance(e.frame, fr.State) and e.peer == peer]
    return sum(len(piece.payload or b"") for piece in pieces)


def sent_to_d(b: Machine) -> int:
    return sent_to(b, "d")


def giving(size: int) -> Machine:
    """One that is asked by d for a state of that size, after round 7."""
    b = at_seven("b", RUN)
    b.level("d", committed=-1)
    b.frame("d", fr.StateRequest(run="r"))
    b.hear(ev.StateReady(D, "r", 7, bytes(size)))
    return b


def test_of_a_large_state_no_more_is_on_its_way_than_has_room_there() -> None:
    """The broker takes only so much at a time: what is larger would never get through it, and all would wait."""
    b = giving(2 * WINDOW + 1)
    assert sent_to_d(b) == WINDOW
    for at in (1, 2):
        b.frame("d", fr.StateRequest(run="r", round=7, received=at * WINDOW // 2))
        assert sent_to_d(b) == WINDOW // 2
    b.frame("d", fr.StateRequest(run="r", round=6, received=2 * WINDOW))  # of another
    assert sent_to_d(b) == 0
    b.frame("d", fr.StateRequest(run="r", round=7, received=2 * WINDOW))
    assert sent_to_d(b) == 1


def test_several_who_take_one_at_once_share_what_is_on_its_way() -> None:
    """Five of them would be given more than the broker takes at a time; theirs would all break, again and again."""
    b = giving(3 * WINDOW)
    assert sent_to_d(b) == WINDOW
    b.level("e", committed=-1)
    b.frame("e", fr.StateRequest(run="r"))
    b.hear(ev.StateReady(PeerId("e"), "r", 7, bytes(3 * WINDOW)))
    assert sent_to(b, "e") == WINDOW // 2
    b.frame("d", fr.StateRequest(run="r", round=7, received=WINDOW // 2))
    assert sent_to_d(b) == 0
    b.frame("d", fr.StateRequest(run="r", round=7, received=WINDOW))
    assert sent_to_d(b) == WINDOW // 2
    b.hear(ev.LinkDown(PeerId("e"), "reset"))
    b.frame("d", fr.StateRequest(run="r", round=7, received=3 * WINDOW // 2))
    assert sent_to_d(b) == WINDOW


@pytest.mark.parametrize("size", [2 * WINDOW, WINDOW])
def test_of_very_many_each_has_some_and_all_come_to_no_more_than_the_broker_takes(size: int) -> None:
    """In whatever order they come, before anything has arrived anywhere."""
    others = "bcdefghijklmnopqrstuvwxyz"
    a = Machine("a").join(view(1, "a" + others, fanout=25, run="r"))
    for name in others:
        a.level(name, committed=-1)
    sent = 0
    for name in others:
        a.frame(name, fr.StateRequest(run="r"))
        a.hear(ev.StateReady(PeerId(name), "r", 0, bytes(size)))
        assert sent_to(a, name) > 0
        sent += sent_to(a, name)
    assert sent <= 8 << 20  # `fabric/relay.py`


def test_who_takes_one_says_how_much_has_come() -> None:
    b = Machine("b").join(RUN)
    b.level("a", committed=7)
    assert state(b, "a", bytes(4), number=7, total=11) == ["a <- state 7 [4:]?"]
    assert state(b, "a", bytes(6), number=7, offset=4, total=11) == ["a <- state 7 [10:]?"]
    assert len(state(b, "a", bytes(1), number=7, offset=10, total=11)) == 1  # that is all


def test_who_stands_there_itself_is_given_all_of_one_for_its_owner() -> None:
    """That it says so again does not end what it has asked for. Then it has a share no more."""
    b = at_seven("b", RUN)
    for name in "de":
        b.level(name, committed=7)
    b.frame("d", fr.StateRequest(run="r"))
    b.hear(ev.StateReady(D, "r", 7, bytes(WINDOW + 1)))
    assert sent_to_d(b) == WINDOW
    b.sync("d", 7)
    b.frame("d", fr.StateRequest(run="r", round=7, received=WINDOW // 2))
    assert sent_to_d(b) == 1
    b.frame("e", fr.StateRequest(run="r"))
    b.hear(ev.StateReady(PeerId("e"), "r", 7, bytes(WINDOW)))
    assert sent_to(b, "e") == WINDOW


@pytest.mark.parametrize("why", ["lost", "has it", "anew"])
def test_the_rest_is_kept_for_nobody_who_needs_it_no_more(why: str) -> None:
    b = giving(2 * WINDOW)
    if why == "lost":
        b.hear(ev.LinkDown(D, "reset"))
        b.hear(ev.LinkUp(D, 1))
    elif why == "has it":
        b.sync("d", 7)
    else:
        b.learn(view(4, "abcde", run="other", after=RUN))
    b.frame("d", fr.StateRequest(run="r", round=7, received=WINDOW))
    assert sent_to_d(b) == 0


def test_pieces_that_nobody_asked_for_or_that_do_not_follow_are_thrown_away() -> None:
    b = Machine("b", limits=Limits(max_state_bytes=100)).join(RUN)
    b.level("d", committed=-1)
    b.level("a", committed=7)
    frame = fr.State(run="r", round=7, offset=0, total=10)
    assert b.node.sink(D, frame, 5) is None  # not the one who was asked
    assert b.node.sink(A, fr.State(run="other", round=7, offset=0, total=10), 5) is None
    assert b.node.sink(A, fr.State(run="r", round=7, offset=0, total=101), 5) is None
    assert b.node.sink(A, fr.State(run="r", round=7, offset=5, total=10), 5) is None
    state(b, "a", b"01234", number=7, total=10)
    assert b.node.sink(A, fr.State(run="r", round=7, offset=6, total=10), 4) is None
    assert b.node.sink(A, fr.State(run="r", round=8, offset=5, total=10), 5) is None
    assert state(b, "a", b"56789", number=7, offset=5, total=10) == ["state of r after 7: 0123456789"]


def test_a_state_is_given_in_pieces_and_to_each_only_once_at_a_time() -> None:
    a = Machine("a", limits=Limits(state_segment_bytes=4)).join(view(1, "ab", run="r"))
    a.level("b", committed=-1)
    request = fr.StateRequest(run="r")
    assert a.frame("b", request) == ["provide b with r after 0"]
    assert a.frame("b", request) == []
    assert a.hear(ev.StateReady(PeerId("b"), "r", 0, b"0123456789")) == [
        "b <- state 0 [0:] 0123", "b <- state 0 [4:] 4567", "b <- state 0 [8:] 89",
    ]  # fmt: skip
    assert a.frame("b", request) == ["provide b with r after 0"]
    assert a.frame("b", fr.StateRequest(run="another")) == []


def test_who_has_no_state_gives_none() -> None:
    b = Machine("b").join(RUN, up="d", committed=-1)
    assert b.frame("d", fr.StateRequest(run="r")) == []


# -- where a run begins ------------------------------------------------------------------------------------


def test_a_run_begins_with_the_roots_state_when_nobody_has_one() -> None:
    a = Machine("a").join(view(1, "abc", run="r"))
    a.level("b", committed=-1)
    assert a.node.allreduce.committed == -1  # c may have it
    assert a.level("c", committed=-1) == ["view 1 abc", "b <- sync 1 r after 0", "c <- sync 1 r after 0"]
    assert a.node.allreduce.committed == 0


def test_it_does_not_begin_again_while_somebody_below_may_have_it() -> None:
    a = Machine("a").join(view(9, "abc", run="r", first_round=1))
    a.level("b", committed=-1)
    a.level("c", committed=-2)
    assert a.node.allreduce.committed == -1
    assert a.sync("c", 5) == ["c <- state of r?"]


def test_an_inner_node_passes_on_whether_there_is_hope_below() -> None:
    b = Machine("b").join(view(1, "abcde", run="r"))
    b.hear(ev.LinkUp(A, 1))
    assert b.said == ["a <- sync 1 r after -2"]
    b.sync("a", -1)
    b.level("d", committed=-1)
    assert b.level("e", committed=-1)[-1] == "a <- sync 1 r after -1"
    b.hear(ev.LinkDown(D, "reset"))
    assert b.said == ["a <- sync 1 r after -2"]


def test_who_is_loading_a_state_is_a_hope_itself() -> None:
    b = Machine("b").join(RUN)
    b.level("a", committed=7)
    for name in "de":
        b.level(name, committed=-1)
    state(b, "a", b"state", number=7)
    b.learn(view(4, "bde", run="r", first_round=8))
    for name in "de":
        b.sync(name, -1)
    assert b.node.allreduce.committed == -1
    b.hear(ev.Adopted("r", 7))
    assert b.node.allreduce.committed == 7


def test_another_run_ends_the_round_and_forgets_the_state() -> None:
    b = Machine("b").join(view(1, "ab"), up="a")
    b.contribute(1)
    said = b.learn(view(2, "ab", run="r"))
    assert "round 1 aborted: run" in said
    assert b.node.allreduce.committed == -1


def test_an_adopted_state_of_another_run_means_nothing() -> None:
    b = Machine("b").join(RUN)
    b.level("a", committed=7)
    assert b.hear(ev.Adopted("old", 99)) == []
    assert b.node.allreduce.committed == -1


def test_a_state_that_the_owner_never_gave_is_asked_of_it_again() -> None:
    b = at_seven("b", RUN)
    b.level("d", committed=7)
    asked = b.frame("d", fr.StateRequest(run="r"))
    assert len(asked) == 1
    assert b.frame("d", fr.StateRequest(run="r")) == []
    b.now += 31  # an owner who has no use for the run any more says nothing
    assert b.frame("d", fr.StateRequest(run="r")) == asked
    b.hear(ev.RunWanted("s", 1, 3))
    b.learn(view(4, "abcde", run="s"))
    b.level("d", committed=3)
    assert len(b.frame("d", fr.StateRequest(run="s"))) == 1


def test_the_state_is_not_fetched_before_the_owner_wants_the_run() -> None:
    b = Machine("b")
    b.learn(RUN)
    assert b.level("a", committed=7) == []
    assert b.hear(ev.RunWanted("r")) == ["a <- state of r?"]


# -- behind, without a run ---------------------------------------------------------------------------------


def after(machine: Machine, peer: str, committed: int, kept: int) -> list[str]:
    assert machine.node.view is not None
    return machine.frame(peer, fr.Sync(epoch=machine.node.view.epoch, run="", committed=committed, kept=kept))


def behind() -> Machine:
    """It has contributed to round 5, which the others have seen the end of. Its parent came after that."""
    d = Machine("d", limits=Limits(silence_s=60.0)).join(view(8, "abcdefgh", first_round=5), up="b", committed=4)
    d.contribute(1)
    d.learn(view(9, "axcdefgh", first_round=6))
    d.hear(ev.LinkUp(PeerId("x"), 1))
    d.hear(ev.LinkUp(PeerId("h"), 1))
    return d


def test_where_no_neighbour_can_tell_how_a_round_ended_it_is_given_up_at_once() -> None:
    d = behind()
    after(d, "h", 5, kept=6)
    assert not any("behind" in line for line in d.until(1.0))  # its parent may know
    after(d, "x", 5, kept=6)
    assert when(d.until(1.5), "behind: 5") < 1.5
    assert d.node.allreduce.committed == 5
    assert d.node.parts.course.past.sync(5).kept == 6  # nor can it tell those below


def test_who_can_tell_how_a_round_ended_is_waited_for() -> None:
    d = behind()
    after(d, "h", 5, kept=6)
    after(d, "x", 5, kept=5)
    assert not any("behind" in line for line in d.until(3.0))


def test_who_waits_in_vain_gives_up_however_often_views_and_links_change_meanwhile() -> None:
    d = behind()
    said = []
    for second in range(1, 9):
        after(d, "x", 5, kept=5)
        said += d.until(second - 0.1)
        if second == 4:
            d.learn(view(10, "axcdefgh", first_round=6))
            after(d, "x", 5, kept=5)
        d.hear(ev.LinkDown(PeerId("x"), "reset"))
        said += d.until(second)
        d.hear(ev.LinkUp(PeerId("x"), 1))
    assert when(said, "behind: 5") < 8


def test_who_is_asked_while_it_takes_a_state_over_gives_it_once_it_has_it() -> None:
    """Who has asked does not ask again for long."""
    b = Machine("b").join(RUN)
    b.level("a", committed=7)
    b.level("d", committed=-1)
    state(b, "a", b"state", number=7)
    assert b.frame("d", fr.StateRequest(run="r")) == []
    assert "provide d with r after 7" in b.hear(ev.Adopted("r", 7))


def test_who_comes_late_does_not_know_what_views_that_it_was_not_in_have_decided() -> None:
    """b is given an older state, and told how the round after it has ended. The next may have been decided by a and c
    before b was in; so b, at the head by then, must not drop it before c has spoken."""
    one = view(1, "ac", run="r")
    two = view(2, "acb", run="r", first_round=3, after=one)
    b = Machine("b").join(two)
    b.level("a", committed=1)
    state(b, "a", b"one", number=1)
    b.hear(ev.Adopted("r", 1))
    b.frame("a", fr.Abort(epoch=2, round=2, cause="timeout", reason="so", over=True))
    assert b.node.allreduce.committed == 2
    b.learn(view(3, "bc", run="r", first_round=3, after=two))
    b.level("c", 2)
    b.contribute(1)  # what it brings to the second round
    b.contribute(1)
    assert b.hear(ev.TimedOut("enough")) == []


def test_what_is_of_a_checkpoint_is_given_up_though_nobody_else_has_it() -> None:
    """No round of this generation has been over. d, which has come less far, could not go on."""
    b = Machine("b")
    b.hear(ev.RunWanted("r", 1, have=40, of=Lineage(Generation(), 0)))
    b.learn(view(2, "bd", run="r"))
    b.hear(ev.LinkUp(D, 1))
    b.frame("d", fr.Sync(epoch=2, run="r", committed=4, restored=Lineage(Generation(), 0)))
    assert b.node.allreduce.committed == 40
    said = b.hear(ev.StateLost())
    assert "d <- state of r?" in said or any("state of r?" in line for line in b.until(1.0))
    assert b.node.allreduce.committed == -1


def test_nor_where_somebody_below_has_seen_the_end_of_one() -> None:
    one = view(1, "ab", run="r", first_round=5)
    b = at_seven("b", one)
    assert "a <- sync 1 r after -2" in b.hear(ev.StateLost())


def test_what_the_owner_has_kept_of_before_is_not_gone_on_with() -> None:
    b = at_seven("b", RUN)
    b.hear(ev.StateLost())
    b.hear(ev.RunWanted("r", 1, 5))
    assert b.node.allreduce.committed == -1
    b.hear(ev.RunWanted("r", 1, 7))
    assert b.node.allreduce.committed == 7


def test_a_state_is_not_given_up_while_a_vector_is_on_its_way() -> None:
    """a has got a part of it. If b had d's state, of before the same round, and gave another vector, a would have the
    rest of that behind what is there."""
    b = Machine("b").join(view(3, "abd", fanout=1, run="r", first_round=5))
    b.level("a", committed=7)
    state(b, "a", b"seven", number=7)
    b.hear(ev.Adopted("r", 7))
    b.level("d", 7)
    b.reduce("d", vector(0, 0, 0), "d", number=8)
    b.contribute(1, 2, 3)
    b.hear(ev.LinkDown(A, "reset"))
    assert b.hear(ev.StateLost()) == []
    assert b.level("a", 7, have=1)[-1] == "a <- reduce 8 [1:] 2 3 of 110"
    b.result("a", vector(1, 2, 3), "abd", number=8)
    b.sync("a", 8)
    assert b.node.allreduce.committed == -1


def test_nor_while_something_is_held_that_others_may_rely_on() -> None:
    b = at_seven("b", RUN)
    b.result("a", vector(5), "abcde", number=8, final=False)
    assert b.node.parts.course.holding
    b.hear(ev.StateLost())
    assert b.node.allreduce.committed == 7


def test_who_has_given_its_state_up_takes_no_older_one() -> None:
    """Its vote has been the word of one who had seen the ends of the rounds since."""
    b = at_seven("b", RUN)
    assert "a <- sync 3 r after -2" in b.hear(ev.StateLost())
    assert b.node.allreduce.committed == -1
    assert "a <- state of r?" in b.sync("a", 7)
    assert state(b, "a", b"five", number=5) == []
    b.hear(ev.LinkDown(A, "reset"))
    assert "d <- state of r?" not in b.level("d", committed=5)
    assert b.node.allreduce.committed == -1


def test_a_state_that_was_lost_and_has_come_again_is_not_given_up_again() -> None:
    b = at_seven("b", RUN)
    b.hear(ev.StateLost())
    b.sync("a", 7)
    state(b, "a", b"seven", number=7)
    put_to_use(b)
    assert b.node.allreduce.committed == 7
    assert "a <- state of r?" not in b.sync("a", 7)
    assert b.node.allreduce.committed == 7


def test_but_it_is_while_those_below_wait_for_it() -> None:
    """d has come without a state, and the round waits for what d brings: it would for ever."""
    b = Machine("b").join(view(3, "abd", fanout=1, run="r", first_round=5))
    b.level("a", committed=7)
    state(b, "a", b"seven", number=7)
    b.hear(ev.Adopted("r", 7))
    b.level("d", -1)
    assert b.frame("d", fr.StateRequest(run="r")) == ["provide d with r after 7"]
    b.contribute(1, 2, 3)
    assert "a <- sync 3 r after -2" in b.hear(ev.StateLost())
    assert b.hear(ev.StateReady(D, "r", 7, b"old")) == []
    b.until(0.5)
    state(b, "a", b"seven", number=7)
    assert "provide d with r after 7" in (*put_to_use(b), *b.until(1.0))


def test_what_was_on_its_way_while_a_state_was_replaced_counts_only_as_it_comes_again() -> None:
    """There was room for it in the round that was given up with the state, and the round that comes next has the same
    number: b would pass a sum up as that of both, with nothing of d in it."""
    b = at_seven("b", view(3, "abd", fanout=1, run="r", first_round=5))
    b.level("d", 7)
    vector_of_d = vector(10, 20, 30).tobytes()
    frame = b.stamped(fr.Reduce(epoch=3, round=8, offset=0, total=3, dtype="<f4", contributors=b"\4", weight=1.0))
    room = b.node.sink(D, frame, len(vector_of_d))
    assert room is not None
    b.hear(ev.StateLost())
    b.until(0.5)
    state(b, "a", b"seven", number=7)
    put_to_use(b)
    assert b.node.allreduce.committed == 7
    room[:] = vector_of_d
    b.hear(ev.FrameReceived(D, frame, None, len(vector_of_d), True, 1e-3))
    assert b.contribute(1, 2, 3) == []
    assert b.reduce("d", vector(10, 20, 30), "d", number=8) == ["a <- reduce 8 [0:] 11 22 33 of 110"]


def vote_of(machine: Machine) -> tuple[int, bool]:
    """How far it says that it has come, in the vote that it has just sent."""
    (vote,) = (e.frame for e in machine.effects if isinstance(e, fx.Send) and isinstance(e.frame, fr.Vote))
    return vote.committed, vote.holding


def test_who_has_given_its_state_up_can_not_be_spared_by_those_who_have_not_come_as_far() -> None:
    """a and b have the end of the eighth round. b gives its state up for a's, a is lost, and b leaves: if it said that
    it knows of nothing, c would go on alone, and add that round up once more."""
    one = view(1, "abc", run="r", first_round=8)
    b = at_seven("b", one)
    b.contribute(1)
    assert b.result("a", vector(3), "abc", number=8) == ["round 8 = 3 of abc"]
    b.sync("a", 8)
    b.hear(ev.StateLost())
    assert b.node.allreduce.committed == -1
    b.hear(ev.LinkDown(A, "reset"))
    two = view(2, "cb", run="r", first_round=8, after=one)
    b.learn(two)
    b.hear(ev.LinkUp(PeerId("c"), 1))
    b.hear(ev.LeaveWanted())
    b.frame("c", fr.Poll(epoch=two.stamp, candidate="c", number=1))
    assert vote_of(b) == (7, True)
    alone = two.successor(first_round=8, without={PeerId("b")})
    said = b.document("c", fr.Propose(epoch=two.stamp, candidate="c", number=2, ballot=0), pack(alone))
    assert said == ["c <- vote 2 of b for c"]
    over = two.successor(first_round=9, without={PeerId("b")})
    said = b.document("c", fr.Propose(epoch=two.stamp, candidate="c", number=3, ballot=0), pack(over))
    assert said == ["c <- vote 3 of b for c, accepts 0"]


@pytest.mark.parametrize(("said", "alone"), [((-1, False), True), ((7, True), False)])
def test_nor_does_the_head_go_on_without_it(said: tuple[int, bool], alone: bool) -> None:
    one = view(1, "abc", run="r", first_round=8)
    c = at_seven("c", one)
    c.contribute(1)
    c.hear(ev.LinkDown(A, "reset"))
    c.learn(view(2, "cb", run="r", first_round=8, after=one))
    c.level("b", committed=-2)
    ends: list[str] = []
    while c.now < 5.0:
        assert c.node.view is not None
        c.frame("b", fr.Leave(peer="b", incarnation=1, until=-1))
        c.frame("b", fr.Ping(waiting=False, epoch=c.node.view.stamp))
        c.until(c.now + 0.5)
        ends += [line for line in c.votes("b", committed=said[0], holding=said[1]) if line.startswith("round")]
    assert ends == (["round 8 = 1 of c inexact"] if alone else [])


def test_nor_who_puts_a_state_to_use_that_has_taken_the_place_of_what_it_held() -> None:
    one = view(1, "abc", run="r", first_round=8)
    b = at_seven("b", one)
    b.contribute(1)
    b.result("a", vector(3), "abc", number=8, final=False)
    assert b.node.allreduce.holding
    b.sync("a", 8)
    b.until(1.0)
    assert "state of r after 8: eight" in state(b, "a", b"eight", number=8)
    assert asked_by_c(b, one) == (7, True)


def test_a_head_that_has_given_its_state_up_does_not_say_that_the_rounds_since_are_still_to_come() -> None:
    """Who comes late would take them for rounds that nobody can have decided without it, and drop them."""
    a = Machine("a").join(view(1, "ab", run="r"))
    a.level("b", committed=-1)
    a.sync("b", 0)
    for number in (1, 2, 3):
        a.contribute(1)
        a.reduce("b", vector(1), "b", number=number)
        a.sync("b", number)
    assert a.node.allreduce.committed == 3
    a.hear(ev.StateLost())
    assert a.node.allreduce.committed == -1
    a.hear(ev.PresenceSeen(member("c")))
    a.hear(letter_to("a", "c", fr.Here(incarnation=1)))
    a.until(1.0)
    a.agree("b", committed=2)
    assert a.node.view is not None
    assert (a.node.view.epoch, a.node.view.first_round) == (2, 4)


def test_nor_when_it_has_begun_again_with_a_checkpoint_and_has_given_that_up_for_a_neighbours_state() -> None:
    """It has seen the end of the eighth round in this life, whatever it has forgotten since."""
    one = view(1, "abc", run="r", first_round=8)
    b = at_seven("b", one)
    b.contribute(1)
    b.result("a", vector(3), "abc", number=8)
    b.sync("a", 8)
    b.hear(ev.StateLost())
    b.hear(ev.RunWanted("r", 1, 8, of=Lineage(Generation(), 0)))
    assert b.node.allreduce.committed == -1  # a's counts more
    assert asked_by_c(b, one) == (7, True)


def test_an_owner_that_has_missed_all_until_now_hears_no_more_of_what_was_dropped_before() -> None:
    """Its next call was answered with an older round than it had been told of, and the one after that with the same
    news once more."""
    b = Machine("b").join(view(1, "ab"), up="a")
    b.frame("a", fr.Abort(epoch=1, round=1, cause="timeout", reason="so", over=True))
    assert b.node.allreduce.owed == 1
    b.hear(ev.StateLost())
    assert b.node.allreduce.owed == 0
    assert not any("aborted" in line for line in b.contribute(1))
