"""A device's agent: one peer that takes part in whatever job its fabric announces, until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from edgepeer.errors import JobError, WireError
from edgepeer.fabric import events as seen
from edgepeer.peer.api import Peer
from edgepeer.peer.job_run import JobRun
from edgepeer.peer.round_log import RoundLog
from edgepeer.training.job import Job
from edgepeer.wire.documents import unpack

if TYPE_CHECKING:
    from edgepeer.settings import PeerSettings

__all__ = ["run_agent"]

_log = logging.getLogger(__name__)


async def run_agent(settings: PeerSettings, *, stop: asyncio.Event) -> None:
    """Run one peer until `stop` is set, then leave.

    Raises:
        ConfigError: a setting can't be used on this device.
        FabricError: the broker can't be reached, or refuses us.
    """
    peer = Peer(
        settings.broker,
        settings.fabric,
        peer_id=settings.peer_id,
        state_dir=settings.state_dir,
        listen=settings.listen,
        advertise=settings.advertise,
        fanout=settings.fanout,
        protocol=settings.protocol,
        static_timeout=settings.static_timeout,
    )
    with RoundLog(settings.round_log) as round_log:
        agent = _Agent(peer, settings, round_log)
        # One thread computes; the loop's thread only moves frames.
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="trainer") as worker:
            async with peer:
                _log.info("peer %s listens on %s, fabric %s", peer.id, peer.address, settings.fabric)
                await agent.run(worker, stop)


class _Agent:
    """Starts and ends job runs as the fabric's job changes."""

    def __init__(self, peer: Peer, settings: PeerSettings, round_log: RoundLog) -> None:
        self._peer = peer
        self._settings = settings
        self._round_log = round_log
        self._job: Job | None = None
        self._job_told = False
        self._changed = asyncio.Event()
        peer.on_fabric_event = self._hear

    def _hear(self, event: seen.FabricEvent) -> None:
        match event:
            case seen.Connected():
                self._job_told = False
            case seen.JobSeen(payload):
                self._job_told = True
                self._see(payload)
            case seen.Synced() if not self._job_told and self._job is not None:
                # The broker has lost its memory. Joiners need the job, so the coordinator puts it back.
                if self._peer.view is not None and self._peer.view.coordinator == self._peer.id:
                    self._peer.fabric.publish_retained(self._peer.fabric.topics.job, self._job)

    def _see(self, payload: bytes | None) -> None:
        try:
            job = unpack(payload, Job) if payload is not None else None
        except WireError as error:
            _log.warning("job ignored: %s", error)
            return
        if job is None:
            self._peer.fabric.forget(self._peer.fabric.topics.job)
        if (job.id if job is not None else None) != (self._job.id if self._job is not None else None):
            self._job = job
            self._changed.set()

    async def run(self, worker: ThreadPoolExecutor, stop: asyncio.Event) -> None:
        while not stop.is_set():
            self._changed.clear()
            job = self._job
            async with asyncio.TaskGroup() as tasks:
                waits = [tasks.create_task(stop.wait()), tasks.create_task(self._changed.wait())]
                run = tasks.create_task(self._take_part(job, worker)) if job is not None else None
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                for task in [*waits, *([run] if run is not None else [])]:
                    task.cancel()

    async def _take_part(self, job: Job, worker: ThreadPoolExecutor) -> None:
        run = JobRun(self._peer, job, self._settings, worker, self._round_log)
        try:
            await run.run()
        except JobError as error:
            _log.error("job %s: %s", job.id, error)
            # Whoever can't do this job must not keep the others waiting, but may do the next one.
            self._peer.stand_aside()
            try:
                await asyncio.Event().wait()
            finally:
                self._peer.come_back()
        finally:
            run.close()
