"""What the defaults of a job promise: a good classifier of digits from seven peers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgepeer.emulation.jobs import emulated_job, peers_of
from edgepeer.following.jobs import make_job
from edgepeer.settings import EmulateSettings, TrainSettings
from edgepeer.training.build import make_trainer
from edgepeer.training.datasets import load_dataset
from edgepeer.training.sharding import shard_of


def test_the_defaults_reach_95_percent_on_digits() -> None:
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    settings = EmulateSettings(trainer="numpy")
    peers = peers_of(settings)
    job = emulated_job(settings)
    data = load_dataset(job.dataset)
    assert peers * job.batch_size <= len(data.x_train)
    trainer = make_trainer(job, data)
    shards = [
        shard_of(data, position=position, peers=peers, batch_size=job.batch_size, seed=job.seed)
        for position in range(peers)
    ]
    gradient = np.zeros(trainer.size, np.float32)
    for number in range(1, job.rounds + 1):
        batch = np.concatenate([shard.batch(number) for shard in shards])
        trainer.gradient(data.x_train[batch], data.y_train[batch], gradient, seed=number)
        trainer.apply(gradient)
    assert trainer.evaluate(data.x_test, data.y_test).accuracy >= 0.95


def test_a_job_is_what_the_settings_say(tmp_path: Path) -> None:
    config = tmp_path / "model.json"
    config.write_text("{}")
    settings = TrainSettings(model_config=config, rounds=3, seed=4, eval_every=5, trainer="keras", optimizer="sgd")
    job = make_job(settings, wait_for=6)
    assert (job.model_config, job.rounds, job.seed, job.eval_every, job.wait_for) == ("{}", 3, 4, 5, 6)
    assert (job.trainer, job.optimizer) == ("keras", "sgd")
    assert job.id != make_job(settings, wait_for=6).id
