"""What is queued for a peer when its memory is about to change is dropped, on whatever connection it is."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from edgepeer.ids import PeerId
from edgepeer.peer.switchboard import Switchboard
from edgepeer.peer.tasks import task_group
from edgepeer.topology.view import Member
from edgepeer.transport.tcp import TcpTransport
from edgepeer.wire.codec import encode
from edgepeer.wire.frames import Hello, State

DEADLINE_S = 90.0
B = PeerId("b")
MAX_LINKS = 9
LARGE = 32 << 20


class Lines:
    """Tells of connections with b."""

    def __init__(self) -> None:
        self.up: asyncio.Queue[str] = asyncio.Queue()

    def link_up(self, peer: PeerId, incarnation: int, *, dialled: bool) -> None:
        self.up.put_nowait(peer)

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class End:
    """b's end of a connection, or another peer's, which reads nothing unless it is told to."""

    def __init__(self, address: str, peer: str = B) -> None:
        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host, int(port)))
        self.sock.sendall(encode(Hello(fabric="lab", peer=peer, incarnation=1)))
        self.sock.setblocking(False)

    async def read(self) -> bytes:
        """All that still comes."""
        came, loop = bytearray(), asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            while data := await loop.sock_recv(self.sock, 1 << 20):
                came += data
        return bytes(came)


@contextlib.asynccontextmanager
async def desk() -> AsyncIterator[tuple[Switchboard, Lines, str]]:
    lines = Lines()
    hello = Hello(fabric="lab", peer="a", incarnation=1)
    async with asyncio.timeout(DEADLINE_S), task_group() as tasks:
        switchboard = Switchboard(
            TcpTransport(), lambda: hello, lines, tasks, max_links=MAX_LINKS, known=lambda _: True
        )
        listener = await switchboard.listen("127.0.0.1:0")
        try:
            yield switchboard, lines, listener.address
        finally:
            switchboard.close("the test is over")
            await listener.close()


@pytest.mark.parametrize("how", ["replaced", "closed"])
async def test_what_is_dropped_is_dropped_on_a_connection_that_was_given_up_before_too(how: str) -> None:
    async with desk() as (switchboard, lines, address):
        ends = [End(address)]
        await lines.up.get()
        array = bytearray(b"\x01" * LARGE)
        switchboard.send(B, State(run="r", round=1, offset=0, total=LARGE), memoryview(array))
        if how == "replaced":
            ends.append(End(address))
            await lines.up.get()
        else:
            switchboard.hang_up(B, "what has come can't be")
        switchboard.hang_up(B, "the array is somebody else's now", abrupt=True)
        array[:] = b"\x02" * LARGE
        came = await ends[0].read()
        for end in ends:
            end.sock.close()
        assert b"\x02" * 8 not in came


async def test_it_says_how_much_is_on_its_way_and_waits_for_that() -> None:
    """Until the other end has all, and closes."""
    async with desk() as (switchboard, lines, address):
        end = End(address)
        await lines.up.get()
        assert switchboard.undelivered < 1 << 10
        switchboard.send(B, State(run="r", round=1, offset=0, total=LARGE), bytes(LARGE))
        assert switchboard.undelivered > LARGE - (64 << 10)
        switchboard.close("enough")
        await switchboard.emptied(1e-3)  # the other end reads nothing yet
        assert not switchboard._empty.is_set()
        came = await end.read()
        end.sock.close()
        assert len(came) > LARGE
        await switchboard.emptied(DEADLINE_S)
        assert switchboard._empty.is_set()


async def test_who_says_nothing_keeps_nobody_out() -> None:
    """However many of them there are."""
    async with desk() as (_, lines, address):
        with contextlib.ExitStack() as silent:
            host, _, port = address.rpartition(":")
            for _ in range(3 * MAX_LINKS):
                silent.enter_context(socket.create_connection((host, int(port))))
            end = End(address)
            assert await lines.up.get() == B
            end.sock.close()


async def test_whom_this_end_has_dialled_does_not_give_way() -> None:
    """It may be slow to say who it is, and is wanted."""
    loop = asyncio.get_running_loop()
    async with desk() as (switchboard, lines, address):
        with contextlib.ExitStack() as ends:
            slow = ends.enter_context(socket.create_server(("127.0.0.1", 0)))
            slow.setblocking(False)
            where = f"127.0.0.1:{slow.getsockname()[1]}"
            switchboard.dial(Member(id=B, incarnation=1, addresses=(where,)))
            end, _ = await loop.sock_accept(slow)
            ends.enter_context(end)
            host, _, port = address.rpartition(":")
            silent = [ends.enter_context(socket.create_connection((host, int(port)))) for _ in range(2 * MAX_LINKS)]
            silent[MAX_LINKS - 1].setblocking(False)
            while await loop.sock_recv(silent[MAX_LINKS - 1], 1 << 16):
                pass
            await loop.sock_sendall(end, encode(Hello(fabric="lab", peer=B, incarnation=1)))
            assert await lines.up.get() == B


async def test_who_has_said_who_it_is_does_not_give_way() -> None:
    async with desk() as (_, lines, address):
        ends = [End(address, f"p{number}") for number in range(MAX_LINKS)]
        for _ in ends:
            await lines.up.get()
        late = End(address, "late")
        assert b"too many connections" in await late.read()
        for end in (*ends, late):
            end.sock.close()


async def test_who_connects_again_and_again_and_reads_nothing_has_but_so_many_connections() -> None:
    """Each of those that it has replaced is kept for a while, for what is queued there."""
    async with desk() as (switchboard, lines, address):
        ends = []
        for _ in range(2 * MAX_LINKS + 1):
            ends.append(End(address))
            await lines.up.get()
            switchboard.send(B, State(run="r", round=1, offset=0, total=LARGE), bytes(8192))
        there = [await is_there(end) for end in ends[:-1]]
        for end in ends:
            end.sock.close()
        assert there == [False] * MAX_LINKS + [True] * MAX_LINKS


async def is_there(end: End) -> bool:
    """Whether anybody still takes what is said on a connection that was replaced."""
    await end.read()
    try:
        for _ in range(2):  # where nobody is, the first is answered by that
            end.sock.send(b"x")
    except ConnectionError:
        return False
    return True
