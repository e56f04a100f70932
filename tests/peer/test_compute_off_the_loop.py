"""Training leaves the event loop free: nothing that a trainer does runs in the loop's thread.

How long the loop is busy with the rest is measured by `benchmarks/loop_lag.py`.
"""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peer_agents import agents, train

from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.peer import job_run
from edgepeer.training.build import make_trainer
from edgepeer.training.datasets import Dataset
from edgepeer.training.job import Job, new_job
from edgepeer.training.trainer import Trainer

COMPUTES = ("gradient", "apply", "evaluate", "state", "load_state")


class Watched:
    """A trainer that notes in which thread each of its computations runs."""

    def __init__(self, trainer: Trainer, calls: Counter[tuple[str, int]]) -> None:
        self._trainer = trainer
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        if name in COMPUTES:
            self._calls[name, threading.get_ident()] += 1
        return getattr(self._trainer, name)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, int]]:
    """How often each method of any agent's trainer was called in each thread."""
    calls: Counter[tuple[str, int]] = Counter()

    def make(job: Job, data: Dataset, **device: Any) -> Trainer:
        calls["build", threading.get_ident()] += 1
        return Watched(make_trainer(job, data, **device), calls)

    monkeypatch.setattr(job_run, "make_trainer", make)
    return calls


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["numpy", "keras"])
@pytest.mark.parametrize("code", ["none", "partial:l=1,replication=2"])
async def test_trainers_compute_outside_of_the_loops_thread(
    trainer: str, code: str, broker_elsewhere: EmbeddedBroker, tmp_path: Path, calls: Counter[tuple[str, int]]
) -> None:
    rng = np.random.default_rng(0)
    data = tmp_path / "noise.npz"
    np.savez(data, x=rng.random((200, 28, 28), dtype=np.float32), y=np.arange(200) % 10)
    rounds = 4
    job = new_job(
        trainer=trainer, dataset=f"npz:{data}", rounds=rounds, wait_for=3, batch_size=20, eval_every=2, code=code
    )  # fmt: skip
    async with agents(broker_elsewhere, 3):
        result = await train(broker_elsewhere, job)
    assert result.identical
    assert len(result.done) == 3
    by_method = Counter({name: sum(n for (each, _), n in calls.items() if each == name) for name, _ in calls})
    assert by_method["build"] == 3
    assert by_method["gradient"] >= 3 * rounds
    assert by_method["apply"] == 3 * rounds
    assert by_method["evaluate"] > 0
    in_the_loop = [name for name, thread in calls if thread == threading.get_ident()]
    assert not in_the_loop
