"""A data set that is shared out over the peers is the same at all of them, or that is said: by whoever has another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from peer_agents import agents, train

from edgepeer.errors import DataError, JobError
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.training.datasets import Dataset, check_alike, load_dataset
from edgepeer.training.job import new_job

X = np.random.default_rng(5).normal(size=(100, 4)).astype(np.float32)
Y = (X.sum(axis=1) > 0).astype(np.int64)


def written(directory: Path, x: np.ndarray, y: np.ndarray) -> Path:
    directory.mkdir()
    np.savez(directory / "data.npz", x=x, y=y, classes=2)
    return directory


UNLIKE = {
    "fewer samples": (X[:60], Y[:60]),
    "other labels": (X, 1 - Y),
    "another order": (X[::-1], Y[::-1]),
    "another shape": (X.reshape(100, 2, 2), Y),
    "one number": (np.where(np.arange(400).reshape(100, 4) == 17, np.nextafter(X, np.float32(9)), X), Y),
}


@pytest.mark.parametrize("unlike", UNLIKE)
def test_any_difference_shows(unlike: str, tmp_path: Path) -> None:
    def load(name: str, x: np.ndarray, y: np.ndarray) -> Dataset:
        return load_dataset("npz:data.npz", data_dir=written(tmp_path / name, x, y))

    mine, same, other = load("a", X, Y), load("b", X.astype(np.float64), Y.astype(np.int8)), load("c", *UNLIKE[unlike])
    check_alike("npz:data.npz", mine.summary, same.summary)
    check_alike("npz:data.npz", mine.summary, "")
    with pytest.raises(DataError, match=r"^dataset npz:data\.npz: is not the same here \(80 \+ 20 samples of 4"):
        check_alike("npz:data.npz", mine.summary, other.summary)


async def test_each_device_may_have_its_own(broker: EmbeddedBroker, tmp_path: Path) -> None:
    good, bad = written(tmp_path / "good", X, Y), written(tmp_path / "bad", *UNLIKE["fewer samples"])
    job = new_job(trainer="numpy", dataset="local:data.npz", batch_size=10, rounds=10, wait_for=2)
    async with agents(broker, 1, data_dir=good), agents(broker, 1, data_dir=bad, peer_id="odd"):
        result = await train(broker, job)
    assert set(result.done) == {"p0", "odd"}
    assert result.identical


@pytest.mark.parametrize(
    ("jobs", "own", "said"),
    [
        ("npz:data.npz", "local:data.npz", "--dataset local:data.npz, and trains on that: nobody trains on the part"),
        ("local:data.npz", "npz:data.npz", "--dataset npz:data.npz, and shares that out: it trains only on the part"),
        ("npz:data.npz", "data.npz", ""),
        ("local:data.npz", "local:./data.npz", ""),
    ],
)
async def test_a_device_with_data_of_its_own_where_the_job_shares_out_says_what_that_means(
    jobs: str, own: str, said: str, broker: EmbeddedBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = written(tmp_path / "good", X, Y)
    job = new_job(id="j1", trainer="numpy", dataset=jobs, batch_size=10, rounds=10, wait_for=2)
    async with agents(broker, 1, data_dir=good), agents(broker, 1, data_dir=good, peer_id="odd", dataset=own):
        result = await train(broker, job)
    assert set(result.done) == {"p0", "odd"}
    warned = [record.getMessage() for record in caplog.records if "--dataset" in record.getMessage()]
    assert len(warned) == bool(said)
    if said:
        assert warned[0].startswith(f"job j1: {'' if jobs[0] == 'n' else 'of '}dataset {jobs} ")
        assert said in warned[0]


async def test_a_split_network_whose_nodes_have_other_data(broker: EmbeddedBroker, tmp_path: Path) -> None:
    good, bad = written(tmp_path / "good", X, Y), written(tmp_path / "bad", *UNLIKE["one number"])
    job = new_job(dataset="npz:data.npz", split="none:m=1,n=2", batch_size=10, rounds=5, wait_for=2)
    async with agents(broker, 1, data_dir=good), agents(broker, 1, data_dir=bad, peer_id="odd"):
        with pytest.raises(JobError, match="is not the same here"):
            await train(broker, job, timeout=10)
