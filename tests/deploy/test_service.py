"""What systemd is told: by a real peer and a real broker, on a socket of the test's own in systemd's place."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
from real_programs import DEADLINE_S, edgepeer, python

from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.notify import notify

WATCHDOG: Final = {"WATCHDOG_USEC": "400000"}
"""In place of a minute."""


class Manager:
    """Hears what services say, as systemd does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._facts: asyncio.Queue[str] = asyncio.Queue()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket, self._hear)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()

    def _hear(self) -> None:
        for fact in self._socket.recv(4096).decode().splitlines():
            self._facts.put_nowait(fact)

    async def until(self, pattern: str, count: int = 1) -> list[str]:
        """What was said since the last call, up to the so-manieth fact in which the pattern is found."""
        said: list[str] = []
        try:
            async with asyncio.timeout(DEADLINE_S):
                while count:
                    said.append(await self._facts.get())
                    count -= bool(re.search(pattern, said[-1]))
        except TimeoutError:
            raise AssertionError(f"wanted {pattern}, heard {said}") from None
        return said

    def rest(self) -> list[str]:
        """What was said since the last call."""
        self._hear_all()
        return [self._facts.get_nowait() for _ in range(self._facts.qsize())]

    def _hear_all(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                self._hear()


@pytest.fixture
async def manager(tmp_path: Path) -> AsyncIterator[Manager]:
    heard = Manager(tmp_path / "notify")
    yield heard
    heard.close()


def facts(said: list[str], name: str) -> list[str]:
    return [fact.partition("=")[2] for fact in said if fact.startswith(f"{name}=")]


async def test_a_peer_says_that_it_listens_how_it_stands_that_it_lives_and_that_it_leaves(
    manager: Manager, tmp_path: Path
) -> None:
    told = {"NOTIFY_SOCKET": str(manager.path), **WATCHDOG}
    async with EmbeddedBroker() as broker:
        url = broker.address.url()
        async with edgepeer("peer", "--broker", url, home=tmp_path, **told) as first:
            said = await manager.until("STATUS=view 1, 1 peers")
            assert facts(said, "READY") == ["1"]
            assert re.fullmatch(r"listens on 127\.0\.0\.1:\d+, looks for a broker", facts(said, "STATUS")[0])
            await manager.until("WATCHDOG=1", 3)
            async with edgepeer("peer", "--broker", url, home=tmp_path):
                await manager.until(r"STATUS=view \d+, 2 peers$")
                first.signal(signal.SIGTERM)
                said = await manager.until("STOPPING=1")
                assert facts(said, "READY") == []
                assert await first.end() == 0, first.everything()


async def test_a_peer_says_what_is_in_the_way_of_its_fleet(manager: Manager, tmp_path: Path) -> None:
    told = {"NOTIFY_SOCKET": str(manager.path)}
    async with EmbeddedBroker() as broker:
        url = broker.address.url()
        async with edgepeer("peer", "--broker", url, home=tmp_path, **told):
            await manager.until("STATUS=view 1, 1 peers")
            async with contextlib.AsyncExitStack() as stack:
                others = [
                    await stack.enter_async_context(edgepeer("peer", "--broker", url, "--peer-id", name, home=tmp_path))
                    for name in "bc"
                ]
                await manager.until(r"STATUS=view \d+, 3 peers$")
                for each in others:
                    each.signal(signal.SIGSTOP)
                await manager.until(
                    r"STATUS=view \d+, 3 peers; waits: 1 of 3 peers are in reach, .* answer from (b, c|c, b)$"
                )
                for each in others:
                    each.signal(signal.SIGCONT)
                await manager.until(r"STATUS=view \d+, 3 peers$")


async def test_ready_is_who_listens_with_or_without_a_broker(manager: Manager, tmp_path: Path) -> None:
    told = {"NOTIFY_SOCKET": str(manager.path), **WATCHDOG}
    async with contextlib.AsyncExitStack() as stack:
        async with edgepeer("broker", "--listen", "127.0.0.1:0", home=tmp_path) as broker:
            url = (await broker.said("broker ready at (.+)"))[1]
            await stack.enter_async_context(edgepeer("peer", "--broker", url, home=tmp_path, **told))
            await manager.until("STATUS=view 1, 1 peers$")
        await manager.until("STATUS=view 1, 1 peers; the broker is away")
        await manager.until("WATCHDOG=1", 2)  # rounds would go on
    manager.rest()
    # Now nobody is there from the beginning.
    async with edgepeer("peer", "--broker", url, home=tmp_path, **told):
        await manager.until("READY=1")
    manager.rest()
    async with edgepeer("peer", "--broker", url, "--listen", "192.0.2.1:7700", home=tmp_path, **told) as program:
        assert await program.end() == 2, program.everything()
    assert facts(manager.rest(), "READY") == []


async def test_the_broker_is_a_service_too(manager: Manager, tmp_path: Path) -> None:
    told = {"NOTIFY_SOCKET": str(manager.path), **WATCHDOG}
    async with edgepeer("broker", "--listen", "127.0.0.1:0", home=tmp_path, **told) as program:
        said = await manager.until("READY=1")
        address = await program.said("broker ready at (.+)")
        said += await manager.until("WATCHDOG=1", 2)
        assert facts(said, "STATUS") == [f"listens on {address[1]}"]
        program.signal(signal.SIGTERM)
        await manager.until("STOPPING=1")
        assert await program.end() == 0, program.everything()


async def test_the_enrolment_service_is_one(manager: Manager, tmp_path: Path) -> None:
    told = {"NOTIFY_SOCKET": str(manager.path), **WATCHDOG}
    home = ["--home", tmp_path / "fleet"]
    async with edgepeer("fleet", "init", "lab", "--broker", "127.0.0.1", *home, home=tmp_path) as founding:
        assert await founding.end() == 0, founding.everything()
    async with edgepeer("fleet", "serve", "--listen", "127.0.0.1:0", *home, home=tmp_path, **told) as program:
        said = await manager.until("READY=1")
        said += await manager.until("WATCHDOG=1", 2)
        assert re.fullmatch(r"listens on 127\.0\.0\.1:\d+", facts(said, "STATUS")[0])
        program.signal(signal.SIGTERM)
        await manager.until("STOPPING=1")
        assert await program.end() == 0, program.everything()


STUCK: Final = """
import asyncio, signal, sys, threading
import edgepeer.notify
from edgepeer.peer.agent import run_agent
from edgepeer.settings import PeerSettings

def mark():
    while not done.wait(0.1):
        edgepeer.notify.notify(MARK="1")

def get_stuck():
    threading.Thread(target=mark).start()
    open(sys.argv[2]).close()
    done.set()

async def main():
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, get_stuck)
    await run_agent(PeerSettings(broker=sys.argv[1]), stop=asyncio.Event())

done = threading.Event()
asyncio.run(main())
"""
"""A peer whose event loop is stuck from SIGUSR2 on, until somebody opens its pipe; another thread goes on."""


async def test_a_loop_that_is_stuck_does_not_feed_the_watchdog(manager: Manager, tmp_path: Path) -> None:
    told = {"NOTIFY_SOCKET": str(manager.path), **WATCHDOG}
    async with EmbeddedBroker() as broker:
        os.mkfifo(tmp_path / "pipe")
        stuck = python("-c", STUCK, broker.address.url(), "pipe", home=tmp_path, **told)
        async with stuck as program:
            await manager.until("WATCHDOG=1", 2)
            program.signal(signal.SIGUSR2)
            await manager.until("MARK=1", 2)  # what was on its way has come
            said = await manager.until("MARK=1", 8)  # two times the watchdog's patience
            assert facts(said, "WATCHDOG") == []
            os.close(os.open(tmp_path / "pipe", os.O_WRONLY))
            await manager.until("WATCHDOG=1", 2)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NOTIFY_SOCKET": ""},
        {"NOTIFY_SOCKET": "/nonexistent/notify", "WATCHDOG_USEC": "1000000"},
        {"NOTIFY_SOCKET": "/nonexistent/notify", "WATCHDOG_USEC": "soon"},
        {"NOTIFY_SOCKET": "@" + "x" * 200},
    ],
)
async def test_without_a_manager_that_listens_nothing_is_lost(environment: dict[str, str], tmp_path: Path) -> None:
    async with EmbeddedBroker() as broker:
        peer = edgepeer("peer", "--broker", broker.address.url(), home=tmp_path, **environment)
        async with peer as program:
            await program.said("view 1 of generation")
            program.signal(signal.SIGTERM)
            assert await program.end() == 0, program.everything()


async def test_only_who_is_watched_feeds_the_watchdog(manager: Manager, tmp_path: Path) -> None:
    told = {"NOTIFY_SOCKET": str(manager.path), **WATCHDOG, "WATCHDOG_PID": "1"}
    async with edgepeer("broker", "--listen", "127.0.0.1:0", home=tmp_path, **told) as program:
        said = await manager.until("READY=1")
        program.signal(signal.SIGTERM)
        said += await manager.until("STOPPING=1")
        assert facts(said, "WATCHDOG") == []
        assert await program.end() == 0, program.everything()


async def test_a_status_is_one_line(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(manager.path))
    notify(STATUS="view 7,\nMAINPID=1")
    assert manager.rest() == ["STATUS=view 7, MAINPID=1"]
