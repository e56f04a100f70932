"""Where the processor time of a round goes: how much moves and adds up numbers, and how much is the protocol's Python.

All peers are in one process and one event loop, joined over loopback, so no time is lost to switches between them;
with `--apart` each is in a process of its own, as in `allreduce.py`, and so are those of a tree without tolerance and
of one without any protocol. `sampling.py` asks who runs.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np
import uvloop
from broker import running_broker
from common import counts, positive, show, warn_if_busy, write_json
from fleet import WARM_UP, Fleet
from sampling import Met, Sampling

from edgepeer import Peer

_APART: Final = ("edgepeer", "tree", "bare")
_WARM: Final = 20
_MOVING: Final = {
    ("transport/tcp.py", "send"): "sent",
    ("transport/tcp.py", "get_buffer"): "received",
    ("transport/tcp.py", "buffer_updated"): "received",
    ("protocol/lane.py", "reduce"): "added",
    ("protocol/lane.py", "_add"): "added",
    ("protocol/streams.py", "digest_of"): "hashed",
    ("benchmarks/bare_tree.py", "send"): "sent",
    ("benchmarks/bare_tree.py", "get_buffer"): "received",
    ("benchmarks/bare_tree.py", "buffer_updated"): "received",
    ("benchmarks/bare_tree.py", "_add_up"): "added",
}
_COLUMNS: Final = {
    "system": "system",
    "peers": "peers",
    "what": "what",
    "round_s": "ms a round",
    "part": "part",
    "functions": "functions",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=counts, default=[7], help="default: 7")
    parser.add_argument("--elements", type=positive, default=407_050, help="float32 per vector; default: 407050")
    parser.add_argument("--rounds", type=positive, default=300, help="default: 300")
    parser.add_argument(
        "--apart", action="store_true", help=f"in processes of their own, of {', '.join(_APART)} in turn"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there")
    arguments = parser.parse_args()
    warn_if_busy()
    rows: list[dict[str, Any]] = []
    with running_broker() as broker:
        for peers in arguments.peers:
            if arguments.apart:
                for system in _APART:
                    rows += _rows(system, peers, *_measure_apart(system, broker, peers, arguments))
            else:
                rows += _rows("edgepeer", peers, *uvloop.run(_measure(broker, peers, arguments)))
    shown = [{**row, "round_s": f"{1e3 * row['round_s']:.2f}", "part": f"{row['part']:.0%}"} for row in rows]
    show(f"processor time of an allreduce of {arguments.elements:,} float32, all peers together", _COLUMNS, shown)
    if arguments.json:
        write_json(arguments.json, rows)
    return 0


async def _measure(broker: str, peers: int, arguments: argparse.Namespace) -> tuple[Met, float]:
    """What was met, and the processor time of a round."""
    async with AsyncExitStack() as stack:
        made = [await stack.enter_async_context(Peer(broker, "profile", peer_id=f"p{n:02}")) for n in range(peers)]
        await asyncio.gather(*(peer.ready(peers) for peer in made))
        vector = np.ones(arguments.elements, np.float32)

        async def go(times: int) -> None:
            for _ in range(times):
                outcomes = await asyncio.gather(*(peer.allreduce(vector) for peer in made))
                if not all(outcome.exact for outcome in outcomes):
                    raise SystemExit("a round was not exact: this machine is too busy to measure anything")

        await go(_WARM)
        began = time.process_time()
        with Sampling() as sampling:
            await go(arguments.rounds)
        used = time.process_time() - began
    return sampling.met, used / arguments.rounds


def _measure_apart(system: str, broker: str, peers: int, arguments: argparse.Namespace) -> tuple[Met, float]:
    """The same of processes that are started, asked and checked as those of allreduce.py."""
    met: Met = Counter()
    with Fleet(system, peers, arguments.elements, {"broker": broker, "fabric": f"profile-{peers}"}) as fleet:
        fleet.measure(_WARM)
        fleet.ask({"sample": 1})
        began = fleet.cpu_seconds()
        fleet.measure(arguments.rounds)
        used = fleet.cpu_seconds() - began
        for answer in fleet.ask({"sample": 0}):
            met.update({(file, name): times for file, name, times in answer["met"]})
    return met, used / (arguments.rounds + WARM_UP)


def _rows(system: str, peers: int, met: Met, round_s: float) -> list[dict[str, Any]]:
    """What was met, by kind: what no protocol could do without first, and then the Python of each package."""
    kinds: dict[str, list[int]] = {}
    for (file, name), times in met.items():
        package, inside, _ = file.partition("/")
        python = f"Python: {package if package and inside else 'asyncio and others'}"
        kinds.setdefault(_MOVING.get((file, name), python), []).append(times)
    total = met.total()
    return [
        {
            "system": system,
            "peers": peers,
            "what": kind,
            "round_s": round_s * sum(times) / total,
            "part": sum(times) / total,
            "functions": len(times),
        }
        for kind, times in sorted(kinds.items(), key=lambda each: (each[0].startswith("Python"), -sum(each[1])))
    ]


if __name__ == "__main__":
    raise SystemExit(main())
