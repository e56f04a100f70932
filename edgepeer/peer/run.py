"""The life of one job on one device, whatever it trains: build, begin or join, train, tell of the end, retire.

The state of the run is everybody's own when the run begins, comes from the newest checkpoint when a whole fleet starts
again, and from a neighbour for whoever joins later or has less, so that all peers go on from the same bits.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from edgepeer.cancelling import mind_cancellation
from edgepeer.coding.scheme import CodingScheme
from edgepeer.errors import EdgepeerError, JobError, first_error
from edgepeer.fabric.documents import JobOver
from edgepeer.ids import Lineage, PeerId
from edgepeer.peer.api import Peer
from edgepeer.peer.checkpoints import Checkpoints
from edgepeer.peer.metrics import Metrics
from edgepeer.peer.pacing import Pacing
from edgepeer.peer.reporting import RoundReporter
from edgepeer.peer.round_log import RoundLog
from edgepeer.peer.run_state import RunState
from edgepeer.training.job import Job
from edgepeer.training.models import first_line

if TYPE_CHECKING:
    from edgepeer.settings import PeerSettings

__all__ = ["OUTSIDE", "REGATHER_S", "RETIRE_S", "Device", "Restored", "Run"]

_log = logging.getLogger(__name__)

RETIRE_S: Final = 600.0
"""How long after its end a job stays announced if nobody withdraws it: who wants the model may have a slow link. Only
while a broker tells of that end, and anew after each outage: before it has, nobody can know that there is a model."""
REGATHER_S: Final = 10.0
"""How long a fleet that starts again waits for all of its peers, before a majority is enough ..."""
OUTSIDE: Final = 12
"""... and so many times as long who can reach no view, as the others may be at work in one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """What a device has for its jobs, one after the other."""

    peer: Peer
    settings: PeerSettings
    worker: Executor
    """Does one thing at a time: computes, and writes what is to stay."""
    round_log: RoundLog
    checkpoints: Checkpoints
    metrics: Metrics
    regather_s: float = REGATHER_S


@dataclass(frozen=True, kw_only=True, slots=True)
class Restored:
    """What a device goes on from, of a former life."""

    peers: int
    """How many there were."""
    after: int
    """The job's last round that this device has kept."""
    round: int = 0
    """The last round of the run whose state is in use here; 0: the run's rounds begin anew ..."""
    of: Lineage | None = None
    """... and its lineage, if it is known."""
    slots: tuple[str, ...] = ()
    """Whose the slots of the job's code were: as many are there again, whoever comes."""


class Run(ABC):
    """A device's part in one job."""

    def __init__(self, device: Device, job: Job, pacing: Pacing) -> None:
        self._peer = device.peer
        self._regather_s = device.regather_s
        self._job = job
        self._settings = device.settings
        self._worker = device.worker
        self._checkpoints = device.checkpoints
        self._pacing = pacing
        self._scheme: CodingScheme | None = None
        """How rounds are coded, if they are."""
        self._diverged = 0
        """The first round whose loss was not finite, the same at all peers; 0: there was none."""
        self._state = RunState(
            device.peer, job.id, device.worker, pack=self._pack, load=self._load, part=self._give_part
        )
        self._rounds = RoundReporter(device.peer, job, device.round_log, device.metrics)

    # -- what is the job's own -------------------------------------------------------------------------------

    @abstractmethod
    async def _prepare(self) -> None:
        """Get ready for the first round; whoever joins does it before it is waited for."""

    @abstractmethod
    def _pack(self) -> bytes:
        """The state, for a neighbour. In the worker's thread."""

    @abstractmethod
    def _load(self, state: memoryview) -> None:
        """Go on from a neighbour's. In the worker's thread. Raises WireError: it is none of this job; DataError: it is
        of other data."""

    @abstractmethod
    def _restore(self) -> Restored | None:
        """Go on from this device's newest checkpoint, if there is one. In the worker's thread."""

    @abstractmethod
    async def _train(self) -> None:
        """All rounds."""

    @abstractmethod
    async def _finish(self) -> None:
        """Tell of the end."""

    @abstractmethod
    def _report(self, state: str, *, error: str = "") -> None:
        """Tell where this device stands."""

    def _give_part(self, peer: PeerId, name: str) -> None:
        """Give a peer the part of the model that it asks for by name; here there is none, and it is not to wait."""
        self._peer.give_part(peer, name, 0, b"")

    # -- what all have ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take part until cancelled.

        Raises:
            JobError: this device can't do the job; has been reported.
        """
        self._report("starting")
        self._peer.use_scheme(None)  # of the job before, if it was withdrawn in the middle of a round (`close`)
        failure: BaseExceptionGroup | None = None
        self._state.open()
        try:
            await self._say_what_is_to_be_wanted()
            await self._prepare()
            self._peer.come_back()  # if it has stood aside meanwhile: the others need not wait for the model
            restored = await self._restored()
            async with asyncio.TaskGroup() as tasks:
                serving = tasks.create_task(self._state.serve())
                tasks.create_task(self._ask_for_run(restored))  # also if all of it is done here: others may need that
                while True:
                    await self._train()
                    taken = self._state.taken
                    await self._finish()
                    if not await self._is_replaced(taken):
                        break
                fabric = self._peer.fabric
                if self._leads and not fabric.in_fleet:  # there its operator says so: no peer can sign it
                    fabric.publish_retained(fabric.topics.job, JobOver(over=self._job.id))
                await serving
        except* Exception as group:
            failure = group  # raised here, early releases of Python 3.11 would put it in a group
        mind_cancellation()
        if failure is not None:
            raise self._failed(failure) from failure

    async def hand_over(self) -> None:
        """Having failed, give the state that is here, or else a neighbour's, to whoever asks, and may need it to go on.
        Until cancelled."""
        await self._state.hand_over()

    def close(self) -> None:
        """The job is over, or withdrawn."""
        self._state.close()
        self._rounds.close()
        self._peer.want_run(None)
        if not self._peer.engaged:  # what this device has said in a round that goes on is of its code
            self._peer.use_scheme(None)

    def _failed(self, group: BaseExceptionGroup) -> JobError:
        error = first_error(group)
        if not isinstance(error, EdgepeerError):
            _log.error("job %s failed", self._job.id, exc_info=error)
        text = str(error) if isinstance(error, EdgepeerError) else first_line(error)
        line = " ".join(text.split())
        self._report("failed", error=line)
        return JobError(line)

    async def _is_replaced(self, taken: int) -> bool:
        """Wait until a neighbour's state takes the place of that which the end was told of: it was from a checkpoint
        of an earlier generation, and that of the others may be of another round. False: it is time to retire."""
        peer = self._peer
        while self._state.taken == taken:
            there = peer.broker_there
            try:
                async with asyncio.timeout(RETIRE_S if there else None):
                    while self._state.taken == taken and peer.broker_there is there:
                        await peer.bell.wait(peer.bell.count)
            except TimeoutError:
                return False
        return True

    async def _say_what_is_to_be_wanted(self) -> None:
        """Before the model is built, and the state read: others may be at work on the run, and not be heard of yet. Of
        what is done here they have no more to do, and who asks for the result need not wait for them."""
        job, kept = self._job, await self._state.in_worker(lambda: self._checkpoints.newest(self._job))
        if kept is None:
            self._peer.expect_run(job.id, job.wait_for)
        elif kept.round < job.rounds and not (kept.diverged and job.stop_on_nan):
            self._peer.expect_run(job.id, _majority(len(kept.members)))

    async def _restored(self) -> Restored | None:
        """What this device goes on from, if it has a checkpoint, and the fleet is not at work already."""
        if not await self._state.in_worker(self._checkpoints.any):
            return None
        while True:
            count = self._peer.bell.count
            if (view := self._peer.view) is not None:
                break
            await self._peer.bell.wait(count)
        if view.run == self._job.id and view.first_round > 1:
            return None  # where the fleet is, its rounds may have gone another way than ours
        restored = await self._state.in_worker(self._restore)
        if restored is not None and restored.round:
            self._state.applied = restored.round
        return restored

    async def _ask_for_run(self, restored: Restored | None) -> None:
        """Ask the coordinator to let the run begin."""
        job = self._job
        self._peer.use_scheme(self._scheme)
        if restored is None:
            self._peer.want_run(job.id, job.wait_for)
            return
        # A majority must come: else two parts of a fleet might go on, each with a model of its own.
        everybody, enough = restored.peers, _majority(restored.peers)
        _log.info("job %s: goes on after round %d, when its %d peers are there", job.id, restored.after, everybody)
        self._peer.want_run(job.id, everybody, have=restored.round, of=restored.of, slots=restored.slots)
        self._peer.bell.ring()  # the run may have begun before: then this was what it waited for
        begun = await self._wait_beside_it()
        if enough < everybody:
            _log.info("job %s: %d of its %d peers are enough from now on", job.id, enough, everybody)
        have = 0 if begun else restored.round
        self._peer.want_run(job.id, enough, have=have, of=restored.of, slots=restored.slots)
        self._peer.bell.ring()

    async def _wait_beside_it(self) -> bool:
        """Wait until this device has been in views without the run for so long that who has not come is not waited for
        any more; or in no view, for far longer: it may be cut off from a fleet at work, which has been all there.
        Returns whether the run has begun meanwhile: then the checkpoint is not what it goes on from."""
        begun = False
        while True:
            runs = self._runs
            begun |= runs is True
            patience = {True: None, False: self._regather_s, None: OUTSIDE * self._regather_s}[runs]
            try:
                async with asyncio.timeout(patience):
                    while self._runs is runs:
                        await self._peer.bell.wait(self._peer.bell.count)
            except TimeoutError:
                return begun

    @property
    def _runs(self) -> bool | None:
        """Whether this device's view works on the job; None: it is in none."""
        view = self._peer.view
        return view.run == self._job.id if view is not None else None

    @property
    def _leads(self) -> bool:
        return self._peer.view is not None and self._peer.view.coordinator == self._peer.id


def _majority(peers: int) -> int:
    return peers // 2 + 1
