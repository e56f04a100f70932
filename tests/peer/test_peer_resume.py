"""A fleet that has lost everything but its checkpoints goes on as if nothing had been."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import shutil
import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from peer_agents import Patient, train
from peer_fleet import DEADLINE_S

from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.fabric.client import FabricClient
from edgepeer.fabric.documents import JobOver, PeerReport
from edgepeer.fabric.events import FabricEvent, JobSeen, ReportSeen, ViewSeen
from edgepeer.peer.agent import run_agent
from edgepeer.peer.checkpoints import Checkpoints
from edgepeer.peer.machines import FtTree
from edgepeer.peer.run import REGATHER_S
from edgepeer.settings import PeerSettings
from edgepeer.training.checkpoint import list_checkpoints, read_checkpoint, write_checkpoint
from edgepeer.training.job import Job, new_job
from edgepeer.wire.documents import unpack

JOB = new_job(
    id="j1", model="linear", trainer="numpy", optimizer="adam", batch_size=20, rounds=60, wait_for=3, eval_every=1000
)
NEXT = new_job(id="j2", model="linear", trainer="numpy", rounds=20, wait_for=3)
NAMES = ("p0", "p1", "p2")


@contextlib.asynccontextmanager
async def devices(
    broker: EmbeddedBroker,
    home: Path,
    names: Sequence[str] = NAMES,
    *,
    regather_s: float = REGATHER_S,
    every: int = 10,
) -> AsyncIterator[None]:
    """Agents with state directories under `home`; they leave when the context ends."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for name in names:
            settings = PeerSettings(
                broker=broker.address.url(),
                fabric="lab",
                peer_id=name,
                state_dir=home / name,
                checkpoint_every=every,
                checkpoint_keep=1000,
            )
            tasks.create_task(run_agent(settings, machine=Patient(FtTree()), stop=stop, regather_s=regather_s))
        try:
            yield
        finally:
            stop.set()


class Watcher:
    """Sees the fabric's job and its peers' last reports."""

    def __init__(self) -> None:
        self.job: Job | None = None
        self.jobs_seen = 0
        self.run = ""
        self.head = ""
        """Of the last view that was seen."""
        self.sizes: list[int] = []
        """How many were in the views in which the run went on."""
        self.reports: dict[str, PeerReport] = {}
        self._news = asyncio.Event()

    @classmethod
    @contextlib.asynccontextmanager
    async def at(cls, broker: EmbeddedBroker) -> AsyncIterator[Watcher]:
        watcher = cls()
        client = FabricClient(broker.address, "lab", "watcher", on_event=watcher._take)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.run())
            await client.connected()
            yield watcher
            await client.close()

    def _take(self, event: FabricEvent) -> None:
        match event:
            case ReportSeen(report):
                self.reports[report.peer] = report
            case ViewSeen(view):
                self.run, self.head = view.run, view.coordinator
                if view.run:
                    self.sizes.append(view.size)
            case JobSeen(payload):
                self.jobs_seen += payload is not None
                self.job = None if payload is None else unpack(payload, Job)
        self._news.set()

    async def until_done(self, *names: str) -> dict[str, PeerReport]:
        async with asyncio.timeout(DEADLINE_S):
            while any(name not in self.reports or self.reports[name].state != "done" for name in names):
                self._news.clear()
                await self._news.wait()
        return self.reports

    async def until_begun(self, run: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while self.run != run:
                self._news.clear()
                await self._news.wait()

    async def until_head(self, name: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while self.head != name:
                self._news.clear()
                await self._news.wait()

    async def until(self, job: Job | None) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while self.job != job:
                self._news.clear()
                await self._news.wait()


@contextlib.asynccontextmanager
async def said(text: str) -> AsyncIterator[asyncio.Event]:
    """Is set when somebody logs a line with this text."""
    heard = asyncio.Event()

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if text in record.getMessage():
                heard.set()

    ear, log = Ear(), logging.getLogger("edgepeer")
    log.addHandler(ear)
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield heard
    finally:
        log.removeHandler(ear)


async def announce(broker: EmbeddedBroker, job: Job | JobOver | None) -> None:
    """As somebody does who trains, or takes back what is trained."""
    client = FabricClient(broker.address, "lab", "user", on_event=lambda _: None)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(client.run())
        await client.connected()
        client.publish_retained(client.topics.job, job)
        await client.close()


def rounds_kept(home: Path, name: str) -> list[int]:
    return [read_checkpoint(path).round for path in list_checkpoints(home / name / "checkpoints")]


def power_failed(home: Path, then: Path, **last: int) -> Path:
    """The state directories as they would be had the power failed after each device's checkpoint of that round."""
    shutil.copytree(home, then)
    for name, number in last.items():
        (then / name / "checkpoints" / "over.json").unlink()
        for path in list_checkpoints(then / name / "checkpoints"):
            if read_checkpoint(path).round > number:
                path.unlink()
    return then


@pytest.fixture
async def uninterrupted(tmp_path: Path, broker: EmbeddedBroker) -> tuple[Path, str]:
    """The state directories of a fleet that has trained to the end, and the digest of its parameters."""
    home = tmp_path / "uninterrupted"
    async with devices(broker, home):
        result = await train(broker, JOB)
    assert set(result.done) == set(NAMES)  # in the order in which they came to the end
    assert result.identical
    return home, result.digests["p0"]


async def resumed(home: Path) -> dict[str, str]:
    """The digests that a fleet with these state directories, and a new broker, ends with."""
    async with EmbeddedBroker() as fresh, Watcher.at(fresh) as watcher, devices(fresh, home):
        reports = await watcher.until_done(*NAMES)
        assert watcher.job == JOB
        return {name: report.digest for name, report in reports.items()}


@pytest.mark.parametrize(
    "last",
    [
        {"p0": 30, "p1": 30, "p2": 30},
        {"p0": 40, "p1": 30, "p2": 20},
        {"p0": 20, "p1": 30, "p2": 40},
        {"p0": 50, "p1": 0, "p2": 40},
    ],
    ids=str,
)
async def test_a_fleet_that_lost_power_ends_with_the_same_bits(
    tmp_path: Path, uninterrupted: tuple[Path, str], last: dict[str, int]
) -> None:
    home, digest = uninterrupted
    then = power_failed(home, tmp_path / "then", **last)
    assert await resumed(then) == dict.fromkeys(NAMES, digest)
    newest = max(last.values())
    # Nobody has computed a round anew that somebody still had.
    for name, number in last.items():
        assert sorted(rounds_kept(then, name)) == sorted({*range(10, number + 1, 10), *range(newest + 10, 61, 10)})


async def test_a_torn_checkpoint_is_passed_over(
    tmp_path: Path, uninterrupted: tuple[Path, str], caplog: pytest.LogCaptureFixture
) -> None:
    home, digest = uninterrupted
    then = power_failed(home, tmp_path / "then", p0=30, p1=30, p2=30)
    for name in NAMES:
        newest = list_checkpoints(then / name / "checkpoints")[0]
        newest.write_bytes(newest.read_bytes()[:-100])
    with caplog.at_level(logging.INFO):
        assert await resumed(then) == dict.fromkeys(NAMES, digest)
    assert "goes on after round 20" in caplog.text
    assert f"{newest}: cut short" in caplog.text
    assert "the checkpoint before it is used" in caplog.text


async def test_a_run_that_is_interrupted_while_it_trains(
    tmp_path: Path, uninterrupted: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, digest = uninterrupted
    home, then = tmp_path / "home", tmp_path / "then"
    saved, loop, save = asyncio.Event(), asyncio.get_running_loop(), Checkpoints.save

    def save_and_tell(*arguments: Any, **options: Any) -> None:
        save(*arguments, **options)
        loop.call_soon_threadsafe(saved.set)

    monkeypatch.setattr(Checkpoints, "save", save_and_tell)
    async with EmbeddedBroker() as first, devices(first, home):
        training = asyncio.create_task(train(first, JOB))
        async with asyncio.timeout(DEADLINE_S):
            while not all(len(list_checkpoints(home / name / "checkpoints")) >= 2 for name in NAMES):
                saved.clear()
                await saved.wait()
        # What is on the disks at this moment is what a power failure would leave.
        shutil.copytree(home, then, ignore=shutil.ignore_patterns("*.unfinished"))
        await training
    assert not (then / "p0" / "checkpoints" / "over.json").exists()
    assert await resumed(then) == dict.fromkeys(NAMES, digest)


async def test_a_peer_that_reads_its_checkpoint_slowly_is_waited_for(
    tmp_path: Path, uninterrupted: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, digest = uninterrupted
    then = power_failed(home, tmp_path / "then", p0=30, p1=30, p2=30)
    begun, restore = threading.Event(), Checkpoints.restore

    async with EmbeddedBroker() as fresh, Watcher.at(fresh) as watcher:

        def restore_late(store: Checkpoints, *arguments: Any) -> Any:
            until = time.monotonic() + DEADLINE_S
            # On a busy machine each may have begun alone: then it isn't always p0 whose view the others come to be in.
            while not begun.wait(0.01) and watcher.head != store.directory.parent.name:
                assert time.monotonic() < until
            return restore(store, *arguments)

        monkeypatch.setattr(Checkpoints, "restore", restore_late)
        async with devices(fresh, then):
            await watcher.until_begun("j1")  # the head has begun the run, and the others are not done with reading
            begun.set()
            reports = await watcher.until_done(*NAMES)
            assert {report.digest for report in reports.values()} == {digest}


async def test_who_had_come_to_the_end_in_a_generation_that_is_given_up_goes_on_with_the_others(
    tmp_path: Path, uninterrupted: tuple[Path, str]
) -> None:
    """They had begun again without it, further back, and had lost power once more."""
    home, digest = uninterrupted
    then = power_failed(home, tmp_path / "then", p0=60, p1=30, p2=30)
    for name in ("p1", "p2"):
        directory = then / name / "checkpoints"
        last = read_checkpoint(list_checkpoints(directory)[0])
        assert last.generation is not None
        later = msgspec.structs.replace(last.generation, counter=last.generation.counter + 1)
        write_checkpoint(directory, dataclasses.replace(last, generation=later))
    assert await resumed(then) == dict.fromkeys(NAMES, digest)
    assert rounds_kept(then, "p0")[:2] == [60, 50]


async def test_a_majority_goes_on_without_the_others(tmp_path: Path, uninterrupted: tuple[Path, str]) -> None:
    home, _ = uninterrupted
    then = power_failed(home, tmp_path / "then", p0=30, p1=30, p2=30)
    async with (
        EmbeddedBroker() as fresh,
        Watcher.at(fresh) as watcher,
        devices(fresh, then, ("p0", "p2"), regather_s=0.5),
    ):
        reports = await watcher.until_done("p0", "p2")
        assert reports["p0"].digest == reports["p2"].digest != ""
        async with devices(fresh, then, ("p1",)):  # comes when all is over, and gets what the others have
            reports = await watcher.until_done("p1")
            assert reports["p1"].digest == reports["p0"].digest


async def test_a_minority_waits(
    tmp_path: Path, uninterrupted: tuple[Path, str], caplog: pytest.LogCaptureFixture
) -> None:
    home, _ = uninterrupted
    then = power_failed(home, tmp_path / "then", p0=30, p1=30, p2=30)
    caplog.set_level(logging.INFO)
    async with (
        EmbeddedBroker() as fresh,
        Watcher.at(fresh) as watcher,
        said("2 of its 3 peers are enough from now on") as enough,
        devices(fresh, then, ("p1",), regather_s=0.2),
    ):
        await watcher.until(JOB)
        await enough.wait()
        # What one of three could do alone it would do now, before others are even started.
        assert watcher.run == ""
        async with devices(fresh, then, ("p0", "p2"), regather_s=0.2):
            reports = await watcher.until_done(*NAMES)
            # Whoever of them came first, two were enough: the bits may be others, but they are the same.
            assert len({report.digest for report in reports.values()}) == 1
    assert all(reports[name].state == "done" for name in NAMES)
    assert watcher.sizes[0] >= 2


async def test_a_broker_that_still_keeps_a_job_that_is_over_keeps_none_from_its_end(
    tmp_path: Path, uninterrupted: tuple[Path, str]
) -> None:
    """Another one of the list, say, that was not in use for a while."""
    home, digest = uninterrupted
    then = power_failed(home, tmp_path / "then", p0=30, p1=30, p2=30)
    for name in NAMES:
        store = Checkpoints(then / name, every=10, keep=3)
        for how in ("done", "withdrawn"):
            store.mark_over("j0", how)  # type: ignore[arg-type]  # of the two
    old = new_job(id="j0", model="linear", trainer="numpy", rounds=20, wait_for=3)
    async with EmbeddedBroker() as stale, Watcher.at(stale) as watcher:
        await announce(stale, old)
        await watcher.until(old)
        async with devices(stale, then):
            reports = await watcher.until_done(*NAMES)
    assert watcher.job == JOB
    assert {report.digest for report in reports.values()} == {digest}


async def test_a_job_that_is_over_is_not_taken_up_again(
    tmp_path: Path, uninterrupted: tuple[Path, str], caplog: pytest.LogCaptureFixture
) -> None:
    home, _ = uninterrupted
    assert Checkpoints(home / "p0", every=10, keep=3).unfinished() is None
    with caplog.at_level(logging.INFO):
        async with EmbeddedBroker() as fresh, Watcher.at(fresh) as watcher, devices(fresh, home):
            job = new_job(id="j2", model="linear", trainer="numpy", rounds=20, wait_for=3)
            assert (await train(fresh, job)).identical
            assert watcher.jobs_seen == 1
    assert "taken up again" not in caplog.text


async def test_a_withdrawn_job_is_not_taken_up_again(
    tmp_path: Path, uninterrupted: tuple[Path, str], caplog: pytest.LogCaptureFixture
) -> None:
    home, _ = uninterrupted
    then = power_failed(home, tmp_path / "then", p0=30, p1=30, p2=30)
    async with EmbeddedBroker() as fresh, Watcher.at(fresh) as watcher, devices(fresh, then, ("p0",)):
        await watcher.until(JOB)
        await announce(fresh, None)
        await watcher.until(None)
    store = Checkpoints(then / "p0", every=10, keep=3)
    assert store.unfinished() is None
    assert store.ending("j1") == "withdrawn"
    # p1 had not heard of it; p0 has, and sees to it.
    async with EmbeddedBroker() as fresh, Watcher.at(fresh) as watcher, devices(fresh, then, ("p1",)):
        await watcher.until(JOB)
        async with devices(fresh, then, ("p0",)):
            await watcher.until(None)
    assert Checkpoints(then / "p1", every=10, keep=3).unfinished() is None


@pytest.mark.parametrize("said", [JobOver(over="j1"), NEXT], ids=["withdrawn", "replaced"])
async def test_who_was_off_when_its_job_was_withdrawn_does_not_take_it_up_in_a_later_life_either(
    tmp_path: Path, uninterrupted: tuple[Path, str], said: Job | JobOver
) -> None:
    """It may be alone then, and beside a broker that has lost its memory."""
    home, _ = uninterrupted
    then = power_failed(home, tmp_path / "then", p0=30, p1=30, p2=30)
    async with EmbeddedBroker() as fresh, Watcher.at(fresh) as watcher:
        await announce(fresh, said)
        async with devices(fresh, then, ("p0",)):
            await watcher.until_head("p0")
    store = Checkpoints(then / "p0", every=10, keep=3)
    assert store.unfinished() is None
    assert store.ending("j1") == "withdrawn"


async def test_a_withdrawn_job_is_not_begun_anew_by_who_keeps_no_checkpoints(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The site loses power, and the broker has on its disk what it knew before."""
    caplog.set_level(logging.INFO)
    job = new_job(id="j1", model="linear", trainer="numpy", rounds=1_000_000, wait_for=1)
    async with EmbeddedBroker() as broker, devices(broker, tmp_path, ("p0",), every=0):
        async with said("job j1: running") as heard:
            await announce(broker, job)
            await heard.wait()
        async with said("job j1 is over") as heard:
            await announce(broker, None)
            await heard.wait()
    async with EmbeddedBroker() as before, Watcher.at(before) as watcher:
        await announce(before, job)
        await watcher.until(job)
        async with devices(before, tmp_path, ("p0",), every=0):
            await watcher.until(None)
            await watcher.until_head("p0")
        assert "p0" not in watcher.reports
