"""Who takes over, and who may go on without whom: the table in election.py, and quorum in membership.py."""

from __future__ import annotations

import pytest
from company import Company
from transcript import Machine, member, vector, view, when

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.membership import Membership
from edgepeer.topology.view import View
from edgepeer.wire import frames as fr

A, B, C = map(PeerId, "abc")
SEVEN = view(1, "abcdefg")


def poll(machine: Machine, peer: str, candidate: str, *, number: int = 1, epoch: int = 1) -> list[str]:
    return machine.frame(peer, fr.Poll(epoch=epoch, candidate=candidate, number=number))


def vote(machine: Machine, peer: str, candidate: str, voter: str, *, number: int = 1, epoch: int = 1) -> list[str]:
    return machine.frame(peer, fr.Vote(epoch=epoch, candidate=candidate, number=number, voter=voter))


def member_d(*, orphan: bool) -> Machine:
    """A leaf with all its links; its parent is b, and c and e its backups."""
    d = Machine("d").join(SEVEN, up="bce")
    d.frame("b", fr.Ping(waiting=False, stamp=1.0, every=1.0, epoch=1, orphan=orphan))
    return d


# -- polls and votes ---------------------------------------------------------------------------------------


def test_who_has_lost_the_way_to_the_coordinator_votes_and_passes_the_poll_on() -> None:
    d = member_d(orphan=True)
    assert poll(d, "c", "c") == ["b <- poll 1 for c in 1", "e <- poll 1 for c in 1", "c <- vote 1 of d for c"]


def test_who_has_lost_its_own_parent_votes() -> None:
    d = member_d(orphan=False)
    d.hear(ev.LinkDown(B, "reset"))
    assert poll(d, "c", "c") == ["e <- poll 1 for c in 1", "c <- vote 1 of d for c"]


def test_who_has_a_way_to_the_coordinator_only_passes_the_poll_on() -> None:
    assert poll(member_d(orphan=False), "c", "c") == ["b <- poll 1 for c in 1", "e <- poll 1 for c in 1"]


def test_everybody_votes_for_the_coordinator() -> None:
    """It polls when it has lost somebody: who does not answer does not count."""
    for lost in (True, False):
        assert poll(member_d(orphan=lost), "b", "a") == [
            "c <- poll 1 for a in 1", "e <- poll 1 for a in 1", "b <- vote 1 of d for a",
        ]  # fmt: skip


def test_the_coordinator_does_not_vote_against_itself() -> None:
    a = Machine("a").join(SEVEN, up="bc")
    assert poll(a, "b", "c") == ["c <- poll 1 for c in 1"]


def test_a_poll_is_passed_on_and_answered_once() -> None:
    d = member_d(orphan=True)
    poll(d, "c", "c")
    assert poll(d, "e", "c") == []
    assert poll(d, "c", "c") == []
    assert poll(d, "e", "c", number=2) == ["b <- poll 2 for c in 1", "c <- poll 2 for c in 1", "e <- vote 2 of d for c"]


def test_a_candidate_does_not_answer_its_own_poll() -> None:
    d = member_d(orphan=True)
    assert poll(d, "c", "d") == []


def test_strangers_get_no_vote() -> None:
    assert poll(member_d(orphan=True), "c", "x") == ["b <- poll 1 for x in 1", "e <- poll 1 for x in 1"]


def test_a_poll_for_an_older_view_is_answered_with_the_newer() -> None:
    d = Machine("d").join(view(3, "abcdefg"), up="bce")
    assert poll(d, "c", "c", epoch=2) == ["c <- view 3"]


def test_a_poll_for_a_view_that_is_not_here_yet_means_nothing() -> None:
    d = member_d(orphan=True)
    assert poll(d, "c", "c", epoch=2) == []
    assert poll(Machine("d"), "c", "c") == []


def test_a_vote_goes_back_the_way_that_the_poll_has_come() -> None:
    d = member_d(orphan=True)
    poll(d, "c", "c", number=5)
    assert vote(d, "b", "c", "b", number=5) == ["c <- vote 5 of b for c"]
    assert vote(d, "b", "c", "b", number=6) == []  # never heard of
    assert vote(d, "b", "c", "b", number=5, epoch=9) == []


def test_polls_that_are_remembered_are_few() -> None:
    d = member_d(orphan=True)
    for number in range(1, 1000):
        poll(d, "c", "c", number=number)
    assert len(d.node.election._seen) <= 256


# -- the candidate -----------------------------------------------------------------------------------------


def orphan(world: View = SEVEN, **options: int) -> Machine:
    """b, whose parent a is lost for good, with links to everybody else that it wants."""
    b = Machine("b", limits=Limits(silence_s=2.0)).join(world)
    assert b.node.view is not None
    for peer in {*b.node.view.neighbours(B), *b.node.view.backups(B)} - {"a"}:
        b.hear(ev.LinkUp(peer, b.node.view.member(peer).incarnation))
    b.until(1.0)
    keep(b)
    b.until(2.0)
    return b


def keep(machine: Machine) -> None:
    """All who are connected go on living."""
    for peer, _ in machine.node.links.connected():
        epoch = machine.node.view.epoch if machine.node.view is not None else 0
        machine.frame(str(peer), fr.Ping(waiting=False, epoch=epoch, orphan=True))


def asked_and_answered(machine: Machine, *voters: str, number: int = 1, seconds: float = 0.5) -> list[str]:
    """Votes come, then time passes."""
    assert machine.node.view is not None
    for voter in voters:
        vote(machine, "c", "b", voter, number=number, epoch=machine.node.view.epoch)
    keep(machine)
    return [line for line in machine.until(machine.now + seconds) if "<-" not in line and "dial" not in line]


def test_it_takes_a_quorum_of_votes() -> None:
    b = orphan()
    assert asked_and_answered(b, "c", "d") == []
    assert b.node.membership.waits == "3 of 7 peers are in reach, too few to go on without the others"
    said = asked_and_answered(b, "c", "d", "e")
    assert when(said, "view 2 bgcdef") < 4.0
    assert b.node.membership.coordinator


def test_votes_of_the_same_peer_count_once() -> None:
    assert asked_and_answered(orphan(), "c", "c", "c", "c", "d") == []


def test_votes_of_strangers_and_of_polls_never_held_do_not_count() -> None:
    b = orphan()
    assert asked_and_answered(b, "x", "y", "z", "w") == []
    assert asked_and_answered(b, "c", "d", "e", number=99) == []


def test_old_votes_are_forgotten() -> None:
    b = orphan()
    asked_and_answered(b, "c", "d")
    for _ in range(4):
        asked_and_answered(b)  # it asks again, and nobody answers
    assert asked_and_answered(b, "e") == []


def test_votes_of_polls_shortly_before_count() -> None:
    """On slow paths they take longer than the time between two polls."""
    b = orphan()
    asked_and_answered(b, seconds=0.3)
    said = asked_and_answered(b, "c", "d", "e", number=1)
    assert when(said, "view 2 bgcdef") < 4.0


def test_it_asks_again_and_again() -> None:
    b = orphan()
    polls = [line for line in b.until(2.9) if "c <- poll" in line]
    assert [line.split("<- ")[1].split()[1] for line in polls] == ["2", "3", "4"][: len(polls)]
    assert len(polls) >= 3


def test_a_parent_that_comes_back_ends_it() -> None:
    b = orphan()
    b.level("a")
    assert asked_and_answered(b, "c", "d", "e", "f", "g") == []
    assert not any("poll" in line for line in b.until(3.5))


def test_where_the_tree_has_fallen_apart_it_connects_with_more_members() -> None:
    """f and g are no backups of d; without b, c and a, nobody else could tell it of them."""
    d = Machine("d", limits=Limits(silence_s=2.0)).join(SEVEN)
    said = d.until(3.9)
    assert when(said, "dial b") < 0.3
    assert when(said, "dial f") > 3.0  # its turn is two half seconds after its parent was lost
    assert {line.split(": dial ")[1] for line in said if ": dial " in line} == set("abcefg")
    d.hear(ev.ViewSeen(view(2, "abcdefg")))
    assert {state.peer for state in d.node.link_states()} == set("bce")  # not wanted any more


def test_votes_for_an_earlier_view_are_void() -> None:
    b = orphan()
    for voter in "cde":
        vote(b, "c", "b", voter)
    b.hear(ev.ViewSeen(view(2, "abcdefg")))
    assert b.node.election.votes == {"b"}


# -- quorum ------------------------------------------------------------------------------------------------


def test_half_of_an_even_number_may_not_take_over_from_the_coordinator() -> None:
    b = orphan(view(1, "abcd"))
    assert asked_and_answered(b, "c") == []
    assert when(asked_and_answered(b, "c", "d"), "view 2 bdc") < 4.0


def test_half_with_the_coordinator_may_go_on() -> None:
    a = Machine("a").join(view(1, "abcd"), up="bc")
    a.frame("c", fr.Suspect(epoch=1, peer="d", reason="gone"))
    assert a.votes("b")[0] == "view 2 abc"
    a = Machine("a").join(view(1, "ab"), up="b")
    a.until(1.0)
    assert 3.0 <= when(a.until(5.0), "view 2 a") < 3.3


@pytest.mark.parametrize(
    ("quorum", "lost", "goes_on"), [(4, "d", True), (4, "de", False), (2, "bcd", True), (1, "bcde", True)]
)
def test_a_configured_quorum_is_what_counts(quorum: int, lost: str, goes_on: bool) -> None:
    membership = Membership(member("a"), 2, Limits())
    membership.enter(view(1, "abcde", quorum=quorum), 0.0)
    for peer in lost:
        membership.lose(PeerId(peer), 1.0)
    votes = peers("abcde") - peers(lost)
    found = membership.next_view(first_round=1, boundary=False, idle=True, needed=False, votes=votes, now=1.0)
    assert (found is not None) == goes_on
    assert bool(membership.waits) != goes_on


def test_a_configured_quorum_holds_for_a_takeover() -> None:
    b = orphan(view(1, "abcde", quorum=4))
    assert asked_and_answered(b, "c", "d") == []
    assert when(asked_and_answered(b, "c", "d", "e"), "view 2 becd") < 4.0


def test_the_first_view_says_what_the_quorum_is() -> None:
    a = Machine("a", quorum=5)
    a.hear(ev.ControlSynced(), 0.0)
    a.until(1.0)
    assert a.node.view is not None
    assert a.node.view.quorum == 5


def coordinator(world: View) -> Membership:
    membership = Membership(member("a"), 2, Limits())
    membership.on_synced(0.0)
    for other in world.members:
        membership.on_presence(other, 0.0)
    membership.enter(world, 0.0)
    return membership


def peers(names: str) -> set[PeerId]:
    return {PeerId(name) for name in names}


def following(membership: Membership, votes: str, now: float = 1.0) -> str:
    """The members of the view that the coordinator would make now; empty if none."""
    found = membership.next_view(first_round=1, boundary=False, idle=True, needed=False, votes=peers(votes), now=now)
    return "".join(found.ids) if found is not None else ""


def test_a_member_with_a_newer_life_is_dead_for_sure_and_not_waited_for() -> None:
    a = coordinator(view(1, "abcde"))
    for lost in "cde":
        a.lose(PeerId(lost), 1.0)
    assert following(a, "ab") == ""
    assert a.waits == "2 of 5 peers are in reach, too few to go on without the others"
    a.on_presence(member("c", 2), 1.0)
    assert following(a, "ab", 2.0) == "abc"  # two of the four that may live, and one of them the coordinator
    assert a.waits == ""


def test_a_newer_life_on_a_link_ends_the_older_as_well_as_one_on_mqtt() -> None:
    a = coordinator(view(1, "abcde"))
    for lost in "cde":
        a.lose(PeerId(lost), 1.0)
    a.on_life(C, 1)
    assert following(a, "ab") == ""
    a.on_life(C, 2)
    assert following(a, "ab") == "ab"


def test_the_word_of_a_loss_counts_only_for_a_while() -> None:
    """It is said again for as long as it is true."""
    a = coordinator(view(1, "abcde"))
    assert a.lose(C, 1.0)
    assert not a.lose(C, 2.0)  # no news
    assert following(a, "ab", 2.4) == ""
    assert a.lost(3.4) == {"c"}
    assert a.lost(3.6) == set()
    assert following(a, "abde", 3.6) == ""
    assert a.lose(C, 4.0)


def test_joiners_need_no_votes() -> None:
    a = coordinator(view(1, "abcde"))
    a.on_presence(member("f"), 1.0)
    assert following(a, "a", 2.0) == "abcdef"


def test_those_who_leave_of_their_own_will_agree_to_be_left_out() -> None:
    a = coordinator(view(1, "abcde"))
    for leaver in "bcde":
        a.on_leaver(PeerId(leaver), 1, 0, 1.0)
    assert following(a, "a", 2.0) == "a"


def test_step_by_step_a_minority_does_not_become_the_whole() -> None:
    """Each view has a quorum of the one before, and until all work in that, of the last in which all did."""
    a = coordinator(view(1, "abcde"))
    for lost in "de":
        a.lose(PeerId(lost), 1.0)
    assert following(a, "abc") == "abc"
    a.enter(view(2, "abc"), 1.0)
    a.lose(B, 1.0)
    assert following(a, "ac", 2.0) == ""
    assert a.waits == "2 of 5 peers are in reach, too few to go on without the others"
    a.settle()
    assert following(a, "ac", 2.0) == "ac"


def test_who_does_not_answer_does_not_count_though_nobody_has_said_that_it_is_lost() -> None:
    a = coordinator(view(1, "abcde"))
    a.lose(PeerId("e"), 1.0)
    assert following(a, "ab") == ""
    assert following(a, "abd") == "abcd"


def test_a_takeover_needs_a_quorum_of_the_last_settled_view_too() -> None:
    b = Membership(member("b"), 2, Limits())
    b.enter(view(1, "abcdefg"), 0.0)
    b.enter(view(2, "abcde"), 1.0)
    assert b.takeover(A, peers("bcd"), 1) is None  # three of five, but three of seven
    assert b.takeover(A, peers("bcdfg"), 1) is None  # who is in the last one only does not count
    assert b.takeover(A, peers("bcde"), 1) == view(2, "abcde").successor(first_round=1, without={A}, coordinator=B)
    b.settle()
    assert b.takeover(A, peers("bcd"), 1) is not None
    assert b.takeover(A, peers("bc"), 1) is None


def test_what_was_settled_is_forgotten_with_the_view() -> None:
    b = Membership(member("b"), 2, Limits())
    b.enter(view(1, "abcdefg"), 0.0)
    b.exit(None, 1.0)
    b.enter(view(9, "bc"), 2.0)
    assert b.base == view(9, "bc")


def test_others_may_be_at_work_on_the_run_that_few_would_begin_again() -> None:
    """A peer that starts anew and finds the view of a run waits for a quorum of it."""
    b = Machine("b", life=2)
    b.hear(ev.RunWanted("r", 1), 0.0)
    b.hear(ev.ViewSeen(view(9, "abc", run="r")), 0.0)
    b.hear(ev.ControlSynced(), 0.0)
    assert not any("view 10" in line for line in b.until(5.0))
    assert b.node.membership.waits == "1 of 3 peers that were at work are here, too few to go on without the others"
    b.hear(ev.PresenceSeen(member("c", 2)), 5.0)
    assert when(b.until(7.0), "publish view 10 bc") < 7.0


# -- all of it ---------------------------------------------------------------------------------------------


def training(world: View, rounds: int = 3) -> Company:
    company = Company(world)
    company.until(1.0)
    for _ in range(rounds):
        contribute(company)
        company.until(company.now + 0.2)
    assert company["a"].node.allreduce.committed == rounds
    return company


def contribute(company: Company) -> None:
    """Each brings its own bit."""
    for position, (name, machine) in enumerate(company.machines.items()):
        if machine.node.view is not None and not machine.node.allreduce.contributed:
            company.hear(name, ev.Contribute(vector(1 << position), 1.0))


def commits(company: Company, since: float) -> dict[str, list[tuple[int, float]]]:
    """By peer: which rounds it has committed, and the sums."""
    found: dict[str, list[tuple[int, float]]] = {}
    for _, name, effect in company.effects(fx.RoundCommitted, since=since):
        assert isinstance(effect, fx.RoundCommitted)
        found.setdefault(name, []).append((effect.round, float(effect.sum[0])))
    return found


@pytest.mark.parametrize("dead", ["a", "b", "d", "ab", "ac", "bc", "bd", "abc"])
def test_whoever_dies_the_others_go_on_without_them(dead: str) -> None:
    company = training(SEVEN)
    for name in dead:
        company.kill(name)
    began = company.now
    contribute(company)
    company.until(began + 9.0)
    living = [name for name in SEVEN.ids if name not in dead]
    views = {company[name].node.view for name in living}
    assert len(views) == 1
    assert sorted(views.pop().ids) == living  # type: ignore[union-attr]
    total = sum(1 << "abcdefg".index(name) for name in living)
    assert commits(company, began) == {name: [(4, float(total))] for name in living}


@pytest.mark.parametrize(
    ("world", "side", "goes_on"),
    [
        (SEVEN, "abc", "defg"),
        (SEVEN, "bde", "acfg"),
        (SEVEN, "abde", "abde"),
        (SEVEN, "a", "bcdefg"),
        (view(1, "abcd"), "ab", "ab"),
        (view(1, "abcd"), "bc", "ad"),
        (view(1, "ab"), "a", "a"),
        (view(1, "abcdefg", quorum=5), "abcd", ""),
        (view(1, "abcdefg", quorum=5), "ab", "cdefg"),
    ],
)
def test_of_two_sides_of_a_partition_only_the_one_with_a_quorum_goes_on(world: View, side: str, goes_on: str) -> None:
    company = training(world)
    company.broker = False
    company.sever(*[one + other for one in side for other in world.ids if other not in side])
    began = company.now
    contribute(company)
    company.until(began + 12.0)
    assert sorted(commits(company, began)) == sorted(goes_on)
    assert len({tuple(rounds) for rounds in commits(company, began).values()}) <= 1
    waiting = [name for name in world.ids if name not in goes_on]
    assert any("too few" in company[name].node.membership.waits for name in waiting)


def test_a_peer_that_has_lost_only_its_own_way_does_not_take_over() -> None:
    company = training(SEVEN)
    company.broker = False
    company.sever("ab", "bc", "cd", "ce", "bf", "bg")  # b reaches its children, and they nobody else they know
    company.until(company.now + 10.0)
    assert company["b"].node.view is None
    for name in "acdefg":
        assert company[name].node.view == view(2, "agcdef", first_round=4)
