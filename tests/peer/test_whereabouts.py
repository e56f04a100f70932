"""That nobody listens at an address says that a peer has ended only where the peer has been found before: an address of
loopback, or a private one, is that of another machine here than there."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from edgepeer.ids import PeerId
from edgepeer.peer import whereabouts
from edgepeer.peer.meeting import meet_others
from edgepeer.peer.switchboard import Switchboard
from edgepeer.peer.tasks import task_group
from edgepeer.peer.whereabouts import Whereabouts, this_machine
from edgepeer.topology.view import Member, View
from edgepeer.transport.tcp import TcpTransport
from edgepeer.wire.frames import Hello

DEADLINE_S = 90.0
LAN = "127.0.0.2"
"""Stands for an address that other machines reach, too."""
B = PeerId("b")


class Lines:
    """Tells of connections."""

    def __init__(self) -> None:
        self.up: asyncio.Queue[str] = asyncio.Queue()
        self.failed: asyncio.Queue[bool] = asyncio.Queue()

    def link_up(self, peer: PeerId, incarnation: int, *, dialled: bool) -> None:
        self.up.put_nowait(peer)

    def dial_failed(self, peer: PeerId, reason: str, refused: bool) -> None:
        self.failed.put_nowait(refused)

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


@pytest.fixture(autouse=True)
def _lan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whereabouts, "is_loopback", lambda host: host == "127.0.0.1")


@contextlib.asynccontextmanager
async def desk(
    name: str, host: str = LAN, port: int = 0, *, fabric: str = "lab"
) -> AsyncIterator[tuple[Switchboard, Lines, str]]:
    lines = Lines()
    hello = Hello(fabric=fabric, peer=name, incarnation=1)
    async with asyncio.timeout(DEADLINE_S), task_group() as tasks:
        switchboard = Switchboard(
            TcpTransport(), lambda: hello, lines, tasks, max_links=9, known=lambda _: True, machine=f"{name}'s"
        )
        listener = await switchboard.listen(f"{host}:{port}")
        try:
            yield switchboard, lines, listener.address
        finally:
            switchboard.close("the test is over")
            await listener.close()


def nobody(host: str) -> str:
    """An address where nobody listens."""
    with socket.create_server((host, 0)) as sock:
        return f"{host}:{sock.getsockname()[1]}"


async def refuses(desk: Switchboard, lines: Lines, *addresses: str, machine: str = "b's") -> bool:
    desk.dial(Member(id="b", incarnation=1, addresses=addresses, machine=machine))
    return await lines.failed.get()


@pytest.mark.parametrize("host", ["127.0.0.1", LAN])
async def test_of_whom_was_never_met_it_says_nothing_but_on_this_machine(host: str) -> None:
    async with desk("a") as (a, lines, _):
        assert not await refuses(a, lines, nobody(host))
        assert await refuses(a, lines, nobody(host), machine="a's")
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as router:
            place = f"localhost:{router.getsockname()[1]}"
        assert not await refuses(a, lines, place, machine="a's")  # a name, or an address, that is a router's


@pytest.mark.parametrize("how", ["dialled", "met"])
async def test_it_does_where_it_has_answered_in_any_of_its_lives(how: str) -> None:
    async with desk("a") as (a, lines, _):
        async with desk("b") as (_, b_lines, address):
            there = Member(id="b", incarnation=1, addresses=(nobody("127.0.0.1"), address))
            assert a.may_meet(there)
            if how == "dialled":
                a.dial(there)
                assert await lines.up.get() == "b"
            else:
                await a.meet(B, there)
            assert not a.may_meet(there)
        assert how == "dialled" or (lines.up.empty() and b_lines.up.empty())  # it was no link, to nobody
        assert await refuses(a, lines, address)
        assert await refuses(a, lines, nobody("127.0.0.1"), nobody(LAN))
        assert not await refuses(a, lines, nobody("127.0.0.3"))


@pytest.mark.parametrize("known", [False, True])
async def test_another_peer_that_answers_is_no_more_of_a_proof(known: bool) -> None:
    """Nor less: ports are used again."""
    async with desk("a") as (a, lines, _):
        async with desk("b") as (_, _, before):
            if known:
                await a.meet(B, Member(id="b", incarnation=1, addresses=(before,)))
        async with desk("c") as (_, _, address):
            await a.meet(B, Member(id="b", incarnation=1, addresses=(address,)))
            assert await refuses(a, lines, address) == known


async def test_a_peer_of_another_fabric_of_the_same_name_is_another() -> None:
    async with desk("a") as (a, lines, _), desk("b", fabric="attic") as (_, _, address):
        await a.meet(B, Member(id="b", incarnation=1, addresses=(address,)))
        assert not await refuses(a, lines, nobody(LAN))


def test_whence_it_has_called_is_where_it_is_but_for_tunnels() -> None:
    places = Whereabouts("a's")
    there = Member(id="b", incarnation=1, addresses=("10.0.0.7:7700", "[fd00::7]:7700"))
    assert not places.is_known(there)
    places.found(B, "10.0.0.8:40000")
    assert not places.is_known(there)
    places.found(B, "[FD00::7]:40000")
    assert places.is_known(there)
    places.found(B, "127.0.0.1:40000")
    assert not places.is_known(Member(id="b", incarnation=1, addresses=("127.0.0.1:7700",)))
    assert places.elsewhere(Member(id="b", incarnation=1, addresses=("127.0.0.1:1", "10.0.0.7:1"))) == ("10.0.0.7:1",)


def test_it_remembers_the_last_of_many() -> None:
    places = Whereabouts()
    for number in range(5000):
        places.found(PeerId(f"p{number}"), "10.0.0.7:7700")
    known = [places.is_known(Member(id=f"p{n}", incarnation=1, addresses=("10.0.0.7:1",))) for n in (0, 4999)]
    assert known == [False, True]
    assert len(places._found) == 4096


def test_nobody_shares_an_unknown_machine() -> None:
    assert not Whereabouts().is_known(Member(id="b", incarnation=1, addresses=("10.0.0.7:1",), machine=""))
    assert not Whereabouts().is_known(Member(id="b", incarnation=1, addresses=("10.0.0.7:1",)))
    assert this_machine() == this_machine()


async def test_each_of_the_others_is_looked_for_once_unless_it_is_known() -> None:
    members = tuple(Member(id=name, incarnation=1, addresses=(f"10.0.0.{n}:1",)) for n, name in enumerate("abcd"))
    looked: list[PeerId] = []
    done = asyncio.Event()

    class Desk:
        def may_meet(self, member: Member) -> bool:
            if len(looked) == 3:
                done.set()
            return member.id != "a" and (member.id != "b" or B not in looked)  # c and d are not found

        async def meet(self, peer: PeerId, member: Member) -> None:
            assert peer == member.id
            looked.append(peer)

    view = View(epoch=1, members=members)
    async with asyncio.timeout(DEADLINE_S):
        meeting = asyncio.create_task(meet_others(Desk(), lambda: view, every_s=1e-4))  # type: ignore[arg-type]
        await done.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        meeting.cancel()
    assert sorted(looked) == ["b", "c", "d"]


def test_it_is_looked_for_where_that_life_has_moved_to_before_where_it_began() -> None:
    places, moved = Whereabouts(), ("10.0.0.9:1", "10.0.0.7:1")
    first, second = (Member(id="b", incarnation=life, addresses=("10.0.0.7:1",)) for life in (1, 2))
    places.moved(B, 1, moved)
    assert places.addresses(first) == moved
    assert places.elsewhere(first) == moved
    assert places.addresses(second) == ("10.0.0.7:1",)
    places.found(B, "10.0.0.9:1")
    assert places.is_known(first)
    assert not places.is_known(second)
    places.moved(B, 1, ())
    assert places.addresses(first) == ("10.0.0.7:1",)
    for number in range(5000):
        places.moved(PeerId(f"p{number}"), 1, moved)
    assert len(places._moved) == 4096
