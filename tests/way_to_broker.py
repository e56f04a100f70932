"""A way to a broker that tests can shut."""

from __future__ import annotations

import asyncio
import contextlib

from ports import free_port

from edgepeer.fabric.address import BrokerAddress
from edgepeer.sockets import stop_listening

__all__ = ["Gate"]


class Gate:
    """A way to a broker that can be shut, which cuts whoever is on it, and opened again at the same address, be it to
    another broker."""

    def __init__(self, behind: BrokerAddress) -> None:
        self.behind = behind
        self._port = free_port()  # nobody takes it while the gate is shut
        self._server: asyncio.Server | None = None
        self._traffic: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> BrokerAddress:
        return BrokerAddress(host="127.0.0.1", port=self._port)

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)

    async def shut(self) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        await stop_listening(server)
        for task in self._traffic:
            task.cancel()
        await asyncio.gather(*self._traffic)
        await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._traffic.add(task)
        try:
            broker_reader, broker_writer = await asyncio.open_connection(self.behind.host, self.behind.port)
            try:
                async with asyncio.TaskGroup() as ways:
                    ways.create_task(_copy(reader, broker_writer))
                    ways.create_task(_copy(broker_reader, writer))
            finally:
                broker_writer.transport.abort()
        except (asyncio.CancelledError, ConnectionError):
            return
        finally:
            writer.transport.abort()
            self._traffic.discard(task)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):  # of an end that has gone, the other way hears as well
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):  # that end has gone, too, and the event loop has not seen it yet
        if not writer.is_closing():
            writer.write_eof()
