"""All members of a view, talking over lines of one latency and through a broker, in virtual time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from functools import partial

from transcript import Machine, describe

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.limits import Limits
from edgepeer.topology.view import View
from edgepeer.wire import codec
from edgepeer.wire import frames as fr

__all__ = ["DIAL_TIMEOUT_S", "LOOK_S", "Company"]

DIAL_TIMEOUT_S = 2.0
"""How long it takes to find that nobody answers, as on real lines (`peer/switchboard.py`)."""
LOOK_S = 0.02
"""How often to look whether what was sent is acknowledged, as on real lines (`peer/driver.py`)."""


class Company:
    """The machines of a view that all of them have just installed, and all that they have said since."""

    def __init__(self, world: View, *, latency_s: float = 1e-3, limits: Limits | None = None) -> None:
        self.now = 0.0
        self.latency_s = latency_s
        self.machines = {name: Machine(str(name), limits=limits, hidden=()) for name in world.ids}
        self.said: list[tuple[float, str, fx.Effect]] = []
        self.cut: set[tuple[str, str]] = set()
        """From whom to whom frames are lost, and so are acknowledgements."""
        self.dead: set[str] = set()
        self.broker = True
        self._up: set[frozenset[str]] = set()
        self._broken: dict[frozenset[str], int] = {}
        """How often a connection has ended: what was sent over an earlier one does not arrive."""
        self._looks: set[tuple[str, str, int]] = set()
        """Who looks whether whom acknowledges something, and over which of their connections."""
        self._due: dict[PeerId, float] = {}
        """When who lives wants to be called, at the latest. Asked of it after all that it hears."""
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        for name in world.ids:
            self.hear(name, ev.RunWanted(world.run or None))
            self.learn(name, world)

    def __getitem__(self, name: str) -> Machine:
        return self.machines[PeerId(name)]

    def lines(self, *, since: float = 0.0, hidden: tuple[type[fr.Frame], ...] = (fr.Ping,)) -> list[str]:
        """Who has said what, and when."""
        told = ((at, name, describe(effect, hidden)) for at, name, effect in self.said if at >= since)
        return [f"{at:.3f} {name}: {line}" for at, name, line in told if line]

    def effects(self, kind: type[fx.Effect], *, since: float = 0.0) -> list[tuple[float, str, fx.Effect]]:
        return [(at, name, effect) for at, name, effect in self.said if at >= since and isinstance(effect, kind)]

    def path(self, name: str, peer: str) -> str:
        """What the link of one to another runs over."""
        return next(state.path for state in self[name].node.link_states() if state.peer == peer)

    # -- what happens --------------------------------------------------------------------------------------

    def hear(self, name: str, event: ev.Event) -> None:
        if name not in self.dead:
            self[name].hear(event, self.now)
            self._do(PeerId(name))

    def learn(self, name: str, world: View) -> None:
        """Somebody is told of a view that has been decided."""
        self[name].learn(world)
        self._do(PeerId(name))

    def sever(self, *pairs: str) -> None:
        """Cut the lines between pairs, like sever("ab", "b>c"): the second only in one direction."""
        for pair in pairs:
            self.cut |= {(pair[0], pair[-1])} if ">" in pair else {(pair[0], pair[1]), (pair[1], pair[0])}

    def mend(self) -> None:
        """All lines are whole again."""
        self.cut.clear()

    def disconnect(self, pair: str) -> None:
        """A connection breaks, and both ends notice; what is under way is lost."""
        if frozenset(pair) in self._up:
            self._end(*pair)
            for one, other in itertools.permutations(pair):
                self.hear(one, ev.LinkDown(PeerId(other), "reset"))

    def kill(self, name: str) -> None:
        """Lose a peer, whose machine says nothing any more."""
        self.dead.add(name)
        self._due.pop(PeerId(name), None)

    def until(self, at: float) -> None:
        """Let time pass."""
        while True:
            due = max(min(self._due.values()), self.now)
            if self._agenda and self._agenda[0][0] <= min(due, at):
                self.now, _, action = heapq.heappop(self._agenda)
                action()
            elif due <= at:
                name = min(name for name, when in self._due.items() if when <= due)
                self.now = due
                self[name].tick(due)
                self._do(name)
            else:
                self.now = at
                return

    # -- what is done about it -----------------------------------------------------------------------------

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (self.now + seconds, next(self._count), action))

    def _life(self, one: str, other: str) -> int:
        return self._broken.get(frozenset((one, other)), 0)

    def _end(self, one: str, other: str) -> None:
        if (pair := frozenset((one, other))) in self._up:
            self._up.discard(pair)
            self._broken[pair] = self._life(one, other) + 1

    def _open(self, one: str, other: str) -> bool:
        there = one in self.machines and other in self.machines and not {one, other} & self.dead
        return there and (one, other) not in self.cut

    def _do(self, name: PeerId) -> None:
        if name not in self.dead:
            self._due[name] = self[name].node.next_deadline()
        for effect in self[name].effects:
            self.said.append((self.now, name, effect))
            match effect:
                case fx.Send(peer, frame, payload):
                    if frozenset((name, peer)) not in self._up:
                        continue
                    if not (self._open(name, peer) and self._open(peer, name)):
                        self._watch(name, peer, self._life(name, peer), self.now)
                    if self._open(name, peer):
                        sent = partial(self._deliver, name, peer, frame, bytes(payload or b""), self._life(name, peer))
                        self._later(self.latency_s, sent)
                case fx.Relay(peer, via, payload):
                    if self.broker:
                        event = ev.Relayed(via, bytes(payload or b""))
                        self._later(10 * self.latency_s, partial(self.hear, peer, event))
                case fx.PublishView(View() as world):
                    if self.broker:
                        for peer in self.machines:
                            self._later(10 * self.latency_s, partial(self.hear, peer, ev.ViewSeen(world)))
                case fx.Dial(member):
                    self._later(2 * self.latency_s, partial(self._dialled, name, PeerId(member.id)))
                case fx.CloseLink(peer, _):
                    self._end(name, peer)
                    if self._open(name, peer):
                        self._later(self.latency_s, partial(self.hear, peer, ev.LinkDown(name, "closed")))

    def _dialled(self, name: PeerId, peer: PeerId) -> None:
        pair = frozenset((name, peer))
        if not (self._open(name, peer) and self._open(peer, name)):
            self._later(DIAL_TIMEOUT_S, partial(self.hear, name, ev.DialFailed(peer, "no answer")))
        elif pair not in self._up or not self[name].node.parts.links.is_direct(peer):
            self._up.add(pair)
            for one, other in ((name, peer), (peer, name)):
                self.hear(one, ev.LinkUp(other, self[other].node.parts.membership.me.incarnation))

    def _deliver(self, source: PeerId, target: PeerId, frame: fr.Frame, data: bytes, life: int) -> None:
        if self._life(source, target) != life:
            return
        if not (self._open(source, target) and self._open(target, source)):
            self._watch(source, target, life, self.now - self.latency_s)
        if not self._open(source, target):
            return
        sink = self[target].node.sink(source, frame, len(data))
        if sink is not None:
            sink[:] = data
        document = data if codec.has_document(frame) else None
        self.hear(target, ev.FrameReceived(source, frame, document, len(data), sink is not None, 1e-3))

    def _watch(self, name: str, peer: str, life: int, since: float) -> None:
        """What was sent over a connection is not acknowledged, as TCP tells who sends."""
        if (name, peer, life) in self._looks:
            return
        self._looks.add((name, peer, life))

        def look() -> None:
            self._looks.discard((name, peer, life))
            whole = self._open(name, peer) and self._open(peer, name)
            if self._life(name, peer) == life and name not in self.dead and not whole:
                self._watch(name, peer, life, since)
                self.hear(name, ev.Unacknowledged(PeerId(peer), since, 2 * self.latency_s))

        self._later(LOOK_S, look)
