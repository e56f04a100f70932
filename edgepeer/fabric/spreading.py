"""The list of who is out of the fleet, on MQTT: whoever has a newer one than the broker says it.

All hear at once that a broker has none, or an old one. Each waits for a while of its own before it says its list, and
says nothing if another has: 500 peers that come back to an empty broker make a few messages, not 500 each.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from edgepeer.trust.names import Role

if TYPE_CHECKING:
    from edgepeer.trust.identity import Identity

__all__ = ["Spreading"]

_JITTER: Final = random.SystemRandom()  # nobody's seed is disturbed
_WITHIN_S: Final = 0.5
_PAUSE_S: Final = 1.0
"""Who writes old lists there again and again is not answered more often."""


class Spreading:
    """Of one client.

    Args:
        say: makes the broker keep a list.
    """

    def __init__(self, identity: Identity, say: Callable[[bytes], None]) -> None:
        self._identity = identity
        self._say = say
        self._there: bytes | None = None
        self._synced = False
        self._work = asyncio.Event()

    def begin(self) -> None:
        """There is a new connection: what the broker has comes now."""
        self._there, self._synced = None, False

    def heard(self, signed: bytes) -> None:
        """The broker has this list.

        Raises:
            TrustError: it is none of this fleet's.
        """
        self._there = signed
        try:
            self._identity.evictions.accept(signed)
        finally:
            if self._synced:
                self._work.set()

    def look(self) -> None:
        """All that the broker has was heard, or there is a newer list."""
        self._synced = True
        self._work.set()

    @property
    def there(self) -> bytes:
        """The list that the broker has, whatever it is worth; empty: none has been heard of."""
        return self._there or b""

    @property
    def _missing(self) -> bool:
        evictions = self._identity.evictions
        # The list that a fleet begins with, which all have, has nobody in it.
        return evictions.signed != self._there and (evictions.number > 1 or bool(evictions.serials))

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._work.wait()
            self._work.clear()
            if not (self._synced and self._missing):
                continue
            if self._identity.holder.role is not Role.OPERATOR:  # who has just evicted somebody does not wait
                await asyncio.sleep(_JITTER.uniform(0, _WITHIN_S))
            if self._missing:
                self._there = self._identity.evictions.signed
                self._say(self._there)
                await asyncio.sleep(_PAUSE_S)
