"""One node of a divided network: its blocks, and its part in each round. No I/O, no clock.

    for each batch:                          all peers have the same one
        begin(x, y)
        for each step of the network:
            contribute(step)             ->  a vector; the tree adds them up, and all get the same sum
            settle(step, sum, missing)   ->  which nodes were wrong
            while there are any:
                give(layer, wrong)       ->  a vector again: the wrong nodes' blocks, put together from others'
                take(layer, wrong, sum, missing)
        update()                             nothing is sent

`settle` reads the sum, applies the activation, and leaves what the next step is multiplied by. Every peer does it for
itself. What one of them gets wrong here is wrong in its own contributions only; the others see it in the tail of its
next vector (`tail`), or as a wrong line. `Undecodable` means to all peers alike: back to the last checkpoint, `unpack`.

Between iterations, `sound` and `examine` look for stored weights that are wrong before they are read (scrubbing), and a
new cell is filled with `give` and `take`, layer by layer: it needs nobody's disk. An
error in what is given ends up in the new block, and is found as any wrong weight is: by the next product that reads it,
or the next scrub.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeer.coding.matrix.scrub import PROBES, probe
from edgepeer.errors import ConfigError
from edgepeer.training.split.faults import Injector, Where
from edgepeer.training.split.network import Network, Step
from edgepeer.training.split.strategy import Reading, Split, Strike, parts_of
from edgepeer.training.split.tail import WORDS, digest_of, odd_nodes
from edgepeer.training.state import ArraySpec, pack_state, unpack_state

__all__ = ["Cell", "Seen", "Settled"]

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a round's sum says. The same at all who read it."""

    reading: Reading
    odd: tuple[int, ...]
    """Nodes that went on from something else than the others."""
    missing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Settled:
    """What a step came to."""

    lines: tuple[int, ...]
    """Wrong lines, which were corrected."""
    suspects: tuple[int, ...]
    """The nodes that add to them: their blocks may be wrong."""
    odd: tuple[int, ...]
    """Nodes whose contribution was left out since they went on from something else."""


class Cell:
    """A node.

    Args:
        node: which of the split's.
        blank: without weights; they are to be taken from others.
        iteration: how many updates the weights have had.
        injector: makes soft errors.

    Raises:
        ConfigError: the network can't be divided so, or there is no such node.
    """

    def __init__(
        self,
        network: Network,
        split: Split,
        node: int,
        *,
        blank: bool = False,
        iteration: int = 0,
        injector: Injector | None = None,
    ) -> None:
        split.fit(network)
        if not 0 <= node < split.nodes:
            raise ConfigError(f"split {split.name} has nodes 0 to {split.nodes - 1}, not {node}")
        self.network, self.split, self.node = network, split, node
        self.iteration = iteration
        self.loss = float("nan")
        """Of the batch, before the update."""
        self._injector = injector
        self.blocks: list[Array] = []
        """What is stored of each layer."""
        for layer in range(network.layers):
            shape = network.shape(layer)
            if blank:
                self.blocks.append(np.zeros(split.stored_shape(shape), split.block_dtype))
            else:
                self.blocks.append(split.store(node, shape, lambda row, at=layer: network.weights(at, row)))  # type: ignore[misc]
        self._inputs: list[Array] = []
        """x_l of each layer, with the constant, as far as it is known."""
        self._deltas: dict[int, Array] = {}
        self._wanted: Array = np.empty(0)
        self._last: tuple[Step, Seen] | None = None
        self._digest = digest_of(f"start {iteration}")

    def begin(self, x: Array, y: Array) -> None:
        """A batch: x of shape (B, N_0), y labels (B,) or numbers (B, N_L).

        Raises:
            ConfigError: it has no samples.
            ModelError: it is not for this network.
        """
        first, self._wanted = self.network.batch(x, y)
        self._inputs, self._deltas, self._last = [first], {}, None

    @property
    def state(self) -> tuple[int, int]:
        """Digest of what was decoded, applied and judged in the last step of this iteration, if there was one."""
        return self._digest

    def contribute(self, step: Step) -> Array:
        """This node's part of a step's vector, shape (lines * numbers + 2 P,); the last 2 P only if the split
        compares."""
        split, layer, strike = self.split, step.layer, self._strike(str(step))
        lines, numbers = self._form(step)
        out = self._vector(lines * numbers)
        line = split.line(self.node, step.direction)
        if line is not None:
            whole = self._inputs[layer] if step.direction == "forward" else self._deltas[layer]
            with np.errstate(all="ignore"):  # wrong numbers may be of any size
                operand = split.operand(self.node, step.direction, whole)
                strike("encoding", operand)
                product = split.product(self.node, step.direction, self.blocks[layer], operand, self.iteration, strike)
            out[line * numbers : (line + 1) * numbers] = product
        return out

    def read(self, step: Step, total: Array, missing: Collection[int] = ()) -> Seen:
        """What the sum of all contributions but the missing nodes' says; depends on nothing else that a cell knows.

        Raises:
            Undecodable: too much is lost or wrong, or the nodes don't agree on what was before.
        """
        lines, numbers = self._form(step)
        odd = self._odd(total, missing)
        shape, batch = self.network.shape(step.layer), self._inputs[0].shape[1]
        rows = total[: lines * numbers].reshape(lines, numbers)
        with np.errstate(all="ignore"):
            reading = self.split.read(step.direction, rows, shape, batch, {*missing, *odd}, self.iteration)
        return Seen(reading, odd, tuple(sorted(missing)))

    def settle(self, step: Step, total: Array, missing: Collection[int] = (), seen: Seen | None = None) -> Settled:
        """Take a step's sum: decode, apply the activation, judge.

        Args:
            total: the sum of the vectors.
            missing: nodes whose vectors aren't in it.
            seen: what `read` says of it, if somebody in this process has read it before.

        Raises:
            Undecodable: as `read`. Go back to the last checkpoint.
        """
        seen = self.read(step, total, missing) if seen is None else seen
        self._again(seen.odd)
        self._last = (step, seen)
        return self._go_on(step, seen, self._strike(str(step)))

    def update(self) -> None:
        """W <- (1 - eta lambda) W - (eta / B) Delta X' of the own blocks, and on to the next iteration."""
        network = self.network
        rate = network.rate(self.iteration)
        step, decay = -rate / self._wanted.shape[-1], 1 - rate * network.l2
        for layer, block in enumerate(self.blocks):
            strike = self._strike(f"update {layer}")
            with np.errstate(all="ignore"):
                self.split.update(self.node, block, self._deltas[layer], self._inputs[layer], step, decay, strike)
            strike("stored", block)
        self.iteration += 1
        self._digest = digest_of(f"start {self.iteration}")  # so that new cells and old ones start alike

    def give(self, layer: int, wrong: Sequence[int], without: Collection[int] = ()) -> Array:
        """This node's part of the wrong nodes' blocks of a layer, one after the other, and the tail.

        Args:
            without: nodes that can't help, beside the wrong ones.

        Raises:
            Undecodable: the others don't determine these blocks.
        """
        own = parts_of(self.blocks[layer])
        out = self._vector(len(wrong) * own.size)
        slots = out[: len(wrong) * own.size].reshape(len(wrong), *own.shape)
        for slot, node in zip(slots, wrong, strict=True):
            share = self.split.recovery(node, {*wrong, *without}).get(self.node)
            if share is not None:
                with np.errstate(all="ignore"):
                    slot += np.tensordot(share.astype(self.network.dtype), own, 1)
        return out

    def take(
        self,
        layer: int,
        wrong: Sequence[int],
        total: Array,
        missing: Collection[int] = (),
        without: Collection[int] = (),
    ) -> tuple[int, ...]:
        """The sum of what was given: a wrong node has its block back.

        Returns:
            Nodes that were to help, and didn't: then nothing has changed; again without them.
        """
        odd = self._odd(total, missing)
        self._again(odd)
        sources = {each for node in wrong for each in self.split.recovery(node, {*wrong, *without})}
        failed = sources & {*missing, *odd}
        if not failed and self.node in wrong:
            own = parts_of(self.blocks[layer])
            own[:] = total[: len(wrong) * own.size].reshape(len(wrong), *own.shape)[list(wrong).index(self.node)]
        return tuple(sorted(failed))

    def sound(self, seed: int) -> Array:
        """This node's part of a scrub: all its blocks' products with dense vectors, in float64 (`scrub.probe`).

        Args:
            seed: the same at all nodes, another in each scrub.
        """
        out = []
        for layer, block in enumerate(self.blocks):
            slots = np.zeros(self._probes(layer))
            with np.errstate(all="ignore"):
                slots[self.node] = probe(block[None], seed + layer).view(np.float64)
            out.append(slots.ravel())
        return np.concatenate(out)

    def examine(self, total: Array, missing: Collection[int] = ()) -> dict[int, tuple[int, ...]]:
        """The nodes whose blocks are wrong, by layer, where there are any.

        Raises:
            Undecodable: more than can be named. Go back to the last checkpoint.
        """
        out: dict[int, tuple[int, ...]] = {}
        start = 0
        for layer, block in enumerate(self.blocks):
            form = self._probes(layer)
            probes = total[start : (start := start + form[0] * form[1])].reshape(form)
            if block.dtype.kind == "c":
                probes = np.ascontiguousarray(probes).view(np.complex128)
            with np.errstate(all="ignore"):
                wrong = self.split.inspect(probes, self.network.shape(layer), missing, self.iteration)
            if wrong:
                out[layer] = wrong
        return out

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
        for layer, block in enumerate(self.blocks):
            parts_of(block)[:] = found[f"layer {layer}"]
        self.iteration = int(found["iteration"])
        self._inputs, self._deltas, self._last = [], {}, None
        self._digest = digest_of(f"start {self.iteration}")

    def _go_on(self, step: Step, seen: Seen, strike: Strike) -> Settled:
        network, layer, split = self.network, step.layer, self.split
        lost = {*seen.missing, *seen.odd}
        suspected = np.zeros(split.nodes, np.bool_)
        for line in seen.reading.wrong:
            suspected[[node for node in split.members(line, step.direction) if node not in lost]] = True
        strike("verdict", suspected)
        result = seen.reading.result.copy()
        strike("decoded", result)
        following = np.empty(0)
        with np.errstate(all="ignore"):
            if step.direction == "backward":
                if layer:
                    following = network.back(layer, result, self._inputs[layer], self.iteration)
                    strike("activation", following)
                    self._deltas[layer - 1] = following
            elif layer == network.layers - 1:
                self.loss, following = network.loss(result, self._wanted)
                strike("activation", following)
                self._deltas[layer] = following
            else:
                activated = network.activate(layer, result, self.iteration)
                strike("activation", activated)
                following = network.with_constant(layer + 1, activated)
                self._inputs[layer + 1 :] = [following]
        if split.compares:
            self._digest = digest_of(f"{self.iteration} {step}", suspected, result, following)
        return Settled(seen.reading.wrong, tuple(np.flatnonzero(suspected).tolist()), seen.odd)

    def _again(self, odd: Collection[int]) -> None:
        """If this is one of those that went on from something else: the last step again, from its sum."""
        if self.node in odd and self._last is not None:
            self._go_on(*self._last, lambda place, numbers: None)

    def _odd(self, total: Array, missing: Collection[int]) -> tuple[int, ...]:
        return odd_nodes(total[-WORDS * self.split.nodes :], missing) if self.split.compares else ()

    def _form(self, step: Step) -> tuple[int, int]:
        """Lines, and numbers of each."""
        shape, batch = self.network.shape(step.layer), self._inputs[0].shape[1]
        return self.split.lines(step.direction), self.split.numbers(step.direction, shape, batch)

    def _vector(self, numbers: int) -> Array:
        """Zeros, and the own digest in the tail."""
        nodes = self.split.nodes if self.split.compares else 0
        out = np.zeros(numbers + WORDS * nodes, self.network.dtype)
        if nodes:
            at = numbers + WORDS * self.node
            out[at : at + WORDS] = self._digest
        return out

    def _probes(self, layer: int) -> tuple[int, int]:
        block = self.blocks[layer]
        return self.split.nodes, len(parts_of(block)) * PROBES * sum(block.shape)

    def _strike(self, step: str) -> Strike:
        injector = self._injector
        if injector is None:
            return lambda place, numbers: None
        return lambda place, numbers: injector.strike(Where(self.iteration, self.node, step, place), numbers)

    @property
    def _kind(self) -> str:
        return f"split {self.split.name} {self.node}"

    def _arrays(self) -> dict[str, Array]:
        blocks = {f"layer {layer}": parts_of(block) for layer, block in enumerate(self.blocks)}
        return {**blocks, "iteration": np.array(self.iteration, np.int64)}
