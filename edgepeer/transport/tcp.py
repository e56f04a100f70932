"""Frames over TCP.

A vector's segment goes from the socket into its final buffer: `get_buffer` hands the kernel the very memory that
the protocol machine will add from. Outgoing payloads are handed to the kernel from where they lie.
"""

from __future__ import annotations

import asyncio
import logging

from edgepeer.complaints import Complaints
from edgepeer.errors import ConfigError, WireError
from edgepeer.processes import os_reason
from edgepeer.sockets import connect_to, listening, stop_listening
from edgepeer.transport.base import Accept, Channel, Traffic
from edgepeer.transport.connection import Connection, Shared
from edgepeer.transport.options import format_address, parse_address, share_loopback
from edgepeer.wire.codec import encode
from edgepeer.wire.frames import Frame

__all__ = ["TcpTransport"]

_log = logging.getLogger(__name__)


class PlainConnection(Connection):
    """Frames as they are."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._speak()

    def get_buffer(self, sizehint: int) -> memoryview:
        assert self._reader is not None
        if self._closing:  # then nothing of it counts
            return self._shared.unread
        return self._reader.room()

    def buffer_updated(self, nbytes: int) -> None:
        reader = self._reader
        assert reader is not None
        self._traffic.bytes_received += nbytes
        if self._closing:
            return
        if self._network is not None and reader.in_payload:
            self._shared.windows.received(self._network, nbytes)
        try:
            reader.came(nbytes)
        except WireError as error:
            self._reject(error)
        self._read_in_portions(reader.missing)
        self._acknowledge()

    def send(self, frame: Frame, payload: memoryview | bytes | None = None) -> None:
        if self._transport is None or self._closing or self._transport.is_closing():
            return
        self._acknowledgements.sent()
        if payload:
            head = encode(frame, len(payload))
            size = len(head) + len(payload)
            self._transport.writelines((head, payload))
            if self._network is not None:
                self._losses.sending(self._network)
        else:
            head = encode(frame)
            size = len(head)
            self._transport.write(head)
        self._traffic.bytes_sent += size
        self._has_queued(size)


class _TcpListener:
    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self.address = format_address(server.sockets[0].getsockname())

    async def close(self) -> None:
        await stop_listening(self._server)


class TcpTransport:
    """TCP on the running event loop; made for uvloop, works on any."""

    def __init__(self) -> None:
        self._shared = Shared(Complaints(_log))
        self.traffic: Traffic = self._shared.traffic
        self._host = ""

    async def listen(self, address: str, accept: Accept) -> _TcpListener:
        host, port = parse_address(address)
        self._host = host
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(
                lambda: self._accepted(accept), host, port, backlog=128, start_serving=False
            )
            await listening(server)
        except OSError as error:
            raise ConfigError(f"listen {address}: {os_reason(error)}; use another address or port") from error
        return _TcpListener(server)

    async def dial(self, address: str, accept: Accept, *, timeout: float, quiet: bool = False) -> Channel:
        try:
            host, port = parse_address(address)
        except ConfigError as error:  # not ours: somebody says that it is there
            raise OSError(str(error)) from None
        loop = asyncio.get_running_loop()
        own = self._host if share_loopback(self._host, host) else None
        channel = self._dialled(accept)
        channel.quiet = quiet
        try:
            async with asyncio.timeout(timeout):
                sock = await connect_to(host, port, timeout, source=own, told=True)
                await loop.create_connection(lambda: channel, sock=sock)
                await self._met(channel)
        except BaseException:
            channel.abort("no longer dialled")
            channel.lost("no longer dialled")  # uvloop closes the socket, and does not say so
            raise
        return channel

    def _accepted(self, accept: Accept) -> Connection:
        """The protocol of a connection that somebody else has opened ..."""
        return PlainConnection(accept, self._shared)

    def _dialled(self, accept: Accept) -> Connection:
        """... or this end."""
        return PlainConnection(accept, self._shared)

    async def _met(self, channel: Connection) -> None:
        """Wait until the other end has shown who it is, where it must."""
