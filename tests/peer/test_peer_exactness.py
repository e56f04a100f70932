"""Seven peers, over real TCP, end with the parameters of one process that trains on the union of their batches.

Without dropout, whose masks are drawn for a batch as a whole. Where a sample lies on relu's kink to within
rounding, two orders of summation may see it on either side of it, and Adam, which divides by the gradient's
size, makes 1e-5 of that; so Adam is put to the proof with the model that has no kink as well.
"""

from __future__ import annotations

import numpy as np
import pytest
from peer_agents import agents, built_trainers, train

from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.training.build import make_trainer
from edgepeer.training.datasets import load_dataset
from edgepeer.training.job import Job, new_job
from edgepeer.training.sharding import shard_of
from edgepeer.training.state import parameter_digest
from edgepeer.training.trainer import Float32Vector

PEERS, ROUNDS = 7, 30


def train_alone(job: Job) -> Float32Vector:
    """One process, each round the union of all peers' batches."""
    data = load_dataset(job.dataset)
    trainer = make_trainer(job, data)
    # 1,438 samples make shards of 205 and 206, so that every third batch holds 5 or 6 instead of 100.
    shards = [
        shard_of(data, position=position, peers=PEERS, batch_size=job.batch_size, seed=job.seed)
        for position in range(PEERS)
    ]
    assert {len(shard.batch(number)) for shard in shards for number in range(1, ROUNDS + 1)} == {100, 5, 6}
    gradient = np.empty(trainer.size, np.float32)
    start = trainer.parameters()
    for number in range(1, ROUNDS + 1):
        union = np.concatenate([shard.batch(number) for shard in shards])
        trainer.gradient(data.x_train[union], data.y_train[union], gradient, seed=number)
        trainer.apply(gradient)
    assert np.linalg.norm(trainer.parameters() - start) > 0.1
    return trainer.parameters()


@pytest.mark.parametrize(
    ("trainer", "model", "optimizer", "rate"),
    [
        ("numpy", "mlp-plain", "sgd", 0.1),
        ("numpy", "mlp-plain", "adam", 0.001),
        ("numpy", "linear", "adam", 0.01),
        pytest.param("keras", "mlp-plain", "adam", 0.001, marks=pytest.mark.slow),
    ],
)
async def test_seven_peers_train_what_one_would(
    trainer: str,
    model: str,
    optimizer: str,
    rate: float,
    broker_elsewhere: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = new_job(
        model=model,
        trainer=trainer,
        optimizer=optimizer,
        learning_rate=rate,
        batch_size=100,
        rounds=ROUNDS,
        wait_for=PEERS,
    )
    trainers = built_trainers(monkeypatch)
    async with agents(broker_elsewhere, PEERS):
        result = await train(broker_elsewhere, job)
    assert len(result.done) == PEERS
    assert [len(record.contributors) for record in result.records] == [PEERS] * ROUNDS
    found = [built.parameters() for built in trainers]
    assert {parameter_digest(parameters) for parameters in found} == set(result.digests.values())
    assert result.identical
    alone = train_alone(job)
    assert np.linalg.norm(found[0] - alone) / np.linalg.norm(alone) < 1e-5
    assert np.abs(found[0] - alone).max() / np.abs(alone).max() < 1e-5
