"""Everything that can become of a small fleet, within bounds: each state once, those with the fewest surprises first.

From every state there is one usual way on: what is under way arrives, in a fixed order, and time passes when nothing
else is left to do. Everything else is a *surprise*: a fault, its end, something that is late, time that passes before
something arrives. All states with no surprise on the way come first, then all with one, and so on; so what is found to
break has as few as possible. (Emmi, Qadeer, Rakamarić: Delay-bounded scheduling, POPL 2011.) With `any_order` every
step is one, and the first that breaks is the shortest.

Where the usual way comes to its end, and no fault lasts, it is seen whether the fleet finds together again and goes on
working; so it does from every state on that way. From some of the others that is seen once all is well.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass

from edgepeer.simulation.exploration.checks import Violation
from edgepeer.simulation.exploration.fleet import Fleet
from edgepeer.simulation.exploration.state import Action, Setting, State

__all__ = ["Bounds", "Find", "Search", "Tally", "recover"]

_RECOVERY_STEPS = 4000
_ROUNDS_MORE = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """How far to go."""

    depth: int = 3
    """Surprises on the way to a state, at most; with `any_order` steps."""
    states: int = 1_000_000
    waits: int = 16
    """How often time passes after the last surprise, until what comes then is taken for more of the same."""
    any_order: bool = False
    """Whether there is no usual order, and all orders are gone through."""
    probe_every: int = 500
    """From one state in so many it is seen whether the fleet recovers, and at the end of each way; 0: from none."""


@dataclass(slots=True)
class Tally:
    """What has been gone through so far."""

    states: int = 0
    transitions: int = 0
    depth: int = 0
    """Of the states that are gone through now."""
    longest: int = 0
    """Most steps on the way to a state."""
    committed: int = 0
    """States in which a round has newly ended somewhere."""
    views: int = 0
    """States in which a view is new."""
    probes: int = 0
    """Recoveries seen to the end."""
    cut_short: int = 0
    """Ways on that were left after `Bounds.waits`."""
    whole: bool = False
    """Whether all states within the bounds were seen, in all of their depths."""
    by_depth: tuple[int, ...] = (0,)
    """New states in each depth."""


@dataclass(frozen=True, slots=True)
class Find:
    """Something that breaks, and how it comes to that."""

    complaint: str
    actions: tuple[Action, ...]
    """From `Fleet.formed` on."""
    recovering: bool = False
    """Whether all is healed after these, and the fleet does not find together."""


class Search:
    """One exploration.

    Args:
        setting: what is explored.
        bounds: how far.
        go_on: asked now and then whether to.
    """

    def __init__(self, setting: Setting, bounds: Bounds, go_on: Callable[[Tally], bool] = lambda tally: True) -> None:
        self.fleet = Fleet(setting)
        self.bounds = bounds
        self.tally = Tally()
        self._go_on = go_on
        self._seen: set[bytes] = set()
        self._parents = array("q")
        self._lengths = array("l")
        self._actions: list[Action] = []
        self._prints: list[bytes] = []
        self._later: list[tuple[State, int, Action]] = []
        self._new_from = 0
        self._stopped = False

    def run(self) -> Find | None:
        """The first thing that breaks; None if nothing does within the bounds."""
        found = self.begin()
        while found is None and self._later and self.tally.depth < self.bounds.depth and not self._stopped:
            found = self.deepen()
        self.tally.whole = found is None and not self._stopped
        return found

    def begin(self) -> Find | None:
        """All states without a surprise."""
        try:
            state = self.fleet.formed()
        except Violation as violation:
            return Find(str(violation), ())
        return self._follow(state, -1, ("begin",))

    def deepen(self) -> Find | None:
        """All states with one surprise more."""
        tally, self._new_from = self.tally, len(self._prints)
        tally.depth += 1
        tally.by_depth += (0,)
        pending, self._later = self._later, []
        for before, parent, action in pending:
            if tally.states >= self.bounds.states or not self._go_on(tally):
                self._stopped = True
                return None
            if (found := self._try(before, parent, action)) is not None:
                return found
        return None

    # -- for several that share the work -------------------------------------------------------------------------

    def keep(self, mine: Callable[[int], bool]) -> None:
        """Leave the other surprises of the next depth to others."""
        self._later = [each for number, each in enumerate(self._later) if mine(number)]

    def fresh(self) -> set[bytes]:
        """Fingerprints of the states of this depth."""
        return set(self._prints[self._new_from :])

    def forget(self, taken: set[bytes], seen: set[bytes]) -> None:
        """Others go on from the states in `taken`, and have seen those in `seen`."""
        self._later = [each for each in self._later if self._prints[each[1]] not in taken]
        self._seen |= seen

    # -- states --------------------------------------------------------------------------------------------------

    def _try(self, before: State, parent: int, action: Action) -> Find | None:
        self.tally.transitions += 1
        try:
            state = self.fleet.after(before, action)
        except Violation as violation:
            return Find(str(violation), (*self._way(parent), action))
        return self._follow(state, parent, action, before)

    def _follow(self, state: State, parent: int, action: Action, before: State | None = None) -> Find | None:
        """Go the usual way on, as long as it is new."""
        tally, fleet, bounds = self.tally, self.fleet, self.bounds
        waits = 0
        while True:
            fingerprint = fleet.fingerprint(state)
            if fingerprint in self._seen:
                return None
            self._seen.add(fingerprint)
            self._prints.append(fingerprint)
            parent = self._note(parent, action)
            if before is not None and state.history is not before.history:
                tally.committed += state.history.ends != before.history.ends
                tally.views += state.history.views != before.history.views
            due = bounds.probe_every and tally.states % bounds.probe_every == 0
            if due and (found := self._probe(state, parent)) is not None:
                return found
            if bounds.any_order:
                if tally.depth < bounds.depth:
                    self._later += ((state, parent, each) for each in fleet.any_order(state))
                return None
            if tally.depth < bounds.depth:
                self._later += ((state, parent, each) for each in fleet.unusual(state))
            usual = fleet.usual(state)
            waits += usual is not None and usual[0] == "wait"
            if usual is None or waits > bounds.waits:
                tally.cut_short += usual is not None
                return self._probe(state, parent) if bounds.probe_every and not state.active else None
            if tally.states >= bounds.states:
                tally.cut_short += 1
                return None
            tally.transitions += 1
            before, action = state, usual
            try:
                state = fleet.after(state, usual)
            except Violation as violation:
                return Find(str(violation), (*self._way(parent), usual))

    def _probe(self, state: State, parent: int) -> Find | None:
        """See whether the fleet recovers."""
        self.tally.probes += 1
        complaint = recover(self.fleet, state)
        return Find(complaint, self._way(parent), recovering=True) if complaint is not None else None

    def _note(self, parent: int, action: Action) -> int:
        tally = self.tally
        tally.states += 1
        tally.by_depth = (*tally.by_depth[:-1], tally.by_depth[-1] + 1)
        length = self._lengths[parent] + 1 if parent >= 0 else 0
        tally.longest = max(tally.longest, length)
        self._parents.append(parent)
        self._lengths.append(length)
        self._actions.append(action)
        return len(self._actions) - 1

    def _way(self, at: int) -> tuple[Action, ...]:
        """The actions that lead to a state."""
        way = []
        while at > 0:
            way.append(self._actions[at])
            at = self._parents[at]
        return tuple(reversed(way))


def recover(fleet: Fleet, state: State) -> str | None:
    """What is wrong with a fleet once all is well: everything is healed, and the usual takes its course.

    Nothing is asked of those who have to wait for others to come back.
    """
    try:
        for fault in state.active:
            state = fleet.after(state, ("heal", fault))
        facts = [fleet.facts(state, peer) for peer in range(fleet.n)]
        newest = max((each.over for each in facts if each is not None), default=0)
        state = state._replace(held=0, rounds=newest + _ROUNDS_MORE)
        been: set[bytes] = set()
        for _ in range(_RECOVERY_STEPS):
            if _together(fleet, state):
                return None
            action = fleet.usual(state)
            if action is None:
                break
            if action[0] == "wait":
                if (fingerprint := fleet.fingerprint(state)) in been:
                    break  # and so on for ever
                been.add(fingerprint)
            state = fleet.after(state, action)
    except Violation as violation:
        return str(violation)
    if not _possible(fleet, state):
        return None
    return "the fleet does not find together again: " + "; ".join(_standing(fleet, state))


def _possible(fleet: Fleet, state: State) -> bool:
    """Whether those who live are to go on: a quorum of the newest view, in the lives that it means; or those who are
    left of it, where so many others have started anew that there will be none any more; or, where nobody of it is left,
    as many as the run asks for. Who leaves doesn't count: it goes after a while, whether it is let go or not."""
    known = [fleet.facts(state, peer) for peer in range(fleet.n)]
    alive = {each.peer: each for each in known if each is not None and not each.leaving}
    enough, run = len(alive) >= fleet.n, fleet.setting.run
    if not state.history.views or not alive:
        return enough
    view = state.history.views[-1][1]
    lives = {p for p, each in alive.items() if p in view and each.me.incarnation == view.member(p).incarnation}
    settled = any(alive[p].view == view and alive[p].settled for p in lives)
    if view.may_go_on(lives, settled=settled):
        return view.run == run or enough
    if not lives:
        return not run or enough
    rest = [p for p in view.ids if p not in alive or p in lives]
    return not view.may_go_on(rest, settled=settled) and view.run == run


def _together(fleet: Fleet, state: State) -> bool:
    facts = [each for peer in range(fleet.n) if (each := fleet.facts(state, peer)) is not None]
    views = {each.view for each in facts}
    view = next(iter(views))
    if len(views) != 1 or view is None or set(view.ids) != {each.peer for each in facts}:
        return False
    return all(each.over >= state.rounds for each in facts)


def _standing(fleet: Fleet, state: State) -> list[str]:
    said = []
    for peer in range(fleet.n):
        each = fleet.facts(state, peer)
        if each is None:
            said.append(f"p{peer} is dead")
            continue
        view = f"view {each.view.epoch} of {', '.join(each.view.ids)}" if each.view is not None else "no view"
        said.append(f"{each.peer} is in {view}, after round {each.over}")
    return said
