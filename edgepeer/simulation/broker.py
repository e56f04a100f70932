"""The broker of a simulated fleet: retained presences and the view, wills, outages.

Every client hears of a change after the latency, all at one moment. A client without a broker connects again
once there is one, and then says again what it wants retained.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from edgepeer.ids import PeerId
from edgepeer.protocol import events as ev
from edgepeer.simulation.clock import Clock
from edgepeer.topology.view import Member, View

__all__ = ["Broker", "Client"]

RECONNECT_S = 1.0
"""Clients find a broker that has come back within this time."""


class Client:
    """What a peer wants of the broker."""

    def __init__(self, peer: PeerId, receive: Callable[[ev.Event], None]) -> None:
        self.peer = peer
        self.receive = receive
        self.presence: Member | None = None
        self.view: View | None = None


class Broker:
    """Retained documents, and who listens."""

    def __init__(self, clock: Clock, rng: random.Random, latency_s: float) -> None:
        self._clock = clock
        self._rng = rng
        self._latency_s = latency_s
        self._presences: dict[PeerId, Member] = {}
        self._view: View | None = None
        self._connected: dict[PeerId, Client] = {}
        self._waiting: dict[PeerId, Client] = {}
        self.up = True

    # -- for clients ---------------------------------------------------------------------------------------

    def connect(self, client: Client) -> None:
        """The client hears everything retained and then ControlSynced: now, or when there is a broker."""
        if not self.up:
            self._waiting[client.peer] = client
            return
        self._connected[client.peer] = client
        retained: list[ev.Event] = [ev.PresenceSeen(self._presences[peer]) for peer in sorted(self._presences)]
        if self._view is not None:
            retained.append(ev.ViewSeen(self._view))

        def deliver() -> None:
            for event in (*retained, ev.ControlSynced()):
                if self._connected.get(client.peer) is client:
                    client.receive(event)

        self._clock.after(self._latency_s, deliver)
        if client.presence is not None:
            self.present(client, client.presence)
        if client.view is not None:
            self.publish_view(client, client.view)

    def present(self, client: Client, member: Member) -> None:
        client.presence = member
        if self._connected.get(client.peer) is client:
            self._presences[client.peer] = member
            self._tell(ev.PresenceSeen(member))

    def publish_view(self, client: Client, view: View | None) -> None:
        """Retain the view; None: don't say it again after an outage."""
        client.view = view
        if view is not None and self._connected.get(client.peer) is client:
            self._view = view
            self._tell(ev.ViewSeen(view))

    def disconnect(self, client: Client, *, clear: bool = True) -> None:
        """The client is gone; `clear`: its presence too, by itself or by its last will."""
        if self._waiting.get(client.peer) is client:
            del self._waiting[client.peer]
        if self._connected.get(client.peer) is not client:
            return
        del self._connected[client.peer]
        if clear and self._presences.pop(client.peer, None) is not None:
            self._tell(ev.PresenceGone(client.peer))

    def _tell(self, event: ev.Event) -> None:
        def deliver() -> None:
            for client in list(self._connected.values()):
                client.receive(event)

        self._clock.after(self._latency_s, deliver)

    # -- faults --------------------------------------------------------------------------------------------

    def go_down(self, *, forget: bool = True) -> None:
        """The broker dies; with `forget`, and what it retained with it."""
        self.up = False
        self._waiting, self._connected = {**self._waiting, **self._connected}, {}
        if forget:
            self._presences.clear()
            self._view = None
        for client in list(self._waiting.values()):
            client.receive(ev.ControlLost())

    def come_up(self) -> None:
        """There is a broker again."""
        self.up = True
        waiting, self._waiting = self._waiting, {}
        for client in waiting.values():
            self._reconnect(client)

    def _reconnect(self, client: Client) -> None:
        self._waiting[client.peer] = client

        def connect() -> None:
            if self.up and self._waiting.get(client.peer) is client:
                del self._waiting[client.peer]
                self.connect(client)

        self._clock.after(self._rng.random() * RECONNECT_S, connect)
