"""A split job is done, and who wants the model asks for it: what devices have then, and what they say without it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from peer_fleet import DEADLINE_S
from test_peer_resume import Watcher, announce, devices

from edgepeer.errors import JobError
from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.fabric.documents import PeerReport
from edgepeer.fabric.events import FabricEvent, ReportSeen
from edgepeer.following.follow import run_job
from edgepeer.following.observe import observe
from edgepeer.following.parts import parts_from_fleet
from edgepeer.following.progress import JobProgress
from edgepeer.following.result import JobResult
from edgepeer.ids import PeerId
from edgepeer.peer.api import Peer
from edgepeer.peer.split_run import SplitRun
from edgepeer.training.job import new_job
from edgepeer.training.split.part import Part, pack_part
from edgepeer.training.split.whole import whole_model

NAMES = ("p0", "p1")
JOB = new_job(
    id="j1", model="mlp-plain", trainer="numpy", batch_size=20, rounds=12, wait_for=2, eval_every=5, scrub_every=4,
    split="none:m=1,n=2",
)  # fmt: skip
"""Each has a half of which there is no other."""


@dataclass
class Reports:
    """The last of each peer."""

    of: dict[str, PeerReport] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, event: FabricEvent) -> None:
        if isinstance(event, ReportSeen):
            self.of[event.report.peer] = event.report
            self._news.set()

    async def until_done(self, peer: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while peer not in self.of or self.of[peer].state != "done":
                self._news.clear()
                await self._news.wait()


async def parts_after_restarts(
    home: Path, restarted: Sequence[Sequence[str]], *, every: int, reports: Reports
) -> tuple[JobResult, list[Part]]:
    """Who wants the model asks when these were stopped and started after the end, each group when the one before has
    come to it again."""
    parts: list[Part] = []
    async with (
        EmbeddedBroker() as broker,
        observe(broker.address, "lab", reports.take),
        AsyncExitStack() as all_of_them,
    ):
        lives = {name: await all_of_them.enter_async_context(AsyncExitStack()) for name in NAMES}
        for name, life in lives.items():
            await life.enter_async_context(devices(broker, home, (name,), every=every))

        async def at_end(result: JobResult, withdrawn: asyncio.Event, at: BrokerAddress) -> None:
            for group in restarted:
                for name in group:
                    await lives[name].aclose()
                    del reports.of[name]
                for name in group:
                    await lives[name].enter_async_context(devices(broker, home, (name,), every=every))
                for name in group:
                    await reports.until_done(name)
            began = asyncio.get_running_loop().time()
            parts.extend(await parts_from_fleet(broker.address.url(), "lab", result, timeout=DEADLINE_S))
            assert asyncio.get_running_loop().time() - began < DEADLINE_S / 2

        progress = JobProgress(JOB, broker="embedded")
        how = {"broker": broker.address, "fabric": "lab", "timeout": DEADLINE_S, "at_end": at_end}
        return await run_job(progress, lambda _: None, **how), parts  # type: ignore[arg-type]  # of these names


@pytest.mark.parametrize("restarted", [("p0", "p1", "p0"), (NAMES, ("p1",))], ids=["one by one", "all and one more"])
async def test_who_is_restarted_after_the_end_has_its_blocks_from_its_checkpoint(
    tmp_path: Path, restarted: Sequence[Any]
) -> None:
    """Where all were, all go on from the last iteration: what they have in common is not what it was."""
    reports, groups = Reports(), [(each,) if isinstance(each, str) else each for each in restarted]
    result, parts = await parts_after_restarts(tmp_path, groups, every=10, reports=reports)
    assert {(part.node, part.iteration) for part in parts} == {(0, 12), (1, 12)}
    whole_model(JOB, parts)
    assert len({report.digest for report in reports.of.values()}) == 1
    assert result.identical
    assert sorted(report.cell for report in reports.of.values()) == [0, 1]


async def test_who_is_restarted_without_a_checkpoint_says_at_once_that_it_has_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reports = Reports()
    result, parts = await parts_after_restarts(tmp_path, [("p0",)], every=0, reports=reports)
    assert [part.node for part in parts] == [result.reports["p1"].cell]
    assert "p0 does not hand over its part: it has none" in caplog.messages
    assert (reports.of["p0"].cell, reports.of["p0"].held_bytes) == (-1, 0)
    assert reports.of["p1"].held_bytes > 0
    with pytest.raises(JobError, match="from 1 parts: the blocks of 1 of 2 nodes don't determine the matrix"):
        whole_model(JOB, parts)


async def test_blocks_that_are_asked_for_again_are_packed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else who asks again and again, and reads nothing, would have this device hold them as often."""
    packed: list[Part] = []

    def pack(part: Part) -> bytes:
        packed.append(part)
        return pack_part(part)

    monkeypatch.setattr("edgepeer.peer.split_run.pack_part", pack)
    found: list[list[Part]] = []

    async with EmbeddedBroker() as broker, devices(broker, tmp_path, NAMES, every=0):

        async def at_end(result: JobResult, withdrawn: asyncio.Event, at: BrokerAddress) -> None:
            for _ in range(3):
                found.append(await parts_from_fleet(broker.address.url(), "lab", result, timeout=DEADLINE_S))

        progress = JobProgress(JOB, broker="embedded")
        how = {"broker": broker.address, "fabric": "lab", "timeout": DEADLINE_S, "at_end": at_end}
        await run_job(progress, lambda _: None, **how)  # type: ignore[arg-type]  # of these names
    assert [sorted(part.node for part in each) for each in found] == [[0, 1]] * 3
    assert sorted(part.node for part in packed) == [0, 1]


async def test_who_has_no_part_of_anything_says_so_at_once(broker: EmbeddedBroker) -> None:
    """It is at no job, or at none that has parts."""
    async with Peer(broker.address.url(), "lab", peer_id="p0"):
        assert await asked_for_its_part(broker) == []


async def asked_for_its_part(broker: EmbeddedBroker) -> list[Part]:
    """What p0 gives, as one who had said that it has some."""
    report = PeerReport(job="j1", peer="p0", state="done", round=12, cell=0)
    result = JobResult(job=JOB, broker="", reports={"p0": report}, records=(), missing=(), quality=None, loss=None)
    async with asyncio.timeout(DEADLINE_S):
        return await parts_from_fleet(broker.address.url(), "lab", result, timeout=10 * DEADLINE_S)


async def test_so_does_who_fails_and_has_been_asked_before(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked, give = asyncio.Event(), SplitRun._give_part

    async def prepare(run: SplitRun) -> None:
        await asked.wait()
        raise JobError("no room")

    def give_and_note(run: SplitRun, peer: PeerId, name: str) -> None:
        give(run, peer, name)
        asked.set()

    monkeypatch.setattr(SplitRun, "_prepare", prepare)
    monkeypatch.setattr(SplitRun, "_give_part", give_and_note)
    async with Watcher.at(broker) as watcher, devices(broker, tmp_path, ("p0",)):
        await announce(broker, JOB)
        async with asyncio.timeout(DEADLINE_S):
            while "p0" not in watcher.reports:
                watcher._news.clear()
                await watcher._news.wait()
        assert await asked_for_its_part(broker) == []
    assert asked.is_set()
    assert "p0 does not hand over its part: it has none" in caplog.messages
