"""What faults are tried on: a network that only remembers, real processes that only count, a tree of four."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Sequence

from edgepeer.emulation.faults.scene import Scene
from edgepeer.emulation.network.base import Mode
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

    def broker_address(self) -> str:
        raise AssertionError("faults have no use for addresses")

    def broker_prefix(self) -> list[str]:
        raise AssertionError("faults start no process in the network")

    async def reach(self, name: str, host: str, port: int) -> tuple[str, int]:
        raise AssertionError("faults start no process in the network")

    async def shape(self, name: str, *, rate_bits_per_s: float | None, delay_s: float) -> None:
        raise AssertionError("faults shape no links")

    async def cut(self, source: str, target: str) -> None:
        self.history.append(("cut", source, target))
        if not self.deaf:
            self.in_force.add((source, target))

    async def heal(self, source: str, target: str) -> None:
        self.history.append(("heal", source, target))
        self.in_force.discard((source, target))

    async def dropped(self, source: str, target: str) -> int:
        return self.counts.get((source, target), 0)

    async def rules(self) -> list[tuple[str, str]]:
        return sorted(pair for pair in self.in_force if "broker" not in pair)

    async def cut_broker(self, name: str) -> None:
        await self.cut(name, "broker")

    async def heal_broker(self, name: str) -> None:
        await self.heal(name, "broker")

    async def dropped_broker(self, name: str) -> int:
        return await self.dropped(name, "broker")

    async def broker_rules(self) -> list[str]:
        return sorted(source for source, target in self.in_force if target == "broker")


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
