"""The rounds of a split run, by what they are for. Which one comes next follows from the sums so far, at all alike.

muster      who is there, and with which node's blocks of which iteration; at the beginning, and after a restore
work        the product of a layer in one direction, for a batch
look        the same forward, with data that aren't learnt from
mend        blocks of wrong or new nodes, put together from the others'
scrub       products of all blocks with dense vectors, that show wrong weights which no batch has read
over        no round: nothing is left to be done
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from edgepeer.readable import readable
from edgepeer.training.split.network import Direction, ProductStep

__all__ = ["Look", "Mend", "Muster", "Over", "Phase", "Scrub", "Work"]


@readable
class Muster(msgspec.Struct, frozen=True, tag="muster"):
    """Each peer says which node's blocks it has, and of which iteration."""

    def __str__(self) -> str:
        return "muster"


@readable
class Work(msgspec.Struct, frozen=True, tag="work"):
    """A step of an iteration."""

    layer: int
    direction: Direction

    @property
    def step(self) -> ProductStep:
        return ProductStep(self.layer, self.direction)

    def __str__(self) -> str:
        return f"{self.direction} {self.layer}"


@readable
class Look(msgspec.Struct, frozen=True, tag="look"):
    """A forward step with one part of the data held out."""

    part: int
    layer: int

    @property
    def step(self) -> ProductStep:
        return ProductStep(self.layer, "forward")

    def __str__(self) -> str:
        return f"evaluation {self.part}, forward {self.layer}"


@readable
class Mend(msgspec.Struct, frozen=True, tag="mend"):
    """The blocks of nodes in one store (`cell.stores`)."""

    store: int
    nodes: tuple[int, ...]
    without: tuple[int, ...] = ()
    """Nodes that can't help, beside these."""
    again: int = 0
    """How often what was given was damaged on its way."""

    def __str__(self) -> str:
        return f"regeneration {self.store} of {', '.join(map(str, self.nodes))}"


@readable
class Scrub(msgspec.Struct, frozen=True, tag="scrub"):
    """A look at all weights."""

    seed: int
    keep: bool
    """Whether a checkpoint is made if nothing is wrong."""
    again: int = 0
    """How often something was wrong before."""

    def __str__(self) -> str:
        return "scrub"


@readable
class Over(msgspec.Struct, frozen=True, tag="over"):
    """All iterations are over: no round follows."""

    def __str__(self) -> str:
        return "over"


Phase: TypeAlias = Muster | Work | Look | Mend | Scrub | Over
