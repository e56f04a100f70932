"""Whoever listens, and is cancelled at any step of its life, listens no more, and leaves no task behind."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop
from fleets import Fleet
from ports import free_port
from speech import Ear

from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.peer.page_server import PageServer
from edgepeer.transport.tcp import TcpTransport

PATIENCE_S = 60.0
A_FEW_TURNS = 5


async def turns() -> None:
    for _ in range(A_FEW_TURNS):
        await asyncio.sleep(0)


async def be_called(port: int) -> None:
    """By somebody who says nothing."""
    with socket.create_connection(("127.0.0.1", port)):
        await turns()


async def broker(port: int, _: Fleet) -> None:
    async with EmbeddedBroker(port=port):
        await be_called(port)


async def broker_of_a_fleet(port: int, fleet: Fleet) -> None:
    async with EmbeddedBroker(port=port, identity=fleet.a_broker()):
        await be_called(port)


async def page(port: int, _: Fleet) -> None:
    async with PageServer("metrics_port", "127.0.0.1", port, path="/", content_type="text/plain", make=lambda: b""):
        await be_called(port)


async def transport(port: int, _: Fleet) -> None:
    listener = await TcpTransport().listen(f"127.0.0.1:{port}", Ear)
    try:
        await be_called(port)
    finally:
        await listener.close()


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("live", [broker, broker_of_a_fleet, page, transport])
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_who_is_cancelled_leaves_nothing(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    live: Callable[[int, Fleet], Awaitable[None]],
    times: int,
    tmp_path: Path,
) -> None:
    fleet, port, complaints = Fleet(tmp_path / "fleet"), free_port(), list[object]()

    async def cancel_at(step: int) -> bool:
        """Whether it was at its end before."""
        task = asyncio.ensure_future(live(port, fleet))
        for _ in range(step):
            if task.done():
                return True
            await asyncio.sleep(0)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait([task])
        await turns()
        assert task.cancelled() or task.exception() is None
        assert asyncio.all_tasks() == {asyncio.current_task()}, step
        with socket.create_server(("127.0.0.1", port)):  # nobody else listens there
            return False

    async def cancel_at_each() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        for step in itertools.count():
            if await cancel_at(step):
                break

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(cancel_at_each())
    assert complaints == []
