"""A fleet's documents count by who has signed them: the broker, and whoever else can write there, is not believed.

The brokers here let members write whatever they like.
"""

from __future__ import annotations

import shutil
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from fabric_guests import DEADLINE_S, Broker, Invite, presence
from fleet_guests import TOPICS, announcement, as_member, liar, of, said, signed
from fleets import Fleet, Identity, Role
from hypothesis import given
from hypothesis import strategies as st

from edgepeer.errors import ConfigError, WireError
from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.client import FabricClient
from edgepeer.fabric.documents import Answer, Ask, LinkReport, PeerReport, Telemetry
from edgepeer.fabric.envelope import Envelope
from edgepeer.fabric.events import (
    Answered,
    Connected,
    JobSeen,
    JobSpoiled,
    PresenceGone,
    PresenceSeen,
    ReportSeen,
    Synced,
    ViewSeen,
)
from edgepeer.fabric.gate import FleetGate
from edgepeer.fabric.inbox import read
from edgepeer.fabric.topics import Group, Topic
from edgepeer.ids import PeerId
from edgepeer.topology.view import Member, View
from edgepeer.training.job import new_job
from edgepeer.trust.certificates import Authority, make_key
from edgepeer.trust.identity import Credential
from edgepeer.trust.names import Holder
from edgepeer.wire.documents import pack, unpack

VIEW = View(epoch=3, members=(Member(id="p1", incarnation=1), Member(id="w", incarnation=5)))
JOB = new_job(id="j1", trainer="numpy")
REPORT = PeerReport(job="j1", peer="p1", state="running")
NOW = time.time()
JOB_TOPIC = Topic(group=Group.JOB)


@dataclass
class Lie:
    """What somebody writes who may not, and why it does not count."""

    topic: str
    write: Callable[[Fleet], bytes]
    why: str


def expired(fleet: Fleet) -> bytes:
    return certificate_of(fleet.directory("past", lifetime_s=-1000.0))


def certificate_of(directory: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert((directory / "certificate.pem").read_text())


def others_list(fleet: Fleet) -> bytes:
    other = fleet.other("third")
    other.member("p1")
    return other.evict("p1")


LIES = {
    "presence, unsigned": Lie(TOPICS.presence("p1"), lambda f: pack(presence("p1")), "not signed"),
    "presence by another peer": Lie(
        TOPICS.presence("p1"), lambda f: said(f.member("evil"), "p1"), "signed by peer evil of lab, on another's topic"
    ),
    "presence by an operator": Lie(TOPICS.presence("p1"), lambda f: said(f.operator(), "p1"), "signed by operator"),
    "presence by the broker": Lie(TOPICS.presence("p1"), lambda f: said(f.a_broker(), "p1"), "signed by broker"),
    "presence of an operator, by it": Lie(
        TOPICS.presence("alice"), lambda f: said(f.operator(), "alice"), "signed by operator alice"
    ),
    "presence with another's certificate": Lie(
        TOPICS.presence("p1"),
        lambda f: signed(
            f.member("evil"), TOPICS.presence("p1"), presence("p1"), certificate=f.member("p1").certificate
        ),
        "has not signed",
    ),
    "presence, of another topic": Lie(TOPICS.presence("p2"), lambda f: said(f.member("p1"), "p1"), "another's topic"),
    "presence of the same name in another fleet": Lie(
        TOPICS.presence("p1"), lambda f: said(f.other().member("p1"), "p1"), "no authority of this fleet"
    ),
    "presence of another fabric": Lie(
        TOPICS.presence("p1"), lambda f: said(f.other(fabric="barn").member("p1"), "p1"), "no authority of this fleet"
    ),
    "presence by an expired certificate": Lie(
        TOPICS.presence("past"),
        lambda f: signed(f.member("p1"), TOPICS.presence("past"), presence("past"), certificate=expired(f)),
        "has expired on",
    ),
    "presence, changed": Lie(
        TOPICS.presence("p1"), lambda f: said(f.member("p1"), "p1").replace(b"4000", b"4001"), "has not signed"
    ),
    "presence with no certificate in it": Lie(
        TOPICS.presence("p1"),
        lambda f: signed(f.member("p1"), TOPICS.presence("p1"), presence("p1"), certificate=b"garbage"),
        "a certificate is malformed",
    ),
    "a view's signature on a presence": Lie(
        TOPICS.presence("p1"), lambda f: signed(f.member("p1"), TOPICS.view, presence("p1")), "has not signed"
    ),
    "view, unsigned": Lie(TOPICS.view, lambda f: pack(VIEW), "not signed"),
    "view by an operator": Lie(TOPICS.view, lambda f: signed(f.operator(), TOPICS.view, VIEW), "may not say"),
    "view by who is in it, but not its head": Lie(
        TOPICS.view, lambda f: signed(f.member("w"), TOPICS.view, VIEW), "with p1 at its head, signed by peer w of lab"
    ),
    "view by who is not in it": Lie(TOPICS.view, lambda f: signed(f.member("evil"), TOPICS.view, VIEW), "at its head"),
    "job, unsigned": Lie(TOPICS.job, lambda f: pack(JOB), "not signed"),
    "job by a peer": Lie(TOPICS.job, lambda f: announcement(f.member("evil"), NOW, JOB), "signed by peer evil of lab"),
    "job by the broker": Lie(TOPICS.job, lambda f: announcement(f.a_broker(), NOW, JOB), "signed by broker"),
    "job by a viewer": Lie(TOPICS.job, lambda f: announcement(f.viewer(), NOW, JOB), "signed by viewer"),
    "job by another fleet's operator": Lie(
        TOPICS.job, lambda f: announcement(f.other().operator(), NOW, JOB), "no authority of this fleet"
    ),
    "job that is no announcement": Lie(TOPICS.job, lambda f: signed(f.operator(), TOPICS.job, JOB), "Announcement"),
    "report, unsigned": Lie(TOPICS.report("j1", "p1"), lambda f: pack(REPORT), "not signed"),
    "report by another": Lie(
        TOPICS.report("j1", "p1"),
        lambda f: signed(f.member("evil"), TOPICS.report("j1", "p1"), REPORT),
        "on another's topic",
    ),
    "report of another job": Lie(
        TOPICS.report("j2", "p1"),
        lambda f: signed(f.member("p1"), TOPICS.report("j1", "p1"), REPORT),
        "has not signed",
    ),
    "links by another": Lie(
        TOPICS.links("p1"),
        lambda f: signed(f.member("evil"), TOPICS.links("p1"), LinkReport(peer="p1", links=())),
        "on another's topic",
    ),
    "telemetry by another": Lie(
        TOPICS.telemetry("p1"),
        lambda f: signed(f.member("evil"), TOPICS.telemetry("p1"), Telemetry(job="j1", peer="p1", records=())),
        "on another's topic",
    ),
    "a list of the evicted that is none": Lie(TOPICS.evicted, lambda f: b"garbage", "an eviction list is malformed"),
    "a list of the evicted of another fleet": Lie(TOPICS.evicted, lambda f: others_list(f), "signed by no authority"),
    "a question, unsigned": Lie(TOPICS.ask, lambda f: pack(Ask(client="w")), "not signed"),
    "an answer, unsigned": Lie(
        TOPICS.answer("w"), lambda f: pack(Answer(topic=TOPICS.presence("p1"), payload=b"x")), "not signed"
    ),
    "an answer with a lie in it": Lie(
        TOPICS.answer("w"),
        lambda f: signed(
            f.member("evil"), TOPICS.answer("w"), Answer(topic=TOPICS.presence("p1"), payload=pack(presence("p1")))
        ),
        "not signed",
    ),
}


async def test_lies_are_counted_named_and_without_effect(lax_broker: Broker, invite: Invite, fleet: Fleet) -> None:
    """One after the other, all in the same place: and what is true comes through."""
    watcher = await invite(lax_broker.address, "w", identity=fleet.member("w"), present=True)
    await watcher.until_seen(PresenceSeen(of("w")))
    async with liar(lax_broker.address, fleet.member("evil")) as evil:
        await evil.until_read_by(watcher)
        watcher.events.clear()
        for count, (what, lie) in enumerate(LIES.items(), 1):
            await evil.write(lie.topic, lie.write(fleet), retain=True)
            await evil.until_read_by(watcher)
            assert watcher.client.rejected_documents == count, what
            found = [why for why in watcher.client.refusals if why.startswith(f"{lie.topic}: ") and lie.why in why]
            assert found, f"{what}: {dict(watcher.client.refusals)}"
        told = [event for event in watcher.events if not isinstance(event, PresenceSeen)]
        assert {*told} <= {JobSpoiled()}
        assert {event.presence.id for event in watcher.events if isinstance(event, PresenceSeen)} == {"evil"}
        # Who comes now finds the last of them retained.
        late = await invite(lax_broker.address, "late", identity=fleet.viewer())
        assert {*late.events} == {Connected(), PresenceSeen(of("w")), JobSpoiled(), Synced()}
        for topic in {lie.topic for lie in LIES.values()}:
            await evil.write(topic, b"", retain=True)
        await evil.write(TOPICS.presence("p1"), said(fleet.member("p1"), "p1"))
        await evil.write(TOPICS.view, signed(fleet.member("p1"), TOPICS.view, VIEW))
        await evil.write(TOPICS.job, announcement(fleet.operator(), NOW, JOB))
    await watcher.until_seen(PresenceSeen(of("p1")), ViewSeen(VIEW), JobSeen(pack(JOB)))


async def test_what_was_said_before_is_not_said_again_by_others(
    lax_broker: Broker, invite: Invite, fleet: Fleet
) -> None:
    watcher = await invite(lax_broker.address, "w", identity=fleet.viewer())
    p1 = fleet.member("p1")
    first, second, reborn = (said(p1, "p1", incarnation=i, serial=s) for i, s in ((7, 10), (7, 11), (9, 30)))
    async with liar(lax_broker.address, fleet.member("evil")) as evil:
        for payload in (first, second, second, first, reborn, second, first, reborn):
            await evil.write(TOPICS.presence("p1"), payload)
        await evil.until_read_by(watcher)
    found = [event.presence for event in watcher.events if isinstance(event, PresenceSeen)]
    told = [(each.incarnation, each.serial) for each in found if each.id == "p1"]
    assert told == [(7, 10), (7, 11), (7, 11), (9, 30), (9, 30)]
    assert watcher.client.rejected_documents == 3
    assert any("said before: number 10 of p1, after 30" in why for why in watcher.client.refusals)


def test_ids_that_come_and_go_never_use_up_all_room(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgepeer.fabric.gate._KNOWN", 2)
    gate = FleetGate(fleet.member("w"), "w")
    p1, p2, p3, p4 = (of(name, serial=5) for name in ("p1", "p2", "p3", "p4"))
    holder = fleet.member("p1").holder
    for one in (p1, p2):
        gate.passed(PresenceSeen(one), holder)
    with pytest.raises(WireError, match="more than 2 peers are here"):
        gate.passed(PresenceSeen(p3), holder)
    gate.passed(PresenceGone(PeerId("p2")), None)
    gate.passed(PresenceGone(PeerId("p1")), None)
    gate.passed(PresenceSeen(of("p2", serial=6)), holder)  # it lives: it was somebody else who said so
    gate.passed(PresenceSeen(p3), holder)
    with pytest.raises(WireError, match="said before"):
        gate.passed(PresenceSeen(p2), holder)
    with pytest.raises(WireError, match="more than 2 peers are here"):
        gate.passed(PresenceSeen(p4), holder)


async def test_last_years_job_stays_last_years_over_restarts(lax_broker: Broker, invite: Invite, fleet: Fleet) -> None:
    operator = fleet.operator()
    old = announcement(operator, NOW - 365 * 86400, new_job(id="old", trainer="numpy"))
    watcher = await invite(lax_broker.address, "w", identity=fleet.member("w"))
    boss = await invite(lax_broker.address, "boss", identity=operator)
    async with liar(lax_broker.address, fleet.member("evil")) as evil:
        await evil.write(TOPICS.job, old, retain=True)
        await watcher.until(lambda _: watcher.count(JobSeen) == 1)  # who knows of nothing later can't tell
        boss.client.publish_retained(TOPICS.job, JOB)
        await watcher.until_seen(JobSeen(pack(JOB)))
        await evil.write(TOPICS.job, old, retain=True)
        await watcher.until_seen(JobSpoiled())
        assert watcher.count(JobSeen) == 2
        await watcher.client.close()
        again = await invite(lax_broker.address, "w2", identity=fleet.member("w"))
        assert [type(event) for event in again.events if not isinstance(event, PresenceSeen)] == [
            *(Connected, JobSpoiled, Synced)
        ]
        # Whoever has heard of the job puts it back, as its operator has signed it.
        assert again.client.announce_again()
        await again.until_seen(JobSeen(pack(JOB)))
        await boss.until(lambda _: boss.events.count(JobSeen(pack(JOB))) >= 2)
        # It is over when an operator says so, and not when the topic is empty.
        await evil.write(TOPICS.job, b"", retain=True)
        await again.until(lambda _: again.count(JobSpoiled) == 2)
        assert JobSeen(None) not in again.events
        boss.client.publish_retained(TOPICS.job, None)
        await again.until_seen(JobSeen(None))
        await evil.write(TOPICS.job, announcement(operator, NOW - 1, JOB))
        await again.until(lambda _: again.count(JobSpoiled) == 3)


async def test_a_slow_clock_does_not_keep_an_operator_from_announcing(
    lax_broker: Broker, invite: Invite, fleet: Fleet
) -> None:
    watcher = await invite(lax_broker.address, "w", identity=fleet.viewer())
    boss = await invite(lax_broker.address, "boss", identity=fleet.operator())
    async with liar(lax_broker.address, fleet.member("evil")) as evil:
        tomorrow = announcement(fleet.operator("bob"), NOW + 86400, new_job(id="tomorrow", trainer="numpy"))
        await evil.write(TOPICS.job, tomorrow, retain=True)
    await boss.until(lambda _: boss.count(JobSeen) == 1)
    boss.client.publish_retained(TOPICS.job, JOB)
    await watcher.until_seen(JobSeen(pack(JOB)))


@pytest.mark.parametrize("at", [float("inf"), float("nan"), 1e300])
def test_a_job_of_no_time_that_is_one(at: float, fleet: Fleet) -> None:
    gate = FleetGate(fleet.member("w"), "w")
    with pytest.raises(WireError):
        gate.opened(TOPICS.job, JOB_TOPIC, announcement(fleet.operator(), at, JOB))


def test_an_operator_who_is_out_has_locked_nobody_out(fleet: Fleet) -> None:
    """However late it says that its job is; and what was said before that does not count again."""
    w, alice = fleet.member("w"), fleet.operator()
    gate, boss = FleetGate(w, "w"), FleetGate(alice, "boss")
    early, before = (announcement(alice, NOW + n, JOB) for n in (0, 1))
    late = [announcement(fleet.operator("bob"), 2.0**40 - n, JOB) for n in (2, 2.0**-13)]
    for each in (gate, boss):
        for payload in (before, *late):
            each.opened(TOPICS.job, JOB_TOPIC, payload)
    out = fleet.evict("bob")
    assert w.evictions.accept(out)
    assert alice.evictions.accept(out)
    with pytest.raises(WireError, match="before the last job"):
        FleetGate(w, "w").opened(TOPICS.job, JOB_TOPIC, early)
    said_now = boss.sealed(TOPICS.job, JOB_TOPIC, pack(JOB))
    assert FleetGate(w, "w").opened(TOPICS.job, JOB_TOPIC, said_now)[0] == pack(JOB)
    for payload in (before, *late):
        with pytest.raises(WireError):
            FleetGate(w, "w").opened(TOPICS.job, JOB_TOPIC, payload)


async def test_nobody_is_told_in_an_answer_that_others_are_gone(
    lax_broker: Broker, invite: Invite, fleet: Fleet
) -> None:
    """Whoever clears a presence is answered by its peer; of an answer to somebody else that hears nothing."""
    p1 = fleet.member("p1")
    asker = await invite(lax_broker.address, "asker", identity=fleet.member("asker"))
    async with liar(lax_broker.address, fleet.viewer("eve")) as eve:
        await eve.write(TOPICS.presence("p1"), said(p1, "p1"))
        await asker.until_seen(PresenceSeen(of("p1")))
        gone = Answer(topic=TOPICS.presence("p1"), payload=b"", nonce=b"")
        await eve.write(TOPICS.answer("asker"), signed(fleet.viewer("eve"), TOPICS.answer("asker"), gone))
        await eve.write(TOPICS.presence("p1"), said(p1, "p1", serial=2))
        await asker.until_seen(PresenceSeen(of("p1", serial=2)))
    assert asker.count(PresenceGone) == 0
    assert asker.client.is_present("p1")


async def test_only_an_answer_to_the_last_question_shows_that_somebody_lives(
    lax_broker: Broker, invite: Invite, fleet: Fleet
) -> None:
    asker = await invite(lax_broker.address, "asker", identity=fleet.viewer())
    p1, evil = fleet.member("p1"), fleet.member("evil")

    def answer(nonce: bytes, by: Identity) -> bytes:
        document = Answer(topic=TOPICS.presence("p1"), payload=said(p1, "p1"), nonce=nonce)
        return signed(by, TOPICS.answer("asker"), document)

    async with as_member(lax_broker.address, evil) as raw:
        await raw.subscribe(TOPICS.ask, 1)
        messages = raw.messages

        async def asked() -> bytes:
            asker.client.ask()
            envelope = Envelope.unpack(bytes((await anext(messages)).payload))  # type: ignore[arg-type]
            return unpack(envelope.body, Ask).nonce

        async def read(count: int) -> None:
            await asker.until(lambda seen: seen.count(PresenceSeen(of("p1"))) == count)

        first = await asked()
        # Somebody else passes a presence on, which is true: that does not show that its peer lives.
        await raw.publish(TOPICS.answer("asker"), answer(first, evil), qos=1)
        await read(1)
        second = await asked()
        # The peer's own answer, but to the question before.
        await raw.publish(TOPICS.answer("asker"), answer(first, p1), qos=1)
        await read(2)
        assert Answered(PeerId("p1")) not in asker.events
        await raw.publish(TOPICS.answer("asker"), answer(second, p1), qos=1)
        await asker.until_seen(Answered(PeerId("p1")))
    assert asker.client.rejected_documents == 0


async def test_who_lives_answers_and_signs(strict_broker: Broker, invite: Invite, fleet: Fleet) -> None:
    for name in ("p1", "p2"):
        await invite(strict_broker.address, name, identity=fleet.member(name), present=True)
    asker = await invite(strict_broker.address, "asker", identity=fleet.operator())
    asker.client.ask()
    await asker.until_seen(Answered(PeerId("p1")), Answered(PeerId("p2")))
    assert asker.client.rejected_documents == 0


async def test_a_view_of_an_earlier_life_is_refused_once_this_one_is_in_a_view(
    lax_broker: Broker, invite: Invite, fleet: Fleet
) -> None:
    p1, w = fleet.member("p1"), fleet.member("w")
    watcher = await invite(lax_broker.address, "w", identity=w)
    old = View(epoch=900, members=(Member(id="p1", incarnation=1), Member(id="w", incarnation=2)))
    async with liar(lax_broker.address, p1) as broker:
        await broker.write(TOPICS.view, signed(p1, TOPICS.view, old))
        await watcher.until_seen(ViewSeen(old))  # whoever has just started wants to know who was there
        watcher.client.works_in(VIEW)
        await broker.write(TOPICS.view, signed(p1, TOPICS.view, old))
        await broker.until_read_by(watcher)
        assert watcher.client.rejected_documents == 1
        assert "earlier life" in next(iter(watcher.client.refusals))
        following = msgspec.structs.replace(VIEW, epoch=4)
        await broker.write(TOPICS.view, signed(p1, TOPICS.view, following))
        await watcher.until_seen(ViewSeen(following))
    assert watcher.count(ViewSeen) == 2


async def test_who_has_no_right_to_is_told_so_before_anything_is_said(fleet: Fleet) -> None:
    secure = BrokerAddress.parse("mqtts://127.0.0.1")

    def client(name: str, identity: object, address: BrokerAddress = secure, **options: object) -> FabricClient:
        return FabricClient(address, "lab", name, on_event=print, identity=identity, **options)  # type: ignore[arg-type]

    with pytest.raises(
        ConfigError, match=r"that of peer p1 of lab, and job must be signed by an operator: edgepeer fl"
    ):
        client("x", fleet.member("p1")).publish_retained(TOPICS.job, JOB)
    with pytest.raises(ConfigError, match=r"operator alice of lab, and view must be signed by an enrolled peer"):
        client("x", fleet.operator()).publish_retained(TOPICS.view, VIEW)
    with pytest.raises(
        ConfigError, match=r"mqtt://127.0.0.1:1883: fleet = .* says nothing in clear text: use mqtts://"
    ):
        client("x", fleet.operator(), BrokerAddress.parse("mqtt://127.0.0.1"))
    with pytest.raises(ConfigError, match=r"peer_id = p2: but the certificate in .* is that of peer p1 of lab"):
        client("p2", fleet.member("p1"), will_topic=TOPICS.presence("p2"))
    with pytest.raises(ConfigError, match=r"that of operator alice of lab, and not a peer's: edgepeer join"):
        client("alice", fleet.operator(), will_topic=TOPICS.presence("alice"))
    with pytest.raises(ConfigError, match=r"fabric = lab: but fleet = .* is of fabric barn"):
        client("p1", fleet.other(fabric="barn").member("p1"))


async def test_a_renewed_certificate_signs_all_that_is_kept_anew(
    strict_broker: Broker, invite: Invite, fleet: Fleet
) -> None:
    """Of another authority, too."""
    p1, w = fleet.member("p1"), fleet.viewer()
    guest = await invite(strict_broker.address, "p1", identity=p1, present=True)
    watcher = await invite(strict_broker.address, "w", identity=w)
    watcher.events.clear()
    both = fleet.founder.add_authority()
    for each in (p1, w):
        assert each.evictions.accept(both)
    p1.renewed(fleet.founder.renew("p1", p1.key.public_key(), Role.PEER))
    await watcher.until_seen(PresenceSeen(of("p1")))
    assert w.evictions.accept(fleet.drop_authority())
    envelope = guest.client._outbox.kept[TOPICS.presence("p1")].payload
    assert w.check(Envelope.unpack(envelope).certificate).holder == p1.holder
    assert watcher.count(PresenceGone) == guest.client.reconnects == watcher.client.rejected_documents == 0


def test_jobs_of_a_fleet_that_a_device_has_left_keep_none_of_the_next_from_it(fleet: Fleet) -> None:
    """Where the clock of an operator there was a year ahead."""
    p1, alice, other = fleet.member("p1"), fleet.operator("alice"), fleet.other()
    ahead = announcement(alice, time.time() + 365 * 86400, JOB)
    FleetGate(p1, "p1").opened(TOPICS.job, JOB_TOPIC, ahead)
    now = announcement(fleet.operator("bob"), time.time(), JOB)
    with pytest.raises(WireError, match="before the last job that this device has heard of"):
        FleetGate(fleet.member("p1"), "p1").opened(TOPICS.job, JOB_TOPIC, now)
    p1.evictions.accept(fleet.evict("alice"))  # who was thrown out was of this fleet all the same
    assert FleetGate(fleet.member("p1"), "p1").announced.signed == ahead
    shutil.copytree(other.directory("p1"), p1.directory, dirs_exist_ok=True)
    gate = FleetGate(fleet.member("p1"), "p1")
    assert gate.opened(TOPICS.job, JOB_TOPIC, announcement(other.operator(), time.time(), JOB))[0] == pack(JOB)


async def test_a_job_of_the_authority_before_is_taken_over(strict_broker: Broker, invite: Invite, fleet: Fleet) -> None:
    """By another operator; nobody who has it hears of another."""
    p1, alice = fleet.member("p1"), fleet.operator("alice")
    guest, other, boss = [
        await invite(strict_broker.address, each.holder.id, identity=each)
        for each in (p1, alice, fleet.operator("bob"))
    ]
    boss.client.publish_retained(TOPICS.job, JOB)
    for each in (guest, other):
        await each.until_seen(JobSeen(pack(JOB)))
    await boss.client.close()
    both = fleet.founder.add_authority()
    for trust in (p1, alice):
        assert trust.evictions.accept(both)
        trust.renewed(fleet.founder.renew(trust.holder.id, trust.key.public_key(), trust.holder.role))
    before = other.client._fleet.gate.announced.signed  # type: ignore[union-attr]
    assert [other.client.take_over_job() for _ in range(2)] == [True, False]
    await guest.until(lambda _: guest.events.count(JobSeen(pack(JOB))) == 2)
    after = guest.client._fleet.gate.announced.signed  # type: ignore[union-attr]
    assert p1.evictions.accept(fleet.drop_authority())
    newcomer = FleetGate(fleet.member("p2"), "p2")
    with pytest.raises(WireError, match="issued by no authority of this fleet"):
        newcomer.opened(TOPICS.job, JOB_TOPIC, before)
    assert newcomer.opened(TOPICS.job, JOB_TOPIC, after)[0] == pack(JOB)
    assert guest.count(JobSpoiled) == 0


def test_after_a_reconnect_presences_are_not_checked_anew(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """All come again as they were: signatures are what checking them costs."""
    told = []
    for number in range(50):
        name, key = f"p{number}", make_key()
        holder = Holder("lab", Role.PEER, name, Holder.serial_after(number, NOW) + number)
        certificate = fleet.founder.issue(holder, key.public_key())
        body = pack(of(name))
        signature = key.sign(Envelope.signed_bytes(TOPICS.presence(name), body), ec.ECDSA(hashes.SHA256()))
        told.append((TOPICS.presence(name), Envelope(1, certificate, signature, body).pack()))
    gate = FleetGate(fleet.viewer(), "w")
    verified: list[str] = []
    for kind in (Authority, Credential):
        monkeypatch.setattr(kind, "verify", _counted(kind.verify, verified))

    def check_all() -> int:
        verified.clear()
        for name, payload in told:
            topic = TOPICS.parse(name)
            assert topic is not None
            body, holder = gate.opened(name, topic, payload)
            event = read(topic, body)
            assert event is not None
            gate.passed(event, holder)
        return len(verified)

    assert check_all() == 2 * len(told), "of each its certificate, and what it says"
    assert check_all() == 0
    told[0] = (told[0][0], told[1][1])
    with pytest.raises(WireError):
        check_all()


def _counted(verify: Callable[..., Any], calls: list[str]) -> Callable[..., Any]:
    def counted(*arguments: Any) -> Any:
        calls.append(verify.__qualname__)
        return verify(*arguments)

    return counted


GROUPS = [TOPICS.presence("p1"), TOPICS.view, TOPICS.job, TOPICS.report("j", "p1"), TOPICS.ask, TOPICS.answer("w")]
ENVELOPES = st.tuples(
    st.integers(0, 2), st.binary(max_size=600), st.binary(max_size=80), st.binary(max_size=300) | st.just(b"")
).map(msgspec.msgpack.encode)


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> FleetGate:
    return FleetGate(Fleet(tmp_path_factory.mktemp("fuzzed"), "lab").member("w"), "w")


@given(st.sampled_from(GROUPS), st.binary(max_size=800) | ENVELOPES, st.booleans())
def test_any_bytes_are_refused(gate: FleetGate, name: str, payload: bytes, ours: bool) -> None:
    """Those as well that come with a certificate of the fleet, and without its holder's signature."""
    topic = TOPICS.parse(name)
    assert topic is not None
    if ours:
        payload = Envelope(1, gate.identity.certificate, payload[:100] or b"x", payload).pack()
    if payload or topic.group is Group.JOB:
        with pytest.raises(WireError):
            gate.opened(name, topic, payload)


async def test_reports_of_a_job_come_signed(strict_broker: Broker, invite: Invite, fleet: Fleet) -> None:
    p1 = await invite(strict_broker.address, "p1", identity=fleet.member("p1"), present=True)
    boss = await invite(strict_broker.address, "boss", identity=fleet.operator())
    p1.client.publish_retained(TOPICS.report("j1", "p1"), REPORT)
    await boss.until_seen(ReportSeen(REPORT))
    boss.client.publish_retained(TOPICS.report("j1", "p1"), None)
    assert await boss.client.flush(DEADLINE_S)
    late = await invite(strict_broker.address, "late", identity=fleet.viewer(), interests=Group.REPORTS)
    if type(strict_broker).__name__ == "EmbeddedBroker":  # mosquitto does not know who is an operator
        assert late.events == [Connected(), Synced()]


async def test_so_is_one_whose_operator_has_a_certificate_that_ends_soon(
    strict_broker: Broker, invite: Invite, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After that, newcomers would not believe it."""
    fleet.founder.member("bob", Role.OPERATOR, lifetime_s=3600)
    boss, other = [
        await invite(strict_broker.address, each.holder.id, identity=each)
        for each in (Identity.load(fleet.directory("bob")), fleet.operator("alice"))
    ]
    boss.client.publish_retained(TOPICS.job, JOB)
    await other.until_seen(JobSeen(pack(JOB)))
    assert not other.client.take_over_job()
    monkeypatch.setattr("edgepeer.trust.clock.believable", lambda: time.time() + 3000)
    assert not boss.client.take_over_job(), "its own ends as soon"
    assert [other.client.take_over_job() for _ in range(2)] == [True, False]
