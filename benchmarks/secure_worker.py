"""A peer of the benchmark secure.py, in a process that imports nothing else: what it takes is what a peer takes."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

import edgepeer


async def _be(options: dict[str, Any]) -> None:
    """A peer that tells where it listens, and reduces now and then; to each line it answers how it stands."""
    belongs: dict[str, Any] = {"fabric": "secure-plain"}
    if options["fleet"]:
        from edgepeer.trust.identity import Identity

        trust = Identity.load(Path(options["fleet"]) / options["name"])
        belongs = {"fabric": trust.holder.fabric, "trust": trust}
    async with edgepeer.Peer(options["broker"], **belongs) as peer:
        await peer.ready(options["peers"])
        print(json.dumps({"address": peer.address}), flush=True)
        asked: asyncio.Task[str] = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
        rounds, slowest, vector = 0, 0.0, np.ones(10_000, np.float32)
        while True:
            if options["rounds"]:
                began = time.monotonic()
                await peer.allreduce(vector)
                slowest = max(slowest, time.monotonic() - began)
                rounds += 1
            await asyncio.wait([asked], timeout=0.02)
            if asked.done():
                if not asked.result():
                    return
                print(json.dumps({"rounds": rounds, "slowest_s": slowest, **_resident()}), flush=True)
                slowest = 0.0
                asked = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))


def _resident() -> dict[str, int]:
    """Bytes of memory, and those of them that are no file's."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    sizes = {name: int(size.split()[0]) << 10 for name, _, size in (line.partition(":") for line in lines)}
    return {"rss": sizes["Rss"], "own": sizes["Anonymous"]}


if __name__ == "__main__":
    uvloop.run(_be(json.loads(sys.argv[1])))
