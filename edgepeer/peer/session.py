"""One connection, from its first byte: until the other end has said who it is, nothing else it says counts."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final, Protocol

from edgepeer.ids import PeerId
from edgepeer.transport.base import Channel, Traffic
from edgepeer.wire.frames import Frame, Hello

__all__ = ["Lines", "Session", "SessionOwner"]

_log = logging.getLogger(__name__)

HELLO_WITHIN_S: Final = 5.0


class Lines(Protocol):
    """Who hears what other peers say."""

    def link_up(self, peer: PeerId, incarnation: int) -> None: ...

    def link_down(self, peer: PeerId, reason: str) -> None: ...

    def dial_failed(self, peer: PeerId, reason: str, refused: bool) -> None: ...

    def sink(self, peer: PeerId, frame: Frame, payload_bytes: int) -> memoryview | None: ...

    def received(
        self,
        peer: PeerId,
        frame: Frame,
        payload: memoryview | None,
        payload_bytes: int,
        stored: bool,
        seconds: float,
    ) -> None: ...


class SessionOwner(Protocol):
    """Whoever holds the sessions."""

    lines: Lines

    def introduced(self, session: Session) -> bool:
        """The other end has said who it is; False if it is not welcome."""

    def session_closed(self, session: Session, reason: str) -> None: ...


class Session:
    """Implements transport.base.Receiver for one channel."""

    def __init__(self, owner: SessionOwner, channel: Channel, hello: Hello, traffic: Traffic, *, dialled: bool) -> None:
        self.channel = channel
        self.dialled = dialled
        """Whether this end opened the connection."""
        self.peer: PeerId | None = None
        """Who is at the other end; None before its Hello."""
        self.incarnation = 0
        self.met_at = 0.0
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the other end is known, or the connection is gone."""
        self._owner = owner
        self._lines = owner.lines
        self._hello = hello
        self._traffic = traffic
        channel.send(hello)
        self._overdue = asyncio.get_running_loop().call_later(
            HELLO_WITHIN_S, self._refuse, f"no Hello within {HELLO_WITHIN_S:g} s"
        )

    def sink(self, frame: Frame, payload_bytes: int) -> memoryview | None:
        return self._lines.sink(self.peer, frame, payload_bytes) if self.peer is not None else None

    def received(
        self, frame: Frame, payload: memoryview | None, payload_bytes: int, stored: bool, seconds: float
    ) -> None:
        if self.peer is not None:
            self._lines.received(self.peer, frame, payload, payload_bytes, stored, seconds)
        elif isinstance(frame, Hello):
            self._meet(frame)
        else:
            self._refuse(f"{type(frame).__name__} before Hello")

    def _meet(self, hello: Hello) -> None:
        if hello.fabric != self._hello.fabric:
            self._refuse(f"speaks for fabric {hello.fabric!r}, this is {self._hello.fabric!r}")
        elif hello.protocol != self._hello.protocol:
            self._refuse(f"runs rounds by {hello.protocol!r}, this fabric by {self._hello.protocol!r}")
        elif hello.peer == self._hello.peer:
            self._refuse("that is this peer itself, or another one with its id")
        else:
            self._overdue.cancel()
            self.peer, self.incarnation = PeerId(hello.peer), hello.incarnation
            self.met_at = time.monotonic()
            if not self._owner.introduced(self):
                self.peer = None
                self.channel.close("another connection is in use")
            if not self.settled.done():
                self.settled.set_result(None)

    def _refuse(self, reason: str) -> None:
        self._traffic.frames_rejected += 1
        _log.warning("connection with %s closed: %s", self.channel.remote, reason)
        self.channel.close(reason)

    def closed(self, reason: str) -> None:
        self._overdue.cancel()
        if not self.settled.done():
            self.settled.set_result(None)
        self._owner.session_closed(self, reason)
