"""Renewal beside whatever else a process does, where it has joined a fleet; loads cryptography then, and only then."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgepeer.trust.identity import Identity

__all__ = ["kept"]

_log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def kept(identity: Identity | None) -> AsyncIterator[None]:
    """While this is open, the identity has its certificate renewed in time, takes what is put into its directory, and
    writes there beside the event loop what may be written later. None: there is no fleet."""
    if identity is None:
        yield
        return
    from edgepeer.enrol.renewal import keep_renewed

    task = asyncio.create_task(keep_renewed(identity), name="renewal")
    task.add_done_callback(_tell)
    async with identity.later:
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _tell(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("certificates are renewed no more, by a mistake of ours", exc_info=error)
