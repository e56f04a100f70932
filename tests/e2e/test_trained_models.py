"""Training to the end, in real processes: numbers instead of classes, the model in a file, and what goes wrong."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real_programs import Field, edgepeer, python

from edgepeer.training.saved import load_npz

MODELS = """
import sys
import threading

def leaves():
    sys.exit(0)

def hangs():
    print("it hangs", file=sys.stderr, flush=True)
    threading.Event().wait()

def small(input_shape, outputs):
    import keras
    return keras.Sequential([keras.Input(input_shape), keras.layers.Dense(outputs)])
"""


def write_line(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Numbers that a linear model can learn to the last bit of noise."""
    random = np.random.default_rng(0)
    x = random.normal(size=(600, 5)).astype(np.float32)
    y = x @ np.array([1.0, -2.0, 3.0, 0.0, 0.5]) + 0.01 * random.normal(size=600)
    np.savez(path, x=x, y=y)
    return x, y


def report_of(home: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((home / "out" / "report.json").read_text())
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("trainer", "code", "peers"), [("numpy", "cyclic:s=1", 3), ("keras", "none", 2)])
async def test_a_fleet_learns_numbers_and_the_model_can_be_had(
    trainer: str, code: str, peers: int, tmp_path: Path
) -> None:
    x, y = write_line(tmp_path / "line.npz")
    job = ("--dataset", "npz:line.npz", "--model", "linear", "--trainer", trainer, "--rounds", 120, "--code", code)
    how = ("--optimizer", "sgd:momentum=0.9", "--learning-rate", 0.05, "--schedule", "cosine", "--loss", "huber")
    fleet = ("emulate", "--peers", peers, "--network", "none", *job, *how)
    async with edgepeer(*fleet, "--save", "model.npz", "--report", "out", home=tmp_path) as run:
        assert await run.end() == 0, run.everything()
    text = "\n".join(run.out)
    assert "test mae" in text
    assert "test accuracy" not in text
    assert f"parameters bit-identical on all {peers} peers  yes" in text
    assert "wrote model.npz" in text
    final = report_of(tmp_path)["final"]
    assert set(final) == {"mae", "rmse", "loss"}
    assert final["mae"] < 0.05
    found = load_npz(tmp_path / "model.npz").predict(x)[:, 0]
    assert float(np.abs(found - y).mean()) < 0.05


@pytest.mark.slow
async def test_a_training_that_diverges_says_so(tmp_path: Path) -> None:
    write_line(tmp_path / "line.npz")
    job = ("--dataset", "npz:line.npz", "--model", "linear", "--trainer", "numpy", "--rounds", 40, "--optimizer", "sgd")
    fleet = ("emulate", "--peers", 3, "--network", "none", *job, "--learning-rate", 100, "--report", "out")
    for more, complete in (((), True), (("--stop-on-nan",), False)):
        async with edgepeer(*fleet, "--save", "model.npz", *more, home=tmp_path) as run:
            assert await run.end() == 1, run.everything()
        report = report_of(tmp_path)
        at = report["diverged"]
        assert 1 < at < 40
        assert report["rounds"] == (40 if complete else at)
        assert len(set(report["parameter_digests"].values())) == 1
        assert len(report["parameter_digests"]) == 3
        assert f"diverged: the loss is not finite from round {at} on; try a smaller --learning-rate" in run.err[0]
        assert "model.npz is not written" in run.err[1]
        assert not (tmp_path / "model.npz").exists()


@pytest.mark.slow
async def test_a_real_fleet_hands_its_model_over(tmp_path: Path) -> None:
    """To who trains; and to who has a checkpoint of it."""
    async with Field(tmp_path) as field:
        await field.open()
        await field.add("a", "b", "c", below=tmp_path, checkpoint_every=50)
        training = await field.train(peers=3, rounds=60, save="model.npz", code="cyclic:s=1")
        report = await field.outcome(training)
        assert "wrote model.npz" in training.out
        await field.watch.until(lambda: set(field.watch.members) == {"a", "b", "c"})  # who fetched it has left
        export = await field.run("export", "b/checkpoints", "same.npz")
        assert await export.end() == 0, export.everything()
        assert export.out[0].startswith("wrote same.npz: mlp of job ")
        export = await field.run("export", "b/checkpoints", "same.keras")
        assert await export.end() == 0, export.everything()
    one, other = load_npz(tmp_path / "model.npz"), load_npz(tmp_path / "same.npz")
    for layer, same in zip(one.layers, other.layers, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(layer, same, strict=True))
    assert report["final"]["accuracy"] > 0.8
    assert (tmp_path / "same.keras").stat().st_size > 4 * 38_410


async def test_an_export_that_can_not_be(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "broken").write_text("no checkpoint, but some text that is long enough to be one")
    for arguments, status, said in (
        ((), 2, "edgepeer: name a checkpoint and a file"),
        (("old", "model.keras"), 2, "edgepeer: checkpoint = old: there is no checkpoint in this directory"),
        (("absent", "model.keras"), 2, "edgepeer: checkpoint = absent: can't be read: No such file"),
        (("broken", "model.keras"), 1, "edgepeer: broken: is not a checkpoint"),
    ):
        async with edgepeer("export", *arguments, home=tmp_path) as run:
            assert await run.end() == status, run.everything()
        assert len(run.err) == 1
        assert run.err[0].startswith(said)


@pytest.mark.slow
async def test_an_emulation_saves_a_model_whose_function_stands_in_its_directory(tmp_path: Path) -> None:
    """The command that pip installs has not that directory on its path, as Python has not with -P."""
    write_line(tmp_path / "line.npz")
    (tmp_path / "mymodels.py").write_text(MODELS)
    job = ("--dataset", "npz:line.npz", "--model", "mymodels:small", "--rounds", 2, "--save", "model.keras")
    async with python("-P", "-m", "edgepeer", "emulate", "--peers", 1, "--network", "none", *job, home=tmp_path) as run:
        assert await run.end() == 0, run.everything()
    assert "wrote model.keras" in run.out


@pytest.mark.slow
async def test_a_model_of_a_job_ends_no_peer_and_keeps_none(tmp_path: Path) -> None:
    (tmp_path / "mymodels.py").write_text(MODELS)
    async with Field(tmp_path) as field:
        await field.open()
        await field.add("a", models="mymodels")
        for model, said in (
            ("mymodels:leaves", "the function raised SystemExit: 0"),
            ("keras.models:clone_model", "this device lets jobs name functions of mymodels; to allow keras, start"),
        ):
            training = await field.train(peers=1, rounds=5, trainer="keras", model=model)
            assert await training.end() == 1, training.everything()
            assert said in training.err[-1]
        peer = field.peers["a"]
        assert peer.process.returncode is None
        await field.outcome(await field.train(peers=1, rounds=5))  # what it can do, it does
        await field.train(peers=1, rounds=5, trainer="keras", model="mymodels:hangs")
        await peer.said("it hangs")
        withdrawal = await field.run("train", "--broker", field.url, "--withdraw")
        assert await withdrawal.end() == 0, withdrawal.everything()
        peer.signal(signal.SIGTERM)
        assert await peer.end() == 0, peer.everything()
