"""Views by transcript: bootstrap, joining, leaving, loss, takeover. See the table in membership.py."""

from __future__ import annotations

import pytest
from transcript import Machine, letter_to, member, vector, view, when

from edgepeer.ids import Generation, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.membership import Membership
from edgepeer.protocol.rollcall import RollCall, Word
from edgepeer.topology.view import LAST_LIFE, MAX_EPOCH, MAX_MEMBERS, Member, View
from edgepeer.wire import codec
from edgepeer.wire import frames as fr
from edgepeer.wire.documents import pack


def outside(name: str, *present: str, at: float = 0.0, answer: str | None = None) -> Machine:
    """A peer that has heard all that MQTT retains: these presences. They answer, or only those in `answer`."""
    machine = Machine(name)
    machine.others = set(present if answer is None else answer)
    for other in present:
        machine.hear(ev.PresenceSeen(member(other)), at)
    machine.hear(ev.ControlSynced(), at)
    return machine


def views(said: list[str]) -> list[str]:
    return [line for line in said if "view" in line and "<-" not in line]


def calls(machine: Machine, source: str, *, life: int = 1, world: View | None = None, known: int = 0) -> list[str]:
    """A peer calls, in that life, and in that view or in none; it has heard of a generation of that number."""
    call = fr.Call(
        incarnation=life,
        generation=world.generation if world is not None else None,
        epoch=world.stamp if world is not None else 0,
        known=Generation(known) if known else None,
    )
    return machine.hear(letter_to(machine.node.id, source, call))


def retained(*names: str) -> View:
    """A view of that generation, as MQTT may retain it for ever."""
    return view(57, "".join(names))


# -- the first view ----------------------------------------------------------------------------------------


def test_the_smallest_id_makes_the_first_view_once_things_have_settled() -> None:
    a = outside("a", "b", "c")
    assert views(a.until(0.29)) == []
    assert views(a.until(0.3)) == ["0.3: view 1 abc", "0.3: publish view 1 abc"]


def test_only_of_those_who_have_answered() -> None:
    a = outside("a", "b", "c", "d", answer="bd")
    assert views(a.until(0.3))[0] == "0.3: view 1 abd"


def test_who_answers_in_another_life_than_it_is_announced_in_is_not_the_one_that_was_meant() -> None:
    a = outside("a", "b", "c", answer="c")
    a.hear(letter_to("a", "b", fr.Here(incarnation=2)))
    assert views(a.until(0.3))[0] == "0.3: view 1 ac"


def test_a_call_is_as_good_as_an_answer_and_a_wish_to_be_left_out_is_none() -> None:
    a = outside("a", "b", "c", answer="")
    calls(a, "b")
    a.hear(letter_to("a", "c", fr.Here(incarnation=1, aside=True)))
    assert views(a.until(0.3))[0] == "0.3: view 1 ab"


def test_what_was_said_long_ago_does_not_count() -> None:
    b = Machine("b")
    b.hear(ev.PresenceSeen(member("c")), 0.0)
    calls(b, "c")
    b.until(4.0)
    b.hear(ev.ControlSynced(), 4.0)
    assert views(b.until(5.0))[0].endswith("view 1 b")


def test_late_arrivals_are_waited_for_but_not_for_ever() -> None:
    a = outside("a", "b")
    for number in range(12):
        a.hear(ev.PresenceSeen(member(f"p{number}")), number * 0.25)
        if a.node.view is None:
            a.until(number * 0.25 + 0.2)
    assert a.node.view is not None
    assert a.now < 3.0


def test_the_next_in_rank_steps_in_if_the_smallest_does_nothing() -> None:
    b = outside("b", "a", "c")
    assert views(b.until(2.2)) == []
    assert views(b.until(2.7))[0].endswith("view 1 ba")  # c, which has called nobody behind it either, joins


def test_who_does_not_answer_has_no_rank() -> None:
    b = outside("b", "a", "c", answer="c")
    b.hear(ev.LinkUp(PeerId("c"), 1), 0.0)
    said = b.until(2.2)
    assert when(said, "view 1 b") < 1.0  # after the third call in vain
    assert when(said, "view 2 bc") < 1.5


def test_thousands_that_are_only_announced_do_not_stop_it() -> None:
    """Presences that MQTT retains of nobody, before and behind those who are there."""
    y = Machine("y")
    y.others = "z"
    for number in range(2000):
        y.hear(ev.PresenceSeen(member(f"{'A' if number % 2 else 'zz'}{number:04}")), 0.0)
    y.hear(ev.PresenceSeen(member("z")), 0.0)
    y.hear(ev.ControlSynced(), 0.0)
    y.hear(ev.LinkUp(PeerId("z"), 1), 0.0)
    said = []
    while y.now < 60.0:
        y.frame("z", fr.Ping(waiting=False))
        said += y.until(y.now + 0.5)
    assert when(said, "view 1 y") < 10.0
    assert when(said, "view 2 yz") < 11.0
    assert sum("clear presence of" in line for line in said) > 500  # some at a time
    assert y.node.view is not None
    assert y.node.view.ids == ("y", "z")


def test_without_mqtt_there_is_no_first_view() -> None:
    a = Machine("a")
    assert views(a.until(30.0)) == []


def test_who_has_found_no_others_is_called_by_those_who_have() -> None:
    """A Call is answered whatever one is doing, and tells where one stands."""
    b = outside("b")
    b.hidden = ()
    said = calls(b, "a")
    assert said == ["relay a <- b>a 0.0: here"]
    relay = next(e for e in b.effects if isinstance(e, fx.Relay))
    here = codec.unwrap(relay.frame, 0)
    assert here == fr.Here(incarnation=1)
    b.until(0.5)
    calls(b, "a")
    here = codec.unwrap(next(e for e in b.effects if isinstance(e, fx.Relay)).frame, 0)
    assert b.node.view is not None
    assert here == fr.Here(
        incarnation=1, generation=b.node.view.generation, epoch=b.node.view.stamp, known=b.node.view.generation
    )


# -- generations --------------------------------------------------------------------------------------------


def test_of_two_generations_the_earlier_gives_way_on_contact_and_joins_in_a_new_life() -> None:
    b = outside("b")
    b.until(0.5)
    assert b.node.view is not None
    other = outside("a", "c")
    other.until(0.5)
    assert other.node.view is not None
    assert b.node.view.precedes(other.node.view)  # more founders
    assert b.learn(other.node.view)[-3:] == ["retract the view", "removed", "publish presence"]
    removed = next(e for e in b.effects if isinstance(e, fx.Removed))
    assert removed.anew
    assert "is given up" in removed.reason
    assert b.node.parts.membership.me.incarnation == 2
    following = other.node.view.successor(first_round=1, joined=[member("b", 2)])
    assert b.learn(following)[0] == "view 2 acb"


def test_who_is_counted_on_for_a_generation_goes_on_in_it_only_from_the_view_that_it_was_counted_in() -> None:
    """Two survivors of a view begin a generation each. One of them has ended a round in its own, of which the other
    knows nothing: it must not go on in the other's with what it has, though that names it in this very life."""
    world = view(3, "abc", run="r", first_round=8)
    theirs = world.successor(first_round=8, without={PeerId("a")}, coordinator=PeerId("c"), generation=Generation(2, 2))
    b = Machine("b").join(world)
    assert "view 1 cb" in b.learn(theirs)

    b = Machine("b").join(world)
    gone = {PeerId("a"), PeerId("c")}
    b.learn(world.successor(first_round=8, without=gone, generation=Generation(2, 1)))
    assert b.node.view is not None
    assert b.node.view.ids == ("b",)
    said = b.learn(theirs)
    assert said[-2:] == ["removed", "publish presence"]
    assert b.node.parts.membership.me.incarnation == 2

    b = Machine("b").join(world.successor(first_round=9))
    assert "removed" in b.learn(theirs)  # nor from a later view of the same chain


def test_who_hears_of_a_later_life_under_its_name_comes_back_in_one_that_is_later_still() -> None:
    """A device was copied. Who has heard of the copy, which has ended, takes this one for dead."""
    b = outside("b")
    assert b.hear(ev.PresenceSeen(member("b"))) == []  # its own words
    assert b.hear(ev.PresenceSeen(member("b", 7))) == ["publish presence"]
    assert b.node.me.incarnation == 8
    assert b.hear(ev.PresenceSeen(member("b", 7))) == []

    b = Machine("b").join(view(3, "abc"))
    assert b.hear(ev.PresenceSeen(member("b", 7))) == []  # the others may not have heard of it
    assert b.learn(view(3, "abc").successor(first_round=1, without={PeerId("b")}))[-2:] == [
        "removed",
        "publish presence",
    ]
    assert b.node.me.incarnation == 8
    assert b.hear(ev.PresenceSeen(member("b", LAST_LIFE))) == []  # no number would be left


def test_the_later_generation_stays_and_tells_the_other() -> None:
    a = outside("a", "b")
    a.until(0.5)
    assert a.node.view is not None
    earlier = view(9, "xyz")
    assert earlier.precedes(a.node.view)
    assert calls(a, "x", world=earlier) == ["relay x <- a>x 0.0: view 1"]


def test_the_next_generation_is_later_than_any_that_was_heard_of() -> None:
    a = outside("a", "b")
    calls(a, "b", known=7)
    a.until(0.3)
    assert a.node.view is not None
    assert a.node.view.generation.counter == 8


def test_a_member_asks_for_a_view_that_somebody_says_follows_its_own() -> None:
    b = Machine("b", hidden=()).join(view(4, "abc"), up="ac")
    later = view(5, "abcd")
    b.hear(letter_to("b", "d", fr.Here(incarnation=1, generation=later.generation, epoch=later.stamp)))
    assert b.said == ["relay d <- b>d 0.0: call"]
    assert b.hear(letter_to("b", "x", fr.ViewFrame(epoch=later.stamp), pack(later))) == []  # x has not said so
    assert "view 5 abcd" in b.hear(letter_to("b", "d", fr.ViewFrame(epoch=later.stamp), pack(later)))


def restarted(machine: Machine, names: str, at: float) -> list[str]:
    """These members start anew, and say so."""
    for name in names:
        machine.hear(ev.PresenceSeen(member(name, 2)), at)
    return [line for name in names for line in calls(machine, name, life=2)]


@pytest.mark.parametrize("head", ["a", "b"])
def test_where_most_have_started_anew_the_survivors_begin_anew_and_keep_the_state(head: str) -> None:
    world = view(1, "abcde", run="r", first_round=1)
    one = Machine(head)
    one.hear(ev.RunWanted("r", 1, 7), 0.0)
    one.join(world)
    assert one.node.allreduce.committed == 7
    other = "b" if head == "a" else "a"
    gone = "cde" if head == "a" else "acd"
    live = set("abcde") - {*gone, head}
    for name in live:
        one.hear(ev.LinkUp(PeerId(name), 1), 0.0)
    one.others = "".join(live) + gone
    assert views(restarted(one, gone, 1.0)) == []
    said = []
    while one.now < 9.0 and not views(said):
        for name in live:
            one.frame(name, fr.Ping(waiting=False, epoch=1, orphan=True))
        said += one.until(one.now + 0.25)
    assert one.node.view is not None
    assert other in live | set(gone)
    assert one.node.view.generation.counter == 2
    assert one.node.view.epoch == 1
    assert one.node.view.coordinator == head
    assert set(one.node.view.ids) == set("abcde")
    assert {m.id for m in one.node.view.members if m.incarnation == 2} == set(gone)
    assert (one.node.view.run, one.node.view.first_round) == ("r", 8)
    assert one.node.allreduce.committed == 7
    assert not one.node.view.guards


def test_as_long_as_a_quorum_of_lives_may_come_back_nobody_begins_anew() -> None:
    a = Machine("a").join(view(1, "abcde"), up="b")
    a.others = "bde"
    restarted(a, "de", 1.0)
    for _ in range(80):
        a.frame("b", fr.Ping(waiting=False, epoch=1))
        a.until(a.now + 0.25)
    assert a.node.view is not None
    assert a.node.view.generation == Generation()
    assert a.node.view.epoch == 1
    assert a.node.parts.membership.waits == "2 of 5 peers are in reach, too few to go on without the others"


# -- what is retained, and of nobody ------------------------------------------------------------------------


@pytest.mark.parametrize("run", ["", "r"])
def test_a_view_of_which_nobody_answers_is_followed_by_another_generation_after_a_while(run: str) -> None:
    a = Machine("a", limits=Limits(anew_s=5.0, anew_run_s=20.0))
    a.broker = True
    a.hear(ev.RunWanted(run or None), 0.0)
    a.hear(ev.ViewSeen(view(57, "xyz", run=run)), 0.0)
    a.hear(ev.ControlSynced(), 0.0)
    after = 20.0 if run else 5.0
    assert views(a.until(after - 0.1)) == []
    assert a.node.parts.membership.waits == "nobody of the view before answers: x, y, z"
    assert views(a.until(after + 1.5))[0].endswith("view 1 a")
    assert a.node.view is not None
    assert a.node.view.generation.counter == 2


def test_who_may_be_cut_off_itself_begins_nothing() -> None:
    """Else a device that starts again, and then loses its network, would have all others give up their work."""
    a = Machine("a", limits=Limits(anew_s=5.0, anew_run_s=20.0))
    a.broker = True
    a.hear(ev.ViewSeen(view(57, "xyz")), 0.0)
    a.hear(ev.ControlSynced(), 0.0)
    a.until(3.0)
    a.broker = False
    assert views(a.until(60.0)) == []
    assert a.node.parts.membership.waits == "nobody of the view before answers: x, y, z"
    a.broker = True
    assert 64.0 < when(a.until(80.0), "publish view 1 a") < 68.0 + 10.0


def test_at_once_if_all_its_members_have_started_anew() -> None:
    a = outside("a", "x", "y", answer="")
    a.hear(ev.ViewSeen(retained("x", "y")), 0.0)
    restarted(a, "xy", 0.1)
    assert views(a.until(0.5))[0].endswith("view 1 axy")
    assert a.node.parts.membership.waits == ""


def test_also_if_so_many_have_that_the_others_can_not_go_on() -> None:
    a = outside("a", "y", "z", answer="")
    a.hear(ev.ViewSeen(retained("x", "y", "z")), 0.0)
    restarted(a, "yz", 0.1)
    assert views(a.until(0.5))[0].endswith("view 1 ayz")
    a = outside("a", "y", answer="")
    a.hear(ev.ViewSeen(retained("x", "y", "z")), 0.0)
    restarted(a, "y", 0.1)
    assert views(a.until(2.0)) == []


def test_and_if_the_machines_of_all_say_that_nobody_is_there() -> None:
    a = Machine("a")
    a.hear(ev.ViewSeen(retained("x", "y")), 0.0)
    a.hear(ev.ControlSynced(), 0.0)
    a.until(0.15)
    for peer in "xy":
        a.hear(ev.DialFailed(PeerId(peer), "refused", refused=True))
    assert when(a.until(6.0), "view 1 a") < 6.0


def test_a_run_is_not_begun_again_by_fewer_than_it_takes() -> None:
    b = Machine("b", life=2, limits=Limits(anew_s=5.0, anew_run_s=20.0))
    b.broker = True
    b.hear(ev.RunWanted("r", 2), 0.0)
    b.hear(ev.ViewSeen(view(9, "axy", run="r")), 0.0)
    b.hear(ev.ControlSynced(), 0.0)
    assert views(b.until(60.0)) == []
    b.others = "c"
    b.hear(ev.PresenceSeen(member("c", 2)), 60.0)
    assert when(b.until(70.0), "publish view 1 bc") < 65.0


def test_who_has_the_quorum_of_a_run_that_is_retained_begins_it_again_sooner() -> None:
    a = Machine("a", life=2, limits=Limits(anew_s=5.0, anew_run_s=20.0))
    a.others = "b"
    a.hear(ev.RunWanted("r", 2), 0.0)
    a.hear(ev.PresenceSeen(member("b", 2)), 0.0)
    a.hear(ev.ViewSeen(view(9, "abc", run="r")), 0.0)
    a.hear(ev.ControlSynced(), 0.0)
    assert when(a.until(10.0), "publish view 1 ab") < 6.0


def test_while_a_member_answers_the_outsider_waits() -> None:
    a = Machine("a")
    a.hear(ev.PresenceSeen(member("x")), 0.0)
    a.hear(ev.ViewSeen(world := retained("x", "y", "z")), 0.0)
    a.hear(ev.ControlSynced(), 0.0)
    assert any(line.endswith("dial x") for line in a.until(0.6))
    a.hear(ev.LinkUp(PeerId("x"), 1))
    for second in range(1, 40):
        a.frame("x", fr.Sync(epoch=world.stamp, run="", committed=0, generation=world.generation))
        assert views(a.until(float(second))) == []
    assert a.node.parts.membership.waits == ""


def test_a_member_that_comes_back_while_the_outsider_waits_is_not_forgotten() -> None:
    b = Machine("b")
    b.others = "x"
    b.hear(ev.PresenceSeen(member("x")), 0.0)
    b.hear(ev.ViewSeen(retained("x")), 0.0)
    b.hear(ev.ControlSynced(), 0.0)
    b.until(0.6)
    b.hear(ev.PresenceSeen(member("x", 2)))
    assert views(b.until(3.5))[0].endswith("view 1 bx")


def last_view() -> View:
    """As garbage might have it: of the last epoch that there can be, and its members are those who are there."""
    return View(generation=Generation(), epoch=MAX_EPOCH, members=tuple(member(name) for name in "abc"))


def test_a_retained_view_that_nobody_is_in_changes_nothing_and_the_head_says_its_own_again() -> None:
    a = Machine("a").join(view(4, "abc"), up="bc")
    a.others = "bc"
    said = a.hear(ev.ViewSeen(last_view()), 1.0)
    while a.now < 8.0:
        for peer in "bc":
            a.frame(peer, fr.Ping(waiting=False, epoch=4))
        said += a.until(a.now + 0.5)
    assert a.node.view == view(4, "abc")
    assert [line.split(": ")[1] for line in views(said)] == ["publish view 4 abc"]
    a.contribute(1)
    a.reduce("b", vector(1), "b")
    a.reduce("c", vector(1), "c")
    assert any("round 1 = 3" in line for line in a.have("b"))


def test_an_outsider_is_let_in_in_spite_of_it() -> None:
    """The members say what is true, and an earlier view of theirs counts more than what nobody confirms."""
    d = Machine("d")
    d.hear(ev.ViewSeen(last_view()), 0.0)
    d.hear(ev.ControlSynced(), 0.0)
    assert views(d.until(1.0)) == []
    assert "view 5 abcd" in d.learn(view(5, "abcd"))


def test_an_earlier_view_that_is_retained_is_replaced_by_the_head_at_once() -> None:
    a = Machine("a").join(view(4, "abc"))
    assert a.hear(ev.ViewSeen(view(3, "xyz"))) == ["publish view 4 abc"]
    b = Machine("b").join(view(4, "abc"))
    assert b.hear(ev.ViewSeen(view(3, "xyz"))) == []


def test_a_retained_successor_counts_as_soon_as_one_of_its_members_says_so() -> None:
    b = Machine("b").join(view(4, "abc"), up="a")
    assert views(b.hear(ev.ViewSeen(view(5, "bcd")))) == []
    here = fr.Here(incarnation=1, generation=view(5, "bcd").generation, epoch=view(5, "bcd").stamp)
    assert "view 5 bcd" in b.hear(letter_to("b", "d", here))


def test_who_can_not_go_on_takes_a_retained_successor_for_what_a_newcomer_would() -> None:
    b = Machine("b", limits=Limits(anew_s=5.0)).join(view(4, "abc"))
    b.until(4.0)
    assert b.node.parts.membership.waits
    b.hear(ev.ViewSeen(view(5, "acd")), 4.0)
    said = b.until(12.0)
    assert 9.0 <= when(said, "removed") < 9.5
    assert b.node.parts.membership.me.incarnation == 2


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
        rolls.on_word(PeerId(joiner.id), Word(0.5, 1, None, 0))
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
    for name in "bcdefg":
        a.node.parts.membership.on_refused(PeerId(name), 1.0, refused=True)
    back = view(2, "abcdefg", **dict.fromkeys("bcdefg", life))
    a.learn(back)
    a.tick(2.0)
    assert not a.node.parts.membership.over_for_good(back, 60.0)


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
    assert views(calls(a, "b", life=2)) == ["view 2 acb", "publish view 2 acb"]
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
    assert b.learn(view(2, "ace")) == ["a <- view 2", "d <- view 2", "e <- view 2", "left"]


def test_who_has_contributed_stays_until_the_round_is_over() -> None:
    b = Machine("b").join(view(1, "ab"), up="a")
    b.contribute(1)
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


def test_a_coordinator_among_leavers_sends_them_home_and_goes_last(a: Machine) -> None:
    a.hear(ev.LeaveWanted(), 1.0)
    for name in "bc":
        assert a.node.view is not None
        for other in "bc":
            a.frame(other, fr.Ping(waiting=False, epoch=a.node.view.epoch, level=0))
        a.frame(name, fr.Leave(peer=name, incarnation=1, until=0))
    assert a.said[-1] == "left"
    assert not a.node.parts.membership.coordinator


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
    assert views(a.until(2.0))[0].endswith("view 2 ac")


def test_who_has_left_in_an_earlier_life_is_not_asked_about_for_ever(a: Machine) -> None:
    a.others = "b"
    a.frame("b", fr.Leave(peer="b", incarnation=0, until=0))
    assert not a.node.parts.membership.lets_go
    a.frame("b", fr.Leave(peer="b", incarnation=1, until=0))
    assert a.node.parts.membership.lets_go


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
    assert alone.node.parts.membership.me.incarnation == 2
    assert views(alone.until(4.0))[0].endswith("view 1 a")


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
