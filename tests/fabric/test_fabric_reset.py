"""A connection that is reset while messages wait to be read: it is noticed at once, on every event loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import os
import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest
import uvloop
from aiomqtt import Client, MqttError
from fabric_guests import DEADLINE_S, Guest
from fleets import Fleet

from edgepeer.errors import FabricError
from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.connection import _watch_socket, connection, describe
from edgepeer.fabric.events import Disconnected
from edgepeer.fabric.tls import secured

CONNACK = bytes([0x20, 2, 0, 0])
PUBLISH = bytes([0x30, 17, 0, 13]) + b"edgepeer/else" + b"\xff\xff"


async def read_packet(reader: asyncio.StreamReader) -> bytes:
    await reader.readexactly(1)
    length = shift = 0
    while True:
        (digit,) = await reader.readexactly(1)
        length |= (digit & 127) << shift
        shift += 7
        if digit < 128:
            return await reader.readexactly(length)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As much of a broker as it takes to be left: lets the client in, says a lot, and breaks the connection."""
    await read_packet(reader)
    writer.write(CONNACK)
    probe = await read_packet(reader)
    at = 2 + int.from_bytes(probe[:2], "big")
    writer.write(bytes([0x40, 2]) + probe[at : at + 2])
    subscribe = await read_packet(reader)
    topics = subscribe.count(b"edgepeer/v1/")
    writer.write(bytes([0x90, 2 + topics]) + subscribe[:2] + b"\x01" * topics)
    await read_packet(reader)
    writer.write(PUBLISH * 1000)
    linger_not = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_not)
    writer.transport.abort()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_broker_that_hangs_up_on_whom_it_has_just_let_in_is_left(
    new_loop: Callable[[], asyncio.AbstractEventLoop], caplog: pytest.LogCaptureFixture
) -> None:
    """Both may be read before anybody looks whether it was let in."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_packet(reader)
        writer.write(CONNACK)
        writer.close()

    async def be_let_in() -> None:
        async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server, asyncio.timeout(DEADLINE_S):
            address = BrokerAddress(host="127.0.0.1", port=server.sockets[0].getsockname()[1])
            given = {"identifier": "a", "will_topic": None, "on_message": lambda *_: None, "timeout": DEADLINE_S}
            with pytest.raises((FabricError, MqttError)) as left:
                async with connection(address, **given) as client:  # type: ignore[arg-type]
                    await anext(client.messages)
            assert describe(left.value).endswith("connection lost")

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(be_let_in())
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_broker_that_hangs_up_on_whom_nobody_waits_for_any_more_is_left(
    new_loop: Callable[[], asyncio.AbstractEventLoop], caplog: pytest.LogCaptureFixture
) -> None:
    """Who opens the connection is cancelled as the broker hangs up: that is read before its socket is closed."""

    async def call(address: BrokerAddress) -> None:
        given = {"identifier": "a", "will_topic": None, "on_message": lambda *_: None, "timeout": DEADLINE_S}
        async with connection(address, **given):  # type: ignore[arg-type]
            pass

    async def be_cancelled() -> None:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.setblocking(False)
            address = BrokerAddress(host="127.0.0.1", port=listening.getsockname()[1])
            caller = asyncio.create_task(call(address))
            async with asyncio.timeout(DEADLINE_S):
                broker, _ = await loop.sock_accept(listening)
                await loop.sock_recv(broker, 1000)
                broker.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                broker.close()
                caller.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await caller

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(be_cancelled())
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("taken", [False, True])
def test_a_socket_that_is_closed_before_it_is_watched_takes_nobodys_number(
    new_loop: Callable[[], asyncio.AbstractEventLoop], taken: bool
) -> None:
    """paho opens a connection in another thread: who is cancelled meanwhile closes it before the loop hears of it."""

    async def close_at_once() -> list[object]:
        loop, complaints = asyncio.get_running_loop(), list[object]()
        loop.set_exception_handler(lambda _, about: complaints.append(about))
        paho = (client := Client("127.0.0.1"))._client
        _watch_socket(client)
        mine, theirs = socket.socketpair()
        with socket.socket() as sock, mine, theirs:
            number = sock.fileno()
            assert paho.on_socket_open is not None
            paho.on_socket_open(paho, None, sock)  # type: ignore[arg-type]
            sock.close()
            if taken:  # the next socket gets it
                os.dup2(mine.fileno(), number)
                heard = asyncio.Event()
                loop.add_reader(number, heard.set)
                for _ in range(3):
                    await asyncio.sleep(0)
                theirs.send(b"hello")
                async with asyncio.timeout(DEADLINE_S):
                    await heard.wait()
                loop.remove_reader(number)
                os.close(number)
            else:
                for _ in range(3):
                    await asyncio.sleep(0)
        client._disconnected.cancel()
        return complaints

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(close_at_once()) == []


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize(("qos", "why"), [(1, "does not read"), (2, "sends messages in QoS 2; is it an MQTT broker?")])
def test_a_broker_that_would_have_us_keep_more_and_more_is_left(
    new_loop: Callable[[], asyncio.AbstractEventLoop], qos: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Receipts that it does not read, or messages that it never lets go."""
    monkeypatch.setattr("edgepeer.fabric.connection._MOST_UNREAD", 64)
    publish = bytes([0x30 | qos << 1, 5, 0, 1]) + b"a"
    left = asyncio.Event()

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_packet(reader)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(CONNACK)
        with contextlib.suppress(ConnectionError):
            for number in itertools.cycle(range(1, 1 << 16)):
                writer.write(publish + number.to_bytes(2, "big"))
                await writer.drain()
        left.set()
        writer.transport.abort()

    async def stay(address: BrokerAddress) -> None:
        given = {"identifier": "a", "will_topic": None, "on_message": lambda *_: None, "timeout": DEADLINE_S}
        async with connection(address, **given) as client:  # type: ignore[arg-type]
            sock: Any = client._client.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
            await anext(client.messages)

    async def be_flooded() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        async with await asyncio.start_server(flood, sock=listening), asyncio.timeout(DEADLINE_S):
            address = BrokerAddress(host="127.0.0.1", port=listening.getsockname()[1])
            with pytest.raises((FabricError, MqttError)) as over:
                await stay(address)
            assert describe(over.value).endswith(why)
            await left.wait()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(be_flooded())


@pytest.mark.parametrize("said", [b"", b"hello"])
async def test_a_broker_that_hangs_up_before_tls_begins_is_a_failure_like_others(fleet: Fleet, said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sock = socket.create_connection(listening.getsockname())
        sock.setblocking(False)
        broker, _ = listening.accept()
        broker.send(said)
        broker.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        broker.close()
        with pytest.raises(FabricError, match="hung up while TLS was set up"):
            await secured(sock, "127.0.0.1", fleet.member("a"))
    gc.collect()  # a socket that was left open would be told of


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_it_is_noticed_at_once(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def lose_it() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        guest = Guest(BrokerAddress(host="127.0.0.1", port=server.sockets[0].getsockname()[1]), "a")
        task = asyncio.create_task(guest.client.run())
        try:
            await guest.until(lambda _: guest.count(Disconnected) >= 3)
        finally:
            await guest.client.close(timeout=0.1)
            await task
            server.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(lose_it())
