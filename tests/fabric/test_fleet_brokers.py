"""A fleet's brokers: who is let in, who may do what there, and that nobody is thrown out by others."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiomqtt
import msgspec
import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from fabric_guests import DEADLINE_S, Broker, Guest, Invite, OpenGate, StartBroker
from fleet_guests import TOPICS, as_member, liar, of, said
from fleets import Fleet, Role

from edgepeer.errors import ConfigError, FabricError
from edgepeer.fabric import tls
from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.fabric.connection import connection
from edgepeer.fabric.events import Connected, Disconnected, PresenceGone, PresenceSeen, RelaySeen, Synced
from edgepeer.fabric.mosquitto import Mosquitto
from edgepeer.fabric.rights import may_read, may_write
from edgepeer.fabric.topics import Group
from edgepeer.ids import PeerId
from edgepeer.trust.certificates import make_key, private_pem
from edgepeer.trust.names import Holder


async def no_way_in(address: BrokerAddress, who: Any) -> str:
    """Why nobody gets in with that certificate, in one line."""
    with pytest.raises(FabricError) as caught:
        async with connection(
            address, identifier="x", will_topic=None, on_message=lambda *_: None, timeout=10, identity=who
        ):
            pass
    line = str(caught.value)
    assert line.startswith(f"broker {address}: ")
    assert line.isprintable()
    return line


async def test_members_get_in_and_nobody_else(strict_broker: Broker, fleet: Fleet) -> None:
    address = strict_broker.address
    for who in (fleet.member("p1"), fleet.operator(), fleet.viewer()):
        async with connection(
            address, identifier="x", will_topic=None, on_message=lambda *_: None, timeout=10, identity=who
        ):
            pass
    stranger = fleet.other().member("p1")
    line = await no_way_in(address, stranger)
    assert "its certificate is not to be trusted: " in line
    assert f"; it is not of the fleet {stranger.holder.fabric} in {stranger.directory}" in line
    # The same, of a client that does not care who the broker is.
    past = SimpleNamespace(directory=fleet.directory("past", lifetime_s=-1000.0))
    if isinstance(strict_broker, EmbeddedBroker):  # mosquitto lets it in, where what it says counts for nothing
        assert "it is not for a client of this fleet" in await no_way_in(address, Careless(fleet.a_broker("another")))
    for who, why in (
        (Careless(past), "refuses our certificate: it has expired"),
        (Careless(stranger), "not given its files again since this fleet has a new authority"),
        (Careless(None), "wants to see a certificate: join its fleet"),
        (Careless(fleet.member("p1"), latest=ssl.TLSVersion.TLSv1_2), "speaks no version of TLS that both take"),
    ):
        line = await no_way_in(address, who)
        usual = "is this device of its fleet, and still?", "the port for TLS (mostly 8883)?", "device has been evicted"
        assert line.partition("; ours is ")[0].endswith((why, *usual))


class Careless:
    """Believes any broker. Stands for an identity."""

    def __init__(self, who: Any, *, latest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname, self._context.verify_mode = False, ssl.CERT_NONE
        self._context.maximum_version = latest
        if who is not None:
            self._context.load_cert_chain(who.directory / "certificate.pem", who.directory / "key.pem")

    def context(self, *, server: bool) -> ssl.SSLContext:
        return self._context

    def check(self, certificate: bytes) -> SimpleNamespace:
        return SimpleNamespace(holder=Holder("lab", Role.BROKER, "any", 1))


async def test_plaintext_and_other_servers_are_told_from_a_broker_of_the_fleet(
    strict_broker: Broker, fleet: Fleet, start_broker: Callable[..., object]
) -> None:
    p1 = fleet.member("p1")
    plain = await start_broker()  # type: ignore[misc]
    in_tls = BrokerAddress(host="127.0.0.1", port=plain.address.port, tls=True)
    assert "is it the port for TLS" in await no_way_in(in_tls, p1)
    in_clear = BrokerAddress(host="127.0.0.1", port=strict_broker.address.port)
    assert "without an MQTT answer" in await no_way_in(in_clear, None)
    assert "self-signed" in await no_way_in(strict_broker.address, None)  # to a foreign one, it must be known elsewhere


@contextlib.asynccontextmanager
async def tls_server(who: Any) -> AsyncIterator[BrokerAddress]:
    """Somebody who listens with that certificate, hears what is said first, and hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await reader.read(100)
        writer.transport.abort()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(who.directory / "certificate.pem", who.directory / "key.pem")
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        yield BrokerAddress(host="127.0.0.1", port=server.sockets[0].getsockname()[1], tls=True)


async def test_a_members_certificate_makes_no_broker(fleet: Fleet) -> None:
    p1, p2 = fleet.member("p1"), fleet.member("p2")
    async with tls_server(p2) as address:
        assert "shows the certificate of peer p2 of lab, which is no broker's" in await no_way_in(address, p1)
    for kind in (EmbeddedBroker, Mosquitto):
        with pytest.raises(ConfigError, match="is of peer p2 of lab, and not of a broker"):
            kind(identity=p2)


@contextlib.asynccontextmanager
async def a_foreign_broker(
    home: Path, monkeypatch: pytest.MonkeyPatch, since: int, until: int
) -> AsyncIterator[BrokerAddress]:
    """One called localhost that the system's authorities vouch for in these years, and that hangs up after TLS."""
    key = make_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker")])
    names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(datetime(since, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(until, 1, 1, tzinfo=UTC))
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    (home / "certificate.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    (home / "key.pem").write_bytes(private_pem(key))
    monkeypatch.setenv("SSL_CERT_FILE", str(home / "certificate.pem"))  # what the system trusts
    tls._foreign.cache_clear()
    async with tls_server(SimpleNamespace(directory=home)) as address:
        yield address
    tls._foreign.cache_clear()


async def test_a_foreign_broker_counts_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As others offer them: whom the system's authorities vouch for, under the name that was asked for."""
    async with a_foreign_broker(tmp_path, monkeypatch, 2020, 2050) as address:
        line = await no_way_in(address, None)
        assert "its certificate is not to be trusted: IP address mismatch" in line
        by_name = BrokerAddress(host="localhost", port=address.port, tls=True)
        assert "hung up on our certificate" in await no_way_in(by_name, None)  # beyond TLS: this one is no broker


@pytest.mark.parametrize(("since", "until", "why"), [(2020, 2021, "has expired"), (2048, 2049, "is not yet valid")])
async def test_what_depends_on_the_clock_says_what_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, since: int, until: int, why: str
) -> None:
    async with a_foreign_broker(tmp_path, monkeypatch, since, until) as address:
        line = await no_way_in(BrokerAddress(host="localhost", port=address.port, tls=True), None)
        assert f"not to be trusted: certificate {why} (today is 20" in line


async def test_a_handshake_that_does_not_end_is_given_up(fleet: Fleet) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = BrokerAddress(host="127.0.0.1", port=silent.getsockname()[1], tls=True)
        with pytest.raises(FabricError, match=r"timed out after 0\.2 s"):
            async with connection(
                *(address,),
                identifier="x",
                will_topic=None,
                on_message=lambda *_: None,
                timeout=0.2,
                identity=fleet.member("p1"),
            ):
                pass


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("kind", [EmbeddedBroker, Mosquitto])
def test_much_and_long_comes_whole_on_every_loop(
    new_loop: Callable[[], asyncio.AbstractEventLoop], kind: type[EmbeddedBroker] | type[Mosquitto], fleet: Fleet
) -> None:
    """What TLS has taken off the network is not to be seen there any more, and must be read all the same."""
    count, size = 200, 300_000

    async def exchange() -> None:
        async with kind(identity=fleet.a_broker()) as broker:
            guests = [
                Guest(broker.address, name, identity=fleet.member(name), interests=Group.RELAY) for name in ("a", "b")
            ]
            running = [asyncio.create_task(guest.client.run()) for guest in guests]
            for guest in guests:
                await guest.until_seen(Connected(), Synced())
            a, b = guests
            for number in range(count):
                assert a.client.publish_relay("b", b"%d" % number)
            for number in range(20):
                assert a.client.publish_relay("b", b"%d," % number + bytes(size))
            assert b.client.publish_relay("a", b"back")
            await a.until_seen(RelaySeen(b"back"))
            await b.until(lambda _: b.count(RelaySeen) == count + 20)
            told = [event.payload for event in b.events if isinstance(event, RelaySeen)]
            assert told[:count] == [b"%d" % number for number in range(count)]
            assert [len(payload) - payload.index(b",") for payload in told[count:]] == [size + 1] * 20
            assert a.client.reconnects == b.client.reconnects == 0
            for guest in guests:
                await guest.client.close(timeout=1)
            await asyncio.gather(*running)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(exchange())


async def test_a_restart_is_survived(strict_broker: Broker, invite: Invite, fleet: Fleet) -> None:
    p1 = await invite(strict_broker.address, "p1", identity=fleet.member("p1"), present=True)
    watcher = await invite(strict_broker.address, "w", identity=fleet.viewer())
    await watcher.until_seen(PresenceSeen(of("p1")))
    await strict_broker.stop()
    await watcher.until(lambda _: watcher.count(Disconnected) == 1)
    await p1.until(lambda _: p1.count(Disconnected) == 1)
    watcher.events.clear()
    await strict_broker.start()
    await watcher.until_seen(PresenceSeen(of("p1")))
    assert watcher.client.rejected_documents == 0


# -- who may do what -----------------------------------------------------------------------------------------------


async def test_members_go_where_their_fleet_goes(start_broker: StartBroker, invite: Invite, fleet: Fleet) -> None:
    """And who was told which broker to use stays there."""
    old, new = [await start_broker(identity=fleet.a_broker(name), operators=()) for name in ("old", "new")]
    moves = [fleet.member("loyal")]
    fleet.founder.broker = (old.address.url(),)
    moves += [fleet.member("p1"), fleet.member("p2")]
    loyal, *guests = [await invite(old.address, each.holder.id, identity=each, present=True) for each in moves]
    assert [each.reached for each in moves] == [True] * 3
    for each in moves:
        each.moved(msgspec.structs.replace(each.where, broker=(new.address.url(),)))
    for guest in guests:
        await guest.until(lambda events: events.count(Synced()) == 2)
        assert guest.client.broker == new.address
    late = await invite(new.address, "late", identity=fleet.member("late"))
    assert [PresenceSeen(of(name)) in late.events for name in ("p1", "p2", "loyal")] == [True, True, False]
    assert (loyal.client.broker, loyal.client.connected_now) == (old.address, True)
    assert [each.reached for each in moves] == [True] * 3


async def test_who_finds_no_broker_goes_where_its_fleet_has_gone(
    start_broker: StartBroker, open_gate: OpenGate, invite: Invite, fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    gate = await open_gate((await start_broker(identity=fleet.a_broker("old"), operators=())).address)
    old = dataclasses.replace(gate.address, tls=True)
    new = await start_broker(identity=fleet.a_broker("new"), operators=())
    fleet.founder.broker = (old.url(),)
    p1 = fleet.member("p1")
    guest = await invite(old, "p1", identity=p1)
    await gate.shut()
    await guest.until(lambda events: any(isinstance(event, Disconnected) for event in events))
    assert p1.reached is False
    p1.moved(msgspec.structs.replace(p1.where, broker=("mqtt://written.by.hand",)))
    await asyncio.sleep(0)  # it is told
    p1.moved(msgspec.structs.replace(p1.where, broker=(new.address.url(),)))
    await guest.until(lambda events: events.count(Synced()) == 2)
    assert guest.client.broker == new.address
    assert p1.reached
    assert f"{p1.directory}: says no broker that can be used: staying with {old}" in caplog.text


async def test_what_a_member_may_not_write_never_arrives(strict_broker: Broker, invite: Invite, fleet: Fleet) -> None:
    """Acknowledged or not: brokers differ."""
    p1 = await invite(strict_broker.address, "p1", identity=fleet.member("p1"), present=True)
    evil = fleet.member("evil")
    heard: list[str] = []
    async with as_member(strict_broker.address, fleet.operator()) as ear:
        for name in ("peer/+", "report/+/+", "links/+", "telemetry/+", "view"):
            await ear.subscribe(f"{TOPICS.root}{name}", 1)
        async with as_member(strict_broker.address, evil) as raw:
            for topic in (
                *(TOPICS.presence("p1"), TOPICS.presence("p2"), TOPICS.links("p1"), TOPICS.telemetry("p1")),
                *(TOPICS.report("j1", "p1"), f"{TOPICS.root}peer", f"{TOPICS.root}peer/evil/x"),
                *("edgepeer/v1/other/peer/evil", "anything/else"),
            ):
                await raw.publish(topic, b"x", qos=1, retain=True)
            await raw.publish(TOPICS.view, b"end", qos=1)
        async for message in ear.messages:
            heard.append(str(message.topic))
            if message.payload == b"end":
                break
    assert {*heard} == {TOPICS.presence("p1"), TOPICS.view}
    assert heard.count(TOPICS.presence("p1")) == 1  # its own
    assert p1.count(PresenceGone) == 0


async def test_a_forged_will_is_not_sent(strict_broker: Broker, invite: Invite, fleet: Fleet) -> None:
    await invite(strict_broker.address, "p1", identity=fleet.member("p1"), present=True)
    watcher = await invite(strict_broker.address, "w", identity=fleet.member("w"))
    await watcher.until_seen(PresenceSeen(of("p1")))
    evil = fleet.member("evil")
    for payload in (b"", said(evil, "p1")):
        will = aiomqtt.Will(TOPICS.presence("p1"), payload, qos=1, retain=True)
        with contextlib.suppress(aiomqtt.MqttError):  # some don't let it in
            async with as_member(strict_broker.address, evil, will=will) as raw:
                cut(raw)
    async with liar(strict_broker.address, evil) as after:
        await after.until_read_by(watcher)
    assert watcher.count(PresenceGone) == watcher.client.rejected_documents == 0


async def test_a_will_says_nothing_of_who_is_out(strict_broker: Broker, invite: Invite, fleet: Fleet) -> None:
    """The embedded broker lets nobody in with one; at another it is replaced, as whatever is written there."""
    fleet.member("p2")
    watcher = await invite(strict_broker.address, "w", identity=fleet.member("w"))
    listed = fleet.evict("p2")
    watcher.client._fleet.identity.evictions.accept(listed)  # type: ignore[union-attr]
    will = aiomqtt.Will(TOPICS.evicted, b"junk", qos=1, retain=True)
    if isinstance(strict_broker, EmbeddedBroker):
        with pytest.raises(aiomqtt.MqttError):
            async with as_member(strict_broker.address, fleet.member("evil"), will=will):
                pass
    else:
        with contextlib.suppress(aiomqtt.MqttError):
            async with as_member(strict_broker.address, fleet.member("evil"), will=will) as raw:
                cut(raw)
                await anext(raw.messages)
    async with as_member(strict_broker.address, fleet.viewer()) as raw, asyncio.timeout(DEADLINE_S):
        await raw.subscribe(TOPICS.evicted, 1)
        async for message in raw.messages:
            if message.payload == listed:
                break


async def test_a_forged_will_at_a_broker_that_sends_it_is_answered(
    lax_broker: Broker, invite: Invite, fleet: Fleet
) -> None:
    """The presence of a peer that lives is there again at once."""
    await invite(lax_broker.address, "p1", identity=fleet.member("p1"), present=True)
    watcher = await invite(lax_broker.address, "w", identity=fleet.member("w"))
    await watcher.until_seen(PresenceSeen(of("p1")))
    will = aiomqtt.Will(TOPICS.presence("p1"), b"", qos=1, retain=True)
    with contextlib.suppress(aiomqtt.MqttError):
        async with as_member(lax_broker.address, fleet.member("evil"), will=will) as raw:
            cut(raw)
            await anext(raw.messages)
    await watcher.until(lambda _: watcher.count(PresenceGone) == 1)
    await watcher.until(lambda seen: seen.count(PresenceSeen(of("p1"))) == 2)
    late = await invite(lax_broker.address, "late", identity=fleet.viewer())
    assert PresenceSeen(of("p1")) in late.events


def cut(client: aiomqtt.Client) -> None:
    """Break a connection without a word."""
    sock = client._client.socket()
    assert sock is not None
    sock.shutdown(socket.SHUT_RDWR)


async def test_rules_that_keep_a_peer_from_being_seen_are_blamed(
    fleet: Fleet, invite: Invite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers acknowledge what they don't pass on."""
    monkeypatch.setattr("edgepeer.fabric.client.ECHO_S", 0.05)
    monkeypatch.setattr("edgepeer.fabric.amqtt_parts.may_write", lambda _, __, name: "/peer/" not in name)
    blamed, lines = asyncio.Event(), list[str]()

    def note(text: str, *arguments: object) -> None:
        lines.append(text % arguments)
        blamed.set()

    monkeypatch.setattr("edgepeer.fabric.client._LOG.error", note)
    async with EmbeddedBroker(identity=fleet.a_broker()) as broker:
        peer = await invite(broker.address, "p3", identity=fleet.member("p3"), interests=Group.PEERS)
        peer.client._will_topic = TOPICS.presence("p3")  # else its will is refused, and so is it
        peer.client.publish_retained(TOPICS.presence("p3"), of("p3"))
        async with asyncio.timeout(DEADLINE_S):
            await blamed.wait()
        peer.client._will_topic = None
    line = f"broker {broker.address}: has taken our presence, and passes it on to nobody: do its rules let p3 write "
    assert lines == [f"{line}{TOPICS.presence('p3')}?"]


# -- client ids ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
async def test_a_client_id_can_not_be_taken(clean: bool, strict_broker: Broker, invite: Invite, fleet: Fleet) -> None:
    """By a name that anybody could guess; and, at the broker that knows whose a session is, by the very name."""
    p1 = await invite(
        strict_broker.address, "p1", identity=fleet.member("p1"), present=True, interests=Group.PEERS | Group.RELAY
    )
    watcher = await invite(strict_broker.address, "w", identity=fleet.viewer())
    evil = fleet.member("evil")
    names = ["p1", "lab:p1"]
    if isinstance(strict_broker, EmbeddedBroker):
        names.append(p1.client._identifier)
    for name in names:
        async with as_member(strict_broker.address, evil, identifier=name, clean_session=clean) as raw:
            # As who it is, whatever it is called: not with p1's certificate, and without p1's subscriptions.
            await raw.publish(TOPICS.presence("p1"), said(fleet.member("p1"), "p1", serial=99), qos=1, retain=True)
            await raw.publish(TOPICS.relay("p1"), b"for p1", qos=1)
            await p1.until(lambda _: p1.count(RelaySeen) == names.index(name) + 1)  # noqa: B023
            assert len(raw.messages) == 0
    async with liar(strict_broker.address, evil) as after:
        await after.until_read_by(watcher)
    assert p1.client.reconnects == p1.count(Disconnected) == 0
    assert [event for event in watcher.events if event == PresenceGone(PeerId("p1"))] == []
    assert not any(isinstance(e, PresenceSeen) and e.presence.serial == 99 for e in watcher.events)


async def test_who_is_not_let_in_throws_nobody_out(fleet: Fleet) -> None:
    """Neither in a fleet nor where there is a password."""
    async with EmbeddedBroker(username="lab", password="right") as broker:
        address = broker.address
        async with aiomqtt.Client(
            address.host, address.port, username="lab", password="right", identifier="x"
        ) as inside:  # fmt: skip
            with pytest.raises(aiomqtt.MqttError):
                async with aiomqtt.Client(
                    address.host, address.port, username="lab", password="wrong", identifier="x"
                ):  # fmt: skip
                    pass
            await inside.subscribe("a", 1)
            await inside.publish("a", b"still here", qos=1)
            assert (await anext(inside.messages)).payload == b"still here"


def test_rights() -> None:
    p1, alice = Holder("lab", Role.PEER, "p1", 1), Holder("lab", Role.OPERATOR, "alice", 2)
    viewer, broker = Holder("lab", Role.VIEWER, "v", 3), Holder("lab", Role.BROKER, "b", 4)
    writers = {
        TOPICS.presence("p1"): {p1, alice},
        TOPICS.presence("p2"): {alice},
        TOPICS.presence("alice"): {alice},
        TOPICS.links("p1"): {p1, alice},
        TOPICS.telemetry("p1"): {p1},
        TOPICS.report("j", "p1"): {p1, alice},
        TOPICS.report("j", "p2"): {alice},
        TOPICS.view: {p1},
        TOPICS.job: {p1, alice},
        TOPICS.relay("p2"): {p1},
        TOPICS.evicted: {p1, alice, viewer},
        TOPICS.ask: {p1, alice, viewer},
        TOPICS.answer("x"): {p1, alice, viewer},
        f"{TOPICS.root}peer/+": set(),
        f"{TOPICS.root}else": set(),
        "edgepeer/v1/other/view": set(),
        "$SYS/x": set(),
    }
    for topic, allowed in writers.items():
        assert {each for each in (p1, alice, viewer, broker) if may_write(each, TOPICS, topic)} == allowed, topic
    assert may_read(p1, TOPICS, TOPICS.relay("p1"))
    assert not may_read(Holder("lab", Role.OPERATOR, "p1", 5), TOPICS, TOPICS.relay("p1"))
    for topic in (TOPICS.relay("p2"), f"{TOPICS.root}relay/+", "#", "edgepeer/v1/other/view", "$SYS/#"):
        assert not may_read(p1, TOPICS, topic), topic


# -- half-way in ---------------------------------------------------------------------------------------------------


async def test_connections_that_never_say_who_they_are_keep_nobody_out(fleet: Fleet) -> None:
    async with EmbeddedBroker(identity=fleet.a_broker()) as broker:
        address = broker.address
        silent = await asyncio.gather(*(asyncio.open_connection(address.host, address.port) for _ in range(400)))
        try:
            async with asyncio.timeout(DEADLINE_S):
                async with connection(
                    *(address,),
                    identifier="x",
                    will_topic=None,
                    on_message=lambda *_: None,
                    timeout=10,
                    identity=fleet.member("p1"),
                ):
                    pass
        finally:
            for _, writer in silent:
                writer.transport.abort()


async def test_who_was_evicted_holds_few_connections(fleet: Fleet) -> None:
    """TLS lets it in still."""
    trust, out = fleet.a_broker(), fleet.member("p2")
    trust.evictions.accept(fleet.evict("p2"))
    async with EmbeddedBroker(identity=trust) as broker:
        at, context = broker.address, out.context(server=False)
        opened = [await asyncio.open_connection(at.host, at.port, ssl=context, server_hostname="") for _ in range(20)]
        ends = [asyncio.create_task(reader.read(1)) for reader, _ in opened]
        try:
            async with asyncio.timeout(DEADLINE_S):
                while sum(end.done() for end in ends) < 12:
                    await asyncio.wait({end for end in ends if not end.done()}, return_when="FIRST_COMPLETED")
            assert len(broker._out) == 8
        finally:
            for _, writer in opened:
                writer.transport.abort()
            await asyncio.gather(*ends, return_exceptions=True)


async def test_a_connection_that_says_garbage_ends(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgepeer.fabric.broker._CONNECT_S", 0.2)
    async with EmbeddedBroker(identity=fleet.a_broker()) as broker:
        address, context = broker.address, fleet.member("p1").context(server=False)
        for garbage in (b"\x00" * 64, b"\x10\xff\xff\xff\x7f", b"\x10\x04\xff\xff\xff\xff", b"\x30\x02\x00\x00"):
            reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context, server_hostname="")
            writer.write(garbage)
            async with asyncio.timeout(DEADLINE_S):
                while await reader.read(100):
                    pass
            writer.transport.abort()
