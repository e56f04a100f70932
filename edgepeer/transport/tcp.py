"""Frames over TCP.

A vector's segment goes from the socket into its final buffer: `get_buffer` hands the kernel the very memory that
the protocol machine will add from. Only what a header's read has caught of the payload (at most WINDOW bytes)
is copied once. Outgoing payloads are handed to the kernel from where they lie.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, Final, cast

from edgepeer.complaints import Complaints
from edgepeer.errors import ConfigError, WireError
from edgepeer.processes import os_reason
from edgepeer.transport.acknowledged import Acknowledgements
from edgepeer.transport.base import Accept, Receiver, Traffic
from edgepeer.transport.losses import LossWatch
from edgepeer.transport.options import format_address, parse_address, share_loopback, tune
from edgepeer.transport.window import ReceiveWindows
from edgepeer.wire.codec import PRELUDE, decode_header, decode_prelude, encode, has_document, is_bare
from edgepeer.wire.frames import Bye, Frame

__all__ = ["TcpTransport"]

_log = logging.getLogger(__name__)

WINDOW: Final = 2048
_SCRATCH: Final = PRELUDE.size + 65535 + WINDOW  # the longest header and a window's worth behind it
_WASTE: Final = 256 << 10
BACKLOG_LIMIT_BYTES: Final = 2 << 30
LINGER_S: Final = 10.0
"""How long a closed connection may take to deliver what is queued."""


class _TcpChannel(asyncio.BufferedProtocol):
    """One TCP connection, either end."""

    def __init__(self, accept: Accept, traffic: Traffic, windows: ReceiveWindows, complaints: Complaints) -> None:
        self._accept = accept
        self._complaints = complaints
        self._traffic = traffic
        self._windows = windows
        self._losses = LossWatch()
        self._acknowledgements = Acknowledgements()
        self._sock: Any = None
        self._network: Any = None
        """The same, if it is not to this machine itself."""
        self._receiver: Receiver | None = None
        self._transport: asyncio.Transport | None = None
        self._reason = ""
        self._closing = False
        self._linger: asyncio.TimerHandle | None = None
        self.remote = "?"
        # Bytes of preludes and headers: scratch[at:filled] is yet to be read.
        self._scratch = memoryview(bytearray(_SCRATCH))
        self._at = 0
        self._filled = 0
        # The payload that is arriving, if any.
        self._frame: Frame | None = None
        self._payload_bytes = 0
        self._missing = 0
        self._target: memoryview | None = None
        self._waste: memoryview | None = None
        self._since = 0.0
        self._progress: float | None = None

    # -- asyncio's side ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self.remote = format_address(transport.get_extra_info("peername"))
        sock = transport.get_extra_info("socket")
        self._sock = sock
        if sock is not None and tune(sock):
            self._network = sock
        self._receiver = self._accept(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            if self._target is not None:
                return self._target[self._payload_bytes - self._missing :]
            if self._waste is None:
                self._waste = memoryview(bytearray(_WASTE))
            return self._waste[: min(self._missing, _WASTE)]
        return self._scratch[self._filled : self._filled + WINDOW]

    def buffer_updated(self, nbytes: int) -> None:
        self._traffic.bytes_received += nbytes
        if self._frame is not None:
            self._missing -= nbytes
            if self._network is not None:
                self._windows.received(self._network, nbytes)
            if self._missing == 0:
                self._complete(self._frame)
            else:
                self._progress = time.monotonic()
            return
        self._filled += nbytes
        try:
            self._read_scratch()
        except WireError as error:
            self._traffic.frames_rejected += 1
            self._complaints.add("connection with %s closed: %s", self.remote, error)
            self.close(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost(str(exc) if exc is not None else "closed by the other end")

    def lost(self, reason: str) -> None:
        """There is no connection any more."""
        self._transport = None
        self._windows.forget(self._network)
        self._sock = self._network = None
        if self._linger is not None:
            self._linger.cancel()
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.closed(self._reason or reason)

    # -- reading -------------------------------------------------------------------------------------------

    def _read_scratch(self) -> None:
        """Take all frames that lie in the scratch buffer, the last perhaps without all of its payload."""
        while not self._closing and self._filled - self._at >= PRELUDE.size:
            kind, header_bytes, payload_bytes = decode_prelude(self._scratch, self._at)
            start = self._at + PRELUDE.size
            if self._filled < start + header_bytes:
                break
            self._at = start + header_bytes
            frame = decode_header(kind, self._scratch[start : self._at], payload_bytes)
            if is_bare(kind):
                self._received(frame)
                continue
            self._begin(frame, payload_bytes)
            if self._frame is not None:
                self._at = self._filled = 0
                return
        if self._at == self._filled:
            self._at = self._filled = 0
        elif self._at:
            rest = self._filled - self._at
            self._scratch[:rest] = bytes(self._scratch[self._at : self._filled])
            self._at, self._filled = 0, rest

    def _begin(self, frame: Frame, payload_bytes: int) -> None:
        """A header is there: find a place for its payload, and move what has come of it already."""
        assert self._receiver is not None
        self._since = time.monotonic()
        self._payload_bytes = payload_bytes
        if not has_document(frame):
            self._target = self._receiver.sink(frame, payload_bytes)
        elif self._receiver.admits(frame, payload_bytes):
            self._target = memoryview(bytearray(payload_bytes))
        if self._closing:
            return
        here = min(payload_bytes, self._filled - self._at)
        if self._target is not None and here:
            self._target[:here] = self._scratch[self._at : self._at + here]
        self._at += here
        self._missing = payload_bytes - here
        if self._missing:
            self._frame = frame
        else:
            self._complete(frame)

    def _complete(self, frame: Frame) -> None:
        target, self._target, self._frame = self._target, None, None
        self._progress = None  # the frame itself is heard of
        if self._receiver is None or self._closing:
            return
        document = target if has_document(frame) else None
        seconds = time.monotonic() - self._since
        self._receiver.received(frame, document, self._payload_bytes, target is not None, seconds)

    def _received(self, frame: Frame) -> None:
        """A frame without a payload: most are."""
        assert self._receiver is not None
        if type(frame) is Bye:
            self._reason = self._reason or f"closed by the other end: {frame.reason}"
        self._receiver.received(frame, None, 0, True, 0.0)

    def progressed(self) -> float | None:
        progress, self._progress = self._progress, None
        return progress

    # -- writing -------------------------------------------------------------------------------------------

    def missing(self, now: float) -> tuple[float, float] | None:
        if self._sock is None or self._transport is None or self._closing or self._transport.is_closing():
            return None
        return self._acknowledgements.missing(self._sock, now, queued=self._transport.get_write_buffer_size() > 0)

    def send(self, frame: Frame, payload: memoryview | bytes | None = None) -> None:
        if self._transport is None or self._closing or self._transport.is_closing():
            return
        self._acknowledgements.sent()
        if payload:
            head = encode(frame, len(payload))
            self._traffic.bytes_sent += len(head) + len(payload)
            self._transport.writelines((head, payload))
            if self._network is not None:
                self._losses.sending(self._network)
        else:
            head = encode(frame)
            self._traffic.bytes_sent += len(head)
            self._transport.write(head)
        if self._transport.get_write_buffer_size() > BACKLOG_LIMIT_BYTES:
            self.abort("the other end does not read")

    def close(self, reason: str) -> None:
        if self._transport is not None and not self._closing and not self._transport.is_closing():
            self._reason = self._reason or reason
            self.send(Bye(reason=reason[:250]))
            self._closing = True
            self._transport.close()
            self._linger = asyncio.get_running_loop().call_later(LINGER_S, self.abort, reason)

    def abort(self, reason: str) -> None:
        if self._transport is not None:
            self._reason = self._reason or reason
            self._closing = True
            self._transport.abort()


class _TcpListener:
    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self.address = format_address(server.sockets[0].getsockname())

    async def close(self) -> None:
        self._server.close()


class TcpTransport:
    """TCP on the running event loop; made for uvloop, works on any."""

    def __init__(self) -> None:
        self.traffic = Traffic()
        self._windows = ReceiveWindows()
        self._complaints = Complaints(_log)
        self._host = ""

    async def listen(self, address: str, accept: Accept) -> _TcpListener:
        host, port = parse_address(address)
        self._host = host
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(lambda: self._channel(accept), host, port, backlog=128)
        except OSError as error:
            raise ConfigError(f"listen {address}: {os_reason(error)}; use another address or port") from error
        return _TcpListener(server)

    async def dial(self, address: str, accept: Accept, *, timeout: float) -> _TcpChannel:
        host, port = parse_address(address)
        loop = asyncio.get_running_loop()
        own = (self._host, 0) if share_loopback(self._host, host) else None
        channel = self._channel(accept)
        try:
            async with asyncio.timeout(timeout):
                await loop.create_connection(lambda: channel, host, port, local_addr=own)
        except BaseException:
            channel.lost("no longer dialled")  # uvloop closes the socket, and does not say so
            raise
        return channel

    def _channel(self, accept: Accept) -> _TcpChannel:
        return _TcpChannel(accept, self.traffic, self._windows, self._complaints)
