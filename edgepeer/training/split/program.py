"""One peer's part in a split run: a machine without I/O. It says what to bring to the next round, and takes the sum.

    while not program.done:
        total, contributors = the round's sum of all peers' program.contribute(), and whose vectors are in it
        program.settle(total, contributors)

All peers get the same sums, so all know what the next round is for (`phases`) without another word. What they have in
common is everything but the blocks of weights: who holds which node, how far it is, the batch's activations. A newcomer
gets that from anybody (`state`, `load_state`) and follows; its blocks it gets from a regeneration.

    after            | comes
    -----------------+-----------------------------------------------------------------------------------------------
    muster           | a regeneration of what is missing; then the first step. With too few peers: muster again
    a step           | a scrub, if in the step before something was wrong; then the next step
    the last step    | the update, without a round; a scrub, and regenerations of what newcomers are to hold; a scrub
                     | and a checkpoint, an evaluation, if they are due; then the first step again, or the end
    a regeneration   | once more without those that failed to help; else what was to come
    a scrub          | if something was wrong, regenerations; before a checkpoint a scrub again, until nothing is; then
                     | the checkpoint
    more wrong than  | back to the last checkpoint: muster. If most numbers are not finite, and were not the last time
    can be corrected | in the same place, it is the training that diverges: it goes on with NaN, and its loss says so

*A checkpoint that nobody could look at is not the only one.* With as many nodes missing as the code makes up for, a
scrub finds nothing, right or wrong. The checkpoint made then is kept beside the last one that was looked at
(`Common.checked_at`); where numbers contradict each other afterwards, all go back to that, for it may hold the cause.
Where only too much is missing, the newer one does.

*Verdicts are acted upon one round late.* Which nodes were wrong is a peer's own conclusion, and it may conclude
wrongly. If it acted at once, its next round would be another than the others', and no tree adds up two different
rounds. So it says in the tail of the next vector what it has concluded (`tail`); whoever differs from the majority does
its step again, from the sum that it still has; then all agree, and a scrub comes after that round. A wrong block spoils
one line more until then, which the code is for.

*Nothing is put together from blocks that nobody has looked at.* A scrub comes before every regeneration, but for those
after a muster, whose blocks are a checkpoint's, which had one: it names what is stored wrong, velocities included,
which no product reads, and that alone is put together again, from the rest. A product that was wrong by itself leaves
nothing to be mended.

*Who holds what.* A node whose holder is not among the contributors any more is vacant, and goes to a contributor
without a node, between two iterations. Whoever has a node without its blocks leaves its digest empty. After the end no
round follows, so nothing is put together again: who comes back then has its blocks from a checkpoint that was made when
all was as it is now (`regain`), or lacks them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from edgepeer.errors import ConfigError, OutOfStep, Undecodable, WireError
from edgepeer.training.datasets import check_alike
from edgepeer.training.split.cell import Cell, stores
from edgepeer.training.split.common import Common
from edgepeer.training.split.counts import Counts
from edgepeer.training.split.faults import ErrorInjector, Where
from edgepeer.training.split.muster import Claim, assemble, claims_in, tag_of
from edgepeer.training.split.network import Network, ProductStep
from edgepeer.training.split.passing import Passing
from edgepeer.training.split.phases import Look, Mend, Muster, Over, Phase, Scrub, Work
from edgepeer.training.split.strategy import Effect, Reading, Split, Strike
from edgepeer.training.split.tail import ABSENT, Digest, digest_of
from edgepeer.training.split.vectors import Layout, Seen, form_of, numbers_of_probes
from edgepeer.training.trainer import Evaluation

__all__ = ["Batches", "Ended", "Program"]

Array = NDArray[Any]
Batches = Callable[[int], tuple[Array, Array]]
"""The batch of an iteration, x and y as of `Network.batch`. The same at all peers, and asked again the same."""

_AGAIN: Final = 3
"""So many scrubs in a row may find something, and so many regenerations may be damaged."""
_LOOK_NUMBERS: Final = 1 << 18
"""Numbers in the vector of an evaluation, about: as many samples at once."""


@dataclass(frozen=True, slots=True)
class Ended:
    """An iteration is over, with all that was due after it."""

    iteration: int
    """How many there have been."""
    loss: float
    """Of its batch, before the update."""
    evaluation: Evaluation | None


class Program:
    """One peer's part.

    Args:
        me: its name, as among the contributors of rounds.
        data: the batches.
        iterations: how many updates there are to be.
        test: x and y that are held out.
        evaluate_every, checkpoint_every, scrub_every: iterations from one to the next; 0: only at the end.
        patience: so many restores without a checkpoint in between that was looked at, and it gives up.
        injector: makes soft errors.
        saved: node and bytes of checkpoints from a former life (`saved`), newest first.
        of_data: what `Dataset.summary` says of the data.

    Raises:
        ConfigError: the network can't be divided so, or a number is negative.
    """

    def __init__(
        self,
        me: str,
        network: Network,
        split: Split,
        data: Batches,
        *,
        iterations: int,
        test: tuple[Array, Array] | None = None,
        evaluate_every: int = 0,
        checkpoint_every: int = 0,
        scrub_every: int = 0,
        patience: int = 100,
        injector: ErrorInjector | None = None,
        saved: Sequence[tuple[int, bytes]] = (),
        of_data: str = "",
    ) -> None:
        if min(iterations, evaluate_every, checkpoint_every, scrub_every, patience) < 0:
            raise ConfigError(
                "iterations, the numbers between evaluations, checkpoints and scrubs, and patience: 0 or more"
            )
        split.fit(network, iterations)
        self.me, self.network, self.split = me, network, split
        self.injector = injector if injector is not None else ErrorInjector()
        self.iterations = iterations
        self.cell: Cell | None = None
        self.recomputed = 0
        """Products that this peer found to be wrong by itself, and computed again."""
        self._data, self._test = data, test
        self._evaluate_every, self._checkpoint_every, self._scrub_every = evaluate_every, checkpoint_every, scrub_every
        self._patience = patience
        self._common = Common(holders=[""] * split.nodes, data=of_data or msgspec.UNSET)
        self._agenda: deque[Phase] = deque([Muster()])
        claims = [self._claimed(*each) for each in saved]
        self._saved = claims[0] if claims else None
        self._older = claims[1:]
        """For the case that others don't have the newest, or that it can't be gone on from."""
        self._digest: Digest = ABSENT
        self._before: Digest = ABSENT
        self._passing: Passing | None = None
        self._last: tuple[ProductStep, Seen, Passing] | None = None
        """The step that was settled last: to do it again."""
        self._evaluation: Evaluation | None = None
        self._sent: int | None = None
        """How many errors were made before the vector that is on its way."""

    # -- what others want to know ------------------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        """What the next round is for."""
        return self._agenda[0]

    @property
    def done(self) -> bool:
        return isinstance(self.phase, Over)

    @property
    def iteration(self) -> int:
        """How many updates the weights have had."""
        return self._common.iteration

    @property
    def counts(self) -> Counts:
        return self._common.counts

    @property
    def loss(self) -> float:
        """Of the last iteration's batch, before the update."""
        return self._common.loss

    @property
    def evaluation(self) -> Evaluation | None:
        """What came of the last look at data held out; None before the first."""
        return self._evaluation

    @property
    def waiting(self) -> str:
        """Why nothing goes on; empty if nothing is in its way."""
        return self._common.waiting

    @property
    def node(self) -> int | None:
        """Which of the split's nodes this peer is; None: a spare."""
        cell = self.cell  # read once: whoever asks may be in another thread
        return cell.node if cell is not None else None

    @property
    def whole(self) -> bool:
        """Whether it has all blocks of its node."""
        cell = self.cell
        return cell is not None and not cell.lacking

    @property
    def held_bytes(self) -> int:
        """What this peer stores of the network; blocks that it lacks are not."""
        cell = self.cell
        return cell.held_bytes if cell is not None else 0

    @property
    def saved(self) -> tuple[int, int, bytes] | None:
        """Node, iteration, and bytes of this peer's newest checkpoint."""
        saved = self._saved
        return None if saved is None else (saved.node, saved.iteration, saved.state)

    @property
    def checked(self) -> bool:
        """Whether the newest checkpoint was looked at: not where so many were missing that nobody could."""
        return self._common.checked_at == self._common.saved_at

    def digest(self) -> str:
        """48 bits, hexadecimal, of what all peers have in common: of everything since the beginning."""
        return "{:06x}{:06x}".format(*self._digest)

    # -- rounds ------------------------------------------------------------------------------------------------

    def contribute(self) -> Array:
        """This peer's vector for the next round; of the same size at all peers. Again, if that round was given up."""
        phase, cell, form = self.phase, self.cell, self._form()
        if cell is not None and self._sent is not None:
            self.injector.given_up(cell.node, self._sent)
        self._sent = len(self.injector.record)
        vector, rows = form.empty()
        if isinstance(phase, Muster):
            if (claim := self._claim()) is not None:
                rows[claim[0]] = claim[1] + 1, tag_of(self.me)
        elif cell is not None and not cell.lacking:
            form.seal(vector, self._fill(phase, rows, cell))
            self._strike(phase)("sum", rows)
            form.sign(vector, cell.node, self._digest)
        return vector

    def _fill(self, phase: Phase, rows: Array, cell: Cell) -> Collection[int]:
        """This node's part. Returns the lines that it is in."""
        match phase:
            case Work() | Look():
                line = self.split.line(cell.node, phase.step.direction)
                if line is None:
                    return ()
                rows[line] = cell.product(phase.step, self._now().operand(phase.step), self._strike(phase))
                if self.split.caught:
                    self.recomputed += len(self.split.caught)
                    self.injector.found(self.split.caught, "product")
                    self.split.caught.clear()
                return (line,)
            case Mend(store, nodes, without):
                rows[:] = cell.give(store, nodes, without)
                return range(len(nodes))
            case Scrub(seed):
                rows[cell.node] = np.concatenate([cell.probes(at, seed + at) for at in range(len(cell.blocks))])
                return (cell.node,)
        raise AssertionError(phase)

    def read(self, total: Array) -> Seen:
        """What a round's sum says; depends on nothing else that a peer knows but what all have in common.

        Raises:
            Undecodable: too much is lost or wrong, or the nodes don't agree on what was before.
        """
        with np.errstate(all="ignore"):  # wrong numbers may be of any size
            return self._read(self.phase, self._form(), total)

    def _read(self, phase: Phase, form: Layout, total: Array) -> Seen:
        if isinstance(phase, Muster):
            return Seen(form.rows(total))
        seen = form.read(total)
        if not isinstance(phase, Work | Look):
            return seen
        step = phase.step
        lost = self._lost_lines(step, seen)
        shape, samples = self.network.shape(step.layer), self._now().samples
        try:
            reading = self.split.read(step.direction, seen.rows, shape, samples, lost, self.iteration)
        except Undecodable:
            if not (self._common.diverged and _mostly_gone(seen.rows)):
                raise
            rows = shape[0] if step.direction == "forward" else shape[1]
            reading = Reading(np.full((rows, samples), np.nan, self.network.dtype))
        return replace(seen, reading=reading)

    def settle(self, total: Array, contributors: Sequence[str], seen: Seen | Undecodable | None = None) -> Ended | None:
        """Take a round's sum.

        Args:
            contributors: whose vectors are in it, in the same order at all peers.
            seen: what `read` says of the sum, or has raised, if somebody in this process has read it before.

        Raises:
            OutOfStep: this peer goes on from something else than the others, and can't mend that by itself. What it has
                in common with them is to be got from one of them (`load_state`).
            Undecodable: as often as there is patience, in a row.
        """
        phase, place, form = self.phase, (self.iteration, str(self.phase)), self._form()
        try:
            if isinstance(seen, Undecodable):
                raise seen
            seen = self.read(total) if seen is None else seen
            if seen.digest not in (ABSENT, self._digest):
                self._do_again(seen.digest)
            self._take(seen, contributors)
        except Undecodable as error:
            gone = not isinstance(phase, Muster) and _mostly_gone(form.rows(total))
            self._restore(error, place, gone=gone, contradiction=self._contradicts(form, total))
        self._sent = None
        self._before = self._digest
        self._digest = self._mark(seen)
        return self._enter()

    def _take(self, seen: Seen, contributors: Sequence[str]) -> None:
        common, counts, phase = self._common, self.counts, self._agenda.popleft()
        suspected, common.verdict = common.verdict, ()
        common.missing, common.contributors = seen.missing, tuple(contributors)
        counts.odd += len(seen.odd)
        counts.damaged += len(seen.damaged)
        unchecked = self._unchecked(phase, seen)
        # What was spoiled on the way is a damaged line, or a wrong one; or it was in one that is not read anyway.
        if seen.damaged or seen.lost or (seen.reading is not None and seen.reading.wrong):
            self.injector.found_on_the_way(common.iteration, str(phase))
        self._last = None
        match phase:
            case Muster():
                self._gather(seen.rows)
            case Work() | Look():
                self._pass(phase, seen)
            case Mend():
                self._mended(phase, seen)
            case Scrub():
                self._scrubbed(phase, seen)
        counts.unchecked += unchecked
        if suspected:
            self.injector.found(suspected, "product")
            self._agenda.appendleft(self._next_scrub(keep=False))

    def _unchecked(self, phase: Phase, seen: Seen) -> bool:
        """Whether so much is missing in this round that an error goes unseen which it would show otherwise: in a line,
        where all lines that are left are needed; in stored blocks, likewise; and in what a node has made of the last
        step, where no other is there whose digest could differ. What this node has of such errors is noted."""
        if isinstance(phase, Muster) or not (seen.lost or seen.damaged):
            return False
        cell, split, injector = self.cell, self.split, self.injector
        mine = cell is not None and cell.node not in seen.lost
        alone = split.compares and len(seen.missing) == split.nodes - 1
        if alone and mine and cell is not None:
            injector.unchecked(cell.node, "own")
        match phase:
            case Work() | Look():
                lost = self._lost_lines(phase.step, seen)
                blind = bool(lost) and not split.checks(phase.step.direction, lost)
                if blind and mine and cell is not None and isinstance(phase, Work):
                    line = split.line(cell.node, phase.step.direction)
                    wrong = seen.reading.wrong if seen.reading is not None else ()
                    if line is not None and line not in lost and line not in wrong:
                        injector.unchecked(cell.node, "product", phase.layer)
                        injector.unchecked(cell.node, "stored", phase.layer)
                return blind or alone
            case Scrub():
                lost = frozenset((*seen.lost, *seen.damaged))
                blind = bool(lost) and not split.inspects(lost)
                if blind and cell is not None and cell.node not in lost:
                    injector.unchecked(cell.node, "stored")
                return blind or alone
        return alone

    # -- steps -------------------------------------------------------------------------------------------------

    def _lost_lines(self, step: ProductStep, seen: Seen) -> frozenset[int]:
        """Lines that don't count: they miss a part, or are known to be wrong."""
        return frozenset((*self.split.lost_lines(step.direction, seen.lost), *seen.damaged))

    def _pass(self, phase: Work | Look, seen: Seen) -> None:
        """A step's product is there."""
        network, step, counts = self.network, phase.step, self.counts
        assert seen.reading is not None
        self._left_out(step, self._lost_lines(step, seen))
        counts.lines += len(seen.reading.wrong)
        counts.erased += len(seen.missing)
        passing = self._now()
        self._last = step, seen, passing
        self._go_on(self._last, self._strike(phase))
        last = step.layer == network.layers - 1
        match phase:
            case Work(layer, "forward"):
                self._agenda.append(Work(layer, "backward") if last else Work(layer + 1, "forward"))
            case Work(layer, "backward") if layer:
                self._agenda.append(Work(layer - 1, "backward"))
            case Work():
                self._update(passing)
            case Look() if last:
                self._looked(passing, seen.reading)

    def _left_out(self, step: ProductStep, lost: Collection[int]) -> None:
        """If the line that this node is in does not count, nobody will find what was wrong in it."""
        cell = self.cell
        if cell is not None and self._sent is not None and self.split.line(cell.node, step.direction) in lost:
            self.injector.given_up(cell.node, self._sent)

    def _go_on(self, last: tuple[ProductStep, Seen, Passing], strike: Strike) -> None:
        """Judge, and make of a product what the next step needs. May be done again."""
        step, seen, passing = last
        assert seen.reading is not None
        suspected = np.zeros(self.split.nodes, np.bool_)
        for line in seen.reading.wrong:
            suspected[[node for node in self.split.members(line, step.direction) if node not in seen.lost]] = True
        if self.split.compares:  # else nobody is held to be wrong, whatever it brings
            strike("verdict", suspected)
        result = seen.reading.result.copy()
        strike("decoded", result)
        following = passing.advance(step, result, strike)
        self._common.verdict = tuple(np.flatnonzero(suspected).tolist())
        self._common.step = digest_of("step", result, following)

    def _do_again(self, wanted: Digest) -> None:
        """The others have come to something else: the last step again, from its sum."""
        if self.cell is not None:
            self.injector.found((self.cell.node,), "own")  # else it takes what the others have
        if self._last is not None:
            self._go_on(self._last, _no_strike)
            self._digest = self._mark(self._last[1])
        if self._digest != wanted:
            raise OutOfStep(f"peer {self.me}: what it has in common with the others is not what they have")

    def _update(self, passing: Passing) -> None:
        common = self._common
        for layer in range(self.network.layers):
            if self.cell is not None:
                self.cell.update(layer, passing, self._strike(f"update {layer}"))
        common.loss = passing.loss
        common.iteration += 1
        self.counts.computed += 1
        new = self._newcomers()
        # What the update has spoiled nobody has read yet: it must not get into the blocks of newcomers.
        self._between([self._next_scrub(keep=False), *new] if new else [])

    def _looked(self, passing: Passing, reading: Reading) -> None:
        """A part of what is held out has passed."""
        common = self._common
        sums = self.network.score(reading.result, passing.wanted)
        common.score = (common.score[0] + sums[0], common.score[1] + sums[1], common.score[2] + sums[2])
        common.scored += passing.samples
        if not any(isinstance(phase, Look) for phase in self._agenda):
            self._evaluation = self.network.evaluation(common.score, common.scored)
            common.score, common.scored = (0.0, 0.0, 0.0), 0

    # -- between iterations --------------------------------------------------------------------------------------

    def _between(self, mends: list[Phase]) -> None:
        """What is to come before the next iteration, and that."""
        common = self._common
        now, saved_at = common.iteration, common.saved_at
        finished = now >= self.iterations
        keep = finished or (_due(now, self._checkpoint_every) and now > saved_at)
        agenda: list[Phase] = [*mends]
        if keep or _due(now, self._scrub_every):
            agenda.append(self._next_scrub(keep))
        if self._test is not None and (finished or _due(now, self._evaluate_every)):
            agenda += [Look(part, layer) for part in range(self._parts()) for layer in range(self.network.layers)]
        agenda.append(Over() if finished else Work(0, "forward"))
        self._agenda.extend(agenda)

    def _newcomers(self) -> list[Phase]:
        """Give vacant nodes to who has none, and have their blocks put together again."""
        common, split = self._common, self.split
        there, missing = common.contributors, common.missing
        free = deque(peer for peer in there if peer not in common.holders)
        new = []
        for node in missing:
            if common.holders[node] not in there and free:
                common.holders[node] = free.popleft()
                self._hold(node, common.holders[node])
            if common.holders[node] in there:
                new.append(node)
        if self.cell is not None and common.holders[self.cell.node] != self.me:
            self.injector.given_up(self.cell.node)
            self.cell = None
        possible = split.recoverable(new, {*missing})
        return self._mends(range(stores(self.network)), possible, missing) if possible else []

    def _hold(self, node: int, peer: str) -> None:
        if peer == self.me:
            self.cell = Cell(self.network, self.split, node, blank=True, iteration=self.iteration)

    def _mends(self, parts: Collection[int], nodes: Sequence[int], missing: Collection[int]) -> list[Phase]:
        """Regenerations.

        Raises:
            Undecodable: the others don't determine these blocks.
        """
        without = tuple(sorted({*missing} - {*nodes}))
        for node in nodes:
            self.split.recovery(node, {*nodes, *without})
        return [Mend(part, tuple(nodes), without) for part in parts]

    def _mended(self, phase: Mend, seen: Seen) -> None:
        split, nodes = self.split, phase.nodes
        sources = {each for node in nodes for each in split.recovery(node, {*nodes, *phase.without})}
        failed = sources & seen.lost
        damaged = bool(seen.damaged) or not np.isfinite(seen.rows).all()  # of NaN checksums say nothing
        if damaged:
            self.injector.found_on_the_way(self.iteration, str(phase))
        if failed or damaged:
            if phase.again >= _AGAIN and not failed:
                raise Undecodable(f"regenerated blocks of nodes {nodes} were damaged on their way, again and again")
            mend = self._mends((phase.store,), nodes, {*phase.without, *failed})[0]
            assert isinstance(mend, Mend)
            self._agenda.appendleft(Mend(mend.store, mend.nodes, mend.without, phase.again + (not failed)))
            return
        self.counts.regenerated += len(nodes)
        if self.cell is not None and self.cell.node in nodes:
            self.cell.take(phase.store, seen.rows[nodes.index(self.cell.node)])

    def _next_scrub(self, keep: bool, again: int = 0) -> Scrub:
        self._common.scrubs += 1
        return Scrub(self._common.scrubs * stores(self.network), keep, again)

    def _scrubbed(self, phase: Scrub, seen: Seen) -> None:
        common, network, at = self._common, self.network, 0
        lost = {*seen.lost, *seen.damaged}
        mends: list[Phase] = []
        for store in range(stores(network)):
            numbers = numbers_of_probes(network, self.split, store)
            probes = np.ascontiguousarray(seen.rows[:, at : at + numbers], np.float64)
            if self.split.block_dtype.kind == "c":
                probes = probes.view(np.complex128)
            at += numbers
            shape = network.shape(store % network.layers)
            if common.diverged and _mostly_gone(probes):
                continue
            with np.errstate(all="ignore"):
                wrong = self.split.inspect(probes, shape, lost, self.iteration)
            if wrong:
                self.counts.scrubbed += len(wrong)
                self.injector.found(wrong, "stored", store % network.layers)
                self.injector.found_on_the_way(common.iteration, str(phase))
                mends += self._mends((store,), wrong, seen.missing)
        if not phase.keep:  # whether they are right now, the next product says, or the next scrub
            self._agenda.extendleft(reversed(mends))
        elif mends or seen.damaged or seen.odd:  # of the latter nothing was seen
            if phase.again >= _AGAIN:
                raise Undecodable("stored weights were wrong again and again, though they had been put right")
            self._agenda.extendleft([self._next_scrub(True, phase.again + 1), *reversed(mends)])
        else:
            if not lost or self.split.inspects(frozenset(lost)):
                common.checked_at, common.tries, self._older = common.iteration, 0, []
            elif self.checked:
                self._older = [] if self._saved is None else [self._saved]
            common.saved_at = common.iteration
            self.counts.checkpoints += 1
            self._saved = None
            if self.cell is not None and not self.cell.lacking and self.cell.node not in lost:
                self._saved = Claim(self.cell.node, common.iteration, self.cell.pack())

    # -- checkpoints -------------------------------------------------------------------------------------------

    def _contradicts(self, form: Layout, total: Array) -> bool:
        """Whether enough is there of a sum that can't be decoded: then something in it is wrong."""
        try:
            return self.split.readable(form.read(total).lost)
        except Undecodable:  # who does not go on from the same says nothing of the weights
            return False

    def _restore(self, reason: Undecodable, place: tuple[int, str], *, gone: bool, contradiction: bool) -> None:
        """Back to the last checkpoint. place: iteration and step. gone: most numbers of the sum were not finite.
        contradiction: it was not for want of numbers."""
        common = self._common
        common.tries += 1
        if common.tries > self._patience:
            raise Undecodable(
                f"went back to iteration {common.saved_at} {self._patience} times, and each time more was wrong than "
                f"can be corrected: {reason}. Take a split that corrects more, or a smaller scrub_every"
            )
        if contradiction and not self.checked:
            common.below = common.saved_at
        if gone:
            common.diverged, common.failed = common.diverged or common.failed == place, place
        self.counts.restored += 1
        common.verdict, self._last = (), None
        common.step, self._digest = ABSENT, ABSENT  # what any one peer has come to by itself is over
        common.score, common.scored = (0.0, 0.0, 0.0), 0
        self._agenda = deque([Muster()])

    def _claimed(self, node: int, state: bytes) -> Claim:
        cell = Cell(self.network, self.split, node, blank=True)
        cell.unpack(state)
        return Claim(node, cell.iteration, state)

    def _offered(self) -> Claim | None:
        """The newest checkpoint of those that are asked for."""
        below = self._common.below
        found = (each for each in (self._saved, *self._older) if each is not None)
        return next((each for each in found if not below or each.iteration < below), None)

    def _claim(self) -> tuple[int, int] | None:
        """Node, and iteration: what this peer could start from. The beginning is everybody's."""
        if (offered := self._offered()) is not None:
            return offered.node, offered.iteration
        return (self.cell.node, 0) if self.cell is not None else None

    def _gather(self, rows: Array) -> None:
        """Start from the newest iteration of which there is enough."""
        common = self._common
        claims = claims_in(rows, common.contributors)
        start = assemble(self.split, claims, common.contributors)
        newest = max((iteration for iteration, _ in claims.values()), default=0)
        if start is not None and newest and not start.iteration:
            common.below = newest  # of which there is not enough, for some had not kept it yet: the one before
            self._agenda.append(Muster())
            return
        common.below, saved = 0, self._offered()
        if start is None:
            there = len(common.contributors)
            common.waiting = (
                f"{there} peers are there, and the blocks that they have don't make up for those of the others; split "
                f"{self.split.name} has {self.split.nodes} nodes"
            )
            self._agenda.append(Muster())
            return
        common.waiting = ""
        common.holders = list(start.holders)
        if start.iteration != common.saved_at:
            common.checked_at = start.iteration
        common.iteration = common.ended = common.saved_at = start.iteration
        self.injector.restored(start.iteration)
        self.cell = None
        self._older = [each for each in self._older if each.iteration == common.checked_at < start.iteration]
        if self.me in start.holders:
            node = start.holders.index(self.me)
            self.cell = Cell(self.network, self.split, node, blank=node in start.blank, iteration=start.iteration)
            if saved is not None and (saved.node, saved.iteration) == (node, start.iteration):
                self._unpack(self.cell, saved)
        self._saved = saved if saved is not None and saved.iteration == start.iteration else None
        vacant = [node for node, peer in enumerate(start.holders) if not peer]
        blank = sorted(start.blank)
        self._between(self._mends(range(stores(self.network)), blank, vacant) if blank else [])

    def _unpack(self, cell: Cell, saved: Claim) -> None:
        try:
            cell.unpack(saved.state)
        except WireError:  # damaged since: as if there were none, and a regeneration at the next boundary
            cell.lacking.update(range(stores(self.network)))

    # -- what all have in common -----------------------------------------------------------------------------------

    def state(self) -> bytes:
        """What all peers have in common after the last round, for newcomers; without any weights."""
        common = self._common
        common.agenda, common.digest = list(self._agenda), self._digest
        following = next((phase for phase in self._agenda if isinstance(phase, Work | Look)), None)
        if following is None or self._passing is None or following in (Work(0, "forward"), Look(0, 0)):
            common.batch_loss = float("nan")
            return common.pack({})
        common.batch_loss = self._passing.loss
        return common.pack(self._passing.arrays())

    def load_state(self, state: bytes | bytearray | memoryview) -> None:
        """Have in common with the others what they have. The blocks that are here count no more, unless this peer has
        missed nothing.

        Raises:
            WireError: it is not such a state, or not of this network. Nothing has changed then.
            DataError: it is of other data; the same.
        """
        if state == self.state():
            return
        common, arrays = Common.unpack(state, self.split.nodes, stores(self.network))
        check_alike("of the split job", self._common.data or "", common.data or "")
        passing = self._passing_of(common, arrays)
        if self.cell is not None:
            self.injector.given_up(self.cell.node)
        if not common.counts.unchecked:
            self.injector.undone()
        self._sent = None
        self._common, self._agenda, self._passing = common, deque(common.agenda), passing
        self._digest, self._last = common.digest, None
        if not (isinstance(common.agenda[0], Muster) and not common.counts.computed):
            self._saved, self._older = None, []  # else nothing has been done yet, and they may be what it takes
        node = common.holders.index(self.me) if self.me in common.holders else None
        self.cell = None
        if node is not None:
            self.cell = Cell(self.network, self.split, node, blank=True, iteration=common.iteration)

    def regain(self, node: int, state: bytes) -> None:
        """After the end: have the own blocks from a checkpoint (`saved`) of a former life, which was written when
        `digest` was what it is now.

        Raises:
            WireError: it is not of this peer's node, not of the last iteration, or damaged. Nothing has changed then.
        """
        cell = self.cell
        if not self.done or cell is None or node != cell.node:
            raise WireError(f"it is of node {node}, and this peer is {'none' if cell is None else cell.node}")
        claim = self._claimed(node, state)
        if claim.iteration != self.iteration:
            raise WireError(f"it is of iteration {claim.iteration}, and the last one was {self.iteration}")
        cell.unpack(state)
        self._saved = claim

    def _passing_of(self, common: Common, arrays: dict[str, Array]) -> Passing | None:
        """The batch that is on its way, as far as it has come."""
        following = next((phase for phase in common.agenda if isinstance(phase, Work | Look)), None)
        if following is None:
            return None
        passing = self._begin(following, common.iteration)
        passing.load(arrays, following.step)
        passing.loss = common.batch_loss
        return passing

    # -- small things ----------------------------------------------------------------------------------------------

    def _enter(self) -> Ended | None:
        """Get ready for the next round. Returns the iteration that has ended, if one has."""
        phase, common = self.phase, self._common
        if isinstance(phase, Look) and not phase.layer:
            self._passing = self._begin(phase, common.iteration)
        starts = isinstance(phase, Work) and phase == Work(0, "forward")
        if isinstance(phase, Work) and starts:
            self._passing = self._begin(phase, common.iteration)
        if (starts or isinstance(phase, Over)) and common.iteration > common.ended:
            common.ended = common.iteration
            evaluation, self._evaluation = self._evaluation, None
            return Ended(common.iteration, common.loss, evaluation)
        common.ended = min(common.ended, common.iteration)
        return None

    def _begin(self, phase: Work | Look, iteration: int) -> Passing:
        if isinstance(phase, Work):
            return Passing(self.network, *self._data(iteration), iteration)
        assert self._test is not None
        part, (x, y) = self._samples(), self._test
        those = slice(phase.part * part, (phase.part + 1) * part)
        return Passing(self.network, x[those], y[those], None)

    def _now(self) -> Passing:
        assert self._passing is not None
        return self._passing

    def _samples(self) -> int:
        """How many are looked at together."""
        assert self._test is not None
        return max(1, min(len(self._test[0]), _LOOK_NUMBERS // (2 * max(self.network.sizes))))

    def _parts(self) -> int:
        assert self._test is not None
        return -(-len(self._test[0]) // self._samples())

    def _form(self) -> Layout:
        samples = self._passing.samples if self._passing is not None else 0
        return form_of(self.phase, self.network, self.split, samples)

    def _mark(self, seen: Seen | Undecodable | None) -> Digest:
        """The digest of what this peer goes on from: all that came before, and all that is to come."""
        common = self._common
        small = (
            f"{self._before} {common.iteration} {list(self._agenda)} {common.holders} {common.verdict} "
            f"{common.missing} {common.saved_at} {common.checked_at} {common.tries} {common.scrubs} {common.below}"
        )
        if isinstance(seen, Seen) and seen.reading is None:
            return digest_of(small, seen.rows)
        return digest_of(small, f"{common.step}")

    def _strike(self, at: Phase | str) -> Strike:
        """Where this peer may err: nowhere in evaluations, which leave nothing behind, nor in blocks that it lacks."""
        cell = self.cell
        if cell is None or isinstance(at, Look) or self.injector.idle or (cell.lacking and isinstance(at, str)):
            return _no_strike
        iteration, node, step = self._common.iteration, cell.node, str(at)
        return lambda place, numbers, effect=None: self.injector.strike(
            Where(iteration, node, step, place), numbers, effect
        )


def _no_strike(place: str, numbers: Array, effect: Effect | None = None, /) -> None:
    """No soft error here."""


def _mostly_gone(rows: Array) -> bool:
    """Whether most lines have a number that is not finite, or whose square isn't: nobody can compute with them."""
    with np.errstate(all="ignore"):
        fine = (np.abs(rows) < np.sqrt(np.finfo(rows.dtype).max)).all(axis=1)
    return 2 * int(fine.sum()) < len(rows)


def _due(iteration: int, every: int) -> bool:
    return every > 0 and iteration > 0 and iteration % every == 0
