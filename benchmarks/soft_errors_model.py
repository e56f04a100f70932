"""What soft_errors.py computes: times of training from what its parts take, and the figures that CodeNet printed.

The model is Theorem 2 of CodeNet, corrected (`checkpoint_model`). What its parts take is measured
here, at one node: what it computes and writes. Nothing is sent, so the time that vectors need is not in it."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from math import expm1, log1p
from pathlib import Path
from typing import Any, Final

import numpy as np
from checkpoint_model import (
    Outcomes,
    codenet_outcomes,
    expected_period,
    expected_time,
    optimal_interval,
    polydot_outcomes,
    replication_outcomes,
)
from numpy.typing import NDArray

from edgepeer.coding.matrix.plan import plan
from edgepeer.errors import ConfigError, Undecodable
from edgepeer.training.split.abft import Checksums
from edgepeer.training.split.codenet import CodeNet
from edgepeer.training.split.fleet import LocalFleet
from edgepeer.training.split.named import parse_split
from edgepeer.training.split.network import Network, ProductStep
from edgepeer.training.split.polydot import PolyDotSplit
from edgepeer.training.split.program import Batches
from edgepeer.training.split.replicate import Replicate
from edgepeer.training.split.strategy import Split
from edgepeer.training.split.tail import WORDS, checksums
from edgepeer.training.split.uncoded import Uncoded

__all__ = [
    "CHECKPOINT_S",
    "LOAD_S",
    "STEP_S",
    "TABLE_1",
    "UNCODED_STEP_S",
    "Costs",
    "expected_events",
    "measure",
    "outcomes",
    "p_for",
    "training_time",
]

Array = NDArray[Any]

TABLE_1: Final = (
    ("codenet:m=5,n=4,t=1", 200, "89", 2322),
    ("replicate:m=5,n=4,copies=2", 10, "89", 18453),
    ("replicate:m=5,n=4,copies=2", 20, "89", 14140),
    ("replicate:m=5,n=4,copies=2", 30, "89", 19238),
    ("none:m=5,n=8", 0, "<50", 730),
)
"""Scheme, iterations between checkpoints, accuracy in %, seconds of 2000 iterations (CodeNet, Table I)."""
CHECKPOINT_S: Final = 75.3
"""What a checkpoint took there: fitted to the three rows of two copies, with 0.89 s an iteration. That explains them to
0.4 %."""
STEP_S: Final = 0.74
"""What is left for an iteration of CodeNet there, in 2322 s with ten checkpoints."""
LOAD_S: Final = 1.47
"""What a restore took there, by the same fit: an iteration of two copies 0.89 s in the mean, a tenth of them lost."""
UNCODED_STEP_S: Final = 0.365
"""An iteration without protection: blocks of half the size, and no check."""


def outcomes(split: Split, kind: str, p: float, layers: int) -> Outcomes:
    """How an iteration ends, if a node errs in each of O1, O2 and O3 with probability p.

    Args:
        kind: of the errors. Checksums correct what is wrong with a product, and only see it if the stored block is.
    """
    if isinstance(split, CodeNet):
        return codenet_outcomes(p, split.m, split.n, split.t, layers)
    if isinstance(split, PolyDotSplit):
        return polydot_outcomes(p, split.nodes, *_corrected(split), layers)
    if isinstance(split, Replicate):
        return replication_outcomes(p, split.m * split.n, split.copies, layers)
    chances = split.nodes * layers
    clean = 1 + expm1(3 * chances * log1p(-p))
    stored = -expm1((3 if kind == "stored" else 1) * chances * log1p(-p))
    lost = 0.0 if split.name == Uncoded.name else min(stored, 1 - clean)  # who sees no error never goes back
    return Outcomes(clean, 1 - clean - lost, lost)


@lru_cache
def _corrected(split: PolyDotSplit) -> tuple[int, int]:
    """Wrong nodes that are corrected whatever they are, forward and backward: as many as the digits and equations of a
    plan let it promise."""
    code = split.code

    def most(forward: bool) -> int:
        count = (split.plan.forward if forward else split.plan.backward).errors
        for errors in range(count, 0, -1):
            wish = (errors, 0) if forward else (0, errors)
            with suppress(ConfigError):
                plan(code.m, code.n, code.nodes, d1=code.d1, d2=code.d2, dtype=code.dtype, kind=code.kind, errors=wish)
                return errors
        return 0

    return most(True), most(False)


def p_for(name: str, lost: float, layers: int) -> float:
    """The chance of an error with which so many iterations are lost, by bisection."""
    split = parse_split(name, np.dtype(np.float64))
    low, high = 0.0, 0.1
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if outcomes(split, "garbage", middle, layers).lost < lost else (low, middle)
    return high


def expected_events(iterations: int, interval: int, lost: float) -> tuple[float, float]:
    """How many iterations are computed, and how many end with a restore: E[T] with steps of time 1, and its losses."""
    computed = iterations / interval * expected_period(interval, 1.0, lost)
    return computed, computed * lost


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds that one node takes, medians: of processor time, so that others on this machine count little; only
    saving is by the clock."""

    step: float
    """tau_f, an iteration without errors: the node's products, reading each sum, checks, activations, its update."""
    check: float
    """The part of it that reads sums and checks them."""
    repair: float
    """What correcting an error takes beyond that: finding it, and its share of the new blocks."""
    save: float
    """Packing what the node stores, and writing it to disk (fsync)."""
    load: float
    """Reading it back."""

    def iteration(self, ends: Outcomes) -> float:
        """c, the mean time of an iteration: errors cost a repair, or the reading of a checkpoint."""
        return self.step + ends.corrected * self.repair + ends.lost * self.load


def training_time(iterations: int, checkpoint: float, step: float, lost: float) -> tuple[int, float]:
    """The best interval between checkpoints, and the time of training with it, in s."""
    interval = optimal_interval(checkpoint, step, lost, iterations)
    return interval, expected_time(iterations, interval, checkpoint, step, lost)


def measure(name: str, network: Network, batches: Batches, rounds: int) -> Costs:
    """What node 0 takes: in all schemes one of those that have a part in every product."""
    fleet = LocalFleet(network, parse_split(name, network.dtype), batches, iterations=rounds)
    node = fleet.programs[0]
    fleet.round()  # who is there
    assert node.cell is not None
    took: dict[str, list[float]] = {"step": [], "check": [], "repair": [], "save": [], "load": []}
    for iteration in range(rounds):
        step = check = repair = 0.0
        for number, each in enumerate(network.steps()):
            seconds, first = _timed(node.contribute)
            total = first + np.sum([program.contribute() for program in fleet.programs[1:]], axis=0)
            reading, seen = _timed(partial(node.read, total))
            if number == iteration % (2 * network.layers):
                repair = _repair(fleet, each, len(batches(iteration)[0]), total, reading)
            names = [program.me for program in fleet.programs]
            settling, _ = _timed(partial(node.settle, total, names, seen))
            for program in fleet.programs[1:]:
                program.settle(total, names, seen)
            step += seconds + reading + settling
            check += reading
        save, load = _checkpoint(node.cell.pack, node.cell.unpack)
        for key, seconds in zip(took, (step, check, repair, save, load), strict=True):
            took[key].append(seconds)
    return Costs(**{key: float(np.median(seconds)) for key, seconds in took.items()})


def _repair(fleet: LocalFleet, step: ProductStep, batch: int, total: Array, reading: float) -> float:
    """Seconds for a wrong line of a step: reading, beyond a right one's, and node 0's share of the new blocks."""
    split, node, cells = fleet.split, fleet.programs[0], fleet.cells
    if isinstance(split, Checksums):
        return _timed(node.contribute)[0]
    wrong = total.copy()
    numbers, lines = split.numbers(step.direction, fleet.network.shape(step.layer), batch), split.lines(step.direction)
    error = np.zeros(numbers, total.dtype)
    error[0] = 10 * np.abs(total[: lines * numbers]).max()
    wrong[(lines - 1) * numbers : lines * numbers] += error
    wrong[lines * (numbers + WORDS) - WORDS : lines * (numbers + WORDS)] += checksums(error)  # as its node has it
    try:
        seconds, seen = _timed(lambda: node.read(wrong))
        suspects = sorted({each for at in seen.reading.wrong for each in split.members(at, step.direction)})
        if not suspects:
            return 0.0
        giving, given = _timed(lambda: cells[0].give(step.layer, suspects, ()))
    except Undecodable:
        return 0.0  # this scheme goes back to the checkpoint
    blocks = given + np.sum([cell.give(step.layer, suspects, ()) for node, cell in cells.items() if node], axis=0)
    taking, _ = _timed(lambda: cells[suspects[-1]].take(step.layer, blocks[-1]))
    return max(seconds - reading, 0.0) + giving + taking


def _checkpoint(pack: Callable[[], bytes], unpack: Callable[[bytes], None]) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        file, start = Path(folder) / "state", time.perf_counter()
        with file.open("wb") as out:
            out.write(pack())
            out.flush()
            os.fsync(out.fileno())
        return time.perf_counter() - start, _timed(lambda: unpack(file.read_bytes()))[0]


def _timed(do: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = do()
    return time.process_time() - start, result
