"""Several brokers: who has the same list meets at the first in it that can be reached."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest
from fabric_guests import DEADLINE_S, Broker, Guest, Invite, OpenGate, StartBroker, presence, why_not
from way_to_broker import Gate

from edgepeer.errors import ConfigError, FabricError
from edgepeer.fabric import looking
from edgepeer.fabric.address import MAX_BROKERS, BrokerAddress
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.fabric.client import FabricClient
from edgepeer.fabric.events import Connected, PresenceGone, PresenceSeen, RelaySeen, Synced
from edgepeer.fabric.looking import look_for
from edgepeer.fabric.reconnecting import Reconnecting
from edgepeer.fabric.topics import Group
from edgepeer.ids import PeerId


def listed(*addresses: BrokerAddress) -> BrokerAddress:
    return BrokerAddress.parse(",".join(address.url() for address in addresses))


def test_several_addresses_are_read_and_written() -> None:
    text = "mqtt://a:1,mqtt://lab:s3,cret@b"
    several = BrokerAddress.parse(text)
    assert [str(each) for each in several.choices] == ["mqtt://a:1", "mqtt://lab@b:1883"]
    assert several.choices[1].password == "s3,cret"
    assert str(several) == "mqtt://a:1, mqtt://lab@b:1883"
    assert "s3" not in repr(several)
    assert BrokerAddress.parse(several.url()) == several
    assert BrokerAddress.parse("mqtt://a, mqtt://b").choices == (BrokerAddress(host="a"), BrokerAddress(host="b"))
    one = BrokerAddress(host="a")
    assert one.choices == (one,)


@pytest.mark.parametrize("text", ["mqtt://a,", ",mqtt://a", "mqtt://a,b", "mqtt://a,mqtts://b", "mqtt://a,,mqtt://b"])
def test_malformed_lists_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        BrokerAddress.parse(text)


def test_there_is_a_limit() -> None:
    with pytest.raises(ConfigError, match=f"17 addresses, at most {MAX_BROKERS}"):
        BrokerAddress.parse(",".join(["mqtt://a"] * (MAX_BROKERS + 1)))


@pytest.fixture
async def two_gates(start_broker: StartBroker, open_gate: OpenGate) -> tuple[Gate, Gate]:
    """To two brokers of one kind."""
    return await open_gate((await start_broker()).address), await open_gate((await start_broker()).address)


async def test_peers_move_to_the_next_broker_and_back(two_gates: tuple[Gate, Gate], invite: Invite) -> None:
    first, second = two_gates
    brokers = listed(first.address, second.address)
    on_second = await invite(second.address, "watcher")
    fleet: list[Guest] = [
        await invite(brokers, name, present=True, look_back=0.1, interests=Group.PEERS | Group.RELAY)
        for name in ("a", "b")
    ]
    assert [guest.client.broker for guest in fleet] == [first.address] * 2
    assert on_second.count(PresenceSeen) == 0

    await first.shut()
    for guest in fleet:
        await guest.until(lambda events: events.count(Synced()) == 2)
        assert guest.client.broker == second.address
    await on_second.until_seen(PresenceSeen(presence("a")), PresenceSeen(presence("b")))
    # They can send to each other there.
    assert fleet[0].client.publish_relay("b", b"over the second")
    await fleet[1].until_seen(RelaySeen(b"over the second"))

    await first.open()
    for guest in fleet:
        await guest.until(lambda events: events.count(Synced()) == 3)
        assert guest.client.broker == first.address
        assert guest.client.reconnects == 2
    await on_second.until_seen(PresenceGone(PeerId("a")), PresenceGone(PeerId("b")))
    assert fleet[0].client.publish_relay("b", b"over the first")
    await fleet[1].until_seen(RelaySeen(b"over the first"))
    on_first = await invite(first.address, "late")
    assert {*on_first.events} >= {PresenceSeen(presence("a")), PresenceSeen(presence("b"))}


async def test_why_none_of_those_before_it_is_used_is_told(
    two_gates: tuple[Gate, Gate], invite: Invite, caplog: pytest.LogCaptureFixture
) -> None:
    """Else a fleet whose first broker has an expired certificate, say, is at the second, and nobody knows why."""
    first, second = two_gates
    caplog.set_level(logging.INFO, "edgepeer.fabric.reconnecting")
    await first.shut()
    guest = await invite(listed(first.address, second.address), "a", look_back=0.1)
    (line,) = [record.getMessage() for record in caplog.records if ": connected" in record.getMessage()]
    assert line == (
        f"broker {second.address}: connected, and to none before it: broker {first.address}: connection refused; is a "
        "broker running there?"
    )
    caplog.clear()
    await first.open()
    await guest.until(lambda events: events.count(Synced()) == 2)
    assert f"broker {first.address}: connected again" in [record.getMessage() for record in caplog.records]


async def test_a_peer_that_starts_goes_where_it_can(two_gates: tuple[Gate, Gate], invite: Invite) -> None:
    first, second = two_gates
    await first.shut()
    guest = await invite(listed(first.address, second.address), "a", present=True)
    assert guest.client.broker == second.address
    assert guest.client.connected_now
    assert guest.events[0] == Connected()
    await guest.client.close()
    assert not guest.client.connected_now
    late = await invite(second.address, "late")
    assert late.events == [Connected(), Synced()]  # its presence was taken back


async def test_a_broker_that_refuses_us_is_passed_over(invite: Invite) -> None:
    async with EmbeddedBroker(username="lab", password="secret") as closed, EmbeddedBroker() as open_:
        stranger = BrokerAddress(host="127.0.0.1", port=closed.address.port)
        guest = await invite(listed(stranger, open_.address), "a")
        assert guest.client.broker == open_.address
        with pytest.raises(FabricError, match="wrong user name or password"):
            await invite(listed(stranger, stranger), "b")


async def test_who_looks_back_in_vain_stays(invite: Invite) -> None:
    looks, looked = 0, asyncio.Event()

    def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal looks
        looks += 1
        looked.set()
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server, EmbeddedBroker() as broker:
        first = BrokerAddress(host="127.0.0.1", port=server.sockets[0].getsockname()[1])
        guest = await invite(listed(first, broker.address), "a", look_back=0.02)
        async with asyncio.timeout(DEADLINE_S):
            while looks < 4:
                looked.clear()
                await looked.wait()
        assert guest.events == [Connected(), Synced()]
        assert guest.client.broker == broker.address
        await guest.client.close()  # nobody looks while the server closes


async def test_when_none_can_be_reached_all_are_named(two_gates: tuple[Gate, Gate]) -> None:
    first, second = two_gates
    await first.shut()
    await second.shut()
    client = FabricClient(listed(first.address, second.address), "lab", "a", on_event=lambda _: None)
    running = asyncio.create_task(client.run())
    said = await why_not(client)
    for address in (first.address, second.address):
        assert f"broker {address}: connection refused" in said
    await client.close()
    async with asyncio.timeout(DEADLINE_S):
        await running


async def test_a_broker_that_lets_us_in_and_hears_nothing_is_not_gone_back_to_at_once(
    broker: Broker, invite: Invite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A login without rights there. To look is to connect, which it lets us."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        with contextlib.suppress(OSError, EOFError):
            while True:
                kind, length = await reader.readexactly(2)
                if length >= 0x80:
                    length += ((await reader.readexactly(1))[0] - 1) << 7
                body = await reader.readexactly(length)
                if kind >> 4 == 1:
                    writer.write(bytes.fromhex("20020000"))
                elif kind >> 4 == 8:
                    writer.write(
                        bytes([0x90, 2 + body.count(b"edgepeer")]) + body[:2] + b"\x80" * body.count(b"edgepeer")
                    )
                elif kind >> 4 == 3:
                    topic = 2 + int.from_bytes(body[:2], "big")
                    writer.write(b"\x40\x02" + body[topic : topic + 2])
                else:
                    break
        writer.close()

    looked = asyncio.Event()
    looks = 0

    class Jitter:
        def uniform(self, least: float, most: float) -> float:
            nonlocal looks
            looks += 1
            if looks >= 5:
                looked.set()
            return least

    monkeypatch.setattr(looking, "_JITTER", Jitter())
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        useless = BrokerAddress(host="127.0.0.1", port=server.sockets[0].getsockname()[1])
        guest = await invite(listed(useless, broker.address), "a", look_back=0.02)
        await guest.until_seen(Synced())
        async with asyncio.timeout(DEADLINE_S):
            await looked.wait()
        assert (guest.client.broker, connections) == (broker.address, 1)
        assert "not allowed to subscribe" in str(guest.events[1])


async def test_what_is_useless_is_looked_for_after_a_while(broker: Broker) -> None:
    looks = iter([True] * 5 + [False])
    with pytest.raises(FabricError, match="is back"):
        async with asyncio.timeout(DEADLINE_S):
            await look_for(
                *((broker.address,), "a"), every=1e-3, timeout=DEADLINE_S, too_soon=lambda address: next(looks)
            )
    assert not [*looks]


def test_and_that_while_doubles() -> None:
    address = BrokerAddress(host="a")

    async def main() -> list[float]:
        asked = Reconnecting(
            (address,), "a", will_topic=None, timeout=1, look_back=1, identity=None,
            receive=lambda *_: None, emit=lambda _: None, serve=lambda _: asyncio.sleep(0),
        )  # fmt: skip
        found = []
        for _ in range(8):
            assert asked._is_too_soon(address) == bool(found)
            asked._is_useless(address)
            found.append(asked._useless[address][1])
        asked._useless[address] = asyncio.get_running_loop().time() - 1e-3, 3600  # it is over
        assert not asked._is_too_soon(address)
        asked._is_useless(address)
        asked.stands()
        assert not asked._is_too_soon(address)
        return found

    assert asyncio.run(main()) == [60, 120, 240, 480, 960, 1920, 3600, 3600]


async def test_each_reason_is_told_once_in_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    """Why a broker that is back does not let us in is not that it was away."""
    asked = Reconnecting(
        (BrokerAddress(host="a"),), "a", will_topic=None, timeout=1, look_back=1, identity=None,
        receive=lambda *_: None, emit=lambda _: None, serve=lambda _: asyncio.sleep(0),
    )  # fmt: skip
    said = ("connection lost", "connection refused", "connection refused", "wrong user name or password")
    for count, level in ((0, []), (1, [said[0], said[1], said[3]])):
        asked.count = count
        caplog.clear()
        for reason in said:
            asked._note([FabricError(reason)])
        warned = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
        assert warned == [f"{reason}; trying again" for reason in level]
        asked.stands()
    caplog.clear()
    for number in range(20):  # as of several brokers, whose reasons are told together
        asked._note([FabricError(f"reason {number}")])
    assert len([each for each in caplog.records if each.levelno == logging.WARNING]) == 8
