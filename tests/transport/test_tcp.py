"""TCP in particular: chopped and hostile bytes, what a bad frame costs, addresses."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import mmap
import socket
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st
from speech import BYTES, SPEECH, WANTED, Ear, FakeSocketTransport, payload_of, vector

from edgepeer.complaints import Complaints
from edgepeer.elapsed import elapsed
from edgepeer.errors import ConfigError
from edgepeer.ids import PeerId
from edgepeer.peer import api
from edgepeer.protocol import effects as fx
from edgepeer.protocol.catchup import Catchup
from edgepeer.protocol.limits import Limits
from edgepeer.sockets import borrowed, is_loopback
from edgepeer.transport import connection, options, tcp
from edgepeer.transport.base import Channel, Traffic
from edgepeer.transport.connection import Shared
from edgepeer.transport.options import parse_address
from edgepeer.transport.tcp import TcpTransport
from edgepeer.transport.window import ReceiveWindows
from edgepeer.wire.codec import FRAME_VERSION, PRELUDE, encode
from edgepeer.wire.frames import Have, Ping, Reduce, Result, State

PATIENCE_S = 60.0


def feed(chunks: list[bytes]) -> tuple[Ear, Traffic]:
    """Drive the protocol object as an event loop would, but with reads of our own choosing."""
    ear, shared = Ear(), Shared(Complaints(logging.getLogger("edgepeer")))
    channel = tcp.PlainConnection(lambda _: ear, shared)
    channel.connection_made(FakeSocketTransport())
    for chunk in chunks:
        while chunk:
            room = channel.get_buffer(-1)
            assert len(room) > 0
            taken = min(len(room), len(chunk))
            room[:taken] = chunk[:taken]
            channel.buffer_updated(taken)
            chunk = chunk[taken:]
    return ear, shared.traffic


async def test_frames_split_at_every_byte_boundary() -> None:
    for at in range(len(BYTES) + 1):
        ear, traffic = feed([BYTES[:at], BYTES[at:]])
        assert payload_of(ear.heard) == WANTED
        assert traffic.bytes_received == len(BYTES)


async def test_one_byte_at_a_time() -> None:
    ear, _ = feed([bytes([byte]) for byte in BYTES])
    assert payload_of(ear.heard) == WANTED


async def test_all_at_once_and_many_times_over() -> None:
    ear, _ = feed([BYTES * 200])
    assert payload_of(ear.heard) == WANTED * 200


def arrives(channel: tcp.PlainConnection, data: bytes) -> None:
    """As much at a time as there is room for."""
    while data:
        room = channel.get_buffer(-1)
        taken = min(len(room), len(data))
        room[:taken] = data[:taken]
        channel.buffer_updated(taken)
        data = data[taken:]


async def test_a_part_of_a_payload_is_progress_and_nothing_else_is() -> None:
    ear = Ear()
    channel = tcp.PlainConnection(lambda _: ear, Shared(Complaints(logging.getLogger("edgepeer"))))
    channel.connection_made(FakeSocketTransport())
    arrive = partial(arrives, channel)
    frame, payload = vector(100_000)
    assert not channel.progressed()
    arrive(encode(frame, len(payload)))
    assert not channel.progressed()
    for at in range(0, len(payload) - 50_000, 50_000):
        arrive(payload[at : at + 50_000])
        assert channel.progressed()
        assert not channel.progressed()  # since it was asked last
    arrive(payload[-50_000:])
    assert len(ear.heard) == 1
    assert not channel.progressed()  # that is a whole frame, of which the receiver has heard
    arrive(encode(Ping(waiting=False)))
    assert not channel.progressed()


async def test_what_the_kernel_keeps_until_there_is_more_of_it_is_progress_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that is suddenly slow may take a second for what came in a millisecond: whoever sends is alive."""
    monkeypatch.setattr(connection, "tune", lambda sock: True)
    monkeypatch.setattr(ReceiveWindows, "portion", lambda self, sock: 12_000)
    channels: list[Channel] = []

    def accept(channel: Channel) -> Ear:
        channels.append(channel)
        return Ear(channel)

    async def progress() -> float:
        async with asyncio.timeout(PATIENCE_S):
            while not channels or (at := channels[0].progressed()) is None:  # noqa: ASYNC110
                await asyncio.sleep(0)
        return at

    listener = await TcpTransport().listen("127.0.0.1:0", accept)
    with socket.create_connection(parse_address(listener.address)) as sender:
        frame, payload = vector(100_000)
        sender.sendall(encode(frame, len(payload)) + payload[:13_000])
        first = await progress()
        reader = channels[0]._reader  # type: ignore[attr-defined]  # what it has been woken up for
        for _ in range(3):
            missing = reader.missing
            sender.sendall(bytes(100))
            began, first = first, await progress()
            assert began < first <= elapsed()
            assert reader.missing >= missing - 13_000
        assert reader.missing > len(payload) - 13_000 - 300  # not for this
    channels[0].abort("the test is over")
    await listener.close()


@given(cuts=st.lists(st.integers(0, len(BYTES) * 3), max_size=30))
def test_any_cuts(cuts: list[int]) -> None:
    async def story() -> None:
        edges = [0, *sorted(cuts), len(BYTES) * 3]
        stream = BYTES * 3
        ear, _ = feed([stream[a:b] for a, b in itertools.pairwise(edges)])
        assert payload_of(ear.heard) == WANTED * 3

    asyncio.run(story())


@given(noise=st.binary(max_size=300), at=st.integers(0, len(BYTES)))
def test_whatever_comes_the_channel_never_raises(noise: bytes, at: int) -> None:
    async def story() -> None:
        ear, traffic = feed([BYTES[:at] + noise + BYTES[at:]])
        assert traffic.frames_rejected <= 1
        assert len(ear.heard) <= len(WANTED) + len(noise)

    asyncio.run(story())


# -- over a real socket ------------------------------------------------------------------------------------


def header(
    kind: int = 1, version: int = FRAME_VERSION, header_bytes: int = 4, payload_bytes: int = 0, magic: bytes = b"EP"
) -> bytes:
    return PRELUDE.pack(magic, version, kind, header_bytes, payload_bytes)


HOSTILE: dict[str, tuple[bytes, str]] = {
    "garbage": (b"GET / HTTP/1.1\r\n\r\n", "not an edgepeer frame"),
    "another version": (header(version=9) + b"\0" * 4, "version 9"),
    "unknown kind": (header(kind=200) + b"\0" * 4, "unknown frame kind 200"),
    "oversized payload": (header(kind=5, payload_bytes=0xFFFFFFFF) + b"\0" * 4, "limit"),
    "payload where none belongs": (header(kind=1, payload_bytes=10) + b"\0" * 4, "limit 0"),
    "header of garbage": (header(kind=1) + b"\xc1\xc1\xc1\xc1", "Hello header"),
    "header of wrong fields": (header(kind=1) + b"\x93\1\2\3", "Hello header"),
}


@pytest.mark.parametrize("what", sorted(HOSTILE))
async def test_a_bad_frame_costs_the_connection_and_nothing_else(what: str, caplog: pytest.LogCaptureFixture) -> None:
    bad, reason = HOSTILE[what]
    transport = tcp.TcpTransport()
    ears: list[Ear] = []

    def accept(channel: Channel) -> Ear:
        ears.append(Ear())
        return ears[-1]

    listener = await transport.listen("127.0.0.1:0", accept)
    host, port = options.parse_address(listener.address)
    good = await tcp.TcpTransport().dial(listener.address, Ear, timeout=5)
    with caplog.at_level(logging.WARNING):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(encode(Ping(waiting=False)) + bad + b"more" * 1000)
        async with asyncio.timeout(PATIENCE_S):
            with_bye = await reader.read(1 << 16)
            await ears[1].gone.wait()
        writer.close()
    assert [frame for frame, _ in ears[1].heard] == [Ping(waiting=False)]
    assert transport.traffic.frames_rejected == 1
    assert reason in ears[1].reasons[0]
    assert reason.encode()[:20] in with_bye  # the other end is told why
    (line,) = [record.getMessage() for record in caplog.records]
    assert reason in line
    assert "127.0.0.1" in line
    good.send(Ping(waiting=True))
    await _until(lambda: bool(ears[0].heard))
    assert ears[0].heard == [(Ping(waiting=True), b"")] or ears[0].heard[0][0] == Ping(waiting=True)
    good.abort("done")
    await listener.close()
    await _until(lambda: bool(ears[0].reasons))


@pytest.mark.parametrize("at", [0, 5, 12, len(encode(SPEECH[0][0])) + 20])
async def test_a_truncated_frame_is_just_a_closed_connection(at: int) -> None:
    transport = tcp.TcpTransport()
    ears: list[Ear] = []

    def accept(channel: Channel) -> Ear:
        ears.append(Ear())
        return ears[-1]

    listener = await transport.listen("127.0.0.1:0", accept)
    _, writer = await asyncio.open_connection(*options.parse_address(listener.address))
    writer.write(BYTES[:at])
    writer.close()
    await _until(lambda: bool(ears and ears[0].reasons))
    assert transport.traffic.frames_rejected == 0
    await listener.close()


async def test_a_connection_that_is_not_read_does_not_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LINGER_S", 0.05)
    ears: list[Ear] = []
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        channel = await tcp.TcpTransport().dial(
            options.format_address(deaf.getsockname()), lambda _: ears.append(Ear()) or ears[-1], timeout=5
        )
        channel.send(State(run="r", round=1, offset=0, total=64 << 20), bytes(64 << 20))
        channel.close("enough")
        await _until(lambda: bool(ears[0].reasons))
        assert ears[0].reasons == ["enough"]


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_who_closes_loses_nothing_where_the_other_end_speaks_meanwhile(run: Callable[[Any], object]) -> None:
    """A kernel that closes with something unread resets the connection, and drops what it has yet to send."""

    async def story() -> None:
        loop, transport, ears, size = asyncio.get_running_loop(), tcp.TcpTransport(), list[Ear](), 8 << 20
        with socket.create_server(("127.0.0.1", 0)) as server:
            channel = await transport.dial(
                options.format_address(server.getsockname()), lambda _: ears.append(Ear()) or ears[-1], timeout=5
            )
            other, _ = server.accept()
        with other:
            other.setblocking(False)
            channel.send(State(run="r", round=1, offset=0, total=size), bytes(size))
            channel.close("enough")
            await loop.sock_sendall(other, encode(Ping(waiting=False)))
            await asyncio.sleep(0.05)
            came = 0
            while data := await asyncio.wait_for(loop.sock_recv(other, 64 << 10), PATIENCE_S):
                came += len(data)
            assert came == transport.traffic.bytes_sent > size
        await _until(lambda: bool(ears[0].reasons))
        assert ears[0].reasons == ["enough"]

    run(story())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_both_ends_may_close_at_once(run: Callable[[Any], object]) -> None:
    """What is said last to who has closed is answered by a reset, before this end can say that it has said all."""

    async def story() -> None:
        loop, ears = asyncio.get_running_loop(), list[Ear]()
        with socket.create_server(("127.0.0.1", 0)) as server:
            channel = await tcp.TcpTransport().dial(
                options.format_address(server.getsockname()), lambda _: ears.append(Ear()) or ears[-1], timeout=5
            )
            other, _ = server.accept()
        other.setblocking(False)
        size = 2 * connection.LITTLE_BYTES
        channel.send(State(run="r", round=1, offset=0, total=size), bytes(size))
        came = 0
        while came < size:
            came += len(await asyncio.wait_for(loop.sock_recv(other, 64 << 10), PATIENCE_S))
        other.close()
        channel.close("enough")
        await _until(lambda: bool(ears[0].reasons))
        assert ears[0].reasons == ["enough"]

    run(story())


async def test_too_large_a_backlog_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "BACKLOG_LIMIT_BYTES", 1 << 20)
    ears: list[Ear] = []
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        channel = await tcp.TcpTransport().dial(
            options.format_address(deaf.getsockname()), lambda _: ears.append(Ear()) or ears[-1], timeout=5
        )
        channel.send(State(run="r", round=1, offset=0, total=64 << 20), bytes(64 << 20))
        await _until(lambda: bool(ears[0].reasons))
        assert ears[0].reasons == ["the other end does not read"]


async def test_many_small_frames_that_are_not_read_end_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those few bytes each takes hundreds."""
    monkeypatch.setattr(connection, "MOST_LITTLE", 2000)  # asyncio of Python 3.12 counts all that waits at each write
    ears: list[Ear] = []
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        channel = await tcp.TcpTransport().dial(
            options.format_address(deaf.getsockname()), lambda _: ears.append(Ear()) or ears[-1], timeout=5
        )
        channel.send(State(run="r", round=1, offset=0, total=64 << 20), bytes(64 << 20))
        for _ in range(2 * connection.MOST_LITTLE - 1):
            channel.send(Have(epoch=1, round=1))
        assert ears[0].reasons == []
        channel.send(Have(epoch=1, round=1))
        await _until(lambda: bool(ears[0].reasons))
        assert ears[0].reasons == ["the other end does not read"]


async def test_as_many_that_are_read_do_not() -> None:
    ears: list[Ear] = []
    transport = tcp.TcpTransport()
    listener = await transport.listen("127.0.0.1:0", lambda _: ears.append(Ear()) or ears[-1])
    channel = await transport.dial(listener.address, lambda _: ears.append(Ear()) or ears[-1], timeout=5)
    for _ in range(5):
        for _ in range(connection.MOST_LITTLE):
            channel.send(Have(epoch=1, round=1))
        await _until(lambda: transport.traffic.bytes_received == transport.traffic.bytes_sent)
    assert [ear.reasons for ear in ears] == [[], []]
    channel.abort("enough")
    await listener.close()


def test_the_largest_state_has_room_beside_the_largest_vectors() -> None:
    """The protocol queues it as a whole. A connection that did not take that would be closed, with the rounds on it,
    and again and again: whoever joins could never have the state."""
    uvloop.run(_hand_over_the_largest_state())


async def _hand_over_the_largest_state() -> None:
    limits, sends, ears = Limits(), list[fx.Effect](), list[Ear]()
    memory = mmap.mmap(-1, limits.max_state_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # never written: it
    state = memoryview(memory).toreadonly()  # takes no memory
    Catchup(limits, sends.append).provide(PeerId("b"), "r", 1, state, 0.0)
    vector = state[: limits.max_vector_bytes]
    with socket.create_server(("127.0.0.1", 0)) as busy:
        channel = await tcp.TcpTransport().dial(
            options.format_address(busy.getsockname()), lambda _: ears.append(Ear()) or ears[-1], timeout=5
        )
        for frame in (
            Reduce(epoch=1, round=1, offset=0, total=len(vector) // 4, dtype="<f4", contributors=b"\x01", weight=1.0),
            Result(epoch=1, round=1, offset=0, total=len(vector) // 4, dtype="<f4"),
        ):
            channel.send(frame, vector)
        for send in sends:
            assert isinstance(send, fx.Send)
            channel.send(send.frame, send.payload)
        channel.abort("enough")
        await _until(lambda: bool(ears[0].reasons))
    assert ears[0].reasons == ["enough"]


def test_a_connection_whose_dialling_is_cancelled_is_closed() -> None:
    """uvloop closes the socket of a call that is cancelled, and tells its protocol nothing of it."""
    uvloop.run(_cancel_a_dial())


async def _cancel_a_dial() -> None:
    transport = tcp.TcpTransport()
    listener = await transport.listen("127.0.0.1:0", Ear)
    made: list[tuple[Channel, Ear]] = []

    def accept(channel: Channel) -> Ear:
        made.append((channel, Ear(channel)))
        dialling.cancel()
        return made[0][1]

    dialling = asyncio.create_task(transport.dial(listener.address, accept, timeout=5.0))
    with pytest.raises(asyncio.CancelledError):
        await dialling
    ((channel, ear),) = made
    assert ear.reasons == ["no longer dialled"]
    channel.send(Ping(waiting=False))
    channel.close("over")
    channel.abort("over")
    assert len(ear.reasons) == 1
    await listener.close()


def test_the_socket_of_a_connection_that_ends_as_it_is_made_is_closed_once() -> None:
    """uvloop closes it, and then takes it on: by when Python's object closes it again, its number may be another's."""
    uvloop.run(_end_as_it_is_made())


async def _end_as_it_is_made() -> None:
    def accept(channel: Channel) -> Ear:
        channel.abort("not you")
        return Ear(channel)

    transport = tcp.TcpTransport()
    listener = await transport.listen("127.0.0.1:0", Ear)
    await transport.dial(listener.address, accept, timeout=5.0)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        gc.collect()
    assert not warned
    await listener.close()


async def test_dialling_somebody_who_does_not_answer_times_out() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        waiting = []
        for _ in range(4):  # fill the queue of connections that nobody accepts
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(address)
            waiting.append(one)
        try:
            with pytest.raises(TimeoutError):
                await tcp.TcpTransport().dial(f"127.0.0.1:{address[1]}", lambda _: Ear(), timeout=0.2)
        finally:
            for one in waiting:
                one.close()


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


# -- addresses ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:80", ("::1", 80)),
        (":7000", ("0.0.0.0", 7000)),
        ("pi.local:65535", ("pi.local", 65535)),
        ("bücher.example.:80", ("bücher.example.", 80)),
        ("[fe80::1%eth0]:80", ("fe80::1%eth0", 80)),
    ],
)
def test_addresses(text: str, wanted: tuple[str, int]) -> None:
    assert options.parse_address(text) == wanted


@pytest.mark.parametrize("text", ["", "host", "host:", "host:x", "host:-1", "host:65536", "host:١"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="must be host:port"):
        options.parse_address(text)


@pytest.mark.parametrize("text", ["::1:7700", "fe80::1:80", "[::1:80", "::1]:80"])
def test_addresses_of_ipv6_without_brackets(text: str) -> None:
    with pytest.raises(ConfigError, match="stands in brackets"):
        options.parse_address(text)


NOBODY: Final = ["a..b:80", f"{64 * 'x'}.local:80", ".:80", "\ud800:80", "a\0b:80", f"{60 * 'ü'}:80"]
"""Loops raise a ValueError where they should look such a host up."""


@pytest.mark.parametrize("text", NOBODY)
def test_hosts_that_can_be_none(text: str) -> None:
    with pytest.raises(ConfigError, match="its host can be none"):
        options.parse_address(text)


@pytest.mark.parametrize("text", ["host", *NOBODY])
async def test_an_address_that_is_none_is_one_where_nobody_answers(text: str) -> None:
    """Others say where they are: what they say must not end who believes them."""
    with pytest.raises(OSError, match="address"):
        await tcp.TcpTransport().dial(text, Ear, timeout=5)


@pytest.mark.parametrize(
    ("own", "other", "shared"),
    [
        ("127.0.0.2", "127.0.0.3", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("::1", "::1", True),
        ("127.0.0.1", "::1", False),
        ("127.0.0.1", "192.0.2.1", False),
        ("192.0.2.1", "127.0.0.1", False),
        ("0.0.0.0", "127.0.0.1", False),
        ("", "127.0.0.1", False),
        ("localhost", "127.0.0.1", False),
    ],
)
def test_which_hosts_are_on_one_loopback(own: str, other: str, shared: bool) -> None:
    assert options.share_loopback(own, other) is shared


async def test_peers_on_one_loopback_are_told_apart_by_their_addresses() -> None:
    """Who listens at 127.0.0.2 also calls from there."""
    ears: list[tuple[str, Ear]] = []

    def accept(channel: Channel) -> Ear:
        ears.append((channel.remote, Ear(channel)))
        return ears[-1][1]

    here, there = tcp.TcpTransport(), tcp.TcpTransport()
    listeners = [await here.listen("127.0.0.2:0", accept), await there.listen("127.0.0.3:0", accept)]
    channel = await here.dial(listeners[1].address, lambda _: Ear(), timeout=5)
    await _until(lambda: bool(ears))
    channel.abort("the test is over")
    await _until(lambda: bool(ears[0][1].reasons))
    for listener in listeners:
        await listener.close()
    assert ears[0][0].startswith("127.0.0.2:")


def test_nothing_listens_beyond_loopback_without_being_told() -> None:
    default = api.Peer.__init__.__kwdefaults__["listen"]
    assert is_loopback(options.parse_address(default)[0])


def test_a_link_local_listener_has_nothing_to_advertise() -> None:
    with pytest.raises(ConfigError, match=r"link-local.*listen on \[::\]:7000, or say what to advertise"):
        options.advertised("[fe80::1]:7000")


def test_a_listener_on_one_address_advertises_just_that() -> None:
    assert options.advertised("127.0.0.1:7000") == ("127.0.0.1:7000",)


def test_a_borrowed_socket_stays_open_and_of_one_that_is_closed_there_is_none() -> None:
    of = socket.socket()
    lent = borrowed(of)
    assert lent is not None
    lent.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    assert of.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    del lent
    assert of.getsockname()
    of.close()
    assert borrowed(of) is None


class Network(FakeSocketTransport):
    """A connection with another machine, by a kernel that writes down when it is told to acknowledge what has come."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self if name == "socket" else super().get_extra_info(name, default)

    def setsockopt(self, level: int, option: int, value: int) -> None:
        if (level, option, value) == (socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1):
            self.asked += 1
            if self.closed:
                raise OSError(9, "Bad file descriptor")


async def test_what_is_read_to_the_end_of_a_frame_is_acknowledged_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the other end would count how long it was held back to the way there and back. Not so where there is none."""
    heard: list[Network] = []
    for far in (True, False):
        monkeypatch.setattr(connection, "tune", lambda _, far=far: far)
        monkeypatch.setattr(connection, "borrowed", lambda sock: sock)
        network, ear = Network(), Ear()
        heard.append(network)
        channel = tcp.PlainConnection(lambda _, ear=ear: ear, Shared(Complaints(logging.getLogger("edgepeer"))))
        channel.connection_made(network)
        for step, data in enumerate([encode(Ping(waiting=False)), BYTES[:-1], BYTES[-1:]]):
            arrives(channel, data)
            if step == 0:
                assert network.asked == far
        assert len(ear.heard) == 1 + len(WANTED)
        network.closed = True  # as it may be before anybody has heard of it
        channel.get_buffer(-1)[:1] = BYTES[:1]
        channel.buffer_updated(1)
    assert heard[0].asked > 1
    assert heard[1].asked == 0


def test_a_listener_on_all_addresses_advertises_those_that_others_can_reach_first() -> None:
    found = options.advertised("0.0.0.0:7000")
    assert found[-1] == "127.0.0.1:7000"
    assert 1 <= len(found) <= 16
    assert all(address.endswith(":7000") for address in found)


def test_a_connection_that_is_gone_is_not_tuned() -> None:
    """The other end may have ended between accept and the first look at the socket."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        with pytest.raises(OSError, match="not connected"):
            sock.getpeername()
        options.tune(sock)
