"""A whole data-parallel job in virtual time: `JobRun` at each simulated peer, with a small model."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Final

from programmed_peer import Program, ProgrammedPeer, ProgrammedStory

from edgepeer.coding.speed import parse_speed
from edgepeer.errors import JobError
from edgepeer.fabric.documents import PeerReport
from edgepeer.ids import PeerId
from edgepeer.peer.calls import ROUND_TIMEOUT_S
from edgepeer.peer.checkpoints import Checkpoints
from edgepeer.peer.job_run import JobRun
from edgepeer.peer.metrics import Metrics
from edgepeer.peer.pacing import Pacing
from edgepeer.peer.round_log import RoundLog
from edgepeer.peer.run import Device
from edgepeer.settings import PeerSettings
from edgepeer.simulation.account import Account
from edgepeer.simulation.peer import Surroundings
from edgepeer.simulation.schedule import Schedule
from edgepeer.simulation.world import World
from edgepeer.training.job import Job
from edgepeer.transport.base import Traffic

__all__ = ["JobPeer", "JobStory"]

_CHECKPOINT_EVERY: Final = 2


class JobProgram:
    """As an agent takes part in a job."""

    timeout_s = ROUND_TIMEOUT_S

    def __init__(self, process: ProgrammedPeer, job: Job, disks: Path) -> None:
        peer = process.peer
        peer.traffic = Traffic()
        peer.fabric = SimpleNamespace(  # type: ignore[assignment]
            works_in=lambda view: None,
            topics=SimpleNamespace(report=lambda job, peer: "report", telemetry=lambda peer: "", job="job"),
            forget=lambda topic: None,
            publish_retained=self._told,
            publish_event=lambda topic, document: None,
            flush=self._flush,
        )
        peer.control = SimpleNamespace(join=lambda me: None)  # type: ignore[assignment]
        device = Device(
            peer=peer,
            settings=PeerSettings(),
            worker=process.worker,
            round_log=RoundLog(None),
            checkpoints=Checkpoints(disks / peer.id, every=_CHECKPOINT_EVERY, keep=2),
            metrics=Metrics(None),
        )
        self._process = process
        self._run = JobRun(device, job, Pacing(parse_speed("none"), peer.id))
        self.report: PeerReport | None = None

    def _told(self, topic: str, document: Any) -> None:
        if topic == "report":
            self.report = document
            if document.state == "done":
                self._process.digests[1] = bytes.fromhex(document.digest)

    async def _flush(self, timeout: float) -> None:
        pass

    async def run(self) -> None:
        try:
            await self._run.run()
        except JobError:
            self._process.leave()

    def close(self) -> None:
        self._run.close()

    @property
    def over(self) -> int:
        return max(self._run._state.applied, 0)

    @property
    def rests(self) -> bool:
        return self.report is not None and self.report.state == "done"

    is_over = rests


class JobPeer(ProgrammedPeer):
    """A peer that takes part in a job."""

    def __init__(self, around: Surroundings, peer: PeerId, incarnation: int, *, job: Job, disks: Path) -> None:
        self._job, self._disks = job, disks
        super().__init__(around, peer, incarnation)

    @property
    def report(self) -> PeerReport | None:
        """The last one."""
        assert isinstance(self.program, JobProgram)
        return self.program.report

    def _its_program(self) -> Program:
        return JobProgram(self, self._job, self._disks)  # type: ignore[return-value]


class JobStory(ProgrammedStory):
    """A schedule that happens to a job. What sums are of is not looked at: in the end all have the same parameters.
    Disks outlast who writes there: who starts anew may have checkpoints."""

    def __init__(self, schedule: Schedule, account: Account | None = None, *, data: Path) -> None:
        self._disks = TemporaryDirectory()
        job = Job(
            id="run",
            model="linear",
            trainer="numpy",
            dataset=f"npz:{data}",
            batch_size=2,
            rounds=schedule.rounds,
            wait_for=schedule.peers,
            seed=schedule.seed,
            code=schedule.code,
            wait=schedule.wait,
            precision=schedule.precision,
        )
        super().__init__(replace(schedule, run="run"), account, partial(JobPeer, job=job, disks=Path(self._disks.name)))
        self.world.task.brought.clear()
        self.world.ledger._check_sum = lambda outcome: None  # type: ignore[method-assign]

    def tell(self) -> World:
        with self._disks:
            return super().tell()
