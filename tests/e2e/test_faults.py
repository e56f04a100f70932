"""Fleets of real processes that lose and gain peers, and their broker, in the middle of a training."""

from __future__ import annotations

import asyncio
import re
import signal
import statistics
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fleets import Fleet
from real_programs import DEADLINE_S, Field, Program

from edgepeer.fabric.mosquitto import Mosquitto, find_mosquitto

pytestmark = pytest.mark.slow

BATCH_S = 0.02
BRAKE = 10
ROUNDS = 100
EARLY = 10
PATIENCE_S = 10.0
"""A process may stand still for seconds, and each round waits for all."""
JOB = {"peers": 2, "rounds": ROUNDS, "batch_size": 50, "eval_every": ROUNDS, "optimizer": "sgd", "learning_rate": 0.1}
NAMES = ("p0", "p1", "p2", "p3")


@pytest.fixture
async def field(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Field]:
    fleet = Fleet(tmp_path / "members", "default") if getattr(request, "param", "plain") == "sealed" else None
    async with Field(tmp_path, fleet, batch_s=BATCH_S, brake=BRAKE) as field:
        yield field


sealed = pytest.mark.parametrize("field", ["sealed"], indirect=True)
"""With members of a fleet, whose links are sealed and whose documents are signed. To the machines it is the same: so
each way to lose somebody or something, and to have it again, is gone through in one of the two."""


async def in_full_swing(field: Field) -> None:
    """Wait until the job is well under way, and far from its end, for which the devices must be let go."""
    watch = field.watch
    await watch.until(lambda: watch.round >= EARLY)
    assert watch.round < ROUNDS // 2, "the job is too short for this machine"


async def out(field: Field, *names: str) -> None:
    """Wait until the others go on without them, and let these come to the end."""
    await field.watch.until(lambda: not set(names) & set(field.watch.members))
    field.let_go()


def longest(report: dict[str, Any], first: int, last: int) -> float:
    """The seconds of the slowest round from the first to the last of these."""
    return max(detail["seconds"] for detail in report["rounds_detail"] if first <= detail["round"] <= last)


def check(field: Field, report: dict[str, Any], finished: set[str]) -> None:
    """What must be true of every training."""
    assert set(report["parameter_digests"]) == finished
    assert len(set(report["parameter_digests"].values())) == 1
    rounds = [detail["round"] for detail in report["rounds_detail"]]
    assert rounds == sorted(set(rounds))
    assert rounds[-1] == report["rounds"]
    assert report["final"]["accuracy"] > 0.8


def contributors(report: dict[str, Any], number: int) -> set[str]:
    return next(set(d["contributors"]) for d in report["rounds_detail"] if d["round"] == number)


@pytest.mark.parametrize("place", ["coordinator", "leaf"])
async def test_a_peer_is_told_to_stop(place: str, field: Field) -> None:
    await field.open()
    await field.add(*NAMES, below=field.home)
    training = await field.train(**JOB)
    await in_full_swing(field)
    gone = field.watch.members[{"coordinator": 0, "inner": 1, "leaf": 3}[place]]
    at = field.watch.round
    field.peers[gone].signal(signal.SIGTERM)
    assert await field.peers[gone].end() == 0, field.peers[gone].everything()
    await out(field, gone)
    report = await field.outcome(training)
    check(field, report, field.names(but=[gone]))
    assert contributors(report, EARLY) == set(NAMES)
    assert contributors(report, ROUNDS) == set(NAMES) - {gone}
    assert report["view_epochs"] >= 2
    # Graceful: no round waited for it, only the one under way may say that somebody is missing.
    assert sum(not detail["exact"] for detail in report["rounds_detail"]) <= 1
    assert longest(report, at + 1, ROUNDS) < PATIENCE_S + longest(report, 2, at)  # on a busy machine all take longer


@pytest.mark.parametrize(("place", "field"), [("coordinator", "sealed"), ("inner", "plain")], indirect=["field"])
async def test_a_peer_is_killed(place: str, field: Field) -> None:
    await field.open()
    await field.add(*NAMES, below=field.home)
    training = await field.train(**JOB)
    await in_full_swing(field)
    gone = field.watch.members[{"coordinator": 0, "inner": 1, "leaf": 3}[place]]
    field.peers[gone].signal(signal.SIGKILL)
    assert await field.peers[gone].end() == -signal.SIGKILL, field.peers[gone].everything()
    await out(field, gone)
    report = await field.outcome(training)
    check(field, report, field.names(but=[gone]))
    assert contributors(report, EARLY) == set(NAMES)
    assert contributors(report, ROUNDS) == set(NAMES) - {gone}
    assert report["view_epochs"] >= 2
    assert f"{gone} is gone" in training.everything()


async def test_two_of_five_are_killed_at_once(field: Field) -> None:
    await field.open()
    await field.add(*NAMES, "p4", below=field.home)
    training = await field.train(**JOB)
    await in_full_swing(field)
    gone = [field.watch.members[0], field.watch.members[1]]
    for name in gone:
        field.peers[name].signal(signal.SIGKILL)
    await out(field, *gone)
    report = await field.outcome(training)
    check(field, report, field.names(but=gone))


async def test_half_of_the_fleet_is_too_few_and_goes_on_when_one_is_back(field: Field) -> None:
    """Neither half can know that the other is dead, so it waits, and says so."""
    await field.open()
    await field.add(*NAMES, below=field.home)
    training = await field.train(**JOB)
    await in_full_swing(field)
    gone = [field.watch.members[0], field.watch.members[1]]
    for name in gone:
        field.peers[name].signal(signal.SIGKILL)
    for name in field.names(but=gone):
        await field.peers[name].said("waiting: 2 of 4 peers are in reach, too few to go on")
    stood = field.watch.round
    assert stood < ROUNDS
    await field.add(gone[1], below=field.home)
    field.let_go()
    report = await field.outcome(training)
    check(field, report, field.names(but=[gone[0]]))
    assert report["view_epochs"] >= 2


async def test_a_peer_freezes(field: Field) -> None:
    await field.open()
    await field.add(*NAMES, below=field.home)
    training = await field.train(**JOB)
    await in_full_swing(field)
    frozen = field.watch.members[1]
    field.peers[frozen].signal(signal.SIGSTOP)
    await out(field, frozen)
    report = await field.outcome(training)
    assert set(report["parameter_digests"]) >= field.names(but=[frozen])
    assert len(set(report["parameter_digests"].values())) == 1


async def test_a_peer_comes_late(field: Field) -> None:
    await field.open()
    await field.add(*NAMES, below=field.home)
    training = await field.train(**JOB)
    await in_full_swing(field)
    await field.add("late", below=field.home)
    field.let_go()
    report = await field.outcome(training)
    check(field, report, {*NAMES, "late"})
    assert contributors(report, EARLY) == set(NAMES)
    assert contributors(report, ROUNDS) == {*NAMES, "late"}


@sealed
async def test_a_killed_peer_comes_back(field: Field) -> None:
    await field.open()
    await field.add(*NAMES, below=field.home)
    training = await field.train(**JOB)
    await in_full_swing(field)
    field.peers["p3"].signal(signal.SIGKILL)
    await field.watch.until(lambda: "p3" not in field.watch.members)
    await field.add("p3", below=field.home)
    field.let_go()
    report = await field.outcome(training)
    check(field, report, set(NAMES))
    assert contributors(report, ROUNDS) == set(NAMES)


@sealed
async def test_the_embedded_broker_is_killed_and_comes_back(field: Field) -> None:
    await field.open()
    training, at = await well_under_way(field)
    assert field.broker is not None
    field.broker.signal(signal.SIGKILL)
    await training.said("lost the broker")
    await rounds_go_on(field)
    await field.start_broker(field.url.partition("://")[2])
    await check_undisturbed(field, training, at)


async def test_mosquitto_is_killed_and_comes_back(field: Field) -> None:
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed")
    async with Mosquitto() as broker:
        await field.open(broker.address.url())
        training, at = await well_under_way(field)
        await broker.stop()
        await training.said("lost the broker")
        await rounds_go_on(field)
        await broker.start()
        await check_undisturbed(field, training, at)


async def well_under_way(field: Field) -> tuple[Program, int]:
    """A training of peers that write down their rounds, and the last one that is known to be over."""
    for name in NAMES:
        await field.add(name, below=field.home, round_log=f"{name}.rounds")
    training = await field.train(**JOB)
    await in_full_swing(field)
    return training, field.watch.round


async def rounds_go_on(field: Field) -> None:
    """Wait until each peer has had ten more, whoever can hear of them."""

    def done() -> int:
        return min((field.home / f"{name}.rounds").read_bytes().count(b"\n") for name in NAMES)

    enough = done() + 10
    async with asyncio.timeout(DEADLINE_S):
        while done() < enough:  # noqa: ASYNC110  # a file tells nobody
            await asyncio.sleep(0.01)  # looks again, until the deadline


async def check_undisturbed(field: Field, training: Program, at: int) -> None:
    """Not one round noticed that the broker was away, from about round `at` on. (Who follows the job may have missed
    some of the rounds.)"""
    before = field.watch.round
    await field.watch.until(lambda: field.watch.round > before)  # all can be heard again ...

    def heard_later() -> bool:
        return any((found := re.match(r"round (\d+)/", line)) and int(found[1]) > before for line in training.out)

    await training.until(heard_later)  # ... by whoever follows the job, too, which may come back later
    field.let_go()
    report = await field.outcome(training)
    check(field, report, set(NAMES))
    assert report["view_epochs"] == 1
    assert contributors(report, ROUNDS) == set(NAMES)
    assert all(detail["exact"] for detail in report["rounds_detail"])
    heard = [detail["seconds"] for detail in report["rounds_detail"] if 2 <= detail["round"] <= at]
    usual = max(heard) if heard else statistics.median(detail["seconds"] for detail in report["rounds_detail"])
    assert longest(report, at + 1, ROUNDS) < PATIENCE_S + usual


async def test_all_peers_are_killed(field: Field) -> None:
    await field.open()
    await field.add("p0", "p1", below=field.home)
    training = await field.train(**JOB, timeout=8)
    await in_full_swing(field)
    for peer in field.peers.values():
        peer.signal(signal.SIGKILL)
    async with asyncio.timeout(DEADLINE_S):
        assert await training.end() == 1, training.everything()
    assert len(training.err) >= 1
    assert training.err[-1].startswith("edgepeer: nothing has moved for 8 s: ")
    # Who gave up was this terminal: the job is the fabric's, and who comes back does it.
    assert training.err[-1].endswith("goes on when it can: end it with edgepeer train --withdraw")
    await field.add("p0", "p1", below=field.home)
    field.let_go()
    for name in ("p0", "p1"):
        await field.peers[name].said(f"done after round {ROUNDS}")
