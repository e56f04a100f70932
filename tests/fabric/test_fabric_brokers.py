"""The brokers themselves: where they listen, whom they let in, and that they end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import signal
import socket
import subprocess
import sys
from pathlib import Path

import aiomqtt
import psutil
import pytest
import uvloop
from amqtt.mqtt.puback import PubackPacket
from fabric_guests import DEADLINE_S, Broker, Invite
from ports import free_port

from edgepeer.errors import ConfigError
from edgepeer.fabric import amqtt_parts
from edgepeer.fabric import broker as broker_module
from edgepeer.fabric import mosquitto as mosquitto_module
from edgepeer.fabric.amqtt_parts import Writer
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.fabric.events import Disconnected
from edgepeer.fabric.mosquitto import Mosquitto, find_mosquitto
from edgepeer.sockets import is_loopback


async def test_a_broker_ends_with_clients_still_connected(broker: Broker, invite: Invite) -> None:
    guests = [await invite(broker.address, f"p{number}", present=True) for number in range(5)]
    async with asyncio.timeout(DEADLINE_S):
        await broker.stop()
    for guest in guests:
        await guest.until(lambda seen: any(isinstance(event, Disconnected) for event in seen))
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(broker.address.host, broker.address.port)


async def test_a_login_needs_both_halves() -> None:
    for kind in (EmbeddedBroker, Mosquitto):
        with pytest.raises(ConfigError, match="both a user name and a password, or neither"):
            kind(username="lab")


async def to_the_end(client: aiomqtt.Client) -> None:
    """Hear what has been on its way, until the connection ends, which raises MqttError."""
    async with asyncio.timeout(DEADLINE_S):
        async for message in client.messages:
            assert message.payload == b"y"


async def test_the_embedded_broker_leaves_no_task_behind() -> None:
    before = asyncio.all_tasks()
    async with EmbeddedBroker(port=free_port()) as broker:
        silent = socket.create_connection((broker.address.host, broker.address.port))
        async with aiomqtt.Client(broker.address.host, broker.address.port) as client:
            await client.subscribe("#")
            await client.publish("x", b"y", qos=1, retain=True)
            async with asyncio.timeout(DEADLINE_S):
                await broker.stop()
            with pytest.raises(aiomqtt.MqttError):
                await to_the_end(client)
        silent.close()
        assert {task.get_name() for task in asyncio.all_tasks() - before if "amqtt" in repr(task)} == set()


async def test_an_answer_to_who_has_gone_is_given_up_and_no_error_of_nobody() -> None:
    async with EmbeddedBroker(port=free_port()) as broker, asyncio.timeout(DEADLINE_S):
        client = aiomqtt.Client(broker.address.host, broker.address.port, identifier="talker")
        async with client:
            _, handler = broker._broker._sessions["talker"]
            async with handler._write_lock:  # as if the one before was still on its way
                answering = asyncio.create_task(handler._send_packet(PubackPacket.build(1)))
                await asyncio.sleep(0)
                answering.cancel()
                await asyncio.wait([answering])
        assert answering.cancelled()


async def test_the_embedded_broker_stops_although_a_client_does_not_read() -> None:
    async with EmbeddedBroker(port=free_port()) as broker, asyncio.timeout(DEADLINE_S):
        place = (broker.address.host, broker.address.port)
        reader, writer = await asyncio.open_connection(*place, limit=1)
        writer.write(b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04deaf")  # CONNECT
        writer.write(b"\x82\x08\x00\x01\x00\x03big\x00")  # SUBSCRIBE
        assert await reader.readexactly(9) == b"\x20\x02\x00\x00" + b"\x90\x03\x00\x01\x00"
        async with aiomqtt.Client(*place) as client:
            for _ in range(10):
                await client.publish("big", bytes(1 << 20), qos=1)
        async with asyncio.timeout(DEADLINE_S):
            await broker.stop()
        writer.transport.abort()


async def test_a_new_client_of_the_embedded_broker_gets_only_what_it_subscribed_to() -> None:
    async with EmbeddedBroker(port=free_port()) as broker, asyncio.timeout(DEADLINE_S):
        first, second = (aiomqtt.Client(broker.address.host, broker.address.port) for _ in range(2))
        async with first:
            await first.subscribe("#")
            await first.publish("retained", b"x", qos=1, retain=True)
            async with second:
                await second.subscribe("other")
                await second.publish("other", b"y")
                assert (await anext(second.messages)).topic.value == "other"


async def test_the_embedded_broker_closes_on_a_packet_over_its_limit() -> None:
    async with (
        EmbeddedBroker() as broker,
        aiomqtt.Client(broker.address.host, broker.address.port) as client,
        asyncio.timeout(DEADLINE_S),
    ):
        await client.publish("fits", bytes(3 << 20), qos=1)
        await client.publish("fits", b"", qos=1)
        too_large = asyncio.create_task(client.publish("too/large", bytes(17 << 20), qos=1))
        with pytest.raises(aiomqtt.MqttError, match="Disconnected"):
            await anext(client.messages)
        too_large.cancel()


@pytest.mark.parametrize("greeting", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x10\xff\xff\xff\xff", b"\x10\x00", bytes(99)])
async def test_whoever_does_not_speak_mqtt_harms_only_itself(greeting: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with EmbeddedBroker(port=free_port()) as broker, asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection(broker.address.host, broker.address.port)
        writer.write(greeting)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        async with aiomqtt.Client(broker.address.host, broker.address.port) as client:
            await client.publish("x", b"y", qos=1)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_port_in_use_is_named(broker: Broker) -> None:
    port = broker.address.port
    for kind in (EmbeddedBroker, Mosquitto):
        if kind is Mosquitto and find_mosquitto() is None:
            continue
        with pytest.raises(ConfigError, match=f"{port}: .*in use.*; choose another, or 0 for any") as caught:
            await kind(port=port).__aenter__()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "port", "reason"),
    [
        ("192.0.2.1", 0, "192.0.2.1:0: not an address of this machine|could not bind"),
        ("127.0.0.1", 65536, "broker port 65536: must be 0 to 65535"),
        ("no such host", 0, "host name not found"),
    ],
)
async def test_where_the_embedded_broker_cannot_listen_is_named(host: str, port: int, reason: str) -> None:
    before = asyncio.all_tasks()
    with pytest.raises(ConfigError, match=reason):
        await EmbeddedBroker(host, port, insecure=True).__aenter__()
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "broker.local"])
def test_beyond_this_machine_the_embedded_broker_wants_a_fleet_or_to_be_told(host: str) -> None:
    login = "lab", "secret"  # which would go over the network in clear text
    for made in (lambda: EmbeddedBroker(host), lambda: EmbeddedBroker(host, 0, *login)):
        with pytest.raises(ConfigError, match=r"read and change everything: .* identity=\.\.\., or insecure=True"):
            made()


async def test_a_missing_amqtt_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "edgepeer.fabric.amqtt_parts", raising=False)
    monkeypatch.setitem(sys.modules, "amqtt.adapters", None)
    with pytest.raises(ConfigError, match=r"pip install 'edgepeer\[broker\]'"):
        await EmbeddedBroker().__aenter__()


async def test_a_broker_open_to_the_network_says_that_links_are_not_encrypted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with EmbeddedBroker():
        assert not caplog.records
    monkeypatch.setattr(broker_module, "is_loopback", lambda host: False)
    async with EmbeddedBroker(port=free_port()) as broker:
        assert f"broker on 127.0.0.1:{broker.address.port}: links to it are not encrypted" in caplog.text


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        *(("127.0.0.1", True), ("127.0.0.9", True), ("::1", True), ("localhost", True)),
        *(("0.0.0.0", False), ("::", False), ("192.168.1.7", False), ("broker.local", False)),
    ],
)
def test_what_counts_as_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


async def test_a_missing_mosquitto_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mosquitto_module.shutil, "which", lambda *_, **__: None)
    assert find_mosquitto() is None
    with pytest.raises(ConfigError, match="mosquitto is not installed: apt install mosquitto"):
        await Mosquitto().__aenter__()


async def test_why_mosquitto_did_not_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed")
    monkeypatch.setattr(Mosquitto, "_configuration", lambda self, home: "no_such_option 1\n")
    with pytest.raises(ConfigError, match=r"mosquitto on port \d+: .*Unknown configuration variable"):
        await Mosquitto().__aenter__()


async def test_mosquitto_ends_where_nobody_waits_for_that() -> None:
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed")
    broker = await Mosquitto().__aenter__()
    process, home = broker._process, broker._home
    assert process is not None
    assert home is not None
    process.send_signal(signal.SIGSTOP)  # it does not end when it is asked to
    leaving = asyncio.create_task(broker.__aexit__(None, None, None))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    try:
        async with asyncio.timeout(DEADLINE_S):
            assert await process.wait() == -signal.SIGKILL
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    assert not Path(home.name).exists()  # noqa: ASYNC240


def test_mosquitto_dies_with_its_parent() -> None:
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed")
    program = """
import asyncio, os
from edgepeer.fabric.mosquitto import Mosquitto
async def main():
    async with Mosquitto() as broker:
        print(broker._process.pid, flush=True)
        os.kill(os.getpid(), 9)
asyncio.run(main())
"""
    parent = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    pid = int(parent.stdout)
    try:
        child = psutil.Process(pid)
        if child.name() == "mosquitto":
            child.wait(timeout=DEADLINE_S)
    except psutil.NoSuchProcess:
        pass


def test_amqtt_comes_only_with_a_broker() -> None:
    program = "import sys, edgepeer.fabric.broker, edgepeer.fabric.client; sys.exit('amqtt' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=DEADLINE_S, check=False).returncode == 0


def test_the_embedded_broker_warns_of_nothing() -> None:
    program = """
import asyncio, warnings
from edgepeer.fabric.broker import EmbeddedBroker
async def main():
    async with EmbeddedBroker(username="a", password="b"):
        pass
asyncio.run(main())
"""
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, timeout=DEADLINE_S, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")


def test_find_mosquitto_gives_a_program() -> None:
    found = find_mosquitto()
    assert found is None or Path(found).is_file()


def test_what_is_still_to_be_said_on_a_connection_that_is_gone_is_no_surprise() -> None:
    """amqtt handles a reset; of a transport that is closed uvloop says RuntimeError, which nobody would hear."""

    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            out = Writer(writer)
            writer.transport.abort()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)
            with pytest.raises(ConnectionResetError):
                out.write(b"late")

    uvloop.run(main())


async def test_a_client_whose_machine_has_lost_its_power_is_let_go() -> None:
    """What TCP says in the end is an error of the same kind as that of a wait which was too long: amqtt would read
    again, at once, for ever."""
    async with asyncio.timeout(DEADLINE_S), EmbeddedBroker() as broker:
        reader, writer = await asyncio.open_connection(broker.address.host, broker.address.port)
        writer.write(bytes.fromhex("100d00044d5154540402003c000178"))  # CONNECT, as x
        assert (await reader.readexactly(4))[0] == 0x20
        own = writer.get_extra_info("sockname")
        others = [each for each in gc.get_objects() if isinstance(each, asyncio.StreamReader) and each is not reader]
        theirs = [each for each in others if (way := each._transport) and way.get_extra_info("peername") == own]
        assert len(theirs) == 1
        theirs[0].set_exception(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))
        assert await reader.read() == b""
        writer.close()


def packet(kind: int, body: bytes) -> bytes:
    return bytes([kind, len(body)]) + body


async def client(
    broker: EmbeddedBroker, name: bytes, keepalive: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(broker.address.host, broker.address.port)
    writer.write(packet(0x10, b"\0\4MQTT\4\2" + keepalive.to_bytes(2, "big") + len(name).to_bytes(2, "big") + name))
    assert (await reader.readexactly(4))[0] == 0x20
    return reader, writer


async def test_who_says_what_mqtt_does_not_have_is_hung_up_on_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    """Of an error that nobody handles asyncio writes a dozen lines: seven bytes a packet would fill a disk."""
    caplog.set_level(logging.WARNING)
    async with asyncio.timeout(DEADLINE_S), EmbeddedBroker() as broker:
        for number in range(3):
            reader, writer = await client(broker, b"x%d" % number, keepalive=0)
            writer.write(packet(0x36, b"\0\1t\0\1"))  # in QoS 3
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
    gc.collect()
    assert caplog.messages == []


@pytest.mark.parametrize("topic", [b"t/+", b"#"])
async def test_a_will_for_no_topic_is_not_let_in(topic: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """The broker would keep it, and fail to tell of it whoever subscribes."""
    async with asyncio.timeout(DEADLINE_S), EmbeddedBroker() as broker:
        reader, writer = await asyncio.open_connection(broker.address.host, broker.address.port)
        will = len(topic).to_bytes(2, "big") + topic + b"\0\1x"
        writer.write(packet(0x10, b"\0\4MQTT\4\x26\0\0\0\1x" + will))
        assert await reader.read() == b"\x20\2\0\5"
        writer.close()
    assert f"has a will for {topic.decode()!r}, which is no topic" in caplog.text


async def who_does_not_read(broker: EmbeddedBroker) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Has subscribed to t."""
    reader, writer = await client(broker, b"slow", keepalive=0)
    writer.write(packet(0x82, b"\0\1\0\1t\0"))
    assert await reader.readexactly(5)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    return reader, writer


def long_message(size: int) -> bytes:
    """To t."""
    body = b"\0\1t" + bytes(size)
    return bytes([0x30, len(body) & 0x7F | 0x80, len(body) >> 7 & 0x7F | 0x80, len(body) >> 14]) + body


async def test_a_client_whose_process_stands_still_is_let_go() -> None:
    """Its machine takes what comes, and answers TCP's questions whether it is there."""
    async with asyncio.timeout(DEADLINE_S), EmbeddedBroker() as broker:
        reader, writer = await client(broker, b"x", keepalive=1)
        writer.write(packet(0xC0, b""))
        assert await reader.readexactly(2) == packet(0xD0, b"")
        began = asyncio.get_running_loop().time()
        assert await reader.read() == b""
        assert asyncio.get_running_loop().time() - began > 1.0
        writer.close()


async def test_what_others_have_read_is_not_kept_for_one_who_is_stuck() -> None:
    size, count = 120_000, 600  # more than all buffers on the way may hold
    async with asyncio.timeout(DEADLINE_S), EmbeddedBroker() as broker:
        _, stuck = await who_does_not_read(broker)
        reader, writer = await client(broker, b"quick", keepalive=0)
        writer.write(packet(0x82, b"\0\1\0\1u\0"))
        assert await reader.readexactly(5)
        for _ in range(count):
            writer.write(long_message(size))
        for number in range(count):  # these are behind them, and all come
            writer.write(packet(0x30, b"\0\1u%d" % number))
        for number in range(count):
            assert await reader.readexactly(len(wanted := packet(0x30, b"\0\1u%d" % number))) == wanted
        waiting = broker._broker._tasks_queue
        assert 0 < len(waiting) <= count  # what is for the one, and nothing of the other's
        stuck.transport.abort()
        writer.close()


async def test_who_reads_too_slowly_for_what_is_said_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 100_000
    monkeypatch.setattr(amqtt_parts, "MAX_WAITING_BYTES", 20 * size)
    async with asyncio.timeout(DEADLINE_S), EmbeddedBroker() as broker:
        slow_reader, slow = await who_does_not_read(broker)
        reader, writer = await client(broker, b"quick", keepalive=0)
        for _ in range(600):  # more than all buffers on the way may hold
            writer.write(long_message(size))
        writer.write(packet(0xC0, b""))
        assert await reader.readexactly(2) == packet(0xD0, b"")  # all of it has been taken
        slow.transport.resume_reading()  # type: ignore[attr-defined]
        with contextlib.suppress(ConnectionResetError):
            while await slow_reader.read(1 << 20):
                pass
        slow.close()
        writer.close()
