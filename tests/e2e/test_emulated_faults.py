"""`edgepeer emulate` with faults: they happen, are confirmed, shown and reported; and what can't be is refused."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from real_programs import Program, edgepeer

PATIENCE_S = 10.0
"""A process may stand still for seconds: one that all wait for, or that which watches the rounds and makes faults."""
NUMPY = ("emulate", "--trainer", "numpy", "--optimizer", "sgd", "--learning-rate", 0.1, "--eval-every", 500)

PACE = ("--device-speed", "constant:0.03")
"""Rounds that aren't all over before somebody who stood still for seconds has seen that it is time for a fault."""


async def run(home: Path, *arguments: object) -> tuple[Program, dict[str, Any]]:
    """An emulation that ends well, and its report."""
    async with edgepeer(*NUMPY, *arguments, "--report", "out", home=home) as program:
        assert await program.end() == 0, program.everything()
    report: dict[str, Any] = json.loads((home / "out" / "report.json").read_text())
    assert len(set(report["parameter_digests"].values())) == 1
    return program, report


def under(report: dict[str, Any], label: str) -> Iterator[dict[str, Any]]:
    """The rounds that were under a fault."""
    return (detail for detail in report["rounds_detail"] if label in detail["faults"])


@pytest.mark.slow
async def test_a_broker_outage_a_pause_a_kill_and_a_restart(tmp_path: Path) -> None:
    faults = ("--broker-down", "20..60", "--slow", "0x2@70..90", "--pause", "2@100..102", "--kill", "3@150")
    program, report = await run(tmp_path, "--peers", 5, "--rounds", 1000, *faults, "--restart", "3@160")
    kinds = [fault["kind"] for fault in report["faults"]]
    assert kinds == ["broker_down", "slow", "pause", "kill", "restart"]
    outage, slow, pause, kill, restart = report["faults"]
    assert (outage["from"], outage["to"], outage["unit"]) == (20, 60, "round")
    assert outage["confirmed"] == {"while_down": "refused", "when_back": "accepted"}
    assert 0 < slow["confirmed"]["share"] < 0.625  # less, where it was let go on late
    assert pause["confirmed"]["state"] == "T"
    assert kill["confirmed"]["exit_code"] == -9
    assert restart["confirmed"]["pid"] != kill["confirmed"]["pid"] == restart["confirmed"]["pid_before"]
    for fault in report["faults"]:
        assert fault["from"] <= fault["first_round"]
        late = report["rounds_detail"][fault["from"] + 5 : fault["first_round"] - 1]
        assert sum(detail["seconds"] for detail in late) < PATIENCE_S
    # Every round is known, though the broker was away, and goes on exactly without it.
    assert [detail["round"] for detail in report["rounds_detail"]] == list(range(1, 1001))
    assert len(list(under(report, "broker down"))) >= 41
    assert all(detail["exact"] for detail in under(report, "broker down"))
    before = max(detail["seconds"] for detail in report["rounds_detail"][1:19])
    assert max(detail["seconds"] for detail in under(report, "broker down")) < PATIENCE_S + before
    # Whoever was killed is out, and back in with a new life.
    assert any("p03" not in detail["contributors"] for detail in under(report, "p03 killed"))
    assert set(report["rounds_detail"][-1]["contributors"]) == {f"p{number:02d}" for number in range(5)}
    text = "\n".join(program.out)
    for line in (r"broker down", "broker down: over", "p02 paused", "p02 paused: over", "p03 killed", "p03 restarted"):
        assert line in text
    assert "faults, all confirmed" in text
    rows = list(csv.DictReader((tmp_path / "out" / "rounds.csv").read_text().splitlines()))
    assert [row["faults"] for row in rows if row["round"] == str(kill["first_round"])] != [""]
    assert (tmp_path / "out" / "faults.md").read_text().count("\n| ") == 6
    assert (tmp_path / "out" / "faults.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
async def test_a_cut_link_costs_no_contribution(tmp_path: Path) -> None:
    faults = ("--cut", "pos3-pos1@50..80", "--cut", "pos2>root@60..90", "--skip-impossible")
    program, report = await run(tmp_path, "--peers", 5, "--rounds", 200, *PACE, *faults)
    if any("left out" in line for line in program.out):
        pytest.skip(next(line for line in program.out if "left out" in line))
    both, one_way = report["faults"]
    assert len(both["confirmed"]["rules"]) == 2
    assert len(one_way["confirmed"]["rules"]) == 1
    for fault in report["faults"]:
        assert sum(fault["confirmed"]["dropped"].values()) > 0
        rounds = list(under(report, f"cut {fault['target']}"))
        assert len(rounds) >= 31
        assert all(detail["exact"] for detail in rounds)


@pytest.mark.slow
async def test_the_coordinator_is_killed(tmp_path: Path) -> None:
    """Rounds are followed on, whoever coordinates, and each is known."""
    _, report = await run(tmp_path, "--peers", 4, "--rounds", 300, *PACE, "--kill", "root@100")
    (kill,) = report["faults"]
    assert [detail["round"] for detail in report["rounds_detail"]] == list(range(1, 301))
    assert kill["target"] in report["rounds_detail"][0]["contributors"]
    assert kill["target"] not in report["rounds_detail"][-1]["contributors"]
    others = {f"p{number:02d}" for number in range(4)} - {kill["target"]}
    if all(others <= set(detail["contributors"]) for detail in report["rounds_detail"]):
        assert report["view_epochs"] == 2
    else:  # somebody stood still for seconds, and was out for a while
        assert report["view_epochs"] > 2


async def test_a_fault_that_never_comes_fails_the_run(tmp_path: Path) -> None:
    async with edgepeer(*NUMPY, "--peers", 2, "--rounds", 5, "--kill", "1@500s", home=tmp_path) as program:
        assert await program.end() == 1, program.everything()
    assert len(program.err) == 1
    assert program.err[0].startswith("edgepeer: fault kill 1@500s never came: the job ended after 5 rounds and ")


def test_refusals(refused: Callable[..., str], tmp_path: Path) -> None:
    """One line that names the flag, its value and what is allowed; nothing is started."""
    (tmp_path / "bad.toml").write_text("cutt = []\n")
    cases: dict[tuple[object, ...], str] = {
        ("--cut", "9-1@5..10"): "cut = 9-1@5..10: peer 9 is unknown: must be 0 to 6",
        ("--cut", "3-1@10..5"): "cut = 3-1@10..5: ends before it starts: the end must be at least the start",
        ("--restart", "4@25"): "restart = 4@25: peer 4 is not dead then: it must be killed before, by kill",
        ("--scenario", "bad.toml"): "scenario bad: cutt is unknown; allowed are about, peers, rounds, settings, cut, ",
        ("--scenario", "two-serial", "--peers", 3): "scenario = two-serial: needs 4 peers or more: peers = 3",
        ("--cut", "3-1@5..10", "--network", "none"): "cut = 3-1@5..10: peers share this machine's own loopback",
        ("--broker-down", "5..10", "--broker", "mqtt://127.0.0.1:1"): (
            "broker_down = 5..10: only a broker that is started here can be stopped: must go with embedded or mosquitto"
        ),
    }
    for arguments, said in cases.items():
        assert refused(*NUMPY, *arguments).startswith(said)
