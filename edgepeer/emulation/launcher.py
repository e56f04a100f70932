"""A whole fleet on this machine: a broker, a network, peers as processes of their own, and a job that they train."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial

from edgepeer.emulation.faults.injector import FaultInjector
from edgepeer.emulation.faults.plan import plan_of, possible
from edgepeer.emulation.faults.scene import BrokerControl, Scene
from edgepeer.emulation.fleet import EmulatedFleet, peer_names
from edgepeer.emulation.jobs import emulated_job
from edgepeer.emulation.network import open_network, parse_links, parse_peers
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
    names = peer_names(job.wait_for)
    links = parse_links(settings.link, names)
    shut = [name for text in settings.nat for name in parse_peers(text, names, "nat")]
    async with (
        open_network(names, mode=settings.network, links=links, shut=shut) as network,
        open_broker(settings.broker) as broker,
    ):
        progress = JobProgress(job, broker=broker.name)
        progress.note(f"network: {network.description}")
        if shut:
            progress.note(f"nat: nobody can dial {', '.join(sorted(set(shut)))}")
        if nodes := nodes_of(settings):
            spares = job.wait_for - nodes
            progress.note(f"split {settings.split}: {nodes} nodes, {job.wait_for} peers, {spares or 'none'} to spare")
        faults = possible(faults, network, skip=settings.skip_impossible, note=progress.note)
        async with EmulatedFleet(settings, network, broker.address, faults) as fleet:
            paced = settings.device_speed != "none"
            scene = Scene(
                fleet=fleet,
                network=network,
                broker=broker.control,
                view=lambda: progress.view,
                state_dir=(lambda name: fleet.home(name) / "state") if paced else None,
            )
            with RoundFeed(fleet.home(name) / "rounds.jsonl" for name in names) as feed:
                injector = FaultInjector(faults, scene, progress, refresh=lambda: progress.see_logged(feed.read()))

                async def save(result: JobResult) -> None:
                    homes = [fleet.home(name) / "state" for name in result.done]
                    await saver.save(result, partial(state_from_files, homes))

                job_run = run_job(
                    progress,
                    on_update,
                    broker=broker.address,
                    fabric=settings.fabric,
                    timeout=settings.timeout,
                    at_end=save,
                )
                return await fleet.watched(injector.accompany(job_run), progress)


@contextlib.asynccontextmanager
async def open_broker(choice: str) -> AsyncIterator[OpenBroker]:
    """The broker that `choice` asks for, running."""
    if choice == "embedded":
        async with EmbeddedBroker() as embedded:
            yield OpenBroker(address=embedded.address, name="embedded", control=embedded)
    elif choice == "mosquitto":
        async with Mosquitto() as mosquitto:
            yield OpenBroker(address=mosquitto.address, name="mosquitto", control=mosquitto)
    else:
        address = BrokerAddress.parse(choice)
        yield OpenBroker(address=address, name=str(address), control=None)
