"""Peer processes by name: in every kind of network, killed, frozen, started again, and gone in the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import psutil
import pytest
from network_agents import DEADLINE_S

from edgepeer.emulation import fleet as fleet_module
from edgepeer.emulation.fleet import EmulatedFleet, peer_names
from edgepeer.emulation.jobs import emulated_job, peers_of
from edgepeer.emulation.network import Mode, open_network
from edgepeer.errors import ConfigError, JobError
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.fabric.events import FabricEvent
from edgepeer.following.follow import run_job
from edgepeer.following.observe import observe
from edgepeer.following.picture import Picture
from edgepeer.following.progress import JobProgress
from edgepeer.following.result import JobResult
from edgepeer.settings import EmulateSettings

MODES: list[Mode] = ["namespaces", "loopback", "none"]


def settings_for(mode: Mode, peers: int = 2) -> EmulateSettings:
    return EmulateSettings(peers=peers, rounds=3, trainer="numpy", network=mode)


@asynccontextmanager
async def running(settings: EmulateSettings) -> AsyncIterator[tuple[EmulatedFleet, EmbeddedBroker]]:
    async with AsyncExitStack() as stack:
        try:
            network = await stack.enter_async_context(
                open_network(peer_names(peers_of(settings)), mode=settings.network)
            )
        except ConfigError as error:
            pytest.skip(str(error))
        broker = await stack.enter_async_context(EmbeddedBroker())
        yield await stack.enter_async_context(EmulatedFleet(settings, network, broker.address)), broker


class Watch:
    """Who is in the fabric, and since which life."""

    def __init__(self) -> None:
        self.picture = Picture()
        self._news = asyncio.Event()

    def take(self, event: FabricEvent) -> None:
        self.picture.take(event)
        self._news.set()

    def members(self) -> set[str]:
        return set(self.picture.view.ids) if self.picture.view is not None else set()

    def life(self, peer: str) -> int:
        return self.picture.peers[peer].incarnation if peer in self.picture.peers else 0

    async def all_in(self, *names: str, lives: int = 0) -> None:
        """Wait until these are the members, and their incarnations add up to more than that."""
        async with asyncio.timeout(DEADLINE_S):
            while self.members() != set(names) or sum(map(self.life, names)) <= lives:
                self._news.clear()
                await self._news.wait()


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
async def test_a_job_in_every_kind_of_network(mode: Mode) -> None:
    settings = settings_for(mode)
    async with running(settings) as (fleet, broker):
        progress = JobProgress(emulated_job(settings), broker="embedded")
        job = run_job(progress, lambda _: None, broker=broker.address, fabric=settings.fabric, timeout=DEADLINE_S)
        result = await fleet.watched(job, progress)
        assert set(result.done) == {"p00", "p01"}  # in the order of the tree, which depends on who was up first
        assert result.identical
        processes = [psutil.Process(fleet.process(name).pid) for name in fleet.names]
        assert all("peer" in process.cmdline() for process in processes)  # not what put it into its network
        assert (fleet.home("p01") / "rounds.jsonl").exists()
    assert not any(process.is_running() for process in processes)


@pytest.mark.slow
async def test_a_peer_is_frozen_killed_and_started_again_as_the_same_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "LEAVE_S", DEADLINE_S)  # on a busy machine leaving takes its time
    watch = Watch()
    settings = settings_for("none")
    async with running(settings) as (fleet, broker), observe(broker.address, settings.fabric, watch.take):
        await watch.all_in("p00", "p01")
        before = fleet.process("p01")
        lives = watch.life("p00") + watch.life("p01")
        fleet.pause("p01")
        async with asyncio.timeout(DEADLINE_S):
            while psutil.Process(before.pid).status() != psutil.STATUS_STOPPED:  # noqa: ASYNC110
                await asyncio.sleep(0)
        fleet.resume("p01")
        assert psutil.Process(before.pid).status() != psutil.STATUS_STOPPED
        fleet.kill("p01")
        assert await before.wait() == -9
        await fleet.start("p01")
        assert fleet.process("p01").pid != before.pid
        await watch.all_in("p00", "p01", lives=lives)
        fleet.pause("p01")  # the end of the fleet must not hang on it
        frozen = fleet.process("p01")
    assert frozen.returncode == 0


async def never() -> JobResult:
    """A job without an end."""
    await asyncio.Event().wait()
    raise AssertionError


async def test_it_is_an_error_when_all_peers_end_by_themselves() -> None:
    settings = settings_for("none", peers=1)
    async with running(settings) as (fleet, _):
        progress = JobProgress(emulated_job(settings), broker="embedded")
        fleet.process("p00").terminate()
        with pytest.raises(ExceptionGroup) as raised:
            # A job that never ends: that the fleet is gone must be noticed.
            await fleet.watched(never(), progress)
        assert raised.group_contains(JobError, match="all peers have ended; p00 ended with exit code")
