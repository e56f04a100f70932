"""A binary tree allreduce without any protocol: no frames, no epochs, no contributors, no deadlines, no digest.

It is what edgepeer would cost if it promised nothing: whole vectors of one known size over BufferedProtocol
connections, added in place, up to the root and back. The distance between this and edgepeer is the price of
the protocol. It can hang, and mixes up rounds, if any peer dies.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["BareTree"]

_FANOUT = 2


class _Link(asyncio.BufferedProtocol):
    """Fills one buffer, calls back, and starts over."""

    def __init__(self, elements: int, filled: Callable[[], None], opened: Callable[[], None]) -> None:
        self.vector: NDArray[np.float32] = np.zeros(elements, np.float32)
        self._view = memoryview(self.vector).cast("B")
        self._received = 0
        self._filled, self._opened = filled, opened

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # TCP alone
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport = transport
        self._opened()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._received :]

    def buffer_updated(self, nbytes: int) -> None:
        self._received += nbytes
        if self._received == len(self._view):
            self._received = 0
            self._filled()

    def send(self, vector: NDArray[np.float32]) -> None:
        self._transport.write(memoryview(vector).cast("B"))

    def close(self) -> None:
        self._transport.close()


class BareTree:
    """One rank of the tree. A result stays valid until the next allreduce."""

    def __init__(self, rank: int, peers: int, elements: int, host: str) -> None:
        first = _FANOUT * rank + 1
        self._rank = rank
        self._host = host
        self._expected = len(range(first, min(first + _FANOUT, peers)))
        self._elements = elements
        self._children: list[_Link] = []
        self._parent: _Link | None = None
        self._sum: NDArray[np.float32] = np.zeros(elements, np.float32)
        self._own: NDArray[np.float32] | None = None
        self._arrived = 0

    async def listen(self) -> tuple[str, int]:
        """Listen on a free port and return the address."""
        loop = asyncio.get_running_loop()
        self._joined: asyncio.Future[None] = loop.create_future()
        self._server = await loop.create_server(self._new_child, self._host, 0)
        return self._host, self._server.sockets[0].getsockname()[1]

    async def connect(self, addresses: list[tuple[str, int]]) -> None:
        """Connect to the parent, given every rank's address, and wait for the children."""
        loop = asyncio.get_running_loop()
        if self._rank:
            parent = _Link(self._elements, self._result_arrived, lambda: None)
            await loop.create_connection(lambda: parent, *addresses[(self._rank - 1) // _FANOUT])
            self._parent = parent
        if self._expected:
            await self._joined

    async def allreduce(self, vector: NDArray[np.float32]) -> NDArray[np.float32]:
        self._own = vector
        self._done: asyncio.Future[NDArray[np.float32]] = asyncio.get_running_loop().create_future()
        self._add_up()
        return await self._done

    async def close(self) -> None:
        for link in (*self._children, *filter(None, [self._parent])):
            link.close()
        self._server.close()

    def _new_child(self) -> _Link:
        child = _Link(self._elements, self._child_arrived, self._child_opened)
        self._children.append(child)
        return child

    def _child_opened(self) -> None:
        if len(self._children) == self._expected:
            self._joined.set_result(None)

    def _child_arrived(self) -> None:
        self._arrived += 1
        self._add_up()

    def _add_up(self) -> None:
        if self._own is None or self._arrived < self._expected:
            return
        total = self._own
        for child in self._children:
            total = np.add(total, child.vector, out=self._sum)
        self._own, self._arrived = None, 0
        if self._parent:
            self._parent.send(total)
        else:
            self._finish(total)

    def _result_arrived(self) -> None:
        assert self._parent is not None
        self._finish(self._parent.vector)

    def _finish(self, result: NDArray[np.float32]) -> None:
        for child in self._children:
            child.send(result)
        self._done.set_result(result)
