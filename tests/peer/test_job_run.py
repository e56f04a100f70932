"""One device's part in a job, where a neighbour's state, or the end of a life, comes at a bad moment."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from peer_fleet import DEADLINE_S
from virtual_loop import Attentive, VirtualLoop

from edgepeer.coding.speed import parse_speed
from edgepeer.errors import FellBehind
from edgepeer.fabric.documents import PeerReport
from edgepeer.ids import Generation, Lineage, PeerId
from edgepeer.peer.bell import Bell
from edgepeer.peer.checkpoints import Checkpoints
from edgepeer.peer.job_run import JobRun
from edgepeer.peer.metrics import Metrics
from edgepeer.peer.outcome import Outcome, Shapes
from edgepeer.peer.pacing import Pacing
from edgepeer.peer.round_log import RoundLog
from edgepeer.peer.run import RETIRE_S, Device
from edgepeer.peer.worker import Worker
from edgepeer.protocol import effects as fx
from edgepeer.settings import PeerSettings
from edgepeer.simulation.clock import Clock
from edgepeer.topology.view import Member, View
from edgepeer.training.checkpoint import list_checkpoints, read_checkpoint
from edgepeer.training.datasets import load_dataset
from edgepeer.training.job import Job, new_job
from edgepeer.training.numpy_trainer import NumpyTrainer
from edgepeer.training.state import pack_run_state, parameter_digest, read_data, unpack_run_state
from edgepeer.training.trainer import Evaluation
from edgepeer.transport.base import Traffic

VIEW = View(
    generation=Generation(counter=2),
    epoch=1,
    run="j1",
    members=(Member(id="p0", incarnation=1), Member(id="p1", incarnation=1)),
)


class Alone:
    """As much of a peer as a job needs. What a round is, the test says."""

    id, protocol, closed, missed = PeerId("p0"), "ft-tree", False, 0
    engaged, broker_there = False, True

    def __init__(self) -> None:
        self.bell, self.traffic = Bell(), Traffic()
        self.view = VIEW
        self.committed = 0
        self.keeper: Any = None
        self.given: list[tuple[int, bytes]] = []
        self.brought: asyncio.Queue[np.ndarray[Any, Any]] = asyncio.Queue()
        self.outcomes: asyncio.Queue[Outcome | Exception] = asyncio.Queue()
        self.reports: list[PeerReport] = []
        self.expected: list[tuple[str, int]] = []
        self.schemes: list[Any] = []
        self.slots: tuple[str, ...] = ()
        self.fabric = SimpleNamespace(
            forget=lambda topic: None,
            topics=SimpleNamespace(report=lambda job, peer: "report", telemetry=lambda peer: "", job="job"),
            publish_retained=lambda topic, document: self.reports.append(document) if topic == "report" else None,
            publish_event=lambda topic, document: None,
            flush=self._flush,
        )

    async def _flush(self, timeout: float) -> None:
        pass

    def attach(self, keeper: Any) -> None:
        self.keeper = keeper

    def detach(self, keeper: Any) -> None:
        self.keeper = None

    def expect_run(self, run: str, peers: int) -> None:
        self.expected.append((run, peers))

    def come_back(self) -> None:
        pass

    @property
    def has_state(self) -> bool:
        return self.committed >= 0

    def use_scheme(self, scheme: Any) -> None:
        self.schemes.append(scheme)

    def want_run(
        self,
        run: str | None,
        peers: int = 1,
        have: int = 0,
        of: Lineage | None = None,
        slots: tuple[str, ...] = (),
    ) -> None:
        if have:
            self.slots = slots
            self.committed = have
            self.bell.ring()

    def give_state(self, peer: str, run: str, number: int, state: bytes) -> None:
        self.given.append((number, state))
        self.bell.ring()

    def adopt(self, run: str, number: int, state: memoryview) -> None:
        self.committed = number

    def replace(self, number: int, state: bytes) -> None:
        """A neighbour's state comes in the place of what is here."""
        self.committed = -1
        self.keeper.state_came("j1", number, memoryview(state))

    async def allreduce(self, vector: Any, *, weight: float, precision: str) -> Outcome:
        await self.brought.put(np.array(vector))
        outcome = await self.outcomes.get()
        if isinstance(outcome, Exception):
            raise outcome
        self.committed = max(self.committed, outcome.round)
        return outcome


def outcome(
    number: int, vector: np.ndarray[Any, Any], generation: Generation | None = None, weight: float = 1.0
) -> Outcome:
    return Outcome(
        round=number,
        generation=str(generation or VIEW.generation),
        epoch=1,
        contributors=(PeerId("p0"), PeerId("p1")),
        exact=True,
        weight=weight,
        seconds=0.1,
        digest="",
        paths=(),
        phases=fx.Phases(0, 0, 0),
        vector=vector,
        shapes=Shapes((vector.shape,), False),
    )


class Fleet:
    """A run at one peer."""

    def __init__(self, tmp_path: Path, worker: Worker, **fields: Any) -> None:
        x = np.random.default_rng(1).normal(size=(60, 4)).astype(np.float32)
        if not (tmp_path / "data.npz").exists():
            np.savez(tmp_path / "data.npz", x=x, y=x[:, 0])
        given = {"learning_rate": 0.1, "rounds": 100, "batch_size": 5, "created": 1.0, **fields}
        self.job: Job = new_job(id="j1", model="linear", trainer="numpy", dataset=f"npz:{tmp_path}/data.npz", **given)
        self.peer, self.worker = Alone(), worker
        self.checkpoints = Checkpoints(tmp_path, every=10, keep=100)
        self.device = Device(
            peer=self.peer,  # type: ignore[arg-type]  # see above
            settings=PeerSettings(),
            worker=worker,
            round_log=RoundLog(None),
            checkpoints=self.checkpoints,
            metrics=Metrics(None),
        )
        self.pacing = Pacing(parse_speed("none"), "p0")
        self.run = JobRun(self.device, self.job, self.pacing)
        self.model = self.replica()
        """What the others have."""

    def replica(self) -> NumpyTrainer:
        return NumpyTrainer(
            features=4, outputs=1, hidden=(), loss="mse", optimizer="sgd", learning_rate=self.job.learning_rate
        )

    def mean(self, of: float = 0.5, *, loss: float = 1.0) -> np.ndarray[Any, Any]:
        vector = np.full(self.model.size + 1, of, np.float32)
        vector[-1] = loss
        return vector

    async def round(
        self, number: int, mean: np.ndarray[Any, Any], generation: Generation | None = None, weight: float = 1.0
    ) -> None:
        """One that is as it should be."""
        await self.peer.brought.get()
        await self.peer.outcomes.put(outcome(number, mean, generation, weight))
        await until(lambda: self.run._state.applied == number)

    async def report(self, state: str) -> PeerReport:
        await until(lambda: any(report.state == state for report in self.peer.reports))
        return next(report for report in self.peer.reports if report.state == state)

    def kept(self) -> list[int]:
        return [read_checkpoint(path).round for path in list_checkpoints(self.checkpoints.directory or Path())]


async def until(true: Callable[[], bool]) -> None:
    """To be called in `running`, which has the deadline."""
    while not true():  # noqa: ASYNC110  # set by a thread
        await asyncio.sleep(0.001)  # looks again, until the deadline


async def heard_out(worker: Worker) -> None:
    """Whatever the loop and the worker have to do with each other now is done: asking, packing, giving."""
    for _ in range(4):
        await asyncio.get_running_loop().run_in_executor(worker, lambda: None)


@asynccontextmanager
async def running(tmp_path: Path, **fields: Any) -> AsyncIterator[Fleet]:
    async with asyncio.timeout(DEADLINE_S), Worker() as worker:
        fleet = Fleet(tmp_path, worker, **fields)
        task = asyncio.create_task(fleet.run.run())
        try:
            yield fleet
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            fleet.run.close()


async def test_that_a_run_diverges_is_not_told_with_the_state_before_that_round(tmp_path: Path) -> None:
    """Whoever takes it would end a round before the others."""
    async with running(tmp_path, stop_on_nan=True) as fleet:
        await fleet.round(1, fleet.mean())
        await fleet.peer.brought.get()
        began, busy = threading.Event(), threading.Event()
        fleet.worker.submit(lambda: (began.set(), busy.wait()))
        await until(began.is_set)
        fleet.peer.keeper.state_wanted("p2", "j1", 1)
        await until(lambda: fleet.worker._calls.qsize() == 1)  # the state is to be packed ...
        await fleet.peer.outcomes.put(outcome(2, fleet.mean(loss=math.inf)))
        await until(lambda: fleet.worker._calls.qsize() == 2)  # ... and then the round to be taken into it
        busy.set()
        await until(lambda: bool(fleet.peer.given))
        await fleet.report("done")
        fleet.peer.keeper.state_wanted("p2", "j1", 2)
        await until(lambda: len(fleet.peer.given) == 2)
    told = [(number, unpack_run_state(memoryview(state))[0]) for number, state in fleet.peer.given]
    assert told == [(1, 0), (2, 2)]


@pytest.mark.parametrize("there", [True, False], ids=["is away for a while", "is away when the job ends"])
def test_how_long_a_job_stays_announced_counts_from_when_its_broker_is_back(there: bool, tmp_path: Path) -> None:
    """Whoever has waited all along hears only then that the job is done, and comes for the model."""
    clock = Clock()
    loop = VirtualLoop(clock, Attentive())
    fleet = Fleet(tmp_path, None)  # type: ignore[arg-type]  # nothing is computed

    def change(there: bool) -> None:
        fleet.peer.broker_there = there
        with loop.running():
            fleet.peer.bell.ring()

    fleet.peer.broker_there = there
    clock.at(RETIRE_S - 1.0, partial(change, False))
    clock.at(5 * RETIRE_S, partial(change, True))
    with loop.running():
        waiting = loop.create_task(fleet.run._is_replaced(0))
    assert clock.run(until=waiting.done, limit_s=10 * RETIRE_S)
    assert (waiting.result(), clock.now) == (False, pytest.approx(6 * RETIRE_S))
    loop.end()


async def test_a_model_is_measured_once_at_the_end_and_anew_where_another_state_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a small device, and of much held out, it takes minutes."""
    measured: list[str] = []
    evaluate = NumpyTrainer.evaluate

    def counted(self: NumpyTrainer, x: Any, y: Any) -> Evaluation:
        measured.append(parameter_digest(self.parameters()))
        return evaluate(self, x, y)

    monkeypatch.setattr(NumpyTrainer, "evaluate", counted)
    async with running(tmp_path, rounds=3, eval_every=2) as fleet:
        for number in range(1, 4):
            await fleet.round(number, fleet.mean())
        report = await fleet.report("done")
        assert report.rmse is not None
        assert (len(measured), measured[-1]) == (2, report.digest)
        fleet.peer.replace(3, pack_run_state(0, fleet.model.state()))
        await until(lambda: fleet.peer.reports[-1].digest == parameter_digest(fleet.model.parameters()))
        assert (len(measured), measured[-1]) == (3, fleet.peer.reports[-1].digest)
        assert fleet.peer.reports[-1].rmse != report.rmse


@pytest.mark.parametrize("engaged", [False, True])
async def test_who_leaves_in_a_round_that_it_has_brought_something_to_leaves_it_its_code(
    engaged: bool, tmp_path: Path
) -> None:
    """Its cancelled call says again in the next view what it has computed. Without a code that ended the job for
    all."""
    async with running(tmp_path) as fleet:
        await until(lambda: len(fleet.peer.schemes) == 2)  # the one of the job before, and its own
        before = len(fleet.peer.schemes)
        fleet.peer.engaged = engaged
    assert len(fleet.peer.schemes) == before + (0 if engaged else 1)


async def test_what_a_round_of_a_state_that_is_given_up_says_of_the_loss_counts_no_more(tmp_path: Path) -> None:
    """In the neighbour's state that round went another way: who held that it had diverged would stop alone."""
    async with running(tmp_path, stop_on_nan=True) as fleet:
        await fleet.round(1, fleet.mean())
        await fleet.peer.brought.get()
        fleet.peer.replace(3, pack_run_state(0, fleet.model.state()))
        await until(lambda: fleet.peer.committed == 3)
        await fleet.peer.outcomes.put(outcome(2, fleet.mean(loss=math.inf)))
        await fleet.round(4, fleet.mean())
        assert not any(report.state == "done" for report in fleet.peer.reports)


async def test_a_round_in_which_no_sample_counted_moves_nothing(tmp_path: Path) -> None:
    """Not even by the momentum of those before, as zeros would."""
    async with running(tmp_path, optimizer="sgd:momentum=0.9") as fleet:
        trainer = fleet.run._require_trainer
        await fleet.round(1, fleet.mean())
        first = trainer().parameters().copy()
        await fleet.round(2, np.zeros_like(fleet.mean()), weight=0.0)
        assert np.array_equal(trainer().parameters(), first)
        await fleet.round(3, fleet.mean())
        assert not np.array_equal(trainer().parameters(), first)


@pytest.mark.parametrize("theirs", ["the same", "", "other"])
async def test_whose_data_are_not_what_the_others_train_on_fails(theirs: str, tmp_path: Path) -> None:
    """What all give says what it is of; of a former build's state nothing is known."""
    async with running(tmp_path) as fleet:
        await fleet.round(1, fleet.mean())
        fleet.peer.keeper.state_wanted("p1", "j1", 1)
        await until(lambda: bool(fleet.peer.given))
        said = read_data(unpack_run_state(memoryview(fleet.peer.given[0][1]))[1])
        assert said == load_dataset(fleet.job.dataset).summary
        assert said.startswith("48 + 12 samples of 4 numbers, digest ")
        data = {"the same": said, "": "", "other": said.replace("48", "47")}[theirs]
        fleet.peer.replace(3, pack_run_state(0, fleet.model.state(data=data)))
        if theirs != "other":
            await until(lambda: fleet.peer.committed == 3)
            return
        failed = await fleet.report("failed")
        assert failed.error.startswith(f"dataset {fleet.job.dataset}: is not the same here ({said}) as where the run's")
        assert fleet.peer.committed == -1


async def test_a_gradient_of_a_state_that_has_been_replaced_is_not_brought(tmp_path: Path) -> None:
    """Two states after one round need not be the same, where they are from checkpoints of two generations."""
    async with running(tmp_path) as fleet:
        first = await fleet.peer.brought.get()
        slow, began = asyncio.Event(), asyncio.Event()

        async def rest(began_at: float, **how: Any) -> None:
            began.set()
            await slow.wait()

        fleet.pacing.rest = rest  # type: ignore[assignment, method-assign]
        await fleet.peer.outcomes.put(outcome(1, fleet.mean()))
        await began.wait()
        fleet.model.apply(np.full(fleet.model.size, 3, np.float32))
        fleet.peer.replace(1, pack_run_state(0, fleet.model.state()))
        await until(lambda: fleet.peer.committed == 1)
        slow.set()
        brought = await fleet.peer.brought.get()
        wanted = np.zeros_like(first)
        fleet.run._computing._batches.gradient(0, 2, 2, wanted)  # type: ignore[union-attr]
    assert np.array_equal(brought, wanted)


async def test_who_fails_in_the_middle_of_a_step_gives_nobody_what_has_become_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the parameters are after the round, half before it."""

    def half(self: NumpyTrainer, gradient: Any) -> None:
        self._vector[: self.size // 2] -= gradient[: self.size // 2]
        raise MemoryError("no memory for the other half")

    async with running(tmp_path) as fleet:
        await fleet.round(1, fleet.mean())
        monkeypatch.setattr(NumpyTrainer, "apply", half)
        await fleet.peer.brought.get()
        await fleet.peer.outcomes.put(outcome(2, fleet.mean()))
        await fleet.report("failed")
        handing = asyncio.create_task(fleet.run.hand_over())
        fleet.peer.keeper.state_wanted("p1", "j1", 1)
        await heard_out(fleet.worker)
        handing.cancel()
    assert fleet.peer.given == []


async def test_who_restarts_knows_that_the_run_had_diverged(tmp_path: Path) -> None:
    """As its neighbours do that did not restart: all are to stop after the same round."""
    async with running(tmp_path, stop_on_nan=True) as fleet:
        for number in range(1, 4):
            await fleet.round(number, fleet.mean(loss=math.inf if number == 3 else 1.0))
        assert (await fleet.report("done")).diverged == 3
    assert fleet.kept() == [3]
    (tmp_path / "checkpoints" / "over.json").unlink()  # the power failed before that was written
    async with running(tmp_path, stop_on_nan=True) as fleet:
        report = await fleet.report("done")
    assert (report.round, report.diverged) == (3, 3)
    assert fleet.peer.brought.empty()
    assert fleet.peer.expected == []


async def test_who_restarts_with_other_data_fails(tmp_path: Path) -> None:
    """Where a whole fleet starts again, nobody is given a state that would show it."""
    async with running(tmp_path) as fleet:
        for number in range(1, 11):
            await fleet.round(number, fleet.mean())
        await until(lambda: fleet.kept() == [10])
    with np.load(tmp_path / "data.npz") as file:
        np.savez(tmp_path / "data.npz", x=file["x"], y=file["y"] + 1)
    async with running(tmp_path) as fleet:
        assert "is not the same here (48 + 12 samples" in (await fleet.report("failed")).error


async def test_who_restarts_says_which_run_it_is_to_want_before_it_reads_its_state(tmp_path: Path) -> None:
    """Which may take longer than others who are at work on the run, and not heard of, are waited for."""
    async with running(tmp_path, wait_for=7) as fleet:
        for number in range(1, 11):
            await fleet.round(number, fleet.mean())
        assert fleet.peer.expected == [("j1", 7)]
    (path,) = list_checkpoints(fleet.checkpoints.directory or Path())
    path.write_bytes(path.read_bytes()[:-100])
    async with running(tmp_path, wait_for=7) as fleet:
        await until(lambda: bool(fleet.peer.expected))
    assert fleet.peer.expected == [("j1", 2)]


async def test_who_restarts_asks_for_as_many_slots_of_its_code_as_there_were(tmp_path: Path) -> None:
    """There may be fewer peers than the code was made for."""
    async with running(tmp_path) as fleet:
        fleet.peer.view = msgspec.structs.replace(VIEW, slots=("p0", "p0", "p1"))
        for number in range(1, 11):
            await fleet.round(number, fleet.mean())
        await until(lambda: fleet.kept() == [10])
    async with running(tmp_path) as fleet:
        await until(lambda: fleet.peer.committed == 10)
    assert fleet.peer.slots == ("p0", "p0", "p1")


async def test_who_has_done_all_of_a_job_waits_for_nobody_to_say_so(tmp_path: Path) -> None:
    """When the power fails after the last round, one that is back alone may be asked for the model."""
    async with running(tmp_path, rounds=10) as fleet:
        for number in range(1, 11):
            await fleet.round(number, fleet.mean())
        await fleet.report("done")
    async with running(tmp_path, rounds=10) as fleet:
        await fleet.report("done")
    assert fleet.peer.expected == []


async def test_who_takes_the_final_state_from_a_neighbour_keeps_it(tmp_path: Path) -> None:
    """Its newest checkpoint would be one of an earlier round, of a job that is over."""
    async with running(tmp_path, rounds=20) as fleet:
        for number in range(1, 11):
            await fleet.round(number, fleet.mean())
        await fleet.peer.brought.get()
        fleet.model.apply(np.full(fleet.model.size, 3, np.float32))
        fleet.peer.replace(20, pack_run_state(0, fleet.model.state()))
        await until(lambda: fleet.peer.committed == 20)
        await fleet.peer.outcomes.put(FellBehind("rounds up to 20 were decided without this peer"))
        digest = (await fleet.report("done")).digest
    assert digest == parameter_digest(fleet.model.parameters())
    assert fleet.kept() == [20, 10]
    async with running(tmp_path, rounds=20) as fleet:
        assert (await fleet.report("done")).digest == digest
    assert fleet.kept() == [20, 10]


async def test_a_checkpoint_is_of_the_generation_that_its_round_ended_in(tmp_path: Path) -> None:
    """Not of the one that has begun since, without that round, perhaps: of two the later counts."""
    later = msgspec.structs.replace(VIEW, generation=Generation(counter=3), epoch=9)
    async with running(tmp_path) as fleet:
        for number in range(1, 10):
            await fleet.round(number, fleet.mean())
        await fleet.peer.brought.get()
        fleet.peer.view = later
        await fleet.peer.outcomes.put(outcome(10, fleet.mean(), VIEW.generation))
        await until(lambda: fleet.kept() == [10])
        for number in range(11, 20):
            await fleet.round(number, fleet.mean(), later.generation)
        await fleet.round(20, fleet.mean(), later.generation)
        await until(lambda: len(fleet.kept()) == 2)
    found = [read_checkpoint(path) for path in list_checkpoints(fleet.checkpoints.directory or Path())]
    assert [(each.round, each.generation) for each in found] == [(20, later.generation), (10, VIEW.generation)]
