"""Waiting for "something has changed", for any number of waiters, without losing a change."""

from __future__ import annotations

import asyncio

__all__ = ["Bell"]


class Bell:
    """Note `count`, look at the state, then wait for the count to move on: nothing slips in between."""

    def __init__(self) -> None:
        self.count = 0
        self._waiters: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        """Something has changed: wake all who wait."""
        self.count += 1
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, count: int) -> None:
        """Return as soon as the bell has rung since `count` was read."""
        if self.count == count:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
