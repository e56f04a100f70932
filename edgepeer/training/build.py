"""From a job and a data set to a trainer on this device, or to one line that says why not."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

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
from edgepeer.training.sizes import check_size, count_parameters, dense_size, has_unmade, parameters_of
from edgepeer.training.trainer import Trainer

__all__ = ["build_trainer", "make_trainer"]


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
    return build_trainer(job, form_of(dataset, job.loss), models=models, memory=memory)


def build_trainer(job: Job, form: Form, *, models: Collection[str] = (), memory: int | None = None) -> Trainer:
    """The same for data of that form.

    Initial parameters follow from the job's seed: alike on devices with the same versions of TensorFlow, and
    on all with the NumPy trainer. A run must not build on the former; peers start from one peer's state.
    """
    named = parse_optimizer(job.optimizer, trainer=job.trainer)
    schedule = parse_schedule(job.schedule, rounds=job.rounds)
    changing = None if str(schedule.named) == "constant" else schedule
    room = partial(check_size, slots=slots_of(named), memory=memory)
    if job.model in DENSE_NETWORKS and not job.model_config:
        room(f"model {job.model}", dense_size(form, DENSE_NETWORKS[job.model].hidden))
    if job.trainer == "numpy":
        return _numpy_trainer(job, form, changing)
    return _keras_trainer(job, form, named, changing, models, room)


def _numpy_trainer(job: Job, form: Form, schedule: RateSchedule | None) -> NumpyTrainer:
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
    )


def _keras_trainer(
    job: Job,
    form: Form,
    named: Named,
    schedule: RateSchedule | None,
    models: Collection[str],
    room: Callable[[str, int], None],
) -> Trainer:
    from edgepeer.training.keras_setup import load_keras
    from edgepeer.training.keras_trainer import KerasTrainer

    optimizers = load_keras().optimizers
    optimizer = getattr(optimizers, KERAS_NAMES[named.kind])(job.learning_rate, **named.values)
    name = "model_config" if job.model_config else job.model
    make = partial(keras_model, job.model, job.model_config, form, allowed=models)
    foreign = ":" in job.model and not job.model_config
    if job.model_config or job.model not in DENSE_NETWORKS:
        with _seeded(job.seed):
            room(f"model {name}", _count(make, form.input_shape, foreign=foreign))
    with _seeded(job.seed):
        model = make()
        if foreign and has_unmade(model):
            raise ModelError(f"model {name}: the function must make a new model, all of it, whenever it is called")
        room(f"model {name}", parameters_of(model))
        trainer = KerasTrainer(
            model, optimizer, input_shape=form.input_shape, loss=form.loss, schedule=schedule, name=name
        )
        room(f"model {name}", trainer.size)  # of some it is known only now
    fits = trainer.outputs >= form.outputs if form.at_least else trainer.outputs == form.outputs
    if not fits:
        what = "classes" if form.loss == "crossentropy" else "numbers to learn"
        raise ModelError(f"model {name}: has {trainer.outputs} outputs where {form.name} has {form.outputs} {what}")
    return trainer


def _count(make: Callable[[], Any], input_shape: tuple[int, ...], *, foreign: bool) -> int:
    """Parameters of a model that isn't made yet. Where a function does more than put layers together, as loading
    weights, that can't be told: 0, until it is there."""
    try:
        return count_parameters(make, input_shape)
    except ModelError:
        if not foreign:
            raise
        return 0


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Keras, TensorFlow and whatever a model's function uses draw from `seed` meanwhile.

    Python's and NumPy's own global generators go on afterwards where they were; and Keras has the settings that it had,
    whatever a function has changed: the next job's model is none of its.
    """
    from edgepeer.training.keras_setup import load_keras

    keras = load_keras()
    before, numpy_before = random.getstate(), np.random.get_state()
    config = keras.config
    policy, floats, epsilon = config.dtype_policy(), config.floatx(), config.epsilon()
    images = config.image_data_format()
    try:
        keras.utils.set_random_seed(seed)
        yield
    finally:
        random.setstate(before)
        np.random.set_state(numpy_before)
        config.set_floatx(floats)
        config.set_dtype_policy(policy)
        config.set_epsilon(epsilon)
        config.set_image_data_format(images)
