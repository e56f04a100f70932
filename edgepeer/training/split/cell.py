"""One node of a divided network: its blocks, and what it makes of them. No I/O, no clock.

    product(step, operand)          its part of a line                                      O1, O2
    update(passing)                 W <- (1 - eta lambda) W - (eta / B) Delta X'            O3, nothing is sent
    give(store, wrong), take        the wrong nodes' blocks, put together from others'
    probes(seed)                    products with dense vectors, that show wrong weights
    pack, unpack                    a checkpoint

With momentum mu, a second block of each layer is stored, divided like the weights: V <- mu V - eta (lambda W +
Delta X' / B), W <- W + V; Nesterov's is W <- W + (1 + mu) V - mu V_before. All of it is linear in what is coded, so it
stays coded. `stores` counts all of these, the
weights first.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeer.coding.matrix.scrub import probe
from edgepeer.errors import ConfigError
from edgepeer.training.split.network import Network, ProductStep
from edgepeer.training.split.passing import Passing
from edgepeer.training.split.strategy import Shape, Split, Strike, largest, parts_of
from edgepeer.training.state import ArraySpec, pack_state, unpack_state

__all__ = ["Cell", "stores"]

Array = NDArray[Any]


def stores(network: Network) -> int:
    """How many blocks a node stores: the weights of each layer, then their velocities, if there is momentum."""
    return network.layers * (2 if network.momentum else 1)


class Cell:
    """A node.

    Args:
        node: which of the split's.
        blank: without weights; they are to be taken from others.
        iteration: how many updates the weights have had.

    Raises:
        ConfigError: the network can't be divided so, or there is no such node.
    """

    def __init__(self, network: Network, split: Split, node: int, *, blank: bool = False, iteration: int = 0) -> None:
        split.fit(network)
        if not 0 <= node < split.nodes:
            raise ConfigError(f"split {split.name} has nodes 0 to {split.nodes - 1}, not {node}")
        self.network, self.split, self.node = network, split, node
        self.iteration = iteration
        self.lacking = set(range(stores(network))) if blank else set[int]()
        """The stores that are still to be taken from others."""
        self.blocks: list[Array] = []
        """What is stored."""
        for store in range(stores(network)):
            layer, shape = store % network.layers, self.shape(store)
            if blank or store >= network.layers:
                self.blocks.append(np.zeros(split.stored_shape(shape), split.block_dtype))
            else:
                self.blocks.append(split.store(node, shape, lambda row, at=layer: network.weights(at, row)))  # type: ignore[misc]

    def shape(self, store: int) -> Shape:
        """Of the whole matrix that a store has a block of."""
        return self.network.shape(store % self.network.layers)

    @property
    def held_bytes(self) -> int:
        """What the blocks take, without those that are still to be taken from others."""
        return sum(block.nbytes for store, block in enumerate(self.blocks) if store not in self.lacking)

    def product(self, step: ProductStep, operand: Array, strike: Strike) -> Array:
        """This node's part of its line, shape (numbers,); operand: x_l or delta_l, whole."""
        split = self.split
        with np.errstate(all="ignore"):  # wrong numbers may be of any size
            own = split.operand(self.node, step.direction, operand)
            strike("encoding", own, lambda change: self._effect(step, own, change))
            return split.product(self.node, step.direction, self.blocks[step.layer], own, self.iteration, strike)

    def _effect(self, step: ProductStep, own: Array, change: Array) -> float:
        """How much a change of the operand, which has it by now, changes the product."""
        block = self.blocks[step.layer]
        changed = largest(self.split.multiply(step.direction, block, change))
        return changed / (largest(self.split.multiply(step.direction, block, own - change)) or 1.0)

    def update(self, layer: int, passing: Passing, strike: Strike) -> None:
        """One layer's update of the own block. After the last one, `iteration` is one more."""
        network = self.network
        eta, mu, l2 = network.rate(self.iteration), network.momentum, network.l2
        block, delta, x = self.blocks[layer], passing.deltas[layer], passing.inputs[layer]
        with np.errstate(all="ignore"):
            if mu:
                velocity = self.blocks[network.layers + layer]
                before = velocity.copy() if network.nesterov else None
                self.split.update(self.node, velocity, delta, x, -eta / passing.samples, mu, strike)
                if l2:
                    velocity -= velocity.dtype.type(eta * l2) * block
                if before is None:
                    block += velocity
                else:
                    block += block.dtype.type(1 + mu) * velocity - block.dtype.type(mu) * before
                strike("stored", velocity)
            else:
                self.split.update(self.node, block, delta, x, -eta / passing.samples, 1 - eta * l2, strike)
        strike("stored", block)
        if layer == network.layers - 1:
            self.iteration += 1

    def give(self, store: int, wrong: Sequence[int], without: Collection[int]) -> Array:
        """This node's part of the wrong nodes' blocks, one after the other, shape (len(wrong), parts * h * w).

        Args:
            without: nodes that can't help, beside the wrong ones.

        Raises:
            Undecodable: the others don't determine these blocks.
        """
        own = parts_of(self.blocks[store])
        out = np.zeros((len(wrong), *own.shape), self.network.dtype)
        for slot, node in zip(out, wrong, strict=True):
            share = self.split.recovery(node, {*wrong, *without}).get(self.node)
            if share is not None:
                with np.errstate(all="ignore"):
                    slot += np.tensordot(share.astype(self.network.dtype), own, 1)
        return out.reshape(len(wrong), -1)

    def take(self, store: int, block: Array) -> None:
        """The own block as the others have put it together, of `give`'s numbers."""
        own = parts_of(self.blocks[store])
        own[:] = block.reshape(own.shape)
        self.lacking.discard(store)

    def probes(self, store: int, seed: int) -> Array:
        """This node's part of a scrub, float64, shape (numbers,); seed: the same at all nodes (`scrub.probe`)."""
        with np.errstate(all="ignore"):
            return np.ascontiguousarray(probe(self.blocks[store][None], seed)).view(np.float64).ravel()

    def pack(self) -> bytes:
        """A checkpoint: the own blocks, and how many updates they have had."""
        return pack_state(self._kind, self._arrays())

    def unpack(self, state: bytes | bytearray | memoryview) -> None:
        """Go back to a checkpoint of this node.

        Raises:
            WireError: it is not one, or damaged. Nothing has changed then.
        """
        own = self._arrays()
        found = unpack_state(
            state, self._kind, {name: ArraySpec(array.shape, array.dtype.name) for name, array in own.items()}
        )
        for store, block in enumerate(self.blocks):
            parts_of(block)[:] = found[f"store {store}"]
        self.iteration = int(found["iteration"])
        self.lacking.clear()

    @property
    def _kind(self) -> str:
        return f"split {self.split.name} {self.node}"

    def _arrays(self) -> dict[str, Array]:
        blocks = {f"store {store}": parts_of(block) for store, block in enumerate(self.blocks)}
        return {**blocks, "iteration": np.array(self.iteration, np.int64)}
