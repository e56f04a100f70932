"""When a round counts: the tables in deciding.py and allreduce.py. The tree: a over bc, b over de; abc must hold."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from company import Company
from holders import FIVE, aborts, brings, ended, full, holder, meets, refuses, summed_up
from states import put_to_use, state
from transcript import Machine, vector, view

from edgepeer.ids import Generation, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.streams import digest_of
from edgepeer.wire import frames as fr

A, B = PeerId("a"), PeerId("b")
NINE = view(1, "abcdefghi")  # a, b, c, d, e must hold: b waits for d and e


# -- holding -----------------------------------------------------------------------------------------------


def test_nobody_commits_before_those_who_must_hold_do() -> None:
    a = summed_up()
    assert a.node.allreduce.committed == 0
    assert a.have("c") == []
    assert a.have("b") == ["b <- decide 1", "c <- decide 1", "round 1 = 5 of abcde"]


def test_a_root_that_holds_the_round_waits_for_those_who_have_not_said_that_they_do() -> None:
    a = summed_up()
    assert a.node.allreduce.missing() == ("b", "c")
    a.have("c")
    assert a.node.allreduce.missing() == ("b",)


def test_a_holder_waits_for_those_behind_it_and_then_for_the_root() -> None:
    b = full("b", NINE)
    b.contribute(1)
    b.result("a", vector(9), "abcdefghi", final=False)
    b.have("e")
    assert b.node.allreduce.missing() == ("d",)
    b.have("d")
    assert b.node.allreduce.missing() == ("a",)


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
    b.now = 0.5
    b.contribute(1)
    b.now = 1.5
    b.reduce("d", vector(1), "d")
    b.now = 2.0
    b.reduce("e", vector(1), "e")
    b.now = 2.5
    b.result("a", vector(5), "abcde", final=False)
    b.now = 2.75
    b.decide("a")
    (committed,) = (effect for effect in b.effects if isinstance(effect, fx.RoundCommitted))
    assert committed.phases == fx.Phases(waited_s=1.5, broadcast_s=0.5, decided_s=0.25)
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


def test_that_a_round_is_dropped_is_held_and_decided_like_a_sum() -> None:
    b = full("b")
    b.contribute(1)
    assert b.drop("a", "timeout") == ["d <- drop 1: timeout complete", "e <- drop 1: timeout complete", "a <- have 1"]
    assert b.node.allreduce.committed == 0
    verdict = fr.Abort(epoch=1, round=1, cause="timeout", reason="so", over=True)
    assert b.frame("a", verdict) == ["d <- abort 1: timeout", "e <- abort 1: timeout", "round 1 aborted: timeout"]


def test_it_takes_the_place_of_a_sum_that_has_come_in_part() -> None:
    b = full("b")
    b.contribute(1, 1)
    b.frame("a", fr.Result(epoch=1, round=1, offset=0, total=2, dtype="<f4"), vector(5))
    assert b.drop("a", "timeout")[-1] == "a <- have 1"


def test_a_mismatch_is_dropped_whatever_size_the_others_have() -> None:
    d = full("d")
    d.contribute(1, 2, 3)
    assert d.drop("b", "mismatch") == []
    assert d.decide("b") == ["round 1 aborted: mismatch"]


def test_a_round_that_was_dropped_in_vain_may_be_put_forward_again_in_the_next_view() -> None:
    """It may have been decided: somebody may have told its owner so."""
    b = full("b")
    b.contribute(1)
    b.drop("a", "timeout")
    meets(b, view(2, "bca"), "ca")
    b.reduce("c", vector(1), "c")
    assert b.reduce("a", vector(1), "a") == [
        "c <- view 1", "c <- drop 1: timeout complete", "a <- view 1", "a <- drop 1: timeout complete",
    ]  # fmt: skip
    assert ended(b.have("c")) == ["round 1 aborted: timeout"]


def test_what_is_dropped_has_no_sum() -> None:
    b = full("b")
    commit = fr.Commit(
        decided_in=1,
        held_in=1,
        contributors=b"",
        weight=0.0,
        exact=False,
        digest=digest_of(vector(5)),
        dropped="timeout",
    )
    frame = fr.Result(epoch=1, round=1, offset=0, total=1, dtype="<f4", commit=commit)
    said = b.frame("a", frame, vector(5))
    assert "close a: result of round 1 is not empty, though the round is dropped" in said
    assert ended(said) == []


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


def contribute(company: Company) -> None:
    """Each brings its own bit."""
    for position, name in enumerate(company.machines):
        company.hear(name, ev.Contribute(vector(1 << position), 1.0))


CUTS = [1.000 + tenths / 10000 for tenths in range(0, 100, 7)]


@pytest.mark.parametrize("pair", ["ab", "ac", "bd", "be"])
@pytest.mark.parametrize("moment", CUTS)
def test_a_link_that_breaks_at_any_moment_of_a_round(pair: str, moment: float) -> None:
    """Both ends notice at once, connect again, and say where they stand; there is no tunnel to help."""
    company = Company(FIVE, limits=Limits(relay_after_s=600.0))
    company.broker = False
    company.until(1.0)
    contribute(company)
    company.until(moment)
    company.disconnect(pair)
    company.until(3.0)
    found = {name: effect for _, name, effect in company.effects(fx.RoundCommitted)}
    assert sorted(found) == list("abcde")
    for effect in found.values():
        assert isinstance(effect, fx.RoundCommitted)
        assert (effect.round, effect.sum[0], effect.exact) == (1, 31.0, True)
    for number in (2, 3):
        contribute(company)
        company.until(company.now + 0.5)
        assert {machine.node.allreduce.committed for machine in company.machines.values()} == {number}


@pytest.mark.parametrize("dead", list("abcde"))
@pytest.mark.parametrize("moment", CUTS)
def test_a_peer_that_dies_at_any_moment_of_a_round(dead: str, moment: float) -> None:
    """The survivors commit one and the same: with the dead one's contribution, or without."""
    company = Company(FIVE)
    company.until(1.0)
    contribute(company)
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


@pytest.mark.parametrize("decided_in", [1, 999])
def test_a_result_from_below_changes_nothing_of_what_the_root_holds(decided_in: int) -> None:
    """No peer sends such a thing; garbage may look like it."""
    a = full("a")
    a.contribute(1)
    for child, who in (("b", "bde"), ("c", "c")):
        a.reduce(child, vector(1), who)
    assert a.node.diagnosis(a.now)["round"]["held"]
    total, view_ = vector(9), a.node.view
    assert view_ is not None
    commit = fr.Commit(
        decided_in=view_.stamp if decided_in == 1 else decided_in << 32,
        held_in=view_.stamp,
        contributors=b"\x01",
        weight=1.0,
        exact=True,
        digest=digest_of(total),
        final=True,
    )
    assert a.frame("b", fr.Result(epoch=1, round=1, offset=0, total=1, dtype="<f4", commit=commit), total) == []
    a.have("b")
    a.have("c")
    (committed,) = [effect for effect in a.effects if isinstance(effect, fx.RoundCommitted)]
    assert committed.digest == digest_of(committed.sum) != digest_of(total)


def test_what_has_gone_up_once_may_have_been_decided_even_if_it_is_to_be_sent_again() -> None:
    """The link breaks behind b's contribution, and a, which has committed, will hand that over; then a is gone. c holds
    what a had the round decided by, so b must not drop it in the next view before c has spoken."""
    three = view(1, "abc")
    b = Machine("b").join(three, up="ac")
    b.contribute(1)
    b.hear(ev.LinkDown(PeerId("a"), "reset"))
    b.level("a", 1)
    b.learn(view(2, "bc", after=b.node.view))
    b.level("c")
    assert b.hear(ev.TimedOut("enough")) == []
    assert brings(b, "c", 111, made=three)[-1] == "round 1 = 111 of abc"


def test_who_has_missed_a_view_may_not_have_been_in_it() -> None:
    """The head of view 1 took b for lost, and a word of b's from before it was in came late: so it is let in again, as
    the same life, and hears of that alone. The round may have been decided without it, and c may hold it."""
    one = view(1, "abcd")
    two = view(2, "acd", after=one)
    three = view(3, "acdb", after=two)
    b = Machine("b").join(one, up="a")
    b.hear(ev.LinkDown(PeerId("a"), "reset"))
    b.learn(three)
    b.learn(view(4, "bcd", after=three))
    for peer in "cd":
        b.level(peer)
    b.contribute(1)
    assert b.hear(ev.TimedOut("enough")) == []
    b.reduce("d", vector(1), "d")
    brings(b, "c", 111, made=two, held_in=two)
    assert b.have("c")[-1] == "round 1 = 111 of acd"


def test_a_round_that_the_root_drops_alone_does_not_show_that_all_have_come() -> None:
    """In view 1 a and c have dropped two rounds without b, to which b had given nothing. In view 2 b drops the first as
    well, before c can tell it; it must not go on without c then, and add up the second alone."""
    one = view(1, "acb")
    b = Machine("b").join(one)
    b.contribute(1)
    b.hear(ev.TimedOut("enough"))
    assert "round 1 aborted: timeout" in b.learn(view(2, "bc", first_round=3, after=one))
    assert not b.node.parts.membership.settled
    b.contribute(1)
    assert not ended([line.split(": ")[1] for line in b.until(20.0)])
    assert b.node.view is not None
    assert b.node.view.epoch == 2


def test_but_it_does_where_all_have_spoken() -> None:
    a = Machine("a").join(view(2, "abc", after=FIVE), up="bc")
    a.contribute(1)
    a.reduce("b", vector(1), "b")
    abort = fr.Abort(epoch=2, round=1, cause="mismatch", reason="so", over=False, clear=True)
    a.frame("c", abort)
    assert not a.node.parts.membership.settled
    assert a.have("b")[-1] == "round 1 aborted: mismatch"
    assert a.node.parts.membership.settled


def test_what_has_come_damaged_to_a_frozen_peer_is_refused_at_once() -> None:
    """When it comes to hold the result, or hears that it counts, the link that it came over may be gone."""
    b = full("b")
    b.contribute(1)
    b.hear(ev.LinkDown(PeerId("d"), "reset"), 10.0)
    assert b.node.parts.place.waking
    commit = fr.Commit(
        decided_in=1, held_in=1, contributors=b"\x1f", weight=5.0, exact=True, digest=digest_of(vector(5)), final=False
    )
    frame = fr.Result(epoch=1, round=1, offset=0, total=1, dtype="<f4", commit=commit)
    assert "close a: result of round 1 does not have the root's digest" in b.frame("a", frame, vector(666))
    b.level("a")
    assert ended(b.decide("a")) == []
    b.result("a", vector(5), "abcde", final=False)
    b.hear(ev.LinkDown(A, "reset"))
    b.level("a", have=1)
    assert ended(b.decide("a")) == ["round 1 = 5 of abcde"]


@pytest.mark.parametrize("order", ["de", "ed"])
def test_of_two_generations_the_later_counts_whatever_its_views_are_called(order: str) -> None:
    """Whoever has begun the later one may have put forward what was held, in its first view."""
    later, latest = Generation(counter=2), Generation(counter=3)
    first = msgspec.structs.replace(FIVE, generation=later)
    a = Machine("a").join(msgspec.structs.replace(view(2, "ade"), generation=latest))
    for child in "de":
        a.hear(ev.LinkUp(PeerId(child), 1))
        assert a.node.view is not None
        sync = fr.Sync(epoch=a.node.view.stamp, run="", committed=0, generation=latest)
        a.hear(ev.FrameReceived(PeerId(child), sync))
    held_in = {"d": (view(9, "abcde"), Generation(), 5.0), "e": (first, later, 7.0)}
    for child in order:
        made, generation, total = held_in[child]
        brings(a, child, total, made=made, held_in=made, generation=generation)
    a.contribute(1)
    assert a.have("d")[-1] == "round 1 = 7 of abcde"


def test_who_holds_it_does_not_say_that_nothing_is_held() -> None:
    """Else the root would drop what may be decided."""
    b = holder()
    meets(b, view(2, "abcde"), "ade")
    refuses(b, "d")
    refuses(b, "e")
    assert not any(frame.clear for frame in aborts(b))


def test_nor_does_who_has_been_sent_something_from_below() -> None:
    b = full("b", view(2, "abcde"))
    brings(b, "d", 5)
    refuses(b, "e")
    assert not any(frame.clear for frame in aborts(b))


def test_but_where_all_have_refused_and_nothing_is_held_it_does() -> None:
    b = full("b", view(2, "abcde"))
    refuses(b, "d")
    refuses(b, "e")
    assert [frame.clear for frame in aborts(b)] == [True]


def test_who_is_told_that_a_round_is_dropped_does_not_know_that_all_have_come() -> None:
    """Only the root may know that."""
    c = full("c", view(2, "abc", after=FIVE))
    c.drop("a", "timeout", final=True)
    assert c.node.allreduce.committed == 1
    assert not c.node.parts.membership.settled


def test_who_holds_something_or_has_not_come_to_the_views_first_round_is_not_level() -> None:
    """That all are shows that nothing of the views before counts any more."""
    b = holder()
    meets(b, view(2, "abc", after=FIVE), "a")
    assert b.node.allreduce.level == -1  # type: ignore[attr-defined]
    late = full("b", view(2, "abc", first_round=1))
    assert late.node.allreduce.level == 0  # type: ignore[attr-defined]
    late.learn(view(3, "abc", first_round=3, after=late.node.view))
    assert late.node.allreduce.level == -1  # type: ignore[attr-defined]


def test_who_has_come_later_does_not_drop_what_those_before_it_may_have_decided() -> None:
    two = view(2, "abc", after=FIVE)
    c = Machine("c").join(two, up="a")
    c.learn(view(3, "cb", after=two))
    c.level("b")
    c.contribute(1)
    assert c.hear(ev.TimedOut("enough")) == []


def test_what_was_decided_in_a_view_before_goes_down_with_that_view() -> None:
    b = full("b", view(2, "abcde"))
    b.view_frame("a", FIVE)
    said = b.result("a", vector(5), "abcde", decided_in=FIVE.stamp, of="abcde", final=False)
    assert [line for line in said if line.startswith("d")] == ["d <- view 1", "d <- result 1 [0:] 5 complete"]


def test_what_is_held_below_is_of_the_view_that_was_told_of() -> None:
    """Its contributors are positions in that."""
    a = Machine("a").join(view(3, "abc"), up="bc")
    a.view_frame("b", view(2, "acbde"))
    commit = fr.Commit(
        decided_in=FIVE.stamp, held_in=FIVE.stamp, contributors=b"\x07", weight=3.0, exact=True,
        digest=digest_of(vector(5)), final=False,
    )  # fmt: skip
    frame = fr.Result(epoch=3, round=1, offset=0, total=1, dtype="<f4", commit=commit, up=True)
    assert "close b: result of round 1 was decided in an unknown view" in a.frame("b", frame, vector(5))


def test_a_parent_that_has_all_of_a_contribution_has_nothing_of_the_result_by_that() -> None:
    """What it has of what comes from below says nothing of what is handed over from there."""
    b = full("b")
    b.contribute(1)
    b.result("a", vector(5), "abcde")
    assert b.node.allreduce.committed == 1
    b.hear(ev.LinkDown(A, "reset"))
    assert "a <- result 1 [0:] 5 committed" in b.level("a", have=1)


def test_who_has_taken_a_state_over_does_not_drop_what_others_may_have_decided_since() -> None:
    world = view(3, "bd", run="r", first_round=5)
    b = Machine("b").join(world)
    b.level("d", 7)
    state(b, "d", b"seven", number=7)
    put_to_use(b)
    assert b.node.allreduce.committed == 7
    b.contribute(1)
    assert not any("drop" in line or "aborted" in line for line in b.hear(ev.TimedOut("enough")))


def test_nobody_is_late_for_a_round_that_is_to_be_dropped() -> None:
    a = full("a")
    a.contribute(1)
    assert a.node.parts.course.round.late == ["b", "c"]
    a.hear(ev.TimedOut("enough"))
    assert a.node.parts.course.round.late == []
