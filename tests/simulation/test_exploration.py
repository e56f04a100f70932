"""Small fleets gone through exhaustively: nothing breaks within the bounds, and what is broken on purpose is found.

Each test with a broken rule has a sibling without, in the same setting: so it is the rule that keeps it whole.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edgepeer.protocol import allreduce, ending
from edgepeer.protocol.deciding import Deciding
from edgepeer.protocol.links import Links
from edgepeer.protocol.node import Node
from edgepeer.protocol.round import Round
from edgepeer.simulation.exploration.canon import NOW, Canon
from edgepeer.simulation.exploration.checks import Violation
from edgepeer.simulation.exploration.fleet import Fleet
from edgepeer.simulation.exploration.life import LIMITS
from edgepeer.simulation.exploration.search import Bounds, Find, Search, recover
from edgepeer.simulation.exploration.shared import explore
from edgepeer.simulation.exploration.state import Setting, State
from edgepeer.simulation.exploration.telling import lines, replay
from edgepeer.topology.view import Member, View

PAIR = Setting(peers=2, faults=1)
TRIO = Setting(peers=3, faults=1)
ONE_SURPRISE = Bounds(depth=1)


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
    holder.node.membership._penalties["p9"] = 1, NOW + 3  # type: ignore[index]  # a plain text will do
    after = canon.take(NOW)
    assert after != before
    canon.put(before)
    assert holder.node.membership._penalties == {}
    canon.put(after)
    assert holder.node.membership._penalties == {"p9": (1, NOW + 3)}


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
    setting, bounds = Setting(peers=2, faults=1, kinds=("reset",)), Bounds(depth=2)
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
        (Setting(peers=2, faults=2), Bounds(depth=2, states=6000)),
        (Setting(peers=3, faults=2, kinds=("damage", "reset", "oneway")), Bounds(depth=2, states=6000)),
        (Setting(peers=4, faults=1, kinds=("kill", "isolate")), Bounds(depth=1, states=6000)),
    ],
    ids=["run", "plain", "pair", "links", "four"],
)
def test_nothing_breaks(setting: Setting, bounds: Bounds) -> None:
    find, search = found(setting, bounds)
    assert find is None, "\n".join(lines(setting, find))
    assert search.tally.states > 1000
    assert search.tally.probes > 0


# -- what is broken is found ---------------------------------------------------------------------------------------


def any_half(self: View, peers: object, dead: object = ()) -> bool:
    return 2 * sum(peer in peers for peer in self.ids) >= self.size  # type: ignore[operator]  # containers


def anybody(self: View, peers: object, dead: object = ()) -> bool:
    return True


def test_a_quorum_of_any_half_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(PAIR, Bounds(depth=1, states=300))[0] is None
    monkeypatch.setattr(View, "has_quorum", any_half)
    find, search = found(PAIR, Bounds(depth=1, states=300))
    assert find is not None
    assert find.complaint == "p1 ends round 2 with the sum over p1, but p0 with the sum over p0"
    assert search.tally.states < 300


def test_a_quorum_of_anybody_is_found_to_lose_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(TRIO, Bounds(depth=1, states=500))[0] is None
    monkeypatch.setattr(View, "has_quorum", anybody)
    find, _ = found(TRIO, Bounds(depth=1, states=500))
    assert find is not None
    assert "holds the end of round 2, which counts" in find.complaint


def test_a_digest_that_is_not_checked_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(peers=3, faults=1, kinds=("damage",))
    assert found(setting, ONE_SURPRISE)[0] is None
    for module in (ending, allreduce):
        monkeypatch.setattr(module, "what_is_wrong", lambda total, commit, view: "")
    find, _ = found(setting, ONE_SURPRISE)
    assert find is not None
    assert find.complaint.endswith("round 2 is not the sum over p0, p1, p2")
    assert [action[0] for action in find.actions if action[0] not in ("bring", "contribute")] == ["damage"]


@pytest.mark.slow
def test_two_peers_that_both_take_over_are_found() -> None:
    """As the protocol is: two views of one epoch may be made, and the one that precedes gives way."""
    setting = Setting(peers=3, faults=1, kinds=("kill",), one_successor=True)
    find, _ = found(setting, Bounds(depth=2))
    assert find is not None
    assert find.complaint == "two views of epoch 2: p1/1, p2/1; p2/1, p1/1"
    assert [line for line in lines(setting, find) if line.startswith(" ! ")] == [" ! kill p0", " ! restart p0"]


@pytest.mark.slow
def test_a_round_that_counts_before_enough_hold_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Deciding, "decided", lambda self, rd: True)
    find, _ = found(TRIO, ONE_SURPRISE)
    assert find is not None
    assert "holds the end of round 2, which counts" in find.complaint


def test_a_digest_that_is_checked_makes_the_fleet_ask_again() -> None:
    fleet = Fleet(Setting(peers=3, faults=1, kinds=("damage",)))
    state = usually(fleet, fleet.formed(), lambda state: ("damage", 0, 1) in fleet.disturbances(state))
    assert recover(fleet, fleet.after(state, ("damage", 0, 1))) is None


@pytest.mark.slow
def test_a_machine_that_forgets_what_it_holds_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Round.restart

    def restart(self: Round, streams: object) -> None:
        if hasattr(self, "held"):
            self.held = self.prior = None
        real(self, streams)  # type: ignore[arg-type]  # as it was given

    monkeypatch.setattr(Round, "restart", restart)
    find, _ = found(TRIO, ONE_SURPRISE)
    assert find is not None
    assert find.complaint == "p1 ends round 2 with the sum over p1, p2, but p0 with the sum over p0, p1, p2"
    assert replay(TRIO, find) == find.complaint
    told = list(lines(TRIO, find))
    assert sum(line.startswith(" ! ") for line in told) == 1
    assert told[-1] == f"   broken: {find.complaint}"


def test_a_fleet_that_does_not_find_together_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(TRIO)
    state = fleet.after(fleet.formed(), ("isolate", 2))
    state = usually(fleet, state, works_without(fleet, "p2"))
    assert recover(fleet, state) is None
    monkeypatch.setattr(Links, "dial_at_once", lambda self, peer, now: None)
    monkeypatch.setattr("edgepeer.protocol.membership.Membership._joiners", lambda self, view: [])
    fleet = Fleet(TRIO)
    state = fleet.after(fleet.formed(), ("isolate", 2))
    state = usually(fleet, state, works_without(fleet, "p2"))
    complaint = recover(fleet, state)
    assert complaint is not None
    assert complaint.startswith("the fleet does not find together again: p0 is in view 2 of p0, p1, ")


def test_whatever_a_machine_raises_is_a_find(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Node, *_: object) -> None:
        raise KeyError("p7")

    monkeypatch.setattr(Node, "_suspect", broken)
    find, _ = found(TRIO, ONE_SURPRISE)
    assert find is not None
    assert "KeyError: 'p7'" in find.complaint


def test_a_violation_stops_the_fleet_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(TRIO)
    state = fleet.formed()
    monkeypatch.setattr(Node, "handle", lambda self, event, now: [1 / 0])
    with pytest.raises(Violation, match=r"^p1: ZeroDivisionError: division by zero$"):
        fleet.after(state, ("contribute", 1))
