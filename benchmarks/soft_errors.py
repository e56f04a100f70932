"""Training under soft errors, in NumPy: a classifier divided over 20 to 60 nodes, with errors put into their numbers.
What becomes of its accuracy without protection, with checksums, copies and codes, and how long training takes with
checkpoints that cost 0.1 to 75 s.

All nodes are computed, one after the other, in this process. A node's time is what it alone computes: its products,
reading the sums, activations, its update. Nothing is sent, so the time that vectors take is not in it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from math import expm1, log1p
from pathlib import Path

from common import SINGLE_THREADED, positive, show, warn_if_busy, write_json

os.environ.update(SINGLE_THREADED)  # before NumPy: a node has one core

import numpy as np
from numpy.typing import NDArray

from edgepeer.coding.matrix.checkpointing import (
    Outcomes,
    codenet_outcomes,
    expected_time,
    optimal_interval,
    polydot_outcomes,
    replication_outcomes,
    step_time,
    young_interval,
)
from edgepeer.errors import ConfigError, Undecodable
from edgepeer.training.datasets import Dataset, load_dataset
from edgepeer.training.split.codenet import CodeNet
from edgepeer.training.split.faults import Injector, SoftErrors, parse_soft_errors
from edgepeer.training.split.fleet import Fleet
from edgepeer.training.split.named import parse_split
from edgepeer.training.split.network import Network
from edgepeer.training.split.polydot import PolyDotSplit
from edgepeer.training.split.replicate import Replicate
from edgepeer.training.split.strategy import Split

_Row = dict[str, object]

_SCHEMES = (
    "none:m=5,n=4",
    "abft:m=5,n=4",
    "replicate:m=5,n=4,copies=2",
    "replicate:m=5,n=4,copies=3",
    "codenet:m=5,n=4,t=1",
    "polydot:m=5,n=8,nodes=38",
)
"""Two copies are what detecting and going back to a checkpoint comes to. PolyDot's nodes store complex numbers: 40
blocks of two parts, as much as 20."""
_CHECKPOINTS = (0.1, 1.0, 10.0, 75.0)


def outcomes(split: Split, p: float, layers: int) -> Outcomes:
    """How an iteration ends, by the model of errors in O1, O2 and O3."""
    if isinstance(split, CodeNet):
        return codenet_outcomes(p, split.m, split.n, split.t, layers)
    if isinstance(split, PolyDotSplit):
        most = split.plan.forward.errors, split.plan.backward.errors
        return polydot_outcomes(p, split.nodes, *most, layers)
    if isinstance(split, Replicate):
        return replication_outcomes(p, split.m * split.n, split.copies, layers)
    chances = split.nodes * layers
    clean = -expm1(3 * chances * log1p(-p))
    lost = -expm1(chances * log1p(-p))  # checksums: what is stored has no copy
    return Outcomes(1 - clean, clean - lost, lost)


def train(name: str, network: Network, data: Dataset, errors: SoftErrors | None, arguments: argparse.Namespace) -> _Row:
    """Training with these errors, and the accuracy at the end."""
    split = parse_split(name, network.dtype)
    injector = Injector(errors, seed=arguments.seed)
    lost = outcomes(split, errors.p, network.layers).lost if errors else 0.0
    interval = max(1, int(min(young_interval(arguments.checkpoint_steps, 1.0, lost), arguments.iterations)))
    fleet = Fleet(
        network,
        split,
        injector=injector,
        checkpoint_every=interval,
        scrub_every=arguments.scrub_every,
        patience=arguments.iterations,
    )
    order = np.random.default_rng(arguments.seed).integers(
        len(data.x_train), size=(arguments.iterations, arguments.batch)
    )
    row: _Row = {"table": "accuracy", "scheme": name, "nodes": split.nodes, "p": errors.p if errors else 0.0}
    row |= {"interval": interval}
    try:
        report = fleet.train(lambda k: (data.x_train[order[k]], data.y_train[order[k]]), arguments.iterations)
    except Undecodable as error:
        return row | {"errors": len(injector.record), "restored": fleet.report.restored, "gave_up": str(error)}
    fates = [each.fate for each in injector.record]
    return row | {
        "errors": len(fates),
        "found": fates.count("found"),
        "undone": fates.count("restored"),
        "unseen": fates.count("unseen"),
        "lines": report.lines + report.recomputed,
        "regenerated": report.regenerated,
        "scrubbed": report.scrubbed,
        "restored": report.restored,
        "accuracy": short(accuracy(fleet, data)),
        "bytes": split.stored_bytes(network),
    }


def accuracy(fleet: Fleet, data: Dataset) -> float:
    """On the test samples, with the weights put together."""
    network = fleet.network
    x, wanted = network.batch(data.x_test, data.y_test)
    weights: list[NDArray[np.floating]] = [fleet.weights(layer) for layer in range(network.layers)]
    with np.errstate(all="ignore"):
        for layer, each in enumerate(weights[:-1]):
            x = network.with_constant(layer + 1, network.activate(layer, each @ x, None))
        return network.score(weights[-1] @ x, wanted)[1] / len(data.x_test)


def node_times(name: str, network: Network, data: Dataset, batch: int, rounds: int) -> tuple[float, float]:
    """Seconds that a node computes in an iteration: without errors, and more for giving and taking blocks after one.

    The mean over nodes of products and update, and one node's reading and settling; the median of some iterations.
    """
    fleet = Fleet(network, parse_split(name, network.dtype))
    clean, repair = [], []
    for _ in range(rounds):
        seconds = 0.0
        for cell in fleet.cells:
            cell.begin(data.x_train[:batch], data.y_train[:batch])
        for step in network.steps():
            start = time.perf_counter()
            vectors = [cell.contribute(step) for cell in fleet.cells]
            seconds += (time.perf_counter() - start) / len(fleet.cells)
            total = np.sum(vectors, axis=0)
            start = time.perf_counter()
            fleet.cells[0].settle(step, total)
            seconds += time.perf_counter() - start
            seen = fleet.cells[0].read(step, total)
            for cell in fleet.cells[1:]:
                cell.settle(step, total, (), seen)
        start = time.perf_counter()
        for cell in fleet.cells:
            cell.update()
        clean.append(seconds + (time.perf_counter() - start) / len(fleet.cells))
        start = time.perf_counter()
        try:
            fleet.regenerate(0, [0])
            repair.append((time.perf_counter() - start) / len(fleet.cells))
        except Undecodable:
            repair.append(0.0)
    return float(np.median(clean)), float(np.median(repair))


def durations(name: str, network: Network, p: float, iterations: int, times: tuple[float, float]) -> list[_Row]:
    """Time of training by the model, with the best interval between checkpoints."""
    ends = outcomes(parse_split(name, network.dtype), p, network.layers)
    step = step_time(ends, times[0], sum(times))
    rows: list[_Row] = []
    for checkpoint in _CHECKPOINTS:
        row: _Row = {"table": "time", "scheme": name, "checkpoint_s": checkpoint, "step_s": short(times[0])}
        row |= {"lost": short(ends.lost)}
        if name.startswith("none"):  # nobody sees an error, so nobody goes back
            rows.append(row | {"interval": None, "seconds": short(iterations * times[0])})
            continue
        interval = optimal_interval(checkpoint, step, ends.lost, iterations)
        seconds = expected_time(iterations, interval, checkpoint, step, ends.lost)
        rows.append(row | {"interval": interval, "seconds": short(seconds)})
    return rows


def short(number: float) -> float:
    """Four digits."""
    return float(f"{number:.4g}")


def main() -> int:
    arguments = _arguments()
    warn_if_busy()
    data = load_dataset(arguments.dataset, data_dir=arguments.data)
    network = Network(
        sizes=(data.x_train[0].size, *arguments.hidden, data.classes), learning_rate=arguments.rate, seed=arguments.seed
    )
    rows = [train("none:m=5,n=4", network, data, None, arguments)]
    for name in _SCHEMES:
        rows.append(train(name, network, data, arguments.errors, arguments))
    columns = {"scheme": "scheme", "nodes": "nodes", "p": "p", "interval": "save every", "errors": "errors"}
    columns |= {
        "found": "found",
        "undone": "undone",
        "unseen": "unseen",
        "restored": "restores",
        "accuracy": "accuracy",
    }
    blank: _Row = dict.fromkeys(columns)
    title = f"{arguments.iterations} iterations of {arguments.batch}, {arguments.errors.kind} errors"
    show(title, columns, [blank | row for row in rows])
    later: list[_Row] = []
    for name in _SCHEMES:
        times = node_times(name, network, data, arguments.batch, arguments.rounds)
        later += durations(name, network, arguments.errors.p, arguments.iterations, times)
    columns = {"scheme": "scheme", "checkpoint_s": "checkpoint, s", "step_s": "a node's step, s", "lost": "p2"}
    show("time by the model", columns | {"interval": "best interval", "seconds": "training, s"}, later)
    if arguments.json:
        write_json(arguments.json, [*rows, *later])
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="mnist", help="one with labels; default: mnist")
    parser.add_argument("--data", type=Path, metavar="DIR", help="where its files are")
    parser.add_argument("--hidden", type=_sizes, default=(1000, 1000), help="hidden layers; default: 1000,1000")
    parser.add_argument("--iterations", type=positive, default=2000, help="default: 2000")
    parser.add_argument("--batch", type=positive, default=1, help="samples an iteration; default: 1")
    parser.add_argument("--rate", type=float, default=0.01, help="learning rate; default: 0.01")
    parser.add_argument("--errors", type=_errors, default=SoftErrors(3e-4), help="default: p=3e-4,steps=O1+O2+O3")
    parser.add_argument(
        "--checkpoint-steps", type=positive, default=10, help="what a checkpoint costs, in iterations; default: 10"
    )
    parser.add_argument("--scrub-every", type=positive, default=10, help="iterations; default: 10")
    parser.add_argument("--rounds", type=positive, default=20, help="iterations that are timed; default: 20")
    parser.add_argument("--seed", type=int, default=0, help="of weights, samples and errors; default: 0")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    return parser.parse_args()


def _errors(text: str) -> SoftErrors:
    try:
        return parse_soft_errors(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _sizes(text: str) -> Sequence[int]:
    return tuple(positive(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
