"""All cells in one process, for experiments: what training is like under soft errors, with everything counted.

The tree is a sum in the order of the nodes. Checkpoints are kept in memory. Who knows of an error is the injector
alone: cells find it, or don't.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeer.errors import ConfigError, Undecodable
from edgepeer.training.split.cell import Cell, Settled
from edgepeer.training.split.faults import Injector
from edgepeer.training.split.network import Network, Step
from edgepeer.training.split.strategy import Split, parts_of

__all__ = ["Fleet", "Report"]

Array = NDArray[Any]
Batches = Callable[[int], tuple[Array, Array]]
"""The batch of an iteration. Asked again after a restore, it gives the same one."""


@dataclass(slots=True)
class Report:
    """What happened."""

    computed: int = 0
    """Iterations, those that were done again included."""
    lines: int = 0
    """Wrong lines that were corrected."""
    odd: int = 0
    """Nodes that were found to go on from something else, and did their step again."""
    recomputed: int = 0
    """Products that a node found to be wrong by itself, and computed again."""
    erased: int = 0
    """Contributions that were missing, and made up for."""
    regenerated: int = 0
    """Blocks that were put together again from others'."""
    scrubbed: int = 0
    """Blocks that a scrub found wrong."""
    restored: int = 0
    """Times that all went back to a checkpoint."""
    checkpoints: int = 0
    losses: list[float] = field(default_factory=list)
    """Of each iteration, the last time it was done."""


class Fleet:
    """A network's cells.

    Args:
        injector: of soft errors.
        checkpoint_every: iterations between checkpoints; 0: only that of the beginning.
        scrub_every: iterations between scrubs; 0: only before checkpoints, and at the end.
        absent: nodes whose contributions to a step of an iteration are missing.
        patience: so many restores without a checkpoint in between, and it gives up.
        each_reads: every cell decodes every sum, as machines do. Otherwise one does it for all in this process; what is
            made of it (activations, encodings, errors in them) is everyone's own in any case.

    Raises:
        ConfigError: the network can't be divided so, or a number is negative.
    """

    def __init__(
        self,
        network: Network,
        split: Split,
        *,
        injector: Injector | None = None,
        checkpoint_every: int = 0,
        scrub_every: int = 0,
        absent: Callable[[int, Step], Collection[int]] | None = None,
        patience: int = 100,
        each_reads: bool = False,
    ) -> None:
        if min(checkpoint_every, scrub_every, patience) < 0:
            raise ConfigError("checkpoint_every, scrub_every and patience are numbers of 0 or more")
        self.network, self.split = network, split
        self.injector = Injector() if injector is None else injector
        self.cells = [Cell(network, split, node, injector=self.injector) for node in range(split.nodes)]
        self.report = Report()
        self._every, self._scrub_every, self._patience = checkpoint_every, scrub_every, patience
        self._absent = absent if absent is not None else lambda iteration, step: ()
        self._each_reads = each_reads
        self._saved = [cell.pack() for cell in self.cells]
        self._saved_at, self._tries, self._scrubs = 0, 0, 0

    def train(self, batches: Batches, iterations: int) -> Report:
        """Up to so many iterations in all, and a scrub at the end.

        Raises:
            Undecodable: as often as it has patience, in a row.
        """
        while True:
            now = self.cells[0].iteration
            try:
                if now >= iterations:
                    self.scrub()  # the last updates are in no check yet
                    return self.report
                if self._every and now % self._every == 0 and now > self._saved_at:
                    self.checkpoint()
                elif self._scrub_every and now and now % self._scrub_every == 0:
                    self.scrub()
                self.iterate(*batches(now))
            except Undecodable as error:
                self.restore(error)

    def iterate(self, x: Array, y: Array) -> None:
        """One iteration: 2L rounds, what they call for, and the update."""
        report, iteration = self.report, self.cells[0].iteration
        report.computed += 1
        for cell in self.cells:
            cell.begin(x, y)
        for step in self.network.steps():
            missing = self._absent(iteration, step)
            settled = self._round(step, missing)
            report.lines += len(settled.lines)
            report.odd += len(settled.odd)
            report.erased += len(missing)
            report.recomputed += len(self.split.caught)
            self.injector.found({*settled.suspects, *settled.odd, *self.split.caught})
            self.split.caught.clear()
            if settled.suspects:
                self.regenerate(step.layer, settled.suspects)
        for cell in self.cells:
            cell.update()
        report.losses[iteration:] = [float(np.median([cell.loss for cell in self.cells]))]

    def _round(self, step: Step, missing: Collection[int]) -> Settled:
        total = self._sum([cell.contribute(step) for cell in self.cells], missing)
        seen = None if self._each_reads else self.cells[0].read(step, total, missing)
        settled = [cell.settle(step, total, missing, seen) for cell in self.cells]
        return Counter(settled).most_common(1)[0][0]

    def regenerate(self, layer: int, wrong: Collection[int], without: Collection[int] = ()) -> None:
        """These nodes' blocks again, from others'.

        Raises:
            Undecodable: the others don't determine them.
        """
        nodes, gone = sorted(wrong), set(without)
        while True:
            total = self._sum([cell.give(layer, nodes, gone) for cell in self.cells], ())
            taken = [cell.take(layer, nodes, total, (), gone) for cell in self.cells]
            failed = Counter(taken).most_common(1)[0][0]
            if not failed:
                break
            self.report.odd += len(failed)
            self.injector.found(failed)
            gone.update(failed)
        self.report.regenerated += len(nodes)

    def replace(self, node: int) -> None:
        """A new machine takes this node's place, and has its blocks put together from the others'."""
        iteration = self.cells[0 if node else 1].iteration
        self.cells[node] = Cell(self.network, self.split, node, blank=True, iteration=iteration, injector=self.injector)
        for layer in range(self.network.layers):
            self.regenerate(layer, [node])

    def scrub(self) -> None:
        """Looks for wrong stored weights, and puts them right.

        Raises:
            Undecodable: more are wrong than can be named.
        """
        self._scrubs += 1
        total = self._sum([cell.sound(self._scrubs * self.network.layers) for cell in self.cells], ())
        for layer, wrong in self.cells[0].examine(total).items():
            self.report.scrubbed += len(wrong)
            self.injector.found(wrong)
            self.regenerate(layer, wrong)

    def checkpoint(self) -> None:
        """Saves all cells, after a scrub: a checkpoint with wrong weights would be one to come back to for ever.

        Raises:
            Undecodable: as `scrub`.
        """
        self.scrub()
        self._saved = [cell.pack() for cell in self.cells]
        self._saved_at, self._tries = self.cells[0].iteration, 0
        self.report.checkpoints += 1

    def restore(self, reason: Undecodable) -> None:
        """Back to the last checkpoint; `reason` is raised if that was done too often in a row."""
        self._tries += 1
        if self._tries > self._patience:
            raise reason
        for cell, state in zip(self.cells, self._saved, strict=True):
            cell.unpack(state)
        self.injector.restored(self._saved_at)
        self.report.restored += 1

    def weights(self, layer: int) -> Array:
        """W_l as the cells have it, put together: for comparison, and for use after training. Shape (N_l+1, N_l + 1).

        Least squares over all nodes. Where a split stores plain blocks, they come out as they are, but for rounding.
        """
        split, shape = self.split, self.network.shape(layer)
        h, w = split.block_shape(shape)
        parts = [parts_of(cell.blocks[layer]) for cell in self.cells]
        coefficients = np.concatenate([split.coefficients(node) for node in range(split.nodes)])
        stored = np.concatenate(parts)[:, :h, :w].reshape(len(coefficients), -1).astype(np.float64)
        blocks = np.linalg.lstsq(coefficients, stored, rcond=None)[0].reshape(split.m, split.n, h, w)
        whole = blocks.swapaxes(1, 2).reshape(split.m * h, split.n * w)
        return np.asarray(whole[: shape[0], : shape[1]], self.network.dtype)

    @staticmethod
    def _sum(vectors: list[Array], missing: Collection[int]) -> Array:
        total = np.zeros_like(vectors[0])
        with np.errstate(all="ignore"):
            for node, vector in enumerate(vectors):
                if node not in missing:
                    total += vector
        return total
