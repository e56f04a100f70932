"""Small fleets gone through exhaustively: nothing breaks within the bounds, and what is broken on purpose is found.

Each test with a broken rule has a sibling without, in the same setting: so it is the rule that keeps it whole.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from edgepeer.ids import PeerId
from edgepeer.protocol import allreduce
from edgepeer.protocol.allreduce import Allreduce
from edgepeer.protocol.membership import Membership
from edgepeer.protocol.neighbours import Neighbours
from edgepeer.protocol.node import Node
from edgepeer.protocol.place import Place
from edgepeer.protocol.round import Round
from edgepeer.protocol.succession import Succession
from edgepeer.protocol.views import Views
from edgepeer.simulation.exploration.canon import NOW, Canon
from edgepeer.simulation.exploration.checks import Violation
from edgepeer.simulation.exploration.fleet import Fleet
from edgepeer.simulation.exploration.life import LIMITS, Facts
from edgepeer.simulation.exploration.search import Bounds, Find, Search, recover
from edgepeer.simulation.exploration.shared import explore
from edgepeer.simulation.exploration.state import Setting, State
from edgepeer.simulation.exploration.telling import lines, replay
from edgepeer.topology import view as view_module
from edgepeer.topology.view import Member, View
from edgepeer.wire.frames import Vote

PAIR = Setting(peers=2, faults=1)
TRIO = Setting(peers=3, faults=1)
ONE_SURPRISE = Bounds(depth=1)
SOME = 2000
"""States of those that a test can not go through to the end. `edgepeer simulate explore` goes through as many as one
likes."""
DUEL = Setting(peers=3, faults=2, kinds=("isolate",))


def found(setting: Setting, bounds: Bounds) -> tuple[Find | None, Search]:
    search = Search(setting, bounds)
    return search.run(), search


# -- a machine's state as a value ----------------------------------------------------------------------------------


class Holder:
    def __init__(self) -> None:
        self.node = Node(Member(id="p0", incarnation=1), limits=LIMITS, now=NOW)


def test_a_machine_that_is_put_back_is_in_the_same_state() -> None:
    fleet = Fleet(TRIO)
    state = fleet.begin()
    met = 0
    while (action := fleet.usual(state)) is not None and met < 60:
        state, met = fleet.after(state, action), met + 1
        for lives, number in zip(fleet.lives, state.lives, strict=True):
            value = lives._states[number]
            lives._canon.put(value)
            assert lives._canon.take(NOW) == value
    assert met > 40


def test_a_state_does_not_depend_on_the_time_but_on_what_has_passed() -> None:
    one, other = Holder(), Holder()
    canon = Canon(one)
    now = canon.take(NOW)
    assert canon.take(NOW) == now
    assert Canon(other).take(NOW) == now
    assert canon.take(NOW + 0.25) != now
    canon.put(now)
    one.node.tick(NOW + 0.25)
    assert canon.take(NOW + 0.25) != now


def test_every_field_of_a_machine_is_part_of_its_state() -> None:
    holder = Holder()
    canon = Canon(holder)
    before = canon.take(NOW)
    holder.node.parts.membership._penalties["p9"] = 1, NOW + 3  # type: ignore[index]  # a plain text will do
    after = canon.take(NOW)
    assert after != before
    canon.put(before)
    assert holder.node.parts.membership._penalties == {}
    canon.put(after)
    assert holder.node.parts.membership._penalties == {"p9": (1, NOW + 3)}


# -- the fleet -----------------------------------------------------------------------------------------------------


def usually(fleet: Fleet, state: State, until: Callable[[State], bool], *, limit: int = 1000) -> State:
    """The usual takes its course until something is true."""
    for _ in range(limit):
        if until(state):
            return state
        action = fleet.usual(state)
        assert action is not None, "nothing happens any more"
        state = fleet.after(state, action)
    raise AssertionError(f"not within {limit} steps")


def works_without(fleet: Fleet, gone: str) -> Callable[[State], bool]:
    def check(state: State) -> bool:
        facts = [each for peer in range(fleet.n) if (each := fleet.facts(state, peer)) and each.peer != gone]
        return all(each.view is not None and gone not in each.view for each in facts)

    return check


@pytest.mark.parametrize("fault", ["kill", "power", "isolate", "freeze"])
def test_the_others_go_on_without_whoever_is_gone_and_take_it_in_again(fault: str) -> None:
    fleet = Fleet(TRIO)
    state = usually(fleet, fleet.after(fleet.formed(), (fault, 0)), works_without(fleet, "p0"))
    assert len(state.history.views) > 1
    back = ("restart", 0) if fault in ("kill", "power") else ("heal", (fault, 0))
    state = fleet.after(state, back)
    state = usually(
        fleet, state, lambda s: all((f := fleet.facts(s, p)) and f.view and f.view.size == 3 for p in range(3))
    )
    assert recover(fleet, state) is None


def test_whoever_answers_through_the_broker_alone_is_let_in() -> None:
    fleet = Fleet(TRIO)
    state = usually(fleet, fleet.after(fleet.formed(), ("kill", 2)), works_without(fleet, "p2"))
    for action in (("cut", 0, 2), ("cut", 1, 2), ("restart", 2)):
        state = fleet.after(state, action)
    usually(fleet, state, lambda s: all((f := fleet.facts(s, p)) and f.view and f.view.size == 3 for p in range(3)))


def test_a_quiet_fleet_has_nothing_to_do_until_something_happens() -> None:
    fleet = Fleet(TRIO)
    state = fleet.formed()._replace(rounds=1)
    for _ in range(50):
        if (action := fleet.usual(state)) is None:
            break
        state = fleet.after(state, action)
    assert fleet.usual(state) is None
    assert {action[0] for action in fleet.unusual(state)} == {"kill", "isolate", "cut", "freeze"}


def test_what_is_late_comes_after_everything_else() -> None:
    fleet = Fleet(TRIO)
    state = fleet.formed()
    first = fleet.usual(state)
    assert first == ("contribute", 0)
    state = fleet.after(state, ("hold", fleet.sources.index(first)))
    came = []
    while state.held:
        action = fleet.usual(state)
        assert action is not None
        came.append(action)
        state = fleet.after(state, action)
    assert came[0] == ("contribute", 1)
    assert came[-1] == first
    assert came.count(first) == 1


def test_whoever_has_not_contributed_yet_is_waited_for() -> None:
    fleet = Fleet(TRIO)
    state = fleet.after(fleet.after(fleet.formed(), ("contribute", 0)), ("wait",))
    assert state.channels[1]
    assert not any(fleet.frames.asked_by(number) for channel in state.channels for number in channel)


# -- nothing breaks ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_peers_and_one_surprise() -> None:
    find, search = found(PAIR, ONE_SURPRISE)
    assert find is None
    tally = search.tally
    assert tally.whole
    assert tally.states == sum(tally.by_depth) > 500
    assert tally.transitions >= tally.states - 1
    assert min(tally.committed, tally.views) > 10


def test_the_same_bounds_give_the_same_states() -> None:
    searches = [found(TRIO, Bounds(depth=1, states=150))[1] for _ in range(2)]
    assert searches[0].tally == searches[1].tally
    assert searches[0].tally.states >= 150
    assert not searches[0].tally.whole
    assert searches[0].fresh() == searches[1].fresh()


def test_all_orders_of_the_first_steps() -> None:
    find, search = found(PAIR, Bounds(depth=4, any_order=True))
    assert find is None
    assert search.tally.whole
    assert search.tally.longest == 4
    assert all(search.tally.by_depth)


def test_several_processes_come_to_the_same_states() -> None:
    setting, bounds = Setting(peers=2, faults=0), Bounds(depth=2)
    alone, _ = explore(setting, bounds, lambda tally: True)
    assert alone.cut_short == 0
    shared, find = explore(setting, bounds, lambda tally: True, jobs=2)
    assert find is None
    assert (shared.states, shared.by_depth, shared.whole) == (alone.states, alone.by_depth, True)


def test_several_processes_stop_when_they_are_told() -> None:
    asked = []

    def go_on(tally: object) -> bool:
        asked.append(tally)
        return False

    tally, find = explore(TRIO, Bounds(depth=3), go_on, jobs=2)
    assert find is None
    assert asked
    assert not tally.whole
    assert tally.states > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "bounds"),
    [
        (TRIO, ONE_SURPRISE),
        (Setting(peers=3, faults=1, run=""), ONE_SURPRISE),
        (Setting(peers=2, faults=2), Bounds(depth=2, states=SOME)),
        (Setting(peers=3, faults=2, kinds=("damage", "reset", "oneway")), Bounds(depth=2, states=SOME)),
        (Setting(peers=4, faults=1, kinds=("kill", "isolate")), Bounds(depth=1, states=SOME)),
        (Setting(peers=3, faults=2, kinds=("leave", "isolate")), Bounds(depth=2, states=SOME)),
        (Setting(peers=3, faults=2, kinds=("kill", "timeout")), Bounds(depth=2, states=4 * SOME, probe_every=20)),
        (Setting(peers=3, faults=2, kinds=("lose", "cancel", "power")), Bounds(depth=2, states=SOME)),
    ],
    ids=["run", "plain", "pair", "links", "four", "leaving", "dropped", "applications"],
)
def test_nothing_breaks(setting: Setting, bounds: Bounds) -> None:
    find, search = found(setting, bounds)
    assert find is None, "\n".join(lines(setting, find))
    assert search.tally.states > 1000
    assert search.tally.probes > 0


# -- what is broken is found ---------------------------------------------------------------------------------------


def anybody(self: View, peers: object, *, settled: bool) -> bool:
    return True


def test_a_quorum_of_anybody_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """That nothing is with the rule, in all states: test_nothing_breaks[run]."""
    monkeypatch.setattr(View, "may_go_on", anybody)
    find, _ = found(TRIO, Bounds(depth=1, states=3000))
    assert find is not None
    assert find.complaint == "two views of epoch 2: p0/1; p1/1, p2/1"


def guards_ignored(self: View, peers: Container[PeerId], *, settled: bool) -> bool:
    return view_module.enough(self.ids, peers, self.quorum)


def test_guards_keep_what_only_their_holders_know() -> None:
    """A view of two that follows one of four: whoever is left alone of it may not go on before it is settled."""
    four = View(epoch=1, members=tuple(Member(id=f"p{at}", incarnation=1) for at in range(4)))
    two = four.successor(first_round=2, without=[PeerId("p2"), PeerId("p3")], settled=True)
    assert guards_ignored(two, [PeerId("p0")], settled=False)
    assert not two.may_go_on([PeerId("p0")], settled=False)
    assert two.may_go_on([PeerId("p0")], settled=True)


def accepted_and_cut_off(fleet: Fleet) -> State:
    """p2 has accepted what p1 has proposed without p0; then p0 is back, and p1 gone before it knows."""
    state = fleet.after(fleet.formed()._replace(rounds=1), ("isolate", 0))
    state = usually(fleet, state, lambda state: facts(fleet, state, 2).accepted is not None)
    return fleet.after(fleet.after(state, ("isolate", 1)), ("heal", ("isolate", 0)))


def facts(fleet: Fleet, state: State, peer: int) -> Facts:
    found = fleet.facts(state, peer)
    assert found is not None
    return found


def test_a_candidate_that_ignores_what_others_have_accepted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(DUEL)
    state = usually(fleet, accepted_and_cut_off(fleet), lambda state: facts(fleet, state, 0).leading > 4097)
    for _ in range(100):
        action = fleet.usual(state)
        assert action is not None
        state = fleet.after(state, action)
    after = facts(fleet, state, 2).view
    assert after is not None
    assert after.epoch > 1  # what p2's word binds both to is decided, though one of them is not in it
    real = Succession.on_vote

    def on_vote(self: Succession, vote: Vote, accepted: View | None, document: bytes | None) -> None:
        if self.leading >= 0 and not self.proposed:
            vote, accepted = msgspec.structs.replace(vote, accepted=-1), None
        real(self, vote, accepted, document)

    monkeypatch.setattr(Succession, "on_vote", on_vote)
    fleet = Fleet(DUEL)
    state = accepted_and_cut_off(fleet)
    with pytest.raises(Violation, match=r"^view 1 has two successors: ") as violation:
        usually(fleet, state, lambda state: False)
    assert {*str(violation.value).partition(": ")[2].split("; ")} == {"p1/1, p2/1", "p0/1, p1/1, p2/1"}


def both_lead(fleet: Fleet) -> State:
    """p2 has promised p1, whose proposal is still under way, and then p0, which proposes, too; then p1 is back."""
    state = fleet.after(fleet.formed()._replace(rounds=1), ("isolate", 0))
    state = usually(fleet, state, lambda state: facts(fleet, state, 1).accepted is not None)
    state = fleet.after(fleet.after(state, ("isolate", 1)), ("heal", ("isolate", 0)))
    state = usually(fleet, state, lambda state: facts(fleet, state, 0).accepted is not None)
    assert facts(fleet, state, 2).accepted is None
    state = fleet.after(state, ("heal", ("isolate", 1)))
    assert state.channels[1 * fleet.n + 2]
    return state


def lower_first(fleet: Fleet) -> None:
    state = both_lead(fleet)
    while state.channels[1 * fleet.n + 2] and facts(fleet, state, 2).accepted is None:
        state = fleet.after(state, ("bring", 1, 2))
    while (action := fleet.usual(state)) is not None:
        state = fleet.after(state, action)


@pytest.mark.parametrize("forgotten", ["on_propose", "on_poll"])
def test_a_promise_that_is_not_kept_is_found(monkeypatch: pytest.MonkeyPatch, forgotten: str) -> None:
    lower_first(Fleet(DUEL))
    real = getattr(Succession, forgotten)

    def forget(self: Succession, *args: object, **kwargs: object) -> None:
        if forgotten == "on_propose":
            self.promised = 0
        real(self, *args, **kwargs)
        if forgotten == "on_poll":
            self.promised = 0

    monkeypatch.setattr(Succession, forgotten, forget)
    with pytest.raises(Violation, match=r"^view 1 has two successors: "):
        lower_first(Fleet(DUEL))


def test_a_frozen_life_that_helps_to_decide_a_round_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def contributes(fleet: Fleet) -> None:
        state = fleet.after(fleet.formed()._replace(rounds=1), ("kill", 2))
        state = usually(fleet, state, lambda state: facts(fleet, state, 1).frozen)
        fleet.after(state._replace(rounds=3), ("contribute", 1))

    contributes(Fleet(TRIO))
    monkeypatch.setattr(Place, "frozen", False)
    with pytest.raises(Violation, match=r"^p1 is frozen, and sends Reduce of round 2$"):
        contributes(Fleet(TRIO))


def test_a_head_whose_proposal_was_in_vain_goes_on_with_whoever_is_there() -> None:
    fleet = Fleet(Setting(peers=3, faults=2))
    state = fleet.after(fleet.formed(), ("isolate", 1))
    state = usually(fleet, state, lambda state: facts(fleet, state, 0).accepted is not None)
    assert facts(fleet, state, 2).accepted is None
    assert recover(fleet, fleet.after(state, ("kill", 2))) is None


def test_a_digest_that_is_not_checked_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(peers=3, faults=1, kinds=("damage",))
    assert found(setting, ONE_SURPRISE)[0] is None
    monkeypatch.setattr(allreduce, "what_is_wrong", lambda total, commit, view: "")
    find, _ = found(setting, ONE_SURPRISE)
    assert find is not None
    assert find.complaint.endswith("round 2 is not the sum over p0, p1, p2")
    assert [action[0] for action in find.actions if action[0] not in ("bring", "contribute")] == ["damage"]


@pytest.mark.slow
def test_a_round_that_counts_before_enough_hold_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Allreduce, "_is_decided", lambda self, here: True)
    find, _ = found(TRIO, ONE_SURPRISE)
    assert find is not None
    assert "holds the end of round 2, which counts" in find.complaint


def test_a_cancelled_call_whose_memory_is_still_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    setting, bounds = Setting(peers=3, faults=1, kinds=("cancel",)), Bounds(depth=1, states=600)
    assert found(setting, bounds)[0] is None

    def abandon(self: Round) -> list[PeerId]:
        self.brings.abandoned = True
        return []

    monkeypatch.setattr(Round, "abandon", abandon)
    find, _ = found(setting, bounds)
    assert find is not None
    assert find.complaint.endswith("round 2 is not the sum over p0, p1, p2")
    assert [action[0] for action in find.actions if action[0] not in ("bring", "contribute")] == ["cancel"]


def test_who_has_lost_its_state_and_is_given_none_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(Setting(peers=3, faults=1, kinds=("lose",)))
    lost = fleet.after(fleet.formed(), ("lose", 2))
    assert ("lose", 2) not in fleet.disturbances(lost)
    assert recover(fleet, lost) is None
    monkeypatch.setattr(Neighbours, "_give_up_state", lambda self: None)
    fleet = Fleet(Setting(peers=3, faults=1, kinds=("lose",)))
    complaint = recover(fleet, fleet.after(fleet.formed(), ("lose", 2)))
    assert complaint is not None
    assert complaint.startswith("the fleet does not find together again")


def test_who_has_lost_its_state_gives_it_to_nobody_until_it_has_another() -> None:
    """All but one have: what that one gives, they give on."""
    fleet = Fleet(Setting(peers=4, faults=3, kinds=("lose",), fanout=1))
    state = fleet.formed()
    for peer in (0, 1, 2):
        state = fleet.after(state, ("lose", peer))
    assert [facts(fleet, state, peer).begins for peer in range(4)] == [False, False, False, True]
    assert recover(fleet, state) is None


def test_a_digest_that_is_checked_makes_the_fleet_ask_again() -> None:
    fleet = Fleet(Setting(peers=3, faults=1, kinds=("damage",)))
    state = usually(fleet, fleet.formed(), lambda state: ("damage", 0, 1) in fleet.disturbances(state))
    assert recover(fleet, fleet.after(state, ("damage", 0, 1))) is None


@pytest.mark.slow
def test_a_machine_that_forgets_what_it_holds_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Round.again

    def again(self: Round, *args: Any, **kwargs: Any) -> Round:
        self.held = self.prior = None
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Round, "again", again)
    find, _ = found(TRIO, ONE_SURPRISE)
    assert find is not None
    assert find.complaint == "nobody in view 2 (p1/1, p2/1) holds the end of round 2, which counts"
    assert replay(TRIO, find) == find.complaint
    told = list(lines(TRIO, find))
    assert sum(line.startswith(" ! ") for line in told) == 1
    assert told[-1] == f"   broken: {find.complaint}"


def test_a_fleet_that_does_not_find_together_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(TRIO)
    state = fleet.after(fleet.formed(), ("isolate", 2))
    state = usually(fleet, state, works_without(fleet, "p2"))
    assert recover(fleet, state) is None
    fleet = Fleet(TRIO)
    state = fleet.after(fleet.formed(), ("isolate", 2))
    state = usually(fleet, state, works_without(fleet, "p2"))
    monkeypatch.setattr(Membership, "_joiners", lambda self, view, now: [])
    complaint = recover(fleet, state)
    assert complaint is not None
    assert complaint.startswith("the fleet does not find together again: p0 is in view 2 of p0, p1, ")


def test_what_is_found_while_a_fleet_recovers_is_found_again_by_its_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Membership._joiners

    def nobody_later(self: Membership, view: View, now: float) -> list[Any]:
        return real(self, view, now) if view.epoch <= 1 else []

    monkeypatch.setattr(Membership, "_joiners", nobody_later)
    find, _ = found(TRIO, Bounds(depth=1, probe_every=10))
    assert find is not None
    assert find.recovering
    assert find.complaint.startswith("the fleet does not find together again: p0 is in no view, ")
    assert replay(TRIO, find) == find.complaint
    assert replay(TRIO, replace(find, recovering=False)) is None


def test_whatever_a_machine_raises_is_a_find(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Views, *_: object) -> None:
        raise KeyError("p7")

    monkeypatch.setattr(Views, "suspect", broken)
    find, _ = found(TRIO, ONE_SURPRISE)
    assert find is not None
    assert "KeyError: 'p7'" in find.complaint


def test_a_violation_stops_the_fleet_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(TRIO)
    state = fleet.formed()
    monkeypatch.setattr(Node, "handle", lambda self, event, now: [1 / 0])
    with pytest.raises(Violation, match=r"^p1: ZeroDivisionError: division by zero$"):
        fleet.after(state, ("contribute", 1))
