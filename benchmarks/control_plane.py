"""Time how long peers take to form their tree: from the start of the last process until every peer is in one and
the same view of all. All are started at once, which on few cores is the hardest case: their imports compete. And then,
what such a fleet costs while it has nothing to do."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker import running_broker
from common import SINGLE_THREADED, counts, cpu_seconds, positive, show, warn_if_busy, write_json

if TYPE_CHECKING:
    from edgepeer import View

_COLUMNS = {
    "peers": "peers",
    "formed": "tree after s",
    "imported": "of which imports",
    "views": "views on the way",
    "rest": "CPU at rest",
}
_SETTLED_S = 3.0
"""After the last view there are no joiners to be called, no retained messages to come."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=counts, default=[7, 15, 31, 63], help="default: 7,15,31,63")
    parser.add_argument("--repeat", type=positive, default=3, help="fleets of each size; the median counts; default: 3")
    parser.add_argument("--rest", type=positive, default=10, help="seconds of nothing to do; default: 10")
    parser.add_argument("--deadline", type=positive, default=60, help="seconds to give up after; default: 60")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there")
    parser.add_argument("--peer", metavar="BROKER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        import uvloop

        uvloop.run(_peer(arguments.peer))
        return 0
    warn_if_busy()
    rows = []
    for peers in arguments.peers:
        fleets = [asyncio.run(form(peers, arguments.deadline, arguments.rest)) for _ in range(arguments.repeat)]
        rows.append(sorted(fleets, key=lambda row: row["form_s"])[len(fleets) // 2])
    show("forming the tree, after the last peer's start", _COLUMNS, [_line(row) for row in rows])
    if arguments.json:
        write_json(arguments.json, rows)
    return 0


async def form(peers: int, deadline: int, rest: int) -> dict[str, Any]:
    """Start a fleet with a broker of its own, and let it rest; one row."""
    with running_broker() as broker:
        fleet = _Fleet(peers)
        try:
            async with asyncio.timeout(deadline) as deadline_at, asyncio.TaskGroup() as readers:
                for number in range(peers):
                    started = time.monotonic()
                    process = await fleet.start(broker)
                    readers.create_task(fleet.follow(number, process))
                await fleet.agreed.wait()
                formed = time.monotonic()
                deadline_at.reschedule(None)
                await asyncio.sleep(_SETTLED_S)
                used = -fleet.cpu_seconds()
                await asyncio.sleep(rest)
                used += fleet.cpu_seconds()
                fleet.end()
        except TimeoutError:
            raise SystemExit(f"{peers} peers: no common view within {deadline} s; {fleet}") from None
        finally:
            fleet.end()
            await fleet.wait()
    return {
        "peers": peers,
        "form_s": formed - started,
        "import_s": max(fleet.imported) - started,
        "views": fleet.views[0][0],
        "rest_cpu_fraction": used / rest,
    }


class _Fleet:
    """Peer processes, and what each has last said its view was."""

    def __init__(self, peers: int) -> None:
        self.views: list[tuple[int, tuple[str, ...]]] = [(0, ())] * peers
        """Epoch and members, by process."""
        self.imported: list[float] = []
        self.agreed = asyncio.Event()
        self._processes: list[asyncio.subprocess.Process] = []

    async def start(self, broker: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        environment = os.environ | SINGLE_THREADED
        command = [sys.executable, __file__, "--peer", broker]
        process = await asyncio.create_subprocess_exec(*command, env=environment, stdin=pipe, stdout=pipe)
        self._processes.append(process)
        return process

    async def follow(self, number: int, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            told = json.loads(line)
            if "imported" in told:
                self.imported.append(told["imported"])
            else:
                self.views[number] = (told["epoch"], tuple(told["members"]))
            if len(self.views[number][1]) == len(self.views) and len(set(self.views)) == 1:
                self.agreed.set()
        if not self.agreed.is_set():
            raise SystemExit("a peer has ended; its error stands above")

    def cpu_seconds(self) -> float:
        """Processor time that the peers have used since their start."""
        return sum(cpu_seconds(process.pid) for process in self._processes)

    def end(self) -> None:
        """Close the peers' input: they leave."""
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()

    async def wait(self) -> None:
        for process in self._processes:
            await process.wait()

    def __str__(self) -> str:
        return f"sizes of their views: {sorted(len(members) for _, members in self.views)}"


async def _peer(broker: str) -> None:
    """One peer: tell every view, and leave when the input ends."""
    from edgepeer import Peer

    print(json.dumps({"imported": time.monotonic()}), flush=True)
    async with Peer(broker=broker, fabric="control-plane") as peer, asyncio.TaskGroup() as tasks:
        telling = tasks.create_task(_tell(peer.views()))
        await asyncio.to_thread(sys.stdin.read)
        telling.cancel()


async def _tell(views: AsyncIterator[View]) -> None:
    async for view in views:
        print(json.dumps({"epoch": view.epoch, "members": view.ids}), flush=True)


def _line(row: dict[str, Any]) -> dict[str, Any]:
    rest = f"{row['rest_cpu_fraction']:.1%}"
    return row | {"formed": f"{row['form_s']:.2f}", "imported": f"{row['import_s']:.2f}", "rest": rest}


if __name__ == "__main__":
    sys.exit(main())
