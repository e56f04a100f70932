"""Split jobs on fleets of real processes: deaths, newcomers, a fleet that starts again, the model that comes out."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from real_programs import Field

from edgepeer.fabric.documents import RoundRecord
from edgepeer.peer.split_run import batches_of
from edgepeer.training.datasets import load_dataset
from edgepeer.training.job import Job
from edgepeer.training.losses import form_of
from edgepeer.training.saved import load_npz
from edgepeer.training.split.dense import dense_network

sys.path.insert(0, str(Path(__file__).parents[1] / "training" / "split"))
from undivided import undivided

SPLIT = "codenet:m=2,n=2,t=1"
NAMES = tuple(f"p{number:02}" for number in range(12))
BATCH_S = 0.03
HOW = {"split": SPLIT, "model": "mlp-plain", "optimizer": "sgd", "learning_rate": 0.1, "batch_size": 20}


def off(job: Job, model: Path) -> float:
    """The largest difference of a saved model from undivided training, as a part of the layer's largest weight."""
    data = load_dataset(job.dataset)
    weights = undivided(dense_network(job, form_of(data, job.loss)), batches_of(data, job), job.rounds)
    found = load_npz(model).layers
    assert len(found) == len(weights)
    parts = [
        np.abs(np.vstack([kernel, bias]).T - whole).max() / np.abs(whole).max()
        for (kernel, bias), whole in zip(found, weights, strict=True)
    ]
    return float(max(parts))


def last(field: Field) -> RoundRecord:
    return field.watch.records[field.watch.round]


@pytest.mark.slow
async def test_a_peer_is_killed_and_comes_again_and_the_model_is_that_of_undivided_training(tmp_path: Path) -> None:
    """One is to spare: it gets the dead one's blocks, and who comes again is to spare then."""
    rounds = 40
    async with Field(tmp_path, batch_s=BATCH_S) as field:
        await field.open()
        await field.add(*NAMES, "spare")
        training = await field.train(**HOW, peers=13, rounds=rounds, save="model.npz")
        await field.watch.until(lambda: field.watch.round >= 10)
        job = field.watch.picture.job
        assert job is not None
        dead = field.watch.members[3]
        field.peers[dead].signal(signal.SIGKILL)
        await field.watch.until(lambda: dead not in field.watch.members)
        await field.watch.until(lambda: last(field).regenerated > 0)
        assert last(field).erased > 0
        await field.add(dead)
        report = await field.outcome(training)
        reports = {peer: said for (of, peer), said in field.watch.picture.reports.items() if of == job.id}
    assert report["rounds"] == rounds
    final = field.watch.records[rounds]
    assert (final.restored, final.corrected) == (0, 0)
    assert off(job, tmp_path / "model.npz") < 1e-5
    nodes = {peer: said.cell for peer, said in reports.items() if said.state == "done"}
    assert sorted(node for node in nodes.values() if node >= 0) == list(range(12))
    whole = 4 * (512 * 65 + 10 * 513)
    for peer, said in reports.items():
        if said.state == "done":
            assert said.held_bytes == 0 if nodes[peer] < 0 else 0.24 < said.held_bytes / whole < 0.27
    assert len({said.digest for said in reports.values() if said.state == "done"}) == 1


@pytest.mark.slow
async def test_without_a_spare_who_comes_again_gets_its_blocks_and_errors_are_corrected(tmp_path: Path) -> None:
    rounds = 50
    flips = '[peer]\nflip = ["2@10:kind=garbage,place=product", "9@45:kind=sparse"]\n'
    async with Field(tmp_path, brake=7.0) as field:  # not over before who was killed is in again
        (tmp_path / "edgepeer.toml").write_text(f'{flips}device_speed = "constant:{BATCH_S}"\n')
        await field.open()
        await field.add(*NAMES, below=tmp_path)
        training = await field.train(**HOW, rounds=rounds, peers=12, save="model.npz")
        await field.watch.until(lambda: field.watch.round >= 15)
        job = field.watch.picture.job
        assert job is not None
        dead = next(peer for (_, peer), said in field.watch.picture.reports.items() if said.cell == 5)
        field.peers[dead].signal(signal.SIGKILL)
        await field.watch.until(lambda: dead not in field.watch.members)
        await field.add(dead, below=tmp_path)
        field.let_go()
        await field.outcome(training)
        reports = {peer: said for (of, peer), said in field.watch.picture.reports.items() if of == job.id}
        assert any("made on purpose here: 2@10:kind=garbage" in line for line in field.peers[dead].err)
    assert reports[dead].state == "done"
    assert reports[dead].cell == 5
    assert reports[dead].held_bytes > 0
    final = field.watch.records[rounds]
    assert final.restored == 0
    assert final.corrected > 0
    assert sum(report.injected for report in reports.values()) == 2
    assert sum(report.found for report in reports.values()) == 2
    assert sum(report.undetected for report in reports.values()) == 0
    assert off(job, tmp_path / "model.npz") < 1e-5


@pytest.mark.slow
async def test_a_fleet_that_starts_again_goes_on_from_its_parts(tmp_path: Path) -> None:
    """All are killed. Each has kept its own blocks alone, one device has lost even those; the model comes out of the
    directories, too."""
    rounds, names = 80, ("a", "b", "c", "d")
    how = {**HOW, "split": "replicate:m=2,n=1,copies=2"}
    async with Field(tmp_path, batch_s=BATCH_S) as field:
        await field.open()
        await field.add(*names, below=tmp_path / "kept", checkpoint_every=10)
        await field.train(**how, rounds=rounds, peers=4, timeout=300)
        await field.watch.until(lambda: field.watch.round >= 35)
        job = field.watch.picture.job
        assert job is not None
        for peer in field.peers.values():
            peer.signal(signal.SIGKILL)
        for peer in field.peers.values():
            await peer.end()
        before = max(field.watch.records)
        assert before < rounds
        for path in (tmp_path / "kept" / "b" / "checkpoints").iterdir():
            path.unlink()
        field.watch.records.clear()
        for name in names:
            field.peers[name] = await field.run(
                *("peer", "--broker", field.url, "--peer-id", name, "--checkpoint-every", 10),
                *("--state-dir", tmp_path / "kept" / name),
            )
        await field.watch.until(lambda: field.watch.round >= rounds)
        assert 30 < min(field.watch.records) <= before + 11  # a checkpoint later than the last round that was told
        done = {"a", "b", "c", "d"}
        await field.watch.until(
            lambda: {peer for (_, peer), said in field.watch.picture.reports.items() if said.state == "done"} == done
        )
        one, *others = sorted((tmp_path / "kept" / "a" / "checkpoints").glob("*.checkpoint"))
        export = await field.run("export", one, "model.npz")
        assert await export.end() == 2, export.everything()
        assert "has one device's part of a split job; name a directory with those of several" in export.err[0]
        for path in (one, *others):  # the others' blocks are enough
            path.write_bytes(b"damaged")
        export = await field.run("export", "kept", "model.npz")
        assert await export.end() == 0, export.everything()
        assert sum("left out" in line for line in export.err) >= len(others) + 1
    assert off(job, tmp_path / "model.npz") < 1e-5


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--split", "fountain"), "edgepeer: split = 'fountain': there is no split 'fountain', only none, codenet"),
        (("--split", SPLIT, "--peers", 11), "edgepeer: peers = 11: split codenet:m=2,n=2,t=1 takes 12"),
        (("--split", SPLIT, "--optimizer", "adam"), "edgepeer: optimizer = adam: split weights are coded"),
        (("--split", SPLIT, "--model", "cnn"), "edgepeer: model 'cnn': can't be split; take mlp"),
        (("--split", SPLIT, "--dataset", "local:x.npz"), "edgepeer: split = codenet:m=2,n=2,t=1: all peers need the"),
        (("--split", "codenet:m=20,n=2,t=1"), "edgepeer: split codenet: layer 1 is 10 x 513 with its bias and can't"),
        (("--split", SPLIT, "--code", "cyclic:s=1"), "edgepeer: code = cyclic:s=1: gradients aren't sent"),
        (("--l2", 0.1), "edgepeer: l2 = 0.1: only jobs with a split have it"),
    ],
)
async def test_what_can_not_be_split_is_refused_before_anything_is_announced(
    flags: tuple[object, ...], says: str, tmp_path: Path
) -> None:
    """No broker is there: none was asked for one."""
    async with Field(tmp_path) as field:
        given = ("--broker", "mqtt://127.0.0.1:9", "--model", "mlp-plain", "--optimizer", "sgd", *flags)
        run = await field.run("train", *given)
        assert await run.end() == 2, run.everything()
    assert len(run.err) == 1
    assert run.err[0].startswith(says)
