"""A run whose loss is no number any more ends at all peers after the same round, if that is asked for."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peer_agents import agents
from peer_fleet import DEADLINE_S
from test_peer_resume import Watcher, announce, devices

from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.fabric.documents import PeerReport
from edgepeer.fabric.events import FabricEvent, ReportSeen
from edgepeer.following.follow import run_job
from edgepeer.following.observe import observe
from edgepeer.following.progress import JobProgress
from edgepeer.following.result import JobResult
from edgepeer.following.saving import state_from_fleet
from edgepeer.peer.api import Peer
from edgepeer.peer.split_run import SplitRun
from edgepeer.training.job import Job, new_job
from edgepeer.training.saved import load_npz, save_model
from edgepeer.training.split.program import Ended


def diverging(directory: Path, **fields: Any) -> Job:
    """A job of two peers whose steps are much too long."""
    x = np.random.default_rng(1).normal(size=(60, 4)).astype(np.float32)
    np.savez(directory / "data.npz", x=x, y=x[:, 0])
    dataset = f"npz:{directory}/data.npz"
    return new_job(trainer="numpy", model="linear", dataset=dataset, learning_rate=100.0, wait_for=2, **fields)


@pytest.mark.filterwarnings("ignore:(overflow|invalid value):RuntimeWarning")
@pytest.mark.parametrize("split", ["", "none:m=1,n=2"])
async def test_who_comes_after_the_end_ends_like_the_others(split: str, broker: EmbeddedBroker, tmp_path: Path) -> None:
    job = diverging(tmp_path, rounds=1000, stop_on_nan=True, split=split)
    reports: dict[str, PeerReport] = {}
    news = asyncio.Event()

    def take(event: FabricEvent) -> None:
        if isinstance(event, ReportSeen):
            reports[event.report.peer] = event.report
            news.set()

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(observe(broker.address, "lab", take))
        await stack.enter_async_context(agents(broker, 2))

        async def somebody_comes(result: JobResult, withdrawn: asyncio.Event, at: BrokerAddress) -> None:
            await stack.enter_async_context(agents(broker, 1, peer_id="late"))
            async with asyncio.timeout(DEADLINE_S):
                while "late" not in reports or reports["late"].state != "done":
                    news.clear()
                    await news.wait()

        progress = JobProgress(job, broker="embedded")
        result = await run_job(
            progress, lambda _: None, broker=broker.address, fabric="lab", timeout=DEADLINE_S, at_end=somebody_comes
        )
    at = result.diverged
    assert at is not None
    assert 1 < at < 100
    assert {(report.round, report.diverged) for report in reports.values()} == {(at, at)}
    assert len({report.digest for report in reports.values()}) == 1
    assert set(reports) == {"p0", "p1", "late"}
    assert result.rounds == at
    assert f"the loss of round {at} is not finite: the training diverges" in progress.notes


@pytest.mark.filterwarnings("ignore:(overflow|invalid value):RuntimeWarning")
@pytest.mark.parametrize("split", ["", "none:m=1,n=2"])
async def test_a_fleet_that_starts_again_knows_that_its_training_diverges(split: str, tmp_path: Path) -> None:
    job = diverging(tmp_path, rounds=60, split=split)
    async with EmbeddedBroker() as first, Watcher.at(first) as watcher, devices(first, tmp_path, ("p0", "p1")):
        await announce(first, job)
        before = await watcher.until_done("p0", "p1")
    at = before["p0"].diverged
    assert 1 < at < 60
    for name in ("p0", "p1"):
        (tmp_path / name / "checkpoints" / "over.json").unlink()  # as if power had failed just before
    async with EmbeddedBroker() as second, Watcher.at(second) as watcher, devices(second, tmp_path, ("p0", "p1")):
        after = await watcher.until_done("p0", "p1")
    assert {report.diverged for report in after.values()} == {at}
    assert {report.round for report in after.values()} == {60}


async def test_the_model_of_a_fleet(broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a coded one. Who has fetched it says so, and is gone again at once."""
    adopt, adopted = Peer.adopt, list[tuple[str, int]]()

    def note(peer: Peer, run: str, number: int, state: memoryview | None = None) -> None:
        if peer.id.startswith("saver-"):
            adopted.append((run, number))
        adopt(peer, run, number, state)

    monkeypatch.setattr(Peer, "adopt", note)
    for code in ("none", "cyclic:s=1"):
        job = new_job(trainer="numpy", model="linear", rounds=20, wait_for=3, learning_rate=0.1, code=code)
        states: list[memoryview] = []

        async def fetch(
            result: JobResult, withdrawn: asyncio.Event, at: BrokerAddress, states: list[memoryview] = states
        ) -> None:
            states.append(await state_from_fleet(at.url(), "lab", result, timeout=DEADLINE_S))

        async with agents(broker, 3):
            result = await run_job(
                JobProgress(job, broker="embedded"),
                lambda _: None,
                broker=broker.address,
                fabric="lab",
                timeout=DEADLINE_S,
                at_end=fetch,
            )
        path = tmp_path / "model.npz"
        save_model(path, job, states[0], digest=result.digests["p0"])
        assert [layer[0].shape for layer in load_npz(path).layers] == [(64, 10)]
        assert adopted.pop() == (job.id, 20)


def test_what_is_done_again_is_judged_anew() -> None:
    """All have gone back to a checkpoint of before: it was an error, and not the training; or it comes again."""
    run = SplitRun.__new__(SplitRun)
    run._diverged = 0
    nan = float("nan")
    told = []
    for iteration, loss in ((3, 0.1), (4, nan), (5, nan), (4, 0.2), (5, 0.1), (6, nan), (7, 0.3), (6, nan), (7, nan)):
        run._look_at_loss(Ended(iteration, loss, None))
        told.append(run._diverged)
    assert told == [0, 4, 4, 0, 0, 6, 6, 6, 6]
