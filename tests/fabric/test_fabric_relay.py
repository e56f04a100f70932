"""The relay: in order, bounded, never kept, and only to the peer that it is for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import aiomqtt
import pytest
from fabric_guests import DEADLINE_S, Broker, Guest, Invite, OpenGate

from edgepeer.errors import ConfigError, ProtocolBug
from edgepeer.fabric import connection as connection_module
from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.connection import connection, publish
from edgepeer.fabric.documents import MAX_ADDRESSES
from edgepeer.fabric.events import Connected, Disconnected, RelaySeen, Synced
from edgepeer.fabric.outbox import LONG_BYTES
from edgepeer.fabric.relay import RELAY_LIMIT_BYTES, RelayQueue
from edgepeer.fabric.topics import Group, Topics
from edgepeer.ids import PeerId
from edgepeer.peer.control import ControlPlane
from edgepeer.peer.translation import as_protocol
from edgepeer.protocol import events as ev
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.rollcall import letter
from edgepeer.topology.view import MAX_MEMBERS, Member, View
from edgepeer.transport.base import Traffic
from edgepeer.wire.documents import pack, unpack
from edgepeer.wire.frames import ViewFrame

TOPICS = Topics("lab")
MINE = Group.PEERS | Group.RELAY


def relayed(guest: Guest) -> list[bytes]:
    return [event.payload for event in guest.events if isinstance(event, RelaySeen)]


async def test_the_view_of_the_largest_fleet_goes_from_peer_to_peer_as_a_letter(broker: Broker, invite: Invite) -> None:
    """Of devices with many interfaces: a view is not cut into pieces, and who could not send it would end."""
    addresses = tuple(f"192.168.{number}.250:65535" for number in range(MAX_ADDRESSES))
    members = (Member(id=f"device-{at:06d}", incarnation=1 << 50, addresses=addresses) for at in range(MAX_MEMBERS))
    world = View(epoch=1, members=tuple(members))
    receiver = await invite(broker.address, "r", interests=MINE)
    sender = await invite(broker.address, "s", interests=MINE)
    relay = letter(PeerId("s"), PeerId("r"), ViewFrame(epoch=world.stamp), pack(world))
    control = ControlPlane(sender.client, Traffic(), lambda _: None)
    control.relay(relay)
    await receiver.until(lambda _: bool(relayed(receiver)))
    told = as_protocol(RelaySeen(relayed(receiver)[0]))
    assert isinstance(told, ev.Relayed)
    assert unpack(bytes(told.payload), View) == world


async def test_messages_arrive_in_the_order_of_each_sender_at_the_receiver_only(broker: Broker, invite: Invite) -> None:
    receiver = await invite(broker.address, "r", interests=MINE)
    other = await invite(broker.address, "other", interests=MINE)
    senders = [await invite(broker.address, name, interests=MINE) for name in ("a", "b")]
    # Sizes from some bytes to some hundred kilobytes, so that one could overtake another.
    sent = {
        sender: [f"{index}:{number}:".encode().ljust(20 + number % 5 * 50_000, b".") for number in range(60)]
        for index, sender in enumerate(senders)
    }
    for number in range(60):
        for sender in senders:
            assert sender.client.publish_relay("r", sent[sender][number])
    await receiver.until(lambda events: sum(isinstance(event, RelaySeen) for event in events) == 120)
    for index, sender in enumerate(senders):
        assert [payload for payload in relayed(receiver) if payload.startswith(f"{index}:".encode())] == sent[sender]
    assert not any(relayed(guest) for guest in (other, *senders))


async def test_nothing_is_kept_for_who_comes_later(broker: Broker, invite: Invite) -> None:
    sender = await invite(broker.address, "a", interests=MINE)
    first = await invite(broker.address, "r", interests=MINE)
    assert sender.client.publish_relay("r", b"now")
    await first.until_seen(RelaySeen(b"now"))
    await first.client.close()
    assert sender.client.publish_relay("r", b"to nobody")
    async with aiomqtt.Client(broker.address.host, broker.address.port) as raw:
        await raw.publish(TOPICS.relay("r"), b"kept by a stranger", qos=1, retain=True)
    second = await invite(broker.address, "r", interests=MINE)
    assert sender.client.publish_relay("r", b"later")
    await second.until_seen(RelaySeen(b"later"))
    assert relayed(second) == [b"later"]


async def test_a_message_that_is_too_long_is_refused_at_both_ends(broker: Broker, invite: Invite) -> None:
    receiver = await invite(broker.address, "r", interests=MINE)
    sender = await invite(broker.address, "a", interests=MINE)
    with pytest.raises(ProtocolBug, match="over the limit"):
        sender.client.publish_relay("r", bytes(RELAY_LIMIT_BYTES + 1))
    with pytest.raises(ConfigError):
        sender.client.publish_relay("r/+", b"")
    async with aiomqtt.Client(broker.address.host, broker.address.port) as raw:
        await raw.publish(TOPICS.relay("r"), bytes(RELAY_LIMIT_BYTES + 1), qos=1)
    assert sender.client.publish_relay("r", b"x" * RELAY_LIMIT_BYTES)
    await receiver.until(lambda events: any(isinstance(event, RelaySeen) for event in events))
    assert [len(payload) for payload in relayed(receiver)] == [RELAY_LIMIT_BYTES]
    assert receiver.client.rejected_documents == 1


async def test_without_a_connection_it_is_refused_and_what_was_on_its_way_is_not_sent_later(
    broker: Broker, open_gate: OpenGate, invite: Invite
) -> None:
    gate = await open_gate(broker.address)
    receiver = await invite(broker.address, "r", interests=MINE)
    sender = await invite(gate.address, "a", interests=MINE)
    await gate.shut()
    await sender.until(lambda events: any(isinstance(event, Disconnected) for event in events))
    assert not sender.client.publish_relay("r", b"during the outage")
    await gate.open()
    await sender.until(lambda events: events.count(Connected()) == 2 and events.count(Synced()) == 2)
    assert sender.client.publish_relay("r", b"after it")
    await receiver.until_seen(RelaySeen(b"after it"))
    assert relayed(receiver) == [b"after it"]


class SlowBroker:
    """Stands for a connection whose broker acknowledges when it is told to."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.least_s = 4.0
        self.acknowledge = asyncio.Event()
        self.error: Exception | None = None
        self._client = SimpleNamespace(socket=lambda: None, _out_packet=(), _out_messages={})

    async def publish(self, topic: str, payload: bytes, *, qos: int, retain: bool, timeout: float) -> None:
        assert (qos, retain, timeout >= self.least_s) == (1, False, True)
        self.sent.append(payload)
        await self.acknowledge.wait()
        if self.error is not None:
            raise self.error


async def turns(queue: RelayQueue) -> None:
    for _ in range(4):
        await asyncio.sleep(0)


async def test_what_is_on_its_way_is_bounded_in_bytes_and_count() -> None:
    queue, slow = RelayQueue(max_bytes=100, max_count=4), SlowBroker()
    assert not queue.add("t", b"nobody is there")
    queue.open()
    sending = asyncio.create_task(queue.send(slow, timeout=4))  # type: ignore[arg-type]
    await turns(queue)
    assert [queue.add("t", content) for content in (b"x" * 60, b"x" * 41, b"y" * 40)] == [True, False, True]
    await turns(queue)
    assert not queue.add("t", b"z")
    slow.acknowledge.set()
    await turns(queue)
    slow.acknowledge.clear()
    assert [queue.add("t", b"%d" % number) for number in range(5)] == [True] * 4 + [False]
    await turns(queue)
    assert slow.sent == [b"x" * 60, b"y" * 40, b"0", b"1", b"2", b"3"]
    slow.error = aiomqtt.MqttError("gone")
    slow.acknowledge.set()
    with pytest.raises(aiomqtt.MqttError, match="gone"):
        async with asyncio.timeout(DEADLINE_S):
            await sending
    queue.close()
    assert not queue.add("t", b"closed")


@pytest.mark.parametrize("where", ["in the queue", "in the socket", "nowhere"])
async def test_a_message_has_the_time_that_all_before_it_takes(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is: small notes go the same way as what is relayed."""
    slow, behind = SlowBroker(), 10_000 * int(DEADLINE_S)
    slow.least_s = 0.0
    if where == "in the queue":
        slow._client._out_packet = ({"to_process": behind},)
    elif where == "in the socket":
        slow._client.socket = object
        monkeypatch.setattr(connection_module, "unacknowledged", lambda sock: behind)
    saying = asyncio.create_task(publish(slow, "t", b"", timeout=0.0))  # type: ignore[arg-type]
    for _ in range(50):
        await asyncio.sleep(0)
    slow.acknowledge.set()
    if where == "nowhere":
        with pytest.raises(aiomqtt.MqttError, match="timed out"):
            await saying
    else:
        await saying


async def test_whatever_paho_has_not_begun_to_send_goes_first_too() -> None:
    """It sends no more than twenty messages before they are acknowledged."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes.fromhex("20020000"))
        await over.wait()
        writer.close()

    over, size, count = asyncio.Event(), 8000, 60
    async with asyncio.timeout(DEADLINE_S), await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        address = BrokerAddress(host="127.0.0.1", port=server.sockets[0].getsockname()[1])
        async with connection(
            address, identifier="a", will_topic=None, on_message=lambda *_: None, timeout=DEADLINE_S
        ) as client:
            saying = [asyncio.create_task(publish(client, "t", bytes(size), timeout=DEADLINE_S)) for _ in range(count)]
            await asyncio.sleep(0)
            assert connection_module._on_their_way(client) > count * size
            for task in saying:
                task.cancel()
            await asyncio.gather(*saying, return_exceptions=True)
            over.set()


def test_a_piece_of_a_vector_is_no_long_packet() -> None:
    """Of what is longer it is said, by and by, that the broker ends the connection."""
    around_it = 4096  # topic, packet and frame header, the seal
    assert Limits().relay_bytes + around_it <= LONG_BYTES
