"""Where the processor time of a round goes: how much moves and adds up numbers, and how much is the protocol's Python.

All peers are in one process and one event loop, joined over loopback, so no time is lost to switches between them. A
timer of the process' own processor time (ITIMER_PROF) asks a thousand times a second which line runs. Python hears of
it between two of its steps: what a call into the kernel, NumPy or a hash took counts for the line that called it, and
what the loop has received counts for the first line that looks at it.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from types import FrameType
from typing import Any, Final

import numpy as np
import uvloop
from broker import running_broker
from common import counts, positive, show, warn_if_busy, write_json

import edgepeer
from edgepeer import Peer

_TICK_S: Final = 1e-3
_WARM: Final = 20
_ROOT: Final = str(Path(edgepeer.__file__).parent)
_MOVING: Final = {
    ("transport/tcp.py", "send"): "sent",
    ("transport/tcp.py", "get_buffer"): "received",
    ("transport/tcp.py", "buffer_updated"): "received",
    ("protocol/lane.py", "reduce"): "added",
    ("protocol/lane.py", "_add"): "added",
    ("protocol/streams.py", "digest_of"): "hashed",
}
_COLUMNS: Final = {
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
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there")
    arguments = parser.parse_args()
    warn_if_busy()
    rows: list[dict[str, Any]] = []
    with running_broker() as broker:
        for peers in arguments.peers:
            found, round_s = uvloop.run(_measure(broker, peers, arguments.elements, arguments.rounds))
            rows += _rows(peers, found, round_s)
    shown = [{**row, "round_s": f"{1e3 * row['round_s']:.2f}", "part": f"{row['part']:.0%}"} for row in rows]
    show(f"processor time of an allreduce of {arguments.elements:,} float32, all peers together", _COLUMNS, shown)
    if arguments.json:
        write_json(arguments.json, rows)
    return 0


async def _measure(broker: str, peers: int, elements: int, rounds: int) -> tuple[Counter[tuple[str, str]], float]:
    """How often each function was met, by file and name, and the processor time of a round."""
    met: Counter[tuple[str, str]] = Counter()

    def meet(number: int, frame: FrameType | None) -> None:
        if frame is not None:
            met[frame.f_code.co_filename.removeprefix(_ROOT + "/"), frame.f_code.co_name] += 1

    async with AsyncExitStack() as stack:
        made = [await stack.enter_async_context(Peer(broker, "profile", peer_id=f"p{n:02}")) for n in range(peers)]
        await asyncio.gather(*(peer.ready(peers) for peer in made))
        vector = np.ones(elements, np.float32)

        async def go(times: int) -> None:
            for _ in range(times):
                outcomes = await asyncio.gather(*(peer.allreduce(vector) for peer in made))
                if not all(outcome.exact for outcome in outcomes):
                    raise SystemExit("a round was not exact: this machine is too busy to measure anything")

        await go(_WARM)
        before = signal.signal(signal.SIGPROF, meet)
        signal.setitimer(signal.ITIMER_PROF, _TICK_S, _TICK_S)
        began = time.process_time()
        try:
            await go(rounds)
        finally:
            used = time.process_time() - began
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)
    return met, used / rounds


def _rows(peers: int, met: Counter[tuple[str, str]], round_s: float) -> list[dict[str, Any]]:
    """What was met, by kind: what no protocol could do without first, and then the Python of each package."""
    kinds: dict[str, list[int]] = {}
    for (file, name), times in met.items():
        package, inside, _ = file.partition("/")
        python = f"Python: {package if package and inside else 'asyncio and others'}"
        kinds.setdefault(_MOVING.get((file, name), python), []).append(times)
    total = met.total()
    return [
        {
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
