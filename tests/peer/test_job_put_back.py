"""A broker without memory is back: it hears what the fabric is at, whoever of the fleet has found it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest
from peer_agents import Patient
from peer_fleet import DEADLINE_S
from test_peer_resume import Watcher, announce
from way_to_broker import Gate

from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.fabric.documents import JobOver
from edgepeer.fabric.events import FabricEvent, Synced
from edgepeer.following.observe import observe
from edgepeer.following.picture import Picture
from edgepeer.peer import reminding
from edgepeer.peer.agent import _Agent, run_agent
from edgepeer.peer.machines import FtTree
from edgepeer.settings import PeerSettings
from edgepeer.training.job import new_job

NAMES = ("p0", "p1", "p2")
JOB = new_job(id="j1", model="linear", trainer="numpy", batch_size=20, rounds=1_000_000, wait_for=3, eval_every=10**6)


class Devices:
    """Agents, each with a way of its own to a broker."""

    def __init__(self, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ways = {name: Gate(broker.address) for name in NAMES}
        self.stops = {name: asyncio.Event() for name in NAMES}
        self.here: set[str] = set()
        """Who has heard all that the broker retains, and of no job yet."""
        self._news = asyncio.Event()
        hear = _Agent._hear

        def hear_and_note(agent: _Agent, event: FabricEvent) -> None:
            hear(agent, event)
            if isinstance(event, Synced):
                self.here.add(agent._peer.id)
                self._news.set()

        monkeypatch.setattr(_Agent, "_hear", hear_and_note)

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for way in self.ways.values():
                await way.open()
                stack.push_async_callback(way.shut)
            await stack.enter_async_context(asyncio.timeout(DEADLINE_S))
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            for name, way in self.ways.items():
                settings = PeerSettings(broker=way.address.url(), fabric="lab", peer_id=name)
                tasks.create_task(run_agent(settings, machine=Patient(FtTree()), stop=self.stops[name]))
                stack.callback(self.stops[name].set)
            yield

    async def find(self, broker: EmbeddedBroker, names: Sequence[str]) -> None:
        """The broker that all were at is another one now, and only these find it as yet."""
        for way in self.ways.values():
            await way.shut()
            way.behind = broker.address
        self.here.clear()
        for name in names:
            await self.ways[name].open()
        while not self.here.issuperset(names):
            self._news.clear()
            await self._news.wait()


@pytest.mark.parametrize("head", ["dies", "stays away"])
async def test_a_job_is_put_back_where_the_head_has_not_found_the_broker(
    head: str, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reminding, "TURN_S", 1e6 if head == "dies" else 0.1)
    devices = Devices(broker, monkeypatch)
    async with EmbeddedBroker() as another, Watcher.at(another) as there, devices.at_work():
        async with Watcher.at(broker) as watcher:
            await announce(broker, JOB)
            await watcher.until_begun("j1")
            first = watcher.head
        await devices.find(another, [name for name in NAMES if name != first])
        if head == "dies":
            devices.stops[first].set()
        await there.until(JOB)


async def test_so_is_what_the_fabric_was_at_last(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The view still names it: who comes would take it for a job that goes on."""
    devices, picture, news = Devices(broker, monkeypatch), Picture(), asyncio.Event()

    def take(event: FabricEvent) -> None:
        picture.take(event)
        news.set()

    async with EmbeddedBroker() as another, observe(another.address, "lab", take), devices.at_work():
        async with Watcher.at(broker) as watcher:
            await announce(broker, JOB)
            await watcher.until_begun("j1")
            await announce(broker, JobOver(over="j1"))
            await watcher.until(None)
        await devices.find(another, NAMES)
        while picture.over != "j1":
            news.clear()
            await news.wait()
