"""A device whose worker is stuck in the code of a job that is over: the next job does without it."""

from __future__ import annotations

import functools
import logging
import threading
from typing import Any

import pytest
from peer_agents import agents, train

from edgepeer.errors import JobError
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.peer import agent, job_run
from edgepeer.peer.worker import Worker
from edgepeer.training.build import make_trainer
from edgepeer.training.datasets import Dataset
from edgepeer.training.job import Job, new_job
from edgepeer.training.trainer import Trainer


async def test_the_next_job_does_without_a_device_that_is_stuck_in_the_last(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Be it the head of the view."""
    monkeypatch.setattr(agent, "STUCK_S", 0.1)
    caplog.set_level(logging.WARNING, logger="edgepeer.peer.agent")
    go_on, one_by_one, stuck = threading.Event(), threading.Lock(), list[Job]()

    def make(job: Job, data: Dataset, **device: Any) -> Trainer:
        with one_by_one:
            first = not stuck
            if first:
                stuck.append(job)
        if first:
            go_on.wait()
        with one_by_one:
            return make_trainer(job, data, **device)

    monkeypatch.setattr(job_run, "make_trainer", make)
    fields: dict[str, Any] = {"trainer": "numpy", "model": "linear", "dataset": "digits", "rounds": 5}
    async with agents(broker, 3):
        try:
            with pytest.raises(JobError, match="nothing has moved"):
                await train(broker, new_job(wait_for=3, **fields), timeout=2.0)
            result = await train(broker, new_job(wait_for=2, **fields))
            assert result.rounds == 5
            assert "does not come to an end" in caplog.text
        finally:
            go_on.set()
        result = await train(broker, new_job(wait_for=3, **fields))
        assert result.rounds == 5


async def test_a_device_for_whose_worker_too_much_waits_is_there_for_the_next_job(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after many rounds of a code that did not wait for it."""
    monkeypatch.setattr(agent, "STUCK_S", 0.01)
    submit, refused = Worker.submit, list[None]()

    def submit_late(worker: Worker, fn: Any, /, *args: Any) -> Any:
        if isinstance(fn, functools.partial) and fn.args[1:] == ("withdrawn",) and len(refused) < 3:
            refused.append(None)
            raise RuntimeError("too many calls are waiting")
        return submit(worker, fn, *args)

    monkeypatch.setattr(Worker, "submit", submit_late)
    fields: dict[str, Any] = {"trainer": "numpy", "model": "linear", "dataset": "digits", "rounds": 5, "wait_for": 1}
    async with agents(broker, 1):
        for _ in range(2):
            assert (await train(broker, new_job(**fields), timeout=30.0)).rounds == 5
    assert len(refused) == 3
