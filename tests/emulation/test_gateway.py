"""Carrying connections between an emulated network and the machine's."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from edgepeer.emulation.network.gateway import _one_way


def test_what_comes_for_somebody_who_is_gone_ends_the_connection_and_nothing_else() -> None:
    """uvloop refuses to write to a connection that it has closed, before it tells anybody that it has."""

    async def carry() -> None:
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        async with server:
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.transport.abort()
            reader = asyncio.StreamReader()
            reader.feed_data(b"for nobody")
            with pytest.raises(ConnectionResetError, match="gone"):
                await _one_way(reader, writer)

    uvloop.run(carry())
