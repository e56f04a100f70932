"""Sealed channels in particular: whatever is done to their bytes, and who may be half-way in."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import logging
import re
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from fleets import Fleet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from speech import BYTES, PATIENCE_S, SPEECH, WANTED, Ear, FakeSocketTransport, payload_of, until, vector

from edgepeer.complaints import Complaints
from edgepeer.transport import connection, door, options, secure
from edgepeer.transport.base import Channel
from edgepeer.transport.connection import Shared
from edgepeer.transport.records import MOST_BYTES
from edgepeer.transport.secure import SecureConnection, SecureTransport
from edgepeer.transport.tcp import TcpTransport
from edgepeer.trust.directory import CERTIFICATE, KEY
from edgepeer.wire.codec import encode
from edgepeer.wire.frames import Have, Hello, Ping, State

PING = Ping(waiting=True)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return Fleet(tmp_path_factory.mktemp("fleet"))


@pytest.fixture(autouse=True)
def _all_complaints(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("edgepeer.complaints._EVERY_S", 0.0)
    caplog.set_level(logging.WARNING, "edgepeer")


# -- the same frames however they are cut up -----------------------------------------------------------------


class FakeSocket(FakeSocketTransport):
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0

    def take(self) -> bytes:
        """What was written since this was last called."""
        written, self.written = self.written, b""
        return written

    def write(self, data: bytes | memoryview) -> None:  # type: ignore[override]
        self.written += bytes(data)


def feed(channel: SecureConnection, data: bytes) -> None:
    """As an event loop would, but with reads of our own choosing."""
    while data:
        room = channel.get_buffer(-1)
        taken = min(len(room), len(data))
        assert taken > 0
        room[:taken] = data[:taken]
        channel.buffer_updated(taken)
        data = data[taken:]


def two_ends(fleet: Fleet) -> tuple[list[SecureConnection], list[FakeSocket], list[Ear]]:
    """A connection without a network, both ends of which have met."""
    ends, sockets, ears = [], [FakeSocket(), FakeSocket()], [Ear(), Ear()]
    for name, dialled, ear, sock in zip(("p1", "p2"), (True, False), ears, sockets, strict=True):
        shared = secure._Fleet(Shared(Complaints(logging.getLogger("edgepeer"))), fleet.member(name))
        ends.append(SecureConnection(lambda _, ear=ear: ear, shared, dialled=dialled))  # type: ignore[misc]
        ends[-1].connection_made(sock)
    while any(end.holder is None for end in ends):
        feed(ends[1], sockets[0].take())
        feed(ends[0], sockets[1].take())
    return ends, sockets, ears


async def spoken(ends: list[SecureConnection], sockets: list[FakeSocket], times: int = 1) -> bytes:
    for frame, payload in SPEECH * times:
        ends[0].send(frame, payload)
    await until(lambda: not ends[0]._waiting)
    return sockets[0].take()


async def test_sealed_frames_split_at_every_byte_boundary(fleet: Fleet) -> None:
    ends, sockets, ears = two_ends(fleet)
    for at in range(len(BYTES)):
        ears[1].heard.clear()
        said = await spoken(ends, sockets)
        feed(ends[1], said[:at])
        feed(ends[1], said[at:])
        assert payload_of(ears[1].heard) == WANTED
    assert len(said) < len(BYTES) + 40


async def test_one_byte_at_a_time(fleet: Fleet) -> None:
    ends, sockets, ears = two_ends(fleet)
    for byte in await spoken(ends, sockets, 3):
        feed(ends[1], bytes([byte]))
    assert payload_of(ears[1].heard) == WANTED * 3


async def test_who_closes_has_room_for_whatever_still_comes(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """While what is queued goes out: a loop that finds no room ends the connection at once."""
    ends, sockets, ears = two_ends(fleet)
    for _ in range(20):
        ends[0].send(*vector(20_000))
    await until(lambda: not ends[0]._waiting)
    said = sockets[0].take()
    feed(ends[1], said[: 100 << 10])
    monkeypatch.setattr(ears[1], "received", lambda *_: ends[1].close("enough"))
    monkeypatch.setattr(sockets[1], "get_write_buffer_size", lambda: 1)  # it is not read
    feed(ends[1], said[100 << 10 :])
    assert not sockets[1].closed


async def test_who_is_closed_for_what_it_says_may_say_more_of_it(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it does not read why: what it has said fills all the room there is."""
    ends, sockets, _ = two_ends(fleet)
    monkeypatch.setattr(sockets[1], "get_write_buffer_size", lambda: 1)
    feed(ends[1], bytes(len(ends[1].get_buffer(-1))))
    assert ends[1]._traffic.frames_rejected == 1
    feed(ends[1], b"and so on")
    assert not sockets[1].closed


@pytest.mark.parametrize("broken", ["by the kernel", "by us"])
async def test_nothing_is_sealed_for_a_connection_that_is_gone(fleet: Fleet, broken: str) -> None:
    """The kernel says so when it is given something, and loops tell of it a turn later."""
    ends, sockets, _ = two_ends(fleet)
    writes = []

    def write(data: bytes | memoryview) -> None:
        writes.append(len(data))
        sockets[0].abort()

    sockets[0].write = write  # type: ignore[method-assign]
    ends[0].send(*vector(1 << 20))
    if broken == "by us":
        ends[0].abort("enough")
    await until(lambda: not ends[0]._scheduled)
    assert len(writes) == (broken == "by the kernel")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.sampled_from([1, 100, 1024, 1025, 16_384, 16_385, 40_000, 100_000]), min_size=1, max_size=8),
    cuts=st.lists(st.integers(0, 200_000), max_size=20),
)
def test_any_frames_in_any_cuts(fleet: Fleet, sizes: list[int], cuts: list[int]) -> None:
    """Records of many frames, frames of many records, and reads of anything."""

    async def story() -> None:
        ends, sockets, ears = two_ends(fleet)
        for size in sizes:
            ends[0].send(*vector(size))
            ends[0].send(PING)
        await until(lambda: not ends[0]._waiting)
        said = sockets[0].take()
        edges = [0, *sorted(min(cut, len(said)) for cut in cuts), len(said)]
        for start, end in itertools.pairwise(edges):
            feed(ends[1], said[start:end])
        wanted = [frame for size in sizes for frame in (vector(size), (PING, b""))]
        assert payload_of(ears[1].heard) == wanted
        assert ends[1]._traffic.frames_rejected == 0

    asyncio.run(story())


async def test_payloads_come_into_the_receivers_memory_without_another_copy(fleet: Fleet) -> None:
    """Those that begin with a record and end with one, as our own sender makes them."""
    ends, sockets, ears = two_ends(fleet)
    ends[0].send(*vector(100_000))
    await until(lambda: not ends[0]._waiting)
    rooms: list[int] = []
    met = ends[1]._met
    assert met is not None
    opens = met.opener.open

    class Watched:
        def open(self, record: memoryview, into: memoryview) -> None:
            rooms.append(len(into) if into.obj is ears[1].room else 0)
            opens(record, into)

    object.__setattr__(met, "opener", Watched())
    feed(ends[1], sockets[0].take())
    assert rooms == [0, *[MOST_BYTES] * 6, 400_000 - 6 * MOST_BYTES]
    assert payload_of(ears[1].heard) == [vector(100_000)]


async def test_a_part_of_a_payload_is_progress_even_if_its_record_is_not_whole(fleet: Fleet) -> None:
    ends, sockets, _ = two_ends(fleet)
    ends[0].send(*vector(100_000))
    await until(lambda: not ends[0]._waiting)
    said = sockets[0].take()
    assert ends[1].progressed() is None
    for at in range(0, 400_000, 50_000):
        feed(ends[1], said[at : at + 50_000])
        assert ends[1].progressed()
        assert ends[1].progressed() is None
    feed(ends[1], said[400_000:])
    assert ends[1].progressed() is None


async def test_small_frames_go_together(fleet: Fleet) -> None:
    ends, sockets, ears = two_ends(fleet)
    for _ in range(100):
        ends[0].send(PING)
    await until(lambda: not ends[0]._waiting)
    said = sockets[0].take()
    assert len(said) < 100 * len(encode(PING)) + 50
    feed(ends[1], said)
    assert [frame for frame, _ in ears[1].heard] == [PING] * 100


# -- whatever is done to the bytes on their way --------------------------------------------------------------


@dataclass
class Between:
    """Whoever sits between a peer that has dialled and one that listens, and passes on what each says."""

    said: dict[str, bytes] = field(default_factory=lambda: {"dialler": b"", "listener": b""})
    to: dict[str, asyncio.StreamWriter] = field(default_factory=dict)
    held: bool = False
    """Passes on nothing any more, and only listens."""
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str) -> None:
        there_reader, there_writer = await asyncio.open_connection(*options.parse_address(address))
        self.to = {"dialler": writer, "listener": there_writer}
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(
                self._pass("dialler", reader, there_writer), self._pass("listener", there_reader, writer)
            )
        self.over.set()

    async def _pass(self, who: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            self.said[who] += data
            if not self.held:
                writer.write(data)
        writer.close()


@dataclass
class Tapped:
    between: Between
    here: Ear
    there: Ear
    channel: Channel
    transports: tuple[SecureTransport, SecureTransport]


@contextlib.asynccontextmanager
async def tapped(fleet: Fleet) -> AsyncIterator[Tapped]:
    """Two peers who have met, and somebody between them."""
    between, here, there = Between(), Ear(), Ear()
    transports = SecureTransport(fleet.member("p1")), SecureTransport(fleet.member("p2"))
    listener = await transports[1].listen("127.0.0.1:0", lambda _: there)
    server = await asyncio.start_server(
        lambda reader, writer: between.serve(reader, writer, listener.address), "127.0.0.1", 0
    )
    channel = await transports[0].dial(
        options.format_address(server.sockets[0].getsockname()), lambda _: here, timeout=5
    )
    channel.send(Hello(fabric="greenhouse", peer="p1", incarnation=1))
    await until(lambda: bool(there.heard))
    try:
        yield Tapped(between, here, there, channel, transports)
    finally:
        channel.abort("the test is over")
        for writer in between.to.values():
            writer.transport.abort()
        server.close()
        await listener.close()
        await until(lambda: bool(here.reasons and there.reasons))
        await between.over.wait()
        for transport in transports:
            transport.close()


INJECTED = {
    "a length of 0": (b"\0\0\0\0", "one of kind 0 and 0 bytes is announced"),
    "a tag alone": (b"\0\0\0\x10" + bytes(16), "one of kind 0 and 16 bytes is announced"),
    "a length of 4 GiB": (b"\xff\xff\xff\xff", "one of kind 255 and 16777215 bytes is announced"),
    "a record of zeros": (b"\0\0\0\x20" + bytes(32), "does not open"),
    "a list of zeros": (b"\1\0\0\x20" + bytes(32), "does not open"),
    "a plain frame": (encode(PING), "one of kind 69"),
    "TLS": (b"\x17\x03\x03\x00\x20" + bytes(32), "one of kind 23"),
}


@pytest.mark.parametrize("what", sorted(INJECTED))
async def test_what_is_put_between(fleet: Fleet, what: str, caplog: pytest.LogCaptureFixture) -> None:
    data, reason = INJECTED[what]
    async with tapped(fleet) as pair:
        pair.between.to["listener"].write(data)
        await until(lambda: bool(pair.there.reasons))
        assert len(pair.there.heard) == 1
        assert pair.transports[1].traffic.frames_rejected == 1
    lines = [record.getMessage() for record in caplog.records if "connection with" in record.getMessage()]
    assert len([line for line in lines if reason in line]) == 1, lines


@pytest.mark.parametrize("what", ["repeated", "changed", "left out", "sent back"])
async def test_what_was_said_and_is_meddled_with(fleet: Fleet, what: str, caplog: pytest.LogCaptureFixture) -> None:
    async with tapped(fleet) as pair:
        pair.between.held = True
        before = len(pair.between.said["dialler"])
        pair.channel.send(PING)
        await until(lambda: len(pair.between.said["dialler"]) > before)
        record = pair.between.said["dialler"][before:]
        to = pair.between.to["listener"]
        victim, ear = pair.transports[1], pair.there
        if what == "repeated":
            to.write(record + record)
        elif what == "changed":
            to.write(record[:-1] + bytes([record[-1] ^ 1]))
        elif what == "left out":
            pair.channel.send(PING)
            await until(lambda: len(pair.between.said["dialler"]) > before + len(record))
            to.write(pair.between.said["dialler"][before + len(record) :])
        else:
            victim, ear = pair.transports[0], pair.here
            pair.between.to["dialler"].write(record)
        await until(lambda: bool(ear.reasons))
        assert victim.traffic.frames_rejected == 1
        heard = [frame for frame, _ in ear.heard if frame == PING]
        assert len(heard) == (what == "repeated")
    assert "a sealed record does not open" in caplog.text


async def test_what_is_cut_off_is_just_a_closed_connection(fleet: Fleet) -> None:
    async with tapped(fleet) as pair:
        pair.between.held = True
        before = len(pair.between.said["dialler"])
        pair.channel.send(*vector(1000))
        await until(lambda: len(pair.between.said["dialler"]) > before + 4000)
        pair.between.to["listener"].write(pair.between.said["dialler"][before:-1])
        pair.between.to["listener"].close()
        await until(lambda: bool(pair.there.reasons))
        assert pair.transports[1].traffic.frames_rejected == 0
        assert len(pair.there.heard) == 1


async def test_nobody_between_reads_anything(fleet: Fleet) -> None:
    async with tapped(fleet) as pair:
        pair.channel.send(State(run="r", round=1, offset=0, total=40), b"secret" * 6 + b"1234")
        await until(lambda: len(pair.there.heard) == 2)
        assert b"secret" not in pair.between.said["dialler"]
        assert b"greenhouse" not in pair.between.said["dialler"]
        subject = bytes.fromhex("06035504030c02") + b"p1"  # two bytes alone are met by chance in what is sealed
        assert subject in ssl.PEM_cert_to_DER_cert((fleet.directory("p1") / "certificate.pem").read_text())
        assert subject not in pair.between.said["dialler"]


# -- who is not of the fleet ---------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def listening(fleet: Fleet, name: str = "p2") -> AsyncIterator[tuple[SecureTransport, str, list[Ear]]]:
    transport, ears = SecureTransport(fleet.member(name)), list[Ear]()

    def accept(channel: Channel) -> Ear:
        ears.append(Ear(channel))
        return ears[-1]

    listener = await transport.listen("127.0.0.1:0", accept)
    try:
        yield transport, listener.address, ears
    finally:
        await listener.close()
        transport.close()


async def say(address: str, data: bytes, *, read: bool = True) -> bytes:
    """All that a listener answers until it closes the connection."""
    reader, writer = await asyncio.open_connection(*options.parse_address(address))
    try:
        async with asyncio.timeout(PATIENCE_S):
            writer.write(data)
            with contextlib.suppress(ConnectionError):
                return await reader.read() if read else b""
            return b""
    finally:
        writer.transport.abort()


async def test_a_strangers_plaintext_is_refused_in_one_complaint(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(fleet) as (transport, address, ears):
        assert await say(address, b"GET / HTTP/1.1\r\nHost: greenhouse\r\n\r\n") == b""
        assert transport.traffic.frames_rejected == 1
        assert ears == []  # nothing was made for it
    (line,) = [record.getMessage() for record in caplog.records]
    assert "refused: not TLS: starts with b'GET / HT'" in line


async def test_a_plain_peer_that_dials_one_of_a_fleet_and_the_reverse_are_one_clear_line_each(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    plain, ear = TcpTransport(), Ear()
    async with listening(fleet) as (_, address, _):
        channel = await plain.dial(address, lambda _: ear, timeout=5)
        channel.send(Hello(fabric="greenhouse", peer="p1", incarnation=1))
        await until(lambda: bool(ear.reasons))
    assert ear.reasons == ["closed by the other end: this peer speaks with members of its fleet only: join it"]
    (line,) = [record.getMessage() for record in caplog.records]
    assert "it speaks without encryption: it is in no fleet (see `edgepeer join`), this device is" in line
    caplog.clear()

    def hello(channel: Channel) -> Ear:
        channel.send(Hello(fabric="greenhouse", peer="p3", incarnation=1))
        return Ear(channel)

    listener = await plain.listen("127.0.0.1:0", hello)
    transport = SecureTransport(fleet.member("p2"))
    with pytest.raises(ConnectionError, match="it speaks without encryption"):
        await transport.dial(listener.address, Ear, timeout=5)
    await until(lambda: plain.traffic.frames_rejected == 1)
    await listener.close()
    lines = sorted(record.getMessage() for record in caplog.records)
    assert len(lines) == 2
    assert any("TLS: the other end is in a fleet, this peer isn't (`edgepeer join`)" in line for line in lines)
    assert any("it speaks without encryption" in line for line in lines)


async def test_who_was_refused_hears_why(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    stranger = SecureTransport(fleet.other().member("p1"))
    async with listening(fleet) as (_, address, _):
        with pytest.raises(ConnectionError, match="its certificate is not of this fleet"):
            await stranger.dial(address, Ear, timeout=5)
        await until(lambda: len(caplog.records) == 2)
    for record in caplog.records:
        assert "\n" not in record.getMessage()


async def test_a_device_is_who_it_was_when_it_started(fleet: Fleet) -> None:
    """Its files may be lost, or its directory be made another's while it runs, as by `edgepeer join --again`."""
    for name, spoil in (
        ("careless", lambda there: [each.unlink() for each in there.iterdir()]),
        ("given", lambda there: [shutil.copy(each, there) for each in fleet.member("p9").directory.iterdir()]),
    ):
        identity = fleet.member(name)
        spoil(identity.directory)
        async with listening(fleet) as (listens, address, _):
            channel = await SecureTransport(identity).dial(address, Ear, timeout=5)
            await until(lambda listens=listens: bool(listens._fleet.open))
            assert [each.holder for each in listens._fleet.open] == [identity.holder]
            channel.abort("seen enough")
            await until(lambda listens=listens: not listens._fleet.open)


async def test_a_device_that_can_show_no_certificate_says_so(
    fleet: Fleet, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def show(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    blind, p1 = fleet.member("blind"), fleet.member("p1")
    p1.context(server=False)
    async with listening(fleet) as (_, address, _):
        monkeypatch.setattr("edgepeer.trust.identity.show", show)
        with pytest.raises(ConnectionError, match=r"blind: can't be used any more: no space left"):
            await SecureTransport(blind).dial(address, Ear, timeout=5)
    caplog.clear()
    transport = SecureTransport(blind)
    listener = await transport.listen("127.0.0.1:0", Ear)
    with pytest.raises(ConnectionError):
        await SecureTransport(p1).dial(listener.address, Ear, timeout=5)
    await listener.close()
    assert "blind: can't be used any more: no space left" in caplog.text


async def test_a_dial_that_nobody_answers_times_out(fleet: Fleet) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = options.format_address(deaf.getsockname())
        with pytest.raises(TimeoutError):
            await SecureTransport(fleet.member("p1")).dial(address, Ear, timeout=0.1)


# -- who is half-way in --------------------------------------------------------------------------------------

CLAIMED = b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc"
"""The first 9 bytes of a ClientHello of 16 kB."""


@pytest.mark.parametrize("data", [b"", CLAIMED[:1], CLAIMED])
async def test_who_does_not_show_who_it_is_is_not_waited_for(
    fleet: Fleet, data: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(door, "WITHIN_S", 0.05)
    async with listening(fleet) as (transport, address, ears):
        assert await say(address, data) == b""
        assert transport.traffic.frames_rejected == 1
        assert ears == []
    assert "refused: has not shown within 0.05 s who it is" in caplog.text


class Rude:
    """Connections of somebody who says something, or nothing, and leaves it at that."""

    def __init__(self, address: str) -> None:
        self._address = options.parse_address(address)
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Rude:
        return self

    def __exit__(self, *exception: object) -> None:
        for each in self._sockets:
            each.close()

    def connect(self, data: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
        sock = socket.create_connection(self._address, source_address=(source, 0))
        self._sockets.append(sock)
        sock.sendall(data)
        sock.setblocking(False)
        return sock


def is_closed(sock: socket.socket) -> bool:
    """Whether the other end has closed it."""
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


async def test_a_handshake_of_a_byte_now_and_then_does_not_get_more_time(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "WITHIN_S", 0.2)
    async with listening(fleet) as (transport, address, _), asyncio.timeout(PATIENCE_S):
        with Rude(address) as rude:
            sock, sent = rude.connect(), 0
            while not is_closed(sock):
                with contextlib.suppress(ConnectionError):
                    sock.send((CLAIMED + bytes(1000))[sent : sent + 1])
                sent += 1
                await asyncio.sleep(0.01)  # as slow as that
        assert transport.traffic.frames_rejected == 1


async def test_never_more_than_so_many_are_half_way_in_and_a_member_still_gets_in(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(door, "MOST", 8)
    async with listening(fleet) as (transport, address, ears):
        with Rude(address) as rude:
            sockets = [rude.connect(CLAIMED if number % 2 else b"") for number in range(20)]
            await until(lambda: transport.traffic.frames_rejected == 12)
            assert len(transport._fleet.door) == 8
            await until(lambda: all(map(is_closed, sockets[:12])))  # those that had been there for longest
            assert not any(map(is_closed, sockets[12:]))
            channel = await SecureTransport(fleet.member("p1")).dial(address, Ear, timeout=5)
            await until(lambda: len(ears) == 1)
            assert len(transport._fleet.door) == 7
            channel.abort("enough")
            await until(lambda: bool(ears[0].reasons))
    assert "8 others have not shown yet who they are" in caplog.text


async def test_a_fleet_behind_one_address_gets_in_at_once(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it may dial in the same moment: nobody has to give way in the middle of a handshake."""
    monkeypatch.setattr(door, "is_loopback", lambda host: False)
    async with listening(fleet) as (transport, address, ears), asyncio.timeout(PATIENCE_S):
        dials = [SecureTransport(fleet.member(f"p{number}")).dial(address, Ear, timeout=30) for number in range(1, 25)]
        channels = await asyncio.gather(*dials)
        assert transport.traffic.frames_rejected == 0
        await until(lambda: len(ears) == 24)
        for channel in channels:
            channel.abort("enough")
        await until(lambda: all(ear.reasons for ear in ears))


@pytest.mark.parametrize(
    ("hosts", "gone"),
    [
        (["192.0.2.1"] * 9, [0]),
        (["192.0.2.1"] * 3 + ["192.0.2.2"] * 5 + ["192.0.2.1"], [3]),
        (["192.0.2.1"] + [f"2001:db8::{number}" for number in range(7)] + ["192.0.2.1"], [1]),
        ([f"2001:db8:{number}::1" for number in range(9)], [0]),
        (["192.0.2.2", "192.0.2.3", "fe80::1%eth0", "fe80::2%eth0", "fe80::3", "192.0.2.4", *"abc"], [2]),
        (["192.0.2.2", "192.0.2.3", "::ffff:192.0.2.1", "192.0.2.1", *"abcde"], [2]),
        (["127.0.0.1"] * 7 + ["192.0.2.1"] * 2, [7]),
        (["127.0.0.1"] * 5 + ["::1"] * 5, [0, 1]),
    ],
)
async def test_of_whom_most_are_half_way_in_one_gives_way(
    hosts: list[str], gone: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "MOST", 8)

    class Guest:
        def __init__(self, host: str) -> None:
            self.host = host

        def turn_away(self, reason: str) -> None:
            away.append(self)

    away: list[Guest] = []
    guests, entrance = [Guest(host) for host in hosts], door.Door()
    for guest in guests:
        entrance.enter(guest)
    assert [guests.index(each) for each in away] == gone
    for guest in guests:
        entrance.leave(guest)
    assert not len(entrance)


async def test_whoever_goes_leaves_the_door(fleet: Fleet) -> None:
    async with listening(fleet) as (transport, address, _):
        await say(address, CLAIMED, read=False)
        await until(lambda: transport.traffic.bytes_received == len(CLAIMED))
        await until(lambda: not len(transport._fleet.door))
        assert transport.traffic.frames_rejected == 0


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
async def test_a_flood_of_key_updates_ends_the_connection(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    """By a member that does not show its card, but has its key changed again and again."""
    directory = fleet.directory("p1")
    async with listening(fleet) as (transport, address, ears), asyncio.timeout(PATIENCE_S):
        process = await asyncio.create_subprocess_exec(
            *("openssl", "s_client", "-connect", address, "-tls1_3"),
            *("-cert", str(directory / CERTIFICATE), "-key", str(directory / KEY)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert process.stdin is not None
        try:
            while not transport.traffic.frames_rejected:
                with contextlib.suppress(ConnectionError):
                    process.stdin.write(b"K\n")
                    await process.stdin.drain()
                await asyncio.sleep(0)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()
        assert ears == []
    assert re.search(r"refused: (says more than 65536 bytes|closed by|TLS fails|has not shown)", caplog.text)


# -- bounds --------------------------------------------------------------------------------------------------


async def test_what_is_not_read_stays_bounded_and_does_not_linger(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LINGER_S", 0.05)
    async with tapped(fleet) as pair:
        pair.between.to["dialler"].transport.pause_reading()
        monkeypatch.setattr(connection, "BACKLOG_LIMIT_BYTES", 200 << 20)
        big = State(run="r", round=1, offset=0, total=64 << 20)
        pair.channel.send(big, bytes(64 << 20))
        pair.channel.close("enough")
        await until(lambda: bool(pair.here.reasons))
        assert pair.here.reasons == ["enough"]


async def test_too_large_a_backlog_ends_the_connection(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    async with tapped(fleet) as pair:
        monkeypatch.setattr(connection, "BACKLOG_LIMIT_BYTES", 1 << 20)
        pair.channel.send(State(run="r", round=1, offset=0, total=64 << 20), bytes(64 << 20))
        await until(lambda: bool(pair.here.reasons))
        assert pair.here.reasons == ["the other end does not read"]


async def test_many_small_frames_that_are_not_read_end_the_connection(fleet: Fleet) -> None:
    async with tapped(fleet) as pair:
        pair.between.to["dialler"].transport.pause_reading()
        pair.channel.send(State(run="r", round=1, offset=0, total=64 << 20), bytes(64 << 20))
        for _ in range(2 * connection.MOST_LITTLE):
            pair.channel.send(Have(epoch=1, round=1))
        await until(lambda: bool(pair.here.reasons))
        assert pair.here.reasons == ["the other end does not read"]
