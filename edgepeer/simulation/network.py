"""The network between simulated peers, and the broker.

A connection delivers frames in order, each after the latency and the time that its bytes take at the link's
rate. Payloads are not copied when they are sent but read when they arrive: a sender that touches a buffer too
early is found out.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edgepeer.ids import PeerId
from edgepeer.protocol import events as ev
from edgepeer.simulation.clock import Clock
from edgepeer.topology.view import Member, View
from edgepeer.wire.frames import Frame, encode

if TYPE_CHECKING:
    from edgepeer.simulation.peer import SimulatedPeer

__all__ = ["Broker", "Connection", "LinkModel", "Network"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkModel:
    """How connections behave."""

    latency_s: float = 1e-3
    jitter_s: float = 0.0
    """Each frame takes up to this much longer; order is kept."""
    rate_bytes_per_s: float = 1e9


@dataclass(eq=False, slots=True)
class Connection:
    """A standing connection between two peers."""

    ends: tuple[PeerId, PeerId]
    open: bool = True
    free_at: dict[PeerId, float] = field(default_factory=dict)
    """By sender: when the frame sent last will have arrived."""


class Network:
    """All connections. Pairs in `cut` can't connect, and what is under way between them is lost."""

    def __init__(self, clock: Clock, rng: random.Random, model: LinkModel) -> None:
        self._clock = clock
        self._rng = rng
        self.model = model
        self.peers: dict[PeerId, SimulatedPeer] = {}
        self.cut: set[frozenset[PeerId]] = set()
        self._connections: dict[frozenset[PeerId], Connection] = {}
        self.frames = 0

    def _delay(self) -> float:
        return self.model.latency_s + self._rng.random() * self.model.jitter_s

    def dial(self, source: PeerId, target: PeerId) -> None:
        """Try to connect; both hear LinkUp, or the source DialFailed, one round trip later."""

        def arrive() -> None:
            dialler, dialled = self.peers.get(source), self.peers.get(target)
            pair = frozenset((source, target))
            if dialler is None:
                return
            if dialled is None or not dialled.alive or pair in self.cut:
                dialler.receive(ev.DialFailed(target, "no answer"))
                return
            self.close(source, target, "replaced", told=(source, target))
            self._connections[pair] = Connection((source, target))
            dialled.receive(ev.LinkUp(source, dialler.incarnation))
            dialler.receive(ev.LinkUp(target, dialled.incarnation))

        self._clock.after(2 * self._delay(), arrive)

    def send(self, source: PeerId, target: PeerId, frame: Frame, payload: memoryview | bytes | None) -> int:
        """Put a frame on the way. Returns its size in bytes."""
        connection = self._connections.get(frozenset((source, target)))
        size = len(payload) if payload is not None else 0
        total = len(encode(frame, size)) + size
        if connection is None or not connection.open:
            return total
        start = max(connection.free_at.get(source, 0.0), self._clock.now)
        seconds = total / self.model.rate_bytes_per_s
        connection.free_at[source] = start + seconds
        sent = connection

        def arrive() -> None:
            if sent.open and frozenset((source, target)) not in self.cut:
                self.frames += 1
                self.peers[target].receive_frame(source, frame, payload, seconds)

        # Jitter must not reorder: a frame arrives no earlier than the one before it.
        connection.free_at[source] = max(start + seconds + self._delay() - self.model.latency_s, start + seconds)
        self._clock.at(connection.free_at[source] + self.model.latency_s, arrive)
        return total

    def close(self, source: PeerId, target: PeerId, reason: str, *, told: tuple[PeerId, ...] | None = None) -> None:
        """Close a connection; the other end (or whoever is `told`) hears LinkDown."""
        connection = self._connections.pop(frozenset((source, target)), None)
        if connection is None:
            return
        connection.open = False
        for end in told if told is not None else (target,):
            if (peer := self.peers.get(end)) is not None and peer.alive:
                peer.receive(ev.LinkDown(source if end == target else target, reason))

    def drop_all(self, peer: PeerId) -> None:
        """The peer's machine is gone: its connections break at the other ends."""
        for pair in sorted(self._connections, key=sorted):
            if peer in pair:
                (other,) = pair - {peer}
                self.close(peer, other, "reset by peer", told=(other,))


class Broker:
    """Retained presences and the view; every client hears of changes after the latency."""

    def __init__(self, clock: Clock, latency_s: float) -> None:
        self._clock = clock
        self._latency_s = latency_s
        self._presences: dict[PeerId, Member] = {}
        self._view: View | None = None
        self._clients: dict[PeerId, Callable[[ev.Event], None]] = {}
        self.up = True

    def connect(self, member: Member, receive: Callable[[ev.Event], None]) -> None:
        """A client subscribes, hears everything retained and then ControlSynced."""
        if not self.up:
            return
        self._clients[PeerId(member.id)] = receive
        retained: list[ev.Event] = [ev.PresenceSeen(self._presences[p]) for p in sorted(self._presences)]
        if self._view is not None:
            retained.append(ev.ViewSeen(self._view))
        for event in [*retained, ev.ControlSynced()]:
            self._clock.after(self._latency_s, lambda event=event: receive(event))  # type: ignore[misc]
        self.present(member)

    def present(self, member: Member) -> None:
        if self.up:
            self._presences[PeerId(member.id)] = member
            self._tell(ev.PresenceSeen(member))

    def publish_view(self, view: View) -> None:
        if self.up:
            self._view = view
            self._tell(ev.ViewSeen(view))

    def disconnect(self, peer: PeerId) -> None:
        """The client leaves, or its last will fires."""
        self._clients.pop(peer, None)
        if self.up and self._presences.pop(peer, None) is not None:
            self._tell(ev.PresenceGone(peer))

    def go_down(self) -> None:
        """The broker dies and forgets everything."""
        self.up = False
        clients, self._clients = self._clients, {}
        self._presences.clear()
        self._view = None
        for client in sorted(clients):
            clients[client](ev.ControlLost())

    def come_up(self) -> None:
        self.up = True

    def _tell(self, event: ev.Event) -> None:
        for client in sorted(self._clients):
            receive = self._clients[client]
            self._clock.after(self._latency_s, lambda receive=receive: receive(event))  # type: ignore[misc]
