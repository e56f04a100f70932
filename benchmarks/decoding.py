"""What it costs to decode coded rows: checking clean ones, finding and correcting as many errors as a code allows."""

from __future__ import annotations

import os

from common import SINGLE_THREADED

os.environ |= SINGLE_THREADED  # before NumPy

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import positive, show, warn_if_busy, write_json
from numpy.typing import NDArray

from edgepeer.coding.matrix.decode import Guarantee, MatrixCode, Undecodable, decode
from edgepeer.coding.matrix.mds import mds_code

_COLUMNS = {
    "code": "code",
    "guarantee": "guarantee",
    "dtype": "dtype",
    "errors": "errors",
    "right": "right",
    "wrong": "wrong",
    "clean_s": "clean: CPU ms",
    "median_s": "errors: median",
    "p95_s": "p95",
}
_NUMBERS = 400


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=positive, default=100, help="default: 100")
    parser.add_argument("--numbers", type=positive, default=_NUMBERS, help=f"of a row; default: {_NUMBERS}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there")
    arguments = parser.parse_args()
    warn_if_busy()
    cases: list[tuple[str, MatrixCode, Guarantee, int]] = [
        ("(7, 5)", mds_code(7, 5), "adversarial", 1),
        ("(9, 5)", mds_code(9, 5), "adversarial", 2),
        ("(9, 5)", mds_code(9, 5), "generic", 3),
        ("(12, 5)", mds_code(12, 5), "adversarial", 3),
        ("(12, 5)", mds_code(12, 5), "generic", 6),
        ("real nodes, Q = 5, P = 40", _real(40, 5), "adversarial", 17),
        ("real nodes, Q = 5, P = 40", _real(40, 5), "generic", 30),
        ("pairs, Q = 45, P = 60", _pairs(60, 45), "adversarial", 18),
        ("pairs, Q = 45, P = 60", _pairs(60, 45), "generic", 30),
    ]
    rows = [
        _row(name, code, guarantee, errors, dtype, arguments.numbers, arguments.repeats)
        for name, code, guarantee, errors in cases
        for dtype in ("float32", "float64")
    ]
    shown = [
        row
        | {key: f"{row[key]:.0%}" for key in ("right", "wrong")}
        | {key: f"{1e3 * row[key]:.2f}" for key in ("clean_s", "median_s", "p95_s")}
        for row in rows
    ]
    show(f"decoding, {arguments.numbers} numbers a row, new errors each time", _COLUMNS, shown)
    if arguments.json:
        write_json(arguments.json, rows)
    return 0


def _real(nodes: int, symbols: int) -> MatrixCode:
    """Polynomials at Chebyshev points, rows scaled by factors near 1."""
    points = np.cos((2 * np.arange(nodes) + 1) * np.pi / (2 * nodes))
    return MatrixCode(np.vander(points, symbols, increasing=True) * _factors(nodes)[:, None])


def _pairs(nodes: int, symbols: int) -> MatrixCode:
    """Real polynomials at points of the unit circle: two equations a node."""
    points = np.exp(1j * np.pi * (np.arange(nodes) + 0.5) / nodes)
    powers = points[:, None] ** np.arange(symbols) * _factors(nodes)[:, None]
    return MatrixCode(np.stack([powers.real, powers.imag], 1).reshape(2 * nodes, symbols), 2)


def _factors(nodes: int) -> NDArray[np.float64]:
    return np.random.default_rng(5).uniform(0.7, 1.4, nodes)


def _row(
    name: str, code: MatrixCode, guarantee: Guarantee, errors: int, dtype: str, numbers: int, repeats: int
) -> dict[str, Any]:
    """Dense errors of the data's size, at other nodes each time."""
    rng = np.random.default_rng(0)
    clean, taken, right, wrong = [], [], 0, 0
    for _ in range(repeats):
        data = rng.standard_normal((code.symbols, numbers))
        rows = (code.generator @ data).astype(dtype)
        clean.append(_timed(code, rows, guarantee)[0])
        nodes = np.sort(rng.choice(code.nodes, errors, replace=False))
        by_node = rows.reshape(code.nodes, code.group, numbers)
        by_node[nodes] += rng.standard_normal((errors, code.group, numbers)).astype(dtype)
        seconds, found = _timed(code, rows, guarantee)
        taken.append(seconds)
        right += found == tuple(nodes)
        wrong += found is not None and found != tuple(nodes)
    return {
        "code": name,
        "guarantee": guarantee,
        "dtype": dtype,
        "errors": errors,
        "right": right / repeats,
        "wrong": wrong / repeats,
        "clean_s": float(np.median(clean)),
        "median_s": float(np.median(taken)),
        "p95_s": float(np.percentile(taken, 95)),
    }


def _timed(code: MatrixCode, rows: NDArray[Any], guarantee: Guarantee) -> tuple[float, tuple[int, ...] | None]:
    began = time.process_time()
    try:
        found = decode(code, rows, guarantee=guarantee).wrong
    except Undecodable:
        found = None
    return time.process_time() - began, found


if __name__ == "__main__":
    raise SystemExit(main())
