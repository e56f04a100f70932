"""Views by transcript: joining, leaving, loss, takeover. See the table in membership.py."""

from __future__ import annotations

import pytest
from company import Company
from outsiders import answers, outside, views
from transcript import Machine, letter_to, member, vector, view, when

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.membership import Membership
from edgepeer.protocol.rollcall import RollCall, Word
from edgepeer.topology.view import MAX_MEMBERS, Member
from edgepeer.wire import frames as fr

# -- joining -----------------------------------------------------------------------------------------------


@pytest.fixture
def a() -> Machine:
    """The coordinator of three."""
    machine = outside("a", "b", "c")
    machine.until(0.3)
    machine.others = set("bcde")
    for name in "bc":
        machine.level(name)
    machine.until(1.0)
    return machine


def test_joiners_are_collected_while_nothing_goes_on(a: Machine) -> None:
    a.hear(ev.PresenceSeen(member("d")), 1.0)
    a.hear(ev.PresenceSeen(member("e")), 1.1)
    assert views(a.until(1.19)) == []
    assert views(a.until(1.2)) == ["1.2: view 2 abcde", "1.2: publish view 2 abcde"]


def test_in_a_round_they_wait_for_its_end(a: Machine) -> None:
    a.contribute(1)
    a.hear(ev.PresenceSeen(member("d")), 1.0)
    assert views(a.until(2.5)) == []
    a.reduce("b", vector(1), "b")
    assert views(a.reduce("c", vector(1), "c")) == []
    assert views(a.have("b")) == ["view 2 abcd", "publish view 2 abcd"]


def test_a_view_has_no_more_members_than_it_may() -> None:
    rolls = RollCall([].append, None, 0.0)
    membership = Membership(member("a"), 2, 1, Limits(), rolls)
    membership.enter(view(1, "abc"), 0.0)
    for number in range(MAX_MEMBERS + 10):
        joiner = member(f"p{number}")
        rolls.on_presence(joiner, 0.5)
        rolls.on_word(PeerId(joiner.id), Word(0.5, 1, None, 0, answers=True))
    assert len(rolls.order) == MAX_MEMBERS
    found = membership.consider(
        first_round=1, boundary=False, idle=True, needed=False, over=False, there=(), present=(), now=1.0
    )
    assert found is not None
    assert found.size == MAX_MEMBERS


@pytest.mark.parametrize("life", [1, 2])
def test_that_nobody_listened_somewhere_says_nothing_once_that_is_not_tried_any_more(life: int) -> None:
    """Most have been dialled in vain, and are back, or were never gone. Much later they can't be reached: that they are
    dead, so that those who are left may begin anew, nobody has found."""
    a = Machine("a").join(view(1, "abcdefg"))
    a.node.parts.membership.on_refused([PeerId(name) for name in "bcdefg"], 1.0)
    back = view(2, "abcdefg", **dict.fromkeys("bcdefg", life))
    a.learn(back)
    a.tick(2.0)
    assert a.node.parts.membership.left(back, 60.0, set()) == {*"abcdefg"}


def test_a_member_is_not_the_one_who_lets_in() -> None:
    b = Machine("b").join(view(1, "ab"))
    b.hear(ev.PresenceSeen(member("c")), 1.0)
    assert views(b.until(5.0)) == []


def test_joiners_from_before_a_takeover_are_not_forgotten() -> None:
    b = Machine("b").join(view(1, "abc"))
    b.hear(ev.PresenceSeen(member("a")), 0.1)
    b.hear(ev.PresenceSeen(member("z")), 0.1)
    for name in "ac":
        b.hear(ev.LinkUp(PeerId(name), 1), 0.2)
    b.hear(ev.PresenceGone(PeerId("a")), 1.0)
    b.hear(ev.LinkDown(PeerId("a"), "reset"), 1.0)
    b.others = "cz"
    b.until(2.0)
    assert b.node.view is not None
    assert b.node.view.ids == ("b", "c", "z")


def test_a_run_begins_when_enough_peers_are_in(a: Machine) -> None:
    a.hear(ev.RunWanted("job", 4), 1.0)
    a.until(2.0)
    assert a.node.view is not None
    assert a.node.view.run == ""
    a.hear(ev.PresenceSeen(member("d")), 2.0)
    a.until(2.5)
    assert (a.node.view.run, a.node.view.first_round, a.node.view.ids) == ("job", 1, ("a", "b", "c", "d"))


def test_a_run_that_is_given_up_in_mid_round_makes_room_for_the_next(a: Machine) -> None:
    a.hear(ev.RunWanted("job", 3), 1.0)
    a.until(2.0)
    assert a.node.view is not None
    assert a.node.view.run == "job"
    a.contribute(1)
    a.hear(ev.Abandoned())
    a.hear(ev.RunWanted(None), 2.1)  # b and c have given it up, too, before they contributed
    a.hear(ev.RunWanted("another", 3), 2.2)
    a.until(3.0)
    assert (a.node.view.run, a.node.view.ids) == ("another", ("a", "b", "c"))


# -- restarting --------------------------------------------------------------------------------------------


def test_a_member_that_shows_up_in_a_new_life_is_replaced_at_once(a: Machine) -> None:
    a.contribute(1)  # even in mid-round: the old life will not contribute any more
    a.hear(ev.PresenceSeen(member("b", 2)))
    assert views(answers(a, "b", life=2)) == ["view 2 acb", "publish view 2 acb"]
    assert a.node.view is not None
    assert a.node.view.member(PeerId("b")).incarnation == 2


def test_the_lost_are_let_in_again_only_in_a_new_life(a: Machine) -> None:
    before = a.node.view
    assert before is not None
    a.frame("c", fr.Suspect(epoch=1, peer="b", reason="gone"))
    assert "view 2 ac" in a.said
    a.others = "c"
    a.hear(ev.PresenceSeen(member("b", 1)), 2.0)  # its presence still stands, or is said again
    here = fr.Here(incarnation=1, generation=before.generation, epoch=before.stamp)  # it does not know it yet
    a.hear(letter_to("a", "b", here))
    assert views(a.until(3.0)) == []
    a.others = "bc"
    a.hear(ev.PresenceSeen(member("b", 2)), 3.0)
    assert "3.2: view 3 acb" in a.until(3.5)


def b_or_c(names: str, said_until: float) -> tuple[float, str]:
    """Of b and c each says so of the other, up to that time, though both answer. Nobody hears of d and e any more.
    Returns when a does without somebody, and its view then."""
    a = Machine("a").join(view(1, names), up="bc")
    while a.now < 6.0 and a.node.view is not None and a.node.view.epoch == 1:
        told = [("b", other) for other in names[3:]] + ([("b", "c"), ("c", "b")] if a.now < said_until else [])
        for peer, lost in told:
            a.frame(peer, fr.Suspect(epoch=1, peer=lost, reason="gone"))
        for peer in "bc":
            a.frame(peer, fr.Ping(waiting=False, epoch=1))
        a.until(a.now + 0.25)
        a.agree("bc")
    assert a.node.view is not None
    return a.now, "".join(sorted(a.node.view.ids))


def test_of_two_that_are_cut_off_from_each_other_the_first_is_kept_if_it_takes_one_of_them() -> None:
    at, names = b_or_c("abc", 6.0)
    assert names == "ab"
    assert 3.0 <= at <= 3.75


def test_but_nobody_is_left_out_for_what_was_said_before_it_answered() -> None:
    at, names = b_or_c("abcde", 0.25)
    assert names == "abc"
    assert 1.5 <= at <= 2.25


def test_suspicions_of_another_epoch_mean_nothing(a: Machine) -> None:
    assert a.frame("c", fr.Suspect(epoch=7, peer="b", reason="gone")) == []
    assert a.frame("c", fr.Suspect(epoch=1, peer="stranger", reason="gone")) == []
    assert a.frame("c", fr.Suspect(epoch=1, peer="a", reason="mutiny")) == []


def test_who_is_gone_from_mqtt_is_forgotten(a: Machine) -> None:
    for number in range(50):
        peer = PeerId(f"p{number}")
        a.others.add(peer)
        a.hear(ev.PresenceSeen(Member(id=peer, incarnation=1)), 1.0 + number)
        a.until(1.5 + number)
        assert a.node.view is not None
        assert peer in a.node.view
        a.frame("c", fr.Suspect(epoch=a.node.view.epoch, peer=peer, reason="gone"))
        a.others.remove(peer)
        a.until(1.9 + number)
        assert peer not in a.node.view
        a.hear(ev.PresenceGone(peer))
        for name in "bc":
            a.frame(name, fr.Ping(waiting=False, epoch=a.node.view.epoch, level=0))
    assert a.node.parts.rolls.order == ["b", "c"]
    assert set(a.node.parts.rolls._entries) == {"b", "c"}
    assert a.node.parts.membership.cleared == set()
    assert len(a.node.parts.links._links) <= 3


def beat(machine: Machine, until: float, *, echoes: bool = True, **epochs: int) -> list[str]:
    """Neighbours go on to name these views. `echoes`: having got all that they were sent."""
    said = []
    while machine.now < until:
        for peer, epoch in epochs.items():
            echo = machine.now if echoes else 0.0
            machine.frame(peer, fr.Ping(waiting=False, stamp=machine.now, echo=echo, every=1.0, epoch=epoch))
        said += machine.until(min(machine.now + 0.25, until))
    return said


@pytest.mark.parametrize("named", [0, 1])
def test_who_has_got_a_view_and_is_not_in_it_counts_as_lost(named: int) -> None:
    """Whatever keeps it out: all would wait for it."""
    a = Machine("a").join(view(2, "abc"), up="bc")
    a.others = "bc"
    assert views(beat(a, 3.0, b=2, c=named)) == []
    assert when(beat(a, 4.5, b=2, c=named), "view 3 ab") <= 4.5


def test_not_so_who_has_not_got_it_yet_or_is_in_it_meanwhile() -> None:
    """On a slow link a view may wait behind a vector."""
    a = Machine("a").join(view(2, "abc"), up="bc")
    a.others = "bc"
    assert views(beat(a, 20.0, b=0, c=0, echoes=False)) == []
    for now in range(20, 40, 2):
        assert views(beat(a, now + 1.75, b=2, c=0) + beat(a, now + 2.0, b=2, c=2)) == []


def test_nor_who_is_given_it_once_more() -> None:
    a = Machine("a").join(view(2, "abc"), up="bc")
    a.others = "bc"
    beat(a, 2.0, b=2, c=0)
    a.hear(ev.LinkDown(PeerId("c"), "reset"))
    a.hear(ev.LinkUp(PeerId("c"), 1))
    assert views(beat(a, 4.75, b=2, c=0)) == []
    assert views(beat(a, 6.0, b=2, c=0)) != []


def test_to_who_is_in_no_view_nobody_is_elsewhere() -> None:
    x = Machine("x")
    x.hear(ev.ControlSynced(), 0.0)
    x.hear(ev.ViewSeen(view(1, "abc")))
    x.until(1.5)
    x.hear(ev.LinkUp(PeerId("a"), 1))
    beat(x, 8.0, a=1)
    links = x.node.parts.links
    assert links["a"].member is not None
    assert "a" not in {peer for peer, _, _ in links.lost(x.now, others=True)}


def test_a_head_that_is_not_in_its_view_is_replaced() -> None:
    b = Machine("b").join(view(2, "abc"), up="ac")
    b.others = "c"
    beat(b, 5.0, a=0, c=2)
    assert b.node.view is not None
    assert b.node.view.ids == ("b", "c")


# -- lives ----------------------------------------------------------------------------------------------------


def test_who_is_left_out_says_over_its_links_in_which_life_it_wants_to_be_let_in() -> None:
    c = Machine("c").join(view(1, "abc"), up="ab")
    c.learn(view(2, "ab"))
    said = {effect.peer: effect.frame for effect in c.effects if isinstance(effect, fx.Send)}
    for neighbour in "ab":
        sync = said[PeerId(neighbour)]
        assert isinstance(sync, fr.Sync)
        assert (sync.epoch, sync.life) == (0, 2)


def test_a_member_that_says_so_is_not_that_member_any_more(a: Machine) -> None:
    """Nor if its connection is of the life before, and the broker brings nothing."""
    sync = fr.Sync(epoch=0, run="", committed=0, life=2)
    assert views(a.hear(ev.FrameReceived(PeerId("c"), sync, None, 0))) == ["view 2 ab", "publish view 2 ab"]


# -- leaving -----------------------------------------------------------------------------------------------


def test_a_member_asks_its_way_up_and_asks_again() -> None:
    b = Machine("b").join(view(1, "abcde"), up="ade")
    assert b.hear(ev.LeaveWanted()) == ["a <- leave b until 0"]
    assert any(line.endswith("a <- leave b until 0") for line in b.until(0.5))
    assert b.frame("d", fr.Leave(peer="d", incarnation=1, until=0)) == ["a <- leave d until 0"]
    told = b.learn(view(2, "ace"))
    assert [line for line in told if "sync" not in line] == ["a <- view 2", "d <- view 2", "e <- view 2", "left"]
    lives = {
        each.peer: each.frame.life
        for each in b.effects
        if isinstance(each, fx.Send) and isinstance(each.frame, fr.Sync)
    }
    assert lives == dict.fromkeys("ade", 2)  # whoever has not got that view yet need not wait for it any more


def test_who_has_contributed_stays_until_the_round_is_over() -> None:
    b = Machine("b").join(view(1, "ab"), up="a")
    b.contribute(1)
    assert b.hear(ev.LeaveWanted()) == ["a <- leave b until 1"]


def test_so_does_who_holds_its_result() -> None:
    """It may be one of those that must, whether it has brought anything or not."""
    b = Machine("b").join(view(1, "abcde"), up="ade")
    b.result("a", vector(5), "abcde", final=False)
    assert b.hear(ev.LeaveWanted()) == ["a <- leave b until 1"]


def test_the_coordinator_lets_a_leaver_go_at_once_if_the_round_can_not_end_with_it(a: Machine) -> None:
    a.contribute(1)
    assert views(a.frame("b", fr.Leave(peer="b", incarnation=1, until=0))) == ["view 2 ac", "publish view 2 ac"]


def test_and_at_the_rounds_end_if_it_has_contributed(a: Machine) -> None:
    a.contribute(1)
    assert views(a.frame("b", fr.Leave(peer="b", incarnation=1, until=1))) == []
    a.reduce("b", vector(1), "b")
    assert views(a.reduce("c", vector(1), "c")) == []
    assert views(a.have("b")) == ["view 2 ac", "publish view 2 ac"]


@pytest.mark.parametrize(("leave", "then"), [("b", "acd"), ("bc", "a")])
def test_who_comes_as_most_leave_waits_until_they_are_gone(leave: str, then: str) -> None:
    """Till the newcomer has what counts, it takes a quorum of the view before to decide what follows."""
    rolls = RollCall([].append, None, 0.0)
    membership = Membership(member("a"), 2, 1, Limits(), rolls)
    membership.enter(view(1, "abc"), 0.0)
    rolls.on_presence(member("d"), 0.5)
    rolls.on_word(PeerId("d"), Word(0.5, 1, None, 0, answers=True))
    for name in leave:
        membership.on_leaver(PeerId(name), 1, 0, 0.5)
    found = membership.consider(
        first_round=1, boundary=False, idle=True, needed=False, over=False, there="abc", present="abc", now=1.0
    )
    assert found is not None
    assert found.ids == tuple(then)


def test_and_so_it_does_where_those_who_stay_are_too_few_of_a_view_before_that_counts_yet() -> None:
    """Half of the view with its head is a quorum of it, but none of the one before. If the newcomer fails before it has
    what counts, nothing can be decided any more."""
    rolls = RollCall([].append, None, 0.0)
    membership = Membership(member("a"), 2, 1, Limits(), rolls)
    membership.enter(view(2, "acde", after=view(1, "abcde")), 0.0)
    rolls.on_presence(member("x"), 4.0)
    rolls.on_word(PeerId("x"), Word(4.0, 1, None, 0))
    for name in "cd":
        membership.on_leaver(PeerId(name), 1, 0, 4.0)
    found = membership.consider(
        first_round=1, boundary=False, idle=True, needed=False, over=False, there="acde", present="acde", now=5.0
    )
    assert found is not None
    assert found.ids == ("a", "e")


def test_a_leaver_is_not_let_in_again_by_the_presence_it_leaves_behind(a: Machine) -> None:
    a.frame("b", fr.Leave(peer="b", incarnation=1, until=0))
    a.others = "c"
    a.hear(letter_to("a", "b", fr.Here(incarnation=1, aside=True)))
    assert views(a.until(3.0)) == []


def test_a_coordinator_hands_over_its_place_before_it_leaves(a: Machine) -> None:
    a.hear(ev.LeaveWanted(), 1.0)
    said = a.until(1.2)
    assert views(said)[:1] == ["1.2: view 2 bac"]
    assert "1.2: retract the view" in said
    assert said[-1] == "1.2: b <- leave a until 0"
    assert a.node.view is not None
    assert a.view_frame("b", a.node.view.successor(first_round=1, without={PeerId("a")}))[-1] == "left"


def test_a_coordinator_that_stays_after_all_calls_those_who_have_come_meanwhile(a: Machine) -> None:
    """Who leaves calls nobody. So whoever could be reached through the broker alone was not let in."""
    a.others = "bc"
    a.hear(ev.PresenceSeen(member("d")), 1.0)
    a.hear(ev.LeaveWanted(), 1.0)
    assert views(a.until(1.15)) == []
    a.hear(ev.JoinWanted(), 1.15)
    a.others = "bcd"
    assert [line.split(": ")[1] for line in views(a.until(3.0))] == ["view 2 abcd", "publish view 2 abcd"]


def test_a_coordinator_among_leavers_sends_them_home_and_goes_last(a: Machine) -> None:
    a.hear(ev.LeaveWanted(), 1.0)
    for name in "bc":
        assert a.node.view is not None
        for other in "bc":
            a.frame(other, fr.Ping(waiting=False, epoch=a.node.view.epoch, level=0))
        a.frame(name, fr.Leave(peer=name, incarnation=1, until=0))
    assert a.said[-1] == "left"
    assert not a.node.parts.membership.coordinator


def test_a_coordinator_without_the_state_lets_nobody_go_who_has_it() -> None:
    """They could not be let go before it has it, and would be bound to that, whatever they want by then."""
    company = Company(view(1, "abc", run="r"))
    company.until(0.5)
    for name in "bc":
        company.hear("a", ev.StateReady(PeerId(name), "r", 0, b"first"))
    company.until(1.0)
    for name in "bc":
        company.hear(name, ev.Adopted("r", 0))
    for name in "abc":
        company.hear(name, ev.Contribute(vector(1), 1.0))
    company.until(2.0)
    company.hear("a", ev.StateLost())
    company.until(2.5)
    assert [company[name].node.allreduce.committed for name in "abc"] == [-1, 1, 1]
    for name in "abc":
        company.hear(name, ev.LeaveWanted())
    company.until(4.0)
    assert not [e for _, _, e in company.effects(fx.Send, since=2.5) if isinstance(e.frame, fr.Propose)]  # type: ignore[attr-defined]
    company.hear("b", ev.StateReady(PeerId("a"), "r", 1, b"second"))
    company.until(4.1)
    company.hear("a", ev.Adopted("r", 1))
    company.until(8.0)
    assert {name for _, name, _ in company.effects(fx.Removed, since=4.0)} == {*"abc"}


def test_what_it_had_asked_for_as_a_member_does_not_trip_the_new_coordinator() -> None:
    b = Machine("b").join(view(1, "abc"), up="a")
    b.hear(ev.LeaveWanted())
    b.learn(view(2, "bc"))
    b.hear(ev.LinkUp(PeerId("c"), 1))
    b.frame("c", fr.Leave(peer="b", incarnation=1, until=0))  # its own request, come back to it
    assert "view 3 cb" in " ".join(b.until(1.0))


def test_alone_one_just_leaves() -> None:
    alone = Machine("a").join(view(1, "a"))
    assert alone.hear(ev.LeaveWanted()) == ["retract the view", "left"]
    assert Machine("a").hear(ev.LeaveWanted()) == ["left"]


def test_a_leaver_whose_parent_is_lost_does_not_take_over() -> None:
    b = Machine("b", limits=Limits(silence_s=2.0)).join(view(1, "ab"))
    b.hear(ev.LeaveWanted())
    assert any(line.endswith("left") for line in b.until(3.0))


def test_a_leaver_is_kept_while_its_vote_may_be_needed(a: Machine) -> None:
    """c, which is to stay, may be dead: without it, it takes a and b to go on."""
    a.others = "b"
    leave = fr.Leave(peer="b", incarnation=1, until=0)
    assert views(a.frame("b", leave)) == []
    assert views(a.until(1.0)) == []
    a.others = "bc"
    a.frame("b", leave)  # as it does with every look at its links
    assert views(a.until(2.0))[0].endswith("view 2 ac")


def test_who_has_left_in_an_earlier_life_is_not_asked_about_for_ever(a: Machine) -> None:
    a.others = "b"
    a.frame("b", fr.Leave(peer="b", incarnation=0, until=0))
    assert not a.node.parts.membership.leavers(a.now)
    a.frame("b", fr.Leave(peer="b", incarnation=1, until=0))
    assert a.node.parts.membership.leavers(a.now)


def test_a_leaver_whose_parent_is_lost_stays_if_it_takes_its_vote_to_replace_it() -> None:
    c = Machine("c", limits=Limits(silence_s=2.0)).join(view(4, "abc"), up="b")
    c.hear(ev.LeaveWanted())
    said = spoken_to(c, "b", 3.0)
    assert not any(line.endswith("left") for line in said)
    assert not c.node.parts.succession.proposed


def test_who_has_left_may_come_back_in_a_new_life() -> None:
    alone = Machine("a").join(view(1, "a"))
    alone.hear(ev.ControlSynced(), 0.0)
    alone.hear(ev.LeaveWanted(), 1.0)
    assert alone.hear(ev.JoinWanted(), 2.0) == ["publish presence"]
    assert alone.node.parts.membership.me.incarnation == 3  # as it left, and as it came back
    assert views(alone.until(4.0))[0].endswith("view 1 a")


def test_who_leaves_before_it_was_let_in_does_so_in_another_life_than_is_announced() -> None:
    """Or it is let in by those who have its presence and hear it, and does nothing there: all wait for it."""
    a = Machine("a", hidden=())
    a.hear(ev.ControlSynced(), 0.0)
    announced = a.node.me.incarnation
    a.hear(ev.LeaveWanted(), 0.1)
    assert a.node.me.incarnation > announced
    a.hear(ev.LinkUp(PeerId("b"), 1), 0.2)
    syncs = [each.frame for each in a.effects if isinstance(each, fx.Send) and isinstance(each.frame, fr.Sync)]
    assert {sync.life for sync in syncs} == {a.node.me.incarnation}


def test_who_has_left_asks_for_a_view_that_it_hears_of_once() -> None:
    """It did so with each word of it, of which the answer brought the next: at the pace of the broker, for ever."""
    b = Machine("b", hidden=()).join(view(1, "ab"), up="a")
    b.hear(ev.ControlSynced())
    b.hear(ev.LeaveWanted())
    b.learn(view(2, "a"))
    assert "left" in b.said
    world = view(3, "ac")
    here = fr.Here(incarnation=1, generation=world.generation, epoch=world.stamp, echo=b.now)
    said = b.hear(letter_to("b", "a", here))
    assert len([line for line in said if "call" in line.lower()]) == 1
    assert b.learn(world) is not None
    for _ in range(3):
        assert b.hear(letter_to("b", "a", here)) == []


# -- takeover ----------------------------------------------------------------------------------------------


def deserted(name: str, other: str, until: float) -> tuple[Machine, list[str]]:
    """A child of a, of whom it never hears, and the one that it has a backup link with, who is an orphan as well."""
    machine = Machine(name, limits=Limits(silence_s=2.0)).join(view(4, "abc", first_round=3))
    machine.hear(ev.LinkUp(PeerId(other), 1))
    return machine, machine.until(1.0) + spoken_to(machine, other, until)


def spoken_to(machine: Machine, other: str, until: float) -> list[str]:
    said = []
    while machine.now < until:
        machine.frame(other, fr.Ping(waiting=False, stamp=machine.now, every=1.0, epoch=4, orphan=True))
        said += machine.until(min(machine.now + 0.5, until))
    return said


@pytest.mark.parametrize(("name", "other", "after"), [("b", "c", 2.0), ("c", "b", 2.5)])
def test_the_children_of_a_lost_coordinator_take_over_in_order(name: str, other: str, after: float) -> None:
    machine, said = deserted(name, other, after + 0.25)
    assert after <= when(said, f"{other} <- poll 1 for {name} in 4 by ballot 1{name}") <= after + 0.25
    assert views(said) == []
    assert f"view 5 {name}{other}" in machine.agree(other)
    assert machine.node.parts.membership.coordinator


def test_nobody_takes_over_without_a_majority() -> None:
    b, said = deserted("b", "c", 9.0)
    assert views(said) == []
    assert b.node.parts.membership.waits == "1 of 3 peers are in reach, too few to go on without the others"
    polls = [line.split(": ", 1)[1] for line in said if "poll" in line]
    assert polls[:3] == [f"c <- poll {number} for b in 4 by ballot 1b" for number in (1, 2, 3)]


def test_it_is_said_why_nothing_goes_on() -> None:
    b, _ = deserted("b", "c", 2.0)
    notes = []
    while b.now < 20.0:
        b.tick(b.node.next_deadline())
        notes += [(round(b.now, 3), e.text) for e in b.effects if isinstance(e, fx.Note) and e.level == "warning"]
    why = "waiting: 1 of 3 peers are in reach, too few to go on without the others"
    assert [text for _, text in notes] == [why, why]
    assert 10.0 <= notes[1][0] - notes[0][0] <= 11.0


def test_nobody_waits_any_more_whose_head_is_back() -> None:
    """It said that too few were in reach every ten seconds, while rounds went on."""
    b, _ = deserted("b", "c", 9.0)
    assert b.node.waits
    b.level("a")
    while b.now < 12.0:
        b.frame("a", fr.Ping(waiting=False, stamp=b.now, every=1.0, epoch=4))
        b.until(b.now + 0.5)
    assert b.node.waits == ""


def test_who_hears_of_the_others_takeover_stays_a_member() -> None:
    c, _ = deserted("c", "b", 2.6)
    c.votes("b")
    c.learn(view(5, "bc"))
    assert views(spoken_to(c, "b", 4.0)) == []
    assert c.node.view == view(5, "bc")
    assert not c.node.parts.membership.coordinator


def test_a_coordinator_that_was_only_slow_steps_down_for_the_new_view() -> None:
    a = Machine("a").join(view(4, "abc"))
    said = a.learn(view(5, "bc"))
    assert said == ["retract the view", "removed", "publish presence"]
    a.learn(view(6, "bca", a=2))
    assert a.said[0] == "view 6 bca"


def test_an_older_view_changes_nothing() -> None:
    b = Machine("b").join(view(4, "abc"))
    assert b.learn(view(3, "ab")) == []
    assert b.learn(view(4, "abc")) == []


def test_a_view_that_means_an_earlier_life_is_not_ours() -> None:
    b = Machine("b", life=7)
    assert b.learn(view(4, "abc")) == []
    assert b.node.view is None


def test_a_neighbour_with_an_older_view_is_told_the_newer() -> None:
    b = Machine("b").join(view(4, "abc"))
    b.hear(ev.LinkUp(PeerId("a"), 1))
    assert b.frame("a", fr.Sync(epoch=2, run="", committed=0)) == ["a <- view 4", "a <- sync 4 after 0"]


def test_garbage_instead_of_a_view_costs_the_link() -> None:
    b = Machine("b").join(view(4, "abc"), up="a")
    assert b.frame("a", fr.ViewFrame(epoch=5), b"\xc1")[0].startswith("close a: bad view")
