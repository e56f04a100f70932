"""Who is out of a fleet: told at once, believed only if its authority says so, and remembered whatever restarts."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from fabric_guests import DEADLINE_S, Broker, Guest, Invite, StartBroker
from fleet_guests import TOPICS, as_member, liar, of, said, signed
from fleets import Fleet, Identity, Role
from worked import Worked

from edgepeer.errors import ConfigError, FabricError, TrustError
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.fabric.connection import connection
from edgepeer.fabric.documents import PeerReport
from edgepeer.fabric.events import Connected, Disconnected, Evicted, PresenceGone, PresenceSeen, ReportSeen, Synced
from edgepeer.following.observe import observe
from edgepeer.ids import PeerId

GONE = PresenceGone(PeerId("p2"))


async def retained(broker: Broker, who: Identity) -> bytes:
    """The list that the broker has for whoever comes."""
    async with as_member(broker.address, who) as raw, asyncio.timeout(DEADLINE_S):
        await raw.subscribe(TOPICS.evicted, 1)
        async for message in raw.messages:
            if message.retain:
                return bytes(message.payload)  # type: ignore[arg-type]
    raise AssertionError


async def until_it_is(broker: Broker, who: Identity, signed: bytes) -> None:
    """The broker has that list."""
    async with as_member(broker.address, who) as raw, asyncio.timeout(DEADLINE_S):
        await raw.subscribe(TOPICS.evicted, 1)
        async for message in raw.messages:
            if message.payload == signed:
                return


async def test_who_is_evicted_is_off_everywhere_at_once(strict_broker: Broker, invite: Invite, fleet: Fleet) -> None:
    trusts = {name: fleet.member(name) for name in ("p1", "p2", "p3")}
    p1, p2, p3 = [
        await invite(strict_broker.address, name, identity=trust, present=True) for name, trust in trusts.items()
    ]
    boss = await invite(strict_broker.address, "boss", identity=fleet.operator())
    for guest in (p1, p3, boss):
        await guest.until_seen(*(PresenceSeen(of(name)) for name in trusts))
    listed = fleet.evict("p2")
    async with Worked() as worked:
        boss.client._fleet.identity.evictions.accept(listed)  # type: ignore[union-attr]
        for guest in (p1, p3, boss):
            await guest.until_seen(Evicted(PeerId("p2")), GONE)
    assert worked.seconds < 2
    # It hears of it as well, or is thrown out; in either case it ends, and says why.
    assert p2.task is not None
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(
            TrustError,
            match=r": peer p2 of lab was evicted on 20.*UTC \(certificate .*, list \d+\): if it is to be in again",
        ):
            await p2.task
    p2.task = asyncio.create_task(asyncio.sleep(0))
    for name in ("p1", "p3"):
        assert Identity.load(trusts[name].directory).evictions.signed == listed
        assert not trusts[name].evicted
    late = await invite(strict_broker.address, "late", identity=fleet.viewer())
    assert {event.presence.id for event in late.events if isinstance(event, PresenceSeen)} == {"p1", "p3"}
    with pytest.raises(ConfigError, match="peer p2 of lab was evicted"):
        Identity.load(trusts["p2"].directory)


async def test_who_is_evicted_while_it_looks_on_is_told_so(strict_broker: Broker, invite: Invite, fleet: Fleet) -> None:
    """And need not wait until nothing has moved for long enough."""
    watcher, boss = fleet.operator("watcher"), await invite(strict_broker.address, "boss", identity=fleet.operator())

    async def look() -> None:
        async with observe(strict_broker.address, "lab", lambda _: None, identity=watcher):
            boss.client._fleet.identity.evictions.accept(fleet.evict("watcher"))  # type: ignore[union-attr]
            await asyncio.Event().wait()

    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(TrustError, match="operator watcher of lab was evicted"):
            await look()


async def test_an_evicted_members_documents_count_no_more(lax_broker: Broker, invite: Invite, fleet: Fleet) -> None:
    """Of whatever kind, also those that the broker still has, and passes on."""
    p2, boss_trust = fleet.member("p2"), fleet.operator()
    report = PeerReport(job="j1", peer="p2", state="running")
    watcher = await invite(lax_broker.address, "w", identity=fleet.member("w"))
    boss = await invite(lax_broker.address, "boss", identity=boss_trust)
    async with liar(lax_broker.address, fleet.member("evil")) as evil:
        for topic, payload in (
            (TOPICS.presence("p2"), said(p2, "p2")),
            (TOPICS.report("j1", "p2"), signed(p2, TOPICS.report("j1", "p2"), report)),
        ):
            await evil.write(topic, payload, retain=True)
        for guest in (watcher, boss):  # of whom one has never heard, one isn't told that he is gone
            await guest.until_seen(PresenceSeen(of("p2")), ReportSeen(report))
        boss_trust.evictions.accept(fleet.evict("p2"))
        await watcher.until_seen(GONE)
        await boss.until_seen(GONE)
        watcher.events.clear()
        for serial in (1, 7):
            await evil.write(TOPICS.presence("p2"), said(p2, "p2", serial=serial))
        await evil.write(TOPICS.report("j1", "p2"), signed(p2, TOPICS.report("j1", "p2"), report))
        await evil.until_read_by(watcher)
        assert watcher.client.rejected_documents == 3
        assert any("peer p2 of lab was evicted" in why for why in watcher.client.refusals)
        late = await invite(lax_broker.address, "late", identity=fleet.viewer())
        assert not any(isinstance(e, PresenceSeen) and e.presence.id == "p2" for e in late.events)


async def test_what_the_evicted_leave_behind_an_operator_takes_away(
    strict_broker: Broker, invite: Invite, fleet: Fleet
) -> None:
    """And nothing else."""
    trusts = {name: fleet.member(name) for name in ("p1", "p2")}
    for name, trust in trusts.items():
        async with liar(strict_broker.address, trust) as raw:
            report = PeerReport(job="j1", peer=name, state="running")
            await raw.write(TOPICS.report("j1", name), signed(trust, TOPICS.report("j1", name), report), retain=True)
            await raw.write(TOPICS.presence(name), said(trust, name), retain=True)
            await raw.write(TOPICS.links(name), b"unsigned", retain=True)
    listed = fleet.evict("p2")
    for who, left in ((fleet.viewer(), 2), (fleet.operator(), 2), (fleet.viewer("victoria"), 0)):
        who.evictions.accept(listed)
        guest = await invite(strict_broker.address, "g", identity=who)
        assert guest.events.count(PresenceSeen(of("p1"))) == 1
        assert guest.events.count(ReportSeen(PeerReport(job="j1", peer="p1", state="running"))) == 1
        assert len([why for why in guest.client.refusals if "peer p2 of lab was evicted" in why]) == left
        assert len([why for why in guest.client.refusals if "not signed" in why]) == 2  # of nobody: it is to be seen
        guest.client.clear_outdated()
        assert await guest.client.flush(DEADLINE_S)
        await guest.client.close()


async def test_it_stays_so_when_all_have_restarted_with_an_empty_broker(
    strict_broker: Broker, invite: Invite, fleet: Fleet
) -> None:
    p1, p2 = fleet.member("p1"), fleet.member("p2")
    guest = await invite(strict_broker.address, "p1", identity=p1, present=True)
    listed = fleet.evict("p2")
    p1.evictions.accept(listed)
    await until_it_is(strict_broker, fleet.viewer(), listed)
    await guest.client.close()
    await strict_broker.stop()
    await strict_broker.start()
    again = await invite(strict_broker.address, "p1", identity=Identity.load(p1.directory), present=True)
    await until_it_is(strict_broker, fleet.viewer(), listed)
    async with as_member(strict_broker.address, fleet.operator()) as raw:
        await raw.publish(TOPICS.ask, b"", qos=1)
    async with liar(strict_broker.address, fleet.member("p3")) as other:
        await other.write(TOPICS.answer("p1"), said(p2, "p2"))
        await other.until_read_by(again)
    assert not any(isinstance(e, PresenceSeen) and e.presence.id == "p2" for e in again.events)


async def test_an_older_list_or_anothers_is_replaced(
    lax_broker: Broker, invite: Invite, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgepeer.fabric.spreading._PAUSE_S", 0.05)
    w = fleet.member("w")
    for name in ("p1", "p2", "p3"):
        fleet.member(name)
    other = fleet.other()
    other.member("w")
    forgery = other.evict("w")
    older, newer = fleet.evict("p1"), fleet.evict("p2")
    w.evictions.accept(newer)
    watcher = await invite(lax_broker.address, "w", identity=w)
    await until_it_is(lax_broker, fleet.viewer(), newer)
    async with liar(lax_broker.address, fleet.member("evil")) as evil:
        for lie in (older, forgery, b"garbage", b""):
            await evil.write(TOPICS.evicted, lie, retain=True)
            await until_it_is(lax_broker, fleet.viewer(), newer)
    assert w.evictions.signed == newer
    assert not w.evicted
    assert watcher.client.reconnects == 0


async def test_the_embedded_broker_keeps_who_is_out_from_its_own_list(
    start_broker: StartBroker, invite: Invite, fleet: Fleet
) -> None:
    """And hangs up on them at once."""
    trust, p1, p2 = fleet.a_broker(), fleet.member("p1"), fleet.member("p2")
    broker = await start_broker(identity=trust)
    if not isinstance(broker, EmbeddedBroker):
        pytest.skip("mosquitto is told by its administrator")
    out = await invite(broker.address, "p2", identity=p2, present=True)
    listed = fleet.evict("p2")
    trust.evictions.accept(listed)
    await out.until(lambda _: (out.task is not None and out.task.done()) or out.count(PresenceGone) >= 0)
    assert out.task is not None
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(TrustError):
            await out.task
    out.task = asyncio.create_task(asyncio.sleep(0))
    assert await retained(broker, fleet.viewer()) == listed
    with pytest.raises(
        FabricError, match=r"refuses our certificate: .* ours is certificate .* of peer p2 of lab, until"
    ):
        async with connection(
            broker.address, identifier="x", will_topic=None, on_message=lambda *_: None, timeout=10, identity=p2
        ):
            pass
    # Whoever comes hears of it from the broker alone.
    assert p1.evictions.signed != listed
    late = await invite(broker.address, "p1", identity=p1)
    assert p1.evictions.signed == listed
    assert late.events[0] == Connected()
    # And what is older than its own, or nobody's, it passes on to nobody.
    async with as_member(broker.address, fleet.operator()) as raw:
        for lie in (b"garbage", b""):
            await raw.publish(TOPICS.evicted, lie, qos=1, retain=True)
    assert await retained(broker, fleet.viewer()) == listed


async def test_an_evicted_broker_is_left_at_once(start_broker: StartBroker, invite: Invite, fleet: Fleet) -> None:
    """And not for another list, or an authority that is dropped: then its certificate is looked at when it is met."""
    trust, p1 = fleet.a_broker(), fleet.member("p1")
    broker = await start_broker(identity=trust)
    guest = await invite(broker.address, "p1", identity=p1, present=True)
    fleet.member("p2")
    p1.evictions.accept(fleet.evict("p2"))
    p1.evictions.accept(fleet.founder.add_authority())
    p1.renewed(fleet.founder.renew("p1", p1.key.public_key(), Role.PEER))
    p1.evictions.accept(fleet.drop_authority())
    assert await guest.client.flush(DEADLINE_S)
    assert guest.client.connected_now
    async with Worked() as worked:
        p1.evictions.accept(fleet.evict("broker"))
        await guest.until(lambda _: guest.count(Disconnected) == 1)
    assert worked.seconds < 2
    (left,) = [event for event in guest.events if isinstance(event, Disconnected)]
    assert left.reason.startswith("broker broker of lab was evicted on 20")
    with pytest.raises(FabricError, match=r"is not to be trusted|broker broker of lab was evicted on 20"):
        async with connection(
            broker.address, identifier="x", will_topic=None, on_message=lambda *_: None, timeout=10, identity=p1
        ):
            pass


async def test_many_that_come_back_to_an_empty_broker_say_it_once_at_most(
    strict_broker: Broker, invite: Invite, fleet: Fleet
) -> None:
    listed = b""
    fleet.member("out")
    members = [fleet.member(f"p{number}") for number in range(20)]
    listed = fleet.evict("out")
    for each in members:
        each.evictions.accept(listed)
    async with as_member(strict_broker.address, fleet.viewer()) as ear, asyncio.timeout(DEADLINE_S):
        await ear.subscribe(TOPICS.evicted, 1)
        guests = [await invite(strict_broker.address, each.holder.id, identity=each, present=True) for each in members]
        await until_it_is(strict_broker, fleet.viewer(), listed)
        # Whoever had waited for its turn has heard that there is nothing left to say.
        spreading = [own.spreading for guest in guests if (own := guest.client._fleet) is not None]
        assert len(spreading) == len(guests)
        async with asyncio.timeout(DEADLINE_S):
            while any(each._missing for each in spreading):  # noqa: ASYNC110  # what is inside of a client sets no Event
                await asyncio.sleep(0.01)  # looks again, until the deadline
        await ear.subscribe(TOPICS.answer("end"), 1)
        await ear.publish(TOPICS.answer("end"), b"x", qos=1)
        heard = 0
        async for message in ear.messages:
            if str(message.topic) != TOPICS.evicted:
                break
            heard += 1
    # How few it takes is seen in virtual time (test_spreading.py): a busy machine lets more of them have their turn.
    assert 1 <= heard <= len(members)


# -- twins ---------------------------------------------------------------------------------------------------------


async def test_of_two_with_one_identity_the_younger_goes(strict_broker: Broker, fleet: Fleet, invite: Invite) -> None:
    """Two devices with a copy of the same directory; at the broker they are two clients."""
    trust = fleet.member("p1")
    watcher = await invite(strict_broker.address, "w", identity=fleet.viewer())
    elder, younger = (
        Guest(strict_broker.address, "p1", identity=trust, will_topic=TOPICS.presence("p1")) for _ in range(2)
    )
    elder.client.publish_retained(TOPICS.presence("p1"), life(1, 100.0))
    elder.task = asyncio.create_task(elder.client.run())
    await elder.until_seen(Connected(), Synced())
    younger.client.publish_retained(TOPICS.presence("p1"), life(2, 200.0))
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(ConfigError, match="another peer with the id 'p1' is in fabric 'lab'"):
            await younger.client.run()
    assert not elder.task.done()

    def last() -> int | None:
        told = [event for event in watcher.events if isinstance(event, PresenceSeen | PresenceGone)]
        return told[-1].presence.incarnation if told and isinstance(told[-1], PresenceSeen) else None

    await watcher.until(lambda seen: seen.count(PresenceGone(PeerId("p1"))) == 1 and last() == 1)
    assert watcher.client.rejected_documents == 0
    await elder.client.close()
    await elder.task


async def test_an_old_presence_of_ones_own_kills_nobody(lax_broker: Broker, fleet: Fleet, invite: Invite) -> None:
    """Whoever has kept what this device once said may say it again: of an earlier life, which may have met a twin."""
    trust = fleet.member("p1")
    peer = Guest(lax_broker.address, "p1", identity=trust, will_topic=TOPICS.presence("p1"))
    peer.client.publish_retained(TOPICS.presence("p1"), life(5, 500.0))
    peer.task = asyncio.create_task(peer.client.run())
    await peer.until_seen(Connected(), Synced())
    watcher = await invite(lax_broker.address, "w", identity=fleet.viewer())
    async with liar(lax_broker.address, fleet.member("evil")) as evil:
        for old in (life(4, 400.0), msgspec.structs.replace(life(3, 300.0), met=350.0), life(4, 600.0)):
            told = signed(trust, TOPICS.presence("p1"), msgspec.structs.replace(old, serial=2))
            await evil.write(TOPICS.presence("p1"), told, retain=True)
            await evil.until_read_by(peer, watcher)
    assert not peer.task.done()
    late = await invite(lax_broker.address, "late", identity=fleet.viewer("late"))
    await late.until(lambda seen: any(isinstance(e, PresenceSeen) and e.presence.incarnation == 5 for e in seen))
    await peer.client.close()
    await peer.task


def life(incarnation: int, started: float) -> object:
    return msgspec.structs.replace(of("p1", incarnation=incarnation), started=started, serial=0)
