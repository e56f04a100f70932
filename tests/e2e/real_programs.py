"""The command line in processes of its own, and what can be seen of it from outside."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Self

from fleets import Fleet, Role

from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.client import FabricClient
from edgepeer.fabric.documents import RoundRecord
from edgepeer.fabric.events import FabricEvent, TelemetrySeen
from edgepeer.following.observe import observe
from edgepeer.following.picture import Picture
from edgepeer.peer.pacing import slow_down

__all__ = ["DEADLINE_S", "Field", "Program", "Watch", "clean_environment", "edgepeer", "python", "without"]

DEADLINE_S = 200.0
"""What never comes does not keep the tests for ever. On an idle machine all takes seconds, on a busy one minutes."""
_ONE_THREAD_EACH = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
}


def clean_environment(home: Path, **more: str) -> dict[str, str]:
    """Nobody's settings but a test's own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EDGEPEER_")}
    if "SECURE_EMULATIONS" in kept:
        kept["EDGEPEER_EMULATE_SECURE"] = "true"
    return {**kept, **_ONE_THREAD_EACH, "XDG_CONFIG_HOME": str(home), "HOME": str(home), **more}


def without(package: str, home: Path) -> dict[str, str]:
    """An environment in which a package can't be imported: something of its name stands before the real one.

    Of reports whose pictures nobody looks at, none are drawn without matplotlib, which takes longer to import and to
    draw them than the whole job takes.
    """
    shadow = home / "shadow"
    (shadow / package).mkdir(parents=True, exist_ok=True)
    (shadow / package / "__init__.py").write_text(
        f"raise ModuleNotFoundError('No module named {package}', name={package!r})\n"
    )
    return {"PYTHONPATH": os.pathsep.join([str(shadow), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}


class Program:
    """A running process and everything it has said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.out: list[str] = []
        self.err: list[str] = []
        self._news = asyncio.Event()
        self._readers = [
            asyncio.create_task(self._read(process.stdout, self.out)),
            asyncio.create_task(self._read(process.stderr, self.err)),
        ]

    async def _read(self, stream: asyncio.StreamReader | None, lines: list[str]) -> None:
        assert stream is not None
        while line := await stream.readline():
            lines.append(line.decode().rstrip("\n"))
            self._news.set()
        self._news.set()

    async def said(self, pattern: str, deadline: float = DEADLINE_S) -> re.Match[str]:
        """Wait for a line, on either stream, in which the pattern is found."""
        try:
            async with asyncio.timeout(deadline):
                while True:
                    self._news.clear()
                    for line in [*self.out, *self.err]:
                        if found := re.search(pattern, line):
                            return found
                    assert not all(reader.done() for reader in self._readers), self.everything(pattern)
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(self.everything(pattern)) from None

    async def until(self, condition: Callable[[], bool], deadline: float = DEADLINE_S) -> None:
        """Wait until the condition holds for what it has said."""
        try:
            async with asyncio.timeout(deadline):
                while not condition():
                    assert not all(reader.done() for reader in self._readers), self.everything()
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(self.everything()) from None

    def everything(self, wanted: str = "") -> str:
        """For the message of a failed assertion."""
        title = [f"wanted: {wanted}"] if wanted else []
        return "\n".join([*title, "--- stdout", *self.out, "--- stderr", *self.err])

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def end(self, deadline: float = DEADLINE_S) -> int:
        """The exit status."""
        try:
            async with asyncio.timeout(deadline):
                await asyncio.wait(self._readers)
                return await self.process.wait()
        except TimeoutError:
            raise AssertionError(self.everything("its end")) from None


def edgepeer(*arguments: object, home: Path, **environment: str) -> contextlib.AbstractAsyncContextManager[Program]:
    """`edgepeer ARGUMENTS` in the directory `home`; killed, if it still runs, when the context ends."""
    return python("-m", "edgepeer", *arguments, home=home, **environment)


@contextlib.asynccontextmanager
async def python(*arguments: object, home: Path, **environment: str) -> AsyncIterator[Program]:
    """This Python with these arguments; the rest as with `edgepeer`."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *map(str, arguments),
        cwd=home,
        env=clean_environment(home, **environment),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    program = Program(process)
    try:
        yield program
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        await program.end()


class Watch:
    """What a fabric says of a job while it runs."""

    def __init__(self) -> None:
        self.picture = Picture()
        self.records: dict[int, RoundRecord] = {}
        self._news = asyncio.Event()

    def take(self, event: FabricEvent) -> None:
        self.picture.take(event)
        if isinstance(event, TelemetrySeen):
            self.records |= {record.round: record for record in event.telemetry.records}
        self._news.set()

    @property
    def round(self) -> int:
        """The last round that is known to be over."""
        return max(self.records, default=0)

    @property
    def members(self) -> tuple[str, ...]:
        return self.picture.view.ids if self.picture.view is not None else ()

    async def until(self, condition: Callable[[], bool], deadline: float = DEADLINE_S) -> None:
        """Wait until the condition holds for what was seen."""
        try:
            async with asyncio.timeout(deadline):
                while not condition():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"round {self.round}, members {self.members}, {self.picture.reports}") from None


class Field:
    """A broker, peers and a job, each in a process of its own; members of a fleet, if there is one.

    `batch_s`: how long its devices compute for a batch, at least. A job that is to last while something else happens
    takes few rounds then, and leaves the machine to what happens. `brake`: peers with state directories take so many
    times longer until they are let go: then the job is not over before, however late the test sees how far it is.
    """

    def __init__(self, home: Path, fleet: Fleet | None = None, *, batch_s: float = 0.0, brake: float = 1.0) -> None:
        self.home = home
        self._brake = brake
        if batch_s:
            (home / "edgepeer.toml").write_text(f'[peer]\ndevice_speed = "constant:{batch_s:g}"\n')
        self.fleet = fleet
        self.peers: dict[str, Program] = {}
        self.watch = Watch()
        self.broker: Program | None = None
        self.url = ""
        self.client: FabricClient | None = None
        self._braked: set[Path] = set()
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._stack.aclose()
        for name, peer in self.peers.items():  # shown where the test has failed
            print(f"=== {name}: exit status {peer.process.returncode}\n{peer.everything()}")

    async def run(self, *arguments: object, **environment: str) -> Program:
        return await self.enter(edgepeer(*arguments, home=self.home, **environment))

    async def enter(self, program: contextlib.AbstractAsyncContextManager[Program]) -> Program:
        """Another program, which ends with all others."""
        return await self._stack.enter_async_context(program)

    async def open(self, url: str | None = None) -> None:
        """Begin with a broker: the one at `url`, or `edgepeer broker`."""
        if url is None:
            await self.start_broker("127.0.0.1:0")
        else:
            self.url = url
        address = BrokerAddress.parse(self.url)
        identity = self.fleet.operator() if self.fleet is not None else None
        self.client = await self._stack.enter_async_context(
            observe(address, "default", self.watch.take, identity=identity)
        )

    def belongs(self, name: str, role: Role = Role.PEER) -> tuple[object, ...]:
        """What makes a program that member of the fleet."""
        return ("--fleet", self.fleet.directory(name, role)) if self.fleet is not None else ()

    async def start_broker(self, listen: str) -> None:
        self.broker = await self.run("broker", "--listen", listen, *self.belongs("broker", Role.BROKER))
        self.url = (await self.broker.said(r"broker ready at (\S+)"))[1]

    async def add(self, *names: str, below: Path | None = None, **settings: object) -> None:
        """Start peers and wait until all of them are in. `below`: where each has a state directory of its name."""
        flags = [
            part
            for name, value in settings.items()
            for part in ((f"--{name.replace('_', '-')}",) if value is True else (f"--{name.replace('_', '-')}", value))
        ]
        for name in names:
            own = ("--state-dir", below / name) if below is not None else ()
            if below is not None and self._brake > 1:
                (below / name).mkdir(parents=True, exist_ok=True)
                slow_down(below / name, self._brake)
                self._braked.add(below / name)
            self.peers[name] = await self.run(
                "peer", "--broker", self.url, "--peer-id", name, *self.belongs(name), *own, *flags
            )
        await self.watch.until(lambda: set(names) <= set(self.watch.members))

    def let_go(self) -> None:
        """From their next batches on, devices are as fast as they are."""
        self._brake = 1.0
        while self._braked:
            slow_down(self._braked.pop(), 1)

    async def train(self, **settings: object) -> Program:
        """Start a job. It fails if fewer than `peers` finish it."""
        settings = {"trainer": "numpy", "peers": 2, "report": "out", **settings}
        flags = [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", value)]
        belongs = self.belongs("alice", Role.OPERATOR)
        return await self.run("train", "--broker", self.url, *belongs, *flags, **without("matplotlib", self.home))

    async def outcome(self, training: Program) -> dict[str, Any]:
        """The report of a training that ended well."""
        status = await training.end()
        assert status == 0, training.everything("exit status 0")
        report: dict[str, Any] = json.loads((self.home / "out" / "report.json").read_text())
        return report

    async def status(self, *flags: object, peers: int) -> Program:
        """`edgepeer status`, as soon as so many peers have answered it: one may be too busy to do so at once."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                status = await self.run("status", "--broker", self.url, *flags)
                assert await status.end() == 0, status.everything()
                if "--json" not in flags and f"peers: {peers}" in status.out:
                    return status
                if "--json" in flags and len(json.loads("\n".join(status.out))["peers"]) == peers:
                    return status

    def names(self, *, but: Sequence[str] = ()) -> set[str]:
        return set(self.peers) - set(but)
