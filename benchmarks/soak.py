"""A fleet that works while something fails every few seconds: links, one way or both, peers that are killed and started
again, frozen and woken, or cut off from all others. Every sum is checked by every peer, every round by its digest over
all peers; in the end everybody must be in again, and the processes that lived all along no larger than they were."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import random
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from arena import PAUSE_S, Arena, ArenaError
from broker import running_broker
from common import positive, show, warn_if_busy, write_json

from edgepeer.emulation.network import open_network
from edgepeer.errors import EdgepeerError

_STANDS_STILL_S = 30.0
"""No round is over anywhere for so long: it fails."""
_OUT_S = 90.0
"""A peer that nothing holds is in no round for so long, which is longer than the longest penalty: the same."""
_NOTED_EARLIER = 20
"""Peers say how they stand after so small a part of these times, too."""
_LOOK_S = 0.5
_PAUSES = 5
_WARM_UP_ROUNDS = 100


@dataclass(slots=True)
class Fault:
    """Something that was wrong for a while, by the machine's monotonic clock."""

    kind: str
    names: tuple[str, ...]
    began: float
    ended: float = math.inf

    def __str__(self) -> str:
        return f"{self.kind} {' '.join(self.names)}"


class Soak:
    """The faults, drawn one after another."""

    def __init__(self, arena: Arena, drawn: random.Random, logs: Path | None) -> None:
        self._arena = arena
        self._logs = logs
        self._cuts: Counter[tuple[str, str]] = Counter()
        self._random = drawn
        self._down: set[str] = set()
        """Peers that are dead, frozen or cut off: fewer than half, or nobody could go on."""
        self.faults: list[Fault] = []
        names = arena.names
        self.mortal = names[: (2 * len(names)) // 3]
        """Who may be killed. The others live all along, and are measured."""

    async def run(self, seconds: float, every_s: float) -> None:
        """Faults for so long, each within its own task; and until the last of them is over."""
        end = time.monotonic() + seconds
        async with asyncio.TaskGroup() as tasks:
            watch = tasks.create_task(self._watch())
            faults = []
            while (left := end - time.monotonic()) > 0:
                faults.append(tasks.create_task(self._fault()))
                await asyncio.sleep(min(self._random.expovariate(1 / every_s), left))
            await asyncio.gather(*faults)
            watch.cancel()

    async def _watch(self) -> None:
        """See that rounds go on, and that nobody stays out of them for good.

        Raises:
            ArenaError: they do not, or a peer has failed.
        """
        arena, began = self._arena, time.monotonic()
        noted_at = dict.fromkeys(("", *arena.names), began)
        while True:
            await asyncio.sleep(_LOOK_S)
            arena.check()
            now = time.monotonic()
            since = {"": arena.ends[arena.front]}
            for name in sorted(arena.alive):
                if (missed := arena.ends.get(arena.last_of.get(name, 0) + 1)) is not None:
                    since[name] = max(missed, self.free_since(name, now))
            for name, start in since.items():
                pause_s, limit_s = now - max(began, start), _OUT_S if name else _STANDS_STILL_S
                what = f"{name} is out" if name else "rounds stand still"
                if pause_s > limit_s:
                    told = await self._note(f"{what} for {limit_s:g} s")
                    raise ArenaError(f"{what} for {limit_s:g} s: {arena.where()}\n{told}")
                if pause_s > limit_s / _NOTED_EARLIER and noted_at[name] < start:
                    noted_at[name] = now
                    await self._note(f"{what} for {pause_s:.1f} s")

    def free_since(self, name: str, now: float) -> float:
        """When the last fault that kept this peer from taking part was over; `now`: it is not."""
        return max((min(fault.ended, now) for fault in self.faults if fault.names == (name,)), default=0.0)

    def during(self, began: float, ended: float) -> str:
        """What was wrong in that time."""
        return ", ".join(str(fault) for fault in self.faults if fault.began < ended and fault.ended > began)

    async def _note(self, what: str) -> str:
        """Have all peers say how they stand, and keep it with the logs. Returns the same."""
        on = [str(fault) for fault in self.faults if fault.ended == math.inf]
        entry = {"time": time.time(), "what": what, "faults": on, "where": self._arena.where()}
        told = json.dumps(entry | {"peers": await self._arena.diagnose()})
        if self._logs is not None:
            with (self._logs / "diagnoses.jsonl").open("a") as file:
                file.write(told + "\n")
        return told

    async def _fault(self) -> None:
        kind = self._random.choice(("cut", "cut", "one way", "kill", "freeze", "isolate"))
        lasts_s = self._random.uniform(0.2, 6.0)
        if kind in ("cut", "one way"):
            one, other = self._random.sample(self._arena.names, 2)
            ways = [(one, other), (other, one)][: 1 if kind == "one way" else 2]
            with self._on(kind, one, other):
                await self._cut(ways, lasts_s)
        else:
            up = [n for n in (self.mortal if kind == "kill" else self._arena.names) if n not in self._down]
            if len(self._down) >= (len(self._arena.names) - 1) // 3 or not up:
                return
            name = self._random.choice(up)
            self._down.add(name)
            try:
                with self._on(kind, name):
                    await self._strike(kind, name, lasts_s)
                if kind == "kill":
                    await self._arena.let_in(name)
            finally:
                self._down.discard(name)

    @contextmanager
    def _on(self, kind: str, *names: str) -> Iterator[None]:
        fault = Fault(kind, names, time.monotonic())
        self.faults.append(fault)
        self._log(f"begins: {fault}")
        yield
        fault.ended = time.monotonic()
        self._log(f"ends: {fault}")

    def _log(self, line: str) -> None:
        if self._logs is not None:
            with (self._logs / "faults.log").open("a") as file:
                file.write(f"{time.time():.3f} {line}\n")

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
        self._cuts.update(ways)
        await self._arena.network.cut(*ways)
        await asyncio.sleep(lasts_s)
        self._cuts.subtract(ways)
        await self._arena.network.heal(*(way for way in ways if not self._cuts[way]))


def main() -> int:
    arguments = _arguments()
    print(f"seed {arguments.seed}", file=sys.stderr)
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
    lines = [
        {"what": key.replace("_", " ") if number == 0 else "", "figure": str(value)}
        for key, figure in row.items()
        for number, value in enumerate(figure if isinstance(figure, list) else [figure])
    ]
    title = f"{arguments.peers} peers, {arguments.minutes:g} minutes, seed {arguments.seed}"
    show(title, {"what": "", "figure": ""}, lines)
    if arguments.json:
        write_json(arguments.json, [row])
    return 0


async def _measure(arguments: argparse.Namespace) -> dict[str, object]:
    if arguments.logs is not None:
        arguments.logs.mkdir(parents=True, exist_ok=True)
    names = [f"p{number:02}" for number in range(arguments.peers)]
    async with open_network(names) as network:
        print(f"network: {network.mode}, {network.description}", file=sys.stderr)
        with ExitStack() as stack:
            broker = stack.enter_context(running_broker(network.broker_address(), network.broker_prefix()))
            options = {"broker": broker, "fabric": "soak", "protocol": "ft-tree", "static_timeout": 0.5}
            async with Arena.open(network, names, arguments.logs, elements=arguments.elements, **options) as arena:
                arena.begin()
                await arena.over(_WARM_UP_ROUNDS)
                soak = Soak(arena, random.Random(arguments.seed), arguments.logs)
                clean_s = arena.median(range(_WARM_UP_ROUNDS - 50, _WARM_UP_ROUNDS))
                await soak.run(60 * arguments.minutes, arguments.every)
                await arena.calm(clean_s)
                await arena.over(arena.last + 101)  # everybody has told of its vitals since
                return _row(arena, soak, arguments.seed)


def _row(arena: Arena, soak: Soak, seed: int) -> dict[str, object]:
    lived = [arena.vitals[name] for name in arena.names if name not in soak.mortal]
    quarter = [told[len(told) // 4] for told in lived]  # by then all kinds of faults have been met once
    last = [told[-1] for told in lived]
    growth = [after[0] / before[0] - 1 for before, after in zip(quarter, last, strict=True)]
    ends = sorted(arena.ends.values())
    gaps = [(after - before - PAUSE_S, before, after) for before, after in itertools.pairwise(ends)]
    gaps.sort(reverse=True)
    outs = [
        (after.end - max(before.end, soak.free_since(name, after.end)), number - last - 1, name)
        for name in arena.names
        for (last, before), (number, after) in itertools.pairwise(arena.parts_of(name))
        if number > last + 1
    ]
    outs.sort(reverse=True)
    kinds = Counter(fault.kind for fault in soak.faults)
    return {
        "seed": seed,
        "faults": len(soak.faults),
        "of which": ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())),
        "rounds": len(arena.rounds),
        "views": len(arena.views),
        "longest_s": round(gaps[0][0], 2),
        "longest_pauses": [f"{pause_s:.2f} s: {soak.during(*when)}" for pause_s, *when in gaps[:_PAUSES]],
        "longest_out": [f"{out_s:.2f} s, {missed} rounds: {name}" for out_s, missed, name in outs[:_PAUSES]],
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
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6, help="of the faults; default: by the clock")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="where peers log, and say how they stand in a pause")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
