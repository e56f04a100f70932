"""Processes inside an emulated network, that send, receive and measure for its tests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

from edgepeer.emulation.network import EmulatedNetwork
from edgepeer.processes import dies_with_parent

__all__ = ["DEADLINE_S", "Agent", "agents"]

DEADLINE_S = 90.0
_AGENT = r"""
import json, selectors, socket, sys, threading, time

address = sys.argv[1]
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind((address, 0))
listener = socket.create_server((address, 0))


def say(**fields):
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def serve(connection):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer, missing = bytearray(1 << 16), int.from_bytes(connection.recv(8), "big")
    while missing:
        missing -= connection.recv_into(buffer)
    connection.sendall(b"!")


def accept():
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


def receive():
    while True:
        text, sender = datagrams.recvfrom(4096)
        say(got=text.decode(), sender=sender[0])


for target in (accept, receive):
    threading.Thread(target=target, daemon=True).start()
say(datagrams=datagrams.getsockname()[1], stream=listener.getsockname()[1])
for line in sys.stdin:
    command, host, port, argument = json.loads(line)
    if command == "tell":
        for text in argument:
            datagrams.sendto(text.encode(), (host, port))
        say(done=0)
    else:
        connection = socket.create_connection((host, port), source_address=(address, 0))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begin = time.perf_counter()
        connection.sendall(argument.to_bytes(8, "big") + bytes(argument))
        connection.recv(1)
        say(done=time.perf_counter() - begin)
"""


class Agent:
    """One process in one peer's network."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self.process = process
        self.address = address
        self.got: list[tuple[str, str]] = []
        """What datagrams brought, and from which address."""
        self._answers: asyncio.Queue[float] = asyncio.Queue()
        self._news = asyncio.Event()

    async def start(self) -> None:
        assert self.process.stdout is not None
        ports = json.loads(await self.process.stdout.readline())
        self.datagrams, self.stream = ports["datagrams"], ports["stream"]
        self._reading = asyncio.create_task(self._read(self.process.stdout))

    async def tell(self, other: Agent, *texts: str) -> None:
        """Send datagrams, and don't look after them."""
        await self._do("tell", other.address, other.datagrams, texts)

    async def transfer(self, other: Agent, size: int) -> float:
        """Send bytes over a new connection; seconds from sending the first to hearing that all are there."""
        return await self._do("transfer", other.address, other.stream, size)

    async def hears(self, text: str, sender: Agent) -> None:
        """Wait for a datagram."""
        await self._until(lambda: (text, sender.address) in self.got)

    async def hears_many(self, count: int) -> None:
        """Wait until so many datagrams have come: who is held up for long loses some."""
        await self._until(lambda: len(self.got) >= count)

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def end(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self._reading

    async def _do(self, *command: object) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        async with asyncio.timeout(DEADLINE_S):
            return await self._answers.get()

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            said: dict[str, Any] = json.loads(line)
            if "done" in said:
                self._answers.put_nowait(said["done"])
            else:
                self.got.append((said["got"], said["sender"]))
                self._news.set()


@contextlib.asynccontextmanager
async def agents(network: EmulatedNetwork, *names: str) -> AsyncIterator[tuple[Agent, ...]]:
    """An agent in the network of each of these peers."""
    async with contextlib.AsyncExitStack() as stack:
        started = []
        for name in names:
            process = await asyncio.create_subprocess_exec(
                *network.prefix(name),
                sys.executable,
                "-I",
                "-c",
                _AGENT,
                network.address(name),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                preexec_fn=dies_with_parent(signal.SIGKILL),
            )
            agent = Agent(process, network.address(name))
            await agent.start()
            stack.push_async_callback(agent.end)
            started.append(agent)
        yield tuple(started)
