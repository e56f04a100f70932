from __future__ import annotations

import re
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepeer.errors import ModelError, WireError
from edgepeer.training.datasets import Dataset
from edgepeer.training.form import LossName
from edgepeer.training.numpy_trainer import NumpyTrainer
from edgepeer.training.state import ArraySpec, pack_state, unpack_state
from edgepeer.training.trainer import Trainer

SIZES = (6, 5, 4, 3)
Masks = list[np.ndarray]


def loss64(vector: np.ndarray, sizes: tuple[int, ...], x: np.ndarray, y: np.ndarray, masks: Masks) -> float:
    """The mean loss in float64, written down as plainly as can be."""
    start = 0
    last = len(sizes) - 2
    for number, (rows, columns) in enumerate(pairwise(sizes)):
        kernel = vector[start : start + rows * columns].reshape(rows, columns)
        start += rows * columns
        x = x @ kernel + vector[start : start + columns]
        start += columns
        if number < last:
            x = np.maximum(x, 0) * masks[number]
    return float(np.mean([np.log(np.exp(row).sum()) - row[label] for row, label in zip(x, y, strict=True)]))


def slopes64(vector: np.ndarray, *args: Any) -> np.ndarray:
    """The gradient of loss64 by central differences."""
    step = 1e-6
    directions = np.eye(len(vector)) * step
    return np.array([(loss64(vector + d, *args) - loss64(vector - d, *args)) / (2 * step) for d in directions])


def batch(count: int, *, features: int = 6, classes: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return random.normal(size=(count, features)).astype(np.float32), random.integers(0, classes, count)


def small(**changes: Any) -> NumpyTrainer:
    return NumpyTrainer(**{"features": 6, "outputs": 3, "hidden": (5, 4), "dropout": 0.0, **changes})


def gradient(trainer: NumpyTrainer, x: np.ndarray, y: np.ndarray, seed: int = 0) -> tuple[float, np.ndarray]:
    out = np.full(trainer.size, np.nan, np.float32)
    result = trainer.gradient(x, y, out, seed=seed)
    assert result.samples == len(x)
    return result.loss, out


def test_it_is_a_trainer_with_the_size_that_the_network_has() -> None:
    trainer = NumpyTrainer(features=784, outputs=10)
    assert isinstance(trainer, Trainer)
    assert trainer.size == len(trainer.parameters()) == 407_050
    assert NumpyTrainer(features=784, outputs=10, hidden=()).size == 7_850


@settings(max_examples=25, deadline=None)
@given(count=st.integers(1, 8), seed=st.integers(0, 1000))
def test_the_gradient_is_the_slope_of_the_loss(count: int, seed: int) -> None:
    trainer, (x, y) = small(seed=seed), batch(count, seed=seed)
    # Zero biases would put a layer without input right on relu's kink, where there is no slope.
    trainer.apply(np.random.default_rng(seed).normal(size=trainer.size).astype(np.float32))
    loss, found = gradient(trainer, x, y)
    vector = trainer.parameters().astype(np.float64)
    args = (SIZES, x.astype(np.float64), y, [np.array(1.0)] * 2)
    assert loss == pytest.approx(loss64(vector, *args), rel=1e-5)
    assert np.allclose(found, slopes64(vector, *args), atol=2e-5)


def test_the_gradient_with_dropout_is_the_slope_of_the_loss_under_the_same_masks() -> None:
    trainer, (x, y) = small(dropout=0.4), batch(8)
    loss, found = gradient(trainer, x, y, seed=9)
    random = np.random.Generator(np.random.PCG64(9))
    kept = [random.random((8, width), dtype=np.float32) >= np.float32(0.4) for width in SIZES[1:-1]]
    args = (SIZES, x.astype(np.float64), y, [mask / 0.6 for mask in kept])
    vector = trainer.parameters().astype(np.float64)
    assert loss == pytest.approx(loss64(vector, *args), rel=1e-5)
    assert np.allclose(found, slopes64(vector, *args), atol=2e-5)


def test_dropout_follows_its_seed_and_leaves_out_its_share() -> None:
    trainer = NumpyTrainer(features=4, outputs=2, hidden=(2000,), dropout=0.2)
    x, y = batch(20, features=4, classes=2)
    same, again, other = (gradient(trainer, x, y, seed=seed) for seed in (1, 1, 2))
    assert same[0] == again[0]
    assert np.array_equal(same[1], again[1])
    assert not np.array_equal(same[1], other[1])
    # One sample whose hidden units are all at work: a bias without gradient belongs to a unit left out.
    one = NumpyTrainer(features=1, outputs=2, hidden=(20_000,), dropout=0.2)
    _, found = gradient(one, np.array([[1.0]], np.float32), np.array([0]))
    working = one.parameters()[:20_000] > 0
    assert np.count_nonzero(found[20_000:40_000][working]) / working.sum() == pytest.approx(0.8, abs=0.02)


def test_an_empty_batch_has_no_weight_and_no_gradient() -> None:
    trainer = small()
    loss, found = gradient(trainer, np.empty((0, 6), np.float32), np.empty(0, np.int64))
    assert loss == 0
    assert not found.any()


def test_batches_of_any_size_shape_and_dtype_agree() -> None:
    trainer, (x, y) = small(), batch(40)
    _, expected = gradient(trainer, x[:3], y[:3])
    gradient(trainer, x, y)
    for same in (x[:3].reshape(3, 2, 3), x[:3].astype(np.float64), np.asfortranarray(x[:3])):
        assert np.array_equal(gradient(trainer, same, y[:3].astype(np.uint8))[1], expected)
    whole = trainer.evaluate(np.tile(x, (30, 1)), np.tile(y, 30))  # more than one evaluation batch
    assert whole.accuracy == pytest.approx(trainer.evaluate(x, y).accuracy)
    assert whole.loss == pytest.approx(gradient(trainer, x, y)[0], rel=1e-5)


def test_initial_parameters_are_glorot_uniform_and_follow_the_seed() -> None:
    vector = NumpyTrainer(features=784, outputs=10, seed=3).parameters()
    kernel, limit = vector[: 784 * 512], (6 / (784 + 512)) ** 0.5
    assert 0.999 * limit < np.abs(kernel).max() <= limit
    assert kernel.std() == pytest.approx(limit / 3**0.5, rel=0.01)
    assert not vector[784 * 512 : 784 * 512 + 512].any()
    assert np.array_equal(vector, NumpyTrainer(features=784, outputs=10, seed=3).parameters())
    assert not np.array_equal(vector, NumpyTrainer(features=784, outputs=10, seed=4).parameters())


def test_sgd_and_adam_step_as_their_papers_say() -> None:
    random = np.random.default_rng(0)
    for name in ("sgd", "adam"):
        trainer = small(optimizer=name, learning_rate=0.01)
        w = trainer.parameters().astype(np.float64)
        m = v = np.zeros_like(w)
        for t in range(1, 21):
            g = random.normal(size=trainer.size).astype(np.float32)
            trainer.apply(g)
            if name == "sgd":
                w = w - 0.01 * g
            else:
                m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * np.square(g, dtype=np.float64)
                w = w - 0.01 * (1 - 0.999**t) ** 0.5 / (1 - 0.9**t) * m / (v**0.5 + 1e-7)
        assert np.allclose(trainer.parameters(), w, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_replica_carries_on_bit_for_bit(optimizer: Literal["sgd", "adam"]) -> None:
    def train(trainer: NumpyTrainer, rounds: range) -> None:
        for number in rounds:
            trainer.apply(gradient(trainer, *batch(10, seed=number), seed=number)[1])

    one = small(optimizer=optimizer, dropout=0.3)
    train(one, range(5))
    other = small(optimizer=optimizer, dropout=0.3, seed=99, learning_rate=0.5)
    other.load_state(memoryview(one.state()))
    train(one, range(5, 10))
    train(other, range(5, 10))
    assert one.state() == other.state()
    assert np.array_equal(one.parameters(), other.parameters())


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    trainer = small(optimizer="adam")
    before = trainer.state()
    specs = {name: ArraySpec((trainer.size,), "float32") for name in ("parameters",)}
    specs |= {f"optimizer.{name}": specs["parameters"] for name in ("momentum", "velocity")}
    specs |= {"iterations": ArraySpec((), "int64"), "learning_rate": ArraySpec((), "float64")}
    arrays = unpack_state(before, "numpy adam", specs)
    wrong = [
        small().state(),
        small(hidden=(5, 5), optimizer="adam").state(),
        before[:-1],
        b"garbage",
        pack_state("numpy adam", {**arrays, "iterations": np.array(-1)}),
        pack_state("numpy adam", {**arrays, "parameters": arrays["parameters"] + 1, "learning_rate": np.array(np.nan)}),
    ]
    for state in wrong:
        with pytest.raises(WireError):
            trainer.load_state(state)
        assert trainer.state() == before


def test_a_state_of_a_model_for_other_data_does_not_fit() -> None:
    """Of as many parameters: devices' own data may differ in what their y is, and in how samples are laid out."""

    def linear(features: tuple[int, ...], loss: LossName) -> NumpyTrainer:
        return NumpyTrainer(features=features, outputs=3, hidden=(), loss=loss)

    labels = linear((2, 3), "crossentropy")
    labels.load_state(linear((2, 3), "crossentropy").state())
    before = labels.state()
    for other, theirs in (
        (linear((2, 3), "mse"), "samples of shape (2, 3) with 3 numbers to learn and loss mse"),
        (linear((3, 2), "crossentropy"), "samples of shape (3, 2) with 3 classes and loss crossentropy"),
    ):
        here = "samples of shape (2, 3) with 3 classes and loss crossentropy"
        with pytest.raises(WireError, match=re.escape(f"it is of a model for {theirs}; here are {here}")):
            labels.load_state(other.state())
        assert labels.state() == before


def test_misfits_are_named() -> None:
    trainer, (x, y) = small(), batch(4)
    out = np.empty(trainer.size, np.float32)
    with pytest.raises(ModelError, match="with 6 inputs"):
        trainer.gradient(x[:, :5], y, out, seed=0)
    with pytest.raises(ModelError, match="3 labels and samples"):
        trainer.gradient(x, y[:3], out, seed=0)
    for bad in (y + 1, y - 3):
        with pytest.raises(ModelError, match="3 outputs"):
            trainer.gradient(x, bad, out, seed=0)
    with pytest.raises(ModelError, match="no samples"):
        trainer.evaluate(x[:0], y[:0])
    for vector in (out[1:], out.astype(np.float64), np.empty(2 * trainer.size, np.float32)[::2]):
        with pytest.raises(ValueError, match="contiguous float32"):
            trainer.gradient(x, y, vector, seed=0)
    with pytest.raises(ValueError, match="gradient of shape"):
        trainer.apply(out[1:])
    for layers in ({"features": 0}, {"hidden": (0,)}, {"dropout": 1.0}):
        with pytest.raises(ModelError, match="no network"):
            small(**layers)


def test_it_learns_the_digits(digits: Dataset) -> None:
    trainer = NumpyTrainer(features=64, outputs=10, optimizer="adam", learning_rate=0.002)
    out = np.empty(trainer.size, np.float32)
    random = np.random.default_rng(0)
    for number in range(150):
        chosen = random.integers(0, len(digits.x_train), 100)
        trainer.gradient(digits.x_train[chosen], digits.y_train[chosen], out, seed=number)
        trainer.apply(out)
    assert trainer.evaluate(digits.x_test, digits.y_test).accuracy > 0.95
