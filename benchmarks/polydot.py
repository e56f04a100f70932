"""Generalized PolyDot codes in NumPy: how exact decoded products are without some of the nodes, how many wrong nodes
are found and how fast, and what codes save over replication when soft errors send training back to checkpoints."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from common import SINGLE_THREADED, positive, show, warn_if_busy, write_json

os.environ.update(SINGLE_THREADED)  # before NumPy: many small systems, and few cores

import numpy as np
from checkpoint_model import (
    Outcomes,
    codenet_outcomes,
    expected_time,
    optimal_interval,
    polydot_outcomes,
    replication_outcomes,
)

from edgepeer.coding.matrix.decode import Decoded, Undecodable, decode
from edgepeer.coding.matrix.plan import Plan, plan
from edgepeer.errors import ConfigError

_Row = dict[str, object]

_WISHES = (  # m, n, nodes, lost
    (2, 2, 12, 0),
    (2, 2, 12, 2),
    (2, 2, 12, 6),
    (2, 2, 40, 2),
    (3, 3, 40, 4),
    (4, 4, 40, 4),
    (5, 5, 40, 0),
    (5, 5, 40, 4),
    (5, 5, 40, 10),
    (5, 8, 38, 2),
)
_CODES = (
    (2, 2, 12, np.float64),
    (2, 2, 40, np.float32),
    (2, 2, 40, np.float64),
    (5, 8, 38, np.float32),
    (5, 8, 38, np.float64),
)
_NUMBERS = 400
"""What each node sends, where decoding is timed."""

_P = 3e-4
"""Chance of an error, by node and step: CodeNet, §III-D; 3 layers, 20 blocks."""
_STEP = 0.74
"""Seconds an iteration takes, in all schemes alike."""
_SCHEMES = {
    "2 copies": (40, replication_outcomes(_P, 20, 2, 3)),
    "3 copies, vote": (60, replication_outcomes(_P, 20, 3, 3)),
    "CodeNet t=1": (38, codenet_outcomes(_P, 5, 4, 1, 3)),
    "PolyDot, pairs": (38, polydot_outcomes(_P, 38, 7, 1, 3)),
}
_CHECKPOINTS = (0.1, 1.0, 10.0, 75.0)
_ITERATIONS = 2000


def accuracy(samples: int, seed: int) -> list[_Row]:
    """Relative errors of products without some of the nodes: random sets, and the worst that the plan found."""
    rows: list[_Row] = []
    for m, n, nodes, lost in _WISHES:
        for dtype in (np.float32, np.float64):
            for kind in ("real", "pairs"):
                row: _Row = {"table": "accuracy", "m": m, "n": n, "nodes": nodes, "lost": lost}
                row |= {"dtype": dtype.__name__, "points": kind}
                try:
                    found = plan(m, n, nodes, erasures=lost, dtype=dtype, kind=kind, digits=-99.0)
                    rows.append(row | _errors(found, samples, seed))
                except (ConfigError, Undecodable) as error:  # no such code, or its answers could not be checked
                    rows.append(row | {"refused": str(error)})
    return rows


def _errors(found: Plan, samples: int, seed: int) -> _Row:
    code, rng = found.code, np.random.default_rng(seed)
    height, width, batch = 20 * code.m, 20 * code.n, 4
    w, x, delta = (
        rng.standard_normal(shape).astype(code.dtype) for shape in ((height, width), (width, batch), (height, batch))
    )
    weights = code.encode_weights(w)
    exact = [each.astype(np.float64) for each in (w, x, delta)]
    lost = len(found.forward.loss.nodes)
    drawn = [tuple(rng.choice(code.nodes, lost, replace=False).tolist()) for _ in range(samples)]
    out: _Row = {}
    for name, direction, matrix, products, right in (
        ("forward", found.forward, code.forward, weights @ code.encode_inputs(x), exact[0] @ exact[1]),
        ("backward", found.backward, code.backward, code.encode_errors(delta) @ weights, exact[0].T @ exact[2]),
    ):
        received, errors = code.received(products), []
        chosen = code.forward_code if matrix is code.forward else code.backward_code
        for some in (direction.loss.nodes, *drawn):
            data = decode(chosen, received, some, noise=code.noise(20)).data
            result = (code.outputs if matrix is code.forward else code.gradients)(data, right.shape)
            errors.append(float(np.linalg.norm(result - right) / np.linalg.norm(right)))
        out |= {
            f"{name}_threshold": direction.threshold,
            f"{name}_median": float(np.median(errors[1:])),
            f"{name}_worst": max(errors),
            f"{name}_planned": 10**-direction.digits,
        }
    return out


def locating(cases: int, seed: int) -> list[_Row]:
    """How many cases of k wrong nodes are corrected, declared or got wrong, forward, and how long decoding takes."""
    rows: list[_Row] = []
    for m, n, nodes, dtype in _CODES:
        found = plan(m, n, nodes, dtype=dtype)
        most = found.forward.generic_errors
        for wrong in sorted({0, 1, found.forward.errors, (found.forward.errors + most) // 2, most - 1, most, most + 1}):
            rows.append(_located(found, wrong, cases, seed))
    return rows


def _located(found: Plan, wrong: int, cases: int, seed: int) -> _Row:
    code, rng = found.code, np.random.default_rng((seed, wrong))
    height = -(-_NUMBERS // (code.group * 2)) * code.m
    w, x = rng.standard_normal((height, 8 * code.n)), rng.standard_normal((8 * code.n, 2))
    clean = code.encode_weights(w) @ code.encode_inputs(x)
    right = (w.astype(code.dtype).astype(np.float64)) @ x.astype(code.dtype).astype(np.float64)
    outcomes, seconds = {"right": 0, "declared": 0, "wrong": 0}, []
    for _ in range(cases):
        nodes = np.sort(rng.choice(code.nodes, wrong, replace=False))
        products = clean.copy()
        products[nodes] += rng.standard_normal(products[nodes].shape).astype(code.dtype)
        received, start = code.received(products), time.perf_counter()
        try:
            data: Decoded | None = decode(code.forward_code, received, guarantee="generic")
        except Undecodable:
            data = None
        seconds.append(time.perf_counter() - start)
        if data is None:
            outcomes["declared"] += 1
        else:
            error = np.linalg.norm(code.outputs(data.data, right.shape) - right) / np.linalg.norm(right)
            outcomes["right" if error < 0.01 else "wrong"] += 1
    return {
        "table": "locating",
        "code": f"m={code.m} n={code.n}",
        "nodes": code.nodes,
        "needed": found.forward.nodes,
        "dtype": code.dtype.name,
        "wrong_nodes": wrong,
        **outcomes,
        "median_ms": 1e3 * float(np.median(seconds)),
        "max_ms": 1e3 * max(seconds),
    }


def checkpoints() -> list[_Row]:
    """Each scheme at its best interval (Theorem 2 of CodeNet, corrected), by the price of a checkpoint."""
    rows: list[_Row] = []
    for price in _CHECKPOINTS:
        best = _best(_SCHEMES["CodeNet t=1"][1], price)[1]
        for name, (nodes, outcomes) in _SCHEMES.items():
            interval, seconds = _best(outcomes, price)
            rows.append(
                {
                    "table": "checkpoints",
                    "checkpoint_s": price,
                    "scheme": name,
                    "nodes": nodes,
                    "lost_probability": outcomes.lost,
                    "interval": interval,
                    "seconds": seconds,
                    "to_codenet": seconds / best,
                }
            )
    return rows


def _best(outcomes: Outcomes, price: float) -> tuple[int, float]:
    interval = optimal_interval(price, _STEP, outcomes.lost, _ITERATIONS)
    return interval, expected_time(_ITERATIONS, interval, price, _STEP, outcomes.lost)


# --- telling ------------------------------------------------------------------------------------------------------


def _print(rows: Sequence[_Row]) -> None:
    parts = {name: [row for row in rows if row["table"] == name] for name in ("accuracy", "locating", "checkpoints")}
    given = ("m", "n", "nodes", "lost", "dtype", "points")
    lines = []
    for row in parts["accuracy"]:
        line = {key: row[key] for key in given}
        for name in ("forward", "backward"):
            line |= {f"{name[:4]}.\nQ": row.get(f"{name}_threshold")}
            for key in ("median", "worst", "planned"):
                line[f"{name[:4]}.\n{key}"] = None if "refused" in row else f"{row[f'{name}_{key}']:.0e}"
        lines.append(line)
    show(
        "Relative errors of decoded products; planned: what the plan says of the worst losses", _headings(lines), lines
    )
    for row in parts["accuracy"]:
        if "refused" in row and row["dtype"] == "float32":
            print(f"refused: {row['refused']}")
    lines = [
        {**row, "median_ms": f"{row['median_ms']:.2f}", "max_ms": f"{row['max_ms']:.2f}"} for row in parts["locating"]
    ]
    show(f"Wrong nodes, unrelated errors, {_NUMBERS} numbers a node", _headings(lines), lines)
    lines = [
        {**row, **{key: f"{row[key]:.3g}" for key in ("lost_probability", "seconds", "to_codenet")}}
        for row in parts["checkpoints"]
    ]
    title = f"{_ITERATIONS} iterations of {_STEP} s, an error at each node and step with p = {_P:g}, best intervals"
    show(title, _headings(lines), lines)


def _headings(lines: Sequence[_Row]) -> dict[str, str]:
    return {key: key.replace("_", " ") for key in lines[0] if key != "table"}


def main() -> int:
    arguments = _arguments()
    warn_if_busy()
    rows = accuracy(arguments.samples, arguments.seed) + locating(arguments.cases, arguments.seed) + checkpoints()
    _print(rows)
    if arguments.json:
        write_json(arguments.json, rows)
    if arguments.plot:
        from polydot_plot import draw

        draw(arguments.plot, rows)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=positive, default=100, help="sets of lost nodes a code; default: 100")
    parser.add_argument("--cases", type=positive, default=30, help="of each number of wrong nodes; default: 30")
    parser.add_argument("--seed", type=int, default=0, help="of weights, inputs, losses and errors; default: 0")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the figures there; needs matplotlib")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
