"""When a round counts: the tables in deciding.py and ending.py. The tree: a over bc, b over de; a, b, c must hold."""

from __future__ import annotations

import itertools

import pytest
from company import Company
from transcript import Machine, vector, view

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.limits import Limits
from edgepeer.topology.view import View
from edgepeer.wire import frames as fr

A, B = PeerId("a"), PeerId("b")
FIVE = view(1, "abcde")
NINE = view(1, "abcdefghi")  # a, b, c, d, e must hold: b waits for d and e


def full(name: str, world: View = FIVE, committed: int = 0) -> Machine:
    """A machine with level links to its neighbours."""
    machine = Machine(name).join(world)
    for peer in world.neighbours(PeerId(name)):
        machine.level(peer, committed)
    return machine


def summed_up() -> Machine:
    """The root, which has all contributions and has sent the sum down."""
    a = full("a")
    a.contribute(1)
    a.reduce("c", vector(1), "c")
    assert a.reduce("b", vector(3), "bde") == ["b <- result 1 [0:] 5 complete", "c <- result 1 [0:] 5 complete"]
    return a


def ended(said: list[str]) -> list[str]:
    return [line for line in said if line.startswith("round")]


# -- holding -----------------------------------------------------------------------------------------------


def test_nobody_commits_before_those_who_must_hold_do() -> None:
    a = summed_up()
    assert a.node.allreduce.committed == 0
    assert a.have("c") == []
    assert a.have("b") == ["b <- decide 1", "c <- decide 1", "round 1 = 5 of abcde"]


@pytest.mark.parametrize("order", list(itertools.permutations("bc")))
def test_in_whatever_order_they_say_so(order: tuple[str, ...]) -> None:
    a = summed_up()
    assert ended([line for peer in order for line in a.have(peer)]) == ["round 1 = 5 of abcde"]


def test_a_holder_says_so_commits_nothing_and_passes_the_result_on() -> None:
    b = full("b")
    b.contribute(1)
    assert b.result("a", vector(5), "abcde", final=False) == [
        "d <- result 1 [0:] 5 complete",
        "e <- result 1 [0:] 5 complete",
        "a <- have 1",
    ]
    assert b.node.allreduce.committed == 0
    assert b.decide("a") == ["d <- decide 1", "e <- decide 1", "round 1 = 5 of abcde"]


def test_who_must_not_hold_says_nothing() -> None:
    d = full("d")
    d.contribute(1)
    assert d.result("b", vector(5), "abcde", final=False) == []
    assert d.decide("b") == ["round 1 = 5 of abcde"]


def test_a_holder_waits_for_those_below_it_that_must_hold_too() -> None:
    b = full("b", NINE)
    b.contribute(1)
    assert "a <- have 1" not in b.result("a", vector(9), "abcdefghi", final=False)
    assert b.have("d") == []
    assert b.have("e") == ["a <- have 1"]
    assert b.have("e") == []  # said once


def test_a_have_that_comes_before_the_own_result_is_complete_counts() -> None:
    """A child may get it over another path, or handed over."""
    b = full("b", NINE)
    b.contribute(1)
    b.have("d")
    b.have("e")
    assert "a <- have 1" in b.result("a", vector(9), "abcdefghi", final=False)


@pytest.mark.parametrize(("peer", "number"), [("x", 1), ("b", 2), ("b", 0)])
def test_haves_of_others_or_for_other_rounds_do_not_count(peer: str, number: int) -> None:
    a = summed_up()
    a.have("c")
    assert a.have(peer, number=number) == []


def test_a_decide_before_the_result_does_not_speak_of_it() -> None:
    """Frames keep their order on every path, so it was said of nothing that is here."""
    b = full("b")
    b.contribute(1)
    assert b.decide("a") == []
    assert ended(b.result("a", vector(5), "abcde", final=False)) == []
    assert ended(b.decide("a")) == ["round 1 = 5 of abcde"]


def test_only_the_parent_decides() -> None:
    b = full("b")
    b.contribute(1)
    b.result("a", vector(5), "abcde", final=False)
    assert b.decide("d") == []
    assert b.decide("x") == []
    assert b.frame("a", fr.Decide(epoch=9, round=1)) == []
    assert b.decide("a", number=2) == []
    assert b.node.allreduce.committed == 0


def test_a_result_that_is_decided_already_is_committed_at_once() -> None:
    b = full("b")
    b.contribute(1)
    assert b.result("a", vector(5), "abcde", final=True)[-1] == "round 1 = 5 of abcde"


@pytest.mark.parametrize(("names", "own_word"), [("a", True), ("ab", True), ("abc", False), ("abcd", False)])
def test_small_fleets(names: str, own_word: bool) -> None:
    """Of one or two the root alone is enough; of more it is not."""
    a = full("a", view(1, names))
    a.contribute(1)
    for child in a.node.view.children(A):  # type: ignore[union-attr]
        below = "bd" if child == "b" and "d" in names else child
        a.reduce(child, vector(len(below)), below)
    assert bool(a.node.allreduce.committed) == own_word


def test_phases_and_paths_of_a_round() -> None:
    b = full("b")
    b.now = 10.0
    b.contribute(1)
    b.now = 12.0
    b.reduce("d", vector(1), "d")
    b.now = 13.0
    b.reduce("e", vector(1), "e")
    b.now = 13.5
    b.result("a", vector(5), "abcde", final=False)
    b.now = 13.75
    b.decide("a")
    (committed,) = (effect for effect in b.effects if isinstance(effect, fx.RoundCommitted))
    assert committed.phases == fx.Phases(waited_s=3.0, broadcast_s=0.5, decided_s=0.25)
    assert committed.paths == ("direct", "direct", "direct")


def test_phases_of_who_had_not_contributed() -> None:
    b = full("b")
    b.now = 10.0
    b.result("a", vector(5), "abcde")
    (committed,) = (effect for effect in b.effects if isinstance(effect, fx.RoundCommitted))
    assert committed.phases.waited_s == 0.0


def test_what_is_held_is_not_written_to_any_more() -> None:
    """Those below are still being sent it."""
    b = full("b")
    b.contribute(1)
    b.result("a", vector(5), "abcde", final=False)
    assert b.node.sink(A, fr.Result(epoch=1, round=1, offset=0, total=1, dtype="<f4"), 4) is None


# -- aborts ------------------------------------------------------------------------------------------------


def test_what_is_held_is_not_dropped_any_more() -> None:
    """Somebody may have it, and commit it with the next view."""
    a = summed_up()
    assert a.frame("b", fr.Abort(epoch=1, round=1, cause="timeout", reason="b waits", over=False)) == []
    assert a.hear(ev.TimedOut("too long")) == []
    a.have("b")
    assert ended(a.have("c")) == ["round 1 = 5 of abcde"]


def test_a_member_that_holds_it_may_ask_in_vain() -> None:
    b = full("b")
    b.contribute(1)
    b.result("a", vector(5), "abcde", final=False)
    assert b.hear(ev.TimedOut("too long")) == ["a <- abort 1: timeout"]
    assert b.decide("a")[-1] == "round 1 = 5 of abcde"


# -- new views ---------------------------------------------------------------------------------------------


def test_who_holds_it_commits_when_a_new_view_comes_and_hands_it_over() -> None:
    b = full("b")
    b.contribute(1)
    b.result("a", vector(5), "abcde", final=False)
    said = b.hear(ev.ViewSeen(view(2, "becd")))
    assert ended(said) == ["round 1 = 5 of abcde"]
    b.hear(ev.LinkUp(PeerId("c"), 1))
    assert b.sync("c", 0) == ["c <- view 1", "c <- result 1 [0:] 5 committed"]
    assert b.sync("d", 1) == []


def test_the_root_that_holds_it_too() -> None:
    a = summed_up()
    said = a.frame("b", fr.Suspect(epoch=1, peer="e", reason="gone"))
    assert ended(said) == ["round 1 = 5 of abcde"]
    assert "view 2 abcd" in said


def test_who_has_only_a_part_of_it_does_not() -> None:
    b = full("b")
    b.contribute(1, 1)
    b.frame("a", fr.Result(epoch=1, round=1, offset=0, total=2, dtype="<f4"), vector(5))
    assert ended(b.hear(ev.ViewSeen(view(2, "bcde")))) == []


def test_another_run_does_not_ask_for_what_is_held() -> None:
    b = full("b")
    b.contribute(1)
    b.result("a", vector(5), "abcde", final=False)
    assert ended(b.hear(ev.ViewSeen(view(2, "abcde", run="r")))) == ["round 1 aborted: run"]


def test_a_member_without_the_result_is_handed_it_by_the_holder_that_took_over() -> None:
    c = Machine("c").join(FIVE, up="a")
    c.contribute(1)  # and it has sent all: who knows what a has made of it
    c.hear(ev.ViewSeen(view(2, "becd")))
    c.hear(ev.LinkUp(B, 1))
    c.sync("b", 1)
    assert c.hear(ev.TimedOut("too long")) == []
    c.view_frame("b", FIVE)
    assert ended(c.result("b", vector(5), "abcde", decided_in=1, of="abcde")) == ["round 1 = 5 of abcde"]


# -- lost links --------------------------------------------------------------------------------------------


def test_a_have_that_was_lost_with_the_link_is_said_again() -> None:
    b = full("b")
    b.contribute(1)
    b.result("a", vector(5), "abcde", final=False)
    b.hear(ev.LinkDown(A, "reset"))
    assert "a <- have 1" in b.level("a", committed=0)


def test_a_decide_that_was_lost_with_the_link_is_made_good_by_the_result() -> None:
    """The child says that it stands before the round, and so gets the whole, which is final now."""
    a = summed_up()
    a.have("c")
    a.hear(ev.LinkDown(B, "reset"))
    a.level("b", committed=0)  # level, and its Have was not heard
    assert ended(a.have("b")) == ["round 1 = 5 of abcde"]
    a.hear(ev.LinkDown(B, "reset"))
    assert a.level("b", committed=0) == ["b <- result 1 [0:] 5 committed"]


def test_who_holds_it_and_is_handed_it_again_commits() -> None:
    b = full("b")
    b.contribute(1)
    b.result("a", vector(5), "abcde", final=False)
    b.hear(ev.LinkDown(A, "reset"))
    b.level("a", committed=1)
    assert ended(b.result("a", vector(5), "abcde")) == ["round 1 = 5 of abcde"]


def test_another_result_than_the_one_held_is_not_taken_for_its_decision() -> None:
    b = full("b")
    b.contribute(1)
    b.result("a", vector(5), "abcde", final=False)
    b.hear(ev.LinkDown(A, "reset"))
    b.level("a", committed=1)
    assert ended(b.result("a", vector(6), "abcde")) == []


CUTS = [1.000 + tenths / 10000 for tenths in range(0, 100, 7)]


@pytest.mark.parametrize("pair", ["ab", "ac", "bd", "be"])
@pytest.mark.parametrize("moment", CUTS)
def test_a_link_that_breaks_at_any_moment_of_a_round(pair: str, moment: float) -> None:
    """Both ends notice at once, connect again, and say where they stand; there is no tunnel to help."""
    company = Company(FIVE, limits=Limits(relay_after_s=600.0))
    company.broker = False
    company.until(1.0)
    for position, name in enumerate(company.machines):
        company.hear(name, ev.Contribute(vector(1 << position), 1.0))
    company.until(moment)
    company.disconnect(pair)
    company.until(3.0)
    found = {name: effect for _, name, effect in company.effects(fx.RoundCommitted)}
    assert sorted(found) == list("abcde")
    for effect in found.values():
        assert isinstance(effect, fx.RoundCommitted)
        assert (effect.round, effect.sum[0], effect.exact) == (1, 31.0, True)
    for number in (2, 3):
        for name in company.machines:
            company.hear(name, ev.Contribute(vector(1), 1.0))
        company.until(company.now + 0.5)
        assert {machine.node.allreduce.committed for machine in company.machines.values()} == {number}


@pytest.mark.parametrize("dead", list("abcde"))
@pytest.mark.parametrize("moment", CUTS)
def test_a_peer_that_dies_at_any_moment_of_a_round(dead: str, moment: float) -> None:
    """The survivors commit one and the same: with the dead one's contribution, or without."""
    company = Company(FIVE)
    company.until(1.0)
    for position, name in enumerate(company.machines):
        company.hear(name, ev.Contribute(vector(1 << position), 1.0))
    company.until(moment)
    company.kill(dead)
    company.until(8.0)
    living = [name for name in "abcde" if name != dead]
    sums: dict[str, float] = {}
    for _, name, effect in company.effects(fx.RoundCommitted):
        assert isinstance(effect, fx.RoundCommitted)
        assert name not in sums
        assert effect.sum[0] == sum(1 << "abcde".index(who) for who in effect.contributors)
        sums[name] = float(effect.sum[0])
    assert set(living) <= set(sums)
    assert len({sums[name] for name in sums}) == 1  # also of what the dead one had committed before
