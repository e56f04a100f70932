"""How the vector of each round is laid out, and what its sum says.

    phase      | lines, each of the same size       | numbers of a line
    -----------+------------------------------------+----------------------------------------------------------------
    muster     | a node                             | iteration and claimant, see `muster`; nothing follows
    work, look | as the split has it                | of a coded part of the result, for all samples
    mend       | a block that is put together again | of the block
    scrub      | a node                             | of the products of all its blocks with dense vectors

After the lines come their checksums, then the nodes' digests (`tail`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edgepeer.coding.matrix.scrub import PROBES
from edgepeer.training.split.cell import stores
from edgepeer.training.split.network import Network
from edgepeer.training.split.phases import Look, Mend, Muster, Over, Phase, Scrub, Work
from edgepeer.training.split.strategy import Reading, Split
from edgepeer.training.split.tail import (
    ABSENT,
    WORDS,
    Digest,
    checksums,
    common_digest,
    damaged_lines,
    digests_in,
)

__all__ = ["Layout", "Seen", "form_of", "numbers_of_probes"]

Array = NDArray[Any]

_PRESENT: Final[Digest] = (1, 1)
"""Instead of a digest, where nodes don't compare."""


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What a round's sum says. The same at all who read it."""

    rows: Array
    missing: tuple[int, ...] = ()
    """Nodes that have no blocks, or aren't there."""
    odd: tuple[int, ...] = ()
    """Nodes that went on from something else than the others."""
    damaged: tuple[int, ...] = ()
    """Lines that are not what was contributed."""
    digest: Digest = ABSENT
    """Of the majority; `ABSENT` where nodes don't compare."""
    reading: Reading | None = None
    """Of a step."""

    @property
    def lost(self) -> set[int]:
        """Nodes whose part does not count."""
        return {*self.missing, *self.odd}


@dataclass(frozen=True, slots=True)
class Layout:
    """How a round's vector is laid out."""

    lines: int
    numbers: int
    """Of each line."""
    nodes: int
    dtype: np.dtype[Any]
    compares: bool

    def empty(self) -> tuple[Array, Array]:
        """A vector of zeros, and its lines, shape (lines, numbers), a view of it."""
        out = np.zeros(self._body + WORDS * (self.lines + self.nodes), self.dtype)
        return out, self.rows(out)

    def rows(self, vector: Array) -> Array:
        """The vector's lines, shape (lines, numbers), a view of it."""
        return vector[: self._body].reshape(self.lines, self.numbers)

    def seal(self, vector: Array, own: Collection[int]) -> None:
        """Put the checksums of these lines in their place."""
        rows, sums = self.rows(vector), self._sums(vector)
        with np.errstate(all="ignore"):  # wrong numbers may be of any size
            for line in own:
                sums[line] = checksums(rows[line])

    def sign(self, vector: Array, node: int, digest: Digest) -> None:
        """Say what this node goes on from."""
        at = len(vector) - WORDS * (self.nodes - node)
        vector[at : at + WORDS] = digest if self.compares else _PRESENT

    def read(self, total: Array) -> Seen:
        """Who is there, who differs, and which lines are damaged.

        Raises:
            Undecodable: the nodes don't agree on what was before.
        """
        digests = digests_in(total[len(total) - WORDS * self.nodes :])
        common = common_digest(digests)
        others = [(node, digest) for node, digest in enumerate(digests) if digest != common]
        return Seen(
            self.rows(total),
            missing=tuple(node for node, digest in others if digest == ABSENT),
            odd=tuple(node for node, digest in others if digest != ABSENT),
            damaged=damaged_lines(self.rows(total), self._sums(total), self.nodes) if self.compares else (),
            digest=common if self.compares else ABSENT,
        )

    @property
    def _body(self) -> int:
        return self.lines * self.numbers

    def _sums(self, vector: Array) -> Array:
        return vector[self._body : self._body + WORDS * self.lines].reshape(self.lines, WORDS)


def form_of(phase: Phase, network: Network, split: Split, samples: int) -> Layout:
    """How the vector of a round is laid out. samples: of the batch that is on its way, if one is."""
    match phase:
        case Muster():
            lines, numbers, dtype = split.nodes, 2, np.dtype(np.float64)
        case Work() | Look():
            step = phase.step
            lines, dtype = split.lines(step.direction), network.dtype
            numbers = split.numbers(step.direction, network.shape(step.layer), samples)
        case Mend(store, nodes):
            h, w = split.stored_shape(network.shape(store % network.layers))
            lines, numbers, dtype = len(nodes), _parts(split) * h * w, network.dtype
        case Scrub():
            lines, dtype = split.nodes, np.dtype(np.float64)
            numbers = sum(numbers_of_probes(network, split, store) for store in range(stores(network)))
        case Over():
            raise ValueError("nothing is left to be done")
    return Layout(lines, numbers, split.nodes, dtype, split.compares)


def numbers_of_probes(network: Network, split: Split, store: int) -> int:
    """How many numbers `Cell.probes` has."""
    return _parts(split) * PROBES * sum(split.stored_shape(network.shape(store % network.layers)))


def _parts(split: Split) -> int:
    return 2 if split.block_dtype.kind == "c" else 1
