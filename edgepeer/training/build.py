"""From a job and a data set to a trainer on this device, or to one line that says why not."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import numpy as np

from edgepeer.errors import ModelError
from edgepeer.training.datasets import Dataset
from edgepeer.training.form import Form
from edgepeer.training.job import Job
from edgepeer.training.losses import form_of
from edgepeer.training.models import DENSE_NETWORKS, keras_model
from edgepeer.training.named import Named
from edgepeer.training.numpy_trainer import NumpyTrainer
from edgepeer.training.optimizers import KERAS_NAMES, parse_optimizer, slots_of
from edgepeer.training.schedules import RateSchedule, parse_schedule
from edgepeer.training.sizes import (
    ModelSize,
    check_size,
    count_model,
    dense_size,
    evaluation_batch,
    has_unmade,
    size_of,
)
from edgepeer.training.trainer import Trainer

__all__ = ["build_trainer", "make_trainer"]

_PROBED: Final = 2
"""With how many samples a model is tried out, at least, before any training."""


def make_trainer(job: Job, dataset: Dataset, *, models: Collection[str] = (), memory: int | None = None) -> Trainer:
    """A fresh replica of the job's model, for that data.

    Args:
        models: the packages that the job may name functions of.
        memory: as `sizes.check_size` takes it.

    Raises:
        ConfigError: there is no such optimizer or schedule.
        DataError: the data are nothing for the job's loss.
        ModelError: the model can't be built here, or does not fit the data.
    """
    batch = min(job.batch_size, len(dataset.x_train))
    return build_trainer(job, form_of(dataset, job.loss), models=models, batch=batch, memory=memory)


def build_trainer(
    job: Job, form: Form, *, models: Collection[str] = (), batch: int = 0, memory: int | None = None
) -> Trainer:
    """The same for data of that form.

    Args:
        batch: how many samples a step has at most, for which there must be memory, too; 0: there will be no step, and
            it is enough to try the model out with a few.

    Initial parameters follow from the job's seed: alike on devices with the same versions of TensorFlow, and
    on all with the NumPy trainer. A run must not build on the former; peers start from one peer's state.
    """
    named = parse_optimizer(job.optimizer, trainer=job.trainer)
    schedule = parse_schedule(job.schedule, rounds=job.rounds)
    changing = None if str(schedule.named) == "constant" else schedule
    batch = max(batch, _PROBED)
    room = partial(check_size, slots=slots_of(named), batch=batch, memory=memory)
    if job.model in DENSE_NETWORKS and not job.model_config:
        room(f"model {job.model}", dense_size(form, DENSE_NETWORKS[job.model].hidden, batch))
    if job.trainer == "numpy":
        return _numpy_trainer(job, form, changing, batch)
    return _keras_trainer(job, form, named, changing, models, batch, room)


def _numpy_trainer(job: Job, form: Form, schedule: RateSchedule | None, batch: int) -> NumpyTrainer:
    if job.model_config or job.model not in DENSE_NETWORKS:
        asked = "a Keras JSON config" if job.model_config else f"model {job.model!r}"
        raise ModelError(f"trainer numpy: can't do {asked}, only {', '.join(DENSE_NETWORKS)}; use trainer keras")
    network = DENSE_NETWORKS[job.model]
    return NumpyTrainer(
        features=form.input_shape,
        outputs=form.outputs,
        hidden=network.hidden,
        dropout=network.dropout,
        loss=form.loss,
        optimizer=job.optimizer,
        learning_rate=job.learning_rate,
        schedule=schedule,
        seed=job.seed,
        evaluation_batch=evaluation_batch(dense_size(form, network.hidden, batch), batch),
    )


def _keras_trainer(
    job: Job,
    form: Form,
    named: Named,
    schedule: RateSchedule | None,
    models: Collection[str],
    batch: int,
    room: Callable[[str, ModelSize], None],
) -> Trainer:
    from edgepeer.training.keras_setup import keras_by_itself, load_keras
    from edgepeer.training.keras_trainer import KerasTrainer

    optimizers = load_keras().optimizers
    with keras_by_itself():  # its learning rate is of Keras' usual precision
        optimizer = getattr(optimizers, KERAS_NAMES[named.kind])(job.learning_rate, **named.values)
    name = "model_config" if job.model_config else job.model
    make = partial(keras_model, job.model, job.model_config, form, allowed=models)
    foreign = ":" in job.model and not job.model_config
    if job.model_config or job.model not in DENSE_NETWORKS:
        with _seeded(job.seed):
            known = _count(make, form.input_shape, batch, foreign=foreign)
    else:
        known = dense_size(form, DENSE_NETWORKS[job.model].hidden, batch)
    if known is not None:
        room(f"model {name}", known)
    with _seeded(job.seed):
        model = make()
        if foreign and has_unmade(model):
            raise ModelError(f"model {name}: the function must make a new model, all of it, whenever it is called")
        size = _measured(model, (batch, *form.input_shape), known)
        room(f"model {name}", size)
        trainer = KerasTrainer(
            model,
            optimizer,
            input_shape=form.input_shape,
            loss=form.loss,
            schedule=schedule,
            name=name,
            evaluation_batch=evaluation_batch(size, batch),
        )
        room(f"model {name}", _measured(model, (batch, *form.input_shape), size))  # of some it is known only now
    fits = trainer.outputs >= form.outputs if form.at_least else trainer.outputs == form.outputs
    if not fits:
        what = "classes" if form.loss == "crossentropy" else "numbers to learn"
        raise ModelError(f"model {name}: has {trainer.outputs} outputs where {form.name} has {form.outputs} {what}")
    return trainer


def _count(make: Callable[[], Any], input_shape: tuple[int, ...], batch: int, *, foreign: bool) -> ModelSize | None:
    """The size of a model that isn't made yet. Where a function does more than put layers together, as loading
    weights, that can't be told: None, until it is there."""
    try:
        return count_model(make, input_shape, batch)
    except ModelError:
        if not foreign:
            raise
        return None


def _measured(model: Any, batch_shape: tuple[int, ...], known: ModelSize | None) -> ModelSize:
    """The size of a model that is made; what its steps compute is not found out again where that is `known`."""
    if known is None or not known.step_bytes:
        return size_of(model, batch_shape)
    return size_of(model)._replace(step_bytes=known.step_bytes)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Keras, TensorFlow and whatever a model's function uses draw from `seed` meanwhile.

    Python's and NumPy's own global generators go on afterwards where they were; and Keras has the settings that it had,
    whatever a function has changed: the next job's model is none of its.
    """
    from edgepeer.training.keras_setup import keras_by_itself, load_keras

    keras = load_keras()
    before, numpy_before = random.getstate(), np.random.get_state()
    try:
        with keras_by_itself():
            keras.utils.set_random_seed(seed)
            yield
    finally:
        random.setstate(before)
        np.random.set_state(numpy_before)
