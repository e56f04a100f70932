"""What a client promises, against a real and the embedded broker alike."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import aiomqtt
import msgspec
import pytest
from fabric_guests import DEADLINE_S, Broker, Invite, OpenGate, presence

from edgepeer.errors import FabricError, ProtocolBug, WireError
from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.fabric.client import FabricClient
from edgepeer.fabric.connection import connection
from edgepeer.fabric.documents import PeerReport, RoundRecord, Telemetry
from edgepeer.fabric.events import (
    Connected,
    Disconnected,
    FabricEvent,
    JobSeen,
    PresenceGone,
    PresenceSeen,
    ReportSeen,
    Synced,
    TelemetrySeen,
    ViewSeen,
)
from edgepeer.fabric.outbox import BREAKS, LONG_BYTES
from edgepeer.fabric.topics import Group, Topics
from edgepeer.ids import PeerId
from edgepeer.topology.view import Member, View
from edgepeer.wire.documents import pack

TOPICS = Topics("lab")
VIEW = View(epoch=3, members=(Member(id="a", incarnation=1), Member(id="b", incarnation=2)), run="j1")
RECORD = RoundRecord(
    round=1,
    epoch=3,
    seconds=0.5,
    allreduce_seconds=0.1,
    compute_seconds=0.4,
    contributors=("a", "b"),
    exact=True,
    loss=2.3,
)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Stands for the job document, which the fabric passes on unread."""

    id: str


def raw_client(address: BrokerAddress) -> aiomqtt.Client:
    return aiomqtt.Client(address.host, address.port, username=address.username, password=address.password)


def telemetry(round_: int) -> Telemetry:
    return Telemetry(job="j1", peer="a", records=(msgspec.structs.replace(RECORD, round=round_),))


async def test_presence_is_told_to_those_who_were_there_and_to_those_who_come(broker: Broker, invite: Invite) -> None:
    early = await invite(broker.address, "early")
    await invite(broker.address, "a", present=True)
    await early.until_seen(PresenceSeen(presence("a")))
    late = await invite(broker.address, "late")
    # The snapshot: between Connected and Synced.
    assert late.events == [Connected(), PresenceSeen(presence("a")), Synced()]


async def test_a_crash_is_told_by_the_will_and_leaving_takes_presence_back(broker: Broker, invite: Invite) -> None:
    watcher = await invite(broker.address, "watcher")
    crashing = await invite(broker.address, "crashing", present=True)
    leaving = await invite(broker.address, "leaving", present=True)
    await watcher.until_seen(PresenceSeen(presence("crashing")), PresenceSeen(presence("leaving")))
    await crashing.crash()
    await watcher.until_seen(PresenceGone(PeerId("crashing")))
    await leaving.client.close()
    await watcher.until_seen(PresenceGone(PeerId("leaving")))
    late = await invite(broker.address, "late")
    assert late.events == [Connected(), Synced()]


async def test_every_kind_of_document_arrives(broker: Broker, invite: Invite) -> None:
    sender = await invite(broker.address, "a", interests=Group.NOTHING)
    listener = await invite(broker.address, "listener")
    report = PeerReport(job="j1", peer="a", state="running", round=7, accuracy=0.5, loss=float("inf"))
    sender.client.publish_retained(TOPICS.view, VIEW)
    sender.client.publish_retained(TOPICS.job, Job(id="j1"))
    sender.client.publish_retained(TOPICS.report("j1", "a"), report)
    sender.client.publish_event(TOPICS.telemetry("a"), telemetry(1))
    kept = [ViewSeen(VIEW), JobSeen(pack(Job(id="j1"))), ReportSeen(report)]
    await listener.until_seen(*kept, TelemetrySeen(telemetry(1)))
    late = await invite(broker.address, "late")
    assert {*late.events} == {Connected(), Synced(), *kept}  # telemetry isn't retained
    sender.client.publish_retained(TOPICS.job, None)
    await listener.until_seen(JobSeen(None))
    assert sender.events == [Connected(), Synced()]
    assert listener.client.rejected_documents == 0


async def test_only_the_last_value_of_a_retained_topic_counts(broker: Broker, invite: Invite) -> None:
    sender = await invite(broker.address, "a", interests=Group.NOTHING)
    for epoch in range(1, 101):
        sender.client.publish_retained(TOPICS.view, View(epoch=epoch, members=VIEW.members))
    assert await sender.client.flush(DEADLINE_S)
    late = await invite(broker.address, "late")
    assert late.events[1:2] == [ViewSeen(View(epoch=100, members=VIEW.members))]


async def test_a_snapshot_of_500_peers_is_complete_at_synced(broker: Broker, invite: Invite) -> None:
    names = [f"p{number}" for number in range(500)]
    async with raw_client(broker.address) as raw:
        for name in names:
            await raw.publish(TOPICS.presence(name), pack(presence(name)), qos=1, retain=True)
    late = await invite(broker.address, "late")
    assert late.events[0] == Connected()
    assert late.events[-1] == Synced()
    assert {*late.events[1:-1]} == {PresenceSeen(presence(name)) for name in names}


async def test_31_peers_see_each_other(broker: Broker, invite: Invite) -> None:
    names = [f"p{number}" for number in range(31)]
    guests = await asyncio.gather(*(invite(broker.address, name, present=True) for name in names))
    everybody = [PresenceSeen(presence(name)) for name in names]
    for guest in guests:
        await guest.until_seen(*everybody)


async def test_after_a_broker_restart_everything_is_said_again_and_nothing_is_lost(
    broker: Broker, invite: Invite
) -> None:
    sender = await invite(broker.address, "a", present=True)
    listener = await invite(broker.address, "listener")
    sender.client.publish_retained(TOPICS.view, VIEW)
    sender.client.publish_retained(TOPICS.job, Job(id="old"))
    sender.client.publish_event(TOPICS.telemetry("a"), telemetry(0))
    await listener.until_seen(ViewSeen(VIEW), TelemetrySeen(telemetry(0)))
    assert await sender.client.flush(DEADLINE_S)
    sender.client.forget(TOPICS.job)

    await broker.stop()
    await listener.until(lambda seen: listener.count(Disconnected) == 1)
    await sender.until(lambda seen: sender.count(Disconnected) == 1)
    sender.client.publish_retained(TOPICS.view, newer := msgspec.structs.replace(VIEW, epoch=4))
    assert not await sender.client.flush(0.01)
    listener.events.clear()
    await broker.start()
    await listener.until_seen(Connected(), Synced())
    for round_ in range(1, 21):
        sender.client.publish_event(TOPICS.telemetry("a"), telemetry(round_))
    await listener.until_seen(PresenceSeen(presence("a")), ViewSeen(newer), TelemetrySeen(telemetry(20)))
    told = [event for event in listener.events if isinstance(event, TelemetrySeen)]
    assert told == [TelemetrySeen(telemetry(round_)) for round_ in range(1, 21)]
    assert listener.count(JobSeen) == 0  # neither broker remembers, and the sender was told to forget
    assert ViewSeen(VIEW) not in listener.events
    assert sender.client.reconnects == listener.client.reconnects == 1
    assert sender.client._outbox.dropped_events == 0


async def test_events_of_an_outage_arrive_in_order_after_it(
    broker: Broker, open_gate: OpenGate, invite: Invite
) -> None:
    listener = await invite(broker.address, "listener")
    gate = await open_gate(broker.address)
    sender = await invite(gate.address, "a", present=True)
    sender.client.publish_event(TOPICS.telemetry("a"), telemetry(0))
    await listener.until_seen(TelemetrySeen(telemetry(0)))
    assert await sender.client.flush(DEADLINE_S)  # what isn't acknowledged when the link breaks would come twice
    await gate.shut()
    await sender.until(lambda seen: sender.count(Disconnected) == 1)
    await listener.until_seen(PresenceGone(PeerId("a")))
    for round_ in range(1, 51):
        sender.client.publish_event(TOPICS.telemetry("a"), telemetry(round_))
    await gate.open()
    await listener.until_seen(TelemetrySeen(telemetry(50)))
    told = [event for event in listener.events if isinstance(event, TelemetrySeen)]
    assert told == [TelemetrySeen(telemetry(round_)) for round_ in range(51)]
    assert listener.events.index(told[1]) > listener.events.index(PresenceGone(PeerId("a")))
    assert listener.count(PresenceSeen) == 2
    assert await sender.client.flush(DEADLINE_S)
    assert sender.client.reconnects == 1
    await sender.client.close()


async def test_a_link_that_keeps_breaking_loses_no_event(broker: Broker, open_gate: OpenGate, invite: Invite) -> None:
    listener = await invite(broker.address, "listener")
    gate = await open_gate(broker.address)
    sender = await invite(gate.address, "a", interests=Group.NOTHING)
    for cut in range(3):
        for round_ in range(200):
            sender.client.publish_event(TOPICS.telemetry("a"), telemetry(1000 * cut + round_))
        await listener.until_seen(TelemetrySeen(telemetry(1000 * cut + 20)))
        await gate.shut()
        await sender.until(lambda seen, cuts=cut + 1: sender.count(Disconnected) == cuts)  # type: ignore[misc]
        await gate.open()
    assert await sender.client.flush(DEADLINE_S)
    await sender.client.close()
    rounds = [event.telemetry.records[0].round for event in listener.events if isinstance(event, TelemetrySeen)]
    expected = [1000 * cut + round_ for cut in range(3) for round_ in range(200)]
    # What was on its way when the link broke may come twice, next to itself; the order stays.
    once = [round_ for round_, before in zip(rounds, [None, *rounds], strict=False) if round_ != before]
    assert once == expected
    assert len(rounds) - len(once) <= 3


async def test_a_presence_cleared_by_somebody_else_comes_back(broker: Broker, invite: Invite) -> None:
    watcher = await invite(broker.address, "watcher")
    peer = await invite(broker.address, "a", present=True, interests=Group.NOTHING)
    await watcher.until_seen(PresenceSeen(presence("a")))
    async with raw_client(broker.address) as raw:
        await raw.publish(TOPICS.presence("a"), b"", qos=1, retain=True)
    await watcher.until(lambda seen: watcher.count(PresenceSeen) == 2)
    assert watcher.events[2:] == [
        PresenceSeen(presence("a")),
        PresenceGone(PeerId("a")),
        PresenceSeen(presence("a")),
    ]
    assert peer.events == [Connected(), Synced()]


async def test_a_presence_that_somebody_else_has_spoiled_comes_back(broker: Broker, invite: Invite) -> None:
    """Else nobody who comes later finds the peer."""
    peer = await invite(broker.address, "a", present=True, interests=Group.NOTHING)
    assert await peer.client.flush(DEADLINE_S)
    watcher = await invite(broker.address, "watcher")
    assert watcher.count(PresenceSeen) == 1
    async with raw_client(broker.address) as raw:
        for garbage in (b"\xc1", b"\xc1\xc1", b"\xc1\xc1\xc1"):
            await raw.publish(TOPICS.presence("a"), garbage, qos=1, retain=True)
    await watcher.until(lambda seen: watcher.count(PresenceSeen) == 2)
    late = await invite(broker.address, "late")
    assert late.events == [Connected(), PresenceSeen(presence("a")), Synced()]


async def test_a_view_that_somebody_else_has_spoiled_or_cleared_comes_back(broker: Broker, invite: Invite) -> None:
    """Else newcomers, and people who look, believe that there is none."""
    head = await invite(broker.address, "a", present=True)
    head.client.publish_retained(TOPICS.view, VIEW)
    assert await head.client.flush(DEADLINE_S)
    watcher = await invite(broker.address, "watcher")
    for number, garbage in enumerate((b"\xc1", b"", b"[]"), start=2):
        async with raw_client(broker.address) as raw:
            await raw.publish(TOPICS.view, garbage, qos=1, retain=True)
        await watcher.until(lambda seen, times=number: watcher.count(ViewSeen) == times)
    late = await invite(broker.address, "late")
    assert ViewSeen(VIEW) in late.events


async def test_an_earlier_connection_of_a_peer_may_end_late(broker: Broker, invite: Invite) -> None:
    """A device that has lost its power starts again before the broker misses it: then its will is sent."""
    ghost = connection(
        broker.address,
        identifier="of an earlier life",
        will_topic=TOPICS.presence("a"),
        on_message=lambda topic, payload, kept: None,
        timeout=5,
    )
    watcher = await invite(broker.address, "watcher")
    with contextlib.suppress(ZeroDivisionError):
        async with asyncio.timeout(DEADLINE_S), ghost as mqtt:
            await mqtt.publish(TOPICS.presence("a"), pack(presence("a")), qos=1, retain=True)
            await invite(broker.address, "a", present=True)
            await watcher.until(lambda seen: watcher.count(PresenceSeen) == 2)
            raise ZeroDivisionError
    await watcher.until(lambda seen: watcher.count(PresenceSeen) == 3)
    assert watcher.events[-2:] == [PresenceGone(PeerId("a")), PresenceSeen(presence("a"))]
    late = await invite(broker.address, "late")
    assert late.events == [Connected(), PresenceSeen(presence("a")), Synced()]


async def test_close_delivers_what_is_pending(broker: Broker, invite: Invite) -> None:
    listener = await invite(broker.address, "listener")
    sender = await invite(broker.address, "a", present=True)
    for round_ in range(100):
        sender.client.publish_event(TOPICS.telemetry("a"), telemetry(round_))
    await sender.client.close()
    assert sender.task is not None
    await sender.task
    await listener.until_seen(TelemetrySeen(telemetry(99)), PresenceGone(PeerId("a")))
    assert sender.events[-1] == Disconnected("left")


async def test_close_ends_in_time_without_a_broker(broker: Broker, invite: Invite) -> None:
    peer = await invite(broker.address, "a", present=True)
    await broker.stop()
    await peer.until(lambda seen: peer.count(Disconnected) == 1)
    async with asyncio.timeout(DEADLINE_S):
        await peer.client.close(timeout=0.1)
        assert peer.task is not None
        await peer.task


async def test_what_the_owner_raises_ends_the_client_and_the_will_is_sent(broker: Broker, invite: Invite) -> None:
    watcher = await invite(broker.address, "watcher")

    def trip(event: FabricEvent) -> None:
        if isinstance(event, ViewSeen):
            raise ZeroDivisionError("the owner's mistake")

    client = FabricClient(broker.address, "lab", "a", on_event=trip, will_topic=TOPICS.presence("a"))
    client.publish_retained(TOPICS.presence("a"), presence("a"))
    running = asyncio.create_task(client.run())
    await watcher.until_seen(PresenceSeen(presence("a")))
    watcher.client.publish_retained(TOPICS.view, VIEW)
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(ZeroDivisionError, match="the owner's mistake"):
            await running
    await watcher.until_seen(PresenceGone(PeerId("a")))


async def test_nagle_is_off(broker: Broker) -> None:
    async with connection(
        broker.address, identifier="x", will_topic=None, on_message=lambda topic, payload, kept: None, timeout=5
    ) as mqtt:
        sock = mqtt._client.socket()
        assert isinstance(sock, socket.socket)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


async def test_a_document_that_breaks_its_bounds_is_refused_before_it_is_sent() -> None:
    client = FabricClient(BrokerAddress(host="127.0.0.1"), "lab", "a", on_event=print)
    with pytest.raises(WireError, match="PeerReport document: Expected `str` of length <= 500"):
        client.publish_retained(
            TOPICS.report("j1", "a"), PeerReport(job="j1", peer="a", state="failed", error="x" * 501)
        )
    with pytest.raises(ProtocolBug, match="no topic of fabric 'lab'"):
        client.publish_retained("edgepeer/v1/other/view", VIEW)
    assert await client.flush(0)


async def test_a_client_that_never_ran_can_be_closed() -> None:
    client = FabricClient(BrokerAddress(host="127.0.0.1"), "lab", "a", on_event=print, will_topic=TOPICS.presence("a"))
    await client.close()
    await client.run()
    with pytest.raises(FabricError, match="closed before it was connected"):
        await client.connected(DEADLINE_S)
    with pytest.raises(ProtocolBug, match="runs once"):
        await client.run()


async def test_who_is_cancelled_in_the_moment_in_which_the_connection_breaks_ends(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    serves = asyncio.Event()

    async def breaks(connection: aiomqtt.Client) -> None:
        serves.set()
        try:
            await asyncio.Event().wait()
        finally:
            monkeypatch.setattr(client._connections, "_brokers", (BrokerAddress(host="127.0.0.1", port=1),))
            raise aiomqtt.MqttError("gone")

    client = FabricClient(broker.address, "lab", "a", on_event=lambda event: None)
    monkeypatch.setattr(client._connections, "_serve", breaks)
    running = asyncio.create_task(client.run())
    async with asyncio.timeout(DEADLINE_S):
        await serves.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_a_broker_that_hangs_up_on_what_is_long_is_told_all_else(
    invite: Invite, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As mosquitto does with max_packet_size. Said first in each connection, it would end them all."""
    monkeypatch.setattr("edgepeer.fabric.amqtt_parts.MAX_READ_BYTES", LONG_BYTES - 1)
    monkeypatch.setattr("edgepeer.fabric.reconnecting._BACKOFF_S", (0.01, 0.02))
    long = msgspec.structs.replace(RECORD, contributors=("a-peer",) * 4000)
    async with EmbeddedBroker() as broker:
        watcher = await invite(broker.address, "watcher")
        guest = await invite(broker.address, "a", present=True)
        guest.client.publish_event(TOPICS.telemetry("a"), Telemetry(job="j1", peer="a", records=(long,) * 4))
        guest.client.publish_event(TOPICS.telemetry("a"), telemetry(2))
        await watcher.until_seen(TelemetrySeen(telemetry(2)))
        assert guest.client.reconnects == BREAKS
        guest.client.publish_retained(TOPICS.job, Job(id="x" * LONG_BYTES))
        await guest.until(lambda _: TOPICS.job in guest.client._outbox.given_up)
        assert not await guest.client.flush(DEADLINE_S)  # that it does not have
        guest.client.publish_retained(TOPICS.job, Job(id="x"))
        assert await guest.client.flush(DEADLINE_S)
        assert guest.client.reconnects == 2 * BREAKS
    assert f"on {TOPICS.telemetry('a')} the connection ends" in caplog.text
    assert f"on {TOPICS.job} the connection ends" in caplog.text
