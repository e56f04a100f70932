"""From a job and a data set to a trainer on this device, or to one line that says why not."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from edgepeer.errors import ModelError
from edgepeer.training.datasets import Dataset
from edgepeer.training.job import Job
from edgepeer.training.models import DENSE_NETWORKS, keras_model
from edgepeer.training.numpy_trainer import NumpyTrainer
from edgepeer.training.trainer import Trainer

__all__ = ["make_trainer"]


def make_trainer(job: Job, dataset: Dataset) -> Trainer:
    """A fresh replica of the job's model, for that data.

    Initial parameters follow from the job's seed: alike on devices with the same versions of TensorFlow, and
    on all with the NumPy trainer. A run must not build on the former; peers start from one peer's state.

    Raises:
        ModelError: the model can't be built here, or does not fit the data.
    """
    if job.trainer == "numpy":
        return _numpy_trainer(job, dataset)
    return _keras_trainer(job, dataset)


def _numpy_trainer(job: Job, dataset: Dataset) -> NumpyTrainer:
    if job.model_config or job.model not in DENSE_NETWORKS:
        asked = "a Keras JSON config" if job.model_config else f"model {job.model!r}"
        raise ModelError(f"trainer numpy: can't do {asked}, only {', '.join(DENSE_NETWORKS)}; use trainer keras")
    network = DENSE_NETWORKS[job.model]
    return NumpyTrainer(
        features=math.prod(dataset.input_shape),
        classes=dataset.classes,
        hidden=network.hidden,
        dropout=network.dropout,
        optimizer=job.optimizer,
        learning_rate=job.learning_rate,
        seed=job.seed,
    )


def _keras_trainer(job: Job, dataset: Dataset) -> Trainer:
    from edgepeer.training.keras_setup import load_keras
    from edgepeer.training.keras_trainer import KerasTrainer

    optimizers = load_keras().optimizers
    optimizer = {"sgd": optimizers.SGD, "adam": optimizers.Adam}[job.optimizer](job.learning_rate)
    name = "model_config" if job.model_config else job.model
    with _seeded(job.seed):
        model = keras_model(job.model, job.model_config, input_shape=dataset.input_shape, classes=dataset.classes)
        trainer = KerasTrainer(model, optimizer, input_shape=dataset.input_shape, name=name)
    # One device's own data may lack classes that another's have; a shared data set has them all.
    fits = trainer.outputs >= dataset.classes if dataset.local else trainer.outputs == dataset.classes
    if not fits:
        raise ModelError(
            f"model {name}: has {trainer.outputs} outputs where {dataset.name} has {dataset.classes} classes"
        )
    return trainer


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Keras, TensorFlow and whatever a model's function uses draw from `seed` meanwhile.

    Python's and NumPy's own global generators go on afterwards where they were.
    """
    from edgepeer.training.keras_setup import load_keras

    before, numpy_before = random.getstate(), np.random.get_state()
    try:
        load_keras().utils.set_random_seed(seed)
        yield
    finally:
        random.setstate(before)
        np.random.set_state(numpy_before)
