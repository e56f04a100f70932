"""What faults are tried on: a network that only remembers, real processes that only count, a tree of four."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Sequence

from edgepeer.emulation.faults.scene import Scene
from edgepeer.emulation.network.base import Mode, Way
from edgepeer.emulation.network.shape import LinkShape
from edgepeer.topology.view import Member, View

__all__ = ["DEADLINE_S", "NAMES", "Crew", "Memory", "crew", "scene_of", "until"]

DEADLINE_S = 90.0
NAMES = ("p00", "p01", "p02", "p03")
_BUSY = "print('up', flush=True)\nwhile True: pass"
_IDLE = "import signal\nprint('up', flush=True)\nwhile True: signal.pause()"


class Memory:
    """An EmulatedNetwork that cuts nothing; what it says it has dropped is up to the test."""

    description = "a memory"

    def __init__(self) -> None:
        self.mode: Mode = "namespaces"
        self.in_force: set[tuple[str, str]] = set()
        self.counts: dict[tuple[str, str], int] = {}
        self.history: list[tuple[str, str, str]] = []
        self.deaf = False
        """Whether it ignores cuts."""

    def address(self, name: str) -> str:
        raise AssertionError("faults have no use for addresses")

    def prefix(self, name: str) -> list[str]:
        raise AssertionError("faults start no process in the network")

    async def reach(self, name: str, host: str, port: int) -> tuple[str, int]:
        raise AssertionError("faults start no process in the network")

    async def shape(self, name: str, link: LinkShape) -> None:
        raise AssertionError("faults shape no links")

    async def lost(self, name: str) -> int:
        raise AssertionError("faults shape no links")

    async def shut(self, name: str) -> None:
        raise AssertionError("faults shut nobody off")

    async def knocks(self, name: str) -> int:
        raise AssertionError("faults shut nobody off")

    async def cut(self, *ways: Way) -> None:
        for way in ways:
            self.history.append(("cut", *way))
        if not self.deaf:
            self.in_force.update(ways)

    async def heal(self, *ways: Way) -> dict[Way, int]:
        dropped = {way: self.counts.get(way, 0) for way in ways if way in self.in_force}
        for way in ways:
            self.history.append(("heal", *way))
        self.in_force.difference_update(ways)
        return dropped

    async def cuts(self) -> dict[Way, int]:
        return {way: self.counts.get(way, 0) for way in sorted(self.in_force)}


class Crew:
    """Real processes by name."""

    names = NAMES

    def __init__(self, *, busy: bool = False) -> None:
        self._program = _BUSY if busy else _IDLE
        self.processes: dict[str, asyncio.subprocess.Process] = {}

    def process(self, name: str) -> asyncio.subprocess.Process:
        return self.processes[name]

    async def start(self, name: str) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-S", "-c", self._program, stdout=asyncio.subprocess.PIPE
        )
        self.processes[name] = process
        assert process.stdout is not None
        await process.stdout.readline()

    def kill(self, name: str) -> None:
        self.processes[name].kill()

    def pause(self, name: str) -> None:
        self.processes[name].send_signal(19)

    def resume(self, name: str) -> None:
        self.processes[name].send_signal(18)


@contextlib.asynccontextmanager
async def crew(*, names: Sequence[str] = NAMES[:1], busy: bool = False) -> AsyncIterator[Crew]:
    """Those peers run."""
    running = Crew(busy=busy)
    try:
        for name in names:
            await running.start(name)
        yield running
    finally:
        for process in running.processes.values():
            if process.returncode is None:
                process.kill()
            await process.wait()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what sets no Event, such as the process table."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


def scene_of(crew: Crew | None = None, network: Memory | None = None, **parts: object) -> Scene:
    """A scene whose tree is p00 over p01 and p02, and p01 over p03."""
    view = View(epoch=1, members=tuple(Member(id=name, incarnation=1) for name in NAMES))
    fields = {"broker": None, "view": lambda: view} | parts
    return Scene(fleet=crew or Crew(), network=network or Memory(), **fields)  # type: ignore[arg-type]
