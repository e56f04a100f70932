"""The picture of how long rounds take over slow links, from what `allreduce.py --json` writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "allreduce_plot.py"


def row(system: str, peers: int, median_s: float, link: str | None = "100mbit,5ms") -> dict[str, Any]:
    return {"system": system, "peers": peers, "link": link, "median_s": median_s}


def plot(home: Path, *tables: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    files = []
    for number, rows in enumerate(tables):
        files.append(home / f"{number}.json")
        files[-1].write_text(json.dumps({"machine": {}, "rows": rows}))
    command = [sys.executable, str(BENCHMARK), *map(str, files), "--plot", str(home / "out.png")]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_several_runs_are_one_picture(tmp_path: Path) -> None:
    seven = [row("edgepeer", 7, 0.28), row("gloo", 7, 0.25), row("edgepeer-int8", 7, 0.11)]
    loopback = [row("gloo", 7, 0.02, None), row("edgepeer", 7, 0.01, None)]
    done = plot(tmp_path, seven, [row("gloo", 15, 0.38), row("edgepeer", 15, 0.33)], loopback)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_each_fleet_is_compared_with_gloo_of_the_same_link() -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    from allreduce_plot import ratios

    rows = [row("edgepeer", 7, 0.3), row("gloo", 7, 0.2), row("gloo", 7, 0.02, None), row("edgepeer", 7, 0.01, None)]
    assert ratios(rows) == {
        ("100mbit,5ms", 7): {"edgepeer": pytest.approx(1.5), "gloo": 1},
        ("loopback", 7): {"edgepeer": pytest.approx(0.5), "gloo": 1},
    }


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([row("edgepeer", 7, 0.3)], "7 peers on 100mbit,5ms were measured without gloo"),
        ([row("gloo", 7, 0.3), row("gloo", 7, 0.2)], "gloo with 7 peers on 100mbit,5ms is there twice"),
    ],
)
def test_what_can_not_be_compared_is_refused(rows: list[dict[str, Any]], said: str) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    from allreduce_plot import ratios

    with pytest.raises(ValueError, match=f"^{said}$"):
        ratios(rows)
