"""Two peers with one identity: the younger one goes, and says why."""

from __future__ import annotations

import asyncio

import aiomqtt
import msgspec
import pytest
from fabric_guests import DEADLINE_S, Broker, Guest, Invite

from edgepeer.errors import ConfigError
from edgepeer.fabric.documents import Presence
from edgepeer.fabric.topics import Topics
from edgepeer.fabric.twins import TwinWatch

TOPIC = Topics("lab").presence("a")


def life(port: int, started: float, incarnation: int = 1) -> Presence:
    return Presence(id="a", incarnation=incarnation, addresses=(f"127.0.0.1:{port}",), started=started)


async def enter(invite: Invite, broker: Broker, presence: Presence) -> Guest:
    guest = await invite(broker.address, "a", will_topic=TOPIC)
    guest.client.publish_retained(TOPIC, presence)
    return guest


async def test_the_younger_one_of_two_goes(broker: Broker, invite: Invite) -> None:
    elder = await enter(invite, broker, life(1, 100.0))
    assert await elder.client.flush(DEADLINE_S)
    younger = Guest(broker.address, "a", will_topic=TOPIC)
    younger.client.publish_retained(TOPIC, life(2, 200.0))
    line = (
        r"^another peer with the id 'a' is in fabric 'lab' \(at 127\.0\.0\.1:1\): "
        r"give each device its own --state-dir or --peer-id$"
    )
    async with asyncio.timeout(3 * DEADLINE_S):
        with pytest.raises(ConfigError, match=line):
            await younger.client.run()
    assert elder.task is not None
    assert not elder.task.done()


@pytest.mark.parametrize("started", [100.0, 300.0])
async def test_a_former_life_is_no_other_peer(started: float, broker: Broker, invite: Invite) -> None:
    """Whatever its clock said: a device may start with a wrong one."""
    before = await enter(invite, broker, life(1, started))
    assert await before.client.flush(DEADLINE_S)
    await before.crash()
    now = await enter(invite, broker, life(2, 200.0, incarnation=2))
    assert await now.client.flush(DEADLINE_S)
    now.client.publish_retained(TOPIC, life(3, 200.0, incarnation=3))
    for cut in range(1, 4):
        await broker.stop()
        await now.until(lambda seen, cut=cut: sum(type(event).__name__ == "Disconnected" for event in seen) == cut)  # type: ignore[misc]
        await broker.start()
        await now.until(lambda seen, cut=cut: sum(type(event).__name__ == "Synced" for event in seen) == cut + 1)  # type: ignore[misc]
        assert await now.client.flush(DEADLINE_S)
    assert now.task is not None
    assert not now.task.done()


async def test_whoever_leaves_leaves_no_trace(broker: Broker, invite: Invite) -> None:
    peer = await enter(invite, broker, life(1, 100.0))
    assert await peer.client.flush(DEADLINE_S)
    await peer.client.close()
    async with (
        asyncio.timeout(DEADLINE_S),
        aiomqtt.Client(broker.address.host, broker.address.port) as raw,
    ):
        await raw.subscribe("edgepeer/#", qos=1)
        await raw.publish("edgepeer/end", b"", qos=1)
        assert (await anext(raw.messages)).topic.value == "edgepeer/end"


def test_what_is_answered_to_what_is_said_of_us() -> None:
    """Each line of the table, and numbers that only grow."""
    watch = TwinWatch("lab", serials=True)
    assert watch.meet(life(9, 1.0)) is None
    me = watch.say(life(1, 100.0, incarnation=50))
    assert me is not None
    assert me.serial == 50
    assert watch.meet(me) is None
    older = msgspec.structs.replace(life(2, 90.0, incarnation=40), serial=49)
    assert watch.meet(older) is me
    # Another life, or an earlier one of a clock that was ahead, has come further with its numbers: ours go on after it.
    ahead = msgspec.structs.replace(older, serial=70)
    answer = watch.meet(ahead)
    assert isinstance(answer, Presence)
    assert (answer.serial, answer.met) == (71, 0.0)
    younger = msgspec.structs.replace(life(3, 200.0, incarnation=60), serial=90)
    answer = watch.meet(younger)
    assert isinstance(answer, Presence)
    assert (answer.serial, answer.met, answer.started) == (91, 200.0, 100.0)
    assert watch.meet(answer) is None
    assert watch.meet(younger) is watch.me
    again = watch.say(life(1, 100.0, incarnation=51))
    assert again is not None
    assert (again.serial, again.met) == (92, 200.0)
    assert isinstance(watch.meet(msgspec.structs.replace(older, met=100.0)), ConfigError)
    assert isinstance(watch.meet(msgspec.structs.replace(older, met=99.0)), Presence)
