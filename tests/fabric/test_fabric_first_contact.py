"""What a client says when it can't get in: one line, soon, with the address and the reason."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest
from fabric_guests import DEADLINE_S, Guest, Invite, StartBroker, scripted_broker, why_not
from ports import free_port, is_at, nobody_answers

from edgepeer.errors import FabricError
from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.client import FabricClient
from edgepeer.fabric.events import Connected, Disconnected, Synced
from edgepeer.fabric.topics import Group


@contextlib.asynccontextmanager
async def running(client: FabricClient) -> AsyncIterator[None]:
    task = asyncio.create_task(client.run())
    try:
        yield
    finally:
        await client.close(timeout=0.1)
        await task


async def test_wrong_credentials_are_told_from_other_failures(start_broker: StartBroker, invite: Invite) -> None:
    broker = await start_broker(username="lab", password="wörd: with / all @ sorts")
    await invite(broker.address, "right", present=True)
    here = {"host": broker.address.host, "port": broker.address.port}
    for login in (
        {},
        {"username": "lab"},
        {"username": "lab", "password": "s3cret"},
        {"username": "x", "password": "y"},
    ):
        address = BrokerAddress(**here, **login)  # type: ignore[arg-type]
        guest = Guest(address, "wrong", timeout=2.0)
        async with asyncio.timeout(DEADLINE_S), running(guest.client):
            with pytest.raises(FabricError) as caught:
                await guest.client.connected(DEADLINE_S)
        assert str(caught.value) == f"broker {address}: wrong user name or password"
        assert "s3cret" not in str(caught.value)
        assert guest.events == []


async def test_a_broker_that_comes_late_is_found(start_broker: StartBroker) -> None:
    broker = await start_broker()
    await broker.stop()
    guest = Guest(broker.address, "a")
    async with running(guest.client):
        assert "connection refused; is a broker running there" in await why_not(guest.client)
        await broker.start()
        await guest.client.connected(DEADLINE_S)
        await guest.until_seen(Synced())
        assert guest.client.reconnects == 0


async def test_a_wrong_port_is_named() -> None:
    port = free_port()
    client = FabricClient(BrokerAddress(host="127.0.0.1", port=port), "lab", "a", on_event=print)
    async with running(client):
        said = await why_not(client)
    assert said == f"broker mqtt://127.0.0.1:{port}: connection refused; is a broker running there?"


async def test_a_wrong_host_name_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    client = FabricClient(BrokerAddress(host="no-such-host.invalid"), "lab", "a", on_event=print)
    async with running(client):
        said = await why_not(client)
    assert said == (
        "broker mqtt://no-such-host.invalid:1883: "
        "host name 'no-such-host.invalid' not found (Name or service not known)"
    )


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
async def test_whoever_does_not_speak_mqtt_is_named(greeting: bytes) -> None:
    hung_up = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        await reader.read()  # until the client has given up and closed
        writer.close()
        hung_up.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, asyncio.timeout(DEADLINE_S):
        address = BrokerAddress(host="127.0.0.1", port=server.sockets[0].getsockname()[1])
        client = FabricClient(address, "lab", "a", on_event=print, timeout=0.1)
        async with running(client):
            said = "without an MQTT answer; is it an MQTT broker without TLS? (that of a fleet has it)"
            assert said in await why_not(client)
        await hung_up.wait()


async def test_an_address_that_nobody_answers_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silence(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", silence)
    client = FabricClient(BrokerAddress(host="127.0.0.1"), "lab", "a", on_event=print, timeout=0.05)
    async with running(client):
        assert "mqtt://127.0.0.1:1883: timed out after 0.05 s" in await why_not(client)


async def test_an_address_that_leads_nowhere_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a host whose IPv6 does not work: who is silent there must not keep its IPv4 from being tried."""
    async with scripted_broker() as address:
        with nobody_answers() as nowhere:
            is_at(monkeypatch, nowhere, (address.host, address.port))
            client = FabricClient(address, "lab", "a", on_event=lambda _: None, timeout=1.0)
            async with running(client):
                await client.connected(DEADLINE_S)


@pytest.mark.parametrize(
    ("codes", "reason"),
    [
        ({"connack": 3}, "connection refused: Server unavailable"),
        ({"connack": 2}, "connection refused: Client identifier not valid"),
        ({"connack": 4}, "wrong user name or password"),
        ({"connack": 5}, "wrong user name or password"),
        (
            {"suback": 0x80},
            "not allowed to subscribe to edgepeer/v1/lab/ask, edgepeer/v1/lab/answer/a, edgepeer/v1/lab/marker/a, "
            "edgepeer/v1/lab/marker/a/kept/+",
        ),
    ],
)
async def test_what_the_broker_itself_refuses_is_told_at_once(codes: dict[str, int], reason: str) -> None:
    async with scripted_broker(**codes) as address, asyncio.timeout(DEADLINE_S):
        guest = Guest(address, "a", interests=Group.NOTHING)
        async with running(guest.client):
            with pytest.raises(FabricError) as caught:
                await guest.client.connected(3 * DEADLINE_S)
        assert str(caught.value) == f"broker {address}: {reason}"
        assert guest.client.reconnects == 0


async def test_a_broker_that_answers_other_subscriptions_than_ours_is_named() -> None:
    async with scripted_broker(subacks=1) as address, asyncio.timeout(DEADLINE_S):
        guest = Guest(address, "a", interests=Group.NOTHING)
        async with running(guest.client):
            await guest.until(lambda seen: any(isinstance(event, Disconnected) for event in seen))
    assert guest.events[:2] == [
        Connected(),
        Disconnected("answered 4 subscriptions with 1 codes; is it an MQTT broker?"),
    ]


async def test_without_an_echo_synced_comes_after_a_while(caplog: pytest.LogCaptureFixture) -> None:
    async with scripted_broker() as address:
        guest = Guest(address, "a", interests=Group.NOTHING, timeout=1.0)  # it is to connect within that, too
        async with running(guest.client):
            await guest.client.connected(DEADLINE_S)
            await guest.until_seen(Synced())
        assert guest.events == [Connected(), Synced(), Disconnected("left")]
    assert "no echo of our own message" in caplog.text
