"""A whole fleet on this machine: a broker, a network, peers as processes of their own, and a job that they train."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from edgepeer.emulation.faults.injector import FaultInjector
from edgepeer.emulation.faults.plan import plan_of, possible
from edgepeer.emulation.faults.scene import BrokerControl, Scene
from edgepeer.emulation.fleet import EmulatedFleet, peer_names
from edgepeer.emulation.home import fleet_home
from edgepeer.emulation.jobs import emulated_job
from edgepeer.emulation.members import found
from edgepeer.emulation.network import open_network, parse_links, parse_peers
from edgepeer.errors import ConfigError
from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.fabric.mosquitto import Mosquitto
from edgepeer.following.follow import run_job
from edgepeer.following.jobs import nodes_of
from edgepeer.following.progress import JobProgress
from edgepeer.following.result import JobResult
from edgepeer.following.round_feed import RoundFeed
from edgepeer.following.saving import ModelSaver, state_from_files
from edgepeer.settings import EmulateSettings

if TYPE_CHECKING:
    from edgepeer.trust.identity import Identity

__all__ = ["OpenBroker", "emulate", "open_broker"]


@dataclass(frozen=True, kw_only=True)
class OpenBroker:
    """The broker of an emulation."""

    address: BrokerAddress
    """As this process reaches it."""
    name: str
    """What to call it."""
    control: BrokerControl | None
    """Stops and starts it; None for one that is not ours."""


async def emulate(settings: EmulateSettings, on_update: Callable[[JobProgress], None], saver: ModelSaver) -> JobResult:
    """Run broker, network, peers and job, let the model be saved, and end them all.

    Raises:
        ConfigError: a setting can't be used; nothing was left running.
        FabricError: the broker can't be reached.
        JobError: the peers could not do the job.
    """
    job = emulated_job(settings)
    faults = plan_of(settings)
    try:
        tempfile.gettempdir()
    except OSError:
        raise ConfigError("no directory for temporary files can be written to: name one, TMPDIR=DIRECTORY") from None
    names = peer_names(job.wait_for)
    links = parse_links(settings.link, names)
    shut = [name for text in settings.nat for name in parse_peers(text, names, "nat")]
    async with contextlib.AsyncExitStack() as stack:
        members = stack.enter_context(found(settings, names))
        network = await stack.enter_async_context(open_network(names, mode=settings.network, links=links, shut=shut))
        identity = None if members is None else members.broker
        broker = await stack.enter_async_context(open_broker(settings.broker, identity))
        progress = JobProgress(job, broker=broker.name)
        progress.note(f"network: {network.description}")
        if members is not None:
            progress.note("fleet: made for this run; links are encrypted, documents signed")
        if shut:
            progress.note(f"nat: nobody can dial {', '.join(sorted(set(shut)))}")
        if nodes := nodes_of(settings):
            spares = job.wait_for - nodes
            progress.note(f"split {settings.split}: {nodes} nodes, {job.wait_for} peers, {spares or 'none'} to spare")
        faults = possible(faults, network, skip=settings.skip_impossible, note=progress.note)
        peers = None if members is None else members.peers
        async with EmulatedFleet(settings, network, broker.address, faults, members=peers) as fleet:
            paced = settings.device_speed != "none"
            scene = Scene(
                fleet=fleet,
                network=network,
                broker=broker.control,
                view=lambda: progress.view,
                state_dir=(lambda name: fleet.home(name) / "state") if paced else None,
            )
            with RoundFeed(fleet.home(name) / "rounds.jsonl" for name in names) as feed:

                def look() -> None:
                    progress.see_logged(feed.read())

                def show(known: JobProgress) -> None:
                    look()  # the result is of what is known then
                    on_update(known)

                injector = FaultInjector(faults, scene, progress, refresh=look)

                async def save(result: JobResult, withdrawn: asyncio.Event, at: BrokerAddress) -> None:
                    homes = [fleet.home(name) / "state" for name in result.done]
                    await saver.save(result, partial(state_from_files, homes), withdrawn)

                job_run = run_job(
                    progress,
                    show,
                    broker=broker.address,
                    fabric=settings.fabric,
                    timeout=settings.timeout,
                    identity=None if members is None else members.operator,
                    at_end=save,
                )
                return await fleet.watched(injector.accompany(job_run), progress)


@contextlib.asynccontextmanager
async def open_broker(choice: str, identity: Identity | None = None) -> AsyncIterator[OpenBroker]:
    """The broker that `choice` asks for, running; `identity`: its own, if it is to be one of a fleet."""
    if choice == "embedded":
        async with EmbeddedBroker(identity=identity) as embedded:
            yield OpenBroker(address=embedded.address, name="embedded", control=embedded)
    elif choice == "mosquitto":
        with fleet_home() as home:
            async with Mosquitto(identity=identity, home=home) as mosquitto:
                yield OpenBroker(address=mosquitto.address, name="mosquitto", control=mosquitto)
    else:
        address = BrokerAddress.parse(choice)
        yield OpenBroker(address=address, name=str(address), control=None)
