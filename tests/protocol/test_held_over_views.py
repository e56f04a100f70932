"""What becomes in the next views of a round that is held. The tree: a over bc, b over de."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from company import Company
from holders import FIVE, aborts, brings, ended, full, holder, meets, refuses, summed_up
from transcript import Machine, vector, view

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.streams import digest_of
from edgepeer.topology.view import View
from edgepeer.wire import frames as fr

A, B = PeerId("a"), PeerId("b")


def put_forward(machine: Machine) -> list[tuple[str, fr.Result]]:
    """Complete results that the machine has just sent, and to whom."""
    sends = [effect for effect in machine.effects if isinstance(effect, fx.Send)]
    return [(str(send.peer), send.frame) for send in sends if isinstance(send.frame, fr.Result)]


def test_who_holds_it_commits_nothing_in_a_new_view_and_sends_it_up_instead_of_a_contribution() -> None:
    b = holder()
    assert ended(said := meets(b, view(2, "abc"), "a")) == []
    assert said[-2:] == ["a <- view 1", "a <- result 1 [0:] 5 complete"]
    ((_, sent),) = put_forward(b)
    assert sent.commit is not None
    assert (sent.commit.decided_in, sent.commit.held_in) == (FIVE.stamp, FIVE.stamp)
    assert b.node.allreduce.committed == 0


def test_what_is_held_goes_up_before_the_owner_contributes() -> None:
    """Who lags behind in a new view may hold what counts."""
    b = full("b")
    b.result("a", vector(5), "abcde", final=False)
    assert meets(b, view(2, "abc"), "a")[-1] == "a <- result 1 [0:] 5 complete"


def test_it_waits_for_all_below_to_say_what_they_bring() -> None:
    b = holder()
    said = meets(b, view(2, "abcde"), "ade")
    assert not any("result" in line or "reduce" in line for line in said)
    assert b.reduce("d", vector(1), "d") == []
    assert b.reduce("e", vector(1), "e") == ["a <- view 1", "a <- result 1 [0:] 5 complete"]
    assert b.reduce("e", vector(1), "e") == []  # said once


def test_it_is_sent_up_again_when_the_link_was_lost() -> None:
    b = holder()
    meets(b, view(2, "abc"), "a")
    b.hear(ev.LinkDown(A, "reset"))
    assert b.level("a")[-2:] == ["a <- view 1", "a <- result 1 [0:] 5 complete"]


def test_what_a_child_holds_goes_up_in_the_place_of_a_sum() -> None:
    b = Machine("b").join(view(2, "abcde"), up="ade")
    b.contribute(1)
    b.reduce("d", vector(1), "d")
    assert brings(b, "e", 5) == ["a <- view 1", "a <- result 1 [0:] 5 complete"]
    assert not b.node.allreduce.waiting  # e has said all that it has to say


def test_the_root_puts_it_forward_again_once_all_have_said_what_they_bring() -> None:
    b = holder()
    two = view(2, "becd")  # b over ec, e over d; b and e must hold
    meets(b, two, "ec")
    assert b.reduce("e", vector(2), "ed") == []
    assert b.reduce("c", vector(1), "c") == [
        "e <- view 1", "e <- result 1 [0:] 5 complete", "c <- view 1", "c <- result 1 [0:] 5 complete",
    ]  # fmt: skip
    for _, sent in put_forward(b):
        assert sent.commit is not None
        assert (sent.commit.decided_in, sent.commit.held_in) == (FIVE.stamp, two.stamp)
    assert b.have("c") == []
    assert b.have("e") == ["e <- decide 1", "c <- decide 1", "round 1 = 5 of abcde"]


def test_the_root_puts_forward_what_a_child_holds() -> None:
    a = Machine("a").join(view(2, "abc"), up="bc")
    a.contribute(1)
    a.reduce("c", vector(1), "c")
    said = brings(a, "b", 5)
    assert [peer for peer, _ in put_forward(a)] == ["b", "c"]  # b, too: it must hold it in this view
    assert ended(said) == []
    assert ended(a.have("b")) == ["round 1 = 5 of abcde"]


def test_who_was_sent_it_in_the_new_view_holds_it_there() -> None:
    c = Machine("c").join(view(2, "bca"), up="b")
    c.contribute(1)
    c.view_frame("b", FIVE)
    assert c.result("b", vector(5), "abcde", decided_in=FIVE.stamp, of="abcde", final=False) == ["b <- have 1"]
    assert c.decide("b") == ["round 1 = 5 of abcde"]


@pytest.mark.parametrize("order", ["bc", "cb"])
@pytest.mark.parametrize("newer", ["b", "c"])
def test_of_two_only_the_one_that_was_put_forward_last_can_count(order: str, newer: str) -> None:
    """The older can't have been decided: or the view in which the newer was made would have known of it."""
    two, three = view(2, "abc"), view(3, "abc")
    a = Machine("a").join(three, up="bc")
    a.contribute(1)
    for child in order:
        if child == newer:
            brings(a, child, 6, made=FIVE, held_in=two)
        else:
            brings(a, child, 5, made=FIVE, held_in=FIVE)
    assert {vector_of(frame) for _, frame in put_forward(a)} == {digest_of(vector(6))}
    assert ended(a.have("b")) == ended(["round 1 = 6 of abcde"])


def vector_of(frame: fr.Result) -> bytes:
    assert frame.commit is not None
    return frame.commit.digest


def test_what_is_held_through_several_views_is_as_new_as_the_last_that_put_it_forward() -> None:
    b = holder()
    meets(b, view(2, "acb"), "a")
    b.view_frame("a", FIVE)
    two = view(2, "acb")
    b.result("a", vector(5), "abcde", decided_in=FIVE.stamp, held_in=two.stamp, of="abcde", final=False)
    meets(b, view(3, "abc"), "a")
    ((_, sent),) = put_forward(b)
    assert sent.commit is not None
    assert (sent.commit.decided_in, sent.commit.held_in) == (FIVE.stamp, two.stamp)


def test_what_was_held_is_kept_through_a_view_in_which_nothing_happened() -> None:
    b = holder()
    meets(b, view(2, "acb"), "")
    assert meets(b, view(3, "abc"), "a")[-1] == "a <- result 1 [0:] 5 complete"


def test_the_root_that_holds_it_puts_it_forward_again_too() -> None:
    a = summed_up()
    a.frame("b", fr.Suspect(epoch=1, peer="e", reason="gone"))
    said = a.agree("bcd")
    assert "view 2 abcd" in said
    assert ended(said) == []
    for peer in "bc":
        a.sync(peer, 0)
    a.reduce("b", vector(2), "bd")
    a.reduce("c", vector(1), "c")
    assert ended(a.have("b")) == ["round 1 = 5 of abcde"]


def test_a_single_survivor_commits_what_it_holds_at_once() -> None:
    b = holder()
    assert ended(b.learn(view(2, "b"))) == ["round 1 = 5 of abcde"]


def test_a_sum_of_the_old_view_is_not_put_forward_where_nobody_holds_it() -> None:
    a = Machine("a").join(FIVE, up="bc")
    a.contribute(1)
    a.reduce("b", vector(3), "bde")
    meets(a, view(2, "ab"), "b")
    assert a.reduce("b", vector(1), "b")[0] == "b <- result 1 [0:] 2 complete"


@pytest.mark.parametrize(
    ("made", "digest", "why"),
    [(view(9, "abcde"), 0.0, "was decided in an unknown view"), (FIVE, 6.0, "does not have the root's digest")],
)
def test_a_child_that_brings_what_can_not_be_costs_itself_the_link(made: View, digest: float, why: str) -> None:
    a = Machine("a").join(view(2, "abc"), up="bc")
    a.contribute(1)
    a.reduce("c", vector(1), "c")
    if made is FIVE:
        said = brings(a, "b", 5, made=made, digest=digest)
    else:
        said = a.result("b", vector(5), "abc", decided_in=made.stamp, final=False, up=True)
    assert said[0] == f"close b: result of round 1 {why}"
    assert ended(said) == []
    assert put_forward(a) == []
    a.level("b")
    assert a.reduce("b", vector(1), "b")[-1] == "c <- result 1 [0:] 3 complete"


def test_what_is_held_below_comes_through_a_tunnel_in_pieces_too() -> None:
    """The commit is on the last of them, and nothing tells the first from those of a result that comes down."""
    limits = Limits(tunnel_bytes=8, relay_bytes=8)
    world = view(1, "abc")
    company = Company(world, limits=limits)
    company.until(1.0)
    for name in "abc":
        company.hear(name, ev.Contribute(vector(1, 2, 3, 4, 5), 1.0))
    company.until(company.now + 0.0025)
    assert company["b"].node.parts.course.round.held is not None
    assert company["a"].node.allreduce.committed == 0
    company.sever("ab", "bc")
    two = world.successor(first_round=1)
    for name in "abc":
        company.learn(name, two)
    company.until(9.0)
    assert {machine.node.allreduce.committed for machine in company.machines.values()} == {1}


def test_a_newcomer_with_another_size_does_not_undo_what_may_count_already() -> None:
    """a, which is gone, and c may have committed it with the word of b."""
    b = holder()
    meets(b, view(2, "bxc"), "xc")
    said = [*b.reduce("x", vector(1, 1), "x"), *b.reduce("c", vector(1), "c"), *b.have("x"), *b.have("c")]
    assert not any("drop" in line or "aborted" in line for line in said)


def test_who_has_only_a_part_of_it_does_not() -> None:
    b = full("b")
    b.contribute(1, 1)
    b.frame("a", fr.Result(epoch=1, round=1, offset=0, total=2, dtype="<f4"), vector(5))
    assert ended(b.learn(view(2, "bcde"))) == []


def test_another_run_does_not_ask_for_what_is_held() -> None:
    b = full("b")
    b.contribute(1)
    b.result("a", vector(5), "abcde", final=False)
    assert ended(b.learn(view(2, "abcde", run="r"))) == ["round 1 aborted: run"]


def test_a_member_without_the_result_is_handed_it_by_the_holder_that_took_over() -> None:
    c = Machine("c").join(FIVE, up="a")
    c.contribute(1)  # and it has sent all: who knows what a has made of it
    c.learn(view(2, "becd"))
    c.hear(ev.LinkUp(B, 1))
    c.sync("b", 1)
    assert c.hear(ev.TimedOut("too long")) == []
    c.view_frame("b", FIVE)
    assert ended(c.result("b", vector(5), "abcde", decided_in=FIVE.stamp, of="abcde")) == ["round 1 = 5 of abcde"]


@pytest.mark.parametrize("held", ["", "a"])
def test_who_comes_to_a_generation_that_goes_on_leaves_it_to_the_others_what_was_before(held: str) -> None:
    """It dropped the first round, which those who go on had held, put forward again in the new generation, and decided
    while it was cut off."""
    first = msgspec.structs.replace(view(1, "abc"), goes_on=FIVE.stamp)
    c = full("c", first)
    c.hear(ev.Contribute(vector(np.inf), 1.0, "bf16"))  # says so, and that it holds nothing
    assert [abort.clear for abort in aborts(c)] == [True]
    said = meets(c, msgspec.structs.replace(view(2, "ca"), goes_on=FIVE.stamp), "a")
    assert ended(said) == []
    if held:
        assert ended(brings(c, "a", 5)) == ["round 1 = 5 of abcde"]  # c holds it, too, which is half with the head
    else:
        assert ended(refuses(c, "a")) == ["round 1 aborted: nonfinite"]


@pytest.mark.parametrize("lanes", [1, 3])
def test_who_brings_what_does_not_fit_has_said_as_well_that_nothing_is_held(lanes: int) -> None:
    """The round stood still: it was waited for what the child holds, which had told already that it is nothing."""
    c = Machine("c").join(view(2, "cab", lanes=lanes), up="ab")  # it has come late, so the round may be decided
    c.hear(ev.Contribute(vector(*range(96)), 1.0))
    long = {"lane": 1, "total": 97} if lanes > 1 else {}
    said = c.reduce("a", vector(*range(32 if lanes > 1 else 97)), "a", **long)
    assert not any("drop" in line for line in said)
    part = {"lane": 1, "total": 96} if lanes > 1 else {}
    said = c.reduce("b", vector(*range(32 if lanes > 1 else 96)), "b", **part)
    assert [line for line in said if "drop" in line] == [
        "a <- drop 1: mismatch complete",
        "b <- drop 1: mismatch complete",
    ]


def test_a_sum_that_does_not_fit_and_is_of_others_says_nothing() -> None:
    """Only who is at or below the child has spoken by it."""
    c = Machine("c").join(view(2, "cab"), up="ab")
    c.contribute(1)
    c.reduce("b", vector(1), "b")
    assert not any("drop" in line for line in c.reduce("a", vector(1, 2), "ab"))
