"""A TaskGroup for callers who expect plain exceptions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

__all__ = ["task_group"]


@contextlib.asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """A TaskGroup that raises a single failure as itself, with the causes that it came with."""
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        if len(group.exceptions) > 1:
            raise
        error = group.exceptions[0]
        before = error.__cause__, error.__context__, error.__suppress_context__
        try:
            raise error
        finally:
            error.__cause__, error.__context__, error.__suppress_context__ = before
