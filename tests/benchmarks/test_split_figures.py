"""The table that says when dividing a network pays: counted from what nodes hold and vectors have."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "split.py"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    home = tmp_path_factory.mktemp("split")
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    options = ["--counted", f"--json={home / 'rows.json'}", f"--plot={home / 'split.png'}"]
    subprocess.run([sys.executable, str(BENCHMARK), *options], capture_output=True, timeout=280, check=True)
    assert (home / "split.png").read_bytes().startswith(b"\x89PNG")
    found: list[dict[str, Any]] = json.loads((home / "rows.json").read_text())["rows"]
    return found


def test_wider_layers_and_smaller_batches_speak_for_dividing(rows: list[dict[str, Any]]) -> None:
    code = [row for row in rows if row["split"] == "codenet:m=5,n=4,t=1"]
    limits = [row["fewer_bytes_up_to"] for row in code]
    assert limits == sorted(limits)
    whole = {row["network"]: row["held_bytes"] for row in rows if row["split"] == "data-parallel"}
    for row in code:
        assert row["nodes"] == 38
        assert row["held_bytes"] == pytest.approx(whole[row["network"]] / 20, rel=0.06)
        assert row["vector_bytes_1"] < row["vector_bytes_32"] < row["vector_bytes_256"]


def test_at_the_limit_both_send_as_much(rows: list[dict[str, Any]]) -> None:
    whole = {row["network"]: row["held_bytes"] for row in rows if row["split"] == "data-parallel"}
    for row in rows:
        if row["split"] != "data-parallel":
            slope = (row["vector_bytes_256"] - row["vector_bytes_1"]) / 255
            at_limit = row["vector_bytes_1"] + slope * (row["fewer_bytes_up_to"] - 1)
            assert at_limit <= whole[row["network"]] < at_limit + slope
