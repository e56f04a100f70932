"""Brokers and clients for the fabric's tests: all is tested against both kinds of broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fabric_guests import DEADLINE_S, Broker, Guest, Invite, OpenGate, StartBroker, presence
from fleet_guests import LaxMosquitto
from fleets import Fleet
from ports import free_port
from way_to_broker import Gate

from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.fabric.events import Connected, Synced
from edgepeer.fabric.mosquitto import Mosquitto, find_mosquitto


@pytest.fixture(params=["embedded", "mosquitto"])
async def start_broker(request: pytest.FixtureRequest) -> AsyncIterator[StartBroker]:
    """Starts brokers of one kind; they end with the test."""
    if request.param == "mosquitto" and find_mosquitto() is None:
        pytest.skip("mosquitto is not installed")
    async with contextlib.AsyncExitStack() as brokers:

        async def start(**login: str) -> Broker:
            if request.param == "embedded":
                login.pop("operators", None)  # it sees from the certificate who is one
            broker = EmbeddedBroker(port=free_port(), **login) if request.param == "embedded" else Mosquitto(**login)
            return await brokers.enter_async_context(broker)

        yield start


@pytest.fixture
async def broker(start_broker: StartBroker) -> Broker:
    return await start_broker()


@pytest.fixture
async def open_gate() -> AsyncIterator[OpenGate]:
    """Opens gates to brokers, and shuts them when the test is over."""
    gates: list[Gate] = []

    async def put(behind: BrokerAddress) -> Gate:
        gate = Gate(behind)
        await gate.open()
        gates.append(gate)
        return gate

    yield put
    for gate in gates:
        await gate.shut()


@pytest.fixture
async def invite() -> AsyncIterator[Invite]:
    """Brings guests to a broker, and sees them out when the test is over."""
    guests = contextlib.AsyncExitStack()

    async def see_out(guest: Guest) -> None:
        await guest.client.close(timeout=0.2)
        assert guest.task is not None
        with contextlib.suppress(asyncio.CancelledError):
            await guest.task

    async def bring(address: BrokerAddress, name: str, *, present: bool = False, **options: object) -> Guest:
        if present:
            options["will_topic"] = f"edgepeer/v1/lab/peer/{name}"
        guest = Guest(address, name, **options)
        if present:
            guest.client.publish_retained(guest.client.topics.presence(name), presence(name))
        guest.task = asyncio.create_task(guest.client.run())
        guests.push_async_callback(see_out, guest)
        await guest.client.connected(DEADLINE_S)
        await guest.until_seen(Connected(), Synced())
        return guest

    async with guests:  # all of them, whatever one ends with
        yield bring


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """A fleet of the fabric that guests are in."""
    return Fleet(tmp_path / "fleet", "lab")


@pytest.fixture
async def strict_broker(start_broker: StartBroker, fleet: Fleet) -> Broker:
    """A broker of the fleet, as it should be."""
    return await start_broker(identity=fleet.a_broker(), operators=("alice",))


@pytest.fixture(params=["embedded", "mosquitto"])
async def lax_broker(
    request: pytest.FixtureRequest, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Broker]:
    """A broker of the fleet that lets members write whatever they like: what it carries is not to be believed."""
    if request.param == "mosquitto" and find_mosquitto() is None:
        pytest.skip("mosquitto is not installed")
    monkeypatch.setattr("edgepeer.fabric.amqtt_parts.may_write", lambda *_: True)
    monkeypatch.setattr(EmbeddedBroker, "_listed", lambda *_: True)
    broker = EmbeddedBroker if request.param == "embedded" else LaxMosquitto
    async with broker(identity=fleet.a_broker()) as running:
        yield running
