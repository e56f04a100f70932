"""Whoever says a host's name to connect with: names that lead to several addresses, or that nobody knows for long."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvloop
from ports import free_port, is_at, nobody_answers
from speech import Ear

from edgepeer import sockets
from edgepeer.enrol import messages
from edgepeer.enrol.client import enrol
from edgepeer.enrol.strings import JoinString
from edgepeer.errors import FabricError
from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.connection import connection
from edgepeer.sockets import connect_to, look_up
from edgepeer.transport.options import parse_address
from edgepeer.transport.tcp import TcpTransport

PATIENCE_S = 60.0
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.mark.parametrize("new_loop", LOOPS)
def test_of_several_addresses_one_that_leads_nowhere_leaves_time_for_the_next(
    new_loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        listener = await TcpTransport().listen("127.0.0.1:0", Ear)
        with nobody_answers() as nowhere:
            is_at(monkeypatch, nowhere, parse_address(listener.address))
            channel = await TcpTransport().dial("pi.test:7700", Ear, timeout=1.0)
            monkeypatch.undo()
        channel.abort("the test is over")
        await listener.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(story())


async def test_the_enrolment_service_is_found_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    called = asyncio.Event()

    def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        called.set()
        writer.write(b"what is no TLS")
        writer.close()

    monkeypatch.setattr(messages, "PATIENCE_S", 1.0)
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        with nobody_answers() as nowhere:
            is_at(monkeypatch, nowhere, server.sockets[0].getsockname())
            with pytest.raises(FabricError, match=r"enrolment at hub.test:7701: (?!no answer)"):
                await enrol("hub.test", 7701, JoinString.fresh(b"an authority"), b"a request", "a", exact=False)
            monkeypatch.undo()
    assert called.is_set()


async def test_nobody_listens_there_is_said_only_of_who_refuses_at_all_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others take it for a proof that nobody lives there."""
    closed = "127.0.0.1", free_port()
    is_at(monkeypatch, closed, closed)
    with pytest.raises(ConnectionRefusedError):
        await TcpTransport().dial("pi.test:7700", Ear, timeout=PATIENCE_S)
    loop = asyncio.get_running_loop()
    connect = loop.sock_connect

    async def unreachable(sock: socket.socket, place: tuple[str, int]) -> None:
        if place[0] == "127.0.0.2":
            raise OSError(errno.EHOSTUNREACH, "No route to host")
        await connect(sock, place)

    monkeypatch.setattr(loop, "sock_connect", unreachable)
    far = "127.0.0.2", 1
    for places in ((closed, far), (far, closed)):
        is_at(monkeypatch, *places)
        with pytest.raises(OSError, match=r"127.0.0.1: connection refused") as caught:
            await TcpTransport().dial("pi.test:7700", Ear, timeout=PATIENCE_S)
        assert "127.0.0.2: no route to host" in str(caught.value)
        assert not isinstance(caught.value, ConnectionRefusedError)


class SlowNames:
    """Name servers that do not answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.answer = threading.Event()
        self._real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self._look)

    def _look(self, host: str, *arguments: object, **options: object) -> object:
        if not host.endswith(".test"):
            return self._real(host, *arguments, **options)  # type: ignore[arg-type]
        self.asked.append(host)
        assert self.answer.wait(PATIENCE_S)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowNames]:
    slow = SlowNames(monkeypatch)
    yield slow
    slow.answer.set()
    for thread in threading.enumerate():
        if thread.name.startswith("look up "):
            thread.join()


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_loop_ends_whatever_is_looked_up(new_loop: Callable[[], asyncio.AbstractEventLoop], names: SlowNames) -> None:
    """A peer that says a name where it is must not keep others from ending for as long as name servers are silent."""

    async def story() -> None:
        with pytest.raises(TimeoutError):
            await TcpTransport().dial("pi.test:7700", Ear, timeout=0.05)

    ended = threading.Event()

    def run() -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(story())
        ended.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert ended.wait(PATIENCE_S / 2)
    thread.join()
    assert names.asked == ["pi.test"]
    assert not names.answer.is_set()


async def test_however_many_names_are_not_known_addresses_are_reached(names: SlowNames) -> None:
    listener = await TcpTransport().listen("127.0.0.1:0", Ear)
    waiting = [asyncio.create_task(look_up(f"pi{n}.test", 1)) for n in range(40)]
    async with asyncio.timeout(PATIENCE_S):
        channel = await TcpTransport().dial(listener.address, Ear, timeout=PATIENCE_S)
    channel.abort("the test is over")
    names.answer.set()
    assert {type(error) for error in await asyncio.gather(*waiting, return_exceptions=True)} == {socket.gaierror}
    await listener.close()


async def test_a_name_is_looked_up_once_at_a_time_and_not_too_many_at_once(
    names: SlowNames, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever says where it is may say any number of names, and say them again and again."""
    monkeypatch.setattr(sockets, "_MOST_LOOKED_UP", 3)
    waiting = [asyncio.create_task(look_up(f"pi{n % 3}.test", 1, told=True)) for n in range(30)]
    await asyncio.sleep(0)
    with pytest.raises(OSError, match="3 other names are looked up already"):
        await look_up("one-more.test", 1, told=True)
    for task in waiting[3:]:
        task.cancel()  # who does not wait any more takes nothing from the others
    names.answer.set()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(error) for error in found[:3]} == {socket.gaierror}
    assert sorted(names.asked) == ["pi0.test", "pi1.test", "pi2.test"]
    with pytest.raises(socket.gaierror):
        await look_up("one-more.test", 1)
    assert not sockets._looked_up


async def test_however_many_names_others_tell_those_that_are_set_here_are_looked_up(
    names: SlowNames, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the broker, above all."""
    monkeypatch.setattr(sockets, "_MOST_LOOKED_UP", 3)
    dials = [asyncio.create_task(TcpTransport().dial(f"pi{n}.test:7700", Ear, timeout=PATIENCE_S)) for n in range(9)]
    await asyncio.sleep(0)
    broker = BrokerAddress.parse("mqtt://hub.test")
    connected = asyncio.create_task(_is_let_in(broker))
    while not (connected.done() or "hub.test" in names.asked):  # noqa: ASYNC110  # set by a thread
        await asyncio.sleep(0)
    names.answer.set()
    assert "name 'hub.test' not found" in await connected
    found = await asyncio.gather(*dials, return_exceptions=True)
    assert sum("other names are looked up" in str(error) for error in found) > 0


async def _is_let_in(broker: BrokerAddress) -> str:
    """Why it isn't."""
    with pytest.raises(FabricError) as refused:
        async with connection(broker, identifier="x", will_topic=None, on_message=lambda *_: None, timeout=PATIENCE_S):
            pass
    return str(refused.value)


async def test_without_a_thread_nobody_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is a failure like others: it ends no peer."""

    def none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    with pytest.raises(OSError, match="can't start new thread"):
        await TcpTransport().dial("pi.test:7700", Ear, timeout=PATIENCE_S)
    with pytest.raises(FabricError, match="can't start new thread"):
        async with connection(
            BrokerAddress(host="broker.test"),
            identifier="a",
            will_topic=None,
            on_message=lambda *_: None,
            timeout=PATIENCE_S,
        ):
            pass
    assert not sockets._looked_up


async def test_without_files_nobody_is_reached() -> None:
    def none(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    with pytest.raises(OSError, match="Too many open files"):
        await connect_to("127.0.0.1", 1, PATIENCE_S, make=none)  # type: ignore[arg-type]


@pytest.mark.parametrize("others", [True, False])
async def test_a_machine_without_ipv6_takes_the_next_address(monkeypatch: pytest.MonkeyPatch, others: bool) -> None:
    """As with ipv6.disable=1, or in a unit with RestrictAddressFamilies=AF_INET."""

    class OnlyV4(socket.socket):
        def __init__(self, family: int = -1, *more: int) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *more)

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        places = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0))]
        if others:
            places.append((socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)))

        async def found(host: str, port: int, *, told: bool) -> list[tuple[Any, ...]]:
            return places

        monkeypatch.setattr(sockets, "look_up", found)
        if others:
            with await connect_to("hub", port, PATIENCE_S, make=OnlyV4) as sock:
                assert sock.getpeername()[1] == port
        else:
            with pytest.raises(OSError, match="Address family not supported"):
                await connect_to("hub", port, PATIENCE_S, make=OnlyV4)
