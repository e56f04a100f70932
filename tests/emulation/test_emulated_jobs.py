"""Emulations that nobody could do are refused in one line, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgepeer.emulation.jobs import emulated_job, fanout_of
from edgepeer.errors import ConfigError
from edgepeer.settings import EmulateSettings


def refusal(settings: EmulateSettings) -> str:
    with pytest.raises(ConfigError) as caught:
        emulated_job(settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_data_that_an_emulation_can_not_read(tmp_path: Path) -> None:
    nowhere, file = tmp_path / "nowhere", tmp_path / "own.npz"
    file.touch()
    reason = "must be a directory that can be read"
    assert refusal(EmulateSettings(data_dir=nowhere)) == f"data_dir = {nowhere}: {reason}: No such file or directory"
    assert refusal(EmulateSettings(data_dir=file)) == f"data_dir = {file}: {reason}: Not a directory"
    for kind in ("npz:", "local:", ""):
        said = refusal(EmulateSettings(dataset=f"{kind}other.npz", data_dir=tmp_path))
        assert said == f"dataset = {kind}other.npz: must name a file that can be read: No such file or directory"
        emulated_job(EmulateSettings(dataset=f"{kind}own.npz", data_dir=tmp_path))
        emulated_job(EmulateSettings(dataset=f"{kind}{file}"))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"code": "cyclic:s=1", "protocol": "ring"}, "rounds of protocol ring can't be coded; use protocol ft-tree"),
        ({"code": "cyclic:s=7", "peers": 7}, "code = cyclic:s=7: can't be had with 7 peers: "),
        ({"code": "partial:l=3,replication=2"}, "can't be had with 7 peers: "),
        ({"code": "graph:degree=3"}, "can't be had with 7 peers: "),
        ({"code": "coded-reduce:s=2", "fanout": 2}, "s must be below the fan-out"),
        ({"code": "coded-reduce:s=1", "topology": "star"}, "compute nothing; use cyclic:s=1 or fractional:s=1"),
        (
            {"topology": "star", "protocol": "ring"},
            "topology = star: protocol ring has a shape of its own; use ft-tree",
        ),
        ({"topology": "star", "fanout": 4}, "fanout = 4: topology star has one of its own"),
        ({"lanes": 3, "protocol": "ring"}, "lanes = 3: rounds of protocol ring have none; use ft-tree"),
        ({"lanes": 3, "code": "cyclic:s=1"}, "lanes = 3: a coded round moves over the one tree of its code"),
        ({"device_speed": "warp:9"}, "device speed = 'warp:9': must be none, constant:S"),
        ({"device_speed": "trace:/nowhere/at/all"}, "/nowhere/at/all can't be read"),
    ],
)
def test_emulations_that_can_not_be_had(fields: dict[str, object], said: str) -> None:
    assert said in refusal(EmulateSettings(**fields))  # type: ignore[arg-type]


def test_topologies() -> None:
    assert fanout_of(EmulateSettings(peers=7, fanout=3)) == 3
    assert fanout_of(EmulateSettings(peers=64, topology="star")) == 63
    assert fanout_of(EmulateSettings(peers=1, topology="star")) == 1


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"soft_errors": "p=0.1"}, "soft_errors = p=0.1: only split jobs have them: add --split"),
        ({"soft_errors": "p=1.5", "split": "none"}, "soft errors: p = 1.5 is no probability"),
        ({"soft_errors": "p=-1", "split": "none"}, "soft errors: p = -1.0 is no probability"),
        ({"soft_errors": "q=1", "split": "none"}, "there are p, steps and kind, not 'q'"),
        ({"soft_errors": "steps=O4", "split": "none"}, "steps are O1+O2+O3+encoding"),
        (
            {"soft_errors": "steps=verdict", "split": "none:m=2,n=2"},
            "split none:m=2,n=2 has no verdicts that could be wrong",
        ),
        ({"soft_errors": "kind=loud", "split": "none"}, "kind is sparse, garbage, flip, nan, not 'loud'"),
    ],
)
def test_errors_that_can_not_be_made(fields: dict[str, str], said: str) -> None:
    settings = dict.fromkeys(["optimizer"], "sgd") | {"model": "mlp-plain", "learning_rate": 0.1, "peers": 20} | fields
    assert said in refusal(EmulateSettings(**settings))  # type: ignore[arg-type]
