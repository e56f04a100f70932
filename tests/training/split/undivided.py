"""The plain oracle: the same network in whole matrices, and batches to train both on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeer.training.split.fleet import Fleet
from edgepeer.training.split.network import Network

Array = NDArray[Any]
Batches = Callable[[int], tuple[Array, Array]]


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


def undivided(network: Network, batches: Batches, iterations: int) -> list[Array]:
    """The weights after training in whole matrices."""
    layers = range(network.layers)
    weights = [np.stack([network.weights(k, row) for row in range(network.shape(k)[0])]) for k in layers]
    for iteration in range(iterations):
        first, wanted = network.batch(*batches(iteration))
        inputs = [first]
        for k in layers:
            sums = weights[k] @ inputs[-1]
            if k < network.layers - 1:
                inputs.append(network.with_constant(network.activate(sums)))
        _, delta = network.loss(sums, wanted)
        for k in reversed(layers):
            back = (weights[k].T @ delta)[:-1]
            step = network.learning_rate / first.shape[1]
            weights[k] = (1 - network.learning_rate * network.l2) * weights[k] - step * delta @ inputs[k].T
            if k:
                delta = back * network.slope(inputs[k][:-1])
    return weights


def distance(fleet: Fleet, weights: list[Array]) -> float:
    """The largest difference in any layer, as a part of the layer's largest weight. NaN is infinite."""
    parts = [np.abs(fleet.weights(k) - each).max() / np.abs(each).max() for k, each in enumerate(weights)]
    return float(np.nan_to_num(max(parts), nan=np.inf))
