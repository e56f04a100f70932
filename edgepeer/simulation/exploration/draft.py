"""What becomes of a fleet when something happens: a state on its way to the next."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from edgepeer.protocol.succession import CURRENT
from edgepeer.simulation.exploration.calls import OTHER_CALLS
from edgepeer.simulation.exploration.checks import Violation, check_sent, ended, look_at
from edgepeer.simulation.exploration.life import Facts, Op, Step
from edgepeer.simulation.exploration.state import FAULTS, Action, State, is_cut
from edgepeer.simulation.exploration.tables import Tables
from edgepeer.topology.view import Member

__all__ = ["Draft"]

_LASTING: Final = ("isolate", "cut", "oneway", "freeze")
_LIFE: Final = 1 << 16
"""Incarnations of two lives are so far apart."""


class Draft:
    """A state on its way to the next."""

    def __init__(self, tables: Tables, state: State) -> None:
        self.tables = tables
        self.n = tables.n
        self.frames = tables.frames
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
            number = self.tables.sources.index(action)
            if self.held >> number & 1:
                self.held = 0
        if kind in ("contribute", "compute", *OTHER_CALLS):
            self._event(action[1], (kind,))
            return
        if kind in _LASTING:
            self.active = tuple(sorted((*self.active, action)))
            return
        getattr(self, f"_{kind}")(*action[1:])

    # -- a peer handles something ----------------------------------------------------------------------------------

    def _event(self, peer: int, event: Op) -> None:
        self._step(peer, self.tables.lives[peer].step(self.lives[peer], event))

    def _step(self, peer: int, step: Step) -> None:
        if step.broken:
            raise Violation(f"{self.tables.names[peer]}: {step.broken}")
        states = self.tables.lives[peer].facts
        before = states[self.lives[peer]] if self.lives[peer] >= 0 else None
        after = states[step.after]
        self.lives[peer] = step.after
        for op in step.ops:
            if after.frozen and op[0] == "send":
                check_sent(self.frames, op[2], after)
            self._op(peer, op)
        if step.ends or step.views or (before is not None and before.stands != after.stands):
            facts = [of.facts[at] if at >= 0 else None for of, at in zip(self.tables.lives, self.lives, strict=True)]
            self.history = look_at(self.history, peer, before, step, facts)
        if before is not None and ("left",) in step.ops:
            self._go(peer, replace(before, over=max((before.over, *(end.round for end in step.ends)))))

    # -- numbers ---------------------------------------------------------------------------------------------------

    def renew(self) -> None:
        """Of what is counted without end begin again, if nothing of it is under way: so states come back."""
        facts = [of.facts[at] if at >= 0 else None for of, at in zip(self.tables.lives, self.lives, strict=True)]
        names = self.tables.names
        counting = [a for a, each in enumerate(facts) if each is not None and (each.asked != CURRENT or each.tunnels)]
        heard = {peer for each in facts if each is not None for peer in each.heard}
        if not counting and not heard:
            return
        under_way = {number for channel in (*self.channels, *self.words) for number in channel}
        asking = {self.frames.asked_by(number) for number in under_way}
        for a, name in enumerate(names):
            mine = facts[a]
            if name in asking:
                continue
            if mine is not None and mine.asked != CURRENT:
                self._event(a, ("renew", "asked", name))
            for b, other in enumerate(facts):
                if b != a and other is not None and name in other.heard:
                    self._event(b, ("renew", "asked", name))
        ways = {self.frames.through(number) for number in under_way}
        for a, mine in enumerate(facts):
            for peer, number, sent, received in mine.tunnels if mine is not None else ():
                b = names.index(peer)
                theirs = (number, received, sent)
                if (sent, received) == (1, 1) or not b > a or (names[a], peer) in ways or (peer, names[a]) in ways:
                    continue
                there = facts[b]
                if there is not None and (names[a], *theirs) in there.tunnels:
                    self._event(a, ("renew", "tunnel", peer))
                    self._event(b, ("renew", "tunnel", names[a]))

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
            number = self.frames.number(("relayed", *self.frames[op[2]]))
            repeated = self.frames.is_call(op[2]) and number in self.words[other]
            if both and not repeated and not self.tables.cut(self._now(), peer, self.n):
                self.words[other] += (number,)
        elif kind == "clear":
            self._clear(peer, op[1])
        elif kind != "left":
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
            state, tables = self.done(), self.tables
            if not channel and there and not tables.idle(state, other) and not tables.matters(state, peer, op):
                return
        self.channels[at] = (*channel, number)

    def _close(self, peer: int, other: int, abrupt: bool) -> None:
        if not self.open[peer] >> other & 1:
            return
        self.open[peer] &= ~(1 << other)
        self.channels[other * self.n + peer] = ()
        at = peer * self.n + other
        if abrupt:
            self.channels[at] = self._there(other, peer)
        else:
            self.channels[at] += (self.tables.closed,)

    def _there(self, other: int, peer: int) -> tuple[int, ...]:
        """What is left in a channel whose sender is gone without a word: that it is."""
        return (self.tables.reset,) if self.open[other] >> peer & 1 else ()

    def _hears_down(self, peer: int, other: int) -> None:
        if self.open[peer] >> other & 1:
            self.open[peer] &= ~(1 << other)
            self.channels[peer * self.n + other] = ()
            if self.lives[peer] >= 0:
                self._event(peer, ("down", self.tables.names[other]))

    def _bring(self, a: int, b: int) -> None:
        at = a * self.n + b
        number, *rest = self.channels[at]
        self.channels[at] = tuple(rest)
        thing, name = self.frames[number], self.tables.names[a]
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
        self._event(peer, ("up", self.tables.names[other], incarnation))

    def _connect(self, a: int, b: int) -> None:
        facts = self.tables.facts
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
                self.channels[a * self.n + b] = (self.tables.reset,)
        refused = self.lives[b] < 0 and not self.off >> b & 1 and not is_cut(self.active, a, b)
        self._event(a, ("failed", self.tables.names[b], refused))

    # -- the broker ------------------------------------------------------------------------------------------------

    def _publish(self, peer: int, *kinds: str) -> None:
        """What a peer wants retained comes to the broker, if it has a way."""
        if not self.sessions >> peer & 1 or is_cut(self.active, peer, self.n):
            return
        self.unsaid &= ~(1 << peer)
        presence, view = self.says[peer]
        if presence >= 0 and "present" in kinds:
            self.presences[peer] = presence
            self._tell(presence)
        if view >= 0 and "view" in kinds:
            self.view = view
            self._tell(view)

    def _clear(self, peer: int, member: Member) -> None:
        """A peer has a presence retained no more; whoever lives says it again."""
        other = int(member.id[1:])
        number = self.frames.number(("seen", member))
        if self.presences[other] != number or not self.sessions >> peer & 1 or is_cut(self.active, peer, self.n):
            return
        self.presences[other] = -1
        self._tell(self.frames.number(("gone", self.tables.names[other])))
        if self.lives[other] >= 0:
            self.unsaid |= 1 << other
            self._publish(other, "present")

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
        self.words[peer] = (*retained, self.tables.synced)
        self._publish(peer, "present", "view")

    def _will(self, peer: int) -> None:
        self.sessions &= ~(1 << peer)
        self.words[peer] = ()
        if self.presences[peer] >= 0:
            self.presences[peer] = -1
            self._tell(self.frames.number(("gone", self.tables.names[peer])))

    # -- time ------------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        awake = [peer for peer in range(self.n) if not self.tables.idle(self._was, peer)]
        *quiet, last = self.tables.waits(self._was) or ((),)
        for steps in quiet:
            for peer, step in zip(awake, steps, strict=True):
                self.lives[peer] = step.after
        for peer, step in zip(awake, last, strict=True):
            self._step(peer, step)

    # -- faults ------------------------------------------------------------------------------------------------------

    def start(self, peer: int) -> None:
        """A life begins."""
        self.born[peer] += _LIFE
        lives = self.tables.lives[peer]
        self.lives[peer] = lives.begin(self.born[peer])
        self.says[peer] = self.frames.number(("seen", lives.facts[self.lives[peer]].me)), -1
        self._enter(peer)

    def _die(self, peer: int, knowing: Facts | None = None) -> None:
        self.history = ended(self.history, knowing or self.tables.lives[peer].facts[self.lives[peer]])
        self.lives[peer] = -1
        self.open[peer] = self.dials[peer] = 0
        self.words[peer] = ()
        self.active = tuple(fault for fault in self.active if fault != ("freeze", peer))
        for other in range(self.n):
            self.channels[other * self.n + peer] = ()

    def _kill(self, peer: int) -> None:
        self._die(peer)
        self._hang_up(peer)

    def _hang_up(self, peer: int) -> None:
        for other in range(self.n):
            at = peer * self.n + other
            if self.open[other] >> peer & 1 or self.channels[at]:
                self.channels[at] += (self.tables.closed,)

    def _leave(self, peer: int) -> None:
        self._event(peer, ("leave",))

    def _timeout(self, peer: int) -> None:
        self._event(peer, ("timeout",))

    def _cancel(self, peer: int) -> None:
        self._event(peer, ("cancel",))

    def _lose(self, peer: int) -> None:
        self._event(peer, ("lose",))

    def _go(self, peer: int, knowing: Facts) -> None:
        """A peer that leaves is let go: it ends, and tells the broker. What it knew it has put away already."""
        self._die(peer, knowing)
        self._hang_up(peer)
        if self.sessions >> peer & 1 and not is_cut(self.active, peer, self.n):
            self._will(peer)

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
                self.channels[peer * self.n + other] += (self.tables.reset,)
        self.start(peer)

    def _reset(self, a: int, b: int) -> None:
        for one, other in ((a, b), (b, a)):
            self.channels[one * self.n + other] = self._there(other, one)

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
