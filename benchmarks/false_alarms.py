"""Whether anybody is dropped where nothing has failed: a fleet on links whose delay jitters, and one on a machine whose
cores are all kept busy by others. Counts the views that were made without somebody, rounds that lack a contribution,
and detours."""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from arena import PAUSE_S, Arena, ArenaError
from broker import running_broker
from common import positive, show, warn_if_busy, write_json

from edgepeer.emulation.network import EmulatedNetwork, LinkShape, open_network
from edgepeer.errors import EdgepeerError
from edgepeer.processes import dies_with_parent

_STEP_S = 0.25  # each peer's delay is drawn anew so often
_CASES = ("jitter", "busy")


@asynccontextmanager
async def _jitter(network: EmulatedNetwork, arguments: argparse.Namespace) -> AsyncIterator[None]:
    """Every peer's packets are late by anything up to `--jitter`, another time in each step."""
    drawn = random.Random(arguments.seed)

    async def shake() -> None:
        while True:
            for name in _names(arguments):
                await network.shape(name, LinkShape(delay_s=drawn.uniform(0, arguments.jitter)))
            await asyncio.sleep(_STEP_S)

    task = asyncio.create_task(shake())
    try:
        yield
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for name in _names(arguments):
            await network.shape(name, LinkShape())


@contextmanager
def _busy(arguments: argparse.Namespace) -> Iterator[None]:
    """Others want all of the processor time."""
    loop = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(loop, preexec_fn=dies_with_parent()) for _ in range(arguments.busy)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def main() -> int:
    arguments = _arguments()
    warn_if_busy()
    try:
        rows = asyncio.run(_measure(arguments))
    except (ArenaError, EdgepeerError) as error:
        print(error, file=sys.stderr)
        return 1
    columns = {key: key.replace("_", " ") for key in rows[0]}
    show(f"{arguments.peers} peers, {arguments.minutes:g} minutes each: nothing fails", columns, rows)
    if arguments.json:
        write_json(arguments.json, rows)
    return 0


async def _measure(arguments: argparse.Namespace) -> list[dict[str, object]]:
    rows = []
    async with open_network(_names(arguments)) as network:
        print(f"network: {network.mode}, {network.description}", file=sys.stderr)
        with ExitStack() as stack:
            broker = stack.enter_context(running_broker(network.broker_address(), network.broker_prefix()))
            for case in arguments.cases:
                rows.append(await _case(network, broker, case, arguments))
    return rows


async def _case(network: EmulatedNetwork, broker: str, case: str, arguments: argparse.Namespace) -> dict[str, object]:
    options = {"broker": broker, "fabric": case, "protocol": "ft-tree", "static_timeout": 0.5, "pause": arguments.pause}
    async with AsyncExitStack() as stack:
        names = _names(arguments)
        arena = await stack.enter_async_context(Arena.open(network, names, elements=arguments.elements, **options))
        if case == "jitter":
            await stack.enter_async_context(_jitter(network, arguments))
        else:
            stack.enter_context(_busy(arguments))
        arena.begin()
        end = time.monotonic() + 60 * arguments.minutes
        while time.monotonic() < end:
            await arena.over(arena.last + 1)
        return {
            "case": f"{arguments.jitter * 1e3:g} ms jitter" if case == "jitter" else f"{arguments.busy} busy processes",
            "rounds": arena.last,
            "median_s": round(arena.median(range(1, arena.last + 1)), 3),
            "peers_dropped": sum(len(view) < len(names) for view in arena.views),
            "incomplete_rounds": arena.incomplete(range(1, arena.last + 1)),
            "detours": arena.detours,
        }


def _names(arguments: argparse.Namespace) -> list[str]:
    return [f"p{number:02}" for number in range(arguments.peers)]


def _cases(text: str) -> list[str]:
    cases = text.split(",")
    if not set(cases) <= set(_CASES):
        raise argparse.ArgumentTypeError(f"{text!r}: some of {','.join(_CASES)}")
    return cases


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=positive, default=15, help="default: 15")
    parser.add_argument("--minutes", type=float, default=10.0, help="of each case; default: 10")
    parser.add_argument("--cases", type=_cases, default=list(_CASES), help="default: jitter,busy")
    parser.add_argument("--jitter", type=float, default=0.1, help="seconds; default: 0.1")
    parser.add_argument("--busy", type=positive, default=4, help="processes; default: 4")
    parser.add_argument("--pause", type=float, default=PAUSE_S, help="seconds between two rounds; default: 0.1")
    parser.add_argument("--elements", type=positive, default=50_000, help="float32 per vector; default: 50000")
    parser.add_argument("--seed", type=int, default=1, help="of the jitter; default: 1")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
