"""`edgepeer emulate` over lines of several kinds, and with peers that can only dial out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from real_programs import Program, edgepeer, without

NUMPY = ("emulate", "--trainer", "numpy", "--optimizer", "sgd", "--learning-rate", 0.1, "--eval-every", 500)
NAMES = [f"p{number:02d}" for number in range(7)]


async def run(home: Path, *arguments: object) -> tuple[Program, dict[str, Any]]:
    """An emulation of seven peers that ends well, and its report; or the test is skipped and says why."""
    unseen = without("matplotlib", home)
    async with edgepeer(*NUMPY, "--peers", 7, *arguments, "--report", "out", home=home, **unseen) as program:
        if await program.end() and any("not on this machine" in line for line in program.err):
            pytest.skip(program.err[-1])
    assert program.process.returncode == 0, program.everything()
    report: dict[str, Any] = json.loads((home / "out" / "report.json").read_text())
    assert len(set(report["parameter_digests"].values())) == 1
    return program, report


def mostly_exact(report: dict[str, Any]) -> bool:
    """Whether most rounds have everybody in them: who stands still for seconds on a busy machine is out for a while."""
    exact = [detail["exact"] for detail in report["rounds_detail"]]
    return 2 * sum(exact) > len(exact)


@pytest.mark.slow
@pytest.mark.parametrize("shut", ["1,3,6", "0,1,2"])
async def test_peers_behind_nat_train_with_the_others(shut: str, tmp_path: Path) -> None:
    """Parent and child among them, to which nobody can dial: with a neighbour in common, and without any."""
    program, report = await run(tmp_path, "--rounds", 100, "--nat", shut)
    names = [NAMES[int(number)] for number in shut.split(",")]
    assert any(f"nobody can dial {', '.join(names)}" in line for line in program.out)
    assert report["rounds_detail"][-1]["round"] == 100
    assert mostly_exact(report)
    assert {name for detail in report["rounds_detail"] for name in detail["contributors"]} == set(NAMES)


@pytest.mark.slow
async def test_lines_of_many_kinds(tmp_path: Path) -> None:
    lines = ("100mbit,5ms", "1,4=10mbit/50mbit,20ms", "5=loss=1%,jitter=10ms,5ms", "6=20mbit,queue=50ms")
    _, report = await run(tmp_path, "--rounds", 30, *(part for line in lines for part in ("--link", line)))
    assert mostly_exact(report)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bf16", "int8"])
async def test_cut_links_of_several_trees_cost_no_contribution(precision: str, tmp_path: Path) -> None:
    """All that moves less or in parts, rounded and not, goes the other ways as well: each round counts everybody."""
    faults = ("--cut", "pos5-pos2@10..30", "--cut", "pos3>pos1@15..30", "--kill", "6@40")
    slow = ("--link", "100mbit,5ms", "--lanes", 3, "--fanout", 2)
    _, report = await run(tmp_path, "--rounds", 60, *slow, "--precision", precision, *faults)
    both, one_way, _ = report["faults"]
    assert all(sum(cut["confirmed"]["dropped"].values()) > 0 for cut in (both, one_way))
    rounds = [detail for detail in report["rounds_detail"] if f"cut {both['target']}" in detail["faults"]]
    assert len(rounds) >= 21
    assert all(detail["exact"] and len(detail["contributors"]) == 7 for detail in rounds)
    assert {detail.get("precision", "float32") for detail in report["rounds_detail"]} == {precision}
    assert any(path.startswith("via ") for detail in rounds for path in detail["paths"])
    assert set(report["rounds_detail"][-1]["contributors"]) == set(NAMES[:6])


@pytest.mark.parametrize(
    ("flags", "refusal"),
    [
        (("--link", "fast"), "link 'fast': 'fast' is unknown: must be such as"),
        (("--link", "9=5ms"), "link '9=5ms': peer '9' is unknown: must be 0 to 6"),
        (("--nat", "3,7"), "nat: peer '7' is unknown: must be 0 to 6"),
        (("--nat", "3", "--network", "none"), "network = none: peers that can only dial out take a firewall"),
        (("--link", "5ms", "--network", "loopback"), "network = loopback: only links between network namespaces"),
    ],
)
def test_what_can_not_be_is_refused_in_one_line(
    flags: tuple[str, ...], refusal: str, refused: Callable[..., str]
) -> None:
    assert refusal in refused(*NUMPY, *flags)
