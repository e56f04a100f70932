"""What dividing a network over peers costs: real processes, each a node of a split, on one tree. An iteration with a
code against the same blocks without one; what a wrong number and a killed peer cost; what peers hold and send, counted
and measured, against data-parallel training: the table that says when to divide."""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import counts, emulate, positive, show, warn_if_busy, write_json

from edgepeer.training.split.named import parse_split
from edgepeer.training.split.network import Network
from edgepeer.training.split.strategy import Split
from edgepeer.training.split.tail import WORDS

_CODES = {12: ("codenet:m=2,n=2,t=1", "none:m=2,n=2"), 38: ("codenet:m=5,n=4,t=1", "none:m=5,n=4")}
"""By peers: a code, and its blocks uncoded; those who have none of them pass vectors on."""
_WARM_UP = 5
"""The first iterations load and open what later ones have."""
_FLOAT = np.dtype(np.float32)
_SIZES = ((64, 512, 10), (784, 512, 10), (784, 1000, 1000, 10), (784, 4000, 4000, 10), (784, 10_000, 10_000, 10))
_SPLITS = (
    "none:m=5,n=4", "abft:m=5,n=4", "codenet:m=2,n=2,t=1", "codenet:m=5,n=4,t=1", "polydot:m=2,n=2,d=1",
    "replicate:m=5,n=4,copies=3",
)  # fmt: skip
_BATCHES = (1, 32, 256)

Row = dict[str, Any]


class Bench:
    """One run of all."""

    def __init__(self, arguments: argparse.Namespace, home: Path) -> None:
        self._arguments = arguments
        self._home = home
        self._runs = 0
        rng = np.random.default_rng(0)
        samples, features = 2048, arguments.features
        x = rng.standard_normal((samples, features)).astype(np.float32)
        y = (x @ rng.standard_normal((features, 10))).argmax(axis=1)
        np.savez(home / "data.npz", x=x, y=y)

    def _emulate(self, peers: int, rounds: int, *flags: str) -> dict[str, Any]:
        """The report of a fleet that has trained."""
        self._runs += 1
        out = self._home / f"run-{self._runs}"
        job = {
            "peers": peers, "model": "mlp-plain", "dataset": f"npz:{self._home / 'data.npz'}", "optimizer": "sgd",
            "learning-rate": 0.05, "batch-size": self._arguments.batch, "rounds": rounds, "eval-every": rounds,
            "network": "none", "broker": "embedded",
        }  # fmt: skip
        return emulate(job, *flags, out=out, timeout_s=900)

    # -- nothing is wrong ------------------------------------------------------------------------------------------

    def clean(self, peers: int) -> list[Row]:
        """Iterations with a code and without, in turns."""
        rounds, splits = self._arguments.rounds, _CODES[peers]
        seconds: dict[str, list[float]] = {split: [] for split in splits}
        reports: dict[str, dict[str, Any]] = {}
        for turn in range(self._arguments.turns):
            for split in splits[:: -1 if turn % 2 else 1]:
                report = self._emulate(peers, _WARM_UP + rounds, f"--split={split}", "--scrub-every=0")
                reports[split] = report
                seconds[split].append(_median(report, _WARM_UP + 1, _WARM_UP + rounds - 1))
        coded, uncoded = (seconds[split] for split in splits)
        ratios = [one / other for one, other in zip(coded, uncoded, strict=True)]
        rows = []
        for split in splits:
            report = reports[split]
            network, made = self._network(), parse_split(split, _FLOAT)
            counted = sum(_vectors(network, made, self._arguments.batch))
            sent = sum(report["bytes_sent_per_peer"].values()) / report["rounds"]
            rows.append(
                {
                    "table": "clean",
                    "peers": peers,
                    "split": split,
                    "iteration_s": statistics.median(seconds[split]),
                    "ratio": statistics.median(ratios) if split == splits[0] else None,
                    "ratio_least": min(ratios) if split == splits[0] else None,
                    "ratio_most": max(ratios) if split == splits[0] else None,
                    "held_bytes": max(report["split"]["held_bytes_per_peer"].values()),
                    "held_bytes_counted": made.stored_bytes(network),
                    "vector_bytes_counted": counted,
                    # A tree of n peers carries a vector up n - 1 links, and the sum down the same.
                    "vector_bytes_measured": sent / (2 * (peers - 1)),
                }
            )
        return rows

    def _network(self) -> Network:
        return Network(sizes=(self._arguments.features, 512, 10), dtype=_FLOAT)

    # -- something is wrong ----------------------------------------------------------------------------------------

    def flips(self, peers: int) -> Row:
        """Wrong products and wrong weights, one at a time, far from each other."""
        split, rounds = _CODES[peers][0], self._arguments.rounds
        at = range(_WARM_UP + 5, _WARM_UP + rounds - 5, 8)
        nodes, places = parse_split(split, _FLOAT).nodes, ("product", "stored")
        flips = {each: f"{7 * n % nodes}@{each}:kind=garbage,place={places[n % 2]}" for n, each in enumerate(at)}
        flags = [f"--flip={flip}" for flip in flips.values()]
        report = self._emulate(peers, _WARM_UP + rounds, f"--split={split}", "--scrub-every=0", *flags)
        steps = len(self._network().steps())
        detail = {row["round"]: row for row in report["rounds_detail"]}
        # What is stored wrong in one iteration is found in the next.
        hit = {number for each in flips for number in (each, each + 1)}
        clean = statistics.median(row["seconds"] for n, row in detail.items() if n > _WARM_UP and n not in hit)
        extra = [sum(detail[n]["seconds"] - clean for n in (each, each + 1)) for each in flips]
        told = report["split"]
        return {
            "table": "one error",
            "peers": peers,
            "split": split,
            "errors": told["injected"],
            "found": told["found"],
            "regenerated": told["regenerated"],
            "restores": told["restores"],
            "clean_s": clean,
            "extra_s": statistics.median(extra),
            "extra_rounds": statistics.median(extra) / (clean / steps),
            "extra_iterations": statistics.median(extra) / clean,
        }

    def kills(self, peers: int) -> list[Row]:
        """A killed peer, in a split job, and in a data-parallel one of as many peers."""
        rounds, split = self._arguments.rounds, _CODES[peers][0]
        ways = {"split": (f"--split={split}", "--scrub-every=0"), "data-parallel": ("--trainer=numpy",)}
        found: dict[str, list[tuple[float, float, int]]] = {way: [] for way in ways}
        for turn in range(self._arguments.turns):
            victim = ("leaf", "pos1")[turn % 2]
            for way, flags in ways.items():
                at = _WARM_UP + rounds // 2
                report = self._emulate(peers, _WARM_UP + rounds, *flags, f"--kill={victim}@{at}")
                first = report["faults"][0]["first_round"]
                slowest = max(row["seconds"] for row in report["rounds_detail"] if first <= row["round"] <= first + 3)
                restores = report["split"]["restores"] if way == "split" else 0
                found[way].append((_median(report, _WARM_UP + 1, first - 1), slowest, restores))
        rows = []
        for way, trials in found.items():
            clean, slowest, restores = zip(*trials, strict=True)
            extra = statistics.median(b - a for a, b in zip(clean, slowest, strict=True))
            rows.append(
                {
                    "table": "crash",
                    "peers": peers,
                    "job": split if way == "split" else way,
                    "clean_s": statistics.median(clean),
                    "crash_s": statistics.median(slowest),
                    "extra_s": extra,
                    "restores": sum(restores),
                }
            )
        return rows


# -- counted -------------------------------------------------------------------------------------------------------


def counted() -> Iterator[Row]:
    """What peers hold and send, by network, split and batch."""
    for sizes in _SIZES:
        network = Network(sizes=sizes, dtype=_FLOAT)
        whole = sum(rows * columns for rows, columns in map(network.shape, range(network.layers))) * _FLOAT.itemsize
        yield {"table": "bytes", "network": _named(sizes), "split": "data-parallel", "nodes": None, "held_bytes": whole}
        yield from (_counted(network, sizes, whole, split) for split in _SPLITS)


def _counted(network: Network, sizes: Sequence[int], whole: int, name: str) -> Row:
    split = parse_split(name, _FLOAT)
    vectors = {batch: sum(_vectors(network, split, batch)) for batch in (*_BATCHES, 2)}
    each = vectors[2] - vectors[1]
    return {
        "table": "bytes",
        "network": _named(sizes),
        "split": name,
        "nodes": split.nodes,
        "held_bytes": split.stored_bytes(network),
        **{f"vector_bytes_{batch}": vectors[batch] for batch in _BATCHES},
        "rounds": len(network.steps()),
        "fewer_bytes_up_to": max(0, (whole - vectors[1] + each) // each),
    }


def _vectors(network: Network, split: Split, batch: int) -> Iterator[int]:
    """Bytes of each step's vector."""
    for step in network.steps():
        lines = split.lines(step.direction)
        numbers = lines * split.numbers(step.direction, network.shape(step.layer), batch)
        yield (numbers + WORDS * (lines + split.nodes)) * _FLOAT.itemsize


def _named(sizes: Sequence[int]) -> str:
    return "-".join(map(str, sizes))


def _median(report: Mapping[str, Any], first: int, last: int) -> float:
    return statistics.median(row["seconds"] for row in report["rounds_detail"] if first <= row["round"] <= last)


# -- shown ---------------------------------------------------------------------------------------------------------

_COLUMNS: dict[str, tuple[str, dict[str, str]]] = {
    "clean": (
        "An iteration where nothing is wrong",
        {
            "peers": "peers", "split": "split", "iteration_s": "iteration", "ratio": "coded / uncoded",
            "ratio_least": "least", "ratio_most": "most", "held_bytes": "a peer holds", "held_bytes_counted": "counted",
            "vector_bytes_measured": "a link carries, each way", "vector_bytes_counted": "counted",
        },
    ),
    "one error": (
        "One wrong product or weight, corrected and mended",
        {
            "peers": "peers", "split": "split", "errors": "errors", "found": "found", "regenerated": "blocks mended",
            "restores": "restores", "clean_s": "clean iteration", "extra_s": "more", "extra_rounds": "in clean rounds",
            "extra_iterations": "in iterations",
        },
    ),
    "crash": (
        "A peer is killed",
        {
            "peers": "peers", "job": "job", "clean_s": "clean", "crash_s": "with it", "extra_s": "more",
            "restores": "restores",
        },
    ),
    "bytes": (
        "What a peer holds, and a link carries each way in an iteration (counted)",
        {
            "network": "network", "split": "split", "nodes": "nodes", "held_bytes": "held",
            **{f"vector_bytes_{batch}": f"B={batch}" for batch in _BATCHES}, "rounds": "rounds",
            "fewer_bytes_up_to": "fewer bytes up to B",
        },
    ),
}  # fmt: skip


def _show(rows: Sequence[Row]) -> None:
    for table, (title, columns) in _COLUMNS.items():
        part = [row for row in rows if row["table"] == table]
        if part:
            show(title, columns, [{key: _worded(key, row.get(key)) for key in columns} for row in part])


def _worded(key: str, value: Any) -> object:
    if isinstance(value, float) and key.endswith("_s"):
        return f"{1000 * value:.1f} ms"
    if value is not None and "bytes" in key and not key.endswith("up_to"):
        return f"{value / 1e6:.3g} MB" if value >= 1e6 else f"{value / 1e3:.3g} kB"
    return f"{value:.2f}" if isinstance(value, float) else value


def main() -> None:
    arguments = _arguments()
    rows = list(counted())
    if not arguments.counted:
        warn_if_busy()
        with tempfile.TemporaryDirectory(prefix="edgepeer-split-") as home:
            bench = Bench(arguments, Path(home))
            for peers in arguments.peers:
                rows += bench.clean(peers)
                rows += [bench.flips(peers), *bench.kills(peers)]
                _show([row for row in rows if row.get("peers") == peers])
    _show([row for row in rows if row["table"] == "bytes"])
    if arguments.json:
        write_json(arguments.json, rows)
    if arguments.plot:
        from split_plot import draw  # matplotlib is for those who want a picture

        draw(arguments.plot, rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=counts, default=[12, 38], help="of 12 and 38; default: both")
    parser.add_argument("--rounds", type=positive, default=60, help="iterations of a run; default: 60")
    parser.add_argument("--turns", type=positive, default=3, help="runs of each, in turns; default: 3")
    parser.add_argument("--batch", type=positive, default=32, help="samples an iteration; default: 32")
    parser.add_argument("--features", type=positive, default=784, help="of the network 784-512-10; default: 784")
    parser.add_argument("--counted", action="store_true", help="count bytes only, and start nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the bytes there (needs matplotlib)")
    arguments = parser.parse_args()
    if unknown := set(arguments.peers) - set(_CODES):
        parser.error(f"--peers: {', '.join(map(str, _CODES))}, not {min(unknown)}")
    return arguments


if __name__ == "__main__":
    main()
