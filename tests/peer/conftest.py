"""The event loop that peers run on, and brokers for them."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import peer_fleet
import pytest
import uvloop
from fleets import Fleet
from peer_fleet import DEADLINE_S, its_broker
from ports import free_port

from edgepeer.fabric.broker import EmbeddedBroker


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Peers are made for uvloop and work on any loop: a test that takes `both_loops` runs on asyncio's too."""
    factories = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
    both = "both_loops" in getattr(item, "fixturenames", ())
    return factories if both else {"uvloop": factories["uvloop"]}


@pytest.fixture
def both_loops() -> None:
    """Run the test on every kind of event loop."""


@pytest.fixture(autouse=True)
def _nothing_unhandled(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """asyncio only logs what nobody handles: exceptions in callbacks and in tasks that nobody awaits. Of what is still
    written to a connection that has just ended it only warns."""
    yield
    errors = [record for record in caplog.get_records("call") if record.levelno >= logging.ERROR]
    said = [record.getMessage() for record in errors if record.name == "asyncio"]
    assert said == []


@pytest.fixture(params=["plain", "sealed"])
def links(request: pytest.FixtureRequest) -> None:
    """Run the test with peers of no fleet, and again with members of one."""
    if request.param == "sealed":
        request.getfixturevalue("members")


@pytest.fixture
def members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """Peers are of this fleet, and so is their broker."""
    fleet = Fleet(tmp_path / "members", "lab")
    monkeypatch.setattr(peer_fleet, "MEMBERS", fleet)
    return fleet


@pytest.fixture
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[EmbeddedBroker]:
    for name in ("links", "members"):  # a fleet's has its certificate
        if name in request.fixturenames:
            request.getfixturevalue(name)
    async with EmbeddedBroker(port=free_port(), identity=its_broker()) as running:
        yield running


@pytest.fixture
def broker_elsewhere() -> Iterator[EmbeddedBroker]:
    """A broker in another thread's loop: the tasks of the test's loop are the peers' alone."""
    broker = EmbeddedBroker()
    ready = threading.Event()

    async def serve() -> None:
        nonlocal stop
        stop = asyncio.Event()
        async with broker:
            ready.set()
            await stop.wait()

    stop: asyncio.Event | None = None
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        thread = threading.Thread(target=runner.run, args=(serve(),), name="broker")
        thread.start()
        assert ready.wait(DEADLINE_S)
        assert stop is not None
        try:
            yield broker
        finally:
            runner.get_loop().call_soon_threadsafe(stop.set)
            thread.join(DEADLINE_S)
