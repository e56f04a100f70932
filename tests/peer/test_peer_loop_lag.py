"""Training leaves the event loop free: it never computes for 10 ms at a stretch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peer_agents import agents, built_trainers, train

from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.peer.driver import Driver
from edgepeer.training.job import new_job

LIMIT_S = 0.010
BEAT_S = 0.005


@pytest.fixture
def big_data(tmp_path: Path) -> Path:
    """Noise in the shape of MNIST, for a model with its 407,050 parameters."""
    rng = np.random.default_rng(0)
    path = tmp_path / "big.npz"
    np.savez(path, x=rng.random((2000, 28, 28), dtype=np.float32), y=np.arange(2000) % 10)
    return path


@pytest.fixture
def stretches(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Processor time of each of the driver's stays in the loop's thread, in seconds: other processes don't count."""
    taken: list[float] = []

    def measured(method: Callable[..., None]) -> Callable[..., None]:
        def measure(*arguments: Any) -> None:
            began = time.thread_time()
            method(*arguments)
            taken.append(time.thread_time() - began)

        return measure

    for name in ("dispatch", "_tick"):
        monkeypatch.setattr(Driver, name, measured(getattr(Driver, name)))
    return taken


class Heartbeat:
    """Beats in the loop, and notes how late each beat comes."""

    def __init__(self) -> None:
        self.lags: list[float] = []
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time() + BEAT_S
        self._timer = self._loop.call_at(self._due, self._beat)

    def _beat(self) -> None:
        now = self._loop.time()
        self.lags.append(now - self._due)
        self._due = now + BEAT_S
        self._timer = self._loop.call_at(self._due, self._beat)

    def stop(self) -> None:
        self._timer.cancel()


@pytest.mark.slow
@pytest.mark.parametrize(("trainer", "rounds"), [("numpy", 100), ("keras", 40)])
async def test_the_loop_is_free_while_peers_train(
    trainer: str,
    rounds: int,
    broker_elsewhere: EmbeddedBroker,
    big_data: Path,
    stretches: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainers = built_trainers(monkeypatch)
    async with agents(broker_elsewhere, 3):
        job = new_job(
            trainer=trainer, dataset=f"npz:{big_data}", rounds=rounds, wait_for=3, batch_size=20, eval_every=10
        )
        heart = Heartbeat()
        result = await train(broker_elsewhere, job)
        heart.stop()
    assert result.identical
    assert len(result.done) == 3
    assert {built.size for built in trainers} == {407_050}
    lags, taken = np.array(heart.lags), np.array(stretches)
    assert np.median(lags) < LIMIT_S, np.percentile(lags, [50, 95, 99, 100])
    assert len(taken) > 3 * rounds
    assert np.percentile(taken, 99) < LIMIT_S / 2, np.percentile(taken, [50, 95, 99, 100])
    assert taken.max() < LIMIT_S, np.percentile(taken, [50, 95, 99, 100])
