"""Fleets of real processes that lose most of their peers, or all: what goes on is a generation of its own."""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
from real_programs import Field

from edgepeer.ids import generation_order
from edgepeer.training.checkpoint import list_checkpoints, read_checkpoint

pytestmark = pytest.mark.slow

BATCH_S = 0.02
ROUNDS = 200
EARLY = 30
JOB = {"rounds": ROUNDS, "batch_size": 50, "eval_every": 200, "optimizer": "sgd", "learning_rate": 0.1}
NAMES = ("p0", "p1", "p2", "p3", "p4")


@pytest.fixture
async def field(tmp_path: Path) -> AsyncIterator[Field]:
    async with Field(tmp_path, batch_s=BATCH_S) as field:
        yield field


async def kill(field: Field, names: Iterable[str]) -> None:
    gone = list(names)
    for name in gone:
        field.peers[name].signal(signal.SIGKILL)
    for name in gone:
        assert await field.peers[name].end() == -signal.SIGKILL, field.peers[name].everything()


def generations(report: dict[str, Any]) -> dict[str, list[int]]:
    """The rounds that count, by the generation in which they ended: each in one that is no older than that of the round
    before. A coordinator that is killed takes its last records with it."""
    rounds = report["rounds_detail"]
    numbers = [detail["round"] for detail in rounds]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == ROUNDS
    found = {
        name: [detail["round"] for detail in details]
        for name, details in itertools.groupby(rounds, key=lambda detail: str(detail["generation"]))
    }
    assert list(found) == report["generations"] == sorted(found, key=generation_order)
    return found


async def status(field: Field) -> dict[str, Any]:
    said = await field.run("status", "--broker", field.url, "--json")
    assert await said.end() == 0, said.everything()
    found: dict[str, Any] = json.loads("\n".join(said.out))
    return found


async def test_those_who_are_left_keep_all_rounds_when_most_are_lost_and_come_back(field: Field) -> None:
    await field.open()
    await field.add(*NAMES, below=field.home)
    training = await field.train(peers=5, **JOB)
    await field.watch.until(lambda: field.watch.round >= EARLY)
    gone = [field.watch.members[at] for at in (0, 1, 3)]
    await kill(field, gone)
    left = sorted(field.names(but=gone))
    for name in left:
        await field.peers[name].said("waiting: 2 of 5 peers are in reach, too few to go on")
    said = await status(field)
    waits = {peer["id"]: peer["waits"] for peer in said["peers"]}
    assert any("too few to go on without the others; no answer from" in why for why in waits.values()), waits
    first, stood = said["view"]["generation"], 0
    for name in left:
        field.peers[name].signal(signal.SIGUSR1)
        standing = json.loads((await field.peers[name].said(r"asked how it stands: (.*)"))[1])
        stood = max(stood, standing["round"]["committed"])
    for name in gone:
        await field.add(name, below=field.home)
    report = await field.outcome(training)
    # On a machine with too much to do, somebody who has started anew may be out again, for seconds, as the job ends.
    assert set(left) < set(report["parameter_digests"]) <= set(NAMES)
    assert len(set(report["parameter_digests"].values())) == 1
    found = generations(report)
    assert next(iter(found)) == first
    # What those who were left had done is neither lost nor done again.
    assert EARLY <= found[first][-1] <= stood
    assert found[list(found)[1]][0] == stood + 1
    assert report["final"]["accuracy"] > 0.8


async def test_all_go_on_from_the_newest_checkpoint_when_all_were_lost(field: Field) -> None:
    await field.open()
    names = NAMES[:3]
    kept = {"checkpoint_every": 10}
    await field.add(*names, below=field.home, **kept)
    training = await field.train(peers=3, **JOB)
    await field.watch.until(lambda: field.watch.round >= EARLY)
    await kill(field, names)
    newest = [read_checkpoint(list_checkpoints(field.home / name / "checkpoints")[0]) for name in names]
    best = max(newest, key=lambda each: each.round)
    assert best.round >= EARLY - 10
    await field.watch.until(lambda: not field.watch.picture.peers)
    for name in names:
        await field.add(name, below=field.home, **kept)
    report = await field.outcome(training)
    assert set(report["parameter_digests"]) == set(names)
    assert len(set(report["parameter_digests"].values())) == 1
    found = generations(report)
    assert next(iter(found)) == str(best.generation)
    last = list(found)[-1]
    assert found[last][0] == best.round + 1  # no round that is on a disk is done again
    ends = {read_checkpoint(list_checkpoints(field.home / name / "checkpoints")[0]).generation for name in names}
    assert {str(end) for end in ends} == {last}
