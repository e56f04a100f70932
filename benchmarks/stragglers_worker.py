"""One device of stragglers.py: `python stragglers_worker.py NAME CONTROL_SOCKET RANK PEERS ELEMENTS OPTIONS`.

It holds a connection to the benchmark, with one JSON document per line each way: `{"open": system}` makes it a peer of
such a fleet, `{"round": {"number", "speed"}}` has it compute and add up once, `{"close": 0}` ends the peer. Computing
is waiting, as long as the model says that this device takes for its chunks in that round; the gradients are whole
numbers, other ones for each chunk and round, so that every sum has one right value, which is checked outside the time.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
import uvloop
from numpy.typing import NDArray
from stragglers_model import names_of, seconds_of

import edgepeer
from edgepeer.baselines import MachineMaker

Vector = NDArray[np.float32]


class Device:
    """A device that is a peer of one fleet after the other."""

    def __init__(self, rank: int, peers: int, elements: int, options: dict[str, Any]) -> None:
        self._rank, self._peers, self._options = rank, peers, options
        self._names = names_of(peers)
        self._pattern = (np.arange(elements) % 1021).astype(np.float32)
        self._vector = np.empty(elements, np.float32)
        self._stack = AsyncExitStack()
        self._number = 0
        self._seconds = 0.0
        self._share = 1.0
        self._begun: list[tuple[float, float]] = []

    async def open(self, system: dict[str, Any]) -> None:
        """Be a peer of such a fleet: all are in."""
        self._coded = system["code"] != "none"
        peer = edgepeer.Peer(
            self._options["broker"],
            system["fabric"],
            peer_id=self._names[self._rank],
            listen=f"{self._options['address']}:0",
            insecure=True,  # in network namespaces of our own
            fanout=system["fanout"],
            machine=MachineMaker(system["protocol"]),
            code=system["code"],
        )
        self._peer = await self._stack.enter_async_context(peer)
        view = await self._peer.ready(peers=self._peers)
        self._slots = [self._names.index(name) for name in view.slots]

    async def close(self) -> None:
        await self._stack.aclose()

    async def round(self, number: int, speed: str) -> dict[str, Any]:
        """Compute and add up. When this device has the sum, and how it is."""
        self._number, self._begun = number, []
        self._seconds = seconds_of(self._rank, self._peers, number, speed)
        if self._coded:
            outcome = await self._peer.allreduce_chunks(self._gradient, pace=self._pace)
            chunks: tuple[int, ...] = outcome.chunks
        else:
            vector, _ = await self._gradient(self._rank, self._peers)
            await asyncio.sleep(self._pace(self._rank))
            outcome = await self._peer.allreduce(vector)
            chunks = tuple(map(self._names.index, outcome.contributors))
        end = time.monotonic()
        return {
            "end": end,
            "computed": self._share * sum(min(1.0, (end - at) / seconds) for at, seconds in self._begun),
            "exact": outcome.exact,
            "chunks": len(chunks),
            "error": self._error(outcome.vector, chunks),
            "digest": outcome.digest,
            "slots": self._slots,
        }

    async def _gradient(self, chunk: int, chunks: int) -> tuple[Vector, float]:
        self._share = self._peers / chunks  # what a chunk is of the data that a peer has where nothing is coded
        self._begun.append((time.monotonic(), self._pace(chunk)))
        np.add(self._pattern, np.float32(chunk + self._number % 1000), out=self._vector)
        return self._vector, 1.0

    def _pace(self, chunk: int) -> float:
        return self._share * self._seconds

    def _error(self, got: Vector, chunks: tuple[int, ...]) -> float:
        """By how much the sum over these chunks is wrong at most, as a part of its greatest element."""
        right = self._pattern * np.float64(len(chunks)) + sum(chunks) + len(chunks) * (self._number % 1000)
        return float(np.abs(got - right).max() / max(right.max(), 1.0))


async def serve(control: str, rank: int, peers: int, elements: int, options: dict[str, Any]) -> None:
    reader, writer = await asyncio.open_unix_connection(control, limit=1 << 20)

    def reply(**document: object) -> None:
        writer.write(json.dumps(document).encode() + b"\n")

    device = Device(rank, peers, elements, options)
    reply(rank=rank, pid=os.getpid(), address=options["address"], network=os.readlink("/proc/self/ns/net"))
    while line := await reader.readline():
        ((command, argument),) = json.loads(line).items()
        if command == "round":
            reply(**await device.round(**argument))
        elif command == "stop":
            break
        else:
            if command == "open":
                await device.open(argument)
            elif command == "close":
                await device.close()
            reply()
    await device.close()


def main() -> None:
    _, control, rank, peers, elements, options = sys.argv[1:]
    uvloop.run(serve(control, int(rank), int(peers), int(elements), json.loads(options)))


if __name__ == "__main__":
    main()
