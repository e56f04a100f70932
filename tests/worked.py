"""How long something takes, not counting that the machine stands still."""

from __future__ import annotations

import asyncio
from typing import Final, Self

__all__ = ["Worked"]

_BEAT_S: Final = 0.01
_MOST_S: Final = 0.1


class Worked:
    """The seconds in which the event loop has worked, while this context is open: of a turn that takes longer, because
    the machine has other things to do, a tenth of a second counts. So a bound on them is no bound on the machine."""

    def __init__(self) -> None:
        self.seconds = 0.0

    async def __aenter__(self) -> Self:
        self._beats = asyncio.create_task(self._beat())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._beats.cancel()
        await asyncio.gather(self._beats, return_exceptions=True)

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(_BEAT_S)
            now = loop.time()
            self.seconds += min(now - last, _MOST_S)
            last = now
