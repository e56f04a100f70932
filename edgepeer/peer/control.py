"""The control plane of one peer: what the protocol machine wants said over MQTT, and what MQTT says to it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from edgepeer.errors import WireError
from edgepeer.fabric import events as seen
from edgepeer.fabric.client import FabricClient
from edgepeer.fabric.documents import Presence
from edgepeer.peer.letters import Letters
from edgepeer.peer.translation import as_message, as_protocol
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.topology.view import Member, View
from edgepeer.transport.base import Traffic
from edgepeer.version import VERSION

__all__ = ["ControlPlane"]

_log = logging.getLogger(__name__)
_SAY_AGAIN_S: Final = 10.0


class ControlPlane:
    """Between a fabric client and a driver.

    Args:
        fabric: connected or not.
        traffic: counts what the broker carries for the data plane, and what was refused.
        dispatch: takes the machine's events.
        aside: until `join`, listen only: nobody hears of this peer, and it makes no view.
        letters: seals what goes through the broker to one peer, in a fleet.
    """

    def __init__(
        self,
        fabric: FabricClient,
        traffic: Traffic,
        dispatch: Callable[[ev.Event], None],
        *,
        aside: bool = False,
        letters: Letters | None = None,
    ) -> None:
        self._letters = letters
        self._fabric = fabric
        self._traffic = traffic
        self._dispatch = dispatch
        self._aside = aside
        self._synced = False
        # A clock that has wrapped may stand before 1970: then it has begun when the machine has.
        self._started = now if (now := time.time()) > 0 else time.monotonic()
        self._moved_to: tuple[str, ...] = ()
        self._said_at = float("-inf")

    def publish_view(self, view: View | None) -> None:
        if view is not None:
            self._fabric.publish_retained(self._fabric.topics.view, view)
        else:
            self._fabric.forget(self._fabric.topics.view)

    def join(self, me: Member) -> None:
        """Be seen from now on, and act on what was heard before."""
        if self._aside:
            self._aside = False
            self.publish_presence(me)
            if self._synced:
                self._dispatch(ev.ControlSynced())

    def move(self, me: Member, addresses: tuple[str, ...]) -> None:
        """Say where this peer listens by now; (): where it did when it began."""
        self._moved_to = addresses
        self.publish_presence(me)

    def publish_presence(self, me: Member) -> None:
        if self._aside:
            return
        presence = Presence(
            id=me.id,
            incarnation=me.incarnation,
            addresses=me.addresses,
            moved_to=self._moved_to,
            version=VERSION,
            started=self._started,
            key=me.key or b"",
            machine=me.machine or "",
        )
        self._fabric.publish_retained(self._fabric.topics.presence(me.id), presence)

    def clear_presence(self, dead: Member) -> None:
        """Take back the presence of a peer that died without its last will being sent. A later life keeps its own."""
        self._fabric.clear_presence(dead.id, dead.incarnation)

    def relay(self, effect: fx.Relay) -> None:
        """Send a frame through the broker, if there is one; the protocol notices if it is lost."""
        frame, payload = effect.frame, effect.payload
        if self._letters is not None:
            if (sealed := self._letters.seal(frame, payload)) is None:
                return
            frame, payload = sealed
        message = as_message(frame, payload)
        if self._fabric.publish_relay(effect.peer, message):
            self._traffic.bytes_sent += len(message)

    def hear(self, event: seen.FabricEvent) -> None:
        """Tell the machine what concerns it."""
        if isinstance(event, seen.Evicted) and self._letters is not None:
            self._letters.forget(event.peer_id)
        try:
            told = as_protocol(event)
        except WireError as error:
            self._traffic.frames_rejected += 1
            if time.monotonic() - self._said_at > _SAY_AGAIN_S:
                self._said_at = time.monotonic()
                _log.warning("relayed message dropped: %s", error)
            return
        if isinstance(told, ev.Relayed):
            self._traffic.bytes_received += len(told.payload)
            if self._letters is not None:
                if (opened := self._letters.open(told.frame, told.payload)) is None:
                    return
                told = ev.Relayed(*opened)
        elif isinstance(told, ev.PresenceSeen) and self._letters is not None:
            self._letters.learn(told.member.id, told.member.incarnation, told.member.key or b"")
        if isinstance(told, ev.ControlSynced):
            self._synced = True
            if self._aside:
                return
        if told is not None:
            self._dispatch(told)
