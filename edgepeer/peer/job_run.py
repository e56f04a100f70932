"""One data-parallel job on one device: compute a gradient, allreduce it, apply the mean, again and again.

The state of the run is parameters, optimizer and round: all peers apply the same means to the same bits.
"""

from __future__ import annotations

import logging
import math
import time

import numpy as np

from edgepeer.errors import ContributionMismatch, FellBehind, JobError, LeftFabric, NotFinite, NotReady, RoundTimeout
from edgepeer.ids import PeerId
from edgepeer.peer.computing import Computing
from edgepeer.peer.pacing import Pacing
from edgepeer.peer.run import Device, Restored, Run
from edgepeer.topology.view import View
from edgepeer.training.batches import Batches
from edgepeer.training.build import make_trainer
from edgepeer.training.code_choice import choose_scheme
from edgepeer.training.datasets import Dataset, check_alike, load_dataset
from edgepeer.training.job import Job
from edgepeer.training.naming import parse_dataset
from edgepeer.training.precision_choice import check_precision
from edgepeer.training.state import name_of_state, pack_run_state, parameter_digest, read_data, unpack_run_state
from edgepeer.training.trainer import Evaluation, Float32Vector, Trainer

__all__ = ["JobRun"]

_log = logging.getLogger(__name__)


class JobRun(Run):
    """This device's part in one job."""

    def __init__(self, device: Device, job: Job, pacing: Pacing) -> None:
        super().__init__(device, job, pacing)
        self._trainer: Trainer | None = None
        self._test: Dataset | None = None
        """What is held out."""
        self._data = ""
        """What all that share their data must have; empty where it is this device's own."""
        self._computing: Computing | None = None
        self._kept = 0
        """The round of the newest checkpoint that is here of this run; 0: there is none."""
        self._evaluation: Evaluation | None = None
        """Of the parameters that are here, if they have been measured: that may take long, and is done once."""
        self._loss = 0.0
        """Mean training loss of the last round here that samples counted in."""

    # -- before the first round ----------------------------------------------------------------------------

    async def _prepare(self) -> None:
        job, settings = self._job, self._settings
        dataset = settings.dataset or job.dataset
        self._scheme = choose_scheme(job.code, job.wait, dataset=dataset, protocol=self._peer.protocol)
        check_precision(job, protocol=self._peer.protocol)

        def load() -> Dataset:
            return load_dataset(dataset, data_dir=settings.data_dir)

        def build() -> tuple[Trainer, Dataset, Batches]:
            data = load()
            self._data = "" if data.local else data.summary
            kind = job.trainer if settings.trainer == "auto" else settings.trainer
            fields = {name: getattr(job, name) for name in job.__struct_fields__} | {"trainer": kind}
            memory = None if settings.memory is None else settings.memory << 20
            trainer = make_trainer(Job(**fields), data, models=settings.models, memory=memory)
            return trainer, data.without_training(), Batches(job, data, trainer, load)

        trainer, test, batches = await self._state.in_worker(build)
        self._trainer, self._test = trainer, test
        self._say_whose_data(dataset, local=test.local)
        self._computing = Computing(self._peer, job, batches, trainer.size, self._worker, self._pacing, self._scheme)

    def _say_whose_data(self, used: str, *, local: bool) -> None:
        """This device's setting wins over the job's, which may count on what it says: then that is said, once a job."""
        named = parse_dataset(self._job.dataset)
        if named is None or (named.kind == "local") == local:
            return
        if local:
            text = (
                "job %s: dataset %s is shared out over the peers, but this device was started with --dataset %s, and "
                "trains on that: nobody trains on the part that falls to this device. If that is not meant, start it "
                "without --dataset, or begin the job with --dataset local:PATH"
            )
        else:
            text = (
                "job %s: of dataset %s each device trains on its own, but this one was started with --dataset %s, and "
                "shares that out: it trains only on the part that falls to it. If that is not meant, start it with "
                "--dataset local:PATH"
            )
        _log.warning(text, self._job.id, self._job.dataset, used, extra={"fields": {"job": self._job.id}})

    # -- the state of the run --------------------------------------------------------------------------------

    def _restore(self) -> Restored | None:
        found = self._checkpoints.restore(self._job, self._require_trainer())
        if found is None:
            return None
        self._check_alike(found.state)
        self._kept, self._diverged = found.round, found.diverged
        return Restored(
            peers=len(found.members), after=found.round, round=found.round, of=found.lineage, slots=found.slots
        )

    def _load(self, state: memoryview) -> None:
        diverged, own = unpack_run_state(state)
        self._check_alike(own)
        self._evaluation = None
        self._require_trainer().load_state(own)
        self._diverged, self._kept = diverged, 0

    def _check_alike(self, state: bytes | memoryview) -> None:
        check_alike(self._settings.dataset or self._job.dataset, self._data, read_data(state))

    def _pack(self) -> bytes:
        return pack_run_state(self._diverged, self._require_trainer().state(data=self._data))

    def _give_part(self, peer: PeerId, name: str) -> None:
        """Somebody who can be no peer, an operator of the fleet, saves the model, now that it is trained."""
        if name == name_of_state(self._job.id) and self._is_over():
            self._state.hand_out(peer, name)
        else:
            super()._give_part(peer, name)

    def _require_trainer(self) -> Trainer:
        if self._trainer is None:
            raise JobError("the model is not built yet")
        return self._trainer

    # -- rounds ----------------------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        """Whether no round is left to be done; with what is in the run's state, so that all peers say the same."""
        return self._state.applied >= self._job.rounds or (self._diverged > 0 and self._job.stop_on_nan)

    async def _train(self) -> None:
        ended = time.monotonic()
        started = False
        while not self._is_over():
            view = await self._state.in_step()
            if self._is_over():
                return
            if not started:
                started = True
                self._report("running")
                ended = time.monotonic()
            number = self._state.applied + 1
            computing = self._computing
            assert computing is not None
            try:
                if self._scheme is None:
                    vector, weight = await computing.batch(view, number)
                    if not self._state.is_due(number):
                        continue  # out of the view and in again meanwhile, with the others' state
                    outcome = await self._peer.allreduce(vector, weight=weight, precision=self._job.precision)
                else:
                    outcome = await self._peer.allreduce_chunks(computing.chunks(number))
            except (FellBehind, LeftFabric, NotReady) as error:
                self._rounds.failed(number, error)
                continue
            except (ContributionMismatch, NotFinite, RoundTimeout) as error:
                self._rounds.failed(number, error)
                self._state.given_up(number)
                more = f" (element {computing.loss_at} is the loss)" if isinstance(error, NotFinite) else ""
                raise JobError(f"{error}{more}") from error
            if outcome.round != number:
                raise JobError(f"round {outcome.round} came out where round {number} was due")
            mean = outcome.mean
            assert isinstance(mean, np.ndarray)
            if outcome.weight:
                self._loss = float(mean[-1])
            ended_in = self._ended_in(outcome.generation, view)
            try:
                evaluation = await self._apply(mean if outcome.weight else None, number, ended_in)
            except FellBehind as error:
                self._rounds.failed(number, error)
                continue
            if self._diverged == number:
                self._report("running")
                _log.warning("job %s: the loss of round %d is not finite: the training diverges", self._job.id, number)
            now = time.monotonic()
            self._rounds.committed(
                outcome,
                chunks=computing.chunks_in(view),
                seconds=now - ended,
                compute_seconds=computing.seconds,
                loss=self._loss,
                evaluation=evaluation,
                coordinator=self._leads,
            )
            ended = now
            if self._rounds.report_due:
                self._report("running")
            self._peer.bell.ring()

    def _ended_in(self, generation: str, begun: View) -> View | None:
        """The view that a round which was begun in another one has ended in, or one after that; None: it is not known
        any more. Not one in which the run has begun anew since."""
        views = [v for v in (self._peer.view, begun) if v is not None and v.beginning == begun.beginning]
        return next((v for v in views if str(v.generation) == generation), None)

    async def _apply(self, mean: Float32Vector | None, number: int, view: View | None) -> Evaluation | None:
        """Take a round into the run's state.

        Args:
            mean: None: no sample counted. An optimizer with a momentum would move on by zeros, too.
            view: that the round ended in; None: it is not known any more, and no checkpoint can say it.
        """
        trainer, test = self._require_trainer(), self._test
        assert test is not None
        leads = self._leads

        def apply() -> Evaluation | None:
            self._evaluation = None
            # Together, in this thread: nobody is to be given one without the other.
            if mean is not None:
                trainer.apply(mean[: trainer.size])
                if not self._diverged and not math.isfinite(mean[-1]):
                    self._diverged = number
            self._state.applied = number
            last = self._is_over()
            if view is not None and self._checkpoints.due(number, last=last):
                self._keep(number, view)
            if leads and (number % self._job.eval_every == 0 or last):
                self._evaluation = trainer.evaluate(test.x_test, test.y_test)
            return self._evaluation

        return await self._state.take(number, apply)

    def _keep(self, number: int, view: View) -> None:
        self._checkpoints.save(
            self._job, number, self._require_trainer(), view, diverged=self._diverged, data=self._data
        )
        self._kept = number

    async def _finish(self) -> None:
        trainer, test = self._require_trainer(), self._test
        assert test is not None
        leads, view = self._leads, self._peer.view

        def measure() -> tuple[str, Evaluation | None]:
            if view is not None and self._kept != self._state.at:
                self._keep(self._state.at, view)  # a neighbour's: of a job that is over, the newest is to be the last
            self._checkpoints.mark_over(self._job.id, "done")
            digest = parameter_digest(trainer.parameters())
            if leads and self._evaluation is None:
                self._evaluation = trainer.evaluate(test.x_test, test.y_test)
            return digest, self._evaluation

        digest, evaluation = await self._state.in_worker(measure)
        await self._rounds.flush()
        self._report("done", digest=digest, evaluation=evaluation)

    # -- reports ---------------------------------------------------------------------------------------------

    def _report(self, state: str, *, error: str = "", digest: str = "", evaluation: Evaluation | None = None) -> None:
        self._rounds.report(
            state,  # type: ignore[arg-type]  # one of the four literals, always
            error=error,
            round_=max(self._state.applied, 0),
            digest=digest,
            parameters=self._trainer.size if self._trainer is not None else 0,
            samples=self._computing.samples if self._computing is not None else 0,
            evaluation=evaluation,
            coordinator=self._leads,
            diverged=self._diverged,
        )
