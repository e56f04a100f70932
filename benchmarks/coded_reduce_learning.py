"""What the gradients of Reisizadeh et al. 2021 (§IV) are used for: how far gradient descent gets, round by round.

All exact schemes have the same gradients, so one run of gradient descent stands for all of them; SGD, which leaves out
the data of those who are late, has a run of its own for each experiment. Linear and logistic regressions on the same
data go side by side, as columns of one matrix of parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeer.training.datasets import load_dataset
from edgepeer.training.keras_setup import load_keras

__all__ = ["CURVE_STEP", "Taken", "digits_by_cnn", "four_or_nine", "linear_regression"]

Taken = NDArray[np.bool_] | None
"""Whose data is in each round's gradient, shape (rounds, workers); None: everybody's."""

#: The network's accuracy is taken after every so many rounds.
CURVE_STEP = 25

#: SGD's step is c / (t + c) times gradient descent's, with that of these c which ends with the smallest loss.
_HALF_LIVES = (100.0, 1000.0)


def linear_regression(
    samples: int, size: int, rounds: int, runs: Sequence[Taken], seed: int
) -> list[NDArray[np.float64]]:
    """Equation (10) of the paper; by run the normalized error (11) after each round, shape (rounds,)."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((samples, size), np.float32)
    truth = random.standard_normal((size, 1), np.float32)
    y = x @ truth + random.standard_normal((samples, 1), np.float32)
    step = 1 / (np.sqrt(samples) + np.sqrt(size)) ** 2  # of what is about the largest eigenvalue of x' x

    def error(now: NDArray[Any], _before: NDArray[Any]) -> NDArray[Any]:
        wrong: NDArray[Any] = ((now - truth) ** 2).sum(axis=0) / (truth**2).sum()
        return wrong

    def loss(out: NDArray[Any]) -> NDArray[Any]:
        total: NDArray[Any] = np.square(out - y).sum(axis=0)
        return total

    return _descend(x, lambda out: out - y, loss, step, rounds, runs, error)


def four_or_nine(
    data: str, data_dir: Path | None, samples: int, rounds: int, runs: Sequence[Taken]
) -> tuple[int, list[NDArray[np.float64]]]:
    """Logistic regression on fours and nines: how many they are, and by run the relative error (9) by round."""
    dataset = load_dataset(data, data_dir=data_dir)
    which = np.isin(dataset.y_train, (4, 9)).nonzero()[0][:samples]
    flat = dataset.x_train[which].reshape(len(which), -1)
    x = np.concatenate([flat, np.ones((len(which), 1), np.float32)], axis=1)
    y = (dataset.y_train[which] == 9).astype(np.float32)[:, None]
    step = 4 / float(np.linalg.norm(x, 2) ** 2)  # the loss's curvature is at most a quarter of x' x

    def residual(out: NDArray[Any]) -> NDArray[Any]:
        wrong: NDArray[Any] = 1 / (1 + np.exp(-out)) - y
        return wrong

    def loss(out: NDArray[Any]) -> NDArray[Any]:
        total: NDArray[Any] = (np.logaddexp(0, out) - y * out).sum(axis=0)
        return total

    def error(now: NDArray[Any], before: NDArray[Any]) -> NDArray[Any]:
        size = (before**2).sum(axis=0)
        change: NDArray[Any] = ((now - before) ** 2).sum(axis=0)
        relative: NDArray[Any] = np.divide(change, size, out=np.full(len(size), np.nan), where=size > 0)
        return relative

    return len(x), _descend(x, residual, loss, step, rounds, runs, error)


def _descend(
    x: NDArray[np.float32],
    residual: Callable[[NDArray[Any]], NDArray[Any]],
    loss: Callable[[NDArray[Any]], NDArray[Any]],
    step: float,
    rounds: int,
    runs: Sequence[Taken],
    error: Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]],
) -> list[NDArray[np.float64]]:
    """Gradient descent from 0, a column for each run and each step size that it tries; the best of them by run."""
    columns = [(run, half) for run in runs for half in (_HALF_LIVES if run is not None else (0.0,))]
    now = np.zeros((x.shape[1], len(columns)), np.float32)
    errors = np.empty((rounds, len(columns)))
    for at in range(rounds):
        out = residual(x @ now)
        steps = np.full(len(columns), step, np.float32)
        for column, (run, half) in enumerate(columns):
            if run is not None:
                taken = run[at]
                out[:, column] *= taken[np.arange(len(x)) * len(taken) // len(x)]
                steps[column] *= len(taken) / taken.sum() * half / (at + half)
        before, now = now, now - steps * (x.T @ out)
        errors[at] = error(now, before)
    best, losses = [], loss(x @ now)
    for run in runs:
        tried = [column for column, (other, _) in enumerate(columns) if other is run]
        best.append(errors[:, min(tried, key=lambda column: float(losses[column]))])
    return best


def digits_by_cnn(rounds: int, runs: Sequence[Taken], seed: int) -> list[NDArray[np.float64]]:
    """The paper's network (Table II; of one channel) on all ten 8 x 8 digits, trained on all data in each round; by run
    the accuracy on the test digits after every CURVE_STEP rounds, shape (rounds // CURVE_STEP,)."""
    keras = load_keras()
    import tensorflow as tf

    data = load_dataset("digits")
    x, y = tf.constant(data.x_train[..., None]), tf.constant(data.y_train)
    x_test, y_test = tf.constant(data.x_test[..., None]), tf.constant(data.y_test)
    curves = []
    for run in runs:
        keras.utils.set_random_seed(seed)
        network = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
                keras.layers.MaxPooling2D(),
                keras.layers.Conv2D(64, 4, activation="relu"),
                keras.layers.Flatten(),
                keras.layers.Dense(384, activation="relu"),
                keras.layers.Dense(192, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        variables = [variable.value for variable in network.trainable_variables]

        def train(weights: Any, step: Any, network: Any = network, variables: Any = variables) -> None:
            with tf.GradientTape() as tape:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, network(x))
                loss = tf.reduce_sum(losses * weights) / tf.reduce_sum(weights)
            for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
                variable.assign_sub(step * gradient)

        def accuracy(network: Any = network) -> Any:
            return tf.reduce_mean(tf.cast(tf.argmax(network(x_test), axis=1) == y_test, tf.float32))

        step_once, measured, curve = tf.function(train), tf.function(accuracy), []
        owner = np.arange(len(data.x_train))
        for at in range(rounds):
            weights = np.ones(len(owner)) if run is None else run[at][owner * run.shape[1] // len(owner)]
            # The paper's 0.02 for 2500 rounds, times 0.7 after 1300 and 2100 of them; larger where they are fewer.
            step = 50 / rounds * 0.7 ** sum(at >= part * rounds for part in (0.52, 0.84))
            step_once(tf.constant(weights, tf.float32), tf.constant(step, tf.float32))
            if (at + 1) % CURVE_STEP == 0:
                curve.append(float(measured()))
        curves.append(np.array(curve))
    return curves
