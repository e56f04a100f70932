"""Machines of one view, connected by hand: a frame arrives at once, or never; time passes when asked.

What is said is written down in the words of the thesis (Padrão 2020, §6.2 and §6.3), with peers named after their
positions: `0.5 4>3 meta_reduce_request`, and `(lost)` behind what a cut has swallowed.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from edgepeer.baselines import MachineMaker
from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.topology import tree
from edgepeer.topology.view import Member, View
from edgepeer.wire import frames as fr
from edgepeer.wire.protocols import ProtocolName

__all__ = ["Post"]


class Post:
    def __init__(
        self, size: int, *, fanout: int = 2, protocol: ProtocolName = "ft-tree-static", timeout_s: float = 0.5
    ) -> None:
        self.now = 0.0
        self.cuts: set[tuple[int, int]] = set()
        """Directions in which nothing arrives."""
        self.log: list[str] = []
        self.outcomes: dict[int, list[fx.RoundCommitted]] = {position: [] for position in range(size)}
        self.committed_at: dict[int, list[float]] = {position: [] for position in range(size)}
        self.aborted: dict[int, list[fx.RoundAborted]] = {position: [] for position in range(size)}
        self.closed: list[tuple[int, int]] = []
        """Who has closed a link to whom."""
        self._events: deque[tuple[int, ev.Event]] = deque()
        self._frames: deque[tuple[int, int, fr.Frame, bytes]] = deque()
        self._linked: set[frozenset[int]] = set()
        members = tuple(Member(id=str(position), incarnation=1) for position in range(size))
        self.view = View(epoch=1, members=members, fanout=fanout)
        self.machines = [MachineMaker(protocol, timeout_s)(member, fanout=fanout, now=0.0) for member in members]
        for position in range(size):
            self.tell(position, ev.ViewSeen(self.view))

    # -- what happens ----------------------------------------------------------------------------------------

    def tell(self, position: int, event: ev.Event) -> None:
        """Let something happen to a machine, and everything that follows from it at once."""
        self._events.append((position, event))
        while self._events or self._frames:
            if self._events:
                to, event = self._events.popleft()
                self._do(to, self.machines[to].handle(event, self.now))
            else:
                self._deliver(*self._frames.popleft())

    def contribute(self, *values: list[float] | np.ndarray, weight: float = 1.0) -> None:
        """All contribute, in position order."""
        for position, value in enumerate(values):
            self.tell(position, ev.Contribute(np.array(value, dtype=np.float64), weight))

    def pass_time(self, until: float) -> None:
        """Let time pass, and every machine tick when it wants to."""
        while True:
            due, position = min((max(m.next_deadline(), self.now), p) for p, m in enumerate(self.machines))
            if due > until:
                self.now = until
                return
            self.now = due
            self._do(position, self.machines[position].tick(due))
            while self._events or self._frames:
                self.tell(*self._events.popleft()) if self._events else self._deliver(*self._frames.popleft())

    def cut(self, one: int, other: int) -> None:
        """In both directions."""
        self.cuts |= {(one, other), (other, one)}

    def finish(self, number: int, limit_s: float = 60.0) -> float | None:
        """Let time pass until all have committed that round. Returns when the last one did, None if not all do."""
        self.pass_time(self.now)
        began = self.now
        while any(len(outcomes) < number for outcomes in self.outcomes.values()):
            if self.now >= began + limit_s:
                return None
            self.pass_time(min(machine.next_deadline() for machine in self.machines))
        return max(times[number - 1] for times in self.committed_at.values())

    # -- what they want --------------------------------------------------------------------------------------

    def _do(self, position: int, effects: list[fx.Effect]) -> None:
        for effect in effects:
            match effect:
                case fx.Send(peer, frame, payload):
                    self._send(position, int(peer), frame, bytes(payload or b""))
                case fx.Dial(member):
                    self._dial(position, int(member.id))
                case fx.CloseLink(peer):
                    self._close(position, int(peer))
                case fx.RoundCommitted():
                    self.outcomes[position].append(effect)
                    self.committed_at[position].append(self.now)
                case fx.RoundAborted():
                    self.aborted[position].append(effect)

    def _send(self, source: int, target: int, frame: fr.Frame, payload: bytes) -> None:
        lost = (source, target) in self.cuts
        if not isinstance(frame, fr.Sync):
            said = f"{self.now:g} {source}>{target} {self._words(source, target, frame)}"
            self.log.append(said + " (lost)" * lost)
        if not lost and frozenset((source, target)) in self._linked:
            self._frames.append((source, target, frame, payload))

    def _deliver(self, source: int, target: int, frame: fr.Frame, payload: bytes) -> None:
        if frozenset((source, target)) not in self._linked:
            return
        machine, sender = self.machines[target], PeerId(str(source))
        sink = machine.sink(sender, frame, len(payload)) if isinstance(frame, fr.Reduce | fr.Result) else None
        if sink is not None:
            sink[:] = payload
        self._do(
            target, machine.handle(ev.FrameReceived(sender, frame, None, len(payload), sink is not None), self.now)
        )

    def _dial(self, source: int, target: int) -> None:
        if {(source, target), (target, source)} & self.cuts:
            self._events.append((source, ev.DialFailed(PeerId(str(target)), "no answer")))
            return
        self._linked.add(frozenset((source, target)))
        self._events.append((target, ev.LinkUp(PeerId(str(source)), 1)))
        self._events.append((source, ev.LinkUp(PeerId(str(target)), 1)))

    def _close(self, source: int, target: int) -> None:
        self.closed.append((source, target))
        pair = frozenset((source, target))
        if pair in self._linked:
            self._linked.discard(pair)
            if (source, target) not in self.cuts:
                self._events.append((target, ev.LinkDown(PeerId(str(source)), "closed by the other end")))

    # -- in words --------------------------------------------------------------------------------------------

    def _words(self, source: int, target: int, frame: fr.Frame) -> str:
        match frame:
            case fr.Reduce():
                contributors = fr.unpack_set(frame.contributors)
                origin = (contributors & -contributors).bit_length() - 1
                parent = tree.parent(origin, self.view.fanout)
                if target != parent:
                    return f"data_reduce_request({parent})"
                return "data_reduce" if source == origin else f"data_reduce of {origin}"
            case fr.Result():
                return "data_bcast"
            case fr.Meta(_, _, what, about):
                argument = "" if what in ("reduce_request", "bcast_received") else f"({about})"
                return f"meta_{what}{argument}"
        return type(frame).__name__
