"""The state of a run: who asks whom, what comes too late, and where a run begins."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest
from company import Company
from transcript import Machine, letter_to, member, vector, view, when

from edgepeer.coding.scheme import parse_scheme
from edgepeer.ids import Generation, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.limits import Limits
from edgepeer.topology.view import View
from edgepeer.wire import frames as fr
from edgepeer.wire.documents import pack

RUN = view(3, "abcde", run="r", first_round=5)
A, D = PeerId("a"), PeerId("d")


def state(machine: Machine, peer: str, data: bytes, *, number: int, offset: int = 0, total: int = 0) -> list[str]:
    frame = fr.State(run="r", round=number, offset=offset, total=total or len(data))
    return machine.frame(peer, frame, data)


def at_seven(name: str, world: View) -> Machine:
    """A peer that has the state after round 7, from a."""
    machine = Machine(name).join(world)
    machine.level("a", committed=7)
    state(machine, "a", b"seven", number=7)
    machine.hear(ev.Adopted("r", 7))
    return machine


def asked_by_c(b: Machine, before: View) -> tuple[int, bool]:
    """What b votes when a is lost, and c, in the view that follows, asks."""
    b.hear(ev.LinkDown(A, "reset"))
    following = view(2, "cb", run="r", first_round=8, after=before)
    b.learn(following)
    b.hear(ev.LinkUp(PeerId("c"), 1))
    b.frame("c", fr.Poll(epoch=following.stamp, candidate="c", number=1))
    return vote_of(b)


def test_a_joiner_asks_for_the_state_loads_it_and_goes_on() -> None:
    b = Machine("b").join(RUN)
    assert b.level("a", committed=7) == ["a <- state of r?"]
    assert state(b, "a", b"sta", number=7, total=5) == []
    assert state(b, "a", b"te", number=7, offset=3, total=5) == ["state of r after 7: state"]
    assert b.hear(ev.Adopted("r", 7)) == ["a <- sync 3 r after 7"]
    b.hear(ev.Contribute(vector(1), 1.0))
    for name in "de":
        b.level(name, committed=7)
        b.reduce(name, vector(1), name, number=8)
    assert b.said == ["a <- reduce 8 [0:] 3 of 11010"]


def test_while_the_state_is_being_loaded_no_round_ends() -> None:
    b = Machine("b").join(RUN)
    b.level("a", committed=7)
    state(b, "a", b"state", number=7)
    assert b.result("a", vector(1), "abcde", number=8) == []
    assert b.node.allreduce.committed == -1


def test_a_state_that_is_overtaken_by_hand_overs_is_thrown_away() -> None:
    b = at_seven("b", RUN)
    b.hear(ev.LinkDown(A, "reset"))
    assert b.level("a", committed=9) == ["a <- state of r?"]
    b.result("a", vector(8), "abcde", number=8)
    b.result("a", vector(9), "abcde", number=9)
    assert state(b, "a", b"nine", number=9) == []
    assert b.node.allreduce.committed == 9


def test_one_round_behind_it_waits_to_be_handed_over_and_asks_only_if_nothing_comes() -> None:
    b = Machine("b").join(RUN)
    b.tick(0.0)
    b.level("a", committed=7)
    state(b, "a", b"seven", number=7)
    b.hear(ev.Adopted("r", 7))
    assert b.sync("a", 8) == []
    assert when(b.until(0.5), "a <- state of r?") < 0.5


def test_a_neighbour_that_does_not_deliver_is_passed_over() -> None:
    b = Machine("b", limits=Limits(silence_s=60.0)).join(RUN)
    b.level("a", committed=7)
    assert b.level("d", committed=7) == []
    said = [line for line in b.until(42.0) if "state of r?" in line]
    assert [line.split(": ")[1] for line in said] == ["d <- state of r?", "a <- state of r?", "d <- state of r?"]
    assert [float(line.split(": ")[0]) for line in said] == pytest.approx([5, 35, 40], abs=1)


def test_a_neighbour_that_takes_its_time_is_not_asked_in_vain() -> None:
    """As where the owner computes for longer than others are waited for: each in turn would come too late."""
    b = Machine("b", limits=Limits(silence_s=60.0)).join(RUN)
    b.level("a", committed=7)
    b.level("d", committed=7)
    assert when(b.until(7.0), "d <- state of r?") < 7
    assert state(b, "a", b"sta", number=7, total=5) == []
    assert state(b, "d", b"other", number=7) == []  # one at a time
    assert state(b, "a", b"te", number=7, offset=3, total=5) == ["state of r after 7: state"]


def test_of_two_who_deliver_the_one_that_goes_on_counts() -> None:
    b = Machine("b", limits=Limits(silence_s=60.0)).join(RUN)
    b.level("a", committed=7)
    b.level("d", committed=7)
    state(b, "a", b"sta", number=7, total=5)
    assert when(b.until(7.0), "d <- state of r?") < 7
    assert state(b, "d", b"oth", number=7, total=5) == []
    assert state(b, "a", b"te", number=7, offset=3, total=5) == []
    assert state(b, "d", b"er", number=7, offset=3, total=5) == ["state of r after 7: other"]


def test_a_piece_that_is_long_on_its_way_counts() -> None:
    """The first one may take longer than the patience of whoever asked."""
    b = Machine("b", limits=Limits(silence_s=60.0)).join(RUN)
    b.level("a", committed=7)
    piece = fr.State(run="r", round=7, offset=0, total=5)
    sink = b.node.sink(A, piece, 3)
    assert sink is not None
    assert not any("state of r?" in line for line in b.until(8.0))
    sink[:] = b"sta"
    assert b.hear(ev.FrameReceived(A, piece, None, 3, True, 8.0)) == []
    assert state(b, "a", b"te", number=7, offset=3, total=5) == ["state of r after 7: state"]


def test_a_lost_neighbour_is_replaced_at_once() -> None:
    b = Machine("b").join(RUN)
    b.level("a", committed=7)
    b.level("d", committed=7)
    b.hear(ev.LinkDown(A, "reset"), 0.1)
    assert any(line.endswith("d <- state of r?") for line in b.until(0.6))


def test_pieces_that_nobody_asked_for_or_that_do_not_follow_are_thrown_away() -> None:
    b = Machine("b", limits=Limits(max_state_bytes=100)).join(RUN)
    b.level("d", committed=-1)
    b.level("a", committed=7)
    frame = fr.State(run="r", round=7, offset=0, total=10)
    assert b.node.sink(D, frame, 5) is None  # not the one who was asked
    assert b.node.sink(A, fr.State(run="other", round=7, offset=0, total=10), 5) is None
    assert b.node.sink(A, fr.State(run="r", round=7, offset=0, total=101), 5) is None
    assert b.node.sink(A, fr.State(run="r", round=7, offset=5, total=10), 5) is None
    state(b, "a", b"01234", number=7, total=10)
    assert b.node.sink(A, fr.State(run="r", round=7, offset=6, total=10), 4) is None
    assert b.node.sink(A, fr.State(run="r", round=8, offset=5, total=10), 5) is None
    assert state(b, "a", b"56789", number=7, offset=5, total=10) == ["state of r after 7: 0123456789"]


def test_a_state_is_given_in_pieces_and_to_each_only_once_at_a_time() -> None:
    a = Machine("a", limits=Limits(state_segment_bytes=4)).join(view(1, "ab", run="r"))
    a.level("b", committed=-1)
    request = fr.StateRequest(run="r")
    assert a.frame("b", request) == ["provide b with r after 0"]
    assert a.frame("b", request) == []
    assert a.hear(ev.StateReady(PeerId("b"), "r", 0, b"0123456789")) == [
        "b <- state 0 [0:] 0123", "b <- state 0 [4:] 4567", "b <- state 0 [8:] 89",
    ]  # fmt: skip
    assert a.frame("b", request) == ["provide b with r after 0"]
    assert a.frame("b", fr.StateRequest(run="another")) == []


def test_who_has_no_state_gives_none() -> None:
    b = Machine("b").join(RUN, up="d", committed=-1)
    assert b.frame("d", fr.StateRequest(run="r")) == []


def test_a_state_whose_owner_has_given_the_run_up_has_to_come_again() -> None:
    """It was put to use by who does not say so any more."""
    b = Machine("b").join(RUN)
    b.level("a", committed=7)
    state(b, "a", b"state", number=7)
    b.hear(ev.RunWanted(None))
    assert not b.node.parts.place.loading
    assert not any("state of r?" in line for line in b.until(30.0))
    b.level("a", committed=7)
    assert any("state of r?" in line for line in (*b.hear(ev.RunWanted("r")), *b.until(b.now + 6.0)))


# -- where a run begins ------------------------------------------------------------------------------------


def test_a_run_begins_with_the_roots_state_when_nobody_has_one() -> None:
    a = Machine("a").join(view(1, "abc", run="r"))
    a.level("b", committed=-1)
    assert a.node.allreduce.committed == -1  # c may have it
    assert a.level("c", committed=-1) == ["view 1 abc", "b <- sync 1 r after 0", "c <- sync 1 r after 0"]
    assert a.node.allreduce.committed == 0


def test_it_does_not_begin_again_while_somebody_below_may_have_it() -> None:
    a = Machine("a").join(view(9, "abc", run="r", first_round=1))
    a.level("b", committed=-1)
    a.level("c", committed=-2)
    assert a.node.allreduce.committed == -1
    assert a.sync("c", 5) == ["c <- state of r?"]


def test_an_inner_node_passes_on_whether_there_is_hope_below() -> None:
    b = Machine("b").join(view(1, "abcde", run="r"))
    b.hear(ev.LinkUp(A, 1))
    assert b.said == ["a <- sync 1 r after -2"]
    b.sync("a", -1)
    b.level("d", committed=-1)
    assert b.level("e", committed=-1)[-1] == "a <- sync 1 r after -1"
    b.hear(ev.LinkDown(D, "reset"))
    assert b.said == ["a <- sync 1 r after -2"]


def test_who_is_loading_a_state_is_a_hope_itself() -> None:
    b = Machine("b").join(RUN)
    b.level("a", committed=7)
    for name in "de":
        b.level(name, committed=-1)
    state(b, "a", b"state", number=7)
    b.learn(view(4, "bde", run="r", first_round=8))
    for name in "de":
        b.sync(name, -1)
    assert b.node.allreduce.committed == -1
    b.hear(ev.Adopted("r", 7))
    assert b.node.allreduce.committed == 7


def test_another_run_ends_the_round_and_forgets_the_state() -> None:
    b = Machine("b").join(view(1, "ab"), up="a")
    b.contribute(1)
    said = b.learn(view(2, "ab", run="r"))
    assert "round 1 aborted: run" in said
    assert b.node.allreduce.committed == -1


def test_an_adopted_state_of_another_run_means_nothing() -> None:
    b = Machine("b").join(RUN)
    b.level("a", committed=7)
    assert b.hear(ev.Adopted("old", 99)) == []
    assert b.node.allreduce.committed == -1


def test_a_state_that_the_owner_never_gave_is_asked_of_it_again() -> None:
    b = Machine("b").join(RUN, up="d", committed=7)
    b.hear(ev.Adopted("r", 7))
    asked = b.frame("d", fr.StateRequest(run="r"))
    assert len(asked) == 1
    assert b.frame("d", fr.StateRequest(run="r")) == []
    b.now += 31  # an owner who has no use for the run any more says nothing
    assert b.frame("d", fr.StateRequest(run="r")) == asked
    b.join(view(4, "abcde", run="s"), up="d")
    b.hear(ev.Adopted("s", 3))
    assert len(b.frame("d", fr.StateRequest(run="s"))) == 1


def test_the_state_is_not_fetched_before_the_owner_wants_the_run() -> None:
    b = Machine("b")
    b.learn(RUN)
    assert b.level("a", committed=7) == []
    assert b.hear(ev.RunWanted("r")) == ["a <- state of r?"]


# -- states from checkpoints -------------------------------------------------------------------------------


EARLY, LATE = Generation(counter=1), Generation(counter=2)


def restored(machine: Machine, name: str, committed: int, of: Generation | None, *, kept: int = 0) -> list[str]:
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
    theirs: Generation | None,
) -> None:
    b = Machine("b")
    b.hear(ev.RunWanted("r", 1, 7, EARLY))
    b.join(view(3, "abcde", run="r"))
    assert b.node.allreduce.committed == 7
    assert "a <- state of r?" in restored(b, "a", 7, theirs)
    assert b.node.allreduce.committed == -1
    assert state(b, "a", b"theirs", number=7) == ["state of r after 7: theirs"]


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


def put_to_use(machine: Machine) -> list[str]:
    """The state that has just come."""
    came = next(effect for effect in machine.effects if isinstance(effect, fx.StateReceived))
    return machine.hear(ev.Adopted(came.run, came.round, came.of, came.life))


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
    a.hear(ev.Adopted("r", 7))
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


def test_a_state_that_came_in_an_earlier_life_means_nothing() -> None:
    """It is put to use when this peer has come back: of a generation that has begun without it."""
    b = Machine("b").join(view(3, "abcde", run="r"))
    restored(b, "a", 7, None)
    assert state(b, "a", b"before", number=7) == ["state of r after 7: before"]
    came = next(effect for effect in b.effects if isinstance(effect, fx.StateReceived))
    later = msgspec.structs.replace(view(1, "acde", run="r", first_round=8), generation=LATE)
    b.learn(later)
    life = b.node.me.incarnation
    assert (b.node.view, life) == (None, 2)
    b.learn(later.successor(first_round=8, joined=[b.node.me]))
    assert b.node.view is not None
    b.hear(ev.Adopted("r", 7, came.of, came.life))
    assert b.node.allreduce.committed == -1


@pytest.mark.parametrize("theirs", [LATE, None])
def test_a_checkpoint_is_not_gone_on_with_by_a_round_that_others_have_gone_on_with_from_another(
    theirs: Generation | None,
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


def test_who_holds_a_round_does_not_give_up_what_it_went_on_from_and_others_hear_of_that() -> None:
    """a, b and c have added up round 8, and b is lost: d, which comes then, has a later checkpoint. Each would wait for
    the other."""
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
        "state of r after 8: eight", "a <- sync 3 r after -2", "d <- sync 3 r after -2",
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


# -- behind, without a run ---------------------------------------------------------------------------------


def after(machine: Machine, peer: str, committed: int, kept: int) -> list[str]:
    assert machine.node.view is not None
    return machine.frame(peer, fr.Sync(epoch=machine.node.view.epoch, run="", committed=committed, kept=kept))


def behind() -> Machine:
    """It has contributed to round 5, which the others have seen the end of. Its parent came after that."""
    d = Machine("d", limits=Limits(silence_s=60.0)).join(view(8, "abcdefgh", first_round=5), up="b", committed=4)
    d.contribute(1)
    d.learn(view(9, "axcdefgh", first_round=6))
    d.hear(ev.LinkUp(PeerId("x"), 1))
    d.hear(ev.LinkUp(PeerId("h"), 1))
    return d


def test_where_no_neighbour_can_tell_how_a_round_ended_it_is_given_up_at_once() -> None:
    d = behind()
    after(d, "h", 5, kept=6)
    assert not any("behind" in line for line in d.until(1.0))  # its parent may know
    after(d, "x", 5, kept=6)
    assert when(d.until(1.5), "behind: 5") < 1.5
    assert d.node.allreduce.committed == 5
    assert d.node.parts.course.past.sync(5).kept == 6  # nor can it tell those below


def test_who_can_tell_how_a_round_ended_is_waited_for() -> None:
    d = behind()
    after(d, "h", 5, kept=6)
    after(d, "x", 5, kept=5)
    assert not any("behind" in line for line in d.until(3.0))


def test_who_waits_in_vain_gives_up_however_often_views_and_links_change_meanwhile() -> None:
    d = behind()
    said = []
    for second in range(1, 9):
        after(d, "x", 5, kept=5)
        said += d.until(second - 0.1)
        if second == 4:
            d.learn(view(10, "axcdefgh", first_round=6))
            after(d, "x", 5, kept=5)
        d.hear(ev.LinkDown(PeerId("x"), "reset"))
        said += d.until(second)
        d.hear(ev.LinkUp(PeerId("x"), 1))
    assert when(said, "behind: 5") < 8


def test_who_is_asked_while_it_takes_a_state_over_gives_it_once_it_has_it() -> None:
    """Who has asked does not ask again for long."""
    b = Machine("b").join(RUN)
    b.level("a", committed=7)
    b.level("d", committed=-1)
    state(b, "a", b"state", number=7)
    assert b.frame("d", fr.StateRequest(run="r")) == []
    assert "provide d with r after 7" in b.hear(ev.Adopted("r", 7))


def test_who_comes_late_does_not_know_what_views_that_it_was_not_in_have_decided() -> None:
    """b is given an older state, and told how the round after it has ended. The next may have been decided by a and c
    before b was in; so b, at the head by then, must not drop it before c has spoken."""
    one = view(1, "ac", run="r")
    two = view(2, "acb", run="r", first_round=3, after=one)
    b = Machine("b").join(two)
    b.level("a", committed=1)
    state(b, "a", b"one", number=1)
    b.hear(ev.Adopted("r", 1))
    b.frame("a", fr.Abort(epoch=2, round=2, cause="timeout", reason="so", over=True))
    assert b.node.allreduce.committed == 2
    b.learn(view(3, "bc", run="r", first_round=3, after=two))
    b.level("c", 2)
    b.contribute(1)  # what it brings to the second round
    b.contribute(1)
    assert b.hear(ev.TimedOut("enough")) == []


def test_a_run_does_not_begin_again_where_rounds_of_it_are_over() -> None:
    """b gives its state up for a's, which has the same, and is lost before it has given it: there is none any more, but
    the first round of this generation has had its end."""
    one = view(1, "ba", run="r")
    b = Machine("b").join(one)
    b.level("a", committed=-1)
    b.sync("a", 0)
    b.contribute(1)
    assert b.reduce("a", vector(1), "a")[-1] == "round 1 = 2 of ba"
    b.sync("a", 1)
    b.hear(ev.StateLost())
    b.hear(ev.LinkDown(A, "reset"))
    two = view(2, "b", run="r", first_round=2, after=one)
    b.learn(two)
    assert b.node.allreduce.committed == -1
    assert b.contribute(100) == []
    anew = Generation.after(two.generation, [("b", 1)])
    assert "round 1 = 100 of b" in b.learn(two.successor(first_round=2, generation=anew))


def test_nor_where_somebody_below_has_seen_the_end_of_one() -> None:
    one = view(1, "ab", run="r", first_round=5)
    b = at_seven("b", one)
    assert "a <- sync 1 r after -2" in b.hear(ev.StateLost())


def test_what_the_owner_has_kept_of_before_is_not_gone_on_with() -> None:
    b = at_seven("b", RUN)
    b.hear(ev.StateLost())
    b.hear(ev.RunWanted("r", 1, 5))
    assert b.node.allreduce.committed == -1
    b.hear(ev.RunWanted("r", 1, 7))
    assert b.node.allreduce.committed == 7


def test_a_state_is_not_given_up_while_a_vector_is_on_its_way() -> None:
    """a has got a part of it. If b had d's state, of before the same round, and gave another vector, a would have the
    rest of that behind what is there."""
    b = Machine("b").join(view(3, "abd", fanout=1, run="r", first_round=5))
    b.level("a", committed=7)
    state(b, "a", b"seven", number=7)
    b.hear(ev.Adopted("r", 7))
    b.level("d", 7)
    b.reduce("d", vector(0, 0, 0), "d", number=8)
    b.contribute(1, 2, 3)
    b.hear(ev.LinkDown(A, "reset"))
    assert b.hear(ev.StateLost()) == []
    assert b.level("a", 7, have=1)[-1] == "a <- reduce 8 [1:] 2 3 of 110"
    b.result("a", vector(1, 2, 3), "abd", number=8)
    b.sync("a", 8)
    assert b.node.allreduce.committed == -1


def test_what_was_on_its_way_while_a_state_was_replaced_counts_only_as_it_comes_again() -> None:
    """There was room for it in the round that was given up with the state, and the round that comes next has the same
    number: b would pass a sum up as that of both, with nothing of d in it."""
    b = at_seven("b", view(3, "abd", fanout=1, run="r", first_round=5))
    b.level("d", 7)
    vector_of_d = vector(10, 20, 30).tobytes()
    frame = b.stamped(fr.Reduce(epoch=3, round=8, offset=0, total=3, dtype="<f4", contributors=b"\4", weight=1.0))
    room = b.node.sink(D, frame, len(vector_of_d))
    assert room is not None
    b.hear(ev.StateLost())
    b.until(0.5)
    state(b, "a", b"seven", number=7)
    put_to_use(b)
    assert b.node.allreduce.committed == 7
    room[:] = vector_of_d
    b.hear(ev.FrameReceived(D, frame, None, len(vector_of_d), True, 1e-3))
    assert b.contribute(1, 2, 3) == []
    assert b.reduce("d", vector(10, 20, 30), "d", number=8) == ["a <- reduce 8 [0:] 11 22 33 of 110"]


def vote_of(machine: Machine) -> tuple[int, bool]:
    """How far it says that it has come, in the vote that it has just sent."""
    (vote,) = (e.frame for e in machine.effects if isinstance(e, fx.Send) and isinstance(e.frame, fr.Vote))
    return vote.committed, vote.holding


def test_who_has_given_its_state_up_can_not_be_spared_by_those_who_have_not_come_as_far() -> None:
    """a and b have the end of the eighth round. b gives its state up for a's, a is lost, and b leaves: if it said that
    it knows of nothing, c would go on alone, and add that round up once more."""
    one = view(1, "abc", run="r", first_round=8)
    b = at_seven("b", one)
    b.contribute(1)
    assert b.result("a", vector(3), "abc", number=8) == ["round 8 = 3 of abc"]
    b.sync("a", 8)
    b.hear(ev.StateLost())
    assert b.node.allreduce.committed == -1
    b.hear(ev.LinkDown(A, "reset"))
    two = view(2, "cb", run="r", first_round=8, after=one)
    b.learn(two)
    b.hear(ev.LinkUp(PeerId("c"), 1))
    b.hear(ev.LeaveWanted())
    b.frame("c", fr.Poll(epoch=two.stamp, candidate="c", number=1))
    assert vote_of(b) == (7, True)
    alone = two.successor(first_round=8, without={PeerId("b")})
    said = b.document("c", fr.Propose(epoch=two.stamp, candidate="c", number=2, ballot=0), pack(alone))
    assert said == ["c <- vote 2 of b for c"]
    over = two.successor(first_round=9, without={PeerId("b")})
    said = b.document("c", fr.Propose(epoch=two.stamp, candidate="c", number=3, ballot=0), pack(over))
    assert said == ["c <- vote 3 of b for c, accepts 0"]


@pytest.mark.parametrize(("said", "alone"), [((-1, False), True), ((7, True), False)])
def test_nor_does_the_head_go_on_without_it(said: tuple[int, bool], alone: bool) -> None:
    one = view(1, "abc", run="r", first_round=8)
    c = at_seven("c", one)
    c.contribute(1)
    c.hear(ev.LinkDown(A, "reset"))
    c.learn(view(2, "cb", run="r", first_round=8, after=one))
    c.level("b", committed=-2)
    c.frame("b", fr.Leave(peer="b", incarnation=1, until=-1))
    ends: list[str] = []
    while c.now < 5.0:
        assert c.node.view is not None
        c.frame("b", fr.Ping(waiting=False, epoch=c.node.view.stamp))
        c.until(c.now + 0.5)
        ends += [line for line in c.votes("b", committed=said[0], holding=said[1]) if line.startswith("round")]
    assert ends == (["round 8 = 1 of c inexact"] if alone else [])


def test_nor_who_puts_a_state_to_use_that_has_taken_the_place_of_what_it_held() -> None:
    one = view(1, "abc", run="r", first_round=8)
    b = at_seven("b", one)
    b.contribute(1)
    b.result("a", vector(3), "abc", number=8, final=False)
    assert b.node.allreduce.holding
    b.sync("a", 8)
    b.until(1.0)
    assert "state of r after 8: eight" in state(b, "a", b"eight", number=8)
    assert asked_by_c(b, one) == (7, True)


def test_a_head_that_has_given_its_state_up_does_not_say_that_the_rounds_since_are_still_to_come() -> None:
    """Who comes late would take them for rounds that nobody can have decided without it, and drop them."""
    a = Machine("a").join(view(1, "ab", run="r"))
    a.level("b", committed=-1)
    a.sync("b", 0)
    for number in (1, 2, 3):
        a.contribute(1)
        a.reduce("b", vector(1), "b", number=number)
        a.sync("b", number)
    assert a.node.allreduce.committed == 3
    a.hear(ev.StateLost())
    assert a.node.allreduce.committed == -1
    a.hear(ev.PresenceSeen(member("c")))
    a.hear(letter_to("a", "c", fr.Here(incarnation=1)))
    a.until(1.0)
    a.agree("b", committed=2)
    assert a.node.view is not None
    assert (a.node.view.epoch, a.node.view.first_round) == (2, 3)


def test_nor_when_it_has_begun_again_with_a_checkpoint_and_has_given_that_up_for_a_neighbours_state() -> None:
    """It has seen the end of the eighth round in this life, whatever it has forgotten since."""
    one = view(1, "abc", run="r", first_round=8)
    b = at_seven("b", one)
    b.contribute(1)
    b.result("a", vector(3), "abc", number=8)
    b.sync("a", 8)
    b.hear(ev.StateLost())
    b.hear(ev.RunWanted("r", 1, 8, of=one.generation))
    assert b.node.allreduce.committed == -1  # a's counts more
    assert asked_by_c(b, one) == (7, True)
