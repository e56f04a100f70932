"""The benchmark of training under soft errors, small: what is protected ends where training without errors ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "soft_errors.py"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    out = tmp_path_factory.mktemp("soft") / "rows.json"
    options = ["--dataset=digits", "--hidden=30,20", "--iterations=40", "--batch=8", "--rate=0.1", "--rounds=3"]
    command = [sys.executable, str(BENCHMARK), *options, "--errors=p=1e-3,kind=garbage", f"--json={out}"]
    subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    found: list[dict[str, Any]] = json.loads(out.read_text())["rows"]
    return found


def test_protected_training_is_as_good_as_training_without_errors(rows: list[dict[str, Any]]) -> None:
    clean, uncoded, *others = [row for row in rows if row["table"] == "accuracy"]
    assert clean["errors"] == 0
    assert uncoded["unseen"] == uncoded["errors"] > 0
    assert len(others) == 5
    for row in others:
        assert row["errors"] > 0
        assert row["accuracy"] == pytest.approx(clean["accuracy"], abs=0.002)
        assert row["unseen"] == 0


def test_what_costs_no_restore_has_long_intervals(rows: list[dict[str, Any]]) -> None:
    at = {row["scheme"]: row for row in rows if row["table"] == "time" and row["checkpoint_s"] == 1.0}
    assert at["codenet:m=5,n=4,t=1"]["lost"] < at["replicate:m=5,n=4,copies=2"]["lost"] / 50
    assert at["codenet:m=5,n=4,t=1"]["interval"] > at["replicate:m=5,n=4,copies=2"]["interval"]
    assert len(at) == 6
