"""What a code costs one peer in a round: finding its coefficients, encoding its gradients, decoding what comes up."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common import positive, show, warn_if_busy, write_json

from edgepeer.coding.assignment import cyclic_assignment
from edgepeer.coding.encode import encode, expand, padded
from edgepeer.coding.partial import PartialCode

_FLOATS = 407_050
_ROUND_S = 0.1
_COLUMNS = {"what": "what", "median_s": "median ms", "share": "of a round of 100 ms"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=positive, default=50, help="default: 50")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there")
    arguments = parser.parse_args()
    warn_if_busy()
    rows = [_coefficients(200, 8, blocks, arguments.repeats) for blocks in (1, 3, 8)]
    rows += [row for chunks, blocks in ((3, 1), (3, 2), (8, 3)) for row in _vectors(chunks, blocks, arguments.repeats)]
    shown = [
        {**row, "median_s": f"{1e3 * row['median_s']:.2f}", "share": f"{row['median_s'] / _ROUND_S:.2%}"}
        for row in rows
    ]
    show(f"what a code costs a peer, vectors of {_FLOATS:,} float32", _COLUMNS, shown)
    if arguments.json:
        write_json(arguments.json, rows)
    return 0


def _coefficients(workers: int, load: int, blocks: int, repeats: int) -> dict[str, Any]:
    """By Algorithm 1 of the partial-stragglers paper, with exponential chunk times and one worker in forty failed."""
    code = PartialCode("cyclic", cyclic_assignment(workers, load), blocks)
    rng = np.random.default_rng(0)
    times = rng.exponential(size=(workers, load)).cumsum(axis=1)
    times[rng.choice(workers, workers // 40, replace=False)] = np.inf
    ends = np.sort(times[np.isfinite(times)])
    counts = (tuple((times <= end).sum(axis=1).tolist()) for end in ends)
    done = next((each for each in counts if code.recovery(each).exact), None)
    if done is None:  # Too many copies failed: what is there is summed up as well as can be.
        done = tuple((times <= ends[-1]).sum(axis=1).tolist())
    busiest = max(range(workers), key=lambda worker: done[worker])
    what = f"coefficients, {workers} workers, {load} chunks each, l = {blocks}"
    return _row(what, lambda: code.encoding(busiest, done), repeats)


def _vectors(chunks: int, blocks: int, repeats: int) -> list[dict[str, Any]]:
    size = padded(_FLOATS, blocks)
    gradients = [np.full(size, 0.5, np.float32) for _ in range(chunks)]
    coefficients = np.ones((chunks, blocks))
    narrow, out = encode(gradients, coefficients), np.zeros(size, np.float32)
    return [
        _row(f"encoding {chunks} chunks, l = {blocks}", lambda: encode(gradients, coefficients), repeats),
        _row(f"decoding one vector, l = {blocks}", lambda: expand(narrow, np.ones(blocks), out), repeats),
    ]


def _row(what: str, call: Callable[[], object], repeats: int) -> dict[str, Any]:
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return {"what": what, "median_s": float(np.median(taken))}


if __name__ == "__main__":
    raise SystemExit(main())
