"""How long a peer that leaves waits for the others to let it go.

the others                                   | it waits
---------------------------------------------+-----------------------------------------------
let it go                                    | no longer
have got some of what it has sent, a vector  | for 5 s more, and for a minute at most: on slow lines the end of the
or more of which was on its way 5 s ago      | last round may take that long, and would be lost with it
say nothing                                  | for 5 s
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from typing import Final

__all__ = ["let_go"]

LEAVE_S: Final = 5.0
_MOST_S: Final = 60.0
_LITTLE_BYTES: Final = 64 << 10
"""Less than that is no vector, but what is always on its way."""


async def let_go(left: asyncio.Event, undelivered: Callable[[], int]) -> None:
    """Wait.

    Args:
        left: set once the others have let this peer go.
        undelivered: how many bytes others have yet to get.
    """
    before = sys.maxsize
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_MOST_S):
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LEAVE_S):
                        await left.wait()
                        return
                still = undelivered()
                if not _LITTLE_BYTES < still < before:
                    return
                before = still
