"""Peers in no view by transcript: the first view, generations, and what is retained. See the table in outside.py."""

from __future__ import annotations

import msgspec
import pytest
from outsiders import answers, calls, outside, restarted, retained, views
from transcript import Machine, letter_to, member, vector, view, when

from edgepeer.ids import Generation, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.rollcall import RollCall, Word
from edgepeer.topology.view import LAST_LIFE, MAX_EPOCH, View
from edgepeer.wire import codec
from edgepeer.wire import frames as fr
from edgepeer.wire.documents import pack

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


def test_who_has_called_is_waited_for_and_one_who_wants_to_be_left_out_is_not() -> None:
    a = outside("a", "b", "c", answer="")
    calls(a, "b")
    a.hear(letter_to("a", "c", fr.Here(incarnation=1, aside=True)))
    assert views(a.until(1.0)) == []
    answers(a, "b")
    assert views(a.until(1.1))[0].endswith("view 1 ab")


def test_who_has_called_and_does_not_answer_is_not_waited_for_for_ever() -> None:
    """It may have died since: the broker has its letters all the same."""
    a = outside("a", "b", answer="")
    said = []
    for _ in range(22):
        calls(a, "b")
        said += a.until(a.now + 0.1)
    assert 1.9 <= when(said, "view 1 a") < 2.2


@pytest.mark.parametrize(("echo", "let_in"), [(19.5, True), (9.0, False), (5000.0, False)])
def test_nobody_is_let_in_for_what_the_broker_has_had_for_long(echo: float, let_in: bool) -> None:
    """It may have died since; only what it was asked just now shows that it has not."""
    a = Machine("a").join(view(4, "abc"), up="bc")
    a.others = "bc"
    a.hear(ev.PresenceSeen(member("d")), 20.0)
    calls(a, "d")
    a.hear(letter_to("a", "d", fr.Here(incarnation=1, echo=echo)))
    calls(a, "d")
    assert bool(views(a.until(21.0))) is let_in


def test_who_calls_again_and_again_is_asked_all_the_same() -> None:
    """What it says itself does not keep this peer from asking, nor makes it ask each time."""
    said: list[fx.Effect] = []
    rolls, call = RollCall(said.append, None, 0.0), fr.Call(incarnation=1)
    rolls.on_word(PeerId("d"), Word(0.0, 1, None, 0, answers=True))
    for at in range(1, 31):
        rolls.on_word(PeerId("d"), Word(at / 10, 1, None, 0))
        before = len(said)
        rolls.call(PeerId("a"), [PeerId("d")], call, at / 10)
        if len(said) > before:
            rolls.on_word(PeerId("d"), Word(at / 10, 1, None, 0, answers=True))
    assert len(said) == 3


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
    assert views(b.until(2.7))[0].endswith("view 1 bac")


def test_who_does_not_answer_has_no_rank() -> None:
    b = outside("b", "a", "c", answer="c")
    b.hear(ev.LinkUp(PeerId("c"), 1), 0.0)
    said = b.until(2.2)
    assert 0.6 < when(said, "view 1 bc") < 1.0  # after the third call in vain, and when the others have been called


def test_nobody_steps_in_who_has_not_asked_everybody() -> None:
    """The smallest does nothing since it has heard of a view. Where MQTT retains none, nobody else needs to have."""
    b = outside("b", "a", "c", answer="a")
    b.hidden = ()
    world, said = view(4, "cd"), []
    while b.now < 8.0:
        said += b.until(b.now + 0.1)
        if any("relay c <- b>c" in line and "call" in line for line in said):
            here = fr.Here(incarnation=1, generation=world.generation, epoch=world.stamp, echo=b.now)
            said += b.hear(letter_to("b", "c", here))
    assert b.node.view is None


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
    assert when(said, "view 1 yz") < 10.0
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


def vote(machine: Machine, voter: str, asked: fr.Poll | fr.Propose | None) -> list[str]:
    """A member answers a question: it has promised nothing."""
    assert asked is not None
    answer = fr.Vote(
        epoch=asked.epoch,
        candidate=asked.candidate,
        number=asked.number,
        voter=voter,
        promised=0,
        accepted=-1,
        committed=0,
    )
    return machine.frame("b", answer)


def test_whose_answers_take_longer_than_four_questions_is_not_left_behind_when_others_begin_anew() -> None:
    """The round trip is longer than a second. What only it has would be lost, though it is there."""
    a = Machine("a").join(view(1, "abcde"), up="b")
    a.others = "cde"
    restarted(a, "cde", 1.0)
    asked, said = list[tuple[float, fr.Poll | fr.Propose | None]](), []
    while a.now < 9.0 and not views(said):
        a.frame("b", fr.Ping(waiting=False, epoch=1))
        said += a.until(a.now + 0.25)
        if not asked or a.asked != asked[-1][1]:
            asked.append((a.now, a.asked))
        if asked[0][0] <= a.now - 1.5:
            said += vote(a, "b", asked.pop(0)[1])
    assert a.node.view is not None
    assert a.node.view.generation.counter == 2
    assert a.node.view.member(PeerId("b")).incarnation == 1
    assert a.now < 4.5


def test_who_is_silent_is_waited_for_as_long_as_it_takes_to_be_lost() -> None:
    a = Machine("a").join(view(1, "abcde"))
    a.others = "cde"
    restarted(a, "cde", 1.0)
    said = a.until(9.0)
    assert 4.0 <= when(said, "view 1 acde") < 4.6


def test_a_life_that_answers_has_not_ended_though_a_later_one_was_heard_of() -> None:
    """Two devices were copied while the fleet runs: the members live, and can go on."""
    a = Machine("a").join(view(1, "abc"), up="bc")
    a.others = ""
    for name in "bc":
        a.hear(ev.PresenceSeen(member(name, 2)), 1.0)
        answers(a, name, life=2)
    for _ in range(40):
        for name in "bc":
            a.frame(name, fr.Ping(waiting=False, epoch=1))
        a.until(a.now + 0.25)
        for name in "bc":
            vote(a, name, a.asked)
    assert a.node.view is not None
    assert a.node.view.generation == Generation()
    assert a.node.view.ids == ("a", "b", "c")


@pytest.mark.parametrize(("quorum", "begins"), [(0, True), (3, True), (4, False)])
def test_a_generation_that_goes_on_has_as_many_as_it_was_to_take_to_go_on(quorum: int, begins: bool) -> None:
    """Three of five have ended. Two are left, and one of the others is back."""
    a = Machine("a").join(view(1, "abcde", quorum=quorum), up="b")
    a.others = "bc"
    restarted(a, "c", 1.0)
    said = []
    while a.now < 20.0 and not views(said):
        for name in "de":
            a.hear(ev.DialFailed(PeerId(name), "refused", True))
        restarted(a, "c", a.now)
        a.frame("b", fr.Ping(waiting=False, epoch=1))
        said += a.until(a.now + 0.25)
    assert bool(views(said)) == begins
    assert a.node.view is not None
    assert a.node.view.generation.counter == 1 + begins


@pytest.mark.parametrize("quorum", [0, 3])
@pytest.mark.parametrize("reached", [False, True])
def test_nor_does_it_go_on_with_fewer_lives_of_the_view_than_a_majority_if_so_many_are_left(
    quorum: int, reached: bool
) -> None:
    """Of three one has started again, and somebody new has come: with these c is three, but without b it does not have
    all that may have been decided."""
    c = Machine("c").join(view(1, "abc", quorum=quorum), up="b" if reached else "")
    c.others = "abd" if reached else "ad"
    said = []
    for _ in range(60):
        restarted(c, "a", c.now)
        c.hear(ev.PresenceSeen(member("d")))
        if reached:
            c.frame("b", fr.Ping(waiting=False, epoch=1))
        said += c.until(c.now + 0.25)
    assert c.node.view is not None
    assert bool(views(said)) == reached
    assert c.node.view.generation.counter == 1 + (reached and quorum > 0)


def test_it_goes_on_with_a_life_that_answers_though_a_later_one_was_heard_of() -> None:
    """Its device was copied. Without it, what c goes on with is what one of three has."""
    c = Machine("c").join(view(1, "abc", quorum=3), up="b")
    c.others = "a"
    c.hear(ev.PresenceSeen(member("b", 2)), 0.5)
    answers(c, "b", life=2)
    said = list[str]()
    while c.now < 20.0 and not views(said):
        restarted(c, "a", c.now)
        c.frame("b", fr.Ping(waiting=False, epoch=1))
        said += c.until(c.now + 0.25)
        if c.asked is not None and not views(said):
            vote(c, "b", c.asked)
    assert c.node.view is not None
    assert {m.id: m.incarnation for m in c.node.view.members} == {"a": 2, "b": 1, "c": 1}
    assert (c.node.view.generation.counter, c.node.view.generation.founders) == (2, 3)


def test_so_does_one_that_was_copied_itself() -> None:
    c = Machine("c")
    c.hear(letter_to("c", "c", fr.Call(incarnation=9)))  # of the copy, to itself
    c.join(view(1, "abc"), up="b")
    c.others = "ab"
    restarted(c, "ab", 0.1)
    assert views(c.until(9.0))[0].endswith("view 1 cab")


@pytest.mark.parametrize("quorum", [0, 3, 4])
def test_of_two_sides_of_a_partition_none_begins_anew_while_the_other_lives(quorum: int) -> None:
    """Of four one has ended. That it takes more than a majority must not let fewer go on."""
    for side, other in (("ab", "c"), ("c", "ab")):
        one = Machine(side[0]).join(view(1, "abcd", quorum=quorum), up=side[1:])
        one.others = side[1:]
        while one.now < 25.0:
            one.hear(ev.DialFailed(PeerId("d"), "refused", True))
            for name in side[1:]:
                one.frame(name, fr.Ping(waiting=False, epoch=1))
            one.until(one.now + 0.25)
        assert one.node.view is not None
        assert one.node.view.generation == Generation(), f"{side} goes on without {other}"


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
    a.until(2.0)
    a.broker = False
    assert views(a.until(60.0)) == []
    assert a.node.parts.membership.waits == "nobody of the view before answers: x, y, z"
    a.broker = True
    assert 63.5 < when(a.until(80.0), "publish view 1 a") < 68.0 + 10.0


@pytest.mark.parametrize(
    ("me", "others", "dead"), [("b", "ac", ""), ("c", "abd", ""), ("e", "abcd", ""), ("e", "bdf", "ac")]
)
def test_where_all_learn_at_once_that_a_view_is_over_they_begin_one_after_the_other(
    me: str, others: str, dead: str
) -> None:
    """And none waits for good for those before it, which may have a reason to begin nothing."""
    machine = outside(me, *others, *dead, answer=others)
    machine.broker = True
    machine.hear(ev.RunWanted("r", len(others) + 1))
    machine.hear(ev.ViewSeen(view(57, "xyz", run="r")), 0.0)
    before = sum(other < me for other in others)
    begins = when(machine.until(60.0), f"view 1 {me}{others}")
    assert 30.0 + 0.3 * before - 0.2 <= begins <= 30.0 + 0.3 * before + 0.2


def test_at_once_if_all_its_members_have_started_anew() -> None:
    a = outside("a", "x", "y", answer="")
    a.hear(ev.ViewSeen(retained("x", "y")), 0.0)
    restarted(a, "xy", 0.1)
    assert views(a.until(0.5))[0].endswith("view 1 axy")
    assert a.node.parts.membership.waits == ""


def test_if_so_many_have_that_the_others_can_not_go_on_these_are_given_time_to_answer() -> None:
    """They begin anew themselves, with what they have."""
    a = outside("a", "y", "z", answer="yz")
    a.broker = True
    a.hear(ev.ViewSeen(retained("x", "y", "z")), 0.0)
    restarted(a, "yz", 0.1)
    assert 3.0 <= when(a.until(5.0), "view 1 ayz") < 3.6


def test_nobody_does_whom_the_broker_brings_nothing() -> None:
    a = outside("a", "y", "z", answer="yz")
    a.hear(ev.ViewSeen(retained("x", "y", "z")), 0.0)
    restarted(a, "yz", 0.1)
    assert views(a.until(9.0)) == []


def test_one_who_answers_late_is_waited_for() -> None:
    a = outside("a", "y", "z", answer="yz")
    a.broker = True
    world = retained("x", "y", "z")
    a.hear(ev.ViewSeen(world), 0.0)
    restarted(a, "yz", 0.1)
    a.until(2.5)
    a.hear(letter_to("a", "x", fr.Here(incarnation=1, generation=world.generation, epoch=world.stamp, echo=2.0)))
    assert views(a.until(7.0)) == []


@pytest.mark.parametrize("quorum", [0, 3, 5])
def test_a_majority_that_is_too_few_for_its_quorum_is_waited_for_no_less_than_one_that_is_not(quorum: int) -> None:
    """That it takes more than a majority to go on must not let fewer begin without one."""
    a = outside("a", "z", answer="z")
    a.broker = True
    a.hear(ev.ViewSeen(view(57, "vwxyz", quorum=quorum)), 0.0)
    restarted(a, "z", 0.1)
    assert 10.0 <= when(a.until(20.0), "view 1 az") < 11.0


@pytest.mark.parametrize("quorum", [0, 3])
def test_nor_is_its_run_begun_again_by_fewer_than_that_takes(quorum: int) -> None:
    a = Machine("a", life=2)
    a.broker = True
    a.hear(ev.RunWanted("r", 2), 0.0)
    a.hear(ev.ViewSeen(view(57, "axy", run="r", quorum=quorum)), 0.0)
    a.hear(ev.ControlSynced(), 0.0)
    assert views(a.until(60.0)) == []


def test_and_if_few_lives_are_left_of_those() -> None:
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


def test_nor_by_who_is_not_ready_yet_to_want_it() -> None:
    """Whoever has a checkpoint wants the run only when it knows, in a view, whether the others are at work."""
    b = Machine("b", life=2, limits=Limits(anew_s=5.0, anew_run_s=20.0))
    b.broker = True
    b.hear(ev.RunExpected("r", 2), 0.0)
    b.hear(ev.ViewSeen(view(9, "axy", run="r")), 0.0)
    b.hear(ev.ControlSynced(), 0.0)
    assert views(b.until(60.0)) == []
    b.hear(ev.RunWanted(None), 60.0)  # it has another job by now
    assert when(b.until(70.0), "publish view 1 b") < 65.0


def test_who_has_the_quorum_of_a_run_that_is_retained_begins_it_again_sooner() -> None:
    a = Machine("a", life=2, limits=Limits(anew_s=5.0, anew_run_s=20.0))
    a.others = "b"
    a.broker = True
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


def test_a_call_is_no_answer_its_peer_may_have_died_since_it_went_out() -> None:
    """A broker that could not reach this peer for long brings it then what it was sent all that time."""
    b = Machine("b", hidden=()).join(view(4, "abc"), up="a")
    later = retained("d")
    assert views(b.hear(ev.ViewSeen(later))) == []
    said = calls(b, "d", life=2, world=later)
    assert not any(line.startswith("removed") for line in said)
    assert "relay d <- b>d 0.0: call" in said
    here = fr.Here(incarnation=2, generation=later.generation, epoch=later.stamp)
    assert any(line.startswith("removed") for line in b.hear(letter_to("b", "d", here)))


@pytest.mark.parametrize("asked_at", [9.0, 5000.0])
def test_nor_is_what_was_asked_for_long_ago(asked_at: float) -> None:
    """The broker had the answer for long, and the view that came with it. What is of a later time was asked before the
    device started again, and its clock with it."""
    b = Machine("b", hidden=()).join(view(4, "abc"), up="a")
    later = retained("d")
    b.hear(ev.ViewSeen(later), 20.0)
    here = fr.Here(incarnation=2, generation=later.generation, epoch=later.stamp, echo=asked_at)
    frame, document = fr.ViewFrame(epoch=later.stamp), pack(later)
    said = b.hear(letter_to("b", "d", here)) + b.hear(letter_to("b", "d", frame, document))
    assert not any(line.startswith("removed") for line in said)
    assert "relay d <- b>d 0.0: call" in said
    b.hear(letter_to("b", "d", msgspec.structs.replace(here, echo=15.0)))  # the way there and back may be slow
    assert b.node.view is None


def test_who_waits_to_be_let_in_asks_nobody_for_a_view_that_it_has() -> None:
    """A view of thousands is large, and a round may take minutes, in which the head calls all who wait."""
    z = outside("z", "a")
    z.hidden = ()
    world = view(4, "abc")
    z.hear(ev.ViewSeen(world), 1.0)
    assert [line for line in calls(z, "a", world=world) if "call" in line] == []


def test_who_knows_of_a_later_generation_still_asks_those_who_are_there_for_the_view_that_they_are_in() -> None:
    """Of the later one there may be nobody left. Once for each view: their answers say again that they are in it."""
    z = outside("z", "a", "b")
    z.hidden = ()
    here, there = (msgspec.structs.replace(view(4, names), generation=Generation(1)) for names in ("az", "b"))
    z.hear(ev.ViewSeen(msgspec.structs.replace(view(1, "c"), generation=Generation(2))), 1.0)

    def asked(peer: str, world: View) -> list[str]:
        word = fr.Here(incarnation=1, generation=world.generation, epoch=world.stamp, echo=z.now)
        return [line for line in z.hear(letter_to("z", peer, word)) if "call" in line]

    assert asked("a", here) == ["relay a <- z>a 0.0: call"]
    assert asked("b", there) == ["relay b <- z>b 0.0: call"]
    assert asked("a", here) == asked("b", there) == []
    assert "view 4 az" in z.hear(letter_to("z", "a", fr.ViewFrame(epoch=here.stamp), pack(here)))


def test_who_can_not_go_on_takes_a_retained_successor_for_what_a_newcomer_would() -> None:
    b = Machine("b", limits=Limits(anew_s=5.0)).join(view(4, "abc"))
    b.until(4.0)
    assert b.node.parts.membership.waits
    b.hear(ev.ViewSeen(view(5, "acd")), 4.0)
    said = b.until(12.0)
    assert 9.0 <= when(said, "removed") < 9.5
    assert b.node.parts.membership.me.incarnation == 2


# -- what is retained, and on its way ---------------------------------------------------------------------------


@pytest.mark.parametrize("brought", [True, False])
def test_a_later_view_that_the_broker_tells_of_first_is_given_time_to_come(brought: bool) -> None:
    """All would call at once, and each be answered with the view: a slow broker would bring nothing else then."""
    d = Machine("d", hidden=(fr.Ping, fr.Knock, fr.Here)).join(view(1, "abcd"), up="b")
    d.until(5.0)
    d.hear(ev.ViewSeen(view(2, "abcde")), 5.0)
    assert [line for line in d.until(5.9) if "call" in line] == []
    if brought:
        d.learn(view(2, "abcde"))
    called = [line.split(": ", 1)[1] for line in d.until(6.05) if "call" in line]
    assert called == ([] if brought else [f"relay {peer} <- d>{peer} 0.0: call" for peer in "abce"])
