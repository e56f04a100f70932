"""What every benchmark here shares: the description of the machine, the table, and the JSON file
`{"machine": {...}, "rows": [{...}]}` with one row per line of the table and units in the keys."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = [
    "BROKER",
    "SINGLE_THREADED",
    "counts",
    "cpu_seconds",
    "emulate",
    "machine",
    "machine_cpu",
    "members",
    "positive",
    "show",
    "warn_if_busy",
    "write_json",
]

#: The processes of a benchmark share few cores: no library may start a thread pool of its own in each.
SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

BROKER = "broker"
_WIDTH = 120
"""Of a table in a file, in characters."""
_PACKAGES = ("edgepeer", "numpy", "uvloop", "msgpack", "aiomqtt", "amqtt", "xxhash", "torch", "mpi4py", "openmpi")


def counts(text: str) -> list[int]:
    """Parse `3,7,15` for argparse; each at least 2."""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) < 2:
        raise argparse.ArgumentTypeError(f"{text!r}: numbers of peers, each at least 2, such as 3,7,15")
    return values


@contextmanager
def members(names: Iterable[str]) -> Iterator[Path]:
    """Directories that make peers members of a fleet, each by its name, and BROKER its broker."""
    from edgepeer.trust.founding import Founder
    from edgepeer.trust.names import Role

    with tempfile.TemporaryDirectory(prefix="edgepeer-bench-") as root:
        founder = Founder(Path(root), "secure-benchmark")
        for name in names:
            founder.member(name)
        founder.member(BROKER, Role.BROKER)
        yield Path(root)


def positive(text: str) -> int:
    """Parse a whole number of at least 1 for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number of at least 1")
    return int(text)


def cpu_seconds(pid: int) -> float:
    """Processor time that a process, and those that it has started and that still run, have used since their start."""
    process = Path(f"/proc/{pid}")
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    children = [child for task in process.glob("task/*/children") for child in task.read_text().split()]
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") + sum(map(cpu_seconds, map(int, children)))


def machine_cpu() -> tuple[float, float]:
    """Processor time of this machine's cores since its start, in seconds: in use, by whomever, and all there was."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().split(maxsplit=9)[1:9]]
    total, waiting, tick_s = sum(ticks), ticks[3] + ticks[4], 1 / os.sysconf("SC_CLK_TCK")
    return (total - waiting) * tick_s, total * tick_s


def emulate(job: Mapping[str, object], *flags: str, out: Path, timeout_s: float) -> dict[str, Any]:
    """The report of a fleet of processes that has trained: `edgepeer emulate` with these settings. What goes wrong ends
    the benchmark, with what was said."""
    given = [f"--{name}={value}" for name, value in {**job, "report": out}.items()]
    command = [sys.executable, "-m", "edgepeer", "emulate", *given, *flags]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)}\n{ended.stdout[-2000:]}\n{ended.stderr[-2000:]}")
    report: dict[str, Any] = json.loads((out / "report.json").read_text())
    return report


def machine() -> dict[str, object]:
    """Everything of this machine that moves the figures, and nothing that names it."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "congestion_control": _read("/proc/sys/net/ipv4/tcp_congestion_control"),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
    }


def warn_if_busy() -> None:
    """Say so when others are using this machine. Call it before starting anything."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > cores / 2:
        print(f"warning: load {load:.1f} on {cores} cores: others are using this machine", file=sys.stderr)


def show(title: str, columns: Mapping[str, str], rows: Sequence[Mapping[str, object]]) -> None:
    """Print rows as a table. `columns` maps a row's key to its heading; None is left blank."""
    from rich.console import Console  # here, for the peers whose memory is measured import this module too
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for key, heading in columns.items():
        names = any(str(row[key])[:1].isalpha() for row in rows if row[key] is not None)
        table.add_column(heading, justify="left" if names else "right")
    for row in rows:
        table.add_row(*("" if row[key] is None else str(row[key]) for key in columns))
    Console(width=None if sys.stdout.isatty() else _WIDTH).print(table)


def write_json(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    path.write_text(json.dumps({"machine": machine(), "rows": list(rows)}, indent=2) + "\n")


def _cpu_model() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return platform.machine()


def _read(path: str) -> str:
    file = Path(path)
    return file.read_text().strip() if file.exists() else ""


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
