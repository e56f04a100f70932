"""Batches: the same gradients, whether all of the data are in memory or a part."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from edgepeer.errors import DataError
from edgepeer.training.batches import Batches
from edgepeer.training.build import make_trainer
from edgepeer.training.datasets import Dataset
from edgepeer.training.job import Job, new_job

SAMPLES, PARTS = 103, 5


def dataset(samples: int = SAMPLES) -> Dataset:
    rng = np.random.default_rng(1)
    x, y = rng.random((samples, 6), np.float32), rng.integers(0, 3, samples)
    return Dataset(x_train=x, y_train=y, x_test=x[:4], y_test=y[:4], classes=3, name="made")


def job_of() -> Job:
    return new_job(model="linear", trainer="numpy", batch_size=8)


class Loader:
    def __init__(self, samples: int = SAMPLES) -> None:
        self.samples = samples
        self.loads = 0

    def __call__(self) -> Dataset:
        self.loads += 1
        return dataset(self.samples)


def batches_of(loader: Loader) -> Batches:
    job = job_of()
    return Batches(job, dataset(), make_trainer(job, dataset()), loader)


def gradient(batches: Batches, part: int, number: int, size: int = 0) -> tuple[int, list[float]]:
    out = np.empty(6 * 3 + 3 + 1, np.float32)
    return batches.gradient(part, PARTS, number, out, size=size), out.tolist()


def test_a_part_of_the_data_gives_the_same() -> None:
    loader = Loader()
    whole, some = batches_of(loader), batches_of(loader)
    some.keep({1, 3}, PARTS)
    assert whole.held == SAMPLES
    assert 40 <= some.held <= 42
    for number in range(1, 9):
        for part in (1, 3):
            assert gradient(some, part, number) == gradient(whole, part, number)
            assert gradient(some, part, number, size=3) == gradient(whole, part, number, size=3)
    assert gradient(some, 1, 1, size=3)[0] == 3
    assert loader.loads == 0


def test_devices_with_data_of_their_own_drop_something_else_each() -> None:
    job = new_job(model="mlp", trainer="numpy", batch_size=8)
    data = dataclasses.replace(dataset(), local=True)  # the same at all, so that nothing else differs
    found = []
    for part in (0, 1, 0):
        trainer = make_trainer(job, data)
        out = np.empty(trainer.size + 1, np.float32)
        Batches(job, data, trainer, Loader()).gradient(part, PARTS, 1, out)
        found.append(out.tolist())
    assert found[0] == found[2] != found[1]


def test_what_was_let_go_is_loaded_again() -> None:
    loader = Loader()
    whole, some = batches_of(loader), batches_of(loader)
    some.keep({1}, PARTS)
    some.keep({1}, PARTS)
    assert loader.loads == 0
    some.keep({1, 4}, PARTS)
    assert loader.loads == 1
    assert gradient(some, 4, 2) == gradient(whole, 4, 2)
    assert gradient(some, 0, 2) == gradient(whole, 0, 2)  # nobody had said that this would be wanted
    assert loader.loads == 2
    some.keep({1, 4}, PARTS)
    assert 40 <= some.held <= 42
    assert loader.loads == 2


def test_data_that_have_changed_meanwhile() -> None:
    batches = batches_of(Loader(SAMPLES - 1))
    batches.keep({0}, PARTS)
    with pytest.raises(DataError, match=r"has changed \(102 \+ .*\) since the job began \(103 \+ "):
        batches.keep({1}, PARTS)


def test_a_data_set_without_its_training_samples() -> None:
    data = dataset()
    rest = data.without_training()
    assert len(rest.x_train) == len(rest.y_train) == 0
    assert rest.x_train.base is None
    assert dataclasses.replace(rest, x_train=data.x_train, y_train=data.y_train).input_shape == data.input_shape
    assert rest.x_test is data.x_test
