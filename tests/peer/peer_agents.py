"""Agents in the test's own event loop, over real TCP and MQTT, and a job for them.

They are patient with each other: on a busy machine that loop may stand for seconds, and who was dropped for it, and let
in again, trains on another part of the data.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final

import pytest

from edgepeer.baselines import MachineMaker
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.following.follow import run_job
from edgepeer.following.progress import JobProgress
from edgepeer.following.result import JobResult
from edgepeer.peer import job_run
from edgepeer.peer.agent import run_agent
from edgepeer.peer.machines import Machine, MachineFactory
from edgepeer.protocol.limits import Limits
from edgepeer.settings import PeerSettings
from edgepeer.topology.view import Member
from edgepeer.training.build import make_trainer
from edgepeer.training.datasets import Dataset
from edgepeer.training.job import Job
from edgepeer.training.trainer import Trainer
from edgepeer.wire.protocols import ProtocolName

__all__ = ["Patient", "agents", "built_trainers", "train"]

_PATIENCE_S: Final = 60.0


class Patient:
    """Makes machines that take nobody for gone who is only slow."""

    def __init__(self, machine: MachineFactory) -> None:
        self._machine = machine

    @property
    def protocol(self) -> ProtocolName:
        return self._machine.protocol

    def __call__(self, me: Member, *, limits: Limits, **how: Any) -> Machine:
        return self._machine(me, limits=replace(limits, silence_s=_PATIENCE_S), **how)


@contextlib.asynccontextmanager
async def agents(broker: EmbeddedBroker, count: int, **settings: object) -> AsyncIterator[None]:
    """So many agents, each as `edgepeer peer` runs it; they leave when the context ends."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            fields = {"broker": broker.address.url(), "fabric": "lab", "peer_id": f"p{number}", **settings}
            given = PeerSettings(**fields)  # type: ignore[arg-type]
            tasks.create_task(run_agent(given, machine=Patient(MachineMaker(given.protocol)), stop=stop))
        try:
            yield
        finally:
            stop.set()


async def train(broker: EmbeddedBroker, job: Job, *, timeout: float = 60.0) -> JobResult:
    """Let the agents train, to the end of the job."""
    progress = JobProgress(job, broker="embedded")
    return await run_job(progress, lambda _: None, broker=broker.address, fabric="lab", timeout=timeout)


def built_trainers(monkeypatch: pytest.MonkeyPatch) -> list[Trainer]:
    """Gets every trainer that an agent builds from now on.

    They are built one after the other: in one process they draw from one random generator.
    """
    built: list[Trainer] = []
    one_by_one = threading.Lock()

    def make(job: Job, data: Dataset, **device: Any) -> Trainer:
        with one_by_one:
            built.append(make_trainer(job, data, **device))
            return built[-1]

    monkeypatch.setattr(job_run, "make_trainer", make)
    return built
