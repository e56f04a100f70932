"""States from checkpoints, which of the same round need not be the same: which one counts, and what is told to whom."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest
from company import Company
from states import RUN, at_seven, put_to_use, state
from transcript import Machine, vector, view

from edgepeer.coding.scheme import parse_scheme
from edgepeer.ids import Generation, Lineage, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.limits import Limits
from edgepeer.topology.view import View
from edgepeer.wire import frames as fr

A = PeerId("a")
EARLY, LATE = Lineage(Generation(counter=1), 0), Lineage(Generation(counter=2), 1)  # neither is of `view`


def restored(machine: Machine, name: str, committed: int, of: Lineage | None, *, kept: int = 0) -> list[str]:
    """A link comes up, and the other end says of which checkpoint its state is, or was before the first round kept."""
    world = machine.node.view
    assert world is not None
    machine.hear(ev.LinkUp(PeerId(name), 1))
    where = fr.Sync(
        epoch=world.stamp, run="r", committed=committed, generation=world.generation, restored=of, kept=kept
    )
    return machine.frame(name, where)


@pytest.mark.parametrize("theirs", [LATE, None])
def test_of_checkpoints_of_two_generations_the_later_counts_and_a_fleet_at_work_counts_more(
    theirs: Lineage | None,
) -> None:
    b = Machine("b")
    b.hear(ev.RunWanted("r", 1, 7, EARLY))
    b.join(view(3, "abcde", run="r"))
    assert b.node.allreduce.committed == 7
    assert "a <- state of r?" in restored(b, "a", 7, theirs)
    assert b.node.allreduce.committed == -1
    assert state(b, "a", b"theirs", number=7) == ["state of r after 7: theirs"]


def test_one_of_the_very_run_at_work_is_as_if_it_had_always_been_here() -> None:
    """Whoever has lost that state would be asked for it in vain, and take no other's: its neighbour gave its own up."""
    world = view(3, "abcde", run="r", first_round=8)
    b = Machine("b")
    b.hear(ev.RunWanted("r", 1, 7, world.lineage))
    b.join(world)
    assert "a <- state of r?" not in restored(b, "a", 7, None)
    assert b.node.allreduce.committed == 7
    assert "d <- state of r?" in restored(b, "d", 9, None)
    state(b, "d", b"nine", number=9)
    put_to_use(b)
    assert sources(b) == {("a", None), ("d", None)}


def test_a_state_that_is_handed_on_is_still_of_its_checkpoint() -> None:
    """Or a neighbour with the other one would take it for that of a fleet at work."""
    b = Machine("b").join(view(3, "abcde", run="r"))
    restored(b, "d", 7, EARLY)
    state(b, "d", b"early", number=7)
    put_to_use(b)
    assert sources(b) == {("d", EARLY)}
    assert "a <- state of r?" in restored(b, "a", 7, LATE)
    assert b.node.allreduce.committed == -1
    state(b, "a", b"late", number=7)
    put_to_use(b)
    assert sources(b) == {("a", LATE), ("d", LATE)}


def sources(machine: Machine) -> set[tuple[str, Generation | None]]:
    """To whom it has just said of which checkpoint its state is."""
    sent = [effect for effect in machine.effects if isinstance(effect, fx.Send)]
    return {(each.peer, each.frame.restored) for each in sent if isinstance(each.frame, fr.Sync)}


def test_of_seven_peers_all_go_on_from_the_same_one_of_two_checkpoints() -> None:
    """Three have none, and ask before they know of both."""
    company = Restarted(view(3, "abcdefg", run="r"), early="de", late="fg")
    company.until(5.0)
    assert company.states == dict.fromkeys("abcdefg", (7, b"late"))
    for name in "abcdefg":
        company.hear(name, ev.Contribute(vector(1.0), 1.0))
    company.until(6.0)
    assert {machine.node.allreduce.committed for machine in company.machines.values()} == {8}


class Restarted(Company):
    """Peers that go on from checkpoints of round 7, of two generations, or from what others have."""

    def __init__(self, world: View, *, early: str, late: str) -> None:
        had = dict.fromkeys(early, (EARLY, b"early")) | dict.fromkeys(late, (LATE, b"late"))
        self.states = {name: (7, content) for name, (_, content) in had.items()}
        super().__init__(world)
        for name, (generation, _) in had.items():
            self.hear(name, ev.RunWanted(world.run, 1, 7, generation))

    def _do(self, name: PeerId) -> None:
        super()._do(name)
        effects, self[name].effects = self[name].effects, []
        for effect in effects:
            match effect:
                case fx.ProvideState(peer, run):
                    ready = ev.StateReady(peer, run, *self.states[name])
                    self._later(0.01, partial(self.hear, name, ready))
                case fx.StateReceived():
                    self._later(0.02, partial(self._load, name, effect))

    def _load(self, name: PeerId, came: fx.StateReceived) -> None:
        self.states[name] = came.round, bytes(came.state)
        self.hear(name, ev.Adopted(came.run, came.round, came.of, came.life))


@pytest.mark.parametrize("number", [8, 200])
def test_whoever_comes_to_a_fleet_at_work_with_a_later_checkpoint_gives_it_up(number: int) -> None:
    """Each would wait for the other: the fleet has no use for that state, and this peer none for what comes next."""
    b = Machine("b")
    b.hear(ev.RunWanted("r", 1, number, EARLY))
    b.join(view(3, "abcde", run="r", first_round=8))
    assert "a <- state of r?" in restored(b, "a", 7, None)
    assert b.node.allreduce.committed == -1

    a = Machine("a").join(view(3, "abcde", run="r", first_round=8), up="c", committed=7)
    state(a, "c", b"seven", number=7)
    put_to_use(a)
    assert not restored(a, "b", number, EARLY)
    assert a.node.diagnosis(a.now)["round"]["at"] == {"b": -1, "c": 7}


def test_what_was_given_up_counts_again_if_the_later_one_is_gone_before_it_came() -> None:
    """Or the run would begin anew, although somebody has a checkpoint of it."""
    b = Machine("b")
    b.hear(ev.RunWanted("r", 1, 7, EARLY))
    b.join(view(3, "abcde", run="r"))
    assert "a <- state of r?" in restored(b, "a", 7, LATE)
    assert b.node.allreduce.committed == -1
    b.learn(view(4, "bcde", run="r"))
    assert b.node.allreduce.committed == 7


def test_what_is_given_up_while_it_is_packed_is_handed_to_nobody() -> None:
    b = Machine("b")
    b.hear(ev.RunWanted("r", 1, 7, EARLY))
    b.join(view(3, "abcde", run="r"))
    restored(b, "d", -1, None)
    asked = b.frame("d", fr.StateRequest(run="r"))
    assert len(asked) == 1
    restored(b, "a", 7, LATE)
    assert b.hear(ev.StateReady(PeerId("d"), "r", 7, b"early")) == []
    state(b, "a", b"late", number=7)
    assert asked[0] in put_to_use(b)


def test_nor_is_the_rest_of_what_is_given_up_while_it_is_sent() -> None:
    b = Machine("b")
    b.hear(ev.RunWanted("r", 1, 7, EARLY))
    b.join(view(3, "abcde", run="r"))
    restored(b, "d", -1, None)
    b.frame("d", fr.StateRequest(run="r"))
    assert b.hear(ev.StateReady(PeerId("d"), "r", 7, bytes(2 * Limits().state_window_bytes)))
    restored(b, "a", 7, LATE)
    assert b.frame("d", fr.StateRequest(run="r", round=7, received=Limits().state_window_bytes)) == []


def test_nor_is_a_part_of_that_taken_for_what_has_come_in_its_place() -> None:
    d = Machine("d").join(view(3, "abcde", run="r"))
    assert "b <- state of r?" in restored(d, "b", 7, EARLY)
    state(d, "b", b"ear", number=7, total=5)
    world = d.node.view
    assert world is not None
    where = partial(fr.Sync, epoch=world.stamp, run="r", generation=world.generation)
    d.frame("b", where(committed=-2))
    assert d.frame("b", where(committed=7, restored=LATE)) == ["b <- state of r?"]
    assert state(d, "b", b"ly", number=7, offset=3, total=5) == []
    assert state(d, "b", b"late", number=7) == ["b <- sync 3 r after -2", "state of r after 7: late"]
    put_to_use(d)
    assert sources(d) == {("b", LATE)}


def test_a_state_that_came_in_an_earlier_life_means_nothing() -> None:
    """It is put to use when this peer has come back: of a generation that has begun without it."""
    b = Machine("b").join(view(3, "abcde", run="r"))
    restored(b, "a", 7, None)
    assert state(b, "a", b"before", number=7) == ["state of r after 7: before"]
    came = next(effect for effect in b.effects if isinstance(effect, fx.StateReceived))
    later = msgspec.structs.replace(view(1, "acde", run="r", first_round=8), generation=LATE.generation)
    b.learn(later)
    life = b.node.me.incarnation
    assert (b.node.view, life) == (None, 2)
    b.learn(later.successor(first_round=8, joined=[b.node.me]))
    assert b.node.view is not None
    b.hear(ev.Adopted("r", 7, came.of, came.life))
    assert b.node.allreduce.committed == -1


def test_nor_where_another_has_come_since_and_is_not_in_use_yet() -> None:
    """The owner says of the one of before that it has it; the one of now it gets to later."""
    b = Machine("b").join(view(3, "abcde", run="r"))
    restored(b, "a", 7, None)
    state(b, "a", b"before", number=7)
    came = next(effect for effect in b.effects if isinstance(effect, fx.StateReceived))
    later = msgspec.structs.replace(view(1, "acde", run="r", first_round=8), generation=LATE.generation)
    b.learn(later)
    following = later.successor(first_round=8, joined=[b.node.me], coordinator=PeerId("a"))
    b.learn(following)
    sync = fr.Sync(epoch=following.stamp, run="r", committed=9, generation=LATE.generation, kept=9)
    above = following.parent(PeerId("b"))
    assert above is not None
    b.hear(ev.LinkUp(above, 1))
    b.hear(ev.FrameReceived(above, sync))
    state(b, str(above), b"now", number=9)
    assert b.node.parts.place.loading
    since = next(effect for effect in b.effects if isinstance(effect, fx.StateReceived))
    b.hear(ev.Adopted("r", 7, came.of, came.life))
    assert b.node.allreduce.committed == -1
    b.hear(ev.Adopted("r", 9, since.of, since.life))
    assert b.node.allreduce.committed == 9


def test_a_checkpoint_does_not_count_while_a_neighbours_state_is_put_to_use() -> None:
    b = Machine("b").join(view(3, "abcde", run="r"))
    restored(b, "a", 7, None)
    state(b, "a", b"seven", number=7)
    b.hear(ev.RunWanted("r", 1, 9, EARLY))
    assert b.node.allreduce.committed == -1


def test_once_a_round_has_ended_a_state_is_of_a_fleet_at_work() -> None:
    d = Machine("d")
    d.hear(ev.RunWanted("r", 1, 7, EARLY))
    d.join(view(3, "abcde", run="r"))
    restored(d, "b", 7, EARLY)
    assert d.node.parts.place.restored == EARLY
    d.result("b", vector(5), "abcde", number=8)
    assert d.node.allreduce.committed == 8
    assert d.node.parts.place.restored is None


@pytest.mark.parametrize("theirs", [LATE, None])
def test_a_checkpoint_is_not_gone_on_with_by_a_round_that_others_have_gone_on_with_from_another(
    theirs: Lineage | None,
) -> None:
    """The fleet that this peer has come to was at work, and its round 7 is another. So is what it hands over, be that a
    sum or that the round was dropped."""
    b = Machine("b")
    b.hear(ev.RunWanted("r", 1, 7, EARLY))
    b.join(view(3, "abcde", run="r", first_round=9))
    assert "a <- state of r?" in restored(b, "a", 8, theirs, kept=8)
    assert b.node.allreduce.committed == -1


def at_eight(of: Generation) -> Machine:
    """A peer that has gone on from a checkpoint of round 7, and can tell how."""
    a = Machine("a")
    a.hear(ev.RunWanted("r", 1, 7, of))
    a.join(view(1, "ab", run="r"))
    restored(a, "b", 7, of)
    a.contribute(1)
    a.reduce("b", vector(1), "b", number=8)
    assert a.node.allreduce.committed == 8
    return a


def holding_eight() -> tuple[Machine, View]:
    """a, b and c have added up round 8, and b is lost. d comes, and a works in that view."""
    one = view(1, "abc", run="r")
    a = Machine("a")
    a.hear(ev.RunWanted("r", 1, 7, EARLY))
    a.join(one)
    a.contribute(1)
    for name in "bc":
        restored(a, name, 7, EARLY)
        a.reduce(name, vector(1), name, number=8)
    assert a.node.allreduce.holding
    two = view(2, "acd", run="r", first_round=8, after=one)
    a.learn(two)
    return a, two


def test_who_holds_a_round_does_not_give_up_what_it_went_on_from_and_others_hear_of_that() -> None:
    """d has a later checkpoint. Each would wait for the other."""
    a, two = holding_eight()
    restored(a, "d", 7, LATE)
    assert sources(a) == {("d", None)}
    d = Machine("d")
    d.hear(ev.RunWanted("r", 1, 7, LATE))
    d.join(two)
    assert "a <- state of r?" in restored(d, "a", 7, None)
    state(d, "a", b"early", number=7)
    put_to_use(d)
    assert sources(d) == {("a", None)}
    restored(a, "d", 7, None)
    restored(a, "c", 7, EARLY)
    assert a.node.diagnosis(a.now)["round"]["at"] == {"c": 7, "d": 7}


@pytest.mark.parametrize(("theirs", "kept"), [(7, 0), (8, 8)])
def test_and_hear_of_it_again_on_a_new_path(theirs: int, kept: int) -> None:
    """d has a's state by now, or can tell as well how round 8 has ended, when the connection breaks; on the new one a
    speaks first, and does not know that yet. What a brings would not count for d, and d would hand over nothing."""
    a, _ = holding_eight()
    restored(a, "d", 7, LATE)
    restored(a, "d", 7, None)
    a.hear(ev.LinkDown(PeerId("d"), "reset"))
    restored(a, "d", theirs, None, kept=kept)
    assert sources(a) == {("d", None)}


def test_but_only_once_each() -> None:
    """Even if both held something, which can't be, they would not say so for ever."""
    a, _ = holding_eight()
    restored(a, "d", 7, LATE)
    assert sources(a) == {("d", None)}
    assert a.node.view is not None
    again = fr.Sync(
        epoch=a.node.view.stamp, run="r", committed=7, generation=a.node.view.generation, restored=LATE, kept=0
    )
    a.frame("d", again)
    assert sources(a) == set()


def test_nor_does_anybody_hand_that_over() -> None:
    ours, others = at_eight(LATE), at_eight(LATE)
    assert any("result 8" in line for line in restored(ours, "b", 7, LATE))
    for of in (EARLY, None):
        assert not any("result 8" in line for line in restored(others, "b", 7, of))
        assert others.node.diagnosis(others.now)["round"]["at"] == {"b": -1}


def test_a_state_is_of_its_checkpoint_even_if_a_round_is_over_where_it_comes_from() -> None:
    """The owner there has yet to apply that round, when it packs the state."""
    b = Machine("b").join(view(3, "abcde", run="r"))
    restored(b, "a", 8, LATE, kept=8)
    state(b, "a", b"seven", number=7)
    put_to_use(b)
    restored(b, "a", 8, LATE, kept=8)
    assert b.result("a", vector(3), "abcde", number=8)[-1].startswith("round 8 = 3")


def test_who_puts_a_state_to_use_says_that_it_has_none_until_then() -> None:
    """Or what a neighbour sends meanwhile would be lost: it takes b, which has come no further, for one that has it."""
    b = at_seven("b", RUN)
    b.level("d", 8)
    b.until(1.0)
    assert state(b, "d", b"eight", number=8) == [
        "a <- sync 3 r after -2", "state of r after 8: eight", "d <- sync 3 r after -2",
    ]  # fmt: skip


def test_who_has_the_earlier_one_takes_part_in_nothing() -> None:
    b = Machine("b")
    b.hear(ev.RunWanted("r", 1, 7, LATE))
    b.join(view(3, "abcde", run="r"))
    restored(b, "a", 7, LATE)
    restored(b, "d", 7, EARLY)
    restored(b, "e", 7, LATE)
    assert b.node.allreduce.committed == 7
    b.contribute(1)
    b.reduce("e", vector(1), "e", number=8)
    assert b.node.diagnosis(b.now)["round"]["at"] == {"a": 7, "d": -1, "e": 7}


def test_what_a_neighbour_has_brought_beside_the_earlier_one_does_not_count_beside_the_later() -> None:
    """d has sent it before it could know that b has given that up, and brings another when it has done so, too."""
    b = Machine("b")
    b.hear(ev.RunWanted("r", 1, 7, EARLY))
    b.join(view(3, "abd", fanout=1, run="r"))
    restored(b, "d", 7, EARLY)
    restored(b, "a", 7, LATE)
    state(b, "a", b"late", number=7)
    put_to_use(b)
    b.contribute(1)
    assert b.reduce("d", vector(10), "d", number=8) == []
    restored(b, "d", 7, LATE)
    assert b.reduce("d", vector(2), "d", number=8) == ["a <- reduce 8 [0:] 3 of 110"]


def later_than_a() -> Machine:
    """b has had the state that a has; now it has that of d, but a does not know yet."""
    b = Machine("b")
    b.hear(ev.RunWanted("r", 1, 7, EARLY))
    b.join(view(3, "abcde", run="r"))
    restored(b, "a", 7, EARLY)
    restored(b, "d", 7, LATE)
    state(b, "d", b"late", number=7)
    put_to_use(b)
    assert sources(b) == {("a", LATE), ("d", LATE)}
    return b


def test_a_round_that_was_dropped_beside_the_earlier_one_is_not_over_beside_the_later() -> None:
    """What a says of it was on its way meanwhile. Both would stand after it, and go on with different states."""
    b = later_than_a()
    over = fr.Abort(epoch=3, round=8, cause="timeout", reason="so", over=True)
    assert b.frame("a", over) == []
    assert b.node.allreduce.committed == 7


def test_nor_is_such_an_end_held_or_decided() -> None:
    """Who holds it would not give its state up for that of a, and a would hand over nothing: each would wait."""
    b = later_than_a()
    assert b.drop("a", "timeout", number=8) == []
    assert not b.node.allreduce.holding
    assert b.decide("a", number=8) == []
    assert b.node.allreduce.committed == 7
    b.hear(ev.LinkDown(A, "reset"))
    assert "a <- state of r?" in restored(b, "a", 8, EARLY, kept=8)


def test_what_is_not_known_of_a_neighbours_rounds_is_no_reason_to_throw_away_what_it_brings() -> None:
    """It has last said where it stands rounds ago, and would not send the same once more."""
    b = at_seven("b", view(3, "abd", fanout=1, run="r", first_round=5))
    b.level("d", 7)
    for number in (8, 9):
        b.contribute(1)
        b.reduce("d", vector(1), "d", number=number)
        b.result("a", vector(3), "abd", number=number)
    b.contribute(1)
    b.hear(ev.CodeWanted(parse_scheme("cyclic:s=1")))  # whereupon it looks again at what neighbours have said
    b.reduce("d", vector(1), "d", number=10)
    assert b.sync("a", 9)[0] == "a <- reduce 10 [0:] 2 of 110"


def test_nor_does_what_was_promised_beside_the_earlier_one() -> None:
    """Or a and c could do without b in the round after the later checkpoint, and b would add it to the earlier one."""
    code = parse_scheme("cyclic:s=1")
    a = Machine("a")
    a.hear(ev.CodeWanted(code))
    a.hear(ev.RunWanted("r", 1, 7, EARLY))
    a.join(view(1, "abc", run="r", slots="abc"))
    restored(a, "b", 7, EARLY)
    a.progress("b", "b", ".0.", code.name, number=8)
    restored(a, "c", 7, LATE)
    state(a, "c", b"late", number=7)
    put_to_use(a)
    assert a.did({0: 2}, number=8) == []
    assert a.progress("c", "c", "..2", code.name, number=8) == []
    assert a.progress("b", "b", ".0.", code.name, number=8) == []
    restored(a, "b", 7, LATE)
    assert "encode 8 of 202" in a.progress("b", "b", ".0.", code.name, number=8)


def test_the_first_round_after_a_checkpoint_is_handed_over_as_any_other() -> None:
    b = Machine("b")
    b.hear(ev.RunWanted("r", 1, 7, EARLY))
    b.join(view(3, "abcde", run="r"))
    restored(b, "a", 8, None)
    assert b.node.allreduce.committed == 7
    assert b.result("a", vector(3), "abcde", number=8)[-1].startswith("round 8 = 3")


def test_who_has_restored_a_state_needs_none() -> None:
    b = Machine("b")
    b.hear(ev.RunWanted("r", 1, have=7))
    b.learn(RUN)
    assert b.node.allreduce.committed == 7
    assert b.level("a", committed=7) == []
    assert b.contribute(1) == []
    for name in "de":
        b.level(name, committed=7)
        b.reduce(name, vector(1), name, number=8)
    assert b.said == ["a <- reduce 8 [0:] 3 of 11010"]


def test_a_run_goes_on_from_the_newest_state_that_somebody_has() -> None:
    """The root has an older one: it takes the newer from below before the run goes on."""
    a = Machine("a")
    a.hear(ev.RunWanted("r", 1, have=5))
    a.learn(view(1, "abc", run="r"))
    a.level("b", committed=5)
    assert a.level("c", committed=7) == ["c <- state of r?"]
    assert state(a, "c", b"seven", number=7)[0] == "state of r after 7: seven"
    assert "b <- sync 1 r after 7" in a.hear(ev.Adopted("r", 7))


def test_a_state_that_is_restored_after_the_run_has_begun_counts_too() -> None:
    a = Machine("a")
    a.learn(view(1, "abc", run="r"))
    a.level("b", committed=-1)
    assert a.hear(ev.RunWanted("r", 1, have=5)) == ["b <- sync 1 r after 5"]
    assert a.node.allreduce.committed == 5


def test_a_restored_state_of_another_run_is_none_of_this() -> None:
    b = Machine("b")
    b.hear(ev.RunWanted("old", 1, have=7))
    b.learn(RUN)
    assert b.node.allreduce.committed == -1
