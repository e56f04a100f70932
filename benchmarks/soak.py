"""A fleet that works while something fails every few seconds: links, one way or both, peers that are killed and started
again, frozen and woken, or cut off from all others. Every sum is checked by every peer, every round by its digest over
all peers; in the end everybody must be in again, and the processes that lived all along no larger than they were."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from arena import PAUSE_S, Arena, ArenaError
from broker import running_broker
from common import positive, show, warn_if_busy, write_json

from edgepeer.emulation.network import open_network
from edgepeer.errors import EdgepeerError

_STANDS_STILL_S = 30.0
_WARM_UP_ROUNDS = 100


class Soak:
    """The faults, drawn one after another."""

    def __init__(self, arena: Arena, drawn: random.Random) -> None:
        self._arena = arena
        self._random = drawn
        self._down: set[str] = set()
        """Peers that are dead, frozen or cut off: fewer than half, or nobody could go on."""
        self.happened: Counter[str] = Counter()
        names = arena.names
        self.mortal = names[: (2 * len(names)) // 3]
        """Who may be killed. The others live all along, and are measured."""

    async def run(self, seconds: float, every_s: float) -> None:
        """Faults for so long, each within its own task; and until the last of them is over."""
        end = time.monotonic() + seconds
        async with asyncio.TaskGroup() as tasks:
            while (left := end - time.monotonic()) > 0:
                tasks.create_task(self._fault())
                watch = tasks.create_task(self._goes_on())
                await asyncio.sleep(min(self._random.expovariate(1 / every_s), left))
                if watch.done():
                    watch.result()

    async def _goes_on(self) -> None:
        await self._arena.over(self._arena.last + 1, _STANDS_STILL_S)

    async def _fault(self) -> None:
        kind = self._random.choice(("cut", "cut", "one way", "kill", "freeze", "isolate"))
        lasts_s = self._random.uniform(0.2, 6.0)
        if kind in ("cut", "one way"):
            one, other = self._random.sample(self._arena.names, 2)
            ways = [(one, other), (other, one)][: 1 if kind == "one way" else 2]
            await self._cut(ways, lasts_s)
        else:
            up = [n for n in (self.mortal if kind == "kill" else self._arena.names) if n not in self._down]
            if len(self._down) >= (len(self._arena.names) - 1) // 3 or not up:
                return
            name = self._random.choice(up)
            self._down.add(name)
            try:
                await self._strike(kind, name, lasts_s)
            finally:
                self._down.discard(name)
        self.happened[kind] += 1

    async def _strike(self, kind: str, name: str, lasts_s: float) -> None:
        arena = self._arena
        if kind == "kill":
            await arena.kill(name)
            await asyncio.sleep(lasts_s)
            await arena.restart(name)
        elif kind == "freeze":
            arena.signal(name, signal.SIGSTOP)
            await asyncio.sleep(lasts_s)
            arena.signal(name, signal.SIGCONT)
        else:
            others = [other for other in arena.names if other != name]
            await self._cut([way for o in others for way in ((name, o), (o, name))], lasts_s)

    async def _cut(self, ways: Iterable[tuple[str, str]], lasts_s: float) -> None:
        ways = list(ways)
        await asyncio.gather(*(self._arena.network.cut(*way) for way in ways))
        await asyncio.sleep(lasts_s)
        await asyncio.gather(*(self._arena.network.heal(*way) for way in ways))


def main() -> int:
    arguments = _arguments()
    warn_if_busy()
    try:
        row = asyncio.run(_measure(arguments))
    except ExceptionGroup as group:
        failures, bugs = group.split((ArenaError, EdgepeerError))
        if bugs is not None or failures is None:
            raise
        print(*failures.exceptions, sep="\n", file=sys.stderr)
        return 1
    except (ArenaError, EdgepeerError) as error:
        print(error, file=sys.stderr)
        return 1
    lines = [{"what": key.replace("_", " "), "figure": str(value)} for key, value in row.items()]
    show(f"{arguments.peers} peers, {arguments.minutes:g} minutes", {"what": "", "figure": ""}, lines)
    if arguments.json:
        write_json(arguments.json, [row])
    return 0


async def _measure(arguments: argparse.Namespace) -> dict[str, object]:
    names = [f"p{number:02}" for number in range(arguments.peers)]
    async with open_network(names) as network:
        print(f"network: {network.mode}, {network.description}", file=sys.stderr)
        with ExitStack() as stack:
            broker = stack.enter_context(running_broker(network.broker_address(), network.broker_prefix()))
            options = {"broker": broker, "fabric": "soak", "protocol": "ft-tree", "static_timeout": 0.5}
            async with Arena.open(network, names, elements=arguments.elements, **options) as arena:
                arena.begin()
                await arena.over(_WARM_UP_ROUNDS)
                soak = Soak(arena, random.Random(arguments.seed))
                clean_s = arena.median(range(_WARM_UP_ROUNDS - 50, _WARM_UP_ROUNDS))
                await soak.run(60 * arguments.minutes, arguments.every)
                await arena.calm(clean_s)
                await arena.over(arena.last + 101)  # everybody has told of its vitals since
                return _row(arena, soak)


def _row(arena: Arena, soak: Soak) -> dict[str, object]:
    lived = [arena.vitals[name] for name in arena.names if name not in soak.mortal]
    quarter = [told[len(told) // 4] for told in lived]  # by then all kinds of faults have been met once
    last = [told[-1] for told in lived]
    growth = [after[0] / before[0] - 1 for before, after in zip(quarter, last, strict=True)]
    ends = sorted(max(part.end for part in parts.values()) for _, parts in sorted(arena.rounds.items()))
    gaps = [after - before for before, after in itertools.pairwise(ends)]
    return {
        "faults": sum(soak.happened.values()),
        "of which": ", ".join(f"{kind} {count}" for kind, count in sorted(soak.happened.items())),
        "rounds": len(arena.rounds),
        "views": len(arena.views),
        "longest_s": round(max(gaps) - PAUSE_S, 2),
        "memory_growth_median": round(statistics.median(growth), 4),
        "memory_growth_worst": round(max(growth), 4),
        "descriptors_more": max(after[1] - before[1] for before, after in zip(quarter, last, strict=True)),
        "tasks_more": max(after[2] - before[2] for before, after in zip(quarter, last, strict=True)),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=positive, default=15, help="default: 15")
    parser.add_argument("--minutes", type=float, default=10.0, help="default: 10")
    parser.add_argument("--every", type=float, default=2.0, help="seconds from one fault to the next, on average")
    parser.add_argument("--elements", type=positive, default=50_000, help="float32 per vector; default: 50000")
    parser.add_argument("--seed", type=int, default=1, help="of the faults; default: 1")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
