"""Who is in a view is really there, and all work in one: whatever a broker retains of the dead, and of nobody at all.

Real peers at a real mosquitto. The long words are said by a plain MQTT client, or by processes that are no more.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import paho.mqtt.client
import pytest
from lasting_broker import LastingBroker, lasting_broker
from paho.mqtt.enums import CallbackAPIVersion
from ports import free_port
from real_programs import DEADLINE_S, Field, Program, python

from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.documents import Presence
from edgepeer.fabric.events import FabricEvent, PresenceGone, ViewSeen
from edgepeer.fabric.mosquitto import find_mosquitto
from edgepeer.fabric.topics import Topics
from edgepeer.following.observe import observe
from edgepeer.ids import Generation
from edgepeer.topology.view import MAX_EPOCH, View
from edgepeer.wire.documents import pack

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed"),
]

TOPICS = Topics("default")
ENDLESS = {"peers": 3, "rounds": 100_000, "batch_size": 50, "eval_every": 20_000, "optimizer": "sgd"}
BATCH_S = 0.02


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[LastingBroker]:
    async with lasting_broker(tmp_path / "broker") as broker:
        yield broker


@pytest.fixture
async def field(tmp_path: Path, broker: LastingBroker) -> AsyncIterator[Field]:
    async with Field(tmp_path, batch_s=BATCH_S) as field:
        await field.open(broker.url)
        yield field


def say(url: str, *retained: tuple[str, bytes]) -> None:
    """Have a broker retain these, on nobody's behalf."""
    address = BrokerAddress.parse(url)
    client = paho.mqtt.client.Client(CallbackAPIVersion.VERSION2)
    client.max_inflight_messages_set(len(retained))
    client.connect(address.host, address.port)
    client.loop_start()
    for said in [client.publish(topic, payload, qos=1, retain=True) for topic, payload in retained]:
        said.wait_for_publish(DEADLINE_S)
    client.disconnect()
    client.loop_stop()


class Record:
    """All views that a fabric is told of, and whose presence is taken back."""

    def __init__(self) -> None:
        self.views: list[View] = []
        self.gone: set[str] = set()

    def take(self, event: FabricEvent) -> None:
        if isinstance(event, ViewSeen):
            self.views.append(event.view)
        elif isinstance(event, PresenceGone):
            self.gone.add(event.peer_id)

    @property
    def seen(self) -> set[str]:
        return {name for view in self.views for name in view.ids}


# -- of the dead ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", ["the same names", "new names"])
async def test_a_fleet_that_dies_with_its_broker_is_followed_by_one_of_the_living(
    names: str, tmp_path: Path, broker: LastingBroker
) -> None:
    """Three times, at the same addresses. Nothing is left but what the broker has on disk."""
    ports = [free_port() for _ in range(3)]
    before: View | None = None
    for life in range(4):
        async with Field(tmp_path, batch_s=BATCH_S) as field:
            await field.open(broker.url)
            fleet = {f"p{n}" if names == "the same names" else f"p{n}-{life}": port for n, port in enumerate(ports)}
            for name, port in fleet.items():
                listen = f"127.0.0.1:{port}"
                field.peers[name] = await field.run(
                    "peer", "--broker", field.url, "--peer-id", name, "--listen", listen
                )
            if before is None:
                await field.train(**ENDLESS)
            await field.watch.until(lambda: field.watch.round > 3)  # this life's
            view = field.watch.picture.view
            assert view is not None
            assert set(view.ids) == set(fleet)
            assert before is None or before.precedes(view)
            assert before is None or before.generation < view.generation
            before = view
            for peer in field.peers.values():
                peer.signal(signal.SIGKILL)
                await peer.end()
            await broker.kill()
            field.peers.clear()
        await broker.start()


# -- of nobody -----------------------------------------------------------------------------------------------


def ghosts(many: int) -> list[tuple[str, bytes]]:
    """Presences of nobody, at a port where nobody listens."""
    names = [f"ghost{number:04}" for number in range(many)]
    return [(TOPICS.presence(n), pack(Presence(id=n, incarnation=1, addresses=("127.0.0.1:9",)))) for n in names]


@pytest.mark.parametrize("fleet", ["before", "after"])
async def test_a_thousand_presences_of_nobody(fleet: str, field: Field) -> None:
    record, many = Record(), 1000
    async with observe(BrokerAddress.parse(field.url), "default", record.take):
        if fleet == "after":
            await asyncio.to_thread(say, field.url, *ghosts(many))
        await field.add("p0", "p1", "p2")
        if fleet == "before":
            await asyncio.to_thread(say, field.url, *ghosts(many))
        await field.add("p3")
        status = await field.status(peers=4)
        silent = sum(line.startswith("announced, but silent: ghost") for line in status.out)
        assert silent + len(record.gone) >= many
        watch = field.watch
        await watch.until(lambda: set(watch.picture.peers) == {"p0", "p1", "p2", "p3"})
        assert record.seen == {"p0", "p1", "p2", "p3"}


@pytest.mark.parametrize("what", ["the last epoch", "the last generation"])
async def test_a_view_that_nobody_made_is_not_believed(what: str, field: Field) -> None:
    """It names the real members, and comes after all that they could ever make."""
    await field.add("p0", "p1", "p2")
    training = await field.train(**ENDLESS | {"peers": 2})
    watch = field.watch
    await watch.until(lambda: watch.round > 3)
    true = watch.picture.view
    assert true is not None
    last = Generation(counter=2**31 - 1, founders=4096, nonce=2**32 - 1)
    if what == "the last epoch":
        forged = msgspec.structs.replace(true, epoch=MAX_EPOCH)
    else:
        forged = msgspec.structs.replace(true, generation=last)

    def truth() -> View | None:
        view = watch.picture.view
        return view if view is not None and view.generation == true.generation and view.epoch < MAX_EPOCH else None

    def only(*names: str) -> bool:
        view = truth()
        return view is not None and set(view.ids) == set(names)

    await asyncio.to_thread(say, field.url, (TOPICS.view, pack(forged)))
    await watch.until(lambda: watch.picture.view == forged)
    await watch.until(lambda: watch.picture.view == true)  # said again by who stands at its head
    await asyncio.to_thread(say, field.url, (TOPICS.view, pack(forged)))
    field.peers["p3"] = await field.run("peer", "--broker", field.url, "--peer-id", "p3")
    await watch.until(lambda: only("p0", "p1", "p2", "p3"))
    await asyncio.to_thread(say, field.url, (TOPICS.view, pack(forged)))
    field.peers["p2"].signal(signal.SIGKILL)
    await field.peers["p2"].end()
    field.peers["p2"] = await field.run("peer", "--broker", field.url, "--peer-id", "p2")
    await watch.until(lambda: only("p0", "p1", "p2", "p3"))
    stood = watch.round
    await watch.until(lambda: watch.round > stood + 3)
    assert training.process.returncode is None, training.everything()
    assert all(peer.process.returncode is None for peer in field.peers.values())


# -- of another time or place ----------------------------------------------------------------------------------


class Adders:
    """Programs that call allreduce, and all results that they have told of."""

    def __init__(self, field: Field) -> None:
        self._field = field

    async def start(self, name: str, url: str) -> Program:
        running = python(Path(__file__).with_name("adder.py"), url, name, home=self._field.home)
        self._field.peers[name] = adder = await self._field.enter(running)
        return adder

    def results(self, name: str) -> list[tuple[str, int, str, str]]:
        """Generation, round, digest and contributors, in the order in which they came."""
        found = (line.split() for line in self._field.peers[name].out if not line.startswith("!"))
        return [(generation, int(number), digest, who) for generation, number, digest, who in found]

    async def together(self, *names: str) -> str:
        """Wait until all of them have results of them all; the generation of these."""
        everyone = set(names)
        for name in names:
            await self._field.peers[name].until(
                lambda name=name: any(set(who.split(",")) == everyone for *_, who in self.results(name))  # type: ignore[misc]
            )
        (generation,) = {self.results(name)[-1][0] for name in names}
        return generation

    def check(self) -> None:
        """Of one generation, each round has ended in one way."""
        found: dict[tuple[str, int], str] = {}
        for name in self._field.peers:
            for generation, number, digest, _ in self.results(name):
                assert found.setdefault((generation, number), digest) == digest


@pytest.mark.parametrize("connected", [True, False])
async def test_one_alone_that_was_stopped_learns_of_the_next_generation_before_it_commits_anything(
    connected: bool, field: Field, broker: LastingBroker
) -> None:
    """`connected`: whether the connection with the broker is still there when it goes on."""
    adders = Adders(field)
    old = await adders.start("p0", field.url)
    await old.until(lambda: len(adders.results("p0")) > 20)
    old.signal(signal.SIGSTOP)
    new = await adders.start("p1", field.url)
    await new.until(lambda: len(adders.results("p1")) > 20)
    (first,) = {generation for generation, *_ in adders.results("p0")}
    done = len(adders.results("p0"))
    if not connected:
        await broker.kill()
        await broker.start()
    old.signal(signal.SIGCONT)
    second = await adders.together("p0", "p1")
    assert second != first
    said = adders.results("p0")
    # What was on its way to its program when it was stopped had been committed before.
    assert [generation for generation, *_ in said[done + 1 :]] == [second] * len(said[done + 1 :])
    adders.check()


async def test_a_broker_comes_back_without_its_memory_to_a_restarted_peer_and_a_newcomer(
    field: Field, broker: LastingBroker
) -> None:
    await field.add("p0", "p1")
    await field.add("p2", state_dir="p2")
    training = await field.train(**ENDLESS)
    watch = field.watch
    await watch.until(lambda: watch.round > 3)
    await broker.kill(forget=True)
    field.peers["p2"].signal(signal.SIGKILL)
    await field.peers["p2"].end()
    lonely = await field.run("peer", "--broker", field.url, "--peer-id", "p2", "--state-dir", "p2")
    assert await lonely.end() == 1, lonely.everything()
    assert "is a broker running there?" in lonely.err[-1]
    await broker.start()
    for name in ("p2", "p3"):
        field.peers[name] = await field.run("peer", "--broker", field.url, "--peer-id", name, "--state-dir", name)
    await watch.until(lambda: set(watch.members) == {"p0", "p1", "p2", "p3"})
    stood = watch.round
    await watch.until(lambda: watch.round > stood + 3)
    assert training.process.returncode is None, training.everything()


async def test_two_fleets_whose_brokers_are_joined_become_one(
    field: Field, broker: LastingBroker, tmp_path: Path
) -> None:
    """One of them counts, that with more founders; its rounds go on, and the others come in."""
    adders = Adders(field)
    async with lasting_broker(tmp_path / "other") as other:
        for name in ("p0", "p1"):
            await adders.start(name, other.url)
        few = await adders.together("p0", "p1")
        for name in ("p2", "p3", "p4"):
            await adders.start(name, broker.url)
        many = await adders.together("p2", "p3", "p4")
        await other.kill(forget=True)
        await other.start(
            "connection other",
            f"address {broker.url.removeprefix('mqtt://')}",
            f"topic {TOPICS.root}# both 1",
        )
        generation = await adders.together("p0", "p1", "p2", "p3", "p4")
        assert few != many
        assert generation in (few, many)  # which depends on who was there when each began
        adders.check()
