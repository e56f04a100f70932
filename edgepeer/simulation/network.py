"""The network between simulated peers.

A connection delivers frames in order, each after the latency and the time that its bytes take at the link's
rate. As over TCP, the receiver is asked for a sink when the header is there and told of the frame when its
payload is. Payloads are not copied when they are sent but read when they have arrived: a sender that touches
a buffer too early is found out.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edgepeer.ids import PeerId
from edgepeer.protocol import events as ev
from edgepeer.simulation.clock import Clock
from edgepeer.wire.frames import Frame, encode

if TYPE_CHECKING:
    from edgepeer.simulation.peer import SimulatedPeer

__all__ = ["Connection", "LinkModel", "Network"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkModel:
    """How connections behave."""

    latency_s: float = 1e-3
    jitter_s: float = 0.0
    """Each frame takes up to this much longer; order is kept."""
    rate_bytes_per_s: float = 1e9


@dataclass(eq=False, slots=True)
class Connection:
    """A connection between two peers, as long as at least one of them holds it open."""

    ends: dict[PeerId, SimulatedPeer]
    """Who holds it open."""
    free_at: dict[PeerId, float] = field(default_factory=dict)
    """By sender: when the frame sent last will have left."""


class Network:
    """All connections. Pairs in `cut` can't connect, and nothing that they send arrives."""

    def __init__(self, clock: Clock, rng: random.Random, model: LinkModel) -> None:
        self._clock = clock
        self._rng = rng
        self.model = model
        self.peers: dict[PeerId, SimulatedPeer] = {}
        """The newest life of every peer that ever was."""
        self.alive: dict[PeerId, SimulatedPeer] = {}
        self.cut: set[frozenset[PeerId]] = set()
        self._connections: dict[frozenset[PeerId], Connection] = {}
        self.frames = 0
        """Delivered."""
        self.resets = 0
        """Connections that broke with a frame under way."""

    def _delay(self) -> float:
        return self.model.latency_s + self._rng.random() * self.model.jitter_s

    def dial(self, source: SimulatedPeer, target: PeerId) -> None:
        """Try to connect; both hear LinkUp, or the source DialFailed, one round trip later."""

        def arrive() -> None:
            dialled = self.alive.get(target)
            pair = frozenset((source.id, target))
            if not source.alive:
                return
            if dialled is None or pair in self.cut:
                source.receive(ev.DialFailed(target, "no answer"))
                return
            self.reset(source.id, target, "replaced")
            self._connections[pair] = Connection({source.id: source, target: dialled})
            dialled.receive(ev.LinkUp(source.id, source.incarnation))
            source.receive(ev.LinkUp(target, dialled.incarnation))

        self._clock.after(2 * self._delay(), arrive)

    def send(self, source: PeerId, target: PeerId, frame: Frame, payload: memoryview | bytes | None) -> int:
        """Put a frame on the way. Returns its size in bytes."""
        connection = self._connections.get(frozenset((source, target)))
        size = len(payload) if payload is not None else 0
        total = len(encode(frame, size)) + size
        if connection is None or source not in connection.ends:
            return total
        # Jitter must not reorder: a frame leaves no earlier than the one before it.
        start = max(connection.free_at.get(source, 0.0), self._clock.now + self._delay() - self.model.latency_s)
        seconds = total / self.model.rate_bytes_per_s
        connection.free_at[source] = start + seconds
        sink: list[memoryview | None] = []

        def receiver() -> SimulatedPeer | None:
            return connection.ends.get(target) if frozenset((source, target)) not in self.cut else None

        def begin() -> None:
            if (peer := receiver()) is not None:
                sink.append(peer.sink(source, frame, size))

        def arrive() -> None:
            peer = receiver()
            if peer is not None and (sink or not size):
                self.frames += 1
                peer.receive_frame(source, frame, payload, sink[0] if sink else peer.sink(source, frame, 0), seconds)
            elif sink and sink[0] is not None and payload is not None:
                sink[0][: size // 2] = payload[: size // 2]  # the connection broke in the middle
                self.resets += 1

        if size:
            self._clock.at(start + self.model.latency_s, begin)
        self._clock.at(start + seconds + self.model.latency_s, arrive)
        return total

    def close(self, source: PeerId, target: PeerId, reason: str) -> None:
        """Close a connection: the other end hears LinkDown behind everything that was sent before."""
        pair = frozenset((source, target))
        connection = self._connections.get(pair)
        if connection is None or connection.ends.pop(source, None) is None:
            return

        def arrive() -> None:
            self._drop(pair, connection, reason)

        self._clock.at(connection.free_at.get(source, 0.0) + self.model.latency_s, arrive)

    def reset(self, one: PeerId, other: PeerId, reason: str) -> None:
        """Break a connection at both ends; what is under way is lost."""
        pair = frozenset((one, other))
        if (connection := self._connections.get(pair)) is not None:
            self._drop(pair, connection, reason)

    def _drop(self, pair: frozenset[PeerId], connection: Connection, reason: str) -> None:
        ends, connection.ends = connection.ends, {}
        if self._connections.get(pair) is connection:
            del self._connections[pair]
        for end in sorted(ends):
            (other,) = pair - {end}
            ends[end].receive(ev.LinkDown(other, reason))

    def connections(self) -> list[tuple[PeerId, PeerId]]:
        """The pairs that are connected, in order."""
        return sorted((min(pair), max(pair)) for pair in self._connections)

    def drop_all(self, peer: PeerId, *, gracefully: bool = False, silently: bool = False) -> None:
        """All connections of a peer end: closed by it, broken, or, `silently`, without the others hearing of it."""
        for one, other in self.connections():
            if peer not in (one, other):
                continue
            rest = other if peer == one else one
            if gracefully:
                self.close(peer, rest, "closed by the other end")
            elif silently:
                self._connections[frozenset((one, other))].ends.pop(peer, None)
            else:
                self._connections[frozenset((one, other))].ends.pop(peer, None)
                self.reset(one, other, "reset by peer")
