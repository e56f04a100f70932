"""The application of a simulated peer in a split run: its part of a small network, by the program that devices run.

Rounds are what the program asks for; each costs compute time. A soft error strikes where the program asks whether there
is one. As in every simulated fleet, nothing is on a disk: a new life has nothing but its id.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edgepeer.errors import OutOfStep, ProtocolBug, Undecodable
from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.events import FloatVector
from edgepeer.training.split.assembly import assembled
from edgepeer.training.split.cell import stores
from edgepeer.training.split.counts import Counts
from edgepeer.training.split.faults import ErrorInjector, Kind, Place, SoftErrors, parse_soft_errors
from edgepeer.training.split.fleet import LocalFleet
from edgepeer.training.split.named import parse_split
from edgepeer.training.split.network import Network
from edgepeer.training.split.program import Batches, Program
from edgepeer.training.split.strategy import Split

__all__ = ["TOLERANCE", "SplitApp", "SplitWork", "split_of"]

Array = NDArray[Any]

TOLERANCE: Final = 1e-9
"""How far weights may be from those of undivided training, as a part of the largest of their layer."""
WAIT_S: Final = 0.5
"""From one look at who is there to the next, as long as too few are (peer/split_rounds.py)."""
_NETWORK: Final = Network(
    sizes=(6, 8, 8, 3), activation="tanh", learning_rate=0.2, momentum=0.5, l2=1e-3, dtype=np.dtype(np.float64)
)
_BATCH, _DIFFERENT, _TEST = 4, 8, 5  # samples of a batch, different batches, samples held out
_SCRUB_EVERY, _CHECKPOINT_EVERY, _EVALUATE_EVERY = 2, 3, 4  # iterations


def split_of(text: str) -> Split:
    """The split that a text names, for the network here.

    Raises:
        ConfigError: it names none, or the network can't be divided so.
    """
    split = parse_split(text, _NETWORK.dtype)
    split.fit(_NETWORK)
    return split


@lru_cache(maxsize=8)
def _undivided(seed: int, iterations: int) -> tuple[Array, ...]:
    """The weights, then the velocities, of one machine that has whole matrices."""
    alone = LocalFleet(_network(seed), split_of("none:m=1,n=1"), _batches(seed), iterations=iterations)
    alone.train()
    return tuple(alone.cells[0].blocks)


def _network(seed: int) -> Network:
    return replace(_NETWORK, seed=seed)


def _samples(seed: int, *many: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((*many, _NETWORK.sizes[0]))
    return x, rng.integers(0, _NETWORK.sizes[-1], many)


def _batches(seed: int) -> Batches:
    x, y = _samples(seed, _DIFFERENT, _BATCH)
    return lambda iteration: (x[iteration % _DIFFERENT], y[iteration % _DIFFERENT])


class SplitWork:
    """What a fleet trains, and what has become of it.

    Args:
        split: as `parse_split` has it.
        soft_errors: as `parse_soft_errors` has it; "none".
        iterations: how many updates there are to be.
    """

    def __init__(self, split: str, soft_errors: str, *, iterations: int, seed: int) -> None:
        self.network, self.split = _network(seed), split_of(split)
        self.iterations = iterations
        self.lives: defaultdict[PeerId, list[SplitApp]] = defaultdict(list)
        """Of each peer."""
        self._seed = seed
        self._chance: SoftErrors | None = None if soft_errors == "none" else parse_soft_errors(soft_errors)
        self._batches, self._test = _batches(seed), _samples(seed + 1, _TEST)

    @property
    def numbers(self) -> int:
        """In the largest vector, at most: all that all nodes store."""
        whole = sum(rows * columns for rows, columns in map(self.network.shape, range(self.network.layers)))
        return whole * stores(self.network) * self.split.nodes

    @property
    def rounds(self) -> int:
        """Of an iteration, at most, in the mean: of steps, an evaluation and regenerations, and all that again."""
        return 20 * (3 * self.network.layers + stores(self.network))

    @property
    def seen(self) -> str:
        """How many soft errors there were, and what has become of them, for people."""
        fates = Counter[str]()
        for app in self._apps:
            fates.update(app.injector.struck._asdict())
        told = ", ".join(f"{fates[name]} {name}" for name in ("found", "restored", "harmless") if fates[name])
        return f"soft errors: {fates['injected']}" + (f", of them {told}" if told else "")

    @property
    def errors(self) -> Counter[str]:
        """How many soft errors there were, by what has made them: a fault of the schedule, or chance."""
        planned = sum(app.planned - app.injector.left for app in self._apps)
        every = sum(len(app.injector.record) for app in self._apps)
        return Counter({"flip": planned, "soft_errors": every - planned})

    def brought(self, peer: PeerId, number: int) -> list[tuple[FloatVector, float]]:
        """To a round, and how much it counts: of which life it was is not known."""
        return [(vector, 1.0) for app in self.lives[peer] for vector in app.brought.get(number, ())]

    @property
    def _apps(self) -> list[SplitApp]:
        return [app for lives in self.lives.values() for app in lives]

    def app(self, peer: PeerId, incarnation: int, note: Callable[[str], None]) -> SplitApp:
        """Of a new life."""
        injector = ErrorInjector(self._chance, seed=zlib.crc32(f"{self._seed} {peer} {incarnation}".encode()))

        def make() -> Program:
            return Program(
                peer,
                self.network,
                self.split,
                self._batches,
                iterations=self.iterations,
                test=self._test,
                evaluate_every=_EVALUATE_EVERY,
                checkpoint_every=_CHECKPOINT_EVERY,
                scrub_every=_SCRUB_EVERY,
                injector=injector,
            )

        app = SplitApp(peer, make, note)
        self.lives[peer].append(app)
        return app

    def check(self, apps: Iterable[SplitApp]) -> bool:
        """Look at those who live, when all are done. Returns whether they have all of the network: if somebody who
        had its part of it at the end has died since, or was begun anew, they need not; nor may anything be asked of
        them if an error was used when so much was missing that nobody could see it: then they have counted that.

        Raises:
            ProtocolBug: they don't agree, their weights are not those of undivided training, or an error was not seen.
        """
        living = list(apps)
        if len({app.program.state() for app in living}) > 1:
            raise ProtocolBug("living peers of a split run have not the same in common")
        if any(app.program.counts.unchecked for app in living) and any(
            # who has died or lost touch can't say itself whether its last vector counted, and was looked at
            app.astray or "unchecked" in app.fates or ("unseen" in app.fates and app not in living)
            for app in self._apps
        ):
            return False
        cells = {app.program.cell.node: app.program.cell for app in living if app.whole and app.program.cell}
        for store, right in enumerate(_undivided(self._seed, self.iterations)):
            bound = TOLERANCE * float(np.abs(right).max())
            for node, cell in cells.items():
                wanted = self.split.store(node, right.shape, right.__getitem__)
                off = float(np.abs(cell.blocks[store] - wanted).max())
                if not off <= bound:  # NaN is not
                    raise ProtocolBug(f"store {store} of node {node} is off by {off:.1e} from undivided training's")
        missed = [(app, each) for app in self._apps for each in app.injector.record if each.undetected]
        # Most nodes may happen to name the same one wrongly: they are believed, and it is looked at for nothing. Or not
        # to name the one that was wrong: its line was corrected, and it was not told.
        verdicts = Counter((w.iteration, w.step) for _, each in missed if (w := each.where).place == "verdict")
        for app, each in missed:
            named = each.where.place == "verdict" or each.where.effected == "product"
            alike = named and verdicts[each.where.iteration, each.where.step] > 1
            if app in living and not alike:
                raise ProtocolBug(f"{each} at {app.peer} was not seen")
        try:
            for layer in range(self.network.layers):
                shape, blocks = self.network.shape(layer), {node: cell.blocks[layer] for node, cell in cells.items()}
                whole, right = assembled(self.split, shape, blocks), _undivided(self._seed, self.iterations)[layer]
                if not (off := float(np.abs(whole - right).max())) <= TOLERANCE * float(np.abs(right).max()):
                    raise ProtocolBug(f"the weights of layer {layer} are off by {off:.1e} from undivided training's")
        except Undecodable:
            if not any(app.put_away or (app.whole and app not in living) for app in self._apps):
                raise ProtocolBug(f"nobody has died since, but there are only nodes {sorted(cells)}") from None
            return False
        return True


class SplitApp:
    """What one life of a peer trains.

    Args:
        make: a program that has not begun.
        note: told of what happens, for people.
    """

    def __init__(self, peer: PeerId, make: Callable[[], Program], note: Callable[[str], None]) -> None:
        self.peer, self.program = peer, make()
        self.injector = self.program.injector
        self.planned = 0
        """Errors that faults of the schedule have asked for."""
        self.brought: dict[int, list[FloatVector]] = {}
        """To each round; more than once if the run has begun again."""
        self.lost = False
        """Whether what it has in common with others is not what they have: it waits for theirs."""
        self.finished = False
        """Whether it was there to the end of the run, with its part of the network."""
        self.put_away = False
        """Whether it had finished, or had all but the last look at its part, and was begun anew, as one that was taken
        for lost: what it had is gone."""
        self.astray = False
        """Whether it had erred when it took others' state: what had become of that it has not heard."""
        self._make = make
        self._note = note
        self._told = 0

    @property
    def fates(self) -> set[str]:
        """Of its errors."""
        return {each.fate for each in self.injector.record}

    @property
    def whole(self) -> bool:
        """Whether it has a node, and all of its blocks, as all have looked at them in the end."""
        saved = self.program.saved
        return self.program.cell is not None and saved is not None and saved[1] == self.program.iterations

    @property
    def pause_s(self) -> float:
        """How long it waits before it contributes."""
        return WAIT_S if self.program.waiting else 0.0

    def contribute(self, number: int) -> FloatVector:
        """To a round."""
        vector: FloatVector = self.program.contribute()
        self.brought.setdefault(number, []).append(vector)
        self._tell_errors()
        return vector

    def settle(self, outcome: fx.RoundCommitted) -> None:
        """A round has ended with a sum.

        Raises:
            ProtocolBug: the program has come to the end of its patience.
        """
        if self.lost:
            return
        program = self.program
        before = copy(program.counts)
        try:
            program.settle(np.array(outcome.sum), outcome.contributors)
        except OutOfStep:
            self.lost = True
            self._note("goes on from something else than the others, and asks for what they have")
            return
        except Undecodable as error:
            raise ProtocolBug(f"{self.peer} gives up at {program.phase}: {error}") from error
        self.finished = program.done and self.whole
        self._tell_errors()
        self._tell_counts(before)

    def load(self, state: bytes) -> None:
        """Go on from another's."""
        self.astray |= "unseen" in self.fates
        self.program.load_state(state)
        self.lost = self.finished = False

    def begin(self) -> None:
        """The run begins, perhaps again: what is here counts, unless another's comes, or it was over here."""
        program = self.program
        at_the_end = program.cell is not None and not program.cell.lacking and program.iteration == program.iterations
        self.put_away |= self.finished or at_the_end
        self.lost = self.finished = False
        if self.program.done:
            self.program = self._make()

    def err(self, place: Place, kind: Kind) -> None:
        """Make an error at the next chance; a spare has none, as long as it is one."""
        self.planned += 1
        self.injector.soon(place, kind)

    def _tell_errors(self) -> None:
        for made in self.injector.record[self._told :]:
            self._note(f"soft error, {made.kind} in {made.where.place}: {made.where.step}")
        self._told = len(self.injector.record)

    def _tell_counts(self, before: Counts) -> None:
        now = self.program.counts
        for name in _TOLD:
            if getattr(now, name) > getattr(before, name):
                self._note(_TOLD[name])


_TOLD: Final = {
    "lines": "wrong lines were corrected",
    "damaged": "lines were damaged on their way",
    "odd": "a node had come to something else, and did its step again",
    "scrubbed": "a scrub found wrong weights",
    "regenerated": "blocks were put together again",
    "restored": "all go back to the last checkpoint",
    "unchecked": "nobody could check a step, for too much was missing",
}
