"""`edgepeer emulate --split`: real processes that hold blocks of a network, compute wrong, die and are cut off, and
come to what training without all that comes to."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from real_programs import Program, edgepeer, without

JOB = ("emulate", "--model", "mlp-plain", "--optimizer", "sgd", "--learning-rate", 0.3, "--batch-size", 32)
CODE = ("--split", "codenet:m=2,n=2,t=1")
ROUNDS = ("--rounds", 30, "--eval-every", 15, "--network", "none")


async def run(home: Path, *arguments: object) -> tuple[Program, dict[str, Any]]:
    """An emulation that ends well, and its report."""
    async with edgepeer(*arguments, "--report", "out", home=home, **without("matplotlib", home)) as program:
        assert await program.end() == 0, program.everything()
    report: dict[str, Any] = json.loads((home / "out" / "report.json").read_text())
    assert len(set(report["parameter_digests"].values())) == 1
    return program, report


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def clean(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the job comes to if nothing goes wrong: with any split, also one into as many parts as there are nodes."""
    _, report = await run(tmp_path_factory.mktemp("clean"), *JOB, "--split", "none:m=2,n=2", *ROUNDS)
    assert report["split"]["injected"] == report["split"]["corrected"] == report["split"]["restores"] == 0
    return report


@pytest.mark.slow
async def test_errors_and_a_killed_peer_change_nothing(clean: dict[str, Any], tmp_path: Path) -> None:
    """The same job with wrong numbers and a crash, on twelve peers and one to spare."""
    flips = ("3@3:kind=garbage,place=product", "7@5:kind=nan", "11@7:kind=garbage", "0@9:place=verdict", "6@29")
    faults = [part for flip in flips for part in ("--flip", flip)]
    program, hurt = await run(tmp_path, *JOB, *CODE, *ROUNDS, "--peers", 13, *faults, "--kill", "leaf@11")

    assert hurt["final"]["loss"] == pytest.approx(clean["final"]["loss"], rel=1e-3)
    assert hurt["final"]["accuracy"] == pytest.approx(clean["final"]["accuracy"], abs=0.005)
    split = hurt["split"]
    assert split["injected"] == 5
    assert (split["undetected"], split["restores"]) == (0, 0)
    assert split["corrected"] >= 2
    assert split["regenerated"] >= 2
    assert sorted(fault["kind"] for fault in hurt["faults"]) == ["flip"] * 5 + ["kill"]
    assert all(fault["confirmed"] for fault in hurt["faults"])
    assert len(hurt["parameter_digests"]) == 12

    held = split["held_bytes_per_peer"]
    assert sorted(split["cells"].values()) == list(range(12))
    assert all(0 < count < 0.26 * split["model_bytes"] for count in held.values()), "nobody has a whole matrix"
    assert any("split codenet:m=2,n=2,t=1: 12 nodes, 13 peers, 1 to spare" in line for line in program.out)
    assert any(line.split()[:3] == ["soft", "errors", "5"] for line in program.out)


@pytest.mark.slow
async def test_who_is_too_slow_is_made_up_for(clean: dict[str, Any], tmp_path: Path) -> None:
    """With a deadline rounds don't wait for a straggler; its vectors are erasures, and nothing else changes."""
    slow = ("--wait", "deadline:0.5", "--slow", "leafx100@8..14")
    program, hurt = await run(tmp_path, *JOB, *CODE, *ROUNDS, *slow)
    assert hurt["final"]["loss"] == pytest.approx(clean["final"]["loss"], rel=1e-3)
    assert hurt["split"]["erased"] >= 1, program.everything()
    assert (hurt["split"]["corrected"], hurt["split"]["restores"]) == (0, 0)
    assert all(fault["confirmed"] for fault in hurt["faults"])


@pytest.mark.slow
async def test_the_scenario(tmp_path: Path) -> None:
    """Links are cut by a firewall where there is one for this user; else that fault is left out."""
    arguments = ("emulate", "--scenario", "soft-errors", "--skip-impossible")
    program, report = await run(tmp_path, *arguments)
    split = report["split"]
    assert report["final"]["accuracy"] > 0.9
    assert split["split"] == "codenet:m=2,n=2,t=1"
    assert split["injected"] >= 8
    assert split["undetected"] == 0
    assert split["corrected"] >= 4
    assert split["regenerated"] >= 4
    kinds = [fault["kind"] for fault in report["faults"]]
    assert kinds.count("flip") == 8
    assert kinds.count("kill") == 1
    assert kinds.count("cut") == 1 or any("left out cut" in line for line in program.out)


@pytest.mark.slow
async def test_without_protection_nobody_finds_anything_and_the_job_says_so(tmp_path: Path) -> None:
    arguments = (*JOB, "--split", "none:m=2,n=2", "--rounds", 12, "--network", "none", "--flip", "1@5:kind=garbage")
    async with edgepeer(*arguments, home=tmp_path) as program:
        assert await program.end() == 1, program.everything()
    (line,) = [line for line in program.err if line.startswith("edgepeer: ")]
    assert "nobody has found 1 soft errors (1 of p" in line
    assert "weights may be wrong" in line


@pytest.mark.slow
async def test_blocks_that_nobody_has_any_more_are_waited_for(tmp_path: Path) -> None:
    arguments = (*JOB, "--split", "none:m=2,n=2", "--rounds", 2000, "--network", "none", "--kill", "2@5")
    async with edgepeer(*arguments, "--timeout", 15, home=tmp_path) as program:  # time enough to start, and no more
        assert await program.end() == 1, program.everything()
    (line,) = [line for line in program.err if line.startswith("edgepeer: ")]
    assert "3 peers are there, and the blocks that they have don't make up for those of the others" in line
    assert any(line.startswith("waiting: 3 peers are there") for line in program.out)


REFUSED = [
    ((*JOB, *CODE, "--peers", 7), "peers = 7: split codenet:m=2,n=2,t=1 takes 12, "),
    ((*JOB, "--split", "codenet:m=6,n=9"), "split = codenet:m=6,n=9: takes 84 peers, and an emulation has at most 64"),
    ((*JOB, "--split", "hamming"), "split = 'hamming': there is no split 'hamming', only none, codenet, "),
    ((*JOB, *CODE, "--flip", "12@3"), "flip = 12@3: node 12 is unknown: the split has 0 to 11"),
    ((*JOB, *CODE, "--flip", "1@201"), "flip = 1@201: the job ends before that: must be in rounds 1 to 200"),
    ((*JOB, *CODE, "--flip", "1@3:kind=loud"), "flip = 1@3:kind=loud: must be NODE@ROUND"),
    ((*JOB, "--flip", "1@3"), "flip = 1@3: only split jobs have soft errors: add --split"),
    ((*JOB, "--soft-errors", "p=1e-3"), "soft_errors = p=1e-3: only split jobs have them: add --split"),
    ((*JOB, *CODE, "--soft-errors", "p=2"), "p = 2.0 is no probability"),
    (("emulate", *CODE, "--optimizer", "adam"), "adam"),
    ((*JOB, *CODE, "--model", "cnn"), "cnn"),
    ((*JOB, *CODE, "--code", "cyclic:s=1"), "code = cyclic:s=1"),
    ((*JOB, *CODE, "--dataset", "local:x.npz"), "local:x.npz"),
    ((*JOB, *CODE, "--protocol", "ring"), "protocol ring"),
    ((*JOB, *CODE, "--loss", "mse"), "layer 1 is 1 x 513 with its bias and can't be cut into m=2"),
    ((*JOB, *CODE, "--wait", "error<0.5"), "wait = error<0.5: is about sums of gradients"),
]


@pytest.mark.parametrize(("arguments", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_refusals(arguments: tuple[object, ...], said: str, refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "x.npz").touch()
    assert said in refused(*arguments)
