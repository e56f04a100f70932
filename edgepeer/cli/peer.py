"""`edgepeer peer`: one device's peer, until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import TYPE_CHECKING

from edgepeer.cli.signals import run_until_stopped
from edgepeer.cli.verb import Verb
from edgepeer.settings import PeerSettings

if TYPE_CHECKING:
    from edgepeer.peer.machines import MachineFactory

__all__ = ["VERB", "command", "machine_of"]


def run(settings: PeerSettings) -> int:
    """Take part until SIGTERM or Ctrl-C."""
    from edgepeer.peer.agent import run_agent
    from edgepeer.peer.worker import still_at_work

    async def main(stop: asyncio.Event) -> None:
        asked = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, asked.set)
        await run_agent(settings, machine=machine_of(settings), stop=stop, asked=asked)

    status = run_until_stopped(main)
    if still_at_work():  # the interpreter can't be taken down under a thread that is deep in a library
        logging.shutdown()
        os._exit(status)
    return status


def machine_of(settings: PeerSettings) -> MachineFactory:
    """What rounds run by; a baseline is imported where one is asked for."""
    if settings.protocol != "ft-tree":
        from edgepeer.baselines import MachineMaker

        return MachineMaker(settings.protocol, static_timeout_s=settings.static_timeout)
    from edgepeer.peer.machines import FtTree

    return FtTree()


VERB = Verb(
    kind=PeerSettings,
    about="Run one peer: join a fabric and take part in its jobs.\n\nSIGTERM or Ctrl-C makes it leave gracefully; "
    "at SIGUSR1 it logs how it stands, and whom it waits for.",
    examples=[
        ("a peer on this machine, at a broker on this machine", "edgepeer peer"),
        (
            "a device that keeps its identity and is reached by others over the network",
            "edgepeer peer --broker mqtt://broker.local --fabric greenhouse \\\n"
            "      --state-dir /var/lib/edgepeer --listen 0.0.0.0:7700 --insecure",
        ),
        ("a device of a fleet", "edgepeer peer --fleet ~/.local/share/edgepeer/fleet --listen 0.0.0.0:7700"),
        ("a small device without TensorFlow", "edgepeer peer --trainer numpy --data-dir ~/mnist"),
        ("pretend to be a device that takes 0.2 s for a batch", "edgepeer peer --device-speed constant:0.2"),
        ("let jobs name functions of a package of yours", "edgepeer peer --models mymodels"),
        ("a device that trains on data of its own", "edgepeer peer --dataset local:/home/pi/readings.npz"),
    ],
    run=run,
)
command = VERB.command
