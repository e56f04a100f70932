"""A whole fleet on this machine: a broker, a network, peers as processes of their own, and a job that they train."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

from edgepeer.emulation.fleet import Fleet, peer_names
from edgepeer.emulation.follow import run_job
from edgepeer.emulation.jobs import make_job
from edgepeer.emulation.network import Link, open_network
from edgepeer.emulation.progress import Progress
from edgepeer.emulation.result import JobResult
from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.fabric.mosquitto import Mosquitto
from edgepeer.settings import EmulateSettings

__all__ = ["emulate", "open_broker"]


async def emulate(settings: EmulateSettings, on_update: Callable[[Progress], None]) -> JobResult:
    """Run broker, network, peers and job, and end them all.

    Raises:
        ConfigError: a setting can't be used; nothing was left running.
        FabricError: the broker can't be reached.
        JobError: the peers could not do the job.
    """
    job = make_job(settings, wait_for=settings.peers)
    link = None if settings.link is None else Link.parse(settings.link)
    names = peer_names(settings.peers)
    async with (
        open_network(names, mode=settings.network, link=link) as network,
        open_broker(settings.broker) as (broker, name),
    ):
        progress = Progress(job, broker=name)
        progress.note(f"network: {network.description}")
        async with Fleet(settings, network, broker) as fleet:
            return await fleet.watched(
                run_job(progress, on_update, broker=broker, fabric=settings.fabric, timeout=settings.timeout), progress
            )


@contextlib.asynccontextmanager
async def open_broker(choice: str) -> AsyncIterator[tuple[BrokerAddress, str]]:
    """The broker that `choice` asks for, running, and what to call it."""
    if choice == "embedded":
        async with EmbeddedBroker() as embedded:
            yield embedded.address, "embedded"
    elif choice == "mosquitto":
        async with Mosquitto() as mosquitto:
            yield mosquitto.address, "mosquitto"
    else:
        address = BrokerAddress.parse(choice)
        yield address, str(address)
