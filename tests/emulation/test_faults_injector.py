"""The injector beside a job that the test plays: what comes when, what fails the run, and that nobody stays stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from stage import DEADLINE_S, Crew, Memory, crew, scene_of, until
from told import Told

from edgepeer.emulation.faults.injector import FaultInjector
from edgepeer.emulation.faults.kinds import PlannedFault
from edgepeer.emulation.faults.proc import state_of
from edgepeer.emulation.faults.scene import Scene
from edgepeer.emulation.faults.texts import read
from edgepeer.errors import JobError
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.following.marks import Marks
from edgepeer.following.progress import JobProgress
from edgepeer.following.result import JobResult


@pytest.fixture
def told() -> Told:
    return Told()


class Play:
    """A job of ten rounds: one after the other when the test says so."""

    def __init__(self, told: Told, scene: Scene, *faults: tuple[str, str], clock: Callable[[], float]) -> None:
        self.told = told
        self.progress = JobProgress(told.job, broker="")
        plan: list[PlannedFault] = [read(kind, text) for kind, text in faults]
        self.injector = FaultInjector(plan, scene, self.progress, refresh=self._refresh, clock=clock)
        self._refreshed = asyncio.Event()
        self._ended = asyncio.Event()

    def _refresh(self) -> None:
        self._refreshed.set()

    async def look(self) -> None:
        """Until the injector has seen what is known now, and has done what follows."""
        async with asyncio.timeout(DEADLINE_S):
            for _ in range(3):
                self._refreshed.clear()
                await self._refreshed.wait()

    async def round(self, number: int) -> None:
        self.progress.see_telemetry(self.told.telemetry(self.told.record(number)))
        await self.look()

    async def job(self) -> JobResult:
        async with asyncio.timeout(DEADLINE_S):
            await self._ended.wait()
        return self.progress.result()

    def end(self) -> None:
        for peer in self.told.peers:
            self.progress.see_report(self.told.report(peer))
        self._ended.set()


def reasons(group: BaseExceptionGroup[BaseException]) -> list[str]:
    found: list[str] = []
    for error in group.exceptions:
        found += reasons(error) if isinstance(error, BaseExceptionGroup) else [str(error)]
    return found


async def test_faults_come_and_go_in_their_rounds(told: Told) -> None:
    network, now = Memory(), 100.0
    async with crew(names=("p00", "p01"), busy=True) as running, EmbeddedBroker() as broker:
        scene = scene_of(running, network, broker=broker)
        faults = [
            ("cut", "3-1@2..3"),
            ("pause", "0@3..4"),
            ("kill", "1@3"),
            ("restart", "1@5"),
            ("broker_down", "6..6"),
            ("slow", "0x4@7.."),
        ]
        play = Play(told, scene, *faults, clock=lambda: now)

        def marks() -> Marks:
            return play.progress.marks

        following = asyncio.create_task(play.injector.accompany(play.job()))
        await play.look()
        now = 150.0  # nothing has begun: time does not count yet
        await play.look()
        assert network.in_force == set()
        play.progress.see_report(told.report("ash", "running", round=0))
        await play.look()
        await play.round(1)
        assert network.in_force == {("p03", "p01"), ("p01", "p03")}
        assert marks().broken("p01", "p03")
        network.counts["p01", "p03"] = 5
        killed = running.process("p01").pid
        now = 151.5
        await play.round(2)
        assert state_of(running.process("p00").pid) == "T"
        assert state_of(killed) == ""
        assert marks().paused == {"p00"}
        assert marks().killed == {"p01"}
        await play.round(3)
        assert network.in_force == set()
        await play.round(4)
        assert state_of(running.process("p00").pid) == "R"
        assert running.process("p01").pid != killed
        assert marks().labels == ()
        await play.round(5)
        assert marks().labels == ("broker down",)
        await play.round(6)
        assert marks().labels != ("broker down",)
        assert marks().slow == {"p00"}
        play.progress.see_telemetry(told.telemetry(*(told.record(number) for number in range(7, 11))))
        await until(lambda: not marks().slow or following.done())
        play.end()
        result = await following
    table = {fault.fields["kind"]: (fault.first_round, fault.last_round) for fault in result.faults}
    assert table == {
        "cut": (2, 3), "pause": (3, 4), "kill": (3, 4), "restart": (5, 5), "broker_down": (6, 6), "slow": (7, 10),
    }  # fmt: skip
    assert all(fault.fields["confirmed"] for fault in result.faults)
    assert result.faults[1].fields["began_s"] == pytest.approx(1.5)
    assert list(play.progress.notes)[:4] == [
        "round 2, 0.0 s: cut p03-p01",
        "round 3, 1.5 s: p00 paused",
        "round 3, 1.5 s: p01 killed",
        "round 4, 1.5 s: cut p03-p01: over, 5 packets dropped",
    ]


async def test_a_fault_that_is_not_confirmed_fails_the_run(told: Told) -> None:
    network = Memory()
    network.deaf = True
    play = Play(told, scene_of(network=network), ("cut", "3-1@1..3"), clock=lambda: 0.0)
    play.progress.see_report(told.report("ash", "running", round=0))
    with pytest.raises(BaseExceptionGroup) as caught:
        await play.injector.accompany(play.job())
    (reason,) = reasons(caught.value)
    assert reason == "fault cut 3-1@1..3 was not confirmed: the kernel has no rule from p01 to p03"
    assert caught.group_contains(JobError)


async def test_a_fault_whose_time_never_comes_fails_the_run(told: Told) -> None:
    now = 0.0
    play = Play(told, scene_of(), ("kill", "1@60s"), clock=lambda: now)
    following = asyncio.create_task(play.injector.accompany(play.job()))
    await play.round(1)
    now = 12.25
    await play.round(10)
    play.end()
    with pytest.raises(JobError, match=r"^fault kill 1@60s never came: the job ended after 10 rounds and 12\.2 s$"):
        await following


async def test_what_lasts_to_the_end_is_mended_when_the_last_round_is_done(told: Told) -> None:
    async with EmbeddedBroker() as broker:
        play = Play(told, scene_of(broker=broker), ("broker_down", "2.."), ("cut", "3-2@2.."), clock=lambda: 0.0)
        following = asyncio.create_task(play.injector.accompany(play.job()))
        await play.round(1)
        await play.round(2)
        assert play.progress.marks.labels == ("broker down", "cut p03-p02")
        await play.round(10)
        await until(lambda: not play.progress.marks.labels or following.done())
        _, writer = await asyncio.open_connection(broker.address.host, broker.address.port)
        writer.close()
        play.end()
        result = await following
    assert {fault.last_round for fault in result.faults} == {10}


@pytest.mark.parametrize("kind", ["pause", "slow"])
async def test_nobody_stays_stopped_when_the_job_fails(kind: str, told: Told) -> None:
    async with crew(busy=True) as running:
        fault = {"pause": ("pause", "0@1.."), "slow": ("slow", "0x50@1..")}[kind]
        play = Play(told, scene_of(running), fault, clock=lambda: 0.0)

        async def failing() -> JobResult:
            await play.round(1)
            raise JobError("all peers failed")

        with pytest.raises(BaseExceptionGroup) as caught:
            await play.injector.accompany(failing())
        assert reasons(caught.value) == ["all peers failed"]
        await until(lambda: state_of(running.process("p00").pid) != "T")


async def test_a_root_that_is_killed_and_started_again_is_the_same_peer(told: Told) -> None:
    """Whoever is root when it is started again, it is the killed one that is."""
    from edgepeer.topology.view import Member, View

    order = ["p00", "p01", "p02", "p03"]

    def view() -> View:
        return View(epoch=1, members=tuple(Member(id=name, incarnation=1) for name in order))

    async with crew(names=("p00", "p01")) as running:
        faults = [("kill", "root@2"), ("kill", "root@4"), ("restart", "root@6")]
        play = Play(told, scene_of(running, view=view), *faults, clock=lambda: 0.0)
        following = asyncio.create_task(play.injector.accompany(play.job()))
        await play.round(1)
        order.remove("p00")
        await play.round(3)
        assert play.progress.marks.killed == {"p00", "p01"}
        second = running.process("p01").pid
        await play.round(5)
        assert play.progress.marks.killed == {"p00"}
        assert running.process("p01").pid != second
        await play.round(10)
        play.end()
        assert [fault.fields["target"] for fault in (await following).faults] == ["p00", "p01", "p01"]


@pytest.mark.parametrize("second", [("pause", "root@4..5"), ("kill", "root@4"), ("slow", "rootx2@4..5")])
async def test_whoever_is_slow_by_its_number_is_left_alone_by_its_place(second: tuple[str, str], told: Told) -> None:
    """Who is stopped and continued again and again does not stay stopped; a dead one is not slow to the end."""
    async with crew(busy=True) as running:
        play = Play(told, scene_of(running), ("slow", "0x3@2..8"), second, clock=lambda: 0.0)
        following = asyncio.create_task(play.injector.accompany(play.job()))
        await play.round(1)
        play.progress.see_telemetry(told.telemetry(told.record(3)))
        with pytest.raises(BaseExceptionGroup) as caught:
            await following
    (reason,) = reasons(caught.value)
    kind, text = second
    assert reason == f"fault {kind} {text} was not confirmed: that is p00, for which slow 0x3@2..8 is not over"


def test_the_crew_is_what_faults_expect() -> None:
    assert Crew().names == scene_of().fleet.names
