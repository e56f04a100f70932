"""`edgepeer emulate`: whole fleets on this machine, as a user runs them."""

from __future__ import annotations

import json
import math
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from real_programs import DEADLINE_S, Field, edgepeer

from edgepeer.fabric.mosquitto import find_mosquitto

MAKEFILE = Path(__file__).parents[2] / "Makefile"
MNIST = Path(os.environ.get("EDGEPEER_MNIST", Path(__file__).parents[3] / "shared/data/mnist"))


def check_report(
    directory: Path, *, peers: int, rounds: int, trainer: str, dataset: str, broker: str
) -> dict[str, Any]:
    """report.json has exactly the form that is promised, and numbers that can be true. Nothing was broken."""
    report: dict[str, Any] = json.loads((directory / "report.json").read_text())
    assert list(report) == [
        "job", "peers", "rounds", "trainer", "dataset", "broker", "code", "wait", "precision", "computed", "final",
        "diverged", "round_seconds", "allreduce_seconds", "bytes_sent_per_peer", "parameter_digests", "view_epochs",
        "generations", "rounds_detail", "faults",
    ]  # fmt: skip
    told = {name: report[name] for name in ("peers", "rounds", "trainer", "dataset", "broker")}
    assert told == {"peers": peers, "rounds": rounds, "trainer": trainer, "dataset": dataset, "broker": broker}
    names = {f"p{number:02d}" for number in range(peers)}
    assert set(report["final"]) == {"accuracy", "loss"}
    assert 0 <= report["final"]["accuracy"] <= 1
    assert math.isfinite(report["final"]["loss"])
    for spread in (report["round_seconds"], report["allreduce_seconds"]):
        assert set(spread) == {"median", "p95"}
        assert 0 < spread["median"] <= spread["p95"] < DEADLINE_S
    assert report["allreduce_seconds"]["median"] <= report["round_seconds"]["median"]
    assert set(report["bytes_sent_per_peer"]) == set(report["parameter_digests"]) == names
    assert all(count > 0 for count in report["bytes_sent_per_peer"].values())
    assert len(set(report["parameter_digests"].values())) == 1
    assert all(int(digest, 16) for digest in report["parameter_digests"].values())
    assert [detail["round"] for detail in report["rounds_detail"]] == list(range(1, rounds + 1))
    for detail in report["rounds_detail"]:
        assert set(detail) == {
            "round", "generation", "epoch", "seconds", "contributors", "exact", "faults", "paths", "phases", "chunks",
            "chunks_covered", "error", "precision",
        }  # fmt: skip
        assert detail["seconds"] > 0
    # Where no machine stands still for seconds, nobody is ever out, and so missing in the round that is under way.
    assert sum(not detail["exact"] for detail in report["rounds_detail"]) < report["view_epochs"]
    everybody = [set(detail["contributors"]) == names for detail in report["rounds_detail"]]
    assert all(everybody) or report["view_epochs"] > 1
    assert sum(everybody) > len(everybody) / 2
    if report["view_epochs"] == 1:  # all have written down all rounds themselves, to the last
        wrote = [{peer for who in detail["paths"].values() for peer in who} for detail in report["rounds_detail"]]
        assert wrote == [names] * rounds
    assert report["faults"] == []
    assert (directory / "report.png").read_bytes().startswith(b"\x89PNG\r\n")
    return report


@pytest.mark.slow
@pytest.mark.parametrize("broker", ["embedded", "mosquitto", "url"])
async def test_a_small_fleet(broker: str, tmp_path: Path) -> None:
    if broker == "mosquitto" and find_mosquitto() is None:
        pytest.skip("mosquitto is not installed")
    if broker == "url" and "SECURE_EMULATIONS" in os.environ:
        pytest.skip("a broker that runs already is of no fleet that is made for a run")
    async with Field(tmp_path) as field:
        if broker == "url":
            await field.start_broker("127.0.0.1:0")
            broker = field.url
        run = await field.run(
            "emulate", "--peers", 4, "--rounds", 40, "--trainer", "numpy", "--broker", broker, "--report", "out"
        )
        assert await run.end() == 0, run.everything()
    assert run.err == []
    text = "\n".join(run.out)
    assert "\x1b" not in text
    assert "\r" not in text
    assert run.out[0].startswith("job ")
    assert "round 40/40" in text
    assert "parameters bit-identical on all 4 peers  yes" in text
    assert "wrote out/report.json" in text
    check_report(tmp_path / "out", peers=4, rounds=40, trainer="numpy", dataset="digits", broker=broker)


@pytest.mark.slow
async def test_the_demo(tmp_path: Path) -> None:
    """What `make demo` runs: seven peers, TensorFlow, real digits, at least 0.95, a cut and a kill half-way."""
    demo = re.search(r"^demo:.*\n\t\$\(BIN\)/edgepeer (.*)$", MAKEFILE.read_text(), re.MULTILINE)
    assert demo is not None
    async with edgepeer(*demo[1].split(), "--report", "out", home=tmp_path) as run:
        assert await run.end() == 0, run.everything()
    text = "\n".join(run.out)
    assert "parameters bit-identical on all 6 peers  yes" in text
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["final"]["accuracy"] >= 0.95
    assert len(set(report["parameter_digests"].values())) == 1
    by_kind = {fault["kind"]: fault for fault in report["faults"]}
    killed = by_kind["kill"]["target"]
    assert killed not in report["parameter_digests"]
    assert by_kind["kill"]["first_round"] >= 100
    late = report["rounds_detail"][105 : by_kind["kill"]["first_round"] - 1]  # if the emulation stood still meanwhile
    assert sum(detail["seconds"] for detail in late) < 10
    if "left out cut" in text:
        assert set(by_kind) == {"kill"}
        return
    assert set(by_kind) == {"kill", "cut"}
    assert sum(by_kind["cut"]["confirmed"]["dropped"].values()) > 0
    # With its parent cut off a peer still contributes to every round.
    cut = by_kind["cut"]["target"].split("-")
    during = [detail for detail in report["rounds_detail"] if any("cut" in fault for fault in detail["faults"])]
    assert len(during) >= 30
    assert all(set(cut) <= set(detail["contributors"]) for detail in during)


@pytest.mark.slow
@pytest.mark.skipif(not MNIST.is_dir(), reason=f"no MNIST in {MNIST}; EDGEPEER_MNIST can name another directory")
async def test_mnist_to_95_percent_in_200_rounds(tmp_path: Path) -> None:
    """Three peers, with as many samples a round as seven would have of 100: that seven can do it the demo shows."""
    job = ("--dataset", "mnist", "--data-dir", MNIST, "--trainer", "keras", "--model", "mlp", "--batch-size", 233)
    tuned = ("--optimizer", "adam", "--learning-rate", 0.002, "--rounds", 200, "--eval-every", 100)
    async with edgepeer("emulate", "--peers", 3, *job, *tuned, "--report", "out", home=tmp_path) as run:
        assert await run.end(280) == 0, run.everything()
    report = check_report(tmp_path / "out", peers=3, rounds=200, trainer="keras", dataset="mnist", broker="embedded")
    assert report["final"]["accuracy"] >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
async def test_nothing_outlives_it(number: signal.Signals, status: int, tmp_path: Path) -> None:
    """Not even a peer that is frozen, and one that is slowed down."""
    fleet = ("emulate", "--peers", 3, "--rounds", 100_000, "--trainer", "numpy")
    async with edgepeer(*fleet, "--pause", "1@5..", "--slow", "2x20@3..", home=tmp_path) as run:
        await run.said(r"p01 paused")
        children = psutil.Process(run.process.pid).children(recursive=True)
        assert len(children) >= 3
        run.signal(number)
        assert await run.end() == status, run.everything()
    assert "Traceback" not in run.everything()
    _, left = psutil.wait_procs(children, timeout=DEADLINE_S)
    assert left == []


async def test_a_failing_job_ends_everything(tmp_path: Path) -> None:
    np.savez(tmp_path / "odd.npz", x=np.ones((50, 4), np.float32), y=np.arange(9))
    job = ("--dataset", f"npz:{tmp_path}/odd.npz", "--trainer", "numpy")
    async with edgepeer("emulate", "--peers", 2, *job, home=tmp_path) as run:
        assert await run.end() != 0, run.everything()
    assert len(run.err) == 1, run.everything()
    assert run.err[0].startswith("edgepeer: ")
    assert "odd.npz" in run.err[0]
