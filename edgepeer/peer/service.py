"""A peer as a service: systemd hears when it listens, how it stands, that its event loop turns, and that it leaves.

Ready is a peer that listens. A broker that is away is no reason to take it for one that has not come up.
"""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Final, Self

from edgepeer.notify import notify, tend_watchdog
from edgepeer.peer.api import Peer

__all__ = ["Service"]

_LOOK_S: Final = 1.0
"""How often to look whether something is in the fleet's way: no bell rings for that."""


class Service:
    """Tells of one peer while its context is open; the peer need not have started."""

    def __init__(self, peer: Peer, stop: asyncio.Event) -> None:
        self._peer = peer
        self._stop = stop
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(work, name="service") for work in (tend_watchdog(), self._tell())]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _tell(self) -> None:
        telling = asyncio.create_task(self._follow())
        try:
            await self._stop.wait()
        finally:
            telling.cancel()
        notify(STOPPING="1", STATUS="leaving")

    async def _follow(self) -> None:
        bell, ready, said = self._peer.bell, False, ""
        while True:
            count = bell.count
            if self._peer.address:
                text = self._standing()
                if not ready:
                    notify(READY="1", STATUS=text)
                elif text != said:
                    notify(STATUS=text)
                ready, said = True, text
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await bell.wait(count)

    def _standing(self) -> str:
        peer = self._peer
        if peer.broker_there is None:
            return f"listens on {peer.address}, looks for a broker"
        view = peer.view
        text = f"view {view.epoch}, {view.size} peers" if view is not None else "in no view"
        if peer.waits:
            text += f"; waits: {peer.waits}"
        return text if peer.broker_there else f"{text}; the broker is away"
