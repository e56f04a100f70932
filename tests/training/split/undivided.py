"""The plain oracle: the same network in whole matrices, and batches to train both on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgepeer.training.split.fleet import LocalFleet
from edgepeer.training.split.network import Network

Array = NDArray[Any]
Batches = Callable[[int], tuple[Array, Array]]


class Update(NamedTuple):
    """One iteration: what the update is made of, and the weights after it."""

    deltas: dict[int, Array]
    inputs: list[Array]
    weights: list[Array]


def batches_for(network: Network, batch: int = 4, different: int = 8, seed: int = 0) -> Batches:
    """Random ones, with a constant feature of zero: the first."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((different, batch, network.sizes[0]))
    x[:, :, 0] = 0
    if network.output == "softmax":
        y = rng.integers(0, network.sizes[-1], (different, batch))
    else:
        y = rng.random((different, batch, network.sizes[-1]))
    return lambda iteration: (x[iteration % different], y[iteration % different])


def start(network: Network) -> list[Array]:
    """The weights before training, whole."""
    return [np.stack([network.weights(k, row) for row in range(network.shape(k)[0])]) for k in range(network.layers)]


def updates(
    network: Network, batches: Batches, iterations: int, weights: list[Array] | None = None
) -> Iterator[Update]:
    """Training in whole matrices, with momentum as Keras has it."""
    weights = start(network) if weights is None else [each.copy() for each in weights]
    velocities = [np.zeros_like(each) for each in weights]
    layers = range(network.layers)
    for iteration in range(iterations):
        first, wanted = network.batch(*batches(iteration))
        inputs, sums = [first], first
        for k in layers:
            sums = weights[k] @ inputs[k]
            if k < network.layers - 1:
                inputs.append(network.with_constant(k + 1, network.activate(k, sums, iteration)))
        deltas = {network.layers - 1: network.loss(sums, wanted)[1]}
        for k in reversed(layers[1:]):
            deltas[k - 1] = network.back(k, weights[k].T @ deltas[k], inputs[k], iteration)
        for k in layers:
            change = deltas[k] @ inputs[k].T / first.shape[1] + network.l2 * weights[k]
            change *= network.rate(iteration)
            velocities[k] = network.momentum * velocities[k] - change
            weights[k] += network.momentum * velocities[k] - change if network.nesterov else velocities[k]
        yield Update(deltas, inputs, weights)


def undivided(network: Network, batches: Batches, iterations: int, weights: list[Array] | None = None) -> list[Array]:
    """The weights after training in whole matrices."""
    done = list(updates(network, batches, iterations, weights))
    return done[-1].weights if done else start(network)


def distance(fleet: LocalFleet, weights: list[Array]) -> float:
    """The largest difference in any layer, as a part of the layer's largest weight. NaN is infinite."""
    parts = [np.abs(fleet.weights(k) - each).max() / np.abs(each).max() for k, each in enumerate(weights)]
    return float(np.nan_to_num(max(parts), nan=np.inf))
