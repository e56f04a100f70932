"""A fabric client under observation, for tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

from way_to_broker import Gate

from edgepeer.errors import FabricError
from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.fabric.client import FabricClient
from edgepeer.fabric.documents import Presence
from edgepeer.fabric.events import FabricEvent
from edgepeer.fabric.mosquitto import Mosquitto

__all__ = [
    "DEADLINE_S",
    "Broker",
    "Guest",
    "Invite",
    "OpenGate",
    "StartBroker",
    "presence",
    "scripted_broker",
    "why_not",
]

DEADLINE_S = 60.0

Broker = EmbeddedBroker | Mosquitto
StartBroker = Callable[..., Awaitable[Broker]]
Invite = Callable[..., Awaitable["Guest"]]
OpenGate = Callable[[BrokerAddress], Awaitable[Gate]]


class Guest:
    """A client, everything it was told, and a way to wait for more."""

    def __init__(self, address: BrokerAddress, name: str, **options: object) -> None:
        self.events: list[FabricEvent] = []
        self._news = asyncio.Event()
        self.client = FabricClient(address, "lab", name, on_event=self._note, **options)  # type: ignore[arg-type]
        self.task: asyncio.Task[None] | None = None

    def _note(self, event: FabricEvent) -> None:
        self.events.append(event)
        self._news.set()

    async def until(self, condition: Callable[[list[FabricEvent]], bool]) -> None:
        """Return once the condition holds for the events so far."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition(self.events):
                self._news.clear()
                await self._news.wait()

    async def until_seen(self, *events: FabricEvent) -> None:
        await self.until(lambda seen: all(event in seen for event in events))

    def count(self, kind: type) -> int:
        return sum(isinstance(event, kind) for event in self.events)

    async def crash(self) -> None:
        """End without a word to the broker."""
        assert self.task is not None
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


async def why_not(client: FabricClient) -> str:
    """What a client says that can't get in, once it has tried all its brokers, however long that takes."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                await client.connected(0.1)
            except FabricError as error:
                if not str(error).endswith("timed out after 0.1 s"):
                    return str(error)
            else:
                raise AssertionError("it was let in")


def presence(name: str, incarnation: int = 1) -> Presence:
    return Presence(id=name, incarnation=incarnation, addresses=("127.0.0.1:4000", "[::1]:4000"), version="0.1.0")


@contextlib.asynccontextmanager
async def scripted_broker(
    *, connack: int = 0, suback: int = 1, subacks: int | None = None, tells: Iterable[bytes] = ()
) -> AsyncIterator[BrokerAddress]:
    """Acknowledges whatever it gets, with these codes, and delivers nothing of it.

    `subacks`: how many codes it answers a subscription with; None: one for each topic. `tells`: what it sends after
    that, piece by piece.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                kind, length = await reader.readexactly(2)
                if length >= 128:
                    length += 128 * (await reader.readexactly(1))[0] - 128
                body = await reader.readexactly(length)
                if kind >> 4 == 1:  # CONNECT
                    writer.write(bytes((0x20, 2, 0, connack)))
                elif kind >> 4 == 8:  # SUBSCRIBE
                    count = body.count(b"edgepeer/") if subacks is None else subacks
                    writer.write(bytes((0x90, 2 + count)) + body[:2] + bytes([suback] * count))
                    for piece in tells:
                        writer.write(piece)
                        await writer.drain()
                elif kind >> 4 == 3:  # PUBLISH
                    at = 2 + int.from_bytes(body[:2], "big")
                    writer.write(bytes((0x40, 2)) + body[at : at + 2])
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield BrokerAddress(host="127.0.0.1", port=server.sockets[0].getsockname()[1])
