"""One batch on its way through the network and back: what every peer knows of it, alike.

    x_0 given;  forward l:   s_l = W_l x_l  ->  x_l+1 = f(s_l), after the last layer the loss and delta_L-1
                backward l:  c_l = W_l' delta_l  ->  delta_l-1 = c_l * g(x_l), after layer 0 nothing

The products come out of the rounds; the rest is done here, by every peer for itself, from the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeer.errors import WireError
from edgepeer.training.split.network import Network, ProductStep
from edgepeer.training.split.strategy import Strike

__all__ = ["Passing"]

Array = NDArray[Any]


class Passing:
    """A batch.

    Args:
        x, y: as of `Network.batch`; what it raises is raised here.
        iteration: which one it is; None: a look at data that aren't learnt from.
    """

    def __init__(self, network: Network, x: Array, y: Array, iteration: int | None) -> None:
        first, self.wanted = network.batch(x, y)
        self._network, self._iteration = network, iteration
        self.inputs: list[Array] = [first]
        """x_l, with the constant, as far as it is known."""
        self.deltas: dict[int, Array] = {}
        self.loss = float("nan")
        """Of the batch, once the last layer has been passed."""

    @property
    def samples(self) -> int:
        """How many samples the batch has (the papers' B)."""
        return int(self.inputs[0].shape[1])

    def operand(self, step: ProductStep) -> Array:
        """What W_l is multiplied by: x_l forward, delta_l backward."""
        return self.inputs[step.layer] if step.direction == "forward" else self.deltas[step.layer]

    def arrays(self) -> dict[str, Array]:
        """All that has come out so far, by name."""
        inputs = {f"input {layer}": x for layer, x in enumerate(self.inputs) if layer}
        return inputs | {f"delta {layer}": delta for layer, delta in self.deltas.items()}

    def load(self, arrays: dict[str, Array], step: ProductStep) -> None:
        """Have come as far as another, of which these are the `arrays`, and this is the next step.

        Raises:
            WireError: they aren't of this network and batch, or not enough for the step.
        """
        network = self._network
        for layer in range(1, network.layers):
            if (x := arrays.get(f"input {layer}")) is None:
                break
            self.inputs.append(self._checked(x, network.shape(layer)[1]))
        for layer in range(network.layers):
            if (delta := arrays.get(f"delta {layer}")) is not None:
                self.deltas[layer] = self._checked(delta, network.shape(layer)[0])
        if not (step.layer < len(self.inputs) if step.direction == "forward" else step.layer in self.deltas):
            raise WireError(f"the run's state is not enough to go on with {step}")

    def _checked(self, array: Array, rows: int) -> Array:
        if array.shape != (rows, self.samples) or array.dtype != self._network.dtype:
            raise WireError(
                f"the run's state has {array.shape} numbers of {array.dtype} where the network here has "
                f"{(rows, self.samples)} of {self._network.dtype}"
            )
        return array.copy()

    def advance(self, step: ProductStep, result: Array, strike: Strike) -> Array:
        """Take the product of a step; it may be done again. Returns what follows from it, empty after the last."""
        network, layer = self._network, step.layer
        with np.errstate(all="ignore"):  # wrong numbers may be of any size
            if step.direction == "backward":
                if not layer:
                    return np.empty(0)
                following = network.back(layer, result, self.inputs[layer], self._iteration or 0)
                strike("activation", following)
                self.deltas[layer - 1] = following
            elif layer == network.layers - 1:
                self.loss, following = network.loss(result, self.wanted)
                strike("activation", following)
                self.deltas[layer] = following
            else:
                activated = network.activate(layer, result, self._iteration)
                strike("activation", activated)
                following = network.with_constant(layer + 1, activated)
                self.inputs[layer + 1 :] = [following]
        return following
