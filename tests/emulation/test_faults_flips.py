"""Soft errors on purpose: confirmed by what the peers themselves have written down, or the run fails."""

from __future__ import annotations

import asyncio

import pytest
from stage import DEADLINE_S, scene_of
from told import Divided

from edgepeer.emulation.faults.injector import FaultInjector
from edgepeer.emulation.faults.texts import read
from edgepeer.errors import JobError
from edgepeer.following.fault_table import fault_table
from edgepeer.following.progress import JobProgress
from edgepeer.following.result import JobResult
from edgepeer.following.texts import summary


@pytest.fixture
def told() -> Divided:
    return Divided()


@pytest.fixture
def running(told: Divided) -> JobProgress:
    return told.running()


class Playing:
    """A split job of ten rounds with flips."""

    def __init__(self, told: Divided, progress: JobProgress, *flips: str) -> None:
        self.told, self.progress = told, progress
        self._ended = asyncio.Event()
        self._seen = asyncio.Event()
        plan = [read("flip", text) for text in flips]
        self.injector = FaultInjector(plan, scene_of(), progress, refresh=self._seen.set, clock=lambda: 0.0)

    async def look(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            for _ in range(3):
                self._seen.clear()
                await self._seen.wait()

    async def job(self) -> JobResult:
        async with asyncio.timeout(DEADLINE_S):
            await self._ended.wait()
        return self.told.ended(self.progress, injected=1, found=1)

    def end(self) -> None:
        self._ended.set()


async def test_flips_are_confirmed_by_the_peers_own_records(told: Divided, running: JobProgress) -> None:
    play = Playing(told, running, "1@3", "1@9:kind=nan,place=product")
    following = asyncio.create_task(play.injector.accompany(play.job()))
    await play.look()
    assert list(running.notes) == []
    told.see_made(running, "birch", 5, told.error(3, place="product"), told.error(2), told.error(3, node=0))
    await play.look()
    assert list(running.notes) == [], "another place, another round, another node"
    told.see_made(running, "birch", 6, told.error(3))
    await play.look()
    assert list(running.notes) == ["round 8, 0.0 s: flip error in node 1 (birch), stored"]
    running.see_telemetry(told.telemetry(told.counted(8)))
    await play.look()
    told.see_made(running, "cedar", 10, told.error(9, kind="nan", place="product", step="forward 1"))
    play.end()
    result = await following
    assert [(fault.fields["target"], fault.first_round, fault.last_round) for fault in result.faults] == [
        ("node 1 (birch)", 3, 3),
        ("node 1 (cedar)", 9, 9),
    ]
    assert result.faults[1].fields["confirmed"] == {"peer": "cedar", "round": 9, "step": "forward 1"}
    assert ("", "nan error in node 1 (cedar), product: round 9", True) in list(summary(result))
    assert "cedar's own record, at forward 1" in fault_table(result)


async def test_a_flip_that_nobody_has_made_fails_the_run(told: Divided, running: JobProgress) -> None:
    play = Playing(told, running, "1@3")
    following = asyncio.create_task(play.injector.accompany(play.job()))
    await play.look()
    told.see_made(running, "birch", 5, told.error(4))
    play.end()
    with pytest.raises(BaseExceptionGroup) as caught:
        await following
    error = caught.value.exceptions[0]
    assert isinstance(error, JobError)
    assert str(error) == ("fault flip 1@3 was not confirmed: no peer says that it was node 1 in round 3 and did that")
