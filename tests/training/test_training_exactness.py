"""Seven peers' averaged gradients train the same model as one process on the union of their batches.

Without dropout: a mask is drawn for a batch as a whole, so those of seven batches and of their union can't
be the same, and neither can the gradients. And the middle one of three starts counts: where a sample lies on
relu's kink to within rounding, the two sums may see it on either side of it, and Adam, which divides by the
gradient's size, makes 1e-5 of that. One in ten million relus is enough.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest

from edgepeer.training.datasets import Dataset
from edgepeer.training.keras_trainer import KerasTrainer
from edgepeer.training.numpy_trainer import NumpyTrainer
from edgepeer.training.sharding import Shard, shard_of
from edgepeer.training.trainer import Float32Vector, Trainer

PEERS, ROUNDS = 7, 30
OPTIMIZERS = [("sgd", 0.1), ("adam", 0.001)]


def train_apart(trainer: Trainer, data: Dataset, shards: list[Shard]) -> Float32Vector:
    out, total = np.empty(trainer.size, np.float32), np.empty(trainer.size, np.float32)
    for number in range(1, ROUNDS + 1):
        total.fill(0)
        weight = 0
        for shard in shards:
            chosen = shard.batch(number)
            samples = trainer.gradient(data.x_train[chosen], data.y_train[chosen], out, seed=number).samples
            total += out * np.float32(samples)
            weight += samples
        trainer.apply(total / np.float32(weight))
    return trainer.parameters()


def train_together(trainer: Trainer, data: Dataset, shards: list[Shard]) -> Float32Vector:
    out = np.empty(trainer.size, np.float32)
    for number in range(1, ROUNDS + 1):
        chosen = np.concatenate([shard.batch(number) for shard in shards])
        trainer.gradient(data.x_train[chosen], data.y_train[chosen], out, seed=number)
        trainer.apply(out)
    return trainer.parameters()


def difference(trainer: Trainer, data: Dataset) -> float:
    """How far apart both ways end, relative to where they end."""
    # 1438 samples make shards of 205 and 206, so that every third batch holds 5 or 6 instead of 100.
    shards = [shard_of(data, position=p, peers=PEERS, batch_size=100, seed=1) for p in range(PEERS)]
    start, before = trainer.state(), trainer.parameters()
    apart = train_apart(trainer, data, shards)
    trainer.load_state(start)
    together = train_together(trainer, data, shards)
    assert np.linalg.norm(together - before) > 0.1
    return float(np.linalg.norm(apart - together) / np.linalg.norm(together))


@pytest.mark.parametrize(("optimizer", "rate"), OPTIMIZERS)
def test_numpy(digits: Dataset, optimizer: Literal["sgd", "adam"], rate: float) -> None:
    def start(seed: int) -> NumpyTrainer:
        return NumpyTrainer(
            features=64, outputs=10, hidden=(64,), dropout=0, optimizer=optimizer, learning_rate=rate, seed=seed
        )

    assert sorted(difference(start(seed), digits) for seed in range(3))[1] < 1e-5


@pytest.mark.parametrize(("optimizer", "rate"), OPTIMIZERS)
def test_keras(keras: Any, digits: Dataset, optimizer: str, rate: float) -> None:
    layers = keras.layers
    model = keras.Sequential([layers.Flatten(), layers.Dense(64, activation="relu"), layers.Dense(10)])
    maker = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}[optimizer]
    trainer = KerasTrainer(model, maker(rate), input_shape=(8, 8))
    first = trainer.state()

    def start(seed: int) -> KerasTrainer:
        trainer.load_state(first)
        glorot = keras.initializers.GlorotUniform(seed)
        model.set_weights([glorot(w.shape) if w.ndim == 2 else w for w in model.get_weights()])
        return trainer

    assert sorted(difference(start(seed), digits) for seed in range(3))[1] < 1e-5


def test_more_peers_than_samples(digits: Dataset) -> None:
    x, y = digits.x_train[:5], digits.y_train[:5]
    few = Dataset(x_train=x, y_train=y, x_test=x, y_test=y, classes=10, name="few")
    trainer = NumpyTrainer(features=64, outputs=10, hidden=(64,), dropout=0)
    assert difference(trainer, few) < 1e-5
