"""Carries connections from one place to another: what is accepted here goes on to a host and port there.

It makes a broker outside of the emulated network reachable from inside. One end's close or loss becomes the other's,
and a client that has vanished without a word is noticed after half a minute.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from edgepeer.sockets import expect_life, stop_listening

__all__ = ["Gateway"]

_CHUNK_BYTES: Final = 256 << 10
_CONNECT_S: Final = 10.0
_FLUSH_S: Final = 2.0


class Gateway:
    """Serves a listening socket, which it takes over, while its context is open."""

    def __init__(self, listener: socket.socket, host: str, port: int) -> None:
        self._listener = listener
        self._host, self._port = host, port
        self._carrying: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Gateway:
        self._server = await asyncio.start_server(self._accept, sock=self._listener, limit=_CHUNK_BYTES)
        return self

    async def __aexit__(self, *exception: object) -> None:
        await stop_listening(self._server)
        for task in self._carrying:
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._carrying.add(task)
        # A broker behind us sees our connection, not its client's: it is for us to notice that a client is gone.
        expect_life(writer.get_extra_info("socket"))
        try:
            async with asyncio.timeout(_CONNECT_S):
                there_reader, there_writer = await asyncio.open_connection(self._host, self._port, limit=_CHUNK_BYTES)
            try:
                expect_life(there_writer.get_extra_info("socket"))
                await _carry((reader, there_writer), (there_reader, writer))
            finally:
                there_writer.transport.abort()
        except (OSError, asyncio.CancelledError):
            return  # nobody there, or one end is lost: so is the other, in `finally`
        finally:
            writer.transport.abort()
            self._carrying.discard(task)


async def _carry(*ways: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    """Until one end is closed, and what it has sent is at the other. Raises OSError when one is lost."""
    tasks = [asyncio.create_task(_one_way(reader, writer)) for reader, writer in ways]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    async with asyncio.timeout(_FLUSH_S):
        for _, writer in ways:
            writer.close()
            await writer.wait_closed()


async def _one_way(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK_BYTES):
        if writer.is_closing():  # lost, and nobody has been told yet: uvloop would refuse the write
            raise ConnectionResetError("the other end is gone")
        writer.write(chunk)
        await writer.drain()
