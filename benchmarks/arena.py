"""A fleet of peers as processes in an emulated network, that allreduce on and on, seen from outside."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from common import SINGLE_THREADED, cpu_seconds

from edgepeer.emulation.network import EmulatedNetwork
from edgepeer.processes import dies_with_parent

__all__ = ["DEADLINE_S", "PAUSE_S", "Arena", "ArenaError", "Part"]

DEADLINE_S = 120.0
PAUSE_S = 0.1
"""What peers compute between two rounds."""
_LINE_BYTES = 1 << 20
_ANSWER_S = 5.0
_WORKER = Path(__file__).with_name("recovery_worker.py")


class ArenaError(RuntimeError):
    """A peer ended, hung, or got a wrong sum; or a fault did not take effect."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One peer's part in one round."""

    start: float
    end: float
    contributors: tuple[str, ...]
    bytes_sent: int
    """By this peer, from its beginning until then."""
    digest: str
    direct: bool
    """Whether all of its links ran over connections of their own at the end."""


class Arena:
    """The peers `names` of a network, which must have these. Use `open`."""

    def __init__(
        self,
        network: EmulatedNetwork,
        names: Iterable[str],
        options: dict[str, Any],
        log: IO[bytes],
        logs: Path | None = None,
    ) -> None:
        self.network = network
        self.names = tuple(names)
        self.view: tuple[str, ...] = ()
        """The last one that any peer told of: who stands where in the tree."""
        self.rounds: dict[int, dict[str, Part]] = {}
        self.ends: dict[int, float] = {}
        """When a round was first over somewhere, as was told first."""
        self.last_of: dict[str, int] = {}
        """Each peer's last round."""
        self.lost: list[str] = []
        """Rounds that ended without a sum, as peers told."""
        self.alive: set[str] = set()
        self.vitals: dict[str, list[tuple[float, int, int]]] = {}
        """Of each peer's present process: MiB of memory, descriptors and tasks, every hundredth round."""
        self.detours = 0
        """Rounds of a peer in which a link did not run over a connection of its own."""
        self.views: set[tuple[str, ...]] = set()
        self._options = options
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._readers: dict[str, asyncio.Task[None]] = {}
        self._started: set[str] = set()
        self._ready: set[str] = set()
        self._news = asyncio.Event()
        self._failure: ArenaError | None = None
        self._log = log
        self._logs = logs
        self._diagnoses: dict[str, dict[str, Any]] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, network: EmulatedNetwork, names: Iterable[str], logs: Path | None = None, **options: Any
    ) -> AsyncIterator[Arena]:
        """The fleet, all in one view. It rests until `begin`. Each peer writes to a file of its own in `logs`."""
        with tempfile.TemporaryFile() as log:
            arena = cls(network, names, options, log, logs)
            try:
                for name in arena.names:
                    await arena.start(name, len(arena.names))
                await arena.until(lambda: arena._ready == set(arena.names))
                yield arena
            finally:
                await arena._end()

    async def start(self, name: str, peers: int = 1) -> None:
        """Start a peer's process; it rests until `go`. It is ready when so many are in its view."""
        network = self.network
        options = (
            {"pause": PAUSE_S}
            | self._options
            | {
                "name": name,
                "address": network.address(name),
                "peers": peers,
                "timeout": DEADLINE_S,
                "log_level": "WARNING" if self._logs is None else "DEBUG",
            }
        )
        with contextlib.ExitStack() as stack:
            log = self._log if self._logs is None else stack.enter_context((self._logs / f"{name}.log").open("ab"))
            process = await asyncio.create_subprocess_exec(
                *network.prefix(name),
                sys.executable,
                str(_WORKER),
                json.dumps(options),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=os.environ | SINGLE_THREADED,
                start_new_session=True,
                preexec_fn=dies_with_parent(),
                limit=_LINE_BYTES,
            )
        self._processes[name] = process
        self.alive.add(name)
        self._readers[name] = asyncio.create_task(self._read(name, process))

    def go(self, name: str, rounds: int = 0) -> None:
        """Let a peer that rests do so many rounds; 0: on and on."""
        stdin = self._processes[name].stdin
        assert stdin is not None
        stdin.write(b"%d\n" % rounds)

    def begin(self, rounds: int = 0) -> None:
        """Let all do so many rounds, and rest again; 0: on and on."""
        for name in self.names:
            self.go(name, rounds)

    async def restart(self, name: str) -> None:
        """Start a killed peer again. Returns once it listens."""
        self._started.discard(name)
        self._ready.discard(name)
        self.vitals.pop(name, None)
        await self.start(name)
        await self.until(lambda: name in self._started)

    async def let_in(self, name: str) -> None:
        """Let a peer that was started again begin once it is in."""
        await self.until(lambda: name in self._ready)
        self.go(name)

    def signal(self, name: str, number: int) -> None:
        """Send a peer's process a signal, such as SIGSTOP and SIGCONT."""
        self._processes[name].send_signal(number)

    async def kill(self, name: str) -> float:
        """SIGKILL. Returns when."""
        self.alive.discard(name)
        process = self._processes[name]
        at = time.monotonic()
        process.kill()
        await process.wait()
        return at

    async def _read(self, name: str, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            told = json.loads(line)
            if "round" in told:
                self._add(name, told)
            elif "vitals" in told:
                self.vitals.setdefault(name, []).append(tuple(told["vitals"]))
            elif "view" in told:
                self.view = tuple(told["view"])
                self.views.add(self.view)
            elif "diagnosis" in told:
                self._diagnoses[name] = told["diagnosis"]
            elif "lost" in told:
                self.lost.append(f"{time.time():.3f} {name}: {told['lost']}")
            elif "started" in told:
                self._started.add(name)
            else:
                self._ready.add(name)
            self._news.set()
        if name in self.alive and self._processes.get(name) is process:
            self._failure = ArenaError(f"{name} has ended with exit code {await process.wait()}: {self._said()}")
            self._news.set()

    def _add(self, name: str, told: dict[str, Any]) -> None:
        part = Part(
            start=told["start"],
            end=told["end"],
            contributors=tuple(told["in"]),
            bytes_sent=told["bytes"],
            digest=told["digest"],
            direct=all(path == "direct" for path in told["paths"]),
        )
        parts = self.rounds.setdefault(told["round"], {})
        for other, theirs in parts.items():
            if (theirs.digest, theirs.contributors) != (part.digest, part.contributors):
                self._failure = ArenaError(f"{name} and {other} disagree on round {told['round']}")
                self._news.set()
        parts[name] = part
        self.last_of[name] = told["round"]
        self.ends.setdefault(told["round"], part.end)
        self.detours += not part.direct

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read()[-2000:].decode(errors="replace")

    async def until(self, condition: Callable[[], bool], within_s: float = DEADLINE_S) -> None:
        """Wait until a condition holds; it is looked at whenever a peer has told something.

        Raises:
            ArenaError: it does not, or a peer has failed.
        """
        try:
            async with asyncio.timeout(within_s):
                while not condition():
                    self.check()
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise ArenaError(f"rounds stand still for {within_s:g} s: {self.where()}\n{self._said()}") from None

    async def diagnose(self) -> dict[str, dict[str, Any]]:
        """How all peers stand, as they say themselves; who does not answer soon is left out."""
        asked = sorted(self._started & self.alive)
        self._diagnoses.clear()
        for name in asked:
            self.signal(name, signal.SIGUSR1)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ANSWER_S):
                while not self._diagnoses.keys() >= set(asked):
                    self._news.clear()
                    await self._news.wait()
        return dict(self._diagnoses)

    def check(self) -> None:
        """See that no peer has failed.

        Raises:
            ArenaError: one has.
        """
        if self._failure is not None:
            raise self._failure

    def where(self) -> str:
        """Each peer's last round."""
        return ", ".join(f"{name} {number}" for name, number in sorted(self.last_of.items()))

    # -- rounds ----------------------------------------------------------------------------------------------

    @property
    def front(self) -> int:
        """The last round that is over at any peer."""
        return max(self.rounds, default=0)

    @property
    def last(self) -> int:
        """The last round that is over at all living peers."""
        over = [number for number, parts in self.rounds.items() if parts.keys() >= self.alive]
        return max(over, default=0)

    async def over(self, number: int, within_s: float = DEADLINE_S) -> None:
        """Wait until a round is over at all living peers."""
        await self.until(lambda: self.last >= number, within_s)

    def parts_of(self, name: str) -> list[tuple[int, Part]]:
        """The rounds that a peer took part in, in all its lives."""
        return [(number, parts[name]) for number, parts in sorted(self.rounds.items()) if name in parts]

    def seconds(self, number: int) -> float:
        """How long a round took: from when the last peer was in it until the last one had its result."""
        parts = self.rounds[number].values()
        return max(part.end for part in parts) - max(part.start for part in parts)

    def ended(self, number: int) -> float:
        """When the last peer had its result."""
        return max(part.end for part in self.rounds[number].values())

    def begun_since(self, at: float) -> list[int]:
        """The rounds that are over and that nobody began before `at`."""
        return [
            number
            for number, parts in self.rounds.items()
            if parts.keys() >= self.alive and min(part.start for part in parts.values()) >= at
        ]

    def median(self, numbers: Iterable[int]) -> float:
        return statistics.median(self.seconds(number) for number in numbers)

    def bytes_between(self, first: int, last: int) -> int:
        """What all peers together sent after the first of two rounds until after the last."""
        one, other = self.rounds[first], self.rounds[last]
        return sum(other[name].bytes_sent - one[name].bytes_sent for name in one.keys() & other.keys())

    def cpu_seconds(self) -> float:
        """Processor time that the living peers have used since their start."""
        return sum(cpu_seconds(self._processes[name].pid) for name in self.alive)

    def incomplete(self, numbers: Iterable[int]) -> int:
        """How many of these rounds lack somebody's contribution."""
        return sum(len(next(iter(self.rounds[number].values())).contributors) < len(self.names) for number in numbers)

    async def calm(self, clean_s: float, within_s: float = 60.0) -> None:
        """Wait for three rounds in a row that are as long as without faults, with everybody in, and no detours."""
        await asyncio.sleep(0)
        begin = self.last + 1

        def settled() -> bool:
            lately = range(max(begin, self.last - 2), self.last + 1)
            fast = all(self.seconds(number) <= max(2 * clean_s, clean_s + 0.02) for number in lately)
            direct = all(part.direct for number in lately for part in self.rounds[number].values())
            return len(lately) == 3 and fast and direct and not self.incomplete(lately)

        await self.until(settled, within_s)

    async def _end(self) -> None:
        self.alive.clear()
        for process in self._processes.values():
            if process.returncode is None:
                process.kill()
        for process in self._processes.values():
            await process.wait()
        await asyncio.gather(*self._readers.values())
