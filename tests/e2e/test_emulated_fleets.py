"""`edgepeer emulate --secure`: a fleet of its own, in which everything goes on as without one.

`make test-secure` runs all emulations of the other tests like that."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from real_programs import edgepeer, without

from edgepeer.fabric.mosquitto import find_mosquitto

pytest.importorskip("cryptography")
NUMPY = ("emulate", "--trainer", "numpy", "--optimizer", "sgd", "--learning-rate", 0.1, "--eval-every", 500, "--secure")


def keys(home: Path) -> list[Path]:
    """Private keys that lie about."""
    return list(home.rglob("key.pem"))


@pytest.mark.slow
@pytest.mark.parametrize("broker", ["embedded", "mosquitto"])
async def test_links_peers_and_the_broker_fail_and_come_back(broker: str, tmp_path: Path) -> None:
    if broker == "mosquitto" and find_mosquitto() is None:
        pytest.skip("mosquitto is not installed")
    faults = ("--cut", "pos3-pos1@20..50", "--kill", "3@60", "--restart", "3@66", "--broker-down", "90..120")
    pace = ("--rounds", 300, "--device-speed", "constant:0.035")  # to come back in takes seconds
    arguments = ("--peers", 5, *pace, "--broker", broker, *faults, "--skip-impossible", "--report", "out")
    unseen = without("matplotlib", tmp_path)
    async with edgepeer(*NUMPY, *arguments, "--keep", "kept", home=tmp_path, **unseen) as program:
        assert await program.end() == 0, program.everything()
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert len(set(report["parameter_digests"].values())) == 1
    assert {"kill", "restart", "broker_down"} <= {fault["kind"] for fault in report["faults"]}
    assert set(report["rounds_detail"][-1]["contributors"]) == {f"p{number:02d}" for number in range(5)}
    assert "fleet: made for this run; links are encrypted, documents signed" in "\n".join(program.out)
    # Its keys are gone with it, whatever else is kept.
    assert keys(tmp_path) == []


def test_a_broker_that_runs_already_is_of_no_such_fleet(refused: Callable[..., str]) -> None:
    line = refused(*NUMPY, "--broker", "mqtt://127.0.0.1:1")
    assert line.startswith("secure: broker = mqtt://127.0.0.1:1 is of no fleet that is made for this run")
