"""Several trees at once, each for its part of the vector, in segments, without any protocol: no epochs, no
contributors, no deadlines, no digest. The trees are those of a view's lanes: the same order of peers, turned.

It is what there is to be had of a network by such trees: whole segments are added as soon as all children's are there,
and passed on; two neighbours share one connection, whatever it is for. It can hang, and mixes up rounds, if any dies.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["BareLanes", "Windows"]

_FANOUT: Final = 2
_HEAD: Final = struct.Struct("<IIII")
"""Rank of the sender; lane; whether it goes up; segment."""
_HELLO: Final = 0xFFFFFFFF


class Windows(Protocol):
    """Told of what arrives: see ReceiveWindows."""

    def received(self, sock: Any, count: int) -> None: ...


class _Link(asyncio.BufferedProtocol):
    """Reads a head, then a segment right to where it belongs."""

    def __init__(self, lanes: BareLanes) -> None:
        self._lanes = lanes
        self._head = memoryview(bytearray(_HEAD.size))
        self._target, self._received = self._head, 0
        self._in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # TCP alone
        self._transport = transport
        self._socket = transport.get_extra_info("socket")
        self._measured = self._lanes.tune(self._socket)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._target[self._received :]

    def buffer_updated(self, nbytes: int) -> None:
        self._received += nbytes
        if self._measured and not self._in_head:
            self._lanes.windows.received(self._socket, nbytes)
        if self._received < len(self._target):
            return
        self._received = 0
        rank, lane, up, segment = self._what = _HEAD.unpack(self._head) if self._in_head else self._what
        if rank == _HELLO:
            self._lanes.opened(lane, self)
        elif self._in_head:
            self._in_head, self._target = False, self._lanes.place(rank, lane, up, segment)
        else:
            self._in_head, self._target = True, self._head
            self._lanes.arrived(rank, lane, up, segment)

    def send(self, head: bytes, payload: memoryview | bytes = b"") -> None:
        self._transport.writelines((head, payload))

    def close(self) -> None:
        self._transport.close()


@dataclass(eq=False)
class _Lane:
    """One tree, as seen from one rank, and its part of the vector."""

    parent: int | None
    children: list[int]
    cuts: list[tuple[int, int]]
    """Elements [start, end) of each segment."""
    above: dict[int, NDArray[np.float32]]
    """What comes from each child."""
    counts: list[int] = field(default_factory=list)
    """Of each segment: how many of its parts are here, the own one included."""


class BareLanes:
    """One rank. A result stays valid until the next allreduce.

    Args:
        segment_bytes: what is added and passed on at once.
        tune: called with each connection's socket; whether `windows` are to be told of what arrives.
    """

    def __init__(
        self,
        rank: int,
        peers: int,
        elements: int,
        host: str,
        *,
        lanes: int,
        segment_bytes: int,
        tune: Callable[[socket.socket], bool],
        windows: Windows,
    ) -> None:
        self._rank, self._peers, self._host = rank, peers, host
        self.tune, self.windows = tune, windows
        self._links: dict[int, _Link] = {}
        self._own: NDArray[np.float32] | None = None
        self._sum = np.zeros(elements, np.float32)
        self._view = memoryview(self._sum).cast("B")
        self._lanes = [self._lane(lane, lanes, elements, max(1, segment_bytes // 4)) for lane in range(lanes)]
        self._segments = sum(len(lane.cuts) for lane in self._lanes)
        self._missing = 0

    def _lane(self, number: int, lanes: int, elements: int, step: int) -> _Lane:
        turn = number * self._peers // lanes
        place = (self._rank - turn) % self._peers
        first = _FANOUT * place + 1
        start, end = number * elements // lanes, (number + 1) * elements // lanes
        children = [(at + turn) % self._peers for at in range(first, min(first + _FANOUT, self._peers))]
        cuts = [(at, min(at + step, end)) for at in range(start, end, step)]
        return _Lane(
            parent=((place - 1) // _FANOUT + turn) % self._peers if place else None,
            children=children,
            cuts=cuts,
            above={child: np.zeros(elements, np.float32) for child in children},
            counts=[0] * len(cuts),
        )

    async def listen(self) -> tuple[str, int]:
        """Listen on a free port and return the address."""
        loop = asyncio.get_running_loop()
        self._met = loop.create_future()
        self._server = await loop.create_server(lambda: _Link(self), self._host, 0)
        return self._host, self._server.sockets[0].getsockname()[1]

    async def connect(self, addresses: list[tuple[str, int]]) -> None:
        """Connect to neighbours of smaller rank, given every rank's address, and wait for the others."""
        loop = asyncio.get_running_loop()
        neighbours = set(self._neighbours())
        self._wanted = len(neighbours)
        for rank in sorted(neighbours):
            if rank < self._rank:
                _, link = await loop.create_connection(lambda: _Link(self), *addresses[rank])
                link.send(_HEAD.pack(_HELLO, self._rank, 0, 0))
                self._meet(rank, link)
        if len(self._links) < self._wanted:
            await self._met

    async def allreduce(self, vector: NDArray[np.float32]) -> NDArray[np.float32]:
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._own, self._missing = vector, self._missing + self._segments
        for number, lane in enumerate(self._lanes):
            for segment in range(len(lane.cuts)):
                self._count(number, segment)
        await self._done
        return self._sum

    async def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._server.close()

    def opened(self, rank: int, link: _Link) -> None:
        """A neighbour of larger rank has connected."""
        self._meet(rank, link)
        if len(self._links) == getattr(self, "_wanted", -1) and not self._met.done():
            self._met.set_result(None)

    def place(self, rank: int, lane: int, up: int, segment: int) -> memoryview:
        """Where a segment belongs."""
        start, end = self._lanes[lane].cuts[segment]
        view = memoryview(self._lanes[lane].above[rank]).cast("B") if up else self._view
        return view[4 * start : 4 * end]

    def arrived(self, rank: int, lane: int, up: int, segment: int) -> None:
        """All of it is there."""
        if up:
            self._count(lane, segment)
        else:
            self._finish(lane, segment)

    def _meet(self, rank: int, link: _Link) -> None:
        self._links[rank] = link

    def _neighbours(self) -> Iterator[int]:
        for lane in self._lanes:
            yield from lane.children
            if lane.parent is not None:
                yield lane.parent

    def _count(self, number: int, segment: int) -> None:
        lane = self._lanes[number]
        lane.counts[segment] += 1
        if lane.counts[segment] <= len(lane.children):
            return
        assert self._own is not None
        lane.counts[segment] = 0
        start, end = lane.cuts[segment]
        total = self._own[start:end]
        for child in lane.children:
            total = np.add(total, lane.above[child][start:end], out=self._sum[start:end])
        if lane.parent is None:
            self._sum[start:end] = total
            self._finish(number, segment)
        else:
            self._links[lane.parent].send(_HEAD.pack(self._rank, number, 1, segment), memoryview(total).cast("B"))

    def _finish(self, number: int, segment: int) -> None:
        lane = self._lanes[number]
        start, end = lane.cuts[segment]
        for child in lane.children:
            self._links[child].send(_HEAD.pack(self._rank, number, 0, segment), self._view[4 * start : 4 * end])
        self._missing -= 1
        if not self._missing:
            self._done.set_result(None)
