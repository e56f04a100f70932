"""Training under soft errors, in NumPy: the experiment of CodeNet (Dutta, Bai, Low, Grover 2019, §III-D) with all its
schemes and more. A classifier of MNIST is divided over 20 to 60 nodes, and errors are put into what they store and
compute. What becomes of its accuracy, how often training goes back to a checkpoint, and how long it takes by Theorem 2
where a checkpoint costs 0.1 to 75 s.

All nodes are computed, one after the other, in this process, and nothing is sent; but for the last part, where each is
a process of its own."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from common import SINGLE_THREADED, positive, show, warn_if_busy, write_json

os.environ.update(SINGLE_THREADED)  # before NumPy: a node has one core

import numpy as np
from checkpoint_model import optimal_interval
from soft_errors_model import (
    CHECKPOINT_S,
    LOAD_S,
    STEP_S,
    TABLE_1,
    UNCODED_STEP_S,
    expected_events,
    measure,
    outcomes,
    p_for,
    training_time,
)
from soft_errors_processes import in_processes
from soft_errors_training import KINDS, Experiment, Trained, events

from edgepeer.errors import ConfigError
from edgepeer.training.datasets import Dataset, load_dataset
from edgepeer.training.split.named import parse_split

_Row = dict[str, object]

_SCHEMES = {
    "none:m=5,n=8": "uncoded",
    "abft:m=5,n=4": "checksums",
    "replicate:m=5,n=4,copies=2": "2 copies",
    "replicate:m=5,n=4,copies=3": "3 copies, vote",
    "codenet:m=5,n=4,t=1": "CodeNet t=1",
    "polydot:m=2,n=20,nodes=40": "PolyDot, pairs",
}
"""Uncoded training has 40 nodes in the paper, too. PolyDot's nodes store complex numbers: 40 blocks of two parts, as
much as 20. Of all ways to have 40 blocks on 40 nodes it is the one whose checks have the digits in float32 to correct
an error in both products: 2 x 20 leaves ten nodes to spare in each, 4 x 10 five and 5 x 8 four backward."""
_NAMES = tuple(dict.fromkeys(name.partition(":")[0] for name in _SCHEMES))
_PRICES = (0.1, 1.0, 10.0, 75.0)
_P = 3e-4
_COUNTED = {
    "abft:m=2,n=2": "checksums",
    "replicate:m=2,n=2,copies=2": "2 copies",
    "replicate:m=2,n=2,copies=3": "3 copies, vote",
    "codenet:m=2,n=2,t=1": "CodeNet t=1",
    "polydot:m=2,n=2,nodes=12": "PolyDot",
}
"""Small ones: thousands of restores are to be counted."""
_UNDIVIDED = "none:m=1,n=1"
_SPREAD = {"blocks": "none:m=2,n=2", "coded": "codenet:m=2,n=2,t=1", "erring": "codenet:m=2,n=2,t=1"}
"""What is compared with undivided training, seed by seed: small splits, for many runs."""
_LOST = 0.05
"""What part of the iterations is lost there."""
_INTERVAL = 10
_SECTIONS = ("accuracy", "spread", "table1", "events", "time", "processes")


def accuracy(experiment: Experiment, arguments: argparse.Namespace) -> list[_Row]:
    """Training in all schemes, by kind and probability of errors; first without any."""

    def row(trained: Trained, scheme: str, kind: str, p: float, interval: int) -> _Row:
        fates = [each.fate for each in trained.record]
        report = trained.report
        return {
            "table": "accuracy",
            "scheme": scheme,
            "nodes": trained.nodes,
            "kind": kind,
            "p": p,
            "interval": interval,
            "node_bytes": trained.bytes,
            "errors": len(fates),
            "found": fates.count("found"),
            "undone": fates.count("restored"),
            "unseen": fates.count("unseen"),
            "lines": report.lines,
            "recomputed": trained.recomputed,
            "regenerated": report.regenerated,
            "scrubbed": report.scrubbed,
            "restored": report.restored,
            "computed": report.computed,
            "accuracy": trained.accuracy,
            "off": _short(trained.off, 2),
        }

    rows = [row(experiment.clean(), "no errors", "", 0.0, 0)]
    for kind in arguments.kinds:
        for p in arguments.p:
            for name, scheme in _chosen(_SCHEMES, arguments):
                interval = _interval(name, kind, p, experiment, arguments.checkpoint_steps)
                rows.append(row(_train(experiment, name, kind, p, interval, arguments), scheme, kind, p, interval))
                _progress(rows[-1])
    return rows


def _chosen(schemes: Mapping[str, str], arguments: argparse.Namespace) -> list[tuple[str, str]]:
    """The schemes that are asked for, by the names of their splits."""
    return [(name, scheme) for name, scheme in schemes.items() if name.partition(":")[0] in arguments.schemes]


def _train(
    experiment: Experiment, name: str, kind: str, p: float, interval: int, arguments: argparse.Namespace
) -> Trained:
    return experiment.train(name, kind, p, interval, arguments.scrub_every)


def _interval(name: str, kind: str, p: float, experiment: Experiment, checkpoint_steps: float) -> int:
    """The best one where a checkpoint takes so many iterations."""
    network = experiment.network
    ends = outcomes(parse_split(name, network.dtype), kind, p, network.layers)
    return optimal_interval(checkpoint_steps, 1.0, ends.lost, experiment.iterations)


def spread(data: Dataset, arguments: argparse.Namespace) -> list[_Row]:
    """Whether errors that are corrected change what is learnt: accuracy of undivided training, of the same in blocks,
    which are rounded otherwise, of a code without errors, and of a code with them; each from the same seeds."""
    rows: list[_Row] = []
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        experiment = _experiment(data, arguments, seed)
        row: _Row = {
            "table": "spread",
            "seed": seed,
            "clean": experiment.train(_UNDIVIDED, "stored", 0.0, 0, 0).accuracy,
        }
        for what, name in _SPREAD.items():
            p = arguments.p[0] if what == "erring" else 0.0
            interval = _interval(name, "stored", p, experiment, arguments.checkpoint_steps) if p else 0
            trained = _train(experiment, name, "stored", p, interval, arguments)
            row |= {what: trained.accuracy, f"{what}_off": _short(trained.off, 2)}
        row |= {"p": p, "errors": len(trained.record), "restored": trained.report.restored}
        row |= {"unseen": sum(each.fate == "unseen" for each in trained.record)}
        rows.append(row)
        _progress(row)
    return rows


def table_1(experiment: Experiment, arguments: argparse.Namespace) -> list[_Row]:
    """The paper's table: its intervals, its errors. Events are counted here, a checkpoint's and an iteration's time are
    those that explain the paper's own figures."""
    network, rows = experiment.network, []
    chosen = dict(_chosen(_SCHEMES, arguments))
    for name, interval, percent, seconds in (row for row in TABLE_1 if row[0] in chosen):
        trained = _train(experiment, name, "stored", _P, interval, arguments)
        ends = outcomes(parse_split(name, network.dtype), "stored", _P, network.layers)
        row: _Row = {"table": "table1", "scheme": _SCHEMES[name], "nodes": trained.nodes, "interval": interval}
        report, step = trained.report, STEP_S if interval else UNCODED_STEP_S
        computed, restored = expected_events(experiment.iterations, interval or experiment.iterations, ends.lost)
        saved = report.checkpoints + 1 if interval else 0  # and at the end
        seconds_of = [
            saves * CHECKPOINT_S + done * step + back * LOAD_S
            for saves, done, back in (
                (saved, report.computed, report.restored),
                (experiment.iterations / interval if interval else 0, computed, restored),
            )
        ]
        row |= {
            "errors": len(trained.record),
            "computed": report.computed,
            "computed_model": _short(computed),
            "restored": report.restored,
            "restored_model": _short(restored, 3),
            "accuracy": trained.accuracy,
            "accuracy_paper": percent,
            "seconds": _short(seconds_of[0]),
            "seconds_model": _short(seconds_of[1]),
            "seconds_paper": seconds,
        }
        rows.append(row)
        _progress(row)
    return rows


def counted(arguments: argparse.Namespace) -> list[_Row]:
    """Theorem 2 beside counts of iterations and restores, with really injected errors.

    Its p2 is taken as it was counted. Beside it stands what the schemes' own models say, which know nothing of errors
    that stay for a second step: wrong blocks are put right one round after they were found (`program`).
    """
    rows: list[_Row] = []
    for name, scheme in _chosen(_COUNTED, arguments):
        split = parse_split(name, np.dtype(np.float64))
        p = p_for(name, _LOST, 1)
        found = events(name, p, _INTERVAL, arguments.periods, arguments.seed)
        model, lost = outcomes(split, "garbage", p, 1).lost, found["restored"] / found["computed"]
        computed, _ = expected_events(_INTERVAL * arguments.periods, _INTERVAL, lost)
        again = (1 - lost) ** -_INTERVAL - 1  # restores of a period: geometric, so of variance again (again + 1)
        row: _Row = {"table": "events", "scheme": scheme, "nodes": split.nodes, "p": _short(p, 3)}
        row |= {"lost": _short(lost, 3), "lost_model": _short(model, 3), "interval": _INTERVAL}
        row |= {"iterations": _INTERVAL * arguments.periods, **found}
        row |= {"computed_model": round(computed), "computed_ratio": _short(found["computed"] / computed)}
        row |= {"deviation": _short(((again + 1) / again / arguments.periods) ** 0.5, 2)}
        rows.append(row)
        _progress(row)
    return rows


def times(experiment: Experiment, arguments: argparse.Namespace) -> list[_Row]:
    """What a node takes, and training by the model with it: for each price of a checkpoint, at the best interval."""
    network, rows = experiment.network, list[_Row]()
    for name, scheme in _chosen(_SCHEMES, arguments):
        costs = measure(name, network, experiment.batch, arguments.rounds)
        split = parse_split(name, network.dtype)
        about: _Row = {"scheme": scheme, "nodes": split.nodes}
        rows.append({"table": "costs", **about, **{f"{k}_s": _short(v, 3) for k, v in asdict(costs).items()}})
        _progress(rows[-1])
        for p in arguments.p:
            ends = outcomes(split, "stored", p, network.layers)
            theirs = UNCODED_STEP_S if scheme == "uncoded" else STEP_S + ends.lost * LOAD_S
            for basis, step in (("measured", costs.iteration(ends)), ("paper", theirs)):
                for price in (costs.save, *_PRICES) if basis == "measured" else _PRICES:
                    row: _Row = {"table": "time", **about, "step": basis, "p": p, "lost": _short(ends.lost, 3)}
                    row |= {"checkpoint_s": _short(price, 3), "step_s": _short(step, 3)}
                    if scheme == "uncoded":  # nobody sees an error, so nobody goes back
                        interval, seconds = 0, experiment.iterations * step
                    else:
                        interval, seconds = training_time(experiment.iterations, price, step, ends.lost)
                    rows.append({**row, "interval": interval, "seconds": _short(seconds)})
    return rows


# --- telling ------------------------------------------------------------------------------------------------------


def _tell(rows: Sequence[_Row], arguments: argparse.Namespace) -> None:
    parts = {name: [row for row in rows if row["table"] == name] for name in (*_SECTIONS, "costs")}
    lines = [
        {
            **{key: row[key] for key in ("scheme", "nodes", "kind")},
            "p": f"{row['p']:g}",
            "save every": row["interval"] or None,
            **{key: row[key] for key in ("errors", "found", "undone", "unseen", "restored", "computed")},
            "accuracy": f"{row['accuracy']:.4f}",
            "off": f"{row['off']:.0e}",
        }
        for row in parts["accuracy"]
    ]
    _table(f"{arguments.iterations} iterations of {arguments.batch}, {arguments.dtype}", lines)
    lines = [
        {
            **{key: row[key] for key in ("seed", "p", "errors", "unseen", "restored")},
            **{key: f"{row[key]:.4f}" for key in ("clean", *_SPREAD)},
        }
        for row in parts["spread"]
    ]
    _table("Accuracy by seed: undivided, in blocks, with a code, and with a code and errors", lines)
    pairs = (("blocks", "clean"), ("coded", "clean"), ("erring", "clean"), ("erring", "coded"))
    _table(
        "The same: differences in points", [_difference(parts["spread"], *pair) for pair in pairs if parts["spread"]]
    )
    lines = [
        {
            "scheme": row["scheme"],
            "save every": row["interval"] or None,
            "computed (model)": f"{row['computed']} ({row['computed_model']:g})",
            "restored (model)": f"{row['restored']} ({row['restored_model']:g})",
            "accuracy (paper)": f"{row['accuracy']:.4f} ({row['accuracy_paper']} %)",
            "s": row["seconds"],
            "s (model)": row["seconds_model"],
            "s (paper)": row["seconds_paper"],
        }
        for row in parts["table1"]
    ]
    _table(f"Table I of the paper, p = {_P:g}: events as counted here, the paper's times of each", lines)
    lines = [
        {
            **{key: row[key] for key in ("scheme", "nodes", "p", "lost", "lost_model", "iterations", "restored")},
            "computed": row["computed"],
            "computed / model": row["computed_ratio"],
            "its deviation": row["deviation"],
        }
        for row in parts["events"]
    ]
    _table(f"Theorem 2 and what is counted: one small layer, a checkpoint after {_INTERVAL} iterations", lines)
    lines = [
        {key.replace("_s", ", s"): value for key, value in row.items() if key != "table"} for row in parts["costs"]
    ]
    _table("What one node takes", lines)
    lines = [
        {
            **{key: row[key] for key in ("p", "iterations", "errors", "found", "harmless", "undetected")},
            "lines": row["corrected"],
            "blocks": row["regenerated"],
            "restored": row["restores"],
            "accuracy": f"{row['accuracy']:.4f}",
            "ms": round(1000 * row["iteration_s"], 1),
        }
        for row in parts["processes"]
    ]
    for row in parts["processes"][:1]:
        _table(f"{row['peers']} real processes, {row['split']}: lines corrected, blocks mended, ms an iteration", lines)
    for basis, p in dict.fromkeys((row["step"], row["p"]) for row in parts["time"]):
        _tell_times([row for row in parts["time"] if (row["step"], row["p"]) == (basis, p)], str(basis), p)


def _difference(rows: Sequence[_Row], one: str, other: str) -> _Row:
    """By how many points accuracy differs: the mean over the seeds, and how far they scatter."""
    points = np.array([100 * (float(str(row[one])) - float(str(row[other]))) for row in rows])
    deviation = f"{points.std(ddof=1):.2f}" if len(points) > 1 else None
    least, most = f"{points.min():+.2f}", f"{points.max():+.2f}"
    return {
        "of": f"{one} - {other}",
        "mean": f"{points.mean():+.2f}",
        "deviation": deviation,
        "least": least,
        "most": most,
    }


def _tell_times(rows: Sequence[_Row], basis: str, p: object) -> None:
    """A line for each scheme: the time of training at each price, and the interval."""
    lines: list[_Row] = []
    for scheme in dict.fromkeys(row["scheme"] for row in rows):
        own = [row for row in rows if row["scheme"] == scheme]
        line: _Row = {"scheme": scheme, "nodes": own[0]["nodes"], "lost": own[0]["lost"], "step, s": own[0]["step_s"]}
        for row in own:
            price = f"{row['checkpoint_s']} s" if row["checkpoint_s"] in _PRICES else "as measured"
            line[price] = f"{row['seconds']} ({row['interval'] or '-'})"
        lines.append(line)
    whose = {"measured": "one node's computing as measured here", "paper": "iterations as long as in the paper"}[basis]
    _table(f"s of training by what a checkpoint takes (and the best interval), p = {p}: {whose}", lines)


def _table(title: str, lines: Sequence[_Row]) -> None:
    if lines:
        show(title, {key: key for key in lines[0]}, lines)


def _progress(row: _Row) -> None:
    """To see how far it is; the tables come at the end."""
    print(" ".join(f"{key}={value}" for key, value in row.items()), file=sys.stderr, flush=True)


def _short(number: float, digits: int = 4) -> float:
    return float(f"{number:.{digits}g}")


def _experiment(data: Dataset, arguments: argparse.Namespace, seed: int) -> Experiment:
    return Experiment(
        data,
        arguments.hidden,
        rate=arguments.rate,
        iterations=arguments.iterations,
        batch=arguments.batch,
        dtype=arguments.dtype,
        seed=seed,
    )


def main() -> int:
    arguments = _arguments()
    warn_if_busy()
    data = load_dataset(arguments.dataset, data_dir=arguments.data_dir)
    experiment = _experiment(data, arguments, arguments.seed)
    rows: list[_Row] = []
    if "accuracy" in arguments.only:
        rows += accuracy(experiment, arguments)
    if "spread" in arguments.only:
        rows += spread(data, arguments)
    if "table1" in arguments.only:
        rows += table_1(experiment, arguments)
    if "events" in arguments.only:
        rows += counted(arguments)
    if "time" in arguments.only:
        rows += times(experiment, arguments)
    if "processes" in arguments.only:
        rows += in_processes(
            arguments.real,
            arguments.hidden,
            dataset=arguments.dataset,
            data_dir=arguments.data_dir,
            batch=arguments.batch,
            rate=arguments.rate,
            p=arguments.p[0],
            rounds=arguments.real_iterations,
        )
    _tell(rows, arguments)
    if arguments.json:
        write_json(arguments.json, rows)
    if arguments.plot:
        from soft_errors_plot import draw

        draw(arguments.plot, rows)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="mnist", help="one with labels; default: mnist")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="where its files are")
    parser.add_argument("--hidden", type=_whole, default=(1000, 1000), help="hidden layers; default: 1000,1000")
    parser.add_argument("--full", action="store_true", help="the paper's size: --hidden 10000,10000 --rate 0.001")
    parser.add_argument("--iterations", type=positive, default=2000, help="default: 2000")
    parser.add_argument("--batch", type=positive, default=1, help="samples an iteration; default: 1")
    parser.add_argument("--rate", type=float, default=0.01, help="learning rate; default: 0.01")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32", help="default: float32")
    parser.add_argument("--p", type=_probabilities, default=(_P,), help="of an error, by node and step; default: 3e-4")
    parser.add_argument("--kinds", type=_kinds, default=("stored",), help=f"of {', '.join(KINDS)}; default: stored")
    parser.add_argument(
        "--checkpoint-steps", type=positive, default=10, help="what a checkpoint costs, in iterations; default: 10"
    )
    parser.add_argument("--scrub-every", type=positive, default=10, help="iterations; default: 10")
    parser.add_argument("--periods", type=positive, default=1500, help="between checkpoints, counted; default: 1500")
    parser.add_argument("--rounds", type=positive, default=30, help="iterations that are timed; default: 30")
    parser.add_argument("--real", type=_split, default="codenet:m=5,n=4,t=1", help="split of the real processes")
    parser.add_argument("--real-iterations", type=positive, default=200, help="of the real processes; default: 200")
    parser.add_argument("--seed", type=int, default=0, help="of weights, samples and errors; default: 0")
    parser.add_argument("--seeds", type=positive, default=5, help="of the spread, from --seed on; default: 5")
    parser.add_argument("--only", type=_sections, default=_SECTIONS, help=f"of {', '.join(_SECTIONS)}; default: all")
    parser.add_argument("--schemes", type=_schemes, default=_NAMES, help=f"of {', '.join(_NAMES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="a look in seconds: digits, small layers, few iterations")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the figures there; needs matplotlib")
    arguments = parser.parse_args()
    if arguments.quick:
        small = {"dataset": "digits", "hidden": (20,), "rate": 0.05, "iterations": 12, "batch": 8}
        vars(arguments).update(small, p=(2e-3,), periods=6, rounds=2, seeds=2)
        vars(arguments).update(real="codenet:m=2,n=1,t=1", real_iterations=120)
    if arguments.full:
        vars(arguments).update(hidden=(10_000, 10_000), rate=0.001)
    return arguments


def _whole(text: str) -> tuple[int, ...]:
    return tuple(positive(part) for part in text.split(","))


def _probabilities(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(0 <= p <= 1 for p in found):
        raise argparse.ArgumentTypeError(f"{text!r}: probabilities from 0 to 1, such as 1e-4,3e-4")
    return found


def _split(text: str) -> str:
    try:
        parse_split(text, np.dtype(np.float32))
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _kinds(text: str) -> tuple[str, ...]:
    return _of(text, KINDS)


def _schemes(text: str) -> tuple[str, ...]:
    return _of(text, _NAMES)


def _sections(text: str) -> tuple[str, ...]:
    return _of(text, _SECTIONS)


def _of(text: str, names: Sequence[str]) -> tuple[str, ...]:
    parts = tuple(text.split(","))
    if not set(parts) <= set(names):
        raise argparse.ArgumentTypeError(f"{text!r}: some of {', '.join(names)}")
    return parts


if __name__ == "__main__":
    sys.exit(main())
