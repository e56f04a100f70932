"""What every TCP connection of ours has in common, whatever its bytes are: its socket, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any, Final, cast

from edgepeer.complaints import Complaints
from edgepeer.sockets import borrowed, unacknowledged
from edgepeer.transport.acknowledged import Acknowledgements
from edgepeer.transport.base import Accept, Receiver, Traffic
from edgepeer.transport.losses import LossWatch
from edgepeer.transport.options import format_address, tune
from edgepeer.transport.portions import Portions
from edgepeer.transport.reading import FrameReader
from edgepeer.transport.window import ReceiveWindows
from edgepeer.trust.names import Holder
from edgepeer.wire.frames import Bye, Frame

__all__ = ["BACKLOG_LIMIT_BYTES", "LINGER_S", "MOST_LITTLE", "Connection", "Shared"]

BACKLOG_LIMIT_BYTES: Final = 8 << 30
"""More than who reads is ever behind: the largest state (4 GiB) is queued as a whole, beside vectors (1 GiB each). What
is large is queued from where it lies, and takes no memory of its own."""
LITTLE_BYTES: Final = 4096
"""Frames that are smaller do: each takes hundreds of bytes besides its own ..."""
MOST_LITTLE: Final = 65_536
"""... and never do twice as many of them wait to be read: twenty Pings a second pile up so while a state takes an hour
and a half. Who asks again and again, and does not read the answers, would have this peer keep them all."""
_GONE: Final = contextlib.suppress(OSError, AttributeError)
"""The connection is, or this is not Linux."""
LINGER_S: Final = 10.0
"""How long a closed connection may take to deliver what is queued."""


class Shared:
    """What all connections of one transport have in common."""

    def __init__(self, complaints: Complaints) -> None:
        self.traffic = Traffic()
        self.windows = ReceiveWindows()
        self.complaints = complaints
        self.unread = memoryview(bytearray(LITTLE_BYTES))
        """Where what comes over connections that are being closed is written to: nobody reads it."""


class Connection(asyncio.BufferedProtocol):
    """One TCP connection, either end."""

    def __init__(self, accept: Accept, shared: Shared) -> None:
        self._accept = accept
        self._shared = shared
        self._traffic = shared.traffic
        self._losses = LossWatch()
        self._acknowledgements = Acknowledgements()
        self._portions = Portions()
        self._sock: Any = None
        self._network: Any = None
        """The same, if it is not to this machine itself."""
        self._receiver: Receiver | None = None
        self._reader: FrameReader | None = None
        self._transport: asyncio.Transport | None = None
        self._reason = ""
        self._closing = False
        self._linger: asyncio.TimerHandle | None = None
        self._given = 0
        """Bytes of all frames that were ever queued ..."""
        self._little = 0
        """... and how many little ones were, since that came to `_counted`."""
        self._counted = 0
        self.remote = "?"
        self.quiet = False
        """Whoever is at the other end need not be one of us."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self.remote = format_address(transport.get_extra_info("peername"))
        sock = transport.get_extra_info("socket")
        self._sock = None if sock is None else borrowed(sock)
        if self._sock is not None and tune(self._sock):
            self._network = self._sock

    def _speak(self) -> FrameReader:
        """From here on frames are exchanged."""
        receiver = self._receiver = self._accept(cast(Any, self))
        reader = self._reader = FrameReader(receiver)
        if self._closing:  # that is what whoever accepts it has made of it
            reader.stop()
        return reader

    def _acknowledge(self) -> None:
        """Let the kernel acknowledge now what has been read to the end of a frame. Left alone it holds that back for
        0.04 s where it is a single packet, and the other end takes it for a part of the way there and back: it waits
        for longer than it takes, before it knows that a path is broken."""
        if self._network is not None and not (self._reader is None or self._reader.in_payload):
            with _GONE:
                self._network.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def _read_in_portions(self, missing: int) -> None:
        """So many bytes of a payload are still to be read. On this machine's loopback they come together anyway."""
        if self._network is not None:
            self._portions.expect(self._network, missing, self._shared.windows.portion(self._network))

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost(str(exc) if exc is not None else "closed by the other end")

    def lost(self, reason: str) -> None:
        """There is no connection any more."""
        self._transport = None
        self._shared.windows.forget(self._network)
        self._sock = self._network = None
        if self._linger is not None:
            self._linger.cancel()
        farewell = ""
        if self._reader is not None:
            self._reader.stop()
            farewell = self._reader.farewell
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.closed(self._reason or farewell or reason)

    def _reject(self, error: Exception) -> None:
        """What has come is nothing that may."""
        self._complain("connection with %s closed: %s", str(error))
        self.close(str(error))

    def _complain(self, text: str, reason: str) -> None:
        if not self.quiet:
            self._traffic.frames_rejected += 1
            self._shared.complaints.add(text, self.remote, reason)

    # -- a channel -----------------------------------------------------------------------------------------

    @property
    def holder(self) -> Holder | None:
        """Who the other end is, where it has to prove that."""
        return None

    def progressed(self) -> float | None:
        if self._reader is None:
            return None
        read_at = self._reader.progressed()
        return read_at if self._network is None else self._portions.came(self._network, read_at)

    @property
    def _queued(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def _has_queued(self, size: int) -> None:
        """A frame of so many bytes. What has piled up, behind an end that does not read, ends the connection."""
        self._given += size
        if size < LITTLE_BYTES:
            self._little += 1
        stuffed = self._queued > BACKLOG_LIMIT_BYTES
        if self._little >= MOST_LITTLE:
            stuffed |= self._given - self._queued < self._counted
            self._little, self._counted = 0, self._given
        if stuffed:
            self.abort("the other end does not read")

    def missing(self, now: float) -> tuple[float, float] | None:
        if self._sock is None or self._transport is None or self._closing or self._transport.is_closing():
            return None
        return self._acknowledgements.missing(self._sock, now, queued=self._queued > 0)

    @property
    def undelivered(self) -> int:
        return self._queued + (unacknowledged(self._sock) if self._sock is not None else 0)

    def send(self, frame: Frame, payload: memoryview | bytes | None = None) -> None:
        raise NotImplementedError

    def close(self, reason: str) -> None:
        if self._transport is not None and not self._closing and not self._transport.is_closing():
            self._reason = self._reason or (self._reader.farewell if self._reader is not None else "") or reason
            self.send(Bye(reason=reason[:250]))
            self._closing = True
            if self._reader is not None:
                self._reader.stop()
            self._linger = asyncio.get_running_loop().call_later(LINGER_S, self.abort, reason)
            self._finish()

    def _finish(self) -> None:
        """Close the connection once all that is queued is out. A kernel resets a connection that is closed with
        something unread, a Ping say, and drops what it has yet to send. So this end goes on reading until the other end
        has all and closes, too; but not of whom nothing was told but who this peer is."""
        if self._transport is not None:
            if self._given <= LITTLE_BYTES:
                self._transport.close()
                return
            try:
                self._transport.write_eof()
            except OSError:  # the other end has closed, and is gone: asyncio, unlike uvloop, says so
                self._transport.abort()

    def eof_received(self) -> None:
        """The other end has said all, and takes no more."""
        if self._transport is not None:
            self._transport.abort()

    def abort(self, reason: str) -> None:
        if self._transport is not None:
            self._reason = self._reason or (self._reader.farewell if self._reader is not None else "") or reason
            self._closing = True
            if self._reader is not None:
                self._reader.stop()
            self._transport.abort()
