"""A cancellation that comes together with something else, and one that something else calls for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

__all__ = ["mind_cancellation", "unless"]


def mind_cancellation() -> None:
    """Go no further if this task has been cancelled. To be called where that may have been forgotten: a TaskGroup that
    is cancelled while one of its tasks fails raises that failure alone, and Python 3.11's wait_for returns what has
    come in the same moment."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def unless(stop: asyncio.Event, doing: Awaitable[object]) -> bool:
    """Do that, in this task, and give it up as soon as `stop` is set, as if it were cancelled. Whether it is done."""
    limit = asyncio.timeout(None)

    async def watch() -> None:
        await stop.wait()
        limit.reschedule(asyncio.get_running_loop().time())

    watching = asyncio.create_task(watch())
    try:
        async with limit:
            await doing
    except TimeoutError:
        if not limit.expired():
            raise
    finally:
        watching.cancel()
    return not limit.expired()
