"""What is held of coded rounds, and may not be forgotten, at one machine. The tree: a over bc, b over de."""

from __future__ import annotations

import pytest
from codes import FIVE, PAIRS, WHOLE, coded, encoded, progress
from transcript import Machine, vector, view

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.limits import Limits
from edgepeer.wire import frames as fr

# -- what is held ----------------------------------------------------------------------------------------------


def holding_root(limits: Limits | None = None) -> Machine:
    """b, which holds a result of the first view, is root of the second."""
    b = coded("b", limits=limits)
    b.did({1: 1})
    b.release("a", "11111")
    encoded(b, 1)
    assert "a <- have 1 in 10" in b.result("a", vector(5), "abcde", final=False)
    b.learn(view(2, "becd", slots="beced"))
    for peer in "ec":
        b.level(peer)
    return b


def test_a_root_waits_for_whoever_does_not_hold_it_as_long_as_too_few_do() -> None:
    b = holding_root()
    progress(b, "c", "c", "..0..")
    progress(b, "e", "ed", ".0.00")
    b.reduce("c", vector(), "c")
    b.reduce("e", vector(), "ed")
    assert b.node.allreduce.missing() == ("e", "c", "d")


def holder() -> Machine:
    """One that has come to the next view with a result that may count."""
    b = coded("b")
    b.did({1: 1})
    b.release("a", "11111")
    b.result("a", vector(5), "abcde", final=False)
    b.learn(view(2, "abcde", slots="abcde"))
    return b


def test_what_is_held_is_said_before_anything_is_computed() -> None:
    b = holder()
    said = b.level("a")
    assert "a <- progress 1 of 10: ..... holding" in said
    assert b.did({1: 1}) == ["a <- progress 1 of 10: .1... holding"]


def test_what_is_held_is_put_forward_again_once_all_have_spoken() -> None:
    b = holding_root()
    progress(b, "c", "c", "..0..")
    assert progress(b, "e", "e", ".0.0.") == []  # d is missing: it may hold something newer
    said = progress(b, "e", "ed", ".0.00")
    assert said == ["e <- release 1: 00000 anew", "c <- release 1: 00000 anew"]
    assert b.reduce("c", vector(), "c") == []
    said = b.reduce("e", vector(), "ed")
    assert [line for line in said if "result" in line] == [
        "e <- result 1 [0:] 5 complete", "c <- result 1 [0:] 5 complete",
    ]  # fmt: skip
    assert b.have("c", who="c")[-1] == "round 1 = 5 of abcde"


def test_who_has_just_woken_says_what_it_holds() -> None:
    """It decides nothing before it knows what has happened meanwhile. Once it has spoken the root may do without it,
    and would drop the round, or add up another sum, if it had said that it holds nothing."""
    one = view(1, "abc", slots="abc")
    b = coded("b", one)
    b.did({1: 1})
    b.release("a", "11.")
    encoded(b, 1)
    assert "a <- have 1 in 10" in b.result("a", vector(5), "ab", final=False)
    b.hear(ev.LinkDown(PeerId("a"), "reset"), 10.0)
    assert b.node.parts.place.waking
    b.learn(view(2, "cba", slots="abc", after=one))
    b.level("c")
    assert b.did({1: 0})[-1] == "c <- progress 1 of 10: .0. holding"


def test_a_root_that_has_just_woken_has_what_it_holds_put_forward() -> None:
    one = view(1, "abc", slots="abc")
    b = coded("b", one)
    b.did({1: 1})
    b.release("a", "11.")
    encoded(b, 1)
    b.result("a", vector(5), "ab", final=False)
    b.hear(ev.LinkDown(PeerId("a"), "reset"), 10.0)
    b.learn(view(2, "bca", slots="abc", after=one))
    for peer in "ca":
        b.level(peer)
    b.did({1: 0})
    progress(b, "c", "c", "..2")
    assert progress(b, "a", "a", "2..") == ["c <- release 1: 202 anew", "a <- release 1: 202 anew"]


def test_a_root_without_a_code_puts_forward_what_is_held_and_goes_on_with_that_whatever_is_wanted_then() -> None:
    b = coded("b")
    b.did({1: 1})
    b.release("a", "11111")
    encoded(b, 1)
    b.result("a", vector(5), "abcde", final=False)
    b.hear(ev.CodeWanted(None))
    b.learn(view(2, "becd", slots="beced"))
    for peer in "ec":
        b.level(peer)
    progress(b, "c", "c", "..0..")
    assert progress(b, "e", "ed", ".0.00")[:2] == ["e <- release 1: 00000 anew", "c <- release 1: 00000 anew"]
    b.hear(ev.LinkDown(PeerId("c"), "reset"))
    b.hear(ev.CodeWanted(PAIRS))
    assert "c <- release 1: 00000 anew" in b.level("c")


def test_a_release_anew_asks_nothing_of_the_owner() -> None:
    d = coded("d")
    assert d.release("b", "00000", anew=True) == ["b <- reduce 1 [0:]  of 1000"]
    assert d.result("b", vector(5), "abc", final=True) == ["round 1 = 5 of abc (not mine)"]


def test_the_newest_of_what_is_held_below_goes_up_anew() -> None:
    b = holding_root()
    progress(b, "c", "c", "..0..", holding=True)
    progress(b, "e", "ed", ".0.00")
    b.reduce("e", vector(), "ed")
    b.view_frame("c", view(1, "abcde", slots="abcde"))
    said = b.result("c", vector(5), "abcde", decided_in=FIVE.stamp, of="abcde", final=False, up=True)
    assert "e <- result 1 [0:] 5 complete" in said


def test_a_root_does_not_drop_what_an_earlier_one_may_have_closed_without_it() -> None:
    b = coded("b")
    b.did({1: 0})  # it lets a do without it from here on, and brings nothing
    b.learn(view(2, "becd", slots="beced"))
    for peer in "ec":
        b.level(peer)
    b.did({0: 0})
    assert b.hear(ev.TimedOut("late")) == []
    progress(b, "c", "c", "..0..")
    assert progress(b, "e", "ed", ".0.00") == ["e <- drop 1: timeout complete", "c <- drop 1: timeout complete"]


def test_a_root_does_not_drop_what_is_held() -> None:
    b = holding_root()
    b.hear(ev.TimedOut("late"))
    progress(b, "c", "c", "..0..")
    said = progress(b, "e", "ed", ".0.00")
    assert said[0] == "e <- release 1: 00000 anew"
    assert not any("drop" in line for line in said)
    b.reduce("c", vector(), "c")
    assert "c <- result 1 [0:] 5 complete" in b.reduce("e", vector(), "ed")


def test_a_new_code_in_mid_round_does_not_make_forget_what_is_held() -> None:
    b = holder()
    b.level("a")
    b.hear(ev.CodeWanted(None))
    assert "a <- progress 1 of 10: ..... holding" in b.hear(ev.CodeWanted(PAIRS))
    assert b.did({1: 1}) == ["a <- progress 1 of 10: .1... holding"]


def test_a_round_is_closed_once_whatever_code_its_root_wants_next() -> None:
    """Who has missed the first Release would encode what it has as the second says, and the others as the first."""
    a = coded("a")
    a.did({0: 1})
    progress(a, "c", "c", "..1..")
    assert "b <- release 1: 11111" in progress(a, "b", "bde", ".1.11")
    a.hear(ev.CodeWanted(WHOLE))
    assert a.did({0: 2}) == []
    assert progress(a, "c", "c", "..2..") == []
    assert progress(a, "b", "bde", ".2.22") == []
    a.hear(ev.LinkDown(PeerId("c"), "reset"))
    assert "c <- release 1: 11111" in a.level("c")


def test_a_child_may_be_quicker_to_take_another_code() -> None:
    """All do between the same two rounds; its word for the next one came before, and ended that for all."""
    b = coded("b", code=WHOLE)
    assert progress(b, "d", "d", "...1.", code=PAIRS) == []
    assert "d <- sync 1 after 0" in b.hear(ev.CodeWanted(PAIRS))
    assert progress(b, "d", "d", "...1.", code=PAIRS) == ["a <- progress 1 of 1000: ...1."]
    assert b.did({1: 1}) == ["a <- progress 1 of 1010: .1.1."]
    b = coded("b", code=WHOLE)
    progress(b, "d", "d", "...1.", code=PAIRS)
    assert b.did({1: 1}) == ["a <- progress 1 of 1010: .1...", "a <- abort 1: mismatch"]  # d's promise, no more


def test_the_next_round_has_the_code_that_is_wanted_then() -> None:
    b = coded("b")
    b.did({1: 1})
    b.hear(ev.CodeWanted(WHOLE))
    b.release("a", "11111")
    encoded(b, 1)
    b.result("a", vector(5), "abcde")
    assert b.node.allreduce.committed == 1
    b.did({1: 2}, number=2)
    (said,) = (effect.frame for effect in b.effects if isinstance(effect, fx.Send))
    assert isinstance(said, fr.Progress)
    assert said.code == WHOLE.name


def test_chunks_of_another_code_than_the_rounds_count_for_nothing() -> None:
    """As of a call that began before the owner wanted another code."""
    b = coded("b")
    said = b.hear(ev.ChunksDone(FIVE.stamp, 1, {1: 1}, WHOLE.name))
    assert said == ["a <- progress 1 of 10: .0...", "a <- abort 1: mismatch"]


# -- leaving, and who is late -------------------------------------------------------------------------------------


def test_a_leaver_is_kept_for_what_it_holds() -> None:
    c = coded("c")
    assert "a <- leave c until 0" in c.hear(ev.LeaveWanted())
    c.release("a", "11011")
    c.result("a", vector(5), "abde", final=False)
    assert "a <- leave c until 1" in c.until(2.0)[-1] or any("a <- leave c until 1" in line for line in c.said)


def test_a_leaver_is_not_kept_for_chunks_that_it_will_not_compute() -> None:
    c = coded("c")
    c.did({2: 1})
    c.hear(ev.Abandoned())
    assert "a <- leave c until 0" in c.hear(ev.LeaveWanted())
    c = coded("c")
    c.did({2: 1})
    assert "a <- leave c until 1" in c.hear(ev.LeaveWanted())
    c.learn(view(2, "abcde", slots="abcde"))  # where it does not take part any more
    c.level("a")
    assert "0: a <- leave c until 0" in c.until(1.0)


@pytest.mark.parametrize("spoken", [True, False])
def test_who_has_something_to_compute_and_does_not_is_suspected(spoken: bool) -> None:
    b = coded("b", limits=Limits(stall_s=1.0))
    b.did({1: 2})
    progress(b, "e", "e", "....2")
    if spoken:
        progress(b, "d", "d", "...1.")
    late = b.node.allreduce.laggards
    assert late(0.5) == []
    assert late(1.5) == ["d"]
    assert b.node.allreduce.waiting
    assert b.node.allreduce.missing() == ("d",)
    progress(b, "d", "d", "...2.")
    assert late(9.0) == []
    assert not b.node.allreduce.waiting


def test_who_does_not_bring_what_it_has_is_suspected_from_the_release_on() -> None:
    b = coded("b", limits=Limits(stall_s=1.0))
    b.did({1: 1})
    b.tick(5.0)
    b.release("a", "11111")
    encoded(b, 1)
    b.reduce("e", vector(1), "e")
    assert b.node.allreduce.laggards(5.5) == []
    assert b.node.allreduce.laggards(6.5) == ["d"]


# -- a state that is lost ----------------------------------------------------------------------------------------


def in_a_run() -> Machine:
    world = view(1, "abcde", slots="abcde", run="r", first_round=8)
    b = coded("b", world, up="")
    b.hear(ev.RunWanted("r", 1, 7))
    for peer in "ade":
        b.level(peer, 7)
    assert b.node.allreduce.committed == 7
    return b


def test_an_owner_that_has_lost_the_state_is_given_a_neighbours() -> None:
    b = in_a_run()
    assert "a <- sync 1 r after -2" in b.hear(ev.StateLost())
    assert "0: a <- state of r?" in b.until(1.0)
    b.frame("a", _state(6), b"old")
    assert b.said == []
    assert b.node.allreduce.committed == -1
    assert any(line.endswith("a <- state of r?") for line in b.until(2.0))
    assert b.frame("a", _state(7), b"new") == ["state of r after 7: new"]
    b.hear(ev.Adopted("r", 7))
    assert b.node.allreduce.committed == 7


def _state(number: int) -> fr.State:
    return fr.State(run="r", round=number, offset=0, total=3)


def test_a_round_that_was_closed_with_what_was_computed_beside_it_waits_until_that_is_computed_anew() -> None:
    """The root can't know better. It cost the link, again and again, for as long as that takes."""
    b = in_a_run()
    b.did({1: 1}, number=8)
    b.hear(ev.StateLost())
    b.until(1.0)
    b.frame("a", _state(7), b"new")
    b.hear(ev.Adopted("r", 7))
    assert b.release("a", "02000", number=8)[-1].startswith("close a: Release")
    b.level("a", 7)
    assert b.release("a", "01000", number=8) == []
    assert b.did({1: 0}, number=8) == ["a <- progress 8 of 10: .0..."]
    assert b.did({1: 1}, number=8) == ["d <- release 8: 01000", "e <- release 8: 01000", "encode 8 of 01000"]


def test_a_root_gives_no_state_up_in_a_round_that_it_has_closed() -> None:
    """It could not close it again: who has heard the Release says no Progress any more."""
    a = coded("a", view(1, "abcde", slots="abcde", run="r", first_round=8), up="")
    a.hear(ev.RunWanted("r", 1, 7))
    for peer in "bc":
        a.level(peer, 7)
    progress(a, "c", "c", "..1..", number=8)
    progress(a, "b", "bde", ".1.11", number=8)
    assert a.did({0: 1}, number=8)[-1] == "encode 8 of 11111"
    assert a.hear(ev.StateLost()) == []
    encoded(a, 1, number=8)
    a.reduce("b", vector(3), "bde", number=8)
    a.reduce("c", vector(1), "c", number=8)
    assert "round 8 = 5 of abcde" in a.have("b", number=8, who="bde")
    a.sync("c", 8)
    assert a.node.allreduce.committed == -1


def test_nor_does_who_passes_on_what_others_bring_to_it() -> None:
    """It would have to close the links to those below, who have heard of the Release, and bring what they have."""
    b = in_a_run()
    progress(b, "d", "d", "...1.", number=8)
    progress(b, "e", "e", "....1", number=8)
    assert b.release("a", "10111", number=8) == ["d <- release 8: 10111", "e <- release 8: 10111"]
    assert b.hear(ev.StateLost()) == []
    b.reduce("d", vector(1), "d", number=8)
    assert b.reduce("e", vector(1), "e", number=8)[-1] == "a <- reduce 8 [0:] 2 of 11000"


def test_nor_who_is_about_to_bring_something_itself() -> None:
    """What comes from those below cost the links to them, again and again, until it had computed all anew."""
    b = in_a_run()
    progress(b, "d", "d", "...1.", number=8)
    progress(b, "e", "e", "....1", number=8)
    b.did({1: 1}, number=8)
    assert b.release("a", "11111", number=8)[-1] == "encode 8 of 11111"
    assert b.hear(ev.StateLost()) == []
    encoded(b, 1, number=8)
    b.reduce("d", vector(1), "d", number=8)
    assert b.reduce("e", vector(1), "e", number=8)[-1] == "a <- reduce 8 [0:] 3 of 11010"


def test_nothing_is_forgotten_that_no_neighbour_knows() -> None:
    world = view(1, "abcde", slots="abcde", run="r", first_round=8)
    b = coded("b", world, up="")
    b.hear(ev.RunWanted("r", 1, 7))
    b.level("d", 6)
    assert b.hear(ev.StateLost()) == []
    assert b.node.allreduce.committed == 7
    b.level("a", 7)
    assert b.node.allreduce.committed == -1
