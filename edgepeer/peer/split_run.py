"""One split job on one device: this peer's blocks of the model, and its part in the rounds that train it.

The state of the run is what all peers have in common, without any weights. A device's checkpoints hold its own blocks
alone. When a whole fleet starts again, each says which blocks it has, and all go on from the newest iteration of which
there is enough. Who starts again beside a fleet at work gets its blocks from the others'; after the last round, when
nothing is put together any more, from its own checkpoint.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from numpy.typing import NDArray

from edgepeer.errors import ConfigError, JobError, WireError
from edgepeer.fabric.documents import SoftError
from edgepeer.ids import PeerId
from edgepeer.peer.pacing import Pacing
from edgepeer.peer.run import Device, Restored, Run
from edgepeer.peer.split_rounds import Iteration, SplitRounds
from edgepeer.topology.view import View
from edgepeer.training.datasets import Dataset, load_dataset
from edgepeer.training.form import Form
from edgepeer.training.job import Job
from edgepeer.training.losses import form_of
from edgepeer.training.precision_choice import check_precision
from edgepeer.training.sharding import Shard, shard_of
from edgepeer.training.split.faults import (
    ErrorInjector,
    Injected,
    PlannedError,
    SoftErrors,
    parse_flip,
    parse_soft_errors,
)
from edgepeer.training.split.part import Part, name_of_part, pack_part, unpack_part
from edgepeer.training.split.phases import Work
from edgepeer.training.split.program import Ended, Program
from edgepeer.training.split_choice import check_room, choose_split, split_rounds_scheme
from edgepeer.training.state import pack_run_state, unpack_run_state
from edgepeer.training.trainer import Evaluation

if TYPE_CHECKING:
    from edgepeer.settings import PeerSettings

__all__ = ["SplitRun", "batches_of", "planned_errors"]

_log = logging.getLogger(__name__)
_ASKED: Final = 64
Array = NDArray[Any]


class _Kept(NamedTuple):
    """A checkpoint on this device's disk."""

    node: int
    iteration: int
    digest: str
    """Of what all peers had in common when it was written."""


class SplitRun(Run):
    """This device's part in one split job."""

    def __init__(self, device: Device, job: Job, pacing: Pacing) -> None:
        super().__init__(device, job, pacing)
        self._metrics = device.metrics
        self._program: Program | None = None
        self._make: Callable[[Sequence[tuple[int, bytes]]], Program] | None = None
        self._form: Form | None = None
        self._shard: Shard | None = None
        self._kept: _Kept | None = None
        """The last checkpoint on the disk."""
        self._evaluation: Evaluation | None = None
        self._logged = 0
        """How many soft errors are in the record of rounds."""
        self._ended = False
        """Whether it is known here what has become of the blocks: who asks for them is answered then."""
        self._asked: dict[PeerId, None] = {}
        """Who has asked before that."""
        self._packed: tuple[bytes, bytes] | None = None
        """The blocks that were asked for last, and as they are handed over: who asks again, and reads nothing, is sent
        the same memory."""
        self._told: dict[str, Any] = {}
        """What was reported last of how this peer stands."""

    def close(self) -> None:
        super().close()
        self._count()  # what there was since it told of an iteration
        self._metrics.split_over()

    # -- before the first round ----------------------------------------------------------------------------

    async def _prepare(self) -> None:
        job, settings, peer = self._job, self._settings, self._peer
        dataset = settings.dataset or job.dataset
        if peer.protocol != "ft-tree":
            raise ConfigError(f"split = {job.split}: rounds of protocol {peer.protocol} can't do it; use ft-tree")
        check_precision(job)
        injector = _injector(settings, peer.id)
        self._scheme = split_rounds_scheme(job.wait)

        def build() -> Program:
            data = load_dataset(dataset, data_dir=settings.data_dir)
            self._form = form_of(data, job.loss)
            chosen = choose_split(msgspec.structs.replace(job, dataset=dataset), self._form)
            assert chosen is not None  # else it were no split job
            network, split = chosen
            check_room(job, network, split, memory=None if settings.memory is None else settings.memory << 20)
            batches = batches_of(data, job)
            self._shard = _shard_of(data, job)
            summary = data.summary

            def make(saved: Sequence[tuple[int, bytes]]) -> Program:
                return Program(
                    peer.id,
                    network,
                    split,
                    batches,
                    iterations=job.rounds,
                    test=(data.x_test, data.y_test),
                    evaluate_every=job.eval_every,
                    # A look at all weights is what makes a checkpoint dear: where nothing was wrong, one is made.
                    checkpoint_every=job.scrub_every,
                    scrub_every=job.scrub_every,
                    injector=injector,
                    saved=saved,
                    of_data=summary,
                )

            self._make = make
            return make(())

        self._program = await self._state.in_worker(build)

    # -- the state of the run --------------------------------------------------------------------------------

    def _restore(self) -> Restored | None:
        assert self._make is not None
        make = self._make

        parts: list[tuple[int, bytes]] = []

        def use(packed: bytes | memoryview) -> None:
            part = unpack_part(packed)
            self._program = make([*parts, (part.node, part.blocks)])
            parts.append((part.node, part.blocks))

        found = self._checkpoints.restore_parts(self._job, use)
        if found is None:
            self._kept = None
            return None
        self._kept, self._diverged = _Kept(parts[0][0], found.round, found.digest), found.diverged
        return Restored(peers=len(found.members), after=found.round)

    def _load(self, state: memoryview) -> None:
        diverged, common = unpack_run_state(state)
        program = self._require_program()
        program.load_state(common)
        self._diverged = diverged
        if program.done and program.saved is None:
            self._regain(program)

    def _regain(self, program: Program) -> None:
        """The own blocks from this device's checkpoint, if what all have in common was then what it is now."""
        found = self._checkpoints.kept_at(self._job, program.digest())
        if found is None:
            return
        try:
            part = unpack_part(found.state)
            program.regain(part.node, part.blocks)
        except WireError as error:
            _log.warning("checkpoint of round %d is not used: %s", found.round, error)
        else:
            self._kept = _Kept(part.node, found.round, found.digest)

    def _pack(self) -> bytes:
        return pack_run_state(self._diverged, self._require_program().state())

    def _require_program(self) -> Program:
        if self._program is None:
            raise JobError("the model is not divided yet")
        return self._program

    # -- rounds ----------------------------------------------------------------------------------------------

    async def _train(self) -> None:
        program, job = self._require_program(), self._job
        rounds = SplitRounds(
            self._peer,
            program,
            self._state,
            coded=self._scheme is not None,
            rest=self._rest,
            failed=self._rounds.failed,
            waits=self._waits,
            ended=self._look_at_loss,
            over=lambda: program.done or (job.stop_on_nan and 0 < self._diverged <= program.iteration),
        )
        self._report("running")
        async for iteration in rounds.iterations():
            ended = iteration.ended
            self._evaluation = ended.evaluation or self._evaluation
            if self._diverged == ended.iteration:
                self._report("running")
                _log.warning("job %s: the loss of round %d is not finite: it diverges", job.id, ended.iteration)
            await self._keep()
            self._tell(iteration)

    def _look_at_loss(self, ended: Ended) -> None:
        """What is found anew counts, where all have gone back: the checkpoint that they go on from may be of before."""
        if not 0 < self._diverged < ended.iteration:
            self._diverged = 0 if math.isfinite(ended.loss) else ended.iteration

    def _waits(self, reason: str) -> None:
        self._report("running", error=reason)

    async def _rest(self, began: float, view: View) -> None:
        """As long as a slower device would take: for a step, its part of a batch's time."""
        program, job = self._require_program(), self._job
        if isinstance(program.phase, Work):
            share, node = 1 / len(program.network.steps()), program.node or 0
            number = program.iteration + 1
            await self._pacing.rest(began, round_=number, chunk=node, seed=job.seed, among=view.ids, share=share)

    async def _keep(self) -> None:
        """Write the newest checkpoint to the disk, if it is due there; at the end, that which says how all has ended.
        What is there of another node, or from before all began again further back, would only be in the way of others'
        when the fleet starts again."""
        program, view, every = self._require_program(), self._peer.view, self._checkpoints.every
        if view is None or not every:
            return
        part, kept = self._part(), self._kept
        if kept is not None and (program.node != kept.node or (part is not None and part.iteration < kept.iteration)):
            self._kept = kept = None
            await self._state.in_worker(lambda: self._checkpoints.discard(self._job))
        if part is None:
            return
        digest, diverged = program.digest(), self._diverged
        new = part.iteration - (0 if kept is None else kept.iteration)
        if new >= every or (program.done and (kept is None or kept.digest != digest)):
            self._kept = _Kept(part.node, part.iteration, digest)
            await self._state.in_worker(
                lambda: self._checkpoints.save_part(
                    self._job, part.iteration, pack_part(part), view, digest=digest, diverged=diverged
                )
            )

    def _part(self) -> Part | None:
        """The newest checkpoint of the own blocks."""
        program = self._program
        if program is None or program.saved is None or self._form is None:
            return None
        node, iteration, blocks = program.saved
        return Part(node=node, iteration=iteration, form=self._form, blocks=blocks)

    def _give_part(self, peer: PeerId, name: str) -> None:
        """Somebody who is no part of the run puts the model together, now that it is trained."""
        if name == name_of_part(self._job) and not self._ended and len(self._asked) < _ASKED:
            self._asked[peer] = None
            return
        part = self._part() if name == name_of_part(self._job) else None
        if part is None or not self._require_program().done:
            super()._give_part(peer, name)
        else:
            if self._packed is None or self._packed[0] is not part.blocks:
                self._packed = part.blocks, pack_part(part)
            self._peer.give_part(peer, name, part.iteration, self._packed[1])

    async def _finish(self) -> None:
        program = self._require_program()
        await self._keep()
        await self._state.in_worker(lambda: self._checkpoints.mark_over(self._job.id, "done"))
        await self._rounds.flush()
        self._answer()
        self._report("done", digest=program.digest(), evaluation=self._evaluation)

    async def hand_over(self) -> None:
        self._answer()  # nothing more becomes of the blocks
        await super().hand_over()

    def _answer(self) -> None:
        """Answer who has asked for the blocks, and from now on whoever does, at once."""
        self._ended, asked = True, self._asked
        self._asked = {}
        for peer in asked:
            self._give_part(peer, name_of_part(self._job))

    # -- reports ---------------------------------------------------------------------------------------------

    def _tell(self, iteration: Iteration) -> None:
        counts = self._counts()
        made = self._require_program().injector.record[self._logged :]
        self._logged += len(made)
        assert self._shard is not None
        samples = float(len(self._shard.within(iteration.ended.iteration)))
        self._rounds.committed(
            dataclasses.replace(iteration.outcome, weight=samples),
            seconds=iteration.seconds,
            compute_seconds=iteration.compute_seconds,
            loss=iteration.ended.loss,
            evaluation=iteration.ended.evaluation,
            coordinator=self._leads,
            counts=counts,
            made=tuple(map(_made, made)),
        )
        standing = self._standing()
        self._count()
        if standing != self._told or self._rounds.report_due:
            self._told = standing
            self._report("running")

    def _count(self) -> None:
        if self._program is not None:
            standing = self._standing()
            self._metrics.split(self._job.id, {**standing, **self._counts(), "reverted": standing["restored"]})

    def _counts(self) -> dict[str, int]:
        """By the names of RoundRecord."""
        counts = self._require_program().counts
        same = {name: getattr(counts, name) for name in counts.__struct_fields__ if name != "lines"}
        return {"corrected": counts.lines, **same}

    def _standing(self) -> dict[str, Any]:
        """By the names of PeerReport: without its blocks this device is none of the nodes yet."""
        program = self._program
        if program is None:
            return {}
        node = program.node
        return {
            "held_bytes": program.held_bytes,
            "cell": node if node is not None and program.whole else -1,
            **program.injector.struck._asdict(),
        }

    def _report(self, state: str, *, error: str = "", digest: str = "", evaluation: Evaluation | None = None) -> None:
        program, standing = self._program, self._standing()
        self._count()
        self._rounds.report(
            state,  # type: ignore[arg-type]  # one of the four literals, always
            error=error,
            round_=program.iteration if program is not None else 0,
            digest=digest,
            parameters=sum(map(math.prod, map(program.network.shape, range(program.network.layers))))
            if program is not None
            else 0,
            samples=0,
            evaluation=evaluation,
            coordinator=self._leads,
            diverged=self._diverged,
            split=standing,
        )


def _made(error: Injected) -> SoftError:
    where = error.where
    return SoftError(round=where.iteration + 1, node=where.node, step=where.step, place=where.place, kind=error.kind)


def batches_of(data: Dataset, job: Job) -> Callable[[int], tuple[Array, Array]]:
    """The batch of each iteration, from 0 on, the same at all peers: all walk over all samples."""
    shard = _shard_of(data, job)

    def batch(iteration: int) -> tuple[Array, Array]:
        rows = shard.batch(iteration + 1)
        return data.x_train[rows], data.y_train[rows]

    return batch


def _shard_of(data: Dataset, job: Job) -> Shard:
    return shard_of(data, position=0, peers=1, batch_size=job.batch_size, seed=job.seed)


def planned_errors(settings: PeerSettings) -> tuple[SoftErrors | None, list[PlannedError]]:
    """The soft errors that a device is told to make: by chance, and at stated rounds, of which the first is 1.

    Raises:
        ConfigError: a text names none.
    """
    chance = parse_soft_errors(settings.soft_errors) if settings.soft_errors else None
    faults = []
    for text in settings.flip:
        fault = parse_flip(text)
        if not fault.iteration:
            raise ConfigError(f"flip {text!r}: rounds count from 1")
        faults.append(dataclasses.replace(fault, iteration=fault.iteration - 1))
    return chance, faults


def _injector(settings: PeerSettings, peer: str) -> ErrorInjector | None:
    """What makes them; None where none are wanted."""
    chance, faults = planned_errors(settings)
    if chance is None and not faults:
        return None
    told = "; ".join(filter(None, (settings.soft_errors, *settings.flip)))
    _log.warning("soft errors are made on purpose here: %s", told)
    return ErrorInjector(chance, faults, seed=zlib.crc32(peer.encode()))
