"""Jobs whose gradients are rounded on their way: the model that comes out, to the bit, and what ends such a job."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peer_agents import agents
from peer_fleet import DEADLINE_S

from edgepeer.errors import JobError
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.following.follow import run_job
from edgepeer.following.progress import JobProgress
from edgepeer.following.report import report_fields
from edgepeer.following.result import JobResult
from edgepeer.ids import PeerId
from edgepeer.simulation.rounded import rounded_sum
from edgepeer.topology.view import Member, View
from edgepeer.training.batches import Batches
from edgepeer.training.build import make_trainer
from edgepeer.training.datasets import load_dataset
from edgepeer.training.job import Job, new_job
from edgepeer.training.precision_choice import vector_size
from edgepeer.training.state import parameter_digest
from edgepeer.training.trainer import Float32Vector
from edgepeer.wire.precision import Precision


def by_hand(job: Job, peers: int) -> str:
    """The digest of the parameters that as many peers come to."""
    data = load_dataset(job.dataset)
    trainer = make_trainer(job, data)
    batches = Batches(job, data, trainer, lambda: data)
    view = View(epoch=1, members=tuple(Member(id=f"p{number}", incarnation=1) for number in range(peers)))
    for number in range(1, job.rounds + 1):
        brought, samples = {}, 0
        for position, peer in enumerate(view.ids):
            vector = np.zeros(vector_size(trainer.size, job.precision), np.float32)
            count = batches.gradient(position, peers, number, vector)
            brought[PeerId(peer)] = (vector, float(count))
            samples += count
        total = rounded_sum(view, job.precision, brought)
        assert total is not None
        trainer.apply((total / np.float32(samples))[: trainer.size])
    return parameter_digest(trainer.parameters())


async def run(job: Job, broker: EmbeddedBroker, peers: int) -> JobResult:
    async with agents(broker, peers):
        progress = JobProgress(job, broker="embedded")
        return await run_job(progress, lambda _: None, broker=broker.address, fabric="lab", timeout=DEADLINE_S)


@pytest.mark.parametrize("precision", ["bf16", "int8"])
async def test_the_model_is_that_of_a_walk_by_hand(broker: EmbeddedBroker, precision: Precision) -> None:
    job = new_job(trainer="numpy", rounds=12, wait_for=5, learning_rate=0.1, precision=precision, seed=3)
    result = await run(job, broker, 5)
    assert set(result.digests.values()) == {by_hand(job, 5)}
    assert {record.precision for record in result.records} == {precision}
    report = report_fields(result)
    assert report["precision"] == precision
    assert {each["precision"] for each in report["rounds_detail"]} == {precision}


@pytest.mark.filterwarnings("ignore:(overflow|invalid value):RuntimeWarning")
async def test_a_job_that_diverges_ends_with_a_line_that_says_where(broker: EmbeddedBroker, tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=(60, 4)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, y=x[:, 0])
    job = new_job(
        trainer="numpy", model="linear", dataset=f"npz:{tmp_path}/data.npz", learning_rate=100.0, rounds=1000,
        wait_for=2, precision="int8",
    )  # fmt: skip
    async with agents(broker, 2):
        with pytest.raises(JobError) as caught:
            await run_job(
                JobProgress(job, broker="embedded"),
                lambda _: None,
                broker=broker.address,
                fabric="lab",
                timeout=DEADLINE_S,
            )
    said = r"brings a vector that is not finite at element \d+, which int8 can't express \(element \d+ is the loss\)"
    assert re.fullmatch(rf"all 2 peers failed: round \d+: p\d {said}", str(caught.value))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"code": "cyclic:s=1"}, "sums of code cyclic:s=1 are put together of what was not rounded; take float32"),
        ({"split": "none:m=1,n=1"}, "split none:m=1,n=1 checks sums to the last bits; take float32"),
    ],
)
async def test_devices_refuse_what_nobody_has_checked(
    fields: dict[str, Any], said: str, broker: EmbeddedBroker
) -> None:
    """Whoever announces a job is not believed to have looked."""
    job = new_job(trainer="numpy", rounds=5, wait_for=2, precision="int8", **fields)
    progress = JobProgress(job, broker="embedded")
    async with agents(broker, 2):
        with pytest.raises(JobError, match=f" failed: precision = int8: {said}$"):
            await run_job(progress, lambda _: None, broker=broker.address, fabric="lab", timeout=DEADLINE_S)


async def test_who_has_not_computed_when_a_round_is_given_up_hears_of_it(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The root is still at its batch when a leaf's vector can't be sent; it brings nothing to that round any more."""
    given_up = threading.Event()
    compute = Batches.gradient

    def gradient(self: Batches, part: int, parts: int, number: int, out: Float32Vector, *, size: int = 0) -> int:
        count = compute(self, part, parts, number, out, size=size)
        if number == 3 and part == 0:
            assert given_up.wait(DEADLINE_S)
        elif number == 3:
            out[0] = np.nan
        return count

    def look(progress: JobProgress) -> None:
        if progress.failed:
            given_up.set()

    monkeypatch.setattr(Batches, "gradient", gradient)
    job = new_job(trainer="numpy", rounds=5, wait_for=2, precision="int8")
    progress = JobProgress(job, broker="embedded")
    async with agents(broker, 2):
        with pytest.raises(JobError, match=r"all 2 peers failed: round 3: p\d brings a vector that is not finite at"):
            await run_job(progress, look, broker=broker.address, fabric="lab", timeout=DEADLINE_S)
