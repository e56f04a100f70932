"""Round records on their way to whoever follows a job: in batches, so that fast rounds don't flood the broker."""

from __future__ import annotations

import asyncio
from typing import Final

from edgepeer.fabric.documents import MAX_RECORDS, RoundRecord, Telemetry
from edgepeer.peer.api import Peer
from edgepeer.training.job import Job

__all__ = ["RoundReporter"]

EVERY_S: Final = 0.25


class RoundReporter:
    """Collects records for up to EVERY_S seconds."""

    def __init__(self, peer: Peer, job: Job) -> None:
        self._peer = peer
        self._job = job
        self._records: list[RoundRecord] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, record: RoundRecord) -> None:
        self._records.append(record)
        if len(self._records) >= MAX_RECORDS:
            self._send()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._send)

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._records:
            telemetry = Telemetry(job=self._job.id, peer=self._peer.id, records=tuple(self._records))
            self._records.clear()
            self._peer.fabric.publish_event(self._peer.fabric.topics.telemetry(self._peer.id), telemetry)

    async def flush(self, timeout: float = 5.0) -> None:
        """Send what is there, and give the broker up to `timeout` seconds to take it."""
        self._send()
        await self._peer.fabric.flush(timeout)
