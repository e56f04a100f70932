"""What a transport promises, asked of each: TCP on uvloop and on plain asyncio, plain and sealed, and in memory."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field

import pytest
import uvloop
from fleets import Fleet

from edgepeer.errors import ConfigError
from edgepeer.topology.view import Member, View
from edgepeer.transport import connection
from edgepeer.transport.base import Channel, Transport
from edgepeer.transport.memory import MemoryHub
from edgepeer.transport.secure import SecureTransport
from edgepeer.transport.tcp import TcpTransport
from edgepeer.transport.window import ReceiveWindows
from edgepeer.wire.codec import unwrap, wrap
from edgepeer.wire.documents import pack
from edgepeer.wire.frames import Bye, Frame, Ping, Reduce, State, Suspect, Via, ViewFrame

PATIENCE_S = 60.0


@dataclass
class Heard:
    frame: Frame
    payload: bytes | None
    payload_bytes: int
    stored: bool
    seconds: float


@dataclass
class Ear:
    """A receiver that writes everything down."""

    channel: Channel
    heard: list[Heard] = field(default_factory=list)
    closings: list[str] = field(default_factory=list)
    buffers: Callable[[Frame, int], memoryview | None] = lambda frame, size: None
    on_frame: Callable[[Frame], None] = lambda frame: None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def admits(self, frame: Frame, payload_bytes: int) -> bool:
        return True

    def sink(self, frame: Frame, payload_bytes: int) -> memoryview | None:
        return self.buffers(frame, payload_bytes)

    def received(
        self, frame: Frame, payload: memoryview | None, payload_bytes: int, stored: bool, seconds: float
    ) -> None:
        assert not self.closings
        self.heard.append(Heard(frame, bytes(payload) if payload is not None else None, payload_bytes, stored, seconds))
        self.on_frame(frame)
        self.changed.set()

    def closed(self, reason: str) -> None:
        self.closings.append(reason)
        self.changed.set()

    @property
    def frames(self) -> list[Frame]:
        return [each.frame for each in self.heard]

    async def until(self, condition: Callable[[Ear], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition(self):
                self.changed.clear()
                await self.changed.wait()


@dataclass
class Pair:
    one: Ear
    other: Ear
    transports: tuple[Transport, Transport]


class Arena:
    """One kind of transport, and a loop to run it on."""

    def __init__(self, kind: str, fleet: Fleet) -> None:
        self.kind = kind
        self._hub = MemoryHub()
        self._fleet = fleet
        self._members = itertools.count()

    def transport(self) -> Transport:
        if self.kind.startswith("sealed"):
            return SecureTransport(self._fleet.member(f"p{next(self._members)}"))
        return self._hub.transport() if self.kind == "memory" else TcpTransport()

    def overhead(self, size: int) -> int:
        """Bytes on the way beside so many of frames: of the handshake, and of records."""
        return 3000 + 20 * (size // (64 << 10) + 5) if self.kind.startswith("sealed") else 0

    def run(self, story: Callable[[], Coroutine[None, None, None]]) -> None:
        factory = asyncio.new_event_loop if self.kind.endswith("asyncio") else uvloop.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(story(), 2 * PATIENCE_S))

    @contextlib.asynccontextmanager
    async def pair(self) -> AsyncIterator[Pair]:
        ears: list[Ear] = []

        def accept(channel: Channel) -> Ear:
            ears.append(Ear(channel))
            return ears[-1]

        here, there = self.transport(), self.transport()
        listener = await there.listen("127.0.0.1:0", accept)
        dialled: list[Ear] = []

        def made(channel: Channel) -> Ear:
            dialled.append(Ear(channel))
            return dialled[-1]

        channel = await here.dial(listener.address, made, timeout=PATIENCE_S)
        assert channel is dialled[0].channel
        async with asyncio.timeout(PATIENCE_S):
            while not ears:  # noqa: ASYNC110
                await asyncio.sleep(0)
        pair = Pair(dialled[0], ears[0], (here, there))
        try:
            yield pair
        finally:
            for ear in (pair.one, pair.other):
                ear.channel.abort("the test is over")
            await pair.one.until(lambda ear: bool(ear.closings))
            await pair.other.until(lambda ear: bool(ear.closings))
            await listener.close()


@pytest.fixture(scope="module")
def fleet_of_all(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return Fleet(tmp_path_factory.mktemp("fleet"))


@pytest.fixture(
    params=[
        *("tcp uvloop", "tcp asyncio", "tcp far uvloop", "tcp far asyncio"),
        *("sealed uvloop", "sealed asyncio", "sealed far uvloop", "sealed far asyncio"),
        "memory",
    ]
)
def arena(request: pytest.FixtureRequest, fleet_of_all: Fleet, monkeypatch: pytest.MonkeyPatch) -> Arena:
    """`far`: as if the other end were not on this machine, over a line that is known well."""
    if " far " in request.param:
        monkeypatch.setattr(connection, "tune", lambda sock: True)
        monkeypatch.setattr(ReceiveWindows, "portion", lambda self, sock: 12_000)
    return Arena(request.param, fleet_of_all)


@pytest.mark.parametrize("kind", ["tcp", "sealed"])
@pytest.mark.parametrize("turns", range(4))
async def test_who_is_let_in_as_the_listener_closes_is_not_forgotten(
    turns: int, kind: str, fleet_of_all: Fleet
) -> None:
    """asyncio's own loop can't make a connection of what it has accepted, if the listener is closed in between: it
    leaves the socket to nobody, which is a warning as soon as that is collected."""
    transport = Arena(kind, fleet_of_all).transport()
    ears: list[Ear] = []

    def accept(channel: Channel) -> Ear:
        ears.append(Ear(channel))
        return ears[-1]

    listener = await transport.listen("127.0.0.1:0", accept)
    host, _, port = listener.address.rpartition(":")
    calling = [socket.create_connection((host, int(port))) for _ in range(2)]
    for _ in range(turns):
        await asyncio.sleep(0)
    await listener.close()
    if isinstance(transport, SecureTransport):
        transport.close()
    for ear in ears:
        ear.channel.abort("the test is over")
    for sock in calling:
        sock.setblocking(False)
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(PATIENCE_S):
                assert not await asyncio.get_running_loop().sock_recv(sock, 1)
        sock.close()
    gc.collect()


def reduce(items: int, offset: int = 0, total: int | None = None) -> Reduce:
    return Reduce(
        epoch=1,
        round=1,
        offset=offset,
        total=total if total is not None else offset + items,
        dtype="<f4",
        contributors=b"\1",
        weight=1.0,
    )


VIEW = View(epoch=3, members=(Member(id="a", incarnation=1), Member(id="b", incarnation=2)))


def test_frames_arrive_in_order(arena: Arena) -> None:
    async def story() -> None:
        async with arena.pair() as pair:
            sent = [Suspect(epoch=number, peer="p", reason=str(number)) for number in range(3000)]
            for frame in sent:  # many small ones: several in one read
                pair.one.channel.send(frame)
            await pair.other.until(lambda ear: len(ear.heard) >= len(sent))
            assert pair.other.frames == sent
            assert pair.one.heard == []

    arena.run(story)


def test_a_payload_arrives_in_the_memory_that_the_receiver_has_chosen(arena: Arena) -> None:
    async def story() -> None:
        async with arena.pair() as pair:
            whole = bytearray(8000)
            asked: list[tuple[Frame, int]] = []

            def buffers(frame: Frame, size: int) -> memoryview | None:
                asked.append((frame, size))
                assert isinstance(frame, Reduce)
                return memoryview(whole)[4 * frame.offset : 4 * frame.offset + size]

            pair.other.buffers = buffers
            data = bytes(range(250)) * 32
            for at in (0, 4000):
                pair.one.channel.send(reduce(1000, offset=at // 4, total=2000), memoryview(data)[at : at + 4000])
            await pair.other.until(lambda ear: len(ear.heard) == 2)
            assert bytes(whole) == data
            assert [size for _, size in asked] == [4000, 4000]
            assert all(each.stored and each.payload is None and each.payload_bytes == 4000 for each in pair.other.heard)
            assert all(0 <= each.seconds < PATIENCE_S for each in pair.other.heard)

    arena.run(story)


@pytest.mark.parametrize("size", [4, 2000, 2048, 4096, 300_000, 3_000_000])
def test_a_payload_that_nobody_wants_does_not_disturb_the_stream(arena: Arena, size: int) -> None:
    async def story() -> None:
        async with arena.pair() as pair:
            wanted = bytearray(size)

            def buffers(frame: Frame, size: int) -> memoryview | None:
                return memoryview(wanted) if isinstance(frame, Reduce) and frame.offset else None

            pair.other.buffers = buffers
            for offset in (0, size // 4, 0):
                pair.one.channel.send(reduce(size // 4, offset), bytes([offset % 250 + 1]) * size)
            pair.one.channel.send(Ping(waiting=True))
            await pair.other.until(lambda ear: len(ear.heard) == 4)
            assert [each.stored for each in pair.other.heard[:3]] == [False, True, False]
            assert wanted == bytes([size // 4 % 250 + 1]) * size
            assert pair.other.frames[3] == Ping(waiting=True)

    arena.run(story)


def test_documents_come_with_the_frame(arena: Arena) -> None:
    async def story() -> None:
        async with arena.pair() as pair:
            big = View(epoch=1, members=tuple(Member(id=f"p{n}", incarnation=n) for n in range(3000)))
            for view in (VIEW, big, VIEW):
                pair.one.channel.send(ViewFrame(epoch=view.epoch), pack(view))
            await pair.other.until(lambda ear: len(ear.heard) == 3)
            assert [each.payload for each in pair.other.heard] == [pack(VIEW), pack(big), pack(VIEW)]

    arena.run(story)


def test_what_is_to_be_passed_on_comes_with_the_frame(arena: Arena) -> None:
    """Its memory is nobody's in particular: the receiver's sinks are for its own links."""

    async def story() -> None:
        async with arena.pair() as pair:

            def buffers(frame: Frame, size: int) -> memoryview | None:
                raise AssertionError(frame)

            pair.other.buffers = buffers
            inner = reduce(100_000)
            kind, header = wrap(inner)
            for serial, data in enumerate((b"\1" * 400_000, b"\2" * 400_000)):
                via = Via(source="a", target="b", tunnel=1, serial=serial, kind=kind, header=header)
                pair.one.channel.send(via, data)
            await pair.other.until(lambda ear: len(ear.heard) == 2)
            assert [each.payload for each in pair.other.heard] == [b"\1" * 400_000, b"\2" * 400_000]
            for serial, frame in enumerate(pair.other.frames):
                assert isinstance(frame, Via)
                assert frame.serial == serial
                assert unwrap(frame, 400_000) == inner

    arena.run(story)


def test_payloads_of_no_bytes(arena: Arena) -> None:
    async def story() -> None:
        async with arena.pair() as pair:
            pair.other.buffers = lambda frame, size: memoryview(bytearray(size))
            pair.one.channel.send(reduce(0), b"")
            pair.one.channel.send(reduce(0))
            pair.one.channel.send(ViewFrame(epoch=1), b"")
            await pair.other.until(lambda ear: len(ear.heard) == 3)
            assert [each.payload_bytes for each in pair.other.heard] == [0, 0, 0]
            assert pair.other.heard[0].stored
            assert pair.other.heard[2].payload == b""

    arena.run(story)


def test_64_megabytes_in_both_directions_at_once(arena: Arena) -> None:
    async def story() -> None:
        async with arena.pair() as pair:
            size = 64 << 20
            data = [bytes([1]) * size, bytes([2]) * size]
            room = [bytearray(size), bytearray(size)]
            for ear, buffer in zip((pair.one, pair.other), room, strict=True):
                ear.buffers = lambda frame, size, buffer=buffer: memoryview(buffer)  # type: ignore[misc]
            state = State(run="r", round=1, offset=0, total=size)
            pair.one.channel.send(state, data[0])
            pair.other.channel.send(state, data[1])
            await pair.one.until(lambda ear: len(ear.heard) == 1)
            await pair.other.until(lambda ear: len(ear.heard) == 1)
            assert room[1] == data[0]
            assert room[0] == data[1]
            for transport, other in zip(pair.transports, reversed(pair.transports), strict=True):
                assert size < transport.traffic.bytes_sent < size + 200 + arena.overhead(size)
                assert transport.traffic.bytes_received == other.traffic.bytes_sent

    arena.run(story)


def test_close_delivers_what_was_queued_and_says_why(arena: Arena) -> None:
    async def story() -> None:
        async with arena.pair() as pair:
            size = 8 << 20
            room = bytearray(size)
            pair.other.buffers = lambda frame, n: memoryview(room)[:n]
            pair.one.channel.send(State(run="r", round=1, offset=0, total=size), b"\7" * size)
            pair.one.channel.close("enough " * 100)
            pair.one.channel.send(Ping(waiting=False))  # too late: nothing happens
            pair.one.channel.close("again")
            await pair.other.until(lambda ear: bool(ear.closings))
            await pair.one.until(lambda ear: bool(ear.closings))
            assert room == b"\7" * size
            assert [type(frame) for frame in pair.other.frames] == [State, Bye]
            assert pair.other.closings[0].startswith("closed by the other end: enough enough")
            assert len(pair.one.closings) == len(pair.other.closings) == 1

    arena.run(story)


def test_nothing_is_received_after_closing(arena: Arena) -> None:
    async def story() -> None:
        async with arena.pair() as pair:
            pair.other.on_frame = lambda frame: pair.other.channel.close("that will do")
            for _ in range(100):
                pair.one.channel.send(Ping(waiting=False))
            await pair.one.until(lambda ear: bool(ear.closings))
            await pair.other.until(lambda ear: bool(ear.closings))
            assert len(pair.other.heard) == 1

    arena.run(story)


def test_abort_is_immediate_and_told_once(arena: Arena) -> None:
    async def story() -> None:
        async with arena.pair() as pair:
            pair.one.channel.abort("the machine is on fire")
            pair.one.channel.abort("twice")
            pair.one.channel.close("thrice")
            await pair.one.until(lambda ear: bool(ear.closings))
            await pair.other.until(lambda ear: bool(ear.closings))
            assert pair.one.closings == ["the machine is on fire"]
            assert len(pair.other.closings) == 1

    arena.run(story)


def test_nobody_listens(arena: Arena) -> None:
    async def story() -> None:
        transport = arena.transport()
        listener = await transport.listen("127.0.0.1:0", Ear)
        await listener.close()
        with pytest.raises(OSError, match=r"."):
            await transport.dial(listener.address, Ear, timeout=5.0)

    arena.run(story)


def test_a_port_that_is_taken_is_one_clear_line(arena: Arena) -> None:
    async def story() -> None:
        transport = arena.transport()
        listener = await transport.listen("127.0.0.1:0", Ear)
        with pytest.raises(ConfigError) as caught:
            await arena.transport().listen(listener.address, Ear)
        await listener.close()
        text = str(caught.value)
        assert listener.address in text
        assert "in use" in text
        assert "\n" not in text

    arena.run(story)


def test_remote_names_the_other_end(arena: Arena) -> None:
    async def story() -> None:
        async with arena.pair() as pair:
            assert pair.one.channel.remote not in ("", "?")
            assert pair.other.channel.remote not in ("", "?")

    arena.run(story)
