"""Jobs with a code: agents over real TCP end with the parameters of a run without one, and say what they did."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from peer_agents import agents, built_trainers, train
from test_peer_resume import Watcher

from edgepeer.errors import ConfigError, JobError
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.following.result import JobResult
from edgepeer.peer.round_log import LoggedRound
from edgepeer.training.batches import Batches
from edgepeer.training.build import make_trainer
from edgepeer.training.datasets import load_dataset
from edgepeer.training.job import Job, new_job
from edgepeer.training.sharding import shard_of
from edgepeer.training.state import parameter_digest
from edgepeer.training.trainer import Float32Vector

PEERS, ROUNDS = 7, 12


def job_of(**fields: object) -> Job:
    usual = {"trainer": "numpy", "model": "mlp-plain", "optimizer": "sgd", "learning_rate": 0.1, "rounds": ROUNDS}
    return new_job(**{**usual, "wait_for": PEERS, "batch_size": 40, **fields})


def train_alone(job: Job, parts: int) -> Float32Vector:
    """One process, each round the union of the batches of all parts, as many samples as seven peers' batches."""
    data = load_dataset(job.dataset)
    trainer = make_trainer(job, data)
    size = round(job.batch_size * PEERS / parts)
    shards = [shard_of(data, position=part, peers=parts, batch_size=size, seed=job.seed) for part in range(parts)]
    gradient = np.empty(trainer.size, np.float32)
    for number in range(1, job.rounds + 1):
        union = np.concatenate([shard.batch(number) for shard in shards])
        trainer.gradient(data.x_train[union], data.y_train[union], gradient, seed=number)
        trainer.apply(gradient)
    return trainer.parameters()


def distance(one: Float32Vector, other: Float32Vector) -> float:
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


def check_exact(result: JobResult, chunks: int) -> None:
    assert len(result.done) == PEERS
    assert result.identical
    assert [record.round for record in result.records] == list(range(1, ROUNDS + 1))
    for record in result.records:
        assert (record.exact, record.chunks, record.covered, record.error) == (True, chunks, chunks, 0)
    assert result.approximate == ()


@pytest.mark.parametrize(
    ("code", "chunks", "copies"),
    [
        ("partial:l=2,replication=3", 7, (1.9, 3)),
        ("partial:l=1,replication=2", 7, (1, 2)),
        ("cyclic:s=1", 7, (1.5, 2)),
        ("fractional:s=1", 6, (1, 14 / 6)),
        ("coded-reduce:s=1", 2, (1, 3)),
        ("graph:degree=4", 7, (1, 4)),
    ],
)
async def test_the_same_parameters_as_without_a_code(
    code: str,
    chunks: int,
    copies: tuple[float, float],
    broker_elsewhere: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = job_of(code=code)
    trainers = built_trainers(monkeypatch)
    async with agents(broker_elsewhere, PEERS):
        result = await train(broker_elsewhere, job)
    check_exact(result, chunks)
    found = [built.parameters() for built in trainers]
    assert {parameter_digest(parameters) for parameters in found} == set(result.digests.values())
    assert distance(found[0], train_alone(job, chunks)) < 1e-4
    assert result.computed is not None
    least, most = copies
    # Who has no chunks computes one all the same, in the first round: to see how long gradients are.
    assert least <= result.computed <= most + 1 / ROUNDS


async def test_nobody_loads_more_than_its_chunks(
    broker_elsewhere: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: dict[int, int] = {}
    keep = Batches.keep

    def kept(batches: Batches, wanted: set[int], parts: int) -> None:
        keep(batches, wanted, parts)
        held[id(batches)] = batches.held

    monkeypatch.setattr(Batches, "keep", kept)
    async with agents(broker_elsewhere, PEERS):
        await train(broker_elsewhere, job_of(code="partial:l=1,replication=3"))
    samples = len(load_dataset("digits").x_train)
    assert len(held) == PEERS
    assert sum(held.values()) == 3 * samples


async def test_stragglers_are_not_waited_for(broker_elsewhere: EmbeddedBroker, tmp_path: Path) -> None:
    """In each round another peer takes a minute. Its log shows the round all the same."""
    log = tmp_path / "rounds.jsonl"
    speed = "stragglers:0.01,6000,0.14"
    async with agents(broker_elsewhere, PEERS, device_speed=speed, round_log=log):
        result = await train(broker_elsewhere, job_of(code="cyclic:s=1"))
    check_exact(result, PEERS)
    without = [{f"p{number}" for number in range(PEERS)} - {*record.contributors} for record in result.records]
    assert all(len(left_out) == 1 for left_out in without)
    assert len(set().union(*without)) > 1
    lines = [msgspec.json.decode(line, type=LoggedRound) for line in log.read_bytes().splitlines()]
    assert len(lines) == PEERS * ROUNDS
    assert {(line.exact, line.covered) for line in lines} == {(True, PEERS)}


async def test_approximate_rounds_say_so(broker_elsewhere: EmbeddedBroker) -> None:
    async with agents(broker_elsewhere, PEERS, device_speed="stragglers:0,6000,0.28"):
        fast = await train(broker_elsewhere, job_of(code="first:s=2"))
        assert {(record.exact, record.covered, round(record.error, 6)) for record in fast.records} <= {
            (False, 5, 2.0), (False, 6, 1.0), (True, 7, 0.0),
        }  # fmt: skip
    async with agents(broker_elsewhere, PEERS, device_speed="stragglers:0.001,60000,0.28"):
        slow = await train(broker_elsewhere, job_of(code="partial:l=1,replication=1", wait="error<2.5"))
    assert [(record.exact, record.covered, record.error) for record in slow.records] == [(False, 5, 2.0)] * ROUNDS
    assert len(slow.approximate) == ROUNDS
    assert slow.identical


async def test_a_deadline_by_which_only_what_cancels_out_has_come_changes_nothing(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three workers the last has coefficients of 1 and -1. By rounding, something of a size that nobody knew was
    left of what it brought alone."""
    trainers = built_trainers(monkeypatch)
    async with (
        agents(broker, 1, device_speed="constant:600"),
        agents(broker, 1, peer_id="p1", device_speed="constant:600"),
        agents(broker, 1, peer_id="p2"),
    ):
        result = await train(broker, job_of(code="cyclic:s=1", wait="deadline:0.1", wait_for=3, rounds=3))
    assert [(record.samples, record.error, record.covered) for record in result.records] == [(0.0, 3.0, 0)] * 3
    before = make_trainer(job_of(), load_dataset("digits")).parameters()
    for trainer in trainers:
        np.testing.assert_array_equal(trainer.parameters(), before)


@pytest.mark.parametrize(
    ("fields", "settings", "said"),
    [
        ({"code": "nosuch:s=1"}, {}, "there is no code 'nosuch'"),
        ({"code": "cyclic:s=999999999"}, {}, "s must be a whole number from 1 on"),
        ({"code": "cyclic:s=33"}, {}, "s=33 is more than 32, the most that jobs may ask for"),
        ({"code": "partial:l=1,replication=999999"}, {}, "replication=999999 is more than 32"),
        ({"code": "\x00"}, {}, "there is no code"),
        (
            {"code": "cyclic:s=1", "wait": "whenever"},
            {},
            "wait = 'whenever': must be exact, error<E or deadline:SECONDS",
        ),
        ({"wait": "deadline:1"}, {}, "only coded rounds can end early"),
        ({"code": "cyclic:s=2"}, {}, "cyclic:s=2 with 2 workers"),
        ({"code": "coded-reduce:s=5"}, {}, "s must be below the fan-out"),
        ({"code": "cyclic:s=1", "dataset": "local:mine.npz"}, {}, "several peers must have the same data"),
        ({"code": "cyclic:s=1"}, {"dataset": "local:mine.npz"}, "several peers must have the same data"),
        ({"code": "cyclic:s=1"}, {"protocol": "ring"}, "rounds of protocol ring can't be coded; use protocol ft-tree"),
    ],
)
async def test_a_job_that_devices_can_not_do(
    fields: dict[str, object], settings: dict[str, object], said: str, broker_elsewhere: EmbeddedBroker
) -> None:
    """It fails there, with a line that says why; and the next one can be done."""
    async with agents(broker_elsewhere, 2, **settings):
        with pytest.raises(JobError) as caught:
            await train(broker_elsewhere, job_of(wait_for=2, **fields))
        assert "\n" not in str(caught.value)
        if not settings:
            result = await train(broker_elsewhere, job_of(wait_for=2, rounds=2))
            assert len(result.done) == 2
    assert said in str(caught.value)


async def test_a_code_for_other_trees_than_those_of_the_fleet_is_refused_before_it_is_announced(
    broker: EmbeddedBroker,
) -> None:
    job = job_of(code="coded-reduce:s=2", wait_for=3)
    async with Watcher.at(broker) as watcher, agents(broker, 1, fanout=2):
        await watcher.until_head("p0")
        with pytest.raises(
            ConfigError, match=r"can't be had on the trees of this fleet: .* fan-out 2: s must be below"
        ):
            await train(broker, job)
        assert watcher.jobs_seen == 0
