"""One job on one device: compute a gradient, allreduce it, apply the mean, again and again.

The state of the run (parameters, optimizer, round) is everybody's own when the run begins, comes from the newest
checkpoint when a whole fleet starts again, and from a neighbour for whoever joins later or has less, so that all
peers apply the same means to the same bits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from edgepeer.errors import (
    ContributionMismatch,
    EdgepeerError,
    FellBehind,
    JobError,
    LeftFabric,
    NotReady,
    RoundTimeout,
    WireError,
)
from edgepeer.ids import PeerId
from edgepeer.peer.api import Peer
from edgepeer.peer.checkpoints import Checkpoints
from edgepeer.peer.code_in_use import CodeInUse
from edgepeer.peer.computing import Computing
from edgepeer.peer.metrics import Metrics
from edgepeer.peer.pacing import Pacing
from edgepeer.peer.reporting import RoundReporter
from edgepeer.peer.round_log import RoundLog
from edgepeer.training.batches import Batches
from edgepeer.training.build import make_trainer
from edgepeer.training.checkpoint import Checkpoint
from edgepeer.training.code_choice import choose_code
from edgepeer.training.datasets import Dataset, load_dataset
from edgepeer.training.job import Job
from edgepeer.training.state import pack_run_state, parameter_digest, unpack_run_state
from edgepeer.training.trainer import Evaluation, Float32Vector, Trainer

if TYPE_CHECKING:
    from edgepeer.settings import PeerSettings
    from edgepeer.topology.view import View

__all__ = ["JobRun"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

RETIRE_S: Final = 600.0
"""How long after its end a job stays announced if nobody withdraws it: who wants the model may have a slow link."""
REGATHER_S: Final = 10.0
"""How long a fleet that starts again waits for all of its peers, before a majority is enough."""


class JobRun:
    """This device's part in one job."""

    def __init__(
        self,
        peer: Peer,
        job: Job,
        settings: PeerSettings,
        worker: Executor,
        pacing: Pacing,
        *,
        round_log: RoundLog,
        checkpoints: Checkpoints,
        metrics: Metrics,
    ) -> None:
        self._peer = peer
        self._job = job
        self._checkpoints = checkpoints
        self._settings = settings
        self._worker = worker
        self._pacing = pacing
        self._trainer: Trainer | None = None
        self._test: Dataset | None = None
        """What is held out."""
        self._computing: Computing | None = None
        self._code: CodeInUse | None = None
        """None: rounds are not coded."""
        self._applied = -1
        """The last round in the parameters; -1 before there are any that count."""
        self._diverged = 0
        """The first round whose loss was not finite, the same at all peers; 0: there was none."""
        self._incoming: tuple[int, memoryview] | None = None
        self._wanted: dict[PeerId, int] = {}
        self._snapshot: tuple[int, bytes] | None = None
        self._rounds = RoundReporter(peer, job, round_log, metrics)

    async def run(self) -> None:
        """Take part until cancelled.

        Raises:
            JobError: this device can't do the job; has been reported.
        """
        self._report("starting")
        failure: BaseExceptionGroup | None = None
        self._peer.on_state, self._peer.on_state_wanted = self._on_state, self._on_state_wanted
        try:
            await self._prepare()
            self._peer.come_back()  # if it has stood aside meanwhile: the others need not wait for the model
            restored = await self._restore()
            async with asyncio.TaskGroup() as tasks:
                serving = tasks.create_task(self._serve_state())
                asking = tasks.create_task(self._ask_for_run(restored))
                await self._train()
                asking.cancel()
                await self._finish()
                await asyncio.sleep(RETIRE_S)
                if self._leads:
                    self._peer.fabric.publish_retained(self._peer.fabric.topics.job, None)
                await serving
        except* Exception as group:
            failure = group  # raised here, early releases of Python 3.11 would put it in a group
        if failure is not None:
            raise self._failed(failure) from failure

    def close(self) -> None:
        """The job is over, or withdrawn."""
        self._peer.on_state = self._peer.on_state_wanted = None
        self._peer.want_run(None)
        self._peer.use_code(None)

    def _failed(self, error: BaseException) -> JobError:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if not isinstance(error, EdgepeerError):
            _log.error("job %s failed", self._job.id, exc_info=error)
        text = str(error) if isinstance(error, EdgepeerError) else f"{type(error).__name__}: {error}"
        line = " ".join(text.split())
        self._report("failed", error=line)
        return JobError(line)

    async def _in_worker(self, call: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, call)

    # -- before the first round ----------------------------------------------------------------------------

    async def _prepare(self) -> None:
        job, settings = self._job, self._settings
        dataset = settings.dataset or job.dataset
        if choose_code(job.code, job.wait, dataset=dataset, protocol=settings.protocol) is not None:
            self._code = CodeInUse(job.code, job.wait)

        def load() -> Dataset:
            return load_dataset(dataset, data_dir=settings.data_dir)

        def build() -> tuple[Trainer, Dataset, Batches]:
            data = load()
            kind = job.trainer if settings.trainer == "auto" else settings.trainer
            fields = {name: getattr(job, name) for name in job.__struct_fields__} | {"trainer": kind}
            memory = None if settings.memory is None else settings.memory << 20
            trainer = make_trainer(Job(**fields), data, models=settings.models, memory=memory)
            return trainer, data.without_training(), Batches(job, data, trainer, load)

        trainer, self._test, batches = await self._in_worker(build)
        self._trainer = trainer
        build_code = self._code.build if self._code is not None else None
        self._computing = Computing(
            self._peer,
            job,
            batches,
            trainer.size,
            self._worker,
            self._pacing,
            build_code,
        )

    async def _restore(self) -> Checkpoint | None:
        """Go on from this device's newest checkpoint, if the fleet is not at work already."""
        job, trainer = self._job, self._require_trainer()
        if not await self._in_worker(self._checkpoints.any):
            return None
        while True:
            count = self._peer.bell.count
            if (view := self._peer.view) is not None:
                break
            await self._peer.bell.wait(count)
        if view.run == job.id and view.first_round > 1:
            return None  # where the fleet is, its rounds may have gone another way than ours
        restored = await self._in_worker(lambda: self._checkpoints.restore(job, trainer))
        if restored is not None:
            self._applied = restored.round
        return restored

    async def _ask_for_run(self, restored: Checkpoint | None) -> None:
        """Ask the coordinator to let the run begin."""
        job = self._job
        self._peer.use_code(None if self._code is None else job.code, job.wait)
        if restored is None:
            self._peer.want_run(job.id, job.wait_for)
            return
        # A majority must come: else two parts of a fleet might go on, each with a model of its own.
        everybody = len(restored.members)
        _log.info("job %s: goes on after round %d, when its %d peers are there", job.id, restored.round, everybody)
        for peers in (everybody, everybody // 2 + 1):
            self._peer.want_run(job.id, peers, have=restored.round, of=restored.generation)
            self._peer.bell.ring()  # the run may have begun before: then this was what it waited for
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REGATHER_S):
                    while self._peer.view is None or self._peer.view.run != job.id:
                        await self._peer.bell.wait(self._peer.bell.count)
                    return

    @property
    def _leads(self) -> bool:
        return self._peer.view is not None and self._peer.view.coordinator == self._peer.id

    # -- the state of the run --------------------------------------------------------------------------------

    def _on_state(self, run: str, number: int, state: memoryview) -> None:
        if run == self._job.id:
            self._incoming = number, state
            self._peer.bell.ring()

    def _on_state_wanted(self, peer: PeerId, run: str, number: int) -> None:
        if run == self._job.id:
            self._wanted[peer] = number
            self._peer.bell.ring()

    async def _serve_state(self) -> None:
        """Give the state to neighbours that ask, and take the one that was asked for."""
        while True:
            count = self._peer.bell.count
            if self._incoming is not None:
                await self._load(*self._incoming)
            elif not await self._give():
                await self._peer.bell.wait(count)

    async def hand_over(self) -> None:
        """Having failed, give the state that is here to whoever asks, and may need it to go on. Until cancelled."""
        try:
            while self._trainer is not None:
                count = self._peer.bell.count
                if not await self._give():
                    await self._peer.bell.wait(count)
        except Exception as error:  # of the job's own code: whatever was wrong with it may be wrong with its state
            _log.warning("job %s: its state can't be handed on: %s", self._job.id, error)
        await asyncio.Event().wait()

    async def _give(self) -> bool:
        """Give the state to one that has asked for it. Returns whether there was one, and the state was here."""
        ready = next((peer for peer, number in self._wanted.items() if 0 <= number <= self._applied), None)
        if ready is None:
            return False
        del self._wanted[ready]
        number, state = await self._state()
        self._peer.give_state(ready, self._job.id, number, state)
        return True

    async def _load(self, number: int, state: memoryview) -> None:
        trainer = self._require_trainer()
        try:
            diverged, own = unpack_run_state(state)
            await self._in_worker(lambda: trainer.load_state(own))
        except WireError as error:
            raise JobError(f"the run's state does not fit the model here: {error}") from error
        self._incoming, self._diverged = None, diverged
        self._applied = number
        self._peer.adopt(self._job.id, number)
        self._peer.bell.ring()

    async def _state(self) -> tuple[int, bytes]:
        trainer = self._require_trainer()
        if self._snapshot is None or self._snapshot[0] != self._applied:
            # The worker does one thing at a time, so no step can come between the number and the state.
            self._snapshot = await self._in_worker(
                lambda: (self._applied, pack_run_state(self._diverged, trainer.state()))
            )
        return self._snapshot

    def _require_trainer(self) -> Trainer:
        if self._trainer is None:
            raise JobError("the model is not built yet")
        return self._trainer

    # -- rounds ----------------------------------------------------------------------------------------------

    async def _in_step(self) -> View:
        """Wait until this peer is in the run, and its parameters are those of the last committed round."""
        while True:
            count = self._peer.bell.count
            view = self._peer.view
            if view is not None and view.run == self._job.id:
                if self._peer.committed == 0 != self._applied:
                    self._applied = 0  # the run begins here: this peer's parameters are everybody's
                    self._peer.bell.ring()
                if self._applied == self._peer.committed - self._peer.missed >= 0:
                    return view
            await self._peer.bell.wait(count)

    def _is_due(self, number: int) -> bool:
        """Whether this is still the round that comes next here."""
        return self._applied == self._peer.committed - self._peer.missed == number - 1

    def _is_over(self) -> bool:
        """Whether no round is left to be done; with what is in the run's state, so that all peers say the same."""
        return self._applied >= self._job.rounds or (self._diverged > 0 and self._job.stop_on_nan)

    async def _train(self) -> None:
        ended = time.monotonic()
        started = False
        while not self._is_over():
            view = await self._in_step()
            if self._is_over():
                return
            if not started:
                started = True
                self._report("running")
                ended = time.monotonic()
            number = self._applied + 1
            computing = self._computing
            assert computing is not None
            try:
                if self._code is None:
                    vector, weight = await computing.batch(view, number)
                    if not self._is_due(number):
                        continue  # out of the view and in again meanwhile, with the others' state
                    outcome = await self._peer.allreduce(vector, weight=weight)
                else:
                    outcome = await self._peer.allreduce_chunks(computing.chunks(number))
            except (FellBehind, LeftFabric, NotReady) as error:
                self._rounds.failed(number, error)
                continue
            except (ContributionMismatch, RoundTimeout) as error:
                self._rounds.failed(number, error)
                self._applied = number  # given up by all: the state after it is what it was before
                raise JobError(str(error)) from error
            if outcome.round != number:
                raise JobError(f"round {outcome.round} came out where round {number} was due")
            mean = outcome.mean
            assert isinstance(mean, np.ndarray)
            loss = float(mean[-1])
            if not self._diverged and not math.isfinite(loss):
                self._diverged = number
                self._report("running")
                _log.warning("job %s: the loss of round %d is not finite: the training diverges", self._job.id, number)
            evaluation = await self._apply(mean, number, self._peer.view or view)
            now = time.monotonic()
            self._rounds.committed(
                outcome,
                chunks=computing.chunks_in(view),
                seconds=now - ended,
                compute_seconds=computing.seconds,
                loss=loss,
                evaluation=evaluation,
                coordinator=self._leads,
            )
            ended = now
            self._peer.bell.ring()

    async def _apply(self, mean: Float32Vector, number: int, view: View) -> Evaluation | None:
        trainer, test = self._require_trainer(), self._test
        assert test is not None
        last = number == self._job.rounds or (self._diverged > 0 and self._job.stop_on_nan)
        due = self._leads and (number % self._job.eval_every == 0 or last)

        def apply() -> Evaluation | None:
            trainer.apply(mean[:-1])
            self._applied = number
            if self._checkpoints.due(number, last=last):
                self._checkpoints.save(self._job, number, trainer, view)
            return trainer.evaluate(test.x_test, test.y_test) if due else None

        return await self._in_worker(apply)

    async def _finish(self) -> None:
        trainer, test = self._require_trainer(), self._test
        assert test is not None
        leads = self._leads

        def measure() -> tuple[str, Evaluation | None]:
            self._checkpoints.mark_over(self._job.id, "done")
            digest = parameter_digest(trainer.parameters())
            return digest, trainer.evaluate(test.x_test, test.y_test) if leads else None

        digest, evaluation = await self._in_worker(measure)
        await self._rounds.flush()
        self._report(
            "done",
            digest=digest,
            evaluation=evaluation,
        )

    # -- reports ---------------------------------------------------------------------------------------------

    def _report(
        self,
        state: str,
        *,
        error: str = "",
        digest: str = "",
        evaluation: Evaluation | None = None,
    ) -> None:
        self._rounds.report(
            state,  # type: ignore[arg-type]  # one of the four literals, always
            error=error,
            round_=max(self._applied, 0),
            digest=digest,
            parameters=self._trainer.size if self._trainer is not None else 0,
            samples=self._computing.samples if self._computing is not None else 0,
            evaluation=evaluation,
            coordinator=self._leads,
            diverged=self._diverged,
        )
