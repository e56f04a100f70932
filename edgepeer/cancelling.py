"""A cancellation that comes together with something else."""

from __future__ import annotations

import asyncio

__all__ = ["mind_cancellation"]


def mind_cancellation() -> None:
    """Go no further if this task has been cancelled. To be called where that may have been forgotten: a TaskGroup that
    is cancelled while one of its tasks fails raises that failure alone, and Python 3.11's wait_for returns what has
    come in the same moment."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
