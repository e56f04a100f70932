"""One connection, from its first byte: until the other end has said who it is, nothing else it says counts."""

from __future__ import annotations

import asyncio
import time
from typing import Final, Protocol

import msgspec

from edgepeer.complaints import Complaints
from edgepeer.ids import PeerId
from edgepeer.printable import printable
from edgepeer.transport.base import Channel, Traffic
from edgepeer.trust.names import Role
from edgepeer.wire.frames import PART, Bye, Frame, Hello, Ping, StateRequest

__all__ = ["NOBODY", "FrameListener", "Session", "SessionOwner"]

HELLO_WITHIN_S: Final = 5.0
NOBODY: Final = PeerId("?")
"""Whom one looks for who only wants to hear who is there: no peer is called so."""


class FrameListener(Protocol):
    """Who hears what other peers say."""

    def link_up(self, peer: PeerId, incarnation: int, *, dialled: bool) -> None: ...

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
    """Who holds the sessions, and decides which of two connections with one peer is in use."""

    lines: FrameListener

    refused: Complaints

    def introduced(self, session: Session) -> bool:
        """The other end has said who it is; False if it is not welcome."""

    def admits(self, session: Session, payload_bytes: int) -> bool:
        """Whether a document of that size may come from there now; if so, `session.borrowed` counts it."""

    def give_back(self, session: Session) -> None:
        """What the session has borrowed is in use no more."""

    def session_closed(self, session: Session, reason: str) -> None: ...


class Session:
    """Implements transport.base.Receiver for one channel."""

    def __init__(
        self, owner: SessionOwner, channel: Channel, hello: Hello, traffic: Traffic, *, wanted: PeerId | None = None
    ) -> None:
        self.channel = channel
        self.wanted = wanted
        """Whom this end has dialled; None: the other end has opened the connection."""
        self.named = ""
        """Who the other end says that it is, welcome or not."""
        self.vouched: PeerId | None = None
        """Which peer of the fabric that is, whomever it or we have wanted."""
        self.peer: PeerId | None = None
        """Who is at the other end; None before its Hello."""
        self.incarnation = 0
        self.met_at = 0.0
        self.borrowed = 0
        """Bytes of a document that is on its way, where these are counted."""
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the other end is known, or the connection is gone."""
        self._owner = owner
        self._lines = owner.lines
        self._hello = hello
        self._traffic = traffic
        channel.send(msgspec.structs.replace(hello, wanted=wanted or ""))
        self._asks = False
        """Whether the other end is no peer, and may only ask for what is here."""
        self._overdue = asyncio.get_running_loop().call_later(
            HELLO_WITHIN_S, self._refuse, f"no Hello within {HELLO_WITHIN_S:g} s"
        )

    def sink(self, frame: Frame, payload_bytes: int) -> memoryview | None:
        if self._asks and payload_bytes:
            self._refuse_word(frame)
            return None
        if self.peer is not None:
            return self._lines.sink(self.peer, frame, payload_bytes)
        if payload_bytes:  # not to be waited for
            self._refuse(f"{type(frame).__name__} before Hello")
        return None

    def admits(self, frame: Frame, payload_bytes: int) -> bool:
        if self.peer is None:
            self._refuse(f"{type(frame).__name__} before Hello")
        elif self._asks:
            self._refuse_word(frame)
        elif self._owner.admits(self, payload_bytes):
            return True
        else:
            self._refuse(f"{payload_bytes} bytes of {type(frame).__name__} from a peer that is not known")
        return False

    def received(
        self, frame: Frame, payload: memoryview | None, payload_bytes: int, stored: bool, seconds: float
    ) -> None:
        if self.borrowed:
            self._owner.give_back(self)
        if self._asks and not (isinstance(frame, Ping | Bye) or _is_question(frame)):
            self._refuse_word(frame)
        elif self.peer is not None:
            self._lines.received(self.peer, frame, payload, payload_bytes, stored, seconds)
        elif isinstance(frame, Hello):
            self._meet(frame)
        elif isinstance(frame, Bye):
            self._refuse(f"the other end has closed it: {printable(frame.reason)}")
        else:
            self._refuse(f"{type(frame).__name__} before Hello")

    def _meet(self, hello: Hello) -> None:
        self.named = hello.peer
        holder = self.channel.holder
        if holder is not None and (hello.fabric, hello.peer) != (holder.fabric, holder.common_name):
            said = f"{hello.peer} of {hello.fabric}"
            self._refuse(f"says that it is {said}, by a certificate of {holder} (serial {holder.serial:x})")
        elif hello.fabric != self._hello.fabric:
            self._refuse(f"speaks for fabric {hello.fabric!r}, this is {self._hello.fabric!r}")
        elif hello.protocol != self._hello.protocol:
            self._refuse(f"runs rounds by {hello.protocol!r}, this fabric by {self._hello.protocol!r}")
        elif hello.wanted not in ("", self._hello.peer) or self.wanted not in (None, hello.peer):
            # An address outlives its peer. Connections in use must not give way to one that is for somebody else.
            self.vouched = PeerId(hello.peer)
            self.channel.close(f"looking for {self.wanted or hello.wanted}")
        elif hello.peer == self._hello.peer:
            self._refuse("that is this peer itself, or another one with its id")
        else:
            self._overdue.cancel()
            self.peer, self.incarnation = PeerId(hello.peer), hello.incarnation
            self.vouched = self.peer
            self.met_at = time.monotonic()
            self._asks = holder is not None and holder.role is not Role.PEER
            if not self._owner.introduced(self):
                self.peer = None
                self.channel.close("another connection is in use")
            if not self.settled.done():
                self.settled.set_result(None)

    def _refuse_word(self, frame: Frame) -> None:
        self._refuse(f"{type(frame).__name__} from {self.channel.holder}: only a peer may say that")

    def _refuse(self, reason: str) -> None:
        if self.wanted != NOBODY:  # else it is not they who had no business here
            self._traffic.frames_rejected += 1
            self._owner.refused.add("connection with %s closed: %s", self.channel.remote, reason)
        self.channel.close(reason)

    def closed(self, reason: str) -> None:
        self._overdue.cancel()
        self._owner.give_back(self)
        if not self.settled.done():
            self.settled.set_result(None)
        self._owner.session_closed(self, reason)


def _is_question(frame: Frame) -> bool:
    return isinstance(frame, StateRequest) and PART in frame.run
