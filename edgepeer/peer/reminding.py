"""Sees to it that a device's broker tells what the fabric is at: it may have lost its memory, or hear of that last.

The members of the view take turns: the head says it at once, and each other a while after the one before it. So it is
said once, as a rule; and also where the head is gone, or has yet to find that broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from edgepeer.ids import PeerId
from edgepeer.peer.bell import Bell
from edgepeer.topology.view import View

__all__ = ["TURN_S", "Reminder", "Speaker"]

TURN_S: Final = 0.5
"""How much longer each member waits than the one before it: what one says has come back to the others by then."""


class Speaker(Protocol):
    """As much of a peer as this takes."""

    id: PeerId
    bell: Bell

    @property
    def view(self) -> View | None: ...


class Reminder:
    """Of one device.

    Args:
        peer: its bell rings whenever the answer of `untold` may be another.
        untold: whether the broker that the device is connected with has something to be told.
        tell: tells it; it is not untold then.
    """

    def __init__(self, peer: Speaker, *, untold: Callable[[], bool], tell: Callable[[], None]) -> None:
        self._peer = peer
        self._untold = untold
        self._tell = tell

    async def run(self) -> None:
        """Until cancelled."""
        bell, clock = self._peer.bell, asyncio.get_running_loop().time
        before, due = None, None
        while True:
            count, turn = bell.count, self._turn
            if turn != before:
                before, due = turn, None if turn is None else clock() + turn * TURN_S
            if due is not None and due <= clock():
                self._tell()
                await asyncio.sleep(0)  # whatever has come of it
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await bell.wait(count)

    @property
    def _turn(self) -> int | None:
        """How many come before this device; None: it is no member, or there is nothing to be told."""
        view = self._peer.view
        return view.position(self._peer.id) if self._untold() and view is not None and self._peer.id in view else None
