"""Carries out a plan beside a job, and fails the run when a fault did not take effect.

Rounds are those that the peers themselves have written down, so that a broker that is down, or a coordinator that is
dead, does not hide them. What is still broken when the last round is done is mended then, so that the peers can report.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final, Protocol

from edgepeer.emulation.faults.flips import FlipFault
from edgepeer.emulation.faults.kinds import (
    BrokerDown,
    Cut,
    Flip,
    Isolate,
    Kill,
    Partition,
    Pause,
    PlannedFault,
    Restart,
    Slow,
    Who,
)
from edgepeer.emulation.faults.links import CutBook, LinkFault
from edgepeer.emulation.faults.lives import KillFault, PaceFault, PauseFault, RestartFault, SlowFault
from edgepeer.emulation.faults.outage import OutageFault
from edgepeer.emulation.faults.record import FaultRecord
from edgepeer.emulation.faults.scene import Scene, Unconfirmed
from edgepeer.emulation.faults.schedule import FaultSchedule, Instant
from edgepeer.emulation.faults.texts import write
from edgepeer.errors import JobError
from edgepeer.following.marks import Marks
from edgepeer.following.progress import JobProgress
from edgepeer.following.result import JobResult

__all__ = ["FaultInjector"]

_LOOK_S: Final = 0.01
"""How often to look while a fault is to come or to go: some rounds are as short."""
_IDLE_LOOK_S: Final = 0.1
"""How often otherwise."""


class _Running(Protocol):
    """A fault that knows how to come and go."""

    @property
    def target(self) -> str: ...

    @property
    def confirmed(self) -> dict[str, Any]: ...

    async def inject(self) -> None: ...

    async def lift(self) -> None: ...


class FaultInjector:
    """The faults of one run."""

    def __init__(
        self,
        faults: Sequence[PlannedFault],
        scene: Scene,
        progress: JobProgress,
        *,
        refresh: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`refresh` brings `progress` up to date; called up to a hundred times a second."""
        self._faults = tuple(faults)
        self._scene = scene
        self._progress = progress
        self._refresh = refresh
        self._clock = clock
        self._schedule = FaultSchedule(self._faults)
        self._book = CutBook(scene)
        self._began: float | None = None
        self._over = asyncio.Event()
        self._running: dict[int, _Running] = {}
        self._killed: dict[int, FaultRecord] = {}
        self._records: dict[int, FaultRecord] = {}
        """Those that have come, in the order in which they did."""
        self._flips: dict[int, FlipFault] = {}
        """Soft errors whose time has come, and that nobody has written down yet."""

    async def accompany(self, job: Coroutine[Any, Any, JobResult]) -> JobResult:
        """Follow the job to its end, with all faults.

        Raises:
            JobError: in a group: a fault was not confirmed, or its time did not come; or what `job` raises.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                driving = tasks.create_task(self._drive(tasks), name="faults")
                result = await job
                self._over.set()
                await driving
        finally:
            self._release()
        if waiting := self._schedule.waiting:
            fault = self._faults[waiting[0]]
            raise JobError(f"fault {fault.kind} {write(fault)} never came: the job ended after {self._when()}")
        return dataclasses.replace(result, faults=tuple(record.reported() for record in self._records.values()))

    async def _drive(self, tasks: asyncio.TaskGroup) -> None:
        lifting: set[asyncio.Task[None]] = set()
        while not self._over.is_set() and self._progress.round < self._progress.job.rounds:
            self._refresh()
            for step in self._schedule.due(self._now()) if self._has_begun() else ():
                if not step.lift:
                    await self._inject(step.at)
                elif self._faults[step.at].subject is not None:
                    await self._lift(step.at)
                else:  # may have to wait for traffic, and stands in nobody's way
                    lifting.add(tasks.create_task(self._lift(step.at), name=f"lift {write(self._faults[step.at])}"))
            self._look_for_flips()
            await self._wait(_IDLE_LOOK_S if self._schedule.over else _LOOK_S)
        if lifting:
            await asyncio.wait(lifting)
        for at in list(self._running):
            await self._lift(at)
        while not self._over.is_set():  # the last rounds of those who are behind
            self._refresh()
            await self._wait(_IDLE_LOOK_S)
        self._refresh()
        self._look_for_flips()
        for at, flip in self._flips.items():
            with _confirming(self._faults[at]):
                flip.settle()

    async def _wait(self, seconds: float) -> None:
        """So long, or until the job is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()

    def _has_begun(self) -> bool:
        if self._began is None:
            states = {report.state for report in self._progress.reports.values()}
            if self._progress.round or "running" in states:
                self._began = self._clock()
        return self._began is not None

    def _now(self) -> Instant:
        began = self._clock() if self._began is None else self._began
        return Instant(self._progress.round, self._clock() - began)

    def _when(self) -> str:
        now = self._now()
        return f"{now.round} rounds and {now.second:.1f} s"

    async def _inject(self, at: int) -> None:
        fault = self._faults[at]
        with _confirming(fault):
            running = self._make(fault)
            self._check_free(fault, running.target)
            record = FaultRecord(fault=fault, target=running.target, begun=self._now())
            self._records[at] = record
            if fault.lasts:
                self._running[at] = running
            await running.inject()
        if isinstance(running, FlipFault):
            self._flips[at] = running
            return
        record.confirmed = running.confirmed
        if isinstance(fault, Kill):
            self._killed[at] = record
        elif isinstance(fault, Restart):
            self._killed.pop(self._latest_kill(fault.peer)).ended = record.begun
        self._tell(record.label)

    async def _lift(self, at: int) -> None:
        running, record = self._running[at], self._records[at]
        try:
            with _confirming(self._faults[at]):
                await running.lift()
        finally:
            self._running.pop(at, None)
        self._refresh()
        record.ended, record.confirmed = self._now(), running.confirmed
        self._tell(f"{record.label}: over{record.evidence}")

    def _look_for_flips(self) -> None:
        for at, flip in list(self._flips.items()):
            if flip.look():
                del self._flips[at]
                record = self._records[at]
                record.target, record.confirmed = flip.target, flip.confirmed
                # By its peer's own account; that its time had come may have been seen some rounds later.
                record.begun = Instant(flip.confirmed["round"] - 1, record.begun.second)
                self._tell(record.label)

    def _make(self, fault: PlannedFault) -> _Running:
        scene = self._scene
        match fault:
            case Cut() | Isolate() | Partition():
                return LinkFault(fault, scene, self._book)
            case Kill():
                return KillFault(scene.name(fault.peer), scene)
            case Restart():  # whoever it was that was killed, not who is at that place now
                return RestartFault(self._killed[self._latest_kill(fault.peer)].target, scene)
            case Pause():
                return PauseFault(scene.name(fault.peer), scene)
            case Slow():
                name = scene.name(fault.peer)
                if scene.state_dir is not None:
                    return PaceFault(fault, name, scene.state_dir(name), scene)
                return SlowFault(fault, name, scene)
            case BrokerDown():
                return OutageFault(scene)
            case Flip():
                return FlipFault(fault, self._progress.made)

    def _check_free(self, fault: PlannedFault, target: str) -> None:
        """The plan knows that two faults in one peer's life overlap only where both call it by the same name.

        Raises:
            Unconfirmed: another one is not over.
        """
        if fault.subject is None:
            return
        for at, running in self._running.items():
            other = self._faults[at]
            if other.subject is not None and running.target == target:
                raise Unconfirmed(f"that is {target}, for which {other.kind} {write(other)} is not over")

    def _latest_kill(self, who: Who) -> int:
        return max(at for at in self._killed if self._faults[at].subject == who)

    def _tell(self, line: str) -> None:
        now = self._now()
        when = f"round {now.round + 1}" if now.round < self._progress.job.rounds else "at the end"
        self._progress.note(f"{when}, {now.second:.1f} s: {line}")
        active = [self._records[at] for at in self._running]
        self._progress.marks = Marks(
            cut=self._book.ways,
            killed=frozenset(record.target for record in self._killed.values()),
            paused=frozenset(record.target for record in active if isinstance(record.fault, Pause)),
            slow=frozenset(record.target for record in active if isinstance(record.fault, Slow)),
            labels=tuple(record.label for record in [*self._killed.values(), *active]),
        )

    def _release(self) -> None:
        """Nobody stays stopped, whatever has happened: a stopped process can't be told to end."""
        for running in self._running.values():
            if isinstance(running, PaceFault | PauseFault | SlowFault):
                running.release()
        self._running.clear()


@contextlib.contextmanager
def _confirming(fault: PlannedFault) -> Iterator[None]:
    try:
        yield
    except Unconfirmed as reason:
        raise JobError(f"fault {fault.kind} {write(fault)} was not confirmed: {reason}") from None
