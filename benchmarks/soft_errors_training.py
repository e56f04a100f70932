"""Training that soft_errors.py watches: really divided, with errors really put into it, and every event counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edgepeer.errors import Undecodable
from edgepeer.training.datasets import Dataset
from edgepeer.training.split.counts import Counts
from edgepeer.training.split.faults import ErrorInjector, Injected, SoftErrors, Where
from edgepeer.training.split.fleet import LocalFleet
from edgepeer.training.split.named import parse_split
from edgepeer.training.split.network import Network
from edgepeer.training.split.strategy import Effect, parts_of

__all__ = ["KINDS", "Experiment", "Trained", "events"]

Array = NDArray[Any]

KINDS: Final = ("stored", "sparse", "garbage", "flip", "nan")
"""`stored` is the paper's. The others strike products in O1 and O2, and what is stored in O3."""

_DENSITY: Final = 0.005
_LARGEST: Final = 5.0


class StoredErrors(ErrorInjector):
    """Errors as in the experiment of CodeNet, §III-D: whatever a node does when one strikes, O1, O2 or O3, a random
    matrix is added to the block that it stores. One number in 200 of it isn't zero, but uniform from -5 to 5.

    An error in O1 or O2 comes before the product, which has it, too.
    """

    def __init__(self, p: float, seed: int) -> None:
        super().__init__(seed=seed)
        self.fleet: LocalFleet
        """Whose nodes err."""
        self._p, self._random = p, np.random.default_rng(seed)

    @property
    def idle(self) -> bool:
        return False

    def strike(self, where: Where, numbers: Array, effect: Effect | None = None) -> None:
        step, _, layer = where.step.partition(" ")
        place = "stored" if step == "update" else "encoding"
        if where.place != place or self._random.random() >= self._p:
            return
        for part in parts_of(self.fleet.cells[where.node].blocks[int(layer)]):
            hit = self._random.random(part.shape) < _DENSITY
            hit[tuple(self._random.integers(part.shape))] = True
            part[hit] += self._random.uniform(-_LARGEST, _LARGEST, np.count_nonzero(hit))
        self.made(where, "sparse", inf)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What training came to."""

    split: str
    nodes: int
    bytes: int
    """What a node stores."""
    report: Counts
    recomputed: int
    """Products that nodes found to be wrong by themselves, and computed again."""
    record: Sequence[Injected]
    accuracy: float
    """On the test samples; NaN if it gave up."""
    off: float
    """The largest difference to the weights of training without errors, as a part of the layer's largest weight. With
    relu rounding alone may make it large: a sum that is 1e-8 in one run and -1e-8 in another, by rounding,
    moves a whole row of weights in one of them."""


class Experiment:
    """A classifier with relu layers and a linear output, which learns by the squared error: CodeNet, §III-D.

    Args:
        hidden: sizes of the hidden layers.
        rate: of the sum of squares over the outputs, as in the paper.
        dtype: of everything, "float32" or "float64".
        seed: of weights, samples and errors.
    """

    def __init__(
        self,
        data: Dataset,
        hidden: Sequence[int],
        *,
        rate: float,
        iterations: int,
        batch: int,
        dtype: str,
        seed: int,
    ) -> None:
        self.data, self.iterations, self.seed = data, iterations, seed
        self.network = Network(
            sizes=(data.x_train[0].size, *hidden, data.classes),
            output="linear",
            learning_rate=rate * data.classes,  # the network's loss is the mean over its outputs
            dtype=np.dtype(dtype),
            seed=seed,
        )
        self._order = np.random.default_rng(seed).integers(len(data.x_train), size=(iterations, batch))
        self._one_hot = np.eye(data.classes, dtype=dtype)
        self._clean: list[Array] = []

    def batch(self, iteration: int) -> tuple[Array, Array]:
        """The samples of an iteration, and what is wanted."""
        chosen = self._order[iteration]
        return self.data.x_train[chosen], self._one_hot[self.data.y_train[chosen]]

    def clean(self) -> Trained:
        """Training without errors, in the same blocks as most schemes have: then sums are rounded alike. Others are
        compared with it."""
        return self.train("none:m=5,n=4", "stored", 0.0, 0, 0)

    def train(self, name: str, kind: str, p: float, interval: int, scrub_every: int) -> Trained:
        """Training divided so, with errors of a kind and a checkpoint after every `interval` iterations."""
        network, split = self.network, parse_split(name, self.network.dtype)
        injector: ErrorInjector
        if kind == "stored":
            injector = StoredErrors(p, self.seed)
        else:
            injector = ErrorInjector(SoftErrors(p, kind=kind), seed=self.seed)  # type: ignore[arg-type]  # one of KINDS
        fleet = LocalFleet(
            network,
            split,
            self.batch,
            iterations=self.iterations,
            injector=injector,
            checkpoint_every=interval,
            scrub_every=scrub_every,
            patience=100 * self.iterations,
        )
        if isinstance(injector, StoredErrors):
            injector.fleet = fleet
        accuracy = off = float("nan")
        try:
            fleet.train()
        except Undecodable:  # with all that patience: nothing can be trained like this
            pass
        else:
            weights = [fleet.weights(layer) for layer in range(network.layers)]
            self._clean = self._clean or weights
            accuracy, off = self._accuracy(weights), self._off(weights)
        return Trained(
            split=name,
            nodes=split.nodes,
            bytes=split.stored_bytes(network),
            report=fleet.counts,
            recomputed=fleet.recomputed,
            record=injector.record,
            accuracy=accuracy,
            off=off,
        )

    def _accuracy(self, weights: Sequence[Array]) -> float:
        network, data = self.network, self.data
        right = 0
        with np.errstate(all="ignore"):
            for start in range(0, len(data.x_test), 1000):
                some = data.x_test[start : start + 1000]
                x = network.with_constant(0, some.reshape(len(some), -1).T)
                for layer, each in enumerate(weights[:-1]):
                    x = network.with_constant(layer + 1, network.activate(layer, each @ x, None))
                right += np.count_nonzero((weights[-1] @ x).argmax(axis=0) == data.y_test[start : start + 1000])
        return right / len(data.x_test)

    def _off(self, weights: Sequence[Array]) -> float:
        with np.errstate(all="ignore"):
            parts = [np.abs(a - b).max() / np.abs(b).max() for a, b in zip(weights, self._clean, strict=True)]
        return float(np.nan_to_num(max(parts), nan=inf))


_SMALL: Final = (5, 4)
"""Inputs and outputs of one layer: enough for 2 x 2 blocks, and computed fast."""


_AT_ONCE: Final = 25
"""Periods of one run: the record of its errors, which is gone through for every error, stays short."""


def events(name: str, p: float, interval: int, periods: int, seed: int) -> Mapping[str, int]:
    """How many iterations so many checkpoint periods take, and how many of them end with a restore.

    One small layer in float64, all of whose numbers are struck at once, so no error is too small to be seen: what the
    model counts, and nothing else.
    """
    network = Network(sizes=_SMALL, output="linear", learning_rate=1e-3, dtype=np.dtype(np.float64), seed=seed)
    split, counts = parse_split(name, network.dtype), {"computed": 0, "restored": 0, "errors": 0}
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((16, 1, _SMALL[0])), rng.standard_normal((16, 1, _SMALL[1]))
    for run, start in enumerate(range(0, periods, _AT_ONCE)):
        injector = ErrorInjector(SoftErrors(p, kind="garbage"), seed=seed * periods + run)
        fleet = LocalFleet(
            network,
            split,
            lambda iteration: (x[iteration % 16], y[iteration % 16]),
            iterations=interval * min(_AT_ONCE, periods - start),
            injector=injector,
            checkpoint_every=interval,
            patience=1 << 30,
        )
        report = fleet.train()
        counts["computed"] += report.computed
        counts["restored"] += report.restored
        counts["errors"] += len(injector.record)
    return counts
