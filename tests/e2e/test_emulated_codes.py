"""`edgepeer emulate --code`: real processes, some of them slow or killed, and rounds that are exact all the same."""

from __future__ import annotations

import json
import os
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from real_programs import Program, edgepeer, without

from edgepeer.training.build import make_trainer
from edgepeer.training.checkpoint import list_checkpoints, read_checkpoint
from edgepeer.training.datasets import load_dataset
from edgepeer.training.trainer import Float32Vector

MNIST = Path(os.environ.get("EDGEPEER_MNIST", Path(__file__).parents[3] / "shared/data/mnist"))
NUMPY = ("emulate", "--trainer", "numpy", "--model", "mlp-plain", "--optimizer", "sgd", "--learning-rate", 0.1)


async def run(home: Path, *arguments: object) -> tuple[Program, dict[str, Any]]:
    """An emulation that ends well, and its report."""
    unseen = without("matplotlib", home)
    async with edgepeer(*NUMPY, "--network", "none", *arguments, "--report", "out", home=home, **unseen) as program:
        assert await program.end() == 0, program.everything()
    report: dict[str, Any] = json.loads((home / "out" / "report.json").read_text())
    assert len(set(report["parameter_digests"].values())) == 1
    return program, report


@pytest.mark.slow
async def test_codes_come_to_what_an_uncoded_run_comes_to(tmp_path: Path) -> None:
    few = ("--peers", 4, "--rounds", 20)
    _, plain = await run(tmp_path, *few)
    assert (plain["code"], plain["computed"]) == ("none", pytest.approx(1))
    for code in ("partial:l=2,replication=3", "cyclic:s=1"):
        program, coded = await run(tmp_path, *few, "--code", code)
        assert coded["final"]["accuracy"] == plain["final"]["accuracy"]
        assert coded["final"]["loss"] == pytest.approx(plain["final"]["loss"], rel=1e-4)
        details = coded["rounds_detail"]
        assert [(detail["exact"], detail["chunks_covered"], detail["error"]) for detail in details] == [
            (True, 4, 0)
        ] * 20
        assert any(f"exact 20 of 20 ({code})" in line for line in program.out)
        assert any("times as many samples as the sums are of" in line for line in program.out)


@pytest.mark.slow
async def test_a_straggler_and_a_killed_peer_cost_nothing(tmp_path: Path) -> None:
    """Rounds without a code take as long as the slowest; with one they don't, and stay exact when a peer is killed."""
    speed = ("--rounds", 80, "--device-speed", "constant:0.04")  # faults may come late, and last as long as asked

    _, plain = await run(tmp_path, *speed, "--slow", "6x20@3..12")
    (slow,) = plain["faults"]
    assert slow["confirmed"]["seconds"] > 7 * 20 * 0.04
    without_code = seconds(plain, slow["first_round"] + 1, slow["first_round"] + 9)
    assert without_code > 20 * 0.04

    code = ("--code", "partial:l=1,replication=3")
    program, coded = await run(tmp_path, *speed, *code, "--slow", "6x20@3..", "--kill", "4@24")
    assert all(detail["exact"] for detail in coded["rounds_detail"])
    assert [detail["round"] for detail in coded["rounds_detail"]] == list(range(1, 81))
    assert [fault["kind"] for fault in coded["faults"]] == ["slow", "kill"]
    assert seconds(coded, coded["faults"][0]["first_round"] + 1, 80) < without_code / 3
    assert coded["faults"][0]["confirmed"]["batches"] > 5
    assert "p04" not in coded["parameter_digests"]
    assert len(coded["parameter_digests"]) == 6
    assert any("batches begun so slowly" in line for line in program.out)


def seconds(report: dict[str, Any], first: int, last: int) -> float:
    return median(detail["seconds"] for detail in report["rounds_detail"] if first <= detail["round"] <= last)


@pytest.mark.slow
async def test_an_approximate_run_says_so(tmp_path: Path) -> None:
    program, report = await run(
        tmp_path,
        "--rounds",
        15,
        "--topology",
        "star",
        "--code",
        "first:s=2",
        "--device-speed",
        "stragglers:0.02,500,0.28",
    )
    for detail in report["rounds_detail"]:
        assert (detail["exact"], detail["chunks"], detail["chunks_covered"], detail["error"]) == (False, 7, 5, 2)
    text = "\n".join(program.out)
    assert "approximate (5/7 chunks, error 2)" in text
    assert "exact 0 of 15 (first:s=2, wait exact)" in text
    assert "the others: 5 of 7 chunks whole, error median 2, p95 2" in text


@pytest.mark.slow
@pytest.mark.skipif(not MNIST.is_dir(), reason=f"no MNIST in {MNIST}; EDGEPEER_MNIST can name another directory")
async def test_mnist_with_stragglers_and_two_cut_links_comes_to_what_a_clean_run_comes_to(tmp_path: Path) -> None:
    """Links are cut by a firewall where there is one for this user, else the test is skipped."""
    pytest.importorskip("pyroute2", reason="firewalls need pyroute2")
    job = ("--dataset", "mnist", "--data-dir", MNIST, "--rounds", 40, "--batch-size", 50, "--checkpoint-every", 40)
    coded = ("--code", "partial:l=1,replication=3", "--device-speed", "stragglers:0.05,8,0.25")
    cuts = ("--cut", "3-1@5..40", "--cut", "5-2@10..40", "--skip-impossible")
    reports = {}
    for name, more in {"clean": ("--network", "none"), "faulty": (*coded, *cuts)}.items():
        where = ("--report", name, "--keep", f"{name}-peers")
        async with edgepeer(*NUMPY, *job, *more, *where, home=tmp_path, **without("matplotlib", tmp_path)) as program:
            assert await program.end() == 0, program.everything()
        if any("left out" in line for line in program.out):
            pytest.skip(next(line for line in program.out if "left out" in line))
        reports[name] = json.loads((tmp_path / name / "report.json").read_text())
    clean, faulty = reports["clean"], reports["faulty"]
    assert all(detail["exact"] for detail in faulty["rounds_detail"])
    assert [fault["kind"] for fault in faulty["faults"]] == ["cut", "cut"]
    assert all(fault["confirmed"] for fault in faulty["faults"])
    assert faulty["final"]["accuracy"] == pytest.approx(clean["final"]["accuracy"], abs=0.005)
    expected, found = (parameters(tmp_path / f"{name}-peers" / "p00" / "state") for name in ("clean", "faulty"))
    scale = abs(expected).max()
    assert abs(found - expected).max() < 1e-4 * scale


def parameters(state: Path) -> Float32Vector:
    """What a peer has come to, by its last checkpoint."""
    (newest, *_) = list_checkpoints(state / "checkpoints")
    checkpoint = read_checkpoint(newest)
    assert checkpoint.round == 40
    trainer = make_trainer(checkpoint.job, load_dataset("mnist", data_dir=MNIST))
    trainer.load_state(checkpoint.state)
    return trainer.parameters()
