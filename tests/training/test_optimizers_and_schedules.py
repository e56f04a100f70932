"""Optimizers, schedules and losses of the NumPy trainer against those of Keras, and their names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgepeer.errors import ConfigError, DataError
from edgepeer.training.datasets import Dataset
from edgepeer.training.keras_trainer import KerasTrainer
from edgepeer.training.losses import expected, form_of, loss_and_delta, losses_of
from edgepeer.training.named import parse_named
from edgepeer.training.numpy_trainer import NumpyTrainer
from edgepeer.training.optimizers import KERAS_NAMES, make_optimizer, parse_optimizer
from edgepeer.training.schedules import parse_schedule

SIZE = 40
OPTIMIZERS = [
    "sgd",
    "sgd:momentum=0.9",
    "sgd:momentum=0.8,nesterov=true,weight_decay=0.01",
    "adam",
    "adam:beta_1=0.8,beta_2=0.99,epsilon=1e-3,clipvalue=0.5",
    "adam:amsgrad=true",
    "adamw",
    "adamw:weight_decay=0.1",
    "rmsprop",
    "rmsprop:rho=0.8,momentum=0.5,centered=true",
    "adagrad",
    "adagrad:initial_accumulator_value=0.5,epsilon=1e-5",
]


@pytest.mark.parametrize("text", OPTIMIZERS)
def test_optimizers_step_as_those_of_keras(keras: Any, text: str) -> None:
    random = np.random.default_rng(1)
    start = random.normal(size=SIZE).astype(np.float32)
    named = parse_optimizer(text, trainer="keras")
    theirs = getattr(keras.optimizers, KERAS_NAMES[named.kind])(0.05, **named.values)
    variable = keras.Variable(start)
    theirs.build([variable])
    ours, parameters = make_optimizer(text, size=SIZE, learning_rate=0.05), start.copy()
    for step in range(20):
        gradient = random.normal(size=SIZE).astype(np.float32)
        kept = gradient.copy()
        ours.step(parameters, gradient)
        theirs.apply([keras.ops.convert_to_tensor(gradient)], [variable])
        assert np.array_equal(gradient, kept)
        np.testing.assert_allclose(parameters, np.asarray(variable), rtol=2e-5, atol=2e-6, err_msg=str(step))


@pytest.mark.parametrize("kind", KERAS_NAMES)
def test_every_name_is_an_optimizer_of_keras(keras: Any, kind: str) -> None:
    maker = getattr(keras.optimizers, KERAS_NAMES[kind])
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    trainer = KerasTrainer(model, maker(0.1, weight_decay=0.01, clipvalue=1.0), input_shape=(3,), loss="mse")
    before = trainer.parameters()
    trainer.apply(np.ones(trainer.size, np.float32))
    assert not np.array_equal(trainer.parameters(), before)


def test_bad_optimizers_are_named() -> None:
    for text, reason in {
        "sgdd": "optimizer = sgdd: there is no optimizer 'sgdd', only sgd, adam, ",
        "sgd:mom=1": "optimizer = sgd:mom=1: 'mom' is unknown; sgd takes momentum, nesterov, weight_decay, clipvalue",
        "sgd:": "optimizer = sgd:: '' is unknown",
        "sgd:momentum=1": "optimizer = sgd:momentum=1: momentum must be a number from 0 to below 1, not '1'",
        "sgd:momentum=nan": "momentum must be a number from 0 to below 1, not 'nan'",
        "sgd:momentum": "momentum must be a number from 0 to below 1, not ''",
        "sgd:nesterov=1": "nesterov must be true or false, not '1'",
        "sgd:momentum=0.1,momentum=0.2": "'momentum' is given twice",
        "adam:epsilon=0": "epsilon must be a number from 1e-37 to 1, not '0'",
        "adam:epsilon=1e-46": "epsilon must be a number from 1e-37 to 1, not '1e-46'",  # of float32 it is 0
        "sgd:clipvalue=1e-46": "clipvalue must be a number from 1e-37 to 1e+06, not '1e-46'",
        "lion:beta_1=0": "beta_1 must be a number above 0 to below 1, not '0'",
    }.items():
        with pytest.raises(ConfigError) as raised:
            parse_optimizer(text, trainer="keras")
        assert reason in str(raised.value)
    with pytest.raises(ConfigError, match="trainer numpy has only sgd, adam, adamw, rmsprop, adagrad"):
        parse_optimizer("lion", trainer="numpy")
    assert str(parse_optimizer("sgd:nesterov=true, momentum=.9", trainer="numpy")) == "sgd:momentum=0.9,nesterov=true"


def test_schedules_are_those_of_keras(keras: Any) -> None:
    theirs = keras.optimizers.schedules
    for text, schedule in {
        "step:every=7,factor=0.3": theirs.ExponentialDecay(0.2, 7, 0.3, staircase=True),
        "exponential:steps=20,rate=0.8": theirs.ExponentialDecay(0.2, 20, 0.8),
        "inverse-time:steps=10,rate=2": theirs.InverseTimeDecay(0.2, 10, 2),
        "cosine": theirs.CosineDecay(0.2, 60),
        "cosine:steps=30,alpha=0.25": theirs.CosineDecay(0.2, 30, alpha=0.25),
        "polynomial:end=0.1,power=2": theirs.PolynomialDecay(0.2, 60, 0.02, power=2),
    }.items():
        ours = parse_schedule(text, rounds=60)
        for step in range(80):
            assert ours.rate(0.2, step) == pytest.approx(float(schedule(step)), rel=1e-4, abs=1e-7), (text, step)


def test_warmup_comes_before_any_schedule() -> None:
    for text in ("constant:warmup=4", "cosine:warmup=4", "step:warmup=4"):
        schedule = parse_schedule(text, rounds=60)
        assert [schedule.rate(1.0, step) for step in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert parse_schedule("cosine:warmup=4", rounds=14).rate(1.0, 14) == pytest.approx(0)
    with pytest.raises(ConfigError, match="every must be a whole number from 1 to 1e"):
        parse_schedule("step:every=1.5", rounds=1)
    with pytest.raises(ConfigError, match="schedule = wave: there is no schedule 'wave', only constant, step, "):
        parse_schedule("wave", rounds=1)


@pytest.mark.parametrize("loss", ["crossentropy", "binary_crossentropy", "mse", "mae", "huber"])
def test_the_derivative_of_a_loss(loss: Any) -> None:
    """Against differences of the loss itself."""
    random = np.random.default_rng(3)
    outputs = (3 * random.normal(size=(5, 4))).astype(np.float64)
    y = random.integers(0, 4, 5) if loss == "crossentropy" else random.random((5, 4))
    wanted = expected(y, loss, 4, "it")

    def total(at: np.ndarray) -> float:
        return loss_and_delta(loss, at.copy(), wanted)  # type: ignore[arg-type]  # float64, for the differences

    delta = outputs.copy()
    summed = loss_and_delta(loss, delta, wanted)  # type: ignore[arg-type]
    assert summed == total(outputs)
    if loss != "crossentropy":
        assert summed == pytest.approx(float(losses_of(loss, outputs, wanted).sum()))  # type: ignore[arg-type]
    for row, column in np.ndindex(outputs.shape):
        near = np.zeros_like(outputs)
        near[row, column] = 1e-3
        slope = (total(outputs + near) - total(outputs - near)) / 2e-3
        assert delta[row, column] == pytest.approx(slope, abs=3e-3)


@pytest.mark.parametrize("loss", ["binary_crossentropy", "mse", "mae", "huber"])
def test_both_trainers_learn_numbers_alike(keras: Any, loss: Any) -> None:
    random = np.random.default_rng(5)
    x = random.normal(size=(30, 6)).astype(np.float32)
    y = (x[:, :2] + 0.3 * x[:, 2:4] > 0).astype(np.float32) if loss == "binary_crossentropy" else x[:, :2] * 3
    ours = NumpyTrainer(features=6, outputs=2, hidden=(5,), dropout=0, loss=loss, optimizer="rmsprop:momentum=0.5",
                        learning_rate=0.01, schedule=parse_schedule("cosine", rounds=50))  # fmt: skip
    layers = keras.layers
    model = keras.Sequential([keras.Input((6,)), layers.Dense(5, activation="relu"), layers.Dense(2)])
    theirs = KerasTrainer(model, keras.optimizers.RMSprop(0.01, momentum=0.5), input_shape=(6,), loss=loss,
                          schedule=parse_schedule("cosine", rounds=50))  # fmt: skip
    (kernel, bias), (last, last_bias) = ours._layers
    model.set_weights([kernel, bias, last, last_bias])
    first = ours.evaluate(x, y).loss
    gradients = [np.empty(ours.size, np.float32) for _ in range(2)]
    for _ in range(50):
        for trainer, gradient in zip((ours, theirs), gradients, strict=True):
            trainer.gradient(x, y, gradient, seed=0)
            trainer.apply(gradient)
        np.testing.assert_allclose(*gradients, rtol=0.02, atol=2e-4)
    one, other = ours.evaluate(x, y), theirs.evaluate(x, y)
    assert one.loss < 0.8 * first
    for name in ("loss", "accuracy", "mae", "rmse"):
        assert (getattr(one, name) is None) == (getattr(other, name) is None)
        if getattr(one, name) is not None:
            assert getattr(one, name) == pytest.approx(getattr(other, name), rel=0.02, abs=1e-3)
    assert (one.accuracy is None) == (loss != "binary_crossentropy")
    assert theirs.form == ours.form


def test_a_model_that_ends_in_a_sigmoid_is_taken_for_what_it_is(keras: Any) -> None:
    layers = keras.layers
    x = np.random.default_rng(1).normal(size=(9, 4)).astype(np.float32)
    y = (x[:, :1] > 0).astype(np.float32)
    kernel = np.array([[2.0], [0], [0], [0]], np.float32)
    losses = []
    for ends in (
        [layers.Dense(1)],
        [layers.Dense(1, activation="sigmoid")],
        [layers.Dense(1), layers.Activation("sigmoid")],
        [layers.Dense(1), layers.Lambda(keras.ops.sigmoid)],
    ):
        model = keras.Sequential([keras.Input((4,)), *ends])
        model.set_weights([kernel, np.zeros(1)])
        trainer = KerasTrainer(model, keras.optimizers.SGD(0.1), input_shape=(4,), loss="binary_crossentropy")
        found = trainer.evaluate(x, y)
        assert found.accuracy == 1
        losses.append(found.loss)
    assert losses == pytest.approx([losses[0]] * 4, rel=1e-4)


def data(y: np.ndarray, classes: int = 0, **more: Any) -> Dataset:
    x = np.zeros((len(y), 3), np.float32)
    return Dataset(x_train=x, y_train=y, x_test=x, y_test=y, classes=classes, name="some", **more)


def test_what_a_model_must_be_like_follows_from_data_and_loss() -> None:
    labels, numbers = data(np.arange(4) % 2, 2), data(np.full((4, 3), 2.5, np.float32))
    for dataset, loss, outputs, found in [
        (labels, "auto", 2, "crossentropy"),
        (labels, "binary_crossentropy", 1, "binary_crossentropy"),
        (labels, "mse", 1, "mse"),
        (numbers, "auto", 3, "mse"),
        (numbers, "huber", 3, "huber"),
    ]:
        form = form_of(dataset, loss)  # type: ignore[arg-type]
        assert (form.outputs, form.loss, form.input_shape) == (outputs, found, (3,))
    with pytest.raises(DataError, match="loss crossentropy needs integer labels as y; these are numbers"):
        form_of(numbers, "crossentropy")
    for bad in (numbers, data(np.arange(4), 4)):
        with pytest.raises(DataError, match="loss binary_crossentropy needs a y from 0 to 1"):
            form_of(bad, "binary_crossentropy")
    with pytest.raises(ConfigError, match="'x' is unknown; a takes nothing"):
        parse_named("it", "a:x=1", {"a": {}})
