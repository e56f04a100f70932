"""All peers of a split run in one process, for experiments: what training is like under soft errors.

The tree is a sum in the order of the nodes. Who knows of an error is the injector alone: programs find it, or don't.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeer.errors import OutOfStep, Undecodable
from edgepeer.training.split.assembly import assembled
from edgepeer.training.split.cell import Cell
from edgepeer.training.split.counts import Counts
from edgepeer.training.split.faults import ErrorInjector
from edgepeer.training.split.network import Network
from edgepeer.training.split.phases import Phase
from edgepeer.training.split.program import Batches, Program
from edgepeer.training.split.strategy import Split
from edgepeer.training.split.vectors import Seen

__all__ = ["LocalFleet"]

Array = NDArray[Any]


class LocalFleet:
    """One peer for each node of the split, and spares.

    Args:
        injector: of soft errors, everybody's.
        absent: the peers whose contribution to a round is missing, by iteration and phase.
        spares: peers without a node.
        each_reads: every peer decodes every sum, as machines do. Otherwise one does it for all in this process; what is
            made of it (activations, encodings, errors in them) is everyone's own in any case.
        options: of all programs (`Program`).

    Raises:
        ConfigError: as `Program`.
    """

    def __init__(
        self,
        network: Network,
        split: Split,
        data: Batches,
        *,
        injector: ErrorInjector | None = None,
        absent: Callable[[int, Phase], Collection[int]] | None = None,
        spares: int = 0,
        each_reads: bool = False,
        **options: Any,
    ) -> None:
        self.network, self.split = network, split
        self.injector = ErrorInjector() if injector is None else injector
        self.losses: list[float] = []
        """Of each iteration, the last time it was done."""
        self.reseeded = 0
        """Programs that had to be given what all have in common."""
        self._absent = absent if absent is not None else lambda iteration, phase: ()
        self._each_reads = each_reads
        self._make: Callable[[str], Program] = lambda name: Program(
            name, network, split, data, injector=self.injector, **options
        )
        self.programs = [self._make(f"p{at}") for at in range(split.nodes + spares)]

    @property
    def counts(self) -> Counts:
        return self.programs[0].counts

    @property
    def recomputed(self) -> int:
        return sum(program.recomputed for program in self.programs)

    @property
    def cells(self) -> dict[int, Cell]:
        """By node, the cell of whoever is it."""
        return {program.cell.node: program.cell for program in self.programs if program.cell is not None}

    def train(self, until: int | None = None) -> Counts:
        """All rounds that are left; or those until so many iterations are done.

        Raises:
            Undecodable: as `Program.settle`.
        """
        while not self.programs[0].done and (until is None or self.programs[0].iteration < until):
            self.round()
        return self.counts

    def round(self) -> None:
        """One round of all."""
        first = self.programs[0]
        absent = self._absent(first.iteration, first.phase)
        there = [program for at, program in enumerate(self.programs) if at not in absent]
        total: Array | None = None
        with np.errstate(all="ignore"):
            for program in there:
                vector = program.contribute()
                total = vector if total is None else np.add(total, vector, out=total)
        assert total is not None
        names = [program.me for program in there]
        seen: Seen | Undecodable | None = None
        if not self._each_reads:
            try:
                seen = there[0].read(total)
            except Undecodable as error:
                seen = error
        behind = []
        for program in self.programs:
            try:
                ended = program.settle(total, names, seen)
            except OutOfStep:
                behind.append(program)
                continue
            if ended is not None and program is first:
                self.losses[ended.iteration - 1 :] = [ended.loss]
        good = next(program for program in self.programs if program not in behind)
        for program in behind:
            self.reseeded += 1
            program.load_state(good.state())

    def replace(self, at: int) -> None:
        """A new machine takes a peer's place: it has nothing but what all have in common."""
        name = self.programs[at].me
        self.programs[at] = self._make(name)
        self.programs[at].load_state(self.programs[0 if at else 1].state())

    def weights(self, layer: int) -> Array:
        """W_l as the cells have it, put together: for comparison, and for use after training. Shape of W_l."""
        stored = {node: cell.blocks[layer] for node, cell in self.cells.items() if not cell.lacking}
        return assembled(self.split, self.network.shape(layer), stored)
