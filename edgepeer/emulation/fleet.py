"""Peer processes on this machine: started in their networks, killed, frozen and started again by name."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import sys
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from edgepeer.emulation.faults.kinds import Flip, PlannedFault
from edgepeer.emulation.faults.texts import write
from edgepeer.emulation.home import fleet_home
from edgepeer.emulation.jobs import fanout_of, peers_of
from edgepeer.emulation.network import EmulatedNetwork
from edgepeer.errors import JobError
from edgepeer.fabric.address import BrokerAddress
from edgepeer.following.progress import JobProgress
from edgepeer.following.result import JobResult
from edgepeer.processes import dies_with_parent
from edgepeer.settings import EmulateSettings
from edgepeer.settings.model import MAX_MEMORY
from edgepeer.training.naming import parse_function
from edgepeer.training.sizes import available_memory

__all__ = ["EmulatedFleet", "peer_names"]

_SELDOM: Final = 100_000
LEAVE_S: Final = 8.0
"""How long peers may take to leave before they are killed."""
_ONE_THREAD_EACH: Final = {
    # The peers share this machine's cores; libraries that take them all for themselves only get in each other's way.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
}


def peer_names(count: int) -> tuple[str, ...]:
    """What the peers of an emulation are called, in order."""
    return tuple(f"p{number:02d}" for number in range(count))


def _absolute(speed: str) -> str:
    """A device's speed as a peer must be told it, wherever it runs."""
    kind, _, path = speed.partition(":")
    return f"trace:{Path(path).absolute()}" if kind == "trace" else speed


class EmulatedFleet:
    """Peer processes. They end with this context, and with this process.

    Each keeps its identity, and whatever else it keeps, in a directory that outlives its process, but not the fleet.

    Args:
        network: has the peers' names.
        broker: as this process reaches it; peers reach it through their network.
        faults: of these, peers themselves make the soft errors.
        members: in a fleet, the directory of each peer's identity.
    """

    def __init__(
        self,
        settings: EmulateSettings,
        network: EmulatedNetwork,
        broker: BrokerAddress,
        faults: Sequence[PlannedFault] = (),
        *,
        members: Mapping[str, Path] | None = None,
    ) -> None:
        self.names = peer_names(peers_of(settings))
        self._settings = settings
        self._flips = [write(fault) for fault in faults if isinstance(fault, Flip)]
        self._memory = min(max(1, (available_memory() >> 20) // len(self.names)), MAX_MEMORY)
        """What each may take of this machine, in MiB: none of them knows of the others."""
        self._network = network
        self._members = members
        self._broker = broker
        self._stack = contextlib.AsyncExitStack()
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._killed: set[int] = set()
        """Processes that did not end by themselves."""
        self._started = asyncio.Event()
        self._home = Path()

    async def __aenter__(self) -> EmulatedFleet:
        self._home = self._stack.enter_context(fleet_home(self._settings.keep))
        try:
            for name in self.names:
                await self.start(name)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        running = [process for process in self._processes.values() if process.returncode is None]
        for process in running:
            process.terminate()
            process.send_signal(signal.SIGCONT)  # one that is frozen would not hear it
        try:
            async with asyncio.timeout(LEAVE_S):
                for process in running:
                    await process.wait()
        except TimeoutError:
            for process in running:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        await self._stack.aclose()

    def process(self, name: str) -> asyncio.subprocess.Process:
        """The latest process of a peer, which may have ended."""
        return self._processes[name]

    def home(self, name: str) -> Path:
        """The directory of a peer: `state` is its state directory, `rounds.jsonl` its own record of rounds."""
        return self._home / name

    def kill(self, name: str) -> None:
        """End a peer by SIGKILL; that it has ended is then no news."""
        process = self._processes[name]
        self._killed.add(process.pid)
        process.kill()

    def pause(self, name: str) -> None:
        """Freeze a peer, by SIGSTOP."""
        self._processes[name].send_signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Let a frozen peer go on, by SIGCONT."""
        self._processes[name].send_signal(signal.SIGCONT)

    async def start(self, name: str) -> None:
        """Start a peer, or start one that has ended again: the same peer, in its next life."""
        settings, home = self._settings, self.home(name)
        home.mkdir(exist_ok=True)
        host, port = await self._network.reach(name, self._broker.host, self._broker.port)
        broker = dataclasses.replace(self._broker, host=host, port=port)
        arguments = ["--peer-id", name, "--fabric", settings.fabric, "--fanout", str(fanout_of(settings))]
        # The trees of a star are what was asked for.
        arguments += ["--lanes", str(1 if settings.topology == "star" and settings.lanes == "auto" else settings.lanes)]
        arguments += ["--listen", f"{self._network.address(name)}:0"]
        # Without a fleet, beyond loopback all the same: in a network of its own, which nothing else is in.
        arguments += ["--insecure"] if self._members is None else ["--fleet", str(self._members[name])]
        arguments += ["--state-dir", str(home / "state"), "--round-log", str(home / "rounds.jsonl")]
        arguments += ["--protocol", settings.protocol, "--static-timeout", str(settings.static_timeout)]
        arguments += ["--device-speed", _absolute(settings.device_speed)]
        arguments += ["--quorum", str(settings.quorum)]
        # The last round's state is kept with any number of rounds from one to the next.
        every = settings.checkpoint_every or (_SELDOM if settings.save is not None else 0)
        arguments += ["--checkpoint-every", str(every)]
        arguments += ["--memory", str(self._memory)]
        arguments += ["--checkpoint-keep", str(settings.checkpoint_keep)]
        arguments += [part for flip in self._flips for part in ("--flip", flip)]
        if settings.soft_errors:
            arguments += ["--soft-errors", settings.soft_errors]
        arguments += ["--config", os.devnull]  # what the user has configured is meant for peers of his own
        if (function := parse_function(settings.model)) is not None:
            arguments += ["--models", function.package]
        if settings.data_dir is not None:
            arguments += ["--data-dir", str(settings.data_dir.absolute())]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("EDGEPEER_")}
        with (home / "log").open("ab") as output:
            self._processes[name] = await asyncio.create_subprocess_exec(
                *self._network.prefix(name),
                sys.executable,
                "-m",
                "edgepeer",
                "peer",
                *arguments,
                # Not on the command line: the address may hold a password.
                env={**_ONE_THREAD_EACH, **environment, "EDGEPEER_PEER_BROKER": broker.url()},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for us; we tell the peers
                preexec_fn=dies_with_parent(signal.SIGKILL),
            )
        self._started.set()

    async def watched(self, following: Coroutine[Any, Any, JobResult], progress: JobProgress) -> JobResult:
        """Wait for the job's end; a peer process that ends before it is noted.

        Raises:
            JobError: all peer processes have ended, and not because they were killed.
        """
        async with asyncio.TaskGroup() as tasks:
            job = tasks.create_task(following)
            watchers: dict[asyncio.Task[int], tuple[str, int]] = {}
            watched: set[int] = set()
            self._started.set()
            news = tasks.create_task(self._started.wait())
            while not job.done():
                await asyncio.wait([job, news, *watchers], return_when=asyncio.FIRST_COMPLETED)
                if news.done():
                    self._started.clear()
                    news = tasks.create_task(self._started.wait())
                    for name, process in self._processes.items():
                        if process.pid not in watched:
                            watched.add(process.pid)
                            watchers[tasks.create_task(process.wait())] = (name, process.pid)
                for task in [task for task in watchers if task.done()]:
                    name, pid = watchers.pop(task)
                    if pid in self._killed:
                        continue
                    ending = f"{name} ended with exit code {task.result()}: {self._last_words(name)}"
                    progress.note(ending)
                    if not (watchers or self._killed or job.done()):  # who was killed may be started again
                        job.cancel()
                        raise JobError(f"all peers have ended; {ending}")
            for task in (news, *watchers):
                task.cancel()
        return job.result()

    def _last_words(self, name: str) -> str:
        with (self.home(name) / "log").open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 4096))
            lines = log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"
