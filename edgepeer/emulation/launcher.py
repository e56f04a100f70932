"""A whole fleet on this machine: a broker, peers as processes of their own, and a job that they train."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from edgepeer.emulation.follow import run_job
from edgepeer.emulation.jobs import make_job
from edgepeer.emulation.progress import Progress
from edgepeer.emulation.result import JobResult
from edgepeer.errors import JobError
from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.fabric.mosquitto import Mosquitto
from edgepeer.processes import dies_with_parent
from edgepeer.settings import EmulateSettings

__all__ = ["Fleet", "emulate", "open_broker"]

LEAVE_S: Final = 8.0
"""How long peers may take to leave before they are killed."""
_ONE_THREAD_EACH: Final = {
    # The peers share this machine's cores; libraries that take them all for themselves only get in each other's way.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
}


async def emulate(settings: EmulateSettings, on_update: Callable[[Progress], None]) -> JobResult:
    """Run broker, peers and job, and end them all.

    Raises:
        ConfigError: a setting can't be used; nothing was left running.
        FabricError: the broker can't be reached.
        JobError: the peers could not do the job.
    """
    job = make_job(settings, wait_for=settings.peers)
    async with open_broker(settings.broker) as (broker, name):
        progress = Progress(job, broker=name)
        async with Fleet(settings, broker) as fleet:
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


class Fleet:
    """Peer processes. They end with this context, and with this process."""

    def __init__(self, settings: EmulateSettings, broker: BrokerAddress) -> None:
        self._settings = settings
        self._broker = broker
        self._stack = contextlib.AsyncExitStack()
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._logs = Path()

    async def __aenter__(self) -> Fleet:
        self._logs = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="edgepeer-emulation-")))
        try:
            for number in range(self._settings.peers):
                await self._start(f"p{number:02d}")
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        running = [process for process in self._processes.values() if process.returncode is None]
        for process in running:
            process.terminate()
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

    async def _start(self, name: str) -> None:
        settings, log = self._settings, self._logs / f"{name}.log"
        arguments = ["--peer-id", name, "--fabric", settings.fabric, "--fanout", str(settings.fanout)]
        arguments += ["--protocol", settings.protocol, "--static-timeout", str(settings.static_timeout)]
        arguments += ["--config", os.devnull]  # what the user has configured is meant for peers of his own
        if settings.data_dir is not None:
            arguments += ["--data-dir", str(settings.data_dir.absolute())]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("EDGEPEER_")}
        with log.open("wb") as output:
            self._processes[name] = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "edgepeer",
                "peer",
                *arguments,
                # Not on the command line: the address may hold a password.
                env={**_ONE_THREAD_EACH, **environment, "EDGEPEER_PEER_BROKER": self._broker.url()},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for us; we tell the peers
                preexec_fn=dies_with_parent(),
            )

    async def watched(self, following: Coroutine[Any, Any, JobResult], progress: Progress) -> JobResult:
        """Wait for the job's end; a peer process that ends before it is noted.

        Raises:
            JobError: all peer processes have ended.
        """
        async with asyncio.TaskGroup() as tasks:
            job = tasks.create_task(following)
            watchers = {tasks.create_task(process.wait()): name for name, process in self._processes.items()}
            while not job.done():
                await asyncio.wait([job, *watchers], return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in watchers if task.done()]:
                    name = watchers.pop(task)
                    ending = f"{name} ended with exit code {task.result()}: {self._last_words(name)}"
                    progress.note(ending)
                    if not watchers and not job.done():
                        job.cancel()
                        raise JobError(f"all peers have ended; {ending}")
            for task in watchers:
                task.cancel()
        return job.result()

    def _last_words(self, name: str) -> str:
        with (self._logs / f"{name}.log").open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 4096))
            lines = log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"
