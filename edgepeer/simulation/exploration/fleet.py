"""A fleet as one value, what can happen to it next, and what has become of it then.

Between two connected peers there is a channel each way, first in first out; from the broker to each peer as well. What
may happen at a time is:

    action                | what happens
    ----------------------+----------------------------------------------------------------------------------------
    ("bring", a, b)       | the first thing in the channel from a to b arrives
    ("word", b)           | the first thing in the broker's channel to b arrives
    ("connect", a, b)     | b accepts the connection that a has asked for
    ("fail", a, b)        | a's attempt to connect comes to nothing: b is not there, or cut off
    ("contribute", a)     | a's application brings its vector to the next round
    ("will", a)           | the broker notices that a is gone, and clears its presence
    ("enter", a)          | a, which the broker took for gone, connects to it again
    ("wait",)             | time passes, for all alike, until somebody does something because of it
    ("hold", n)           | what is next of source n (`Fleet.sources`) is late: everything else comes first
    a fault, ("heal", f)  | `faults`; the fault is over. ("restart", a): a comes back, with nothing but its id
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeAlias

from edgepeer.ids import PeerId
from edgepeer.simulation.exploration.checks import NOTHING_YET, History, Violation, look_at
from edgepeer.simulation.exploration.life import Facts, Frames, Lives, Op, Step
from edgepeer.wire.frames import Result

__all__ = ["FAULTS", "Action", "Fleet", "Setting", "State"]

Action: TypeAlias = tuple[Any, ...]
FAULTS: Final = ("kill", "power", "isolate", "cut", "oneway", "freeze", "reset", "damage")
_LASTING: Final = ("isolate", "cut", "oneway", "freeze")
_PATIENCE_BEATS: Final = 80
"""If nobody does anything for so long, nobody will."""
_LIFE: Final = 1 << 16
"""Incarnations of two lives are so far apart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What is explored."""

    peers: int = 3
    faults: int = 2
    """How many, at most, one after the other or at once."""
    kinds: tuple[str, ...] = ("kill", "isolate", "cut", "freeze")
    """Which of FAULTS."""
    rounds: int = 3
    """How many rounds applications contribute to; the first is over before anything happens."""
    run: str = "run"
    """What the applications work on; "": plain allreduce calls."""
    fanout: int = 2
    one_successor: bool = False
    """Whether it is checked that a view never has two successors."""


class State(NamedTuple):
    """A fleet. Peers are numbered; what is of pairs stands at sender * peers + receiver."""

    lives: tuple[int, ...]
    """Number of each peer's state (`Lives`); -1: it is not alive."""
    born: tuple[int, ...]
    """With which incarnation the last life began."""
    open: tuple[int, ...]
    """Bit set of the peers that each holds a connection to."""
    dials: tuple[int, ...]
    """Bit set of the peers that each tries to connect to."""
    channels: tuple[tuple[int, ...], ...]
    words: tuple[tuple[int, ...], ...]
    """From the broker to each peer."""
    says: tuple[tuple[int, int], ...]
    """Presence and view that each peer wants retained; -1: none."""
    unsaid: int
    """Bit set of the peers whose `says` has not come to the broker yet."""
    sessions: int
    """Bit set of the peers that the broker takes for connected."""
    presences: tuple[int, ...]
    view: int
    """What the broker retains; -1: nothing."""
    active: tuple[Action, ...]
    """Faults that last."""
    off: int
    """Bit set of the dead whose machines are off."""
    held: int
    """Bit set of the sources that are held back."""
    faults: int
    """How many there have been."""
    rounds: int
    """Up to which round the applications contribute."""
    history: History


class Fleet:
    """The rules. One of these holds the tables of all peers' lives, and so serves for a whole exploration."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.n = setting.peers
        self.names = [PeerId(f"p{at}") for at in range(self.n)]
        self.frames = Frames()
        self.lives = [
            Lives(name, self.frames, run=setting.run, wait_for=self.n, fanout=setting.fanout) for name in self.names
        ]
        self._up: dict[tuple[int, int], int] = {}
        self._closed = self.frames.number(("down",))
        self._reset = self.frames.number(("reset",))
        self._synced = self.frames.number(("synced",))
        peers, pairs = range(self.n), [(a, b) for a in range(self.n) for b in range(self.n) if a != b]
        self.sources: list[Action] = [
            *(("enter", a) for a in peers),
            *(("will", a) for a in peers),
            *(("word", a) for a in peers),
            *(("bring", a, b) for a, b in pairs),
            *(("connect", a, b) for a, b in pairs),
            *(("fail", a, b) for a, b in pairs),
            *(("contribute", a) for a in peers),
        ]
        """Everything that happens of itself, in the usual order."""
        self._faults = [fault for fault in self._all_faults() if fault[0] in setting.kinds]
        self.waits = lru_cache(maxsize=1 << 16)(self._waits)

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
        draft = _Draft(self, state)
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
        return len(views) == 1 and all(e is not None and e.view and e.view.size == self.n and e.over >= 1 for e in facts)

    # -- what there is to know -----------------------------------------------------------------------------------

    def facts(self, state: State, peer: int) -> Facts | None:
        """Of a peer that lives."""
        return self.lives[peer].facts[state.lives[peer]] if state.lives[peer] >= 0 else None

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

    def cut(self, state: State, a: int, b: int) -> bool:
        """Whether nothing gets from a to b. The broker's number is `n`."""
        return bool(state.active) and _is_cut(state.active, a, b)

    def idle(self, state: State, peer: int) -> bool:
        """Whether a peer handles nothing: it is dead or frozen."""
        return state.lives[peer] < 0 or ("freeze", peer) in state.active

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
            return facts is not None and facts.ready and facts.over < state.rounds and not self.idle(state, a)
        if kind == "will":
            return state.lives[a] < 0 and bool(state.sessions >> a & 1)
        return not (state.sessions >> a & 1 or state.lives[a] < 0 or self.cut(state, a, self.n))

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

    # -- time ----------------------------------------------------------------------------------------------------

    def around(self, state: State, peer: int) -> tuple[PeerId, ...]:
        """The connected peers of whom signs of life come."""
        return tuple(
            self.names[other]
            for other in range(self.n)
            if state.open[peer] >> other & 1
            and state.open[other] >> peer & 1
            and not self.idle(state, other)
            and not self.cut(state, other, peer)
        )

    def _waits(self, state: State) -> tuple[tuple[Step, ...], ...] | None:
        """What all do until one of them does something because time passes: their steps, beat by beat. None: nobody
        ever does anything."""
        numbers = list(state.lives)
        awake = [(peer, ("beat", self.around(state, peer))) for peer in range(self.n) if not self.idle(state, peer)]
        passed = []
        for _ in range(_PATIENCE_BEATS):
            steps = tuple(self.lives[peer].step(numbers[peer], event) for peer, event in awake)
            passed.append(steps)
            for (peer, _), step in zip(awake, steps, strict=True):
                if step.broken or step.ends or step.views or any(self._is_news(state, peer, op) for op in step.ops):
                    return tuple(passed)
            before = list(numbers)
            for (peer, _), step in zip(awake, steps, strict=True):
                numbers[peer] = step.after
            if numbers == before:
                break
        return None

    def _is_news(self, state: State, peer: int, op: Op) -> bool:
        return op[0] != "send" or not self.frames.is_ping(op[2]) or self.matters(state, peer, op)

    def matters(self, state: State, peer: int, ping: Op) -> bool:
        """Whether a Ping would change anything where it goes. Most say what the one before has said."""
        other = int(ping[1][1:])
        if not (state.open[peer] >> other & 1 and state.open[other] >> peer & 1) or self.idle(state, other):
            return False
        if self.cut(state, peer, other):
            return False
        channel = state.channels[peer * self.n + other]
        if channel:
            return channel[-1] != ping[2]
        step = self.lives[other].step(state.lives[other], ("frame", self.names[peer], ping[2]))
        return step.after != state.lives[other] or bool(step.ops)

    # -- what happens --------------------------------------------------------------------------------------------

    def after(self, state: State, action: Action) -> State:
        """The state after an action.

        Raises:
            Violation: something is true now that must not be.
        """
        draft = _Draft(self, state)
        draft.act(action)
        return draft.done()


@lru_cache(maxsize=1 << 14)
def _is_cut(active: tuple[Action, ...], a: int, b: int) -> bool:
    for fault in active:
        if fault[0] == "isolate" and fault[1] in (a, b):
            return True
        if fault[0] == "cut" and {a, b} == {fault[1], fault[2]}:
            return True
        if fault == ("oneway", a, b):
            return True
    return False


class _Draft:
    """A state on its way to the next."""

    def __init__(self, fleet: Fleet, state: State) -> None:
        self.fleet = fleet
        self.n = fleet.n
        self.frames = fleet.frames
        self._was = state
        self.lives, self.born = list(state.lives), list(state.born)
        self.open, self.dials = list(state.open), list(state.dials)
        self.channels, self.words = list(state.channels), list(state.words)
        self.says, self.presences = list(state.says), list(state.presences)
        self.unsaid, self.sessions, self.view = state.unsaid, state.sessions, state.view
        self.active, self.off, self.held, self.faults = state.active, state.off, state.held, state.faults
        self.history = state.history

    def done(self) -> State:
        return self._was._replace(
            lives=tuple(self.lives),
            born=tuple(self.born),
            open=tuple(self.open),
            dials=tuple(self.dials),
            channels=tuple(self.channels),
            words=tuple(self.words),
            says=tuple(self.says),
            unsaid=self.unsaid,
            sessions=self.sessions,
            presences=tuple(self.presences),
            view=self.view,
            active=self.active,
            off=self.off,
            held=self.held,
            faults=self.faults,
            history=self.history,
        )

    def act(self, action: Action) -> None:
        kind = action[0]
        if kind == "hold":
            self.held |= 1 << action[1]
            return
        if kind in FAULTS:
            self.faults += 1
        elif kind != "wait" and kind not in ("heal", "restart"):
            number = self.fleet.sources.index(action)
            if self.held >> number & 1:
                self.held = 0
        if kind in _LASTING:
            self.active = tuple(sorted((*self.active, action)))
            return
        getattr(self, f"_{kind}")(*action[1:])

    # -- a peer handles something ----------------------------------------------------------------------------------

    def _event(self, peer: int, event: Op) -> None:
        self._step(peer, self.fleet.lives[peer].step(self.lives[peer], event))

    def _step(self, peer: int, step: Step) -> None:
        if step.broken:
            raise Violation(f"{self.fleet.names[peer]}: {step.broken}")
        self.lives[peer] = step.after
        for op in step.ops:
            self._op(peer, op)
        if step.ends or step.views:
            self._check(peer, step)

    def _check(self, peer: int, step: Step) -> None:
        facts = [
            lives.facts[at] if at >= 0 else None for lives, at in zip(self.fleet.lives, self.lives, strict=True)
        ]
        self.history = look_at(self.history, peer, step, facts, one_successor=self.fleet.setting.one_successor)

    def _op(self, peer: int, op: Op) -> None:
        kind = op[0]
        if kind == "send":
            self._send(peer, op)
        elif kind == "dial":
            self.dials[peer] |= 1 << int(op[1][1:])
        elif kind == "close":
            self._close(peer, int(op[1][1:]), op[2])
        elif kind == "relay":
            other = int(op[1][1:])
            both = self.sessions >> peer & self.sessions >> other & 1
            if both and not self.fleet.cut(self._now(), peer, self.n):
                self.words[other] += (self.frames.number(("relayed", *self.frames[op[2]])),)
        else:
            presence, view = self.says[peer]
            if kind == "present":
                presence = self.frames.number(("seen", op[1]))
            else:
                view = self.frames.number(("view", op[1])) if op[1] is not None else -1
            self.says[peer] = presence, view
            self.unsaid |= 1 << peer
            self._publish(peer, kind)

    def _now(self) -> State:
        return self._was if self.active == self._was.active else self._was._replace(active=self.active)

    # -- connections -----------------------------------------------------------------------------------------------

    def _send(self, peer: int, op: Op) -> None:
        other, number = int(op[1][1:]), op[2]
        if not self.open[peer] >> other & 1:
            return
        at = peer * self.n + other
        channel = self.channels[at]
        there = self.open[other] >> peer & 1
        if not there and not any(self.frames[item][0] == "up" for item in channel):
            return
        if self.frames.is_ping(number):
            if channel and channel[-1] == number:
                return
            if not channel and there and not self.fleet.idle(state := self.done(), other):
                if not self.fleet.matters(state, peer, op):
                    return
        self.channels[at] = (*channel, number)

    def _close(self, peer: int, other: int, abrupt: bool) -> None:
        if not self.open[peer] >> other & 1:
            return
        self.open[peer] &= ~(1 << other)
        self.channels[other * self.n + peer] = ()
        at = peer * self.n + other
        if abrupt:
            self.channels[at] = (self._there(other, peer, at))
        else:
            self.channels[at] += (self.fleet._closed,)

    def _there(self, other: int, peer: int, at: int) -> tuple[int, ...]:
        """What is left in a channel whose sender is gone without a word: that it is."""
        return (self.fleet._reset,) if self.open[other] >> peer & 1 else ()

    def _hears_down(self, peer: int, other: int) -> None:
        if self.open[peer] >> other & 1:
            self.open[peer] &= ~(1 << other)
            self.channels[peer * self.n + other] = ()
            if self.lives[peer] >= 0:
                self._event(peer, ("down", self.fleet.names[other]))

    def _bring(self, a: int, b: int) -> None:
        at = a * self.n + b
        number, *rest = self.channels[at]
        self.channels[at] = tuple(rest)
        thing, name = self.frames[number], self.fleet.names[a]
        if thing[0] in ("down", "reset"):
            self._hears_down(b, a)
        elif thing[0] == "up":
            self._comes_up(b, a, thing[1])
        elif self.open[b] >> a & 1:
            self._event(b, ("frame", name, number))

    def _comes_up(self, peer: int, other: int, incarnation: int) -> None:
        self.dials[peer] &= ~(1 << other)
        self._hears_down(peer, other)
        self.open[peer] |= 1 << other
        self._event(peer, ("up", self.fleet.names[other], incarnation))

    def _connect(self, a: int, b: int) -> None:
        facts = self.fleet.facts
        state = self.done()
        mine, theirs = facts(state, a), facts(state, b)
        assert mine is not None
        assert theirs is not None
        self.dials[a] &= ~(1 << b)
        if self.open[a] >> b & 1:
            return
        self.dials[a] |= 1 << b
        self.channels[a * self.n + b] = ()
        self._hears_down(b, a)
        self.channels[b * self.n + a] = (self.frames.number(("up", theirs.me.incarnation)),)
        self._comes_up(b, a, mine.me.incarnation)

    def _fail(self, a: int, b: int) -> None:
        self.dials[a] &= ~(1 << b)
        if not self.open[a] >> b & 1:
            self.channels[b * self.n + a] = ()
            if self.open[b] >> a & 1:
                self.channels[a * self.n + b] = (self.fleet._reset,)
        refused = self.lives[b] < 0 and not self.off >> b & 1 and not _is_cut(self.active, a, b)
        self._event(a, ("failed", self.fleet.names[b], refused))

    # -- the broker ------------------------------------------------------------------------------------------------

    def _publish(self, peer: int, *kinds: str) -> None:
        """What a peer wants retained comes to the broker, if it has a way."""
        if not self.sessions >> peer & 1 or _is_cut(self.active, peer, self.n):
            return
        self.unsaid &= ~(1 << peer)
        presence, view = self.says[peer]
        if presence >= 0 and "present" in kinds:
            self.presences[peer] = presence
            self._tell(presence)
        if view >= 0 and "view" in kinds:
            self.view = view
            self._tell(view)

    def _tell(self, number: int) -> None:
        for peer in range(self.n):
            if self.sessions >> peer & 1 and self.lives[peer] >= 0:
                self.words[peer] += (number,)

    def _word(self, peer: int) -> None:
        number, *rest = self.words[peer]
        self.words[peer] = tuple(rest)
        self._event(peer, ("word", number))

    def _enter(self, peer: int) -> None:
        self.sessions |= 1 << peer
        retained = [number for number in (*self.presences, self.view) if number >= 0]
        self.words[peer] = (*retained, self.fleet._synced)
        self._publish(peer, "present", "view")

    def _will(self, peer: int) -> None:
        self.sessions &= ~(1 << peer)
        self.words[peer] = ()
        if self.presences[peer] >= 0:
            self.presences[peer] = -1
            self._tell(self.frames.number(("gone", self.fleet.names[peer])))

    # -- applications and time ---------------------------------------------------------------------------------------

    def _contribute(self, peer: int) -> None:
        self._event(peer, ("contribute",))

    def _wait(self) -> None:
        awake = [peer for peer in range(self.n) if not self.fleet.idle(self._was, peer)]
        *quiet, last = self.fleet.waits(self._was) or ((),)
        for steps in quiet:
            for peer, step in zip(awake, steps, strict=True):
                self.lives[peer] = step.after
        for peer, step in zip(awake, last, strict=True):
            self._step(peer, step)

    # -- faults ------------------------------------------------------------------------------------------------------

    def start(self, peer: int) -> None:
        """A life begins."""
        self.born[peer] += _LIFE
        lives = self.fleet.lives[peer]
        self.lives[peer] = lives.begin(self.born[peer])
        self.says[peer] = self.frames.number(("seen", lives.facts[self.lives[peer]].me)), -1
        self._enter(peer)

    def _die(self, peer: int) -> None:
        self.lives[peer] = -1
        self.open[peer] = self.dials[peer] = 0
        self.words[peer] = ()
        self.active = tuple(fault for fault in self.active if fault != ("freeze", peer))
        for other in range(self.n):
            self.channels[other * self.n + peer] = ()

    def _kill(self, peer: int) -> None:
        self._die(peer)
        for other in range(self.n):
            at = peer * self.n + other
            if self.open[other] >> peer & 1 or self.channels[at]:
                self.channels[at] += (self.fleet._closed,)

    def _power(self, peer: int) -> None:
        self._die(peer)
        self.off |= 1 << peer
        for other in range(self.n):
            self.channels[peer * self.n + other] = ()

    def _restart(self, peer: int) -> None:
        self.off &= ~(1 << peer)
        if self.sessions >> peer & 1:
            self._will(peer)
        for other in range(self.n):
            if self.open[other] >> peer & 1:
                self.channels[peer * self.n + other] += (self.fleet._reset,)
        self.start(peer)

    def _reset(self, a: int, b: int) -> None:
        for one, other in ((a, b), (b, a)):
            self.channels[one * self.n + other] = self._there(other, one, one * self.n + other)

    def _damage(self, a: int, b: int) -> None:
        """A bit of the result that is under way turns."""
        at = a * self.n + b
        number, *rest = self.channels[at]
        frame, data = self.frames[number]
        self.channels[at] = (self.frames.number((frame, bytes([data[0] ^ 1]) + data[1:])), *rest)

    def _heal(self, fault: Action) -> None:
        self.active = tuple(each for each in self.active if each != fault)
        if fault[0] == "freeze":
            self._event(fault[1], ("late",))
        for peer in range(self.n):
            if self.unsaid >> peer & 1:
                self._publish(peer, "present", "view")


