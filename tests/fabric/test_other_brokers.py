"""Brokers that others made, and how they differ: RabbitMQ tells no wildcard what it retains, aedes tells in no order.

Each is started once, for all tests here, which use a fabric of their own each.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from fabric_guests import presence
from other_brokers import Missing, aedes, rabbitmq

from edgepeer import Peer
from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.client import FabricClient
from edgepeer.fabric.events import FabricEvent
from edgepeer.fabric.topics import Topics
from edgepeer.following.observe import observe, question
from edgepeer.following.picture import Picture
from edgepeer.training.job import new_job

DEADLINE_S = 60.0
pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["rabbitmq", "aedes"])
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[BrokerAddress]:
    async with contextlib.AsyncExitStack() as stack:
        cache: Path = request.config.cache.mkdir("edgepeer-aedes")  # type: ignore[union-attr]
        try:
            running = rabbitmq() if request.param == "rabbitmq" else aedes(cache)
            address = await stack.enter_async_context(running)
        except Missing as error:
            pytest.skip(str(error))
        yield address


class Eye:
    """An observer's picture, and a way to wait for it to show something."""

    def __init__(self) -> None:
        self.picture = Picture()
        self.news = asyncio.Event()

    def take(self, event: FabricEvent) -> None:
        self.picture.take(event)
        self.news.set()

    async def until(self, condition: Callable[[Picture], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition(self.picture):
                self.news.clear()
                await self.news.wait()


@contextlib.asynccontextmanager
async def peers(broker: BrokerAddress, fabric: str, *names: str) -> AsyncIterator[list[Peer]]:
    async with contextlib.AsyncExitStack() as stack:
        made = [Peer(broker.url(), fabric, peer_id=name) for name in names]
        await asyncio.gather(*(stack.enter_async_context(peer) for peer in made))
        await asyncio.gather(*(peer.ready(len(names), timeout=DEADLINE_S) for peer in made))
        yield made


async def test_peers_meet_whenever_they_come_and_go(broker: BrokerAddress) -> None:
    async with peers(broker, "meet", "a", "b", "c") as fleet:
        outcomes = await asyncio.gather(*(peer.allreduce(np.ones(5)) for peer in fleet))
        assert all(outcome.exact and set(outcome.contributors) == {"a", "b", "c"} for outcome in outcomes)
        async with Peer(broker.url(), "meet", peer_id="late") as late:
            fleet.append(late)
            await asyncio.gather(*(peer.ready(4, timeout=DEADLINE_S) for peer in fleet))
            outcomes = await asyncio.gather(*(peer.allreduce(np.ones(5)) for peer in fleet))
            assert all(set(outcome.contributors) == {"a", "b", "c", "late"} for outcome in outcomes)
        async with asyncio.timeout(DEADLINE_S):
            async for view in fleet[0].views():
                if view.size == 3:
                    break


async def test_an_observer_sees_all_that_is_kept_at_once(broker: BrokerAddress) -> None:
    topics = Topics("seen")
    job = new_job(id="j1", trainer="numpy")
    names = [f"p{number:02d}" for number in range(12)]
    async with contextlib.AsyncExitStack() as stack:
        for name in names:
            client = await stack.enter_async_context(observe(broker, "seen", lambda _: None))
            client.publish_retained(topics.presence(name), presence(name))
            assert await client.flush(DEADLINE_S)
        client.publish_retained(topics.job, job)
        assert await client.flush(DEADLINE_S)
        for _ in range(3):
            picture = Picture()
            async with observe(broker, "seen", picture.take):
                assert sorted(picture.peers) == names
                assert picture.job == job
        for name in names:  # what is retained would be there tomorrow
            client.publish_retained(topics.presence(name), None)
        client.publish_retained(topics.job, None)
        assert await client.flush(DEADLINE_S)


async def test_who_is_dead_is_told_from_who_lives(broker: BrokerAddress) -> None:
    topics = Topics("dead")
    eye = Eye()
    async with observe(broker, "dead", eye.take) as client, observe(broker, "dead", lambda _: None) as other:
        other.publish_retained(topics.presence("lives"), presence("lives"))
        other.publish_retained(topics.presence("dead"), presence("dead", 7))
        await eye.until(lambda seen: set(seen.peers) == {"lives", "dead"})
        other.forget(topics.presence("dead"))
        await question(client, eye.picture, eye.news)
        assert list(eye.picture.peers) == ["lives"]
        assert list(eye.picture.silent) == ["dead"]
        eye.picture.peers |= eye.picture.silent
        client.clear_presence("dead", 7)
        await eye.until(lambda seen: "dead" not in seen.peers)
        other.publish_retained(topics.presence("lives"), None)
        assert await other.flush(DEADLINE_S)


async def test_who_vanishes_without_a_word_is_gone(broker: BrokerAddress) -> None:
    eye = Eye()
    topics = Topics("will")
    async with observe(broker, "will", eye.take):
        client = FabricClient(broker, "will", "a", on_event=lambda _: None, will_topic=topics.presence("a"))
        client.publish_retained(topics.presence("a"), presence("a"))
        running = asyncio.create_task(client.run())
        await eye.until(lambda seen: "a" in seen.peers)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await eye.until(lambda seen: "a" not in seen.peers)


async def test_what_such_a_broker_does_not_do_is_said_in_one_line(
    broker: BrokerAddress, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "edgepeer")
    async with observe(broker, "said", lambda _: None):
        lines = [record.getMessage() for record in caplog.records if "asking the others" in record.getMessage()]
    assert len(lines) <= 1
    assert all(
        line == f"broker {broker}: does not tell newcomers all that it retains; asking the others" for line in lines
    )
