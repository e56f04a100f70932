"""What Pings say and what follows from it: the table in vitals.py. The tree: a over bc, b over de, c over fg."""

from __future__ import annotations

import pytest
from company import Company
from states import OVER_S
from transcript import Machine, vector, view

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.links import LinkState
from edgepeer.topology.view import View
from edgepeer.wire import frames as fr

SEVEN = view(1, "abcdefg")
B, D = PeerId("b"), PeerId("d")


def full(name: str, world: View = SEVEN) -> Machine:
    machine = Machine(name).join(world)
    for peer in sorted({*world.neighbours(PeerId(name)), *world.backups(PeerId(name))}):
        machine.level(peer)
    return machine


def says(machine: Machine, peer: str, *, epoch: int = 1, **fields: int | tuple[int, int]) -> None:
    machine.frame(peer, fr.Ping(waiting=False, stamp=1.0, every=1.0, epoch=epoch, **fields))  # type: ignore[arg-type]


def told(machine: Machine) -> dict[str, fr.Ping]:
    """What the machine has just said to whom."""
    sends = [effect for effect in machine.effects if isinstance(effect, fx.Send)]
    return {str(send.peer): send.frame for send in sends if isinstance(send.frame, fr.Ping)}


# -- reaches -----------------------------------------------------------------------------------------------


def test_a_ping_says_with_whom_its_sender_is_connected() -> None:
    b = full("b")
    b.until(2.0)
    for peer in "acdefg":
        says(b, peer)
    b.hear(ev.LinkDown(D, "reset"))
    pings = told(b)
    assert set(pings) == set("acefg")  # at once, to all
    for ping in pings.values():
        assert SEVEN.names(fr.unpack_set(ping.reaches)) == tuple("acefg")
        assert ping.epoch == SEVEN.stamp
    b.hear(ev.LinkUp(D, 1))
    assert SEVEN.names(fr.unpack_set(told(b)["d"].reaches)) == tuple("acdefg")


def test_what_goes_through_a_tunnel_is_not_a_connection() -> None:
    company = Company(SEVEN)
    company.until(1.0)
    company.sever("bd")
    company.until(4.0)
    assert company.path("b", "d").startswith("via")
    sends = [effect for _, name, effect in company.effects(fx.Send, since=3.0) if name == "b"]
    pings = [send.frame for send in sends if isinstance(send, fx.Send) and isinstance(send.frame, fr.Ping)]
    assert pings
    assert all("d" not in SEVEN.names(fr.unpack_set(ping.reaches)) for ping in pings)


def test_who_has_no_view_reaches_nobody() -> None:
    b = Machine("b")
    b.hear(ev.LinkUp(PeerId("x"), 1))
    ping = fr.Ping(waiting=False, stamp=1.0, every=1.0)
    assert b.frame("x", ping) == ["x <- sync 0 after 0"]
    b.join(SEVEN).level("a")
    b.hear(ev.LinkUp(D, 1))
    assert told(b)["d"].epoch == SEVEN.stamp


# -- orphan ------------------------------------------------------------------------------------------------


def test_who_has_lost_its_parent_says_so_at_once_to_all() -> None:
    b = full("b")
    b.hear(ev.LinkDown(PeerId("a"), "reset"))
    assert {ping.orphan for ping in told(b).values()} == {True}
    assert set(told(b)) == set("cdefg")


def test_who_hears_it_from_its_parent_passes_it_on_and_takes_it_back() -> None:
    b = full("b")
    says(b, "a", orphan=True)
    assert {ping.orphan for ping in told(b).values()} == {True}
    says(b, "a", orphan=True)
    assert told(b) == {}  # said already
    says(b, "a")
    assert {ping.orphan for ping in told(b).values()} == {False}


@pytest.mark.parametrize("peer", ["c", "d"])
def test_orphans_beside_or_below_do_not_make_one(peer: str) -> None:
    b = full("b")
    says(b, peer, orphan=True)
    assert not b.node.parts.vitals.orphan


def test_an_orphan_of_another_view_does_not_either() -> None:
    b = full("b")
    says(b, "a", orphan=True, epoch=2)
    assert not b.node.parts.vitals.orphan


def test_the_coordinator_is_never_one() -> None:
    a = full("a")
    for peer in "bc":
        says(a, peer, orphan=True)
        a.hear(ev.LinkDown(PeerId(peer), "reset"))
    assert not a.node.parts.vitals.orphan


# -- level and settled -------------------------------------------------------------------------------------

OPEN = view(1, "abcdefg", after=view(9, "abcdefgh"))
"""Something of the view before it may be open."""
NEXT = view(2, "abcdef", after=OPEN)


def level(machine: Machine) -> int:
    return machine.node.parts.vitals._state()[1]


def test_a_leaf_stands_level_as_soon_as_it_works_in_the_view() -> None:
    d = Machine("d").join(OPEN)
    d.hear(ev.LinkUp(B, 1))
    assert told(d)["b"].level == 0


def test_an_inner_peer_stands_level_when_all_below_it_do() -> None:
    b = full("b", OPEN)
    assert level(b) == -1
    says(b, "d", level=0)
    assert told(b) == {}
    says(b, "e", level=0)
    assert {ping.level for ping in told(b).values()} == {0}
    b.hear(ev.LinkDown(D, "reset"))
    assert {ping.level for ping in told(b).values()} == {-1}


def test_who_stands_after_another_round_does_not_stand_level() -> None:
    b = full("b", OPEN)
    says(b, "d", level=0)
    says(b, "e", level=1)
    assert level(b) == -1
    says(b, "d", level=1)
    assert level(b) == -1


def test_level_in_another_view_does_not_count() -> None:
    b = full("b", OPEN)
    says(b, "d", level=0, epoch=2)
    says(b, "e", level=0)
    assert level(b) == -1


def test_who_holds_a_result_that_may_count_does_not_stand_level() -> None:
    d = full("d", OPEN)
    assert level(d) == 0
    d.contribute(1)
    d.result("b", vector(7), "abcdefg", final=False)
    assert level(d) == -1


def test_nor_does_who_has_missed_a_round_of_the_views_before() -> None:
    d = Machine("d").join(view(1, "abcdefg", run="r", first_round=4, after=view(9, "abcdefgh")))
    d.hear(ev.LinkUp(B, 1))
    assert level(d) == -1
    d = Machine("d")
    d.hear(ev.RunWanted("r", 1, 3))
    d.join(view(1, "abcdefg", run="r", first_round=4, after=view(9, "abcdefgh")))
    assert level(d) == 3


def test_when_all_stand_level_the_root_says_that_it_is_settled() -> None:
    a = full("a", OPEN)
    says(a, "b", level=0)
    assert not a.node.parts.membership.settled
    says(a, "c", level=0)
    assert {ping.settled for ping in told(a).values()} == {True}
    assert {ping.level for ping in told(a).values()} == {-1}  # which nobody needs to know any more
    assert a.node.parts.membership.settled


def test_a_view_that_nothing_open_precedes_is_settled_from_the_start() -> None:
    assert full("b").node.parts.membership.settled
    assert not full("b", OPEN).node.parts.membership.settled


def test_that_a_view_is_settled_is_believed_of_any_of_its_members() -> None:
    """The way from the root may be gone before it gets here."""
    b = full("b", OPEN)
    b.learn(NEXT)
    says(b, "a", settled=True)  # of the view before
    assert not b.node.parts.membership.settled
    says(b, "c", settled=True, epoch=2)
    assert b.node.parts.membership.settled
    assert {ping.settled for ping in told(b).values()} == {True}


def test_a_round_that_counts_shows_that_all_work_in_the_view_that_decided_it() -> None:
    b = full("b", OPEN)
    b.learn(NEXT)
    for peer in "ade":
        b.sync(peer, 0)
    b.contribute(1)
    b.result("a", vector(6), "abcdef")
    assert b.node.parts.membership.settled


def test_a_round_that_was_decided_in_the_view_before_does_not() -> None:
    b = full("b", OPEN)
    b.learn(NEXT)
    for peer in "ade":
        b.sync(peer, 0)
    b.view_frame("a", OPEN)
    b.result("a", vector(7), "abcdefg", decided_in=OPEN.stamp, of="abcdefg")
    assert b.node.allreduce.committed == 1
    assert not b.node.parts.membership.settled


def test_with_a_new_view_it_begins_anew() -> None:
    a = full("a", OPEN)
    for peer in "bc":
        says(a, peer, level=0)
    assert a.node.parts.membership.settled
    a.learn(NEXT)
    assert level(a) == -1
    assert not a.node.parts.membership.settled


def test_the_highest_ballot_that_was_heard_of_goes_through_the_tree() -> None:
    """So that the head knows that somebody is bound to follow another."""
    b = full("b")
    says(b, "d", ballot=4100, epoch=2)  # of another view
    assert told(b) == {}
    says(b, "d", ballot=4099)
    assert {ping.ballot for ping in told(b).values()} == {4099}
    says(b, "e", ballot=4098)
    assert told(b) == {}


@pytest.mark.parametrize("names", ["a", "ab", "abcdefg", "abcdefghijklmno"])
def test_in_a_fleet_that_is_whole_all_know_it_soon(names: str) -> None:
    company = Company(view(1, names, after=view(9, names)))
    company.until(0.5)
    for name in names:
        assert company[name].node.parts.membership.settled
        assert not company[name].node.parts.vitals.orphan


def test_while_one_is_missing_nobody_thinks_so() -> None:
    company = Company(OPEN)
    company.kill("g")
    company.until(2.5)
    assert not any(company[name].node.parts.membership.settled for name in "abcdef")


def test_all_below_a_cut_know_that_they_are_orphans_and_again_when_they_are_not() -> None:
    company = Company(SEVEN)
    company.until(1.0)
    company.broker = False
    company.sever(*[one + other for one in "bde" for other in "acfg"])
    company.until(3.0)
    assert [name for name in "abcdefg" if company[name].node.parts.vitals.orphan] == ["b", "d", "e"]
    company.mend()
    company.until(5.0)
    assert not any(machine.node.parts.vitals.orphan for machine in company.machines.values())


# -- slow, cut off, gone ---------------------------------------------------------------------------------------


def at_work() -> Company:
    company = Company(SEVEN)
    company.until(1.0)
    for _ in range(3):
        contribute(company)
        company.until(company.now + 0.1)
    contribute(company)
    return company


def contribute(company: Company) -> None:
    for name, machine in company.machines.items():
        if machine.node.view is not None and not machine.node.allreduce.contributed:
            company.hear(name, ev.Contribute(vector(1), 1.0))


def since_then(company: Company, seconds: float) -> tuple[set[View | None], set[str], int]:
    """The views that all are in after some time, what links broke for meanwhile, and the rounds that are over."""
    began = company.now
    company.until(began + seconds)
    living = [machine.node for name, machine in company.machines.items() if name not in company.dead]
    closed = {name for _, name, _ in company.effects(fx.CloseLink, since=began)}
    return {node.view for node in living}, closed, min(node.allreduce.committed for node in living)


@pytest.mark.parametrize("latency_s", [0.02, 0.2])
def test_who_is_slow_is_waited_for(latency_s: float) -> None:
    """Everything takes much longer all of a sudden: that raises false alarms, but soon no more, and nobody is gone."""
    company = at_work()
    company.latency_s = latency_s
    assert since_then(company, 10.0)[::2] == ({SEVEN}, 4)
    for number in range(5, 8):
        contribute(company)
        assert since_then(company, 3.0) == ({SEVEN}, set(), number)


def test_a_dead_link_is_gone_around_and_nobody_is_gone() -> None:
    company = at_work()
    company.sever("bd")
    assert since_then(company, 10.0) == ({SEVEN}, {"b", "d"}, 4)
    assert company.path("d", "b").startswith("via")


def test_a_dead_peer_is_gone_when_no_path_answers() -> None:
    company = at_work()
    company.until(company.now + 0.1)
    company.kill("d")
    contribute(company)
    (world,), closed, committed = since_then(company, 2.5)
    assert (world, committed) == (SEVEN, 4)
    assert closed == {"b", "c", "e"}  # all who were connected with it have noticed
    (world,), _, committed = since_then(company, 2.0)
    assert world is not None
    assert sorted(world.ids) == list("abcefg")
    assert committed == 5


def test_a_peer_that_stands_still_for_a_while_is_not() -> None:
    """Its process is stopped and continued: it finds what was said to it meanwhile, and all go on."""
    company = at_work()
    company.until(company.now + 0.1)
    company.sever(*["d" + other for other in "abcefg"])
    company.broker = False
    contribute(company)
    assert since_then(company, 2.0)[::2] == ({SEVEN}, 4)
    company.mend()
    company.broker = True
    assert since_then(company, 3.0)[::2] == ({SEVEN}, 5)


# -- what is shown -----------------------------------------------------------------------------------------


def test_link_states() -> None:
    company = Company(SEVEN)
    company.until(10.0)
    company.sever("bd")
    company.until(11.8)
    states = {state.peer: state for state in company["b"].node.link_states()}
    assert list(states) == sorted(states)
    assert {peer: state.role for peer, state in states.items()} == {
        "a": "parent", "c": "backup", "d": "child", "e": "child", "f": "backup", "g": "backup",
    }  # fmt: skip
    above = states[PeerId("a")]
    assert above == LinkState(PeerId("a"), "parent", True, "direct", above.rtt_s, 0.0)
    assert above.rtt_s == pytest.approx(0.002)
    assert (states[D].up, states[D].path) == (True, "via e")


def test_a_link_that_is_down() -> None:
    b = Machine("b").join(view(1, "ab"))
    assert b.node.link_states() == (LinkState(PeerId("a"), "parent", False, "", None, 0.0),)


# -- a round begins ----------------------------------------------------------------------------------------


def test_who_waits_for_those_below_says_something_upwards_meanwhile() -> None:
    """Or whether the path to the parent is broken would show only when all else is there."""
    b = full("b")
    b.until(1.5)
    b.contribute(1)
    pings = told(b)
    assert set(pings) == {"a"}
    assert pings["a"].waiting
    b.reduce("d", vector(1), "d")
    b.reduce("e", vector(1), "e")
    assert any(isinstance(e, fx.Send) and isinstance(e.frame, fr.Reduce) for e in b.effects)


def test_but_not_where_something_has_just_been_sent_nor_by_who_has_nobody_below() -> None:
    b = full("b")
    b.until(1.5)
    b.frame("a", fr.Sync(epoch=0, run="", committed=0))  # is answered
    b.now += 0.03
    b.contribute(1)
    assert not told(b)
    d = full("d")
    d.until(1.5)
    d.contribute(1)
    assert not told(d)


@pytest.mark.parametrize("others", ["", "d"])
def test_that_a_run_is_over_is_news_to_the_head_whatever_else_it_has_to_tell_just_then(others: str) -> None:
    """c has started again, and waits for a state that nobody has any more. Where another link came up before the head
    looked again, that was told with the rest, and the view without a run did not come."""
    a = Machine("a").join(view(2, "abcdefg", run="r", after=SEVEN), up="bc")
    a.others = "bcdefg"
    a.hear(ev.RunWanted(None))

    def go_on(seconds: float, state_of_c: int) -> list[str]:
        said = []
        until = a.now + seconds
        while a.now < until:
            says(a, "b", epoch=2, stands=(-2, 7))
            says(a, "c", epoch=2, stands=state_of_c)
            said += a.until(a.now + 0.4)
        return said

    assert not any("view 3" in line for line in go_on(2.0, 7))
    a.hear(ev.LinkDown(PeerId("c"), "reset"))
    a.level("c", -1)
    for peer in others:
        a.hear(ev.LinkUp(PeerId(peer), 1))
    assert any("view 3" in line for line in go_on(OVER_S, -1))


@pytest.mark.parametrize("first", [(-2, 7), (-1, 7), (5, 7)])
@pytest.mark.parametrize("then", [(-2, 7), (-1, 7), (5, 7), (6, 7), None, 7])
def test_whatever_changes_of_a_state_that_is_missing_is_passed_on_at_once(
    first: tuple[int, int], then: int | tuple[int, int] | None
) -> None:
    """However deep the tree is, the head must not take a run for over because of what was so a while ago."""
    world = view(3, "abcdefg", run="r", first_round=1)
    b = full("b", world)
    for peer in "ade":
        b.level(peer, -1)

    def says_so(stands: int | tuple[int, int] | None) -> None:
        b.frame("d", fr.Ping(waiting=False, stamp=1.0, every=1.0, epoch=world.stamp, stands=stands))

    b.frame("e", fr.Ping(waiting=False, stamp=1.0, every=1.0, epoch=world.stamp, stands=(-2, 7)))
    says_so(first)
    b.until(b.now + 1.5)
    says_so(then)
    said = [(-1, 7) if each == (-2, 7) else each for each in (first, then)]  # b takes part, and has none
    assert ("a" in told(b)) == (said[0] != said[1])
    if "a" in told(b):
        assert told(b)["a"].stands == said[1]


@pytest.mark.parametrize("then", [None, 8])
def test_so_is_a_state_that_is_missing_above(then: int | None) -> None:
    """Below nobody has heard of round 8, until its end comes."""
    world = view(3, "abcdefg", run="r", first_round=1)
    b = full("b", world)
    for peer in "ade":
        b.level(peer, -1)

    def says_so(peer: str, stands: int | tuple[int, int] | None) -> None:
        b.frame(peer, fr.Ping(waiting=False, stamp=1.0, every=1.0, epoch=world.stamp, stands=stands))

    says_so("e", 7)
    says_so("d", 7)
    says_so("a", (7, 8))
    b.until(b.now + 1.5)
    says_so("d", 7)
    assert "a" not in told(b)
    says_so("d", then)
    assert told(b)["a"].stands == then
