"""Frames between peers of one event loop, without sockets. Payloads are copied once, as TCP would."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import count
from typing import Final

from edgepeer.errors import ConfigError
from edgepeer.transport.base import Accept, Receiver, Traffic
from edgepeer.wire.codec import decode_header, decode_prelude, encode, has_document
from edgepeer.wire.frames import Bye, Frame

__all__ = ["MemoryHub", "MemoryTransport"]

_BATCH: Final = 16  # frames a channel delivers before others have their turn


class _MemoryChannel:
    """One end. What it sends is delivered to `other` from the event loop, in order."""

    holder = None

    def __init__(self, remote: str, traffic: Traffic) -> None:
        self.remote = remote
        self._traffic = traffic
        self.other: _MemoryChannel | None = None
        self.receiver: Receiver | None = None
        self._queue: deque[tuple[bytes, memoryview | bytes]] = deque()
        self._scheduled = False
        self._closing = False
        self._deaf = False

    def send(self, frame: Frame, payload: memoryview | bytes | None = None) -> None:
        other = self.other
        if other is None or self._closing:
            return
        data = payload if payload is not None else b""
        head = encode(frame, len(data))
        self._traffic.bytes_sent += len(head) + len(data)
        other._queue.append((head, data))
        other._schedule()

    def progressed(self) -> float | None:
        return None  # frames arrive whole

    def missing(self, now: float) -> tuple[float, float] | None:
        return None  # nothing gets lost

    @property
    def undelivered(self) -> int:
        return 0

    def close(self, reason: str) -> None:
        if self._closing:
            return
        self.send(Bye(reason=reason[:250]))
        self._closing = self._deaf = True
        asyncio.get_running_loop().call_soon(self._lost, reason)

    def abort(self, reason: str) -> None:
        self._closing = self._deaf = True
        asyncio.get_running_loop().call_soon(self._lost, reason)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        for _ in range(_BATCH):
            if not self._queue or self.receiver is None or self._deaf:
                break
            head, data = self._queue.popleft()
            kind, header_bytes, size = decode_prelude(head)
            frame = decode_header(kind, head[-header_bytes:], size)
            self._traffic.bytes_received += len(head) + size
            if has_document(frame) and not self.receiver.admits(frame, size):
                break
            document = memoryview(bytearray(data)) if has_document(frame) else None
            target = document if document is not None else self.receiver.sink(frame, size)
            if target is not None and document is None:
                target[:] = data
            self.receiver.received(frame, document, size, target is not None, 0.0)
        if self._queue and self.receiver is not None and not self._deaf:
            self._schedule()

    def _lost(self, reason: str) -> None:
        other, self.other = self.other, None
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver.closed(reason)
        if other is not None:
            other.other = None
            other._closing = True
            asyncio.get_running_loop().call_soon(other._drain, reason)

    def _drain(self, reason: str) -> None:
        """The other end is closed: hear what it said before, then close too."""
        while self._queue and self.receiver is not None and not self._deaf:
            self._deliver()
        self._lost(f"closed by the other end: {reason}")


class MemoryHub:
    """The addresses of one in-memory network."""

    def __init__(self) -> None:
        self._doors: dict[str, tuple[Accept, Traffic]] = {}
        self._ports = count(1)

    def transport(self) -> MemoryTransport:
        return MemoryTransport(self)


class _MemoryListener:
    def __init__(self, doors: dict[str, tuple[Accept, Traffic]], address: str) -> None:
        self._doors = doors
        self.address = address

    async def close(self) -> None:
        self._doors.pop(self.address, None)


class MemoryTransport:
    """One peer's way into the hub."""

    def __init__(self, hub: MemoryHub) -> None:
        self._hub = hub
        self.traffic = Traffic()

    async def listen(self, address: str, accept: Accept) -> _MemoryListener:
        host, _, port = address.rpartition(":")
        bound = address if port != "0" else f"{host}:{next(self._hub._ports)}"
        if bound in self._hub._doors:
            raise ConfigError(f"listen {address}: address already in use; use another address or port")
        self._hub._doors[bound] = (accept, self.traffic)
        return _MemoryListener(self._hub._doors, bound)

    async def dial(self, address: str, accept: Accept, *, timeout: float, quiet: bool = False) -> _MemoryChannel:
        door = self._hub._doors.get(address)
        if door is None:
            raise ConnectionRefusedError(f"nobody listens at {address}")
        here, there = _MemoryChannel(address, self.traffic), _MemoryChannel("memory", door[1])
        here.other, there.other = there, here
        there.receiver = door[0](there)
        here.receiver = accept(here)
        return here
