"""Rounds that go on while peers die, freeze, and the broker goes away."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence

import numpy as np
import pytest
from peer_fleet import DEADLINE_S, Broker, Pumps, Stranger, fleet, its_broker, peer_at, view_of

from edgepeer import Limits, Peer
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.fabric.events import FabricEvent, Synced
from edgepeer.fabric.mosquitto import Mosquitto, find_mosquitto

pytestmark = pytest.mark.usefixtures("links")

IMPATIENT = Limits(settle_s=0.05, join_batch_s=0.02, heartbeat_s=0.2, silence_s=1.0, takeover_s=0.5)


class Back:
    """Which peers have been told what the broker has."""

    def __init__(self) -> None:
        self._synced: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def hear(self, name: str, event: FabricEvent) -> None:
        if isinstance(event, Synced):
            self._synced[name].set()

    @contextlib.asynccontextmanager
    async def at_the_broker(self, peers: Sequence[Peer]) -> AsyncIterator[None]:
        """When the context has ended, all peers are connected again, and have said so."""
        self._synced.clear()
        yield
        async with asyncio.timeout(DEADLINE_S):
            for peer in peers:
                await self._synced[peer.id].wait()
                assert await peer.fabric.flush(DEADLINE_S)


@pytest.fixture(params=["embedded", "mosquitto"])
async def any_broker(request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    if request.param == "mosquitto" and find_mosquitto() is None:
        pytest.skip("mosquitto is not installed")
    request.getfixturevalue("links")
    kind = EmbeddedBroker if request.param == "embedded" else Mosquitto
    async with kind(identity=its_broker()) as broker:
        yield broker


async def test_a_killed_peer_is_noticed_and_the_rounds_go_on(any_broker: Broker) -> None:
    async with fleet(any_broker, "b", "c", "d") as peers, Stranger.come(any_broker, "a") as stranger:
        await asyncio.gather(*(view_of(peer, "a", "b", "c", "d") for peer in peers))
        async with Pumps(peers) as pumps:
            await pumps.more(lambda outcome: "a" in outcome.contributors)
            stranger.signal(signal.SIGKILL)
            last = await pumps.more(lambda outcome: set(outcome.contributors) == {"b", "c", "d"} and outcome.exact)
            pumps.check()
            rounds = [outcome.round for outcome in pumps.outcomes["b"]]
            assert rounds == list(range(rounds[0], last.round + 1))
            assert sum(not outcome.exact for outcome in pumps.outcomes["b"]) <= 1


async def test_a_killed_root_is_replaced_and_the_rounds_go_on(broker: EmbeddedBroker) -> None:
    async with (
        Stranger.come(broker, "a") as stranger,
        peer_at(broker, "b") as b,
        peer_at(broker, "c") as c,
        peer_at(broker, "d") as d,
        Pumps([]) as pumps,
    ):
        for peer in (b, c, d):
            await peer.ready()
            pumps.start(peer)
        last = await pumps.more(lambda outcome: len(outcome.contributors) == 4)
        before = b.view
        assert before is not None
        assert before.coordinator == "a"
        stranger.signal(signal.SIGKILL)
        last = await pumps.more(lambda outcome: set(outcome.contributors) == {"b", "c", "d"})
        pumps.check()
        assert last.epoch > before.epoch
        assert b.view is not None
        assert last.contributors[0] == b.view.coordinator


async def test_a_frozen_peer_is_given_up_and_let_in_again_when_it_thaws(broker: EmbeddedBroker) -> None:
    async with fleet(broker, "b", "c", limits=IMPATIENT) as peers, Stranger.come(broker, "a") as stranger:
        await asyncio.gather(*(view_of(peer, "a", "b", "c") for peer in peers))
        async with Pumps(peers) as pumps:
            await pumps.more(lambda outcome: "a" in outcome.contributors)
            stranger.signal(signal.SIGSTOP)
            await pumps.more(lambda outcome: set(outcome.contributors) == {"b", "c"})
            stranger.signal(signal.SIGCONT)
            await pumps.more(lambda outcome: "a" in outcome.contributors)
            pumps.check()


async def test_rounds_do_not_need_the_broker(any_broker: Broker) -> None:
    back = Back()
    async with fleet(any_broker, "a", "b", "c", told=back.hear) as peers, Pumps(peers) as pumps:
        await pumps.more()
        view = peers[0].view
        await any_broker.stop()
        await pumps.more(rounds=50)
        assert all(peer.view == view for peer in peers)
        async with back.at_the_broker(peers):
            await any_broker.start()
        # Whoever comes now finds the fleet, and the fleet finds it.
        async with peer_at(any_broker, "d") as d:
            await d.ready(4)
            pumps.start(d)
            last = await pumps.more(lambda outcome: len(outcome.contributors) == 4)
            pumps.check()
            assert last.exact
            assert [outcome.round for outcome in pumps.outcomes["a"]] == list(range(1, last.round + 1))


async def test_a_peer_dies_while_the_broker_is_away(broker: EmbeddedBroker) -> None:
    async with fleet(broker, "b", "c", limits=IMPATIENT) as peers, Stranger.come(broker, "a") as stranger:
        await asyncio.gather(*(view_of(peer, "a", "b", "c") for peer in peers))
        async with Pumps(peers) as pumps:
            await pumps.more(lambda outcome: "a" in outcome.contributors)
            await broker.stop()
            stranger.signal(signal.SIGKILL)
            await pumps.more(lambda outcome: set(outcome.contributors) == {"b", "c"})
            pumps.check()
            await broker.start()
            await pumps.more()


async def test_a_broker_that_comes_and_goes(broker: EmbeddedBroker) -> None:
    async with fleet(broker, "a", "b", "c") as peers, Pumps(peers) as pumps:
        for _ in range(4):
            await broker.stop()
            await pumps.more(rounds=3)
            await broker.start()
            await pumps.more(rounds=3)
        last = await pumps.more()
        assert {frozenset(outcome.contributors) for outcome in pumps.outcomes["a"]} == {frozenset("abc")}
        assert [outcome.round for outcome in pumps.outcomes["a"]] == list(range(1, last.round + 1))
        pumps.check()


async def test_a_peer_that_starts_before_its_broker(broker: EmbeddedBroker) -> None:
    await broker.stop()

    async def come() -> float:
        async with peer_at(broker, "b") as b:
            await b.ready()
            return (await b.allreduce(np.ones(2))).weight

    coming = asyncio.create_task(come())
    await asyncio.sleep(0)
    await broker.start()
    assert await coming == 1
