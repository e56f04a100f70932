from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from edgepeer.errors import ModelError, WireError
from edgepeer.training.datasets import Dataset
from edgepeer.training.keras_trainer import KerasTrainer
from edgepeer.training.numpy_trainer import NumpyTrainer
from edgepeer.training.trainer import Trainer

INPUTS = (2, 3)


def dense(keras: Any, *, dropout: float = 0.0, softmax: bool = False) -> Any:
    layers = [keras.layers.Flatten(), keras.layers.Dense(5, activation="relu")]
    if dropout:
        layers.append(keras.layers.Dropout(dropout))
    return keras.Sequential([*layers, keras.layers.Dense(3, activation="softmax" if softmax else None)])


def batch(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return random.normal(size=(count, *INPUTS)).astype(np.float32), random.integers(0, 3, count)


def gradient(trainer: Trainer, x: np.ndarray, y: np.ndarray, seed: int = 0) -> tuple[float, np.ndarray]:
    out = np.full(trainer.size, np.nan, np.float32)
    result = trainer.gradient(x, y, out, seed=seed)
    assert result.samples == len(x)
    return result.loss, out


@pytest.fixture(scope="module")
def plain(keras: Any) -> KerasTrainer:
    return KerasTrainer(dense(keras), keras.optimizers.SGD(0.1), input_shape=INPUTS)


@pytest.fixture(scope="module")
def random_one(keras: Any) -> KerasTrainer:
    return KerasTrainer(dense(keras, dropout=0.5), keras.optimizers.Adam(0.01), input_shape=INPUTS)


@pytest.fixture(scope="module", params=["sgd", "adam"])
def twins(keras: Any, request: pytest.FixtureRequest) -> tuple[KerasTrainer, NumpyTrainer]:
    """The same network with the same parameters and optimizer, in Keras and in NumPy."""
    sizes = (6, 5, 3)
    ours = NumpyTrainer(features=6, outputs=3, hidden=(5,), dropout=0, optimizer=request.param, learning_rate=0.05)
    model = dense(keras, softmax=request.param == "adam")
    maker = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}[request.param]
    theirs = KerasTrainer(model, maker(0.05), input_shape=INPUTS)
    weights, start, vector = [], 0, ours.parameters()
    for rows, columns in pairwise(sizes):
        weights += [vector[start : start + rows * columns].reshape(rows, columns)]
        start += rows * columns
        weights += [vector[start : start + columns]]
        start += columns
    model.set_weights(weights)
    return theirs, ours


def test_keras_and_numpy_compute_and_step_alike(twins: tuple[KerasTrainer, NumpyTrainer]) -> None:
    theirs, ours = twins
    assert isinstance(theirs, Trainer)
    assert theirs.size == ours.size
    assert np.array_equal(theirs.parameters(), ours.parameters())
    for number in range(10):
        x, y = batch(20, seed=number)
        (their_loss, their_gradient), (loss, found) = gradient(theirs, x, y), gradient(ours, x, y)
        assert their_loss == pytest.approx(loss, rel=1e-4)
        assert np.allclose(their_gradient, found, rtol=1e-3, atol=1e-5)
        theirs.apply(found)
        ours.apply(found)
        assert np.allclose(theirs.parameters(), ours.parameters(), atol=1e-5)
    x, y = batch(1200)
    assert theirs.evaluate(x, y).accuracy == pytest.approx(ours.evaluate(x, y).accuracy, abs=2e-3)
    assert theirs.evaluate(x, y).loss == pytest.approx(ours.evaluate(x, y).loss, rel=1e-4)


def test_batches_of_different_size_are_traced_once(plain: KerasTrainer) -> None:
    for count in (1, 2, 7, 100, 3):
        gradient(plain, *batch(count))
        plain.evaluate(*batch(count))
        plain.apply(np.zeros(plain.size, np.float32))
    for function in (plain._gradient, plain._apply, plain._evaluate):
        assert function.experimental_get_tracing_count() == 1


def test_an_empty_batch_has_no_weight_and_no_gradient(plain: KerasTrainer) -> None:
    loss, found = gradient(plain, *batch(0))
    assert loss == 0
    assert not found.any()


def test_the_gradient_is_written_over_whatever_was_there_and_is_the_callers(plain: KerasTrainer) -> None:
    x, y = batch(10)
    _, first = gradient(plain, x, y)
    kept = first.copy()
    _, second = gradient(plain, *batch(10, seed=1))
    assert np.array_equal(first, kept)
    assert not np.array_equal(first, second)
    parameters = plain.parameters()
    parameters[:] = 0
    assert plain.parameters().any()


def test_dropout_follows_its_seed(random_one: KerasTrainer) -> None:
    x, y = batch(20)
    same, again, other = (gradient(random_one, x, y, seed=seed) for seed in (1, 1, 2**63))
    assert same[0] == again[0]
    assert np.array_equal(same[1], again[1])
    assert not np.array_equal(same[1], other[1])


def test_a_replica_carries_on_bit_for_bit(keras: Any, random_one: KerasTrainer) -> None:
    def train(trainer: KerasTrainer, rounds: range) -> None:
        for number in rounds:
            trainer.apply(gradient(trainer, *batch(10, seed=number), seed=number)[1])

    other = KerasTrainer(dense(keras, dropout=0.5), keras.optimizers.Adam(0.5), input_shape=INPUTS)
    train(random_one, range(5))
    received = bytearray(random_one.state())
    other.load_state(memoryview(received))
    received[:] = bytes(len(received))  # whoever received it uses the memory again
    train(random_one, range(5, 10))
    train(other, range(5, 10))
    assert random_one.state() == other.state()
    assert np.array_equal(random_one.parameters(), other.parameters())


def test_a_state_that_does_not_fit_changes_nothing(keras: Any, plain: KerasTrainer, random_one: KerasTrainer) -> None:
    before = plain.state()
    numpy_state = NumpyTrainer(features=6, outputs=3, hidden=(5,)).state()
    for state in (random_one.state(), numpy_state, before[:-1], b"", b"garbage" * 50):
        with pytest.raises(WireError):
            plain.load_state(state)
        assert plain.state() == before
    numbers = KerasTrainer(dense(keras), keras.optimizers.SGD(0.1), input_shape=INPUTS, loss="mse")
    with pytest.raises(WireError, match="with 3 numbers to learn and loss mse; here are"):
        plain.load_state(numbers.state())
    assert plain.state() == before


def test_the_end_of_a_model_is_recognised(keras: Any) -> None:
    layers = keras.layers

    class Own(keras.Model):
        def __init__(self, last: Any) -> None:
            super().__init__()
            self.inner, self.last = keras.Sequential([layers.Flatten(), layers.Dense(3)]), last

        def call(self, x: Any) -> Any:
            return self.last(self.inner(x))

    makers: dict[Callable[[], Any], bool] = {
        lambda: dense(keras): True,
        lambda: dense(keras, softmax=True): False,
        lambda: keras.Sequential([dense(keras), layers.Softmax()]): False,
        lambda: keras.Sequential([dense(keras), layers.Activation("softmax")]): False,
        lambda: Own(layers.Softmax()): False,
        lambda: Own(layers.Activation("relu")): True,
        lambda: keras.Sequential([dense(keras), layers.Softmax(), layers.Reshape((3, 1)), layers.Flatten()]): False,
    }
    for make, logits in makers.items():
        trainer = KerasTrainer(make(), keras.optimizers.SGD(0.1), input_shape=INPUTS)
        assert trainer._from_logits == logits
        assert trainer.outputs == 3
    halves = [layers.Flatten(), layers.Dense(6), layers.Reshape((2, 3)), layers.Softmax(), layers.Flatten()]
    assert KerasTrainer(keras.Sequential(halves), keras.optimizers.SGD(0.1), input_shape=INPUTS)._from_logits


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_probabilities_in_half_precision_are_taken_for_such(keras: Any, classes: int) -> None:
    layers = keras.layers
    for seed in range(4):
        keras.utils.set_random_seed(seed)
        half = layers.Dense(classes, "softmax", dtype="mixed_bfloat16")
        at_last: list[list[Any]] = [[], [layers.Activation("linear", dtype="float32")]]  # as Keras' guide casts them
        for cast in at_last:
            model = keras.Sequential([layers.Flatten(), half, *cast])
            assert not KerasTrainer(model, keras.optimizers.SGD(0.1), input_shape=INPUTS)._from_logits


def test_probabilities_of_their_own_are_recognised(keras: Any) -> None:
    layers, sigmoid = keras.layers, keras.activations.sigmoid

    class Own(keras.Model):
        """Whose last layer is not the one that is made last."""

        def __init__(self, hidden: str | None, last: str | None) -> None:
            super().__init__()
            self.last, self.flat, self.hidden = layers.Dense(2, last), layers.Flatten(), layers.Dense(4, hidden)

        def call(self, x: Any) -> Any:
            return self.last(self.hidden(self.flat(x)))

    def stack(*ending: Any) -> Any:
        return keras.Sequential([layers.Flatten(), *ending])

    makers: dict[Callable[[], Any], bool] = {
        lambda: stack(layers.Dense(2)): True,
        lambda: stack(layers.Dense(2, kernel_initializer="zeros", bias_initializer="ones")): True,
        lambda: stack(layers.Dense(2, "sigmoid")): False,
        lambda: stack(layers.Dense(2, lambda x: sigmoid(x))): False,
        lambda: stack(layers.Dense(2, "sigmoid"), layers.Activation("linear")): False,
        lambda: stack(stack(layers.Dense(2, "sigmoid"))): False,
        lambda: Own("relu", "sigmoid"): False,
        lambda: Own("sigmoid", None): True,
    }
    for make, logits in makers.items():
        trainer = KerasTrainer(make(), keras.optimizers.SGD(0.1), input_shape=INPUTS, loss="binary_crossentropy")
        assert trainer._from_logits == logits


def test_the_end_of_a_model_that_takes_whole_numbers_is_recognised(keras: Any) -> None:
    layers = keras.layers

    class Own(keras.Model):
        def __init__(self, last: str | None) -> None:
            super().__init__()
            self.numbers, self.mean = layers.Embedding(9, 4), layers.GlobalAveragePooling1D()
            self.last = layers.Dense(1, last)

        def call(self, x: Any) -> Any:
            return self.last(self.mean(self.numbers(x)))

    cast = layers.Activation("linear", dtype="float32")
    for end, logits in ((None, True), ("sigmoid", False)):
        half = layers.Dense(1, end, dtype="mixed_bfloat16")
        stack = [layers.Embedding(9, 4), layers.GlobalAveragePooling1D(), half, cast]
        for model in (Own(end), keras.Sequential(stack)):
            trainer = KerasTrainer(model, keras.optimizers.SGD(0.1), input_shape=(3,), loss="binary_crossentropy")
            assert trainer._from_logits == logits


def test_layers_that_are_not_trained_travel_in_any_precision(keras: Any) -> None:
    layers = keras.layers

    def make(seed: int) -> KerasTrainer:
        keras.utils.set_random_seed(seed)
        frozen = layers.Dense(4, dtype="bfloat16", trainable=False)
        model = keras.Sequential([layers.Flatten(), frozen, layers.Dense(3, dtype="float32")])
        return KerasTrainer(model, keras.optimizers.SGD(0.1), input_shape=INPUTS)

    one, other = make(1), make(2)
    assert one.state() != other.state()
    other.load_state(one.state())
    assert one.state() == other.state()
    assert one.evaluate(*batch(10)) == other.evaluate(*batch(10))


def test_regularizers_count_and_normalisation_travels(keras: Any) -> None:
    layers = keras.layers
    shrink = keras.regularizers.L2(0.5)
    model = keras.Sequential(
        [layers.Flatten(), layers.BatchNormalization(), layers.Dense(3, kernel_regularizer=shrink)]
    )
    trainer = KerasTrainer(model, keras.optimizers.SGD(0.1), input_shape=INPUTS)
    assert not model.layers[1].moving_mean.numpy().any()  # that gradients can be computed has been tried
    before = trainer.state()
    loss, _ = gradient(trainer, *batch(10))
    assert loss > 0.5 * np.square(model.layers[-1].kernel.numpy()).sum()
    changed = trainer.state()
    assert changed != before  # the moving statistics
    trainer.load_state(before)
    assert trainer.state() == before


def test_what_can_not_be_trained_is_named(keras: Any) -> None:
    layers = keras.layers

    class WithText(layers.Layer):  # type: ignore[misc]  # Keras has no types
        def build(self, shape: Any) -> None:
            self.add_weight(
                name="text", shape=(), dtype="string", initializer=lambda shape, dtype: "a", trainable=False
            )

        def call(self, x: Any) -> Any:
            return x

    inputs = keras.Input(INPUTS)
    two_ended = keras.Model(inputs, [layers.Flatten()(inputs), layers.Dense(3)(layers.Flatten()(inputs))])
    wrong = {
        "can't take samples of shape": keras.Sequential([keras.Input((4, 4)), layers.Flatten(), layers.Dense(3)]),
        "one row of numbers per sample, not list": two_ended,
        r"one row of numbers per sample, not \(2, 2, 4\)": keras.Sequential([layers.Dense(4)]),
        "no trainable parameters": keras.Sequential([layers.Flatten()]),
        "dense.*/kernel changes when a gradient is computed": keras.Sequential(
            [layers.Flatten(), layers.SpectralNormalization(layers.Dense(3))]
        ),
        "text is string, which no state can carry": keras.Sequential([WithText(), layers.Flatten(), layers.Dense(3)]),
        "parameters must be float32": keras.Sequential([layers.Flatten(), layers.Dense(3, dtype="float64")]),
    }
    for reason, model in wrong.items():
        with pytest.raises(ModelError, match=reason) as raised:
            KerasTrainer(model, keras.optimizers.SGD(0.1), input_shape=INPUTS, name="mine")
        assert str(raised.value).startswith("model mine: ")
        assert "\n" not in str(raised.value)


def test_misfits_are_named(plain: KerasTrainer) -> None:
    x, y = batch(4)
    out = np.empty(plain.size, np.float32)
    for samples, labels, reason in ((x[:, :1], y, "one takes"), (x, y[:3], "one takes"), (x, y + 1, "3 outputs")):
        with pytest.raises(ModelError, match=reason):
            plain.gradient(samples, labels, out, seed=0)
    with pytest.raises(ModelError, match="no samples"):
        plain.evaluate(x[:0], y[:0])
    with pytest.raises(ValueError, match="out must be"):
        plain.gradient(x, y, out[1:], seed=0)
    with pytest.raises(ValueError, match="gradient of shape"):
        plain.apply(out[1:])


def test_mixed_precision_trains_float32_parameters(keras: Any) -> None:
    policy = "mixed_float16"
    model = keras.Sequential([keras.layers.Flatten(dtype=policy), keras.layers.Dense(3, dtype=policy)])
    trainer = KerasTrainer(model, keras.optimizers.SGD(0.1), input_shape=INPUTS)
    loss, found = gradient(trainer, *batch(10))
    assert np.isfinite(loss)
    assert found.any()
    assert trainer.evaluate(*batch(10)).loss == pytest.approx(loss, rel=1e-2)


def test_it_learns_the_digits(keras: Any, digits: Dataset) -> None:
    layers = keras.layers
    model = keras.Sequential([layers.Flatten(), layers.Dense(128, activation="relu"), layers.Dense(10)])
    trainer = KerasTrainer(model, keras.optimizers.Adam(0.005), input_shape=(8, 8))
    out = np.empty(trainer.size, np.float32)
    random = np.random.default_rng(0)
    for number in range(150):
        chosen = random.integers(0, len(digits.x_train), 100)
        trainer.gradient(digits.x_train[chosen], digits.y_train[chosen], out, seed=number)
        trainer.apply(out)
    assert trainer.evaluate(digits.x_test, digits.y_test).accuracy > 0.95
