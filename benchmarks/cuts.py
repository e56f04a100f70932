"""What a cut link costs in `edgepeer emulate` itself: a link is cut from one round to another, again and again, in
turns with variants: one way, at the root, more and fewer peers, short and long vectors, slow links, Keras. How much
longer the slowest round of a run was than its clean rounds' median; and beside it the slowest of those, which says how
much of that the machine does. Every run's parameters are the same on all peers, or it fails."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from common import emulate, positive, show, warn_if_busy, write_json

_FIRST, _LAST, _ROUNDS = 40, 49, 80
_WARM_UP = 3
_SAMPLES, _CLASSES = 400, 10
_KINDS: dict[str, dict[str, object]] = {
    "7 peers": {},
    "one way, from below": {"cut": "pos5>pos2"},
    "one way, from above": {"cut": "pos2>pos5"},
    "at the root": {"cut": "pos2-pos0"},
    "3 peers": {"peers": 3, "cut": "pos2-pos0"},
    "15 peers, inner": {"peers": 15, "cut": "pos5-pos2"},
    "31 peers, inner": {"peers": 31, "cut": "pos5-pos2"},
    "650 float32": {"model": "linear"},
    "407,050 float32": {"inputs": 784},
    "4,101,642 float32": {"inputs": 8000},
    "100mbit,5ms": {"link": "100mbit,5ms"},
    "100mbit,5ms, at the root": {"link": "100mbit,5ms", "cut": "pos2-pos0"},
    "Keras, 4 peers": {"trainer": "keras", "peers": 4, "cut": "pos2-pos0"},
}
"""What differs from the first of them: settings of `edgepeer emulate`; `inputs`: of samples made up, instead of digits'
64."""
_COLUMNS = {
    "kind": "kind",
    "runs": "runs",
    "clean_ms": "clean ms",
    "clean_worst_ms": "slowest clean",
    "more_ms": "a cut adds",
    "more_worst_ms": "worst",
    "within": "at most 100 more",
}


def main() -> int:
    arguments = _arguments()
    warn_if_busy()
    found: dict[str, list[tuple[float, float, float]]] = {kind: [] for kind in arguments.only}
    with tempfile.TemporaryDirectory(prefix="edgepeer-bench-") as home:
        for run in range(arguments.runs):
            for kind, runs in found.items():
                runs.append(_run(_KINDS[kind], Path(home) / f"{run}-{list(found).index(kind)}"))
                print(f"{kind}: {', '.join(f'{1e3 * more:.0f}' for _, _, more in runs)} ms more", file=sys.stderr)
    rows = [_row(kind, runs) for kind, runs in found.items()]
    title = f"edgepeer emulate, {_ROUNDS} rounds: the slowest round while a link is cut, beside clean ones"
    show(title, _COLUMNS, rows)
    if arguments.json:
        write_json(arguments.json, rows)
    return 0


def _run(kind: dict[str, object], out: Path) -> tuple[float, float, float]:
    """A run's clean median, its slowest clean round, and how much longer the slowest was with the link cut."""
    settings = {"peers": 7, "trainer": "numpy", "cut": "pos5-pos2"} | kind
    job = {name: value for name, value in settings.items() if name not in ("cut", "inputs")} | {"rounds": _ROUNDS}
    if inputs := settings.get("inputs"):
        job["dataset"] = f"npz:{_samples(int(str(inputs)), out.with_suffix('.npz'))}"
    report = emulate(job, f"--cut={settings['cut']}@{_FIRST}..{_LAST}", out=out, timeout_s=300)
    if len(set(report["parameter_digests"].values())) != 1:
        raise SystemExit(f"{kind}: peers hold different parameters")
    if not all(report["faults"][0]["confirmed"]["dropped"].values()) and ">" not in str(settings["cut"]):
        raise SystemExit(f"{kind}: the cut has dropped nothing")
    seconds = {each["round"]: each["seconds"] for each in report["rounds_detail"]}
    clean = [s for number, s in seconds.items() if number > _WARM_UP and not _FIRST <= number <= _LAST + 1]
    median = statistics.median(clean)
    return median, max(clean), max(seconds[number] for number in range(_FIRST, _LAST + 1)) - median


def _samples(inputs: int, path: Path) -> Path:
    """Of so many inputs, which lie about another point for each class."""
    rng = np.random.default_rng(inputs)
    points, arrays = rng.random((_CLASSES, inputs), np.float32), {}
    for part, count in (("", _SAMPLES), ("_test", _CLASSES)):
        y = np.arange(count) % _CLASSES
        noise = rng.standard_normal((count, inputs), np.float32)
        arrays |= {f"x{part}": points[y] + np.float32(0.5) * noise, f"y{part}": y}
    np.savez(path, **arrays)
    return path


def _row(kind: str, runs: list[tuple[float, float, float]]) -> dict[str, Any]:
    clean, slowest, more = zip(*runs, strict=True)
    return {
        "kind": kind,
        "runs": len(runs),
        "clean_ms": round(1e3 * statistics.median(clean), 1),
        "clean_worst_ms": round(1e3 * statistics.median(slowest), 1),
        "more_ms": round(1e3 * statistics.median(more), 1),
        "more_worst_ms": round(1e3 * max(more), 1),
        "within": f"{sum(each <= 0.1 for each in more)} of {len(more)}",
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=positive, default=20, help="of each kind; default: 20")
    parser.add_argument(
        "--only", type=_kinds, default=list(_KINDS), help=f"of: {'; '.join(_KINDS)}; default: all of them"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the table there")
    return parser.parse_args()


def _kinds(text: str) -> list[str]:
    """Parse `7 peers;at the root` for argparse."""
    kinds = [each.strip() for each in text.split(";")]
    if unknown := [each for each in kinds if each not in _KINDS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r}: of {'; '.join(_KINDS)}, divided by ;")
    return kinds


if __name__ == "__main__":
    sys.exit(main())
