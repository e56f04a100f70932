"""The broker of a simulated fleet: retained presences and the view, wills, outages, and frames carried on.

A client's connection consists of two pipes, like any other, and can be cut like any other. A client without a
broker connects again once it can, and then says again what it wants retained. What it sends to single peers
is lost where there is no connection, and otherwise arrives in order; now and then twice, if that is asked for, as with
MQTT's QoS 1.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from edgepeer.ids import PeerId
from edgepeer.protocol import events as ev
from edgepeer.simulation.connection import RECEIVE_BUFFER_BYTES
from edgepeer.simulation.network import Network
from edgepeer.simulation.pipe import Message, Pipe
from edgepeer.simulation.process import Process
from edgepeer.simulation.ways import BROKER
from edgepeer.topology.view import Member, View

__all__ = ["GRACE_S", "Broker", "Client"]

RECONNECT_S: Final = 1.0
"""Clients find a broker that has come back within this time."""
AGAIN_S: Final = 4.0
"""What comes twice comes again within this time, behind what was sent since."""
GRACE_S: Final = 22.5
"""A client that says nothing for so long is dropped, and its will is sent: one and a half keepalives."""
_DOCUMENT_BYTES: Final = 200


class _Session:
    """One connection of a client with the broker."""

    def __init__(self, network: Network, broker: Broker, client: Client) -> None:
        self.client = client
        self.silent_since: float | None = None
        self.over = False
        self._buffered = 0
        self.up = Pipe(network.ways, client.owner.id, BROKER, lambda message: broker.take(self, message))
        self.down = Pipe(network.ways, BROKER, client.owner.id, self._take)
        network.attach(client.owner.id, self.up, self.down)

    def end(self) -> None:
        self.over = True
        self.up.destroy()
        self.down.destroy()

    def say(self, event: ev.Event | Callable[[], None], size: int) -> None:
        """What the broker says has come to the client."""
        self.down.arrives(Message(size, partial(self._hear, event)))

    def _hear(self, event: ev.Event | Callable[[], None]) -> None:
        if self.client.session is self:
            if callable(event):
                event()
            else:
                self.client.owner.receive(event)

    def _take(self, message: Message) -> bool:
        """The kernel's side at the client."""
        owner = self.client.owner
        if not owner.alive:
            return owner.powered
        if owner.attentive:
            message.arrive()
            return True
        if owner.frozen and self._buffered + message.size > RECEIVE_BUFFER_BYTES:
            return False
        self._buffered += message.size

        def read() -> None:
            self._buffered -= message.size
            message.arrive()

        owner.soon(read)
        return True


class Client:
    """What a peer wants of the broker."""

    def __init__(self, owner: Process) -> None:
        self.owner = owner
        self.presence: Member | None = None
        self.view: View | None = None
        self.session: _Session | None = None


class Broker:
    """Retained documents, and who listens. `twice`: the part of what is sent to single peers that comes again."""

    def __init__(self, network: Network, rng: random.Random, twice: float = 0.0) -> None:
        self._twice = twice
        self._network = network
        self._ways = network.ways
        self._clock = network.ways.clock
        self._rng = rng
        self._presences: dict[PeerId, Member] = {}
        self._view: View | None = None
        self._sessions: dict[PeerId, _Session] = {}
        self._waiting: dict[PeerId, Client] = {}
        self._free_at = 0.0
        self.up = True

    # -- for clients ---------------------------------------------------------------------------------------

    def connect(self, client: Client) -> None:
        """The client hears everything retained and then ControlSynced: now, or when there is a broker."""
        peer = client.owner.id
        if not self.up or not self._reachable(client.owner):
            self._waiting[peer] = client
            return
        if (old := self._sessions.get(peer)) is not None:
            self._drop(old, will=True)
        session = client.session = self._sessions[peer] = _Session(self._network, self, client)
        retained: list[ev.Event] = [ev.PresenceSeen(self._presences[at]) for at in sorted(self._presences)]
        if self._view is not None:
            retained.append(ev.ViewSeen(self._view))
        self._tell([session], *retained, ev.ControlSynced())
        if client.presence is not None:
            self.present(client, client.presence)
        if client.view is not None:
            self.publish_view(client, client.view)

    def present(self, client: Client, member: Member) -> None:
        """Retain the peer's presence."""
        client.presence = member

        def arrive() -> None:
            self._presences[client.owner.id] = member
            self._tell(self._sessions.values(), ev.PresenceSeen(member))

        self._publish(client, arrive)

    def clear_presence(self, client: Client, member: Member) -> None:
        """Retain that peer's presence no more; who lives says it again."""
        peer = PeerId(member.id)

        def arrive() -> None:
            if self._presences.get(peer) != member:
                return
            del self._presences[peer]
            self._tell(self._sessions.values(), ev.PresenceGone(peer))
            if (session := self._sessions.get(peer)) is not None:
                self._tell([session], lambda: self._say_again(session.client))

        self._publish(client, arrive)

    def _say_again(self, client: Client) -> None:
        if client.presence is not None:
            self.present(client, client.presence)

    def publish_view(self, client: Client, view: View | None) -> None:
        """Retain the view; None: don't say it again after an outage."""
        client.view = view

        def arrive() -> None:
            self._view = view
            self._tell(self._sessions.values(), ev.ViewSeen(view))  # type: ignore[arg-type]  # not called without one

        if view is not None:
            self._publish(client, arrive)

    def carry(self, client: Client, target: PeerId, event: ev.Event, size: int) -> None:
        """Bring an event to one other peer, if both are connected."""

        def bring() -> None:
            if (session := self._sessions.get(target)) is not None:
                self._tell([session], event, size=size)

        def arrive() -> None:
            bring()
            if self._twice and self._rng.random() < self._twice:
                self._clock.after(AGAIN_S * self._rng.random(), bring)

        self._publish(client, arrive, size)

    def disconnect(self, client: Client, *, will: bool = True) -> None:
        """The client is gone; `will`: the broker notices, and clears its presence."""
        peer = client.owner.id
        if self._waiting.get(peer) is client:
            del self._waiting[peer]
        if (session := client.session) is None:
            return
        client.session = None

        def arrive() -> None:
            self._drop(session, will=will)

        self._clock.after(self._ways.delay(peer, BROKER), arrive)

    def _publish(self, client: Client, arrive: Callable[[], None], size: int = _DOCUMENT_BYTES) -> None:
        if client.session is not None:
            client.session.up.send(Message(size, arrive))

    # -- the broker's side -----------------------------------------------------------------------------------

    def take(self, session: _Session, message: Message) -> bool:
        """Something has come from a client."""
        if not session.over:
            message.arrive()
        return True

    def _tell(
        self, sessions: Iterable[_Session], *events: ev.Event | Callable[[], None], size: int = _DOCUMENT_BYTES
    ) -> None:
        """One after the other: all that the broker sends leaves over one line."""
        to = list(sessions)
        self._free_at = max(self._free_at, self._clock.now + self._ways.jitter())
        self._free_at += size / self._ways.model.rate_bytes_per_s

        def arrive() -> None:
            for session in to:
                for event in events:
                    session.say(event, size)

        self._clock.at(self._free_at + self._ways.model.latency_s, arrive)

    def _drop(self, session: _Session, *, will: bool) -> None:
        """The broker gives a connection up."""
        session.end()
        peer = session.client.owner.id
        if self._sessions.get(peer) is session:
            del self._sessions[peer]
            if will and self._presences.pop(peer, None) is not None:
                self._tell(self._sessions.values(), ev.PresenceGone(peer))

    # -- faults --------------------------------------------------------------------------------------------

    def go_down(self, *, forget: bool = True) -> None:
        """The broker dies; with `forget`, and what it retained with it."""
        self.up = False
        if forget:
            self._presences.clear()
            self._view = None
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            session.end()
            self._lose(session)

    def come_up(self) -> None:
        """There is a broker again."""
        self.up = True
        for client in list(self._waiting.values()):
            self._reconnect(client)

    def check(self, client: Client) -> None:
        """Whether the broker and this client reach each other may have changed."""
        reachable = self._reachable(client.owner)
        if reachable and self._waiting.get(client.owner.id) is client:
            self._reconnect(client)
        if (session := client.session) is None:
            return
        if reachable:
            session.silent_since = None
        elif session.silent_since is None:
            since = session.silent_since = self._clock.now
            self._clock.after(GRACE_S, lambda: self._overdue(session, since))

    def _overdue(self, session: _Session, since: float) -> None:
        if session.silent_since == since and not session.over:
            self._drop(session, will=True)
            self._lose(session)

    def _reachable(self, peer: Process) -> bool:
        cut = self._ways.is_cut(peer.id, BROKER) or self._ways.is_cut(BROKER, peer.id)
        return peer.powered and not peer.frozen and not cut

    def _lose(self, session: _Session) -> None:
        """A client's connection is over; it looks for another."""
        client = session.client

        def hear() -> None:
            if client.session is not session:
                return
            client.session = None
            if client.owner.alive:  # otherwise a new life may wait by now
                self._waiting[client.owner.id] = client
                self._reconnect(client)

        client.owner.soon(hear)

    def _reconnect(self, client: Client) -> None:
        peer = client.owner.id

        def connect() -> None:
            if self.up and self._waiting.get(peer) is client and client.owner.alive:
                del self._waiting[peer]
                self.connect(client)

        self._clock.after(self._rng.random() * RECONNECT_S, lambda: client.owner.soon(connect))
