"""What a peer sends to single others through the broker: the data path of last resort.

Unlike documents it does not wait for a broker: what can't be on its way at once, within bounds, is not taken,
and what a broken connection leaves behind is gone. Its owner knows better what is still worth sending.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

import aiomqtt

from edgepeer.errors import ProtocolBug, first_error
from edgepeer.fabric.connection import publish
from edgepeer.wire.documents import DOCUMENT_LIMIT_BYTES

__all__ = ["RELAY_LIMIT_BYTES", "RelayQueue"]

RELAY_LIMIT_BYTES: Final = DOCUMENT_LIMIT_BYTES + (64 << 10)
"""The longest message, in bytes: a letter may hold a document, sealed and with a header, and is not cut into pieces."""


class RelayQueue:
    """Messages between their sender and the broker's acknowledgement, in order.

    Args:
        max_bytes, max_count: how much may be unacknowledged; more is refused.
    """

    def __init__(self, max_bytes: int = 8 << 20, max_count: int = 1024) -> None:
        self._max_bytes = max_bytes
        self._max_count = max_count
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._bytes = 0
        self._count = 0
        self._open = False
        self._work = asyncio.Event()

    def add(self, topic: str, payload: bytes) -> bool:
        """Whether the message is on its way."""
        if len(payload) > RELAY_LIMIT_BYTES:
            raise ProtocolBug(f"relayed message of {len(payload)} bytes is over the limit of {RELAY_LIMIT_BYTES}")
        if not self._open or self._count >= self._max_count or self._bytes + len(payload) > self._max_bytes:
            return False
        self._bytes += len(payload)
        self._count += 1
        self._waiting.append((topic, payload))
        self._work.set()
        return True

    def open(self) -> None:
        """Take messages for a new connection."""
        self._open = True

    def close(self) -> None:
        """The connection is over, and with it what was not yet acknowledged."""
        self._open = False
        self._waiting.clear()
        self._bytes = self._count = 0

    async def send(self, client: aiomqtt.Client, *, timeout: float) -> None:
        """Hand over to this connection until cancelled.

        Args:
            timeout: as of `publish`, for each message.

        Raises:
            aiomqtt.MqttError: the connection is of no use any more.
        """
        failure: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as deliveries:
                while True:
                    while self._waiting:
                        topic, payload = self._waiting.popleft()
                        # Tasks begin in the order of their making, and each hands its message over at once.
                        deliveries.create_task(self._deliver(client, topic, payload, timeout))
                    self._work.clear()
                    await self._work.wait()
        except* aiomqtt.MqttError as group:
            failure = first_error(group)  # raised here, early releases of Python 3.11 would put it in a group
        if failure is not None:
            raise failure from None

    async def _deliver(self, client: aiomqtt.Client, topic: str, payload: bytes, timeout: float) -> None:
        await publish(client, topic, payload, timeout=timeout)
        self._bytes -= len(payload)
        self._count -= 1
