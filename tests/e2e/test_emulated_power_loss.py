"""A whole fleet of real processes is killed at once, and started again: it goes on where its checkpoints are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from real_programs import edgepeer, without


@pytest.mark.slow
async def test_a_fleet_that_is_killed_goes_on_from_its_checkpoints(tmp_path: Path) -> None:
    # The power goes when some rounds must be over, on however busy a machine, and on none can all of them be.
    pace = ("--rounds", 800, "--device-speed", "constant:0.0125")
    arguments: list[object] = ["--peers", 3, "--network", "none", *pace, "--checkpoint-every", 10]
    for peer in range(3):
        arguments += ["--kill", f"{peer}@8s", "--restart", f"{peer}@9s"]
    numpy = ("emulate", "--trainer", "numpy", "--eval-every", 1000)
    unseen = without("matplotlib", tmp_path)
    async with edgepeer(*numpy, *arguments, "--report", "out", home=tmp_path, **unseen) as program:
        assert await program.end() == 0, program.everything()
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert len(report["parameter_digests"]) == 3
    assert len(set(report["parameter_digests"].values())) == 1
    kinds = {fault["kind"]: fault for fault in report["faults"]}
    assert set(kinds) == {"kill", "restart"}
    killed, restarted = kinds["kill"]["first_round"], kinds["restart"]["first_round"]
    assert 20 < killed <= restarted < 800
    rounds = report["rounds_detail"]
    assert [detail["round"] for detail in rounds] == list(range(1, 801))
    # A new model has a loss of 2.3; this one had learnt, and has not forgotten.
    again = max(number for number, line in enumerate(program.out) if re.match(r"round \d+, .* restarted", line))
    said = (re.match(r"round \d+/800  loss ([\d.]+)", line) for line in program.out[again:])
    assert float(next(found[1] for found in said if found)) < 1
