"""A fleet as one value, what can happen to it next, and what has become of it then.

Between two connected peers there is a channel each way, first in first out; from the broker to each peer as well. What
may happen at a time is:

    action                | what happens
    ----------------------+----------------------------------------------------------------------------------------
    ("bring", a, b)       | the first thing in the channel from a to b arrives
    ("word", b)           | the first thing in the broker's channel to b arrives
    ("connect", a, b)     | b accepts the connection that a has asked for
    ("fail", a, b)        | a's attempt to connect comes to nothing: b is not there, or cut off
    ("contribute", a)     | a's application brings its vector to the next round; of a coded one, it begins the call, or
                          | says in that what is to be said (`calls.py`)
    ("compute", a)        | it computes a chunk
    ("will", a)           | the broker notices that a is gone, and clears its presence
    ("enter", a)          | a, which the broker took for gone, connects to it again
    ("wait",)             | time passes, for all alike, until somebody does something because of it
    ("hold", n)           | what is next of source n (`Fleet.sources`) is late: everything else comes first
    a fault, ("heal", f)  | `faults`; the fault is over. ("restart", a): a comes back, with nothing but its id
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

from edgepeer.simulation.exploration.calls import OTHER_CALLS
from edgepeer.simulation.exploration.checks import NOTHING_YET, Violation
from edgepeer.simulation.exploration.draft import Draft
from edgepeer.simulation.exploration.life import Facts
from edgepeer.simulation.exploration.state import FAULTS, Action, Setting, State
from edgepeer.simulation.exploration.tables import Tables
from edgepeer.wire.frames import Result

__all__ = ["Fleet"]


class Fleet(Tables):
    """The rules. One of these serves for a whole exploration."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._faults = [fault for fault in self._all_faults() if fault[0] in setting.kinds]

    # -- the beginning -----------------------------------------------------------------------------------------

    def begin(self) -> State:
        """All peers have just started."""
        n = self.n
        state = State(
            lives=(-1,) * n,
            born=(0,) * n,
            open=(0,) * n,
            dials=(0,) * n,
            channels=((),) * (n * n),
            words=((),) * n,
            says=((-1, -1),) * n,
            unsaid=0,
            sessions=0,
            presences=(-1,) * n,
            view=-1,
            active=(),
            off=0,
            held=0,
            faults=0,
            rounds=1,
            history=NOTHING_YET,
        )
        draft = Draft(self, state)
        for peer in range(n):
            draft.start(peer)
        return draft.done()

    def formed(self) -> State:
        """All peers are in one view, and one round is over everywhere."""
        state = self.begin()
        for _ in range(2000):
            action = self.usual(state)
            if action is None or (self.frames and self._formed(state) and action[0] == "wait"):
                break
            state = self.after(state, action)
        if not self._formed(state):
            raise Violation("the fleet does not come together")
        return state._replace(rounds=self.setting.rounds)

    def _formed(self, state: State) -> bool:
        facts = [self.facts(state, peer) for peer in range(self.n)]
        views = {each.view for each in facts if each is not None}
        return len(views) == 1 and all(
            e is not None and e.view and e.view.size == self.n and e.over >= 1 for e in facts
        )

    # -- what there is to know -----------------------------------------------------------------------------------

    def fingerprint(self, state: State) -> bytes:
        """The same for equal states in all processes, and different for others."""
        prints, lives = self.frames.fingerprints, self.lives
        parts = [lives[p].facts[at].fingerprint if at >= 0 else b"-" for p, at in enumerate(state.lives)]
        for channel in (*state.channels, *state.words, *state.says, state.presences, (state.view,)):
            parts += [prints[at] if at >= 0 else b"-" for at in channel]
            parts.append(b";")
        rest = state.born, state.open, state.dials, state.unsaid, state.sessions, state.active, *state[12:16]
        parts += [repr(rest).encode(), state.history.fingerprint]
        return blake2b(b"".join(parts), digest_size=12).digest()

    # -- what can happen -----------------------------------------------------------------------------------------

    def enabled(self, state: State) -> Iterator[int]:
        """The sources of which something can come now, in the usual order."""
        for number, source in enumerate(self.sources):
            if self._can(state, source):
                yield number

    def _can(self, state: State, source: Action) -> bool:
        kind, a = source[0], source[1]
        if kind == "bring":
            return bool(state.channels[a * self.n + source[2]]) and not (
                self.idle(state, source[2]) or self.cut(state, a, source[2])
            )
        if kind == "word":
            return bool(state.words[a]) and not self.idle(state, a) and not self.cut(state, self.n, a)
        if kind == "connect":
            b = source[2]
            if not state.dials[a] >> b & 1 or self.idle(state, b) or self.idle(state, a):
                return False
            return not (self._answered(state, a, b) or self.cut(state, a, b) or self.cut(state, b, a))
        if kind == "fail":
            b = source[2]
            if not state.dials[a] >> b & 1 or self.idle(state, a):
                return False
            return state.lives[b] < 0 or self.cut(state, a, b) or self.cut(state, b, a)
        if kind == "contribute":
            facts = self.facts(state, a)
            return facts is not None and not self.idle(state, a) and (facts.goes_on or self._may_call(state, facts))
        if kind == "compute":
            facts = self.facts(state, a)
            return facts is not None and facts.computes and not self.idle(state, a)
        if kind == "will":
            return state.lives[a] < 0 and bool(state.sessions >> a & 1)
        return not (state.sessions >> a & 1 or state.lives[a] < 0 or self.cut(state, a, self.n))

    def _may_call(self, state: State, facts: Facts) -> bool:
        return facts.begins and facts.over < state.rounds

    def _answered(self, state: State, a: int, b: int) -> bool:
        """Whether b has accepted a's connection, and a is about to hear of it."""
        return any(self.frames[item][0] == "up" for item in state.channels[b * self.n + a])

    def usual(self, state: State) -> Action | None:
        """What happens next if nothing unusual does; None: nothing ever will."""
        late = None
        for number in self.enabled(state):
            if not state.held >> number & 1:
                return self.sources[number]
            late = late if late is not None else number
        if late is not None:
            return self.sources[late]
        return ("wait",) if self.waits(state) is not None else None

    def unusual(self, state: State) -> Iterator[Action]:
        """What may happen instead: the next thing is late, or time passes before it comes; faults, and their ends."""
        usual = self.usual(state)
        if usual is not None and usual[0] != "wait":
            number = self.sources.index(usual)
            if not state.held >> number & 1 and sum(1 for _ in self.enabled(state)) > 1:
                yield "hold", number
            if self.waits(state) is not None:
                yield ("wait",)
        yield from self.disturbances(state)

    def any_order(self, state: State) -> Iterator[Action]:
        """Everything that can happen."""
        for number in self.enabled(state):
            yield self.sources[number]
        if self.waits(state) is not None:
            yield ("wait",)
        yield from self.disturbances(state)

    def disturbances(self, state: State) -> Iterator[Action]:
        for fault in state.active:
            yield "heal", fault
        for peer in range(self.n):
            if state.lives[peer] < 0:
                yield "restart", peer
        if state.faults < self.setting.faults:
            for fault in self._faults:
                if fault not in state.active and self._can_befall(state, *fault):
                    yield fault

    def _can_befall(self, state: State, kind: str, *peers: int) -> bool:
        if any(state.lives[peer] < 0 for peer in peers):
            return False
        if kind == "damage":
            channel = state.channels[peers[0] * self.n + peers[1]]
            return bool(channel) and isinstance(self.frames[channel[0]][0], Result)
        if kind == "leave":
            facts = self.facts(state, peers[0])
            return facts is not None and not facts.leaving
        if kind in ("cancel", "lose"):
            facts = self.facts(state, peers[0])
            can = facts is not None and (facts.cancels if kind == "cancel" else facts.loses)
            return can and not self.idle(state, peers[0])
        if kind in OTHER_CALLS:
            facts = self.facts(state, peers[0])
            return facts is not None and not self.idle(state, peers[0]) and self._may_call(state, facts)
        return kind != "reset" or bool(state.open[peers[0]] >> peers[1] & 1)

    def _all_faults(self) -> Iterator[Action]:
        for kind in FAULTS:
            for a in range(self.n):
                if kind in ("cut", "reset"):
                    yield from ((kind, a, b) for b in range(a + 1, self.n))
                elif kind in ("oneway", "damage"):
                    yield from ((kind, a, b) for b in range(self.n) if b != a)
                else:
                    yield kind, a

    # -- what happens --------------------------------------------------------------------------------------------

    def after(self, state: State, action: Action) -> State:
        """The state after an action.

        Raises:
            Violation: something is true now that must not be.
        """
        draft = Draft(self, state)
        draft.act(action)
        draft.renew()
        return draft.done()
