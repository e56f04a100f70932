"""The benchmark of PolyDot codes, small: its figures are what the plans say, and nothing is got wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "polydot.py"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("polydot")
    out, picture = folder / "rows.json", folder / "figures.png"
    command = [sys.executable, str(BENCHMARK), "--samples=4", "--cases=3", f"--json={out}", f"--plot={picture}"]
    subprocess.run(command, capture_output=True, text=True, timeout=280, check=True)
    assert picture.stat().st_size > 10_000
    found: list[dict[str, Any]] = json.loads(out.read_text())["rows"]
    return found


def test_the_worst_losses_cost_what_the_plan_says(rows: list[dict[str, Any]]) -> None:
    measured = [row for row in rows if row["table"] == "accuracy" and "refused" not in row]
    assert len(measured) > 20
    for row in measured:
        rounding = {"float32": 2.4e-7, "float64": 4.5e-16}[row["dtype"]]  # of the product itself: two units
        for name in ("forward", "backward"):
            assert row[f"{name}_worst"] < 4 * max(row[f"{name}_planned"], rounding)


def test_wrong_nodes_are_corrected_or_declared(rows: list[dict[str, Any]]) -> None:
    located = [row for row in rows if row["table"] == "locating"]
    assert sum(row["wrong"] for row in located) == 0
    for row in located:
        spare = row["nodes"] - row["needed"]
        if row["nodes"] == 12:
            assert row["right" if row["wrong_nodes"] < spare else "declared"] == 3


def test_codes_save_the_more_the_more_a_checkpoint_costs(rows: list[dict[str, Any]]) -> None:
    copies = [row["to_codenet"] for row in rows if row.get("scheme") == "2 copies"]
    assert copies == sorted(copies)
    assert copies[0] == pytest.approx(1.23, abs=0.01)
    assert copies[-1] == pytest.approx(6.55, abs=0.01)
