"""One peer that pauses and allreduces on and on: `python recovery_worker.py OPTIONS`, a JSON object.

It says what happens as JSON lines on its standard output: `{"started": 1}` once it listens, `{"ready": 1}` once all
are there. Then it rests until its standard input has a line with the number of rounds to do, 0 for ever; and rests
again. It tells `{"view": [ids]}` of every view, and `{"round", "start", "end", "in", "bytes"}` of each of its rounds:
times by the machine's monotonic clock, the contributors, the sum's digest, and all bytes that it has sent so far; with
every hundredth one `{"vitals": [MiB of memory, open descriptors, tasks]}`. `{"lost": reason}` stands for a round
without a sum. At SIGUSR1 it tells `{"diagnosis": ...}`: how it stands.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

import edgepeer
from edgepeer.baselines import MachineMaker
from edgepeer.errors import FellBehind, LeftFabric, NotReady, RoundTimeout


def say(**line: object) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


async def main(options: dict[str, Any]) -> None:
    belongs: dict[str, Any] = {"fabric": options["fabric"]}
    if options.get("fleet"):
        from edgepeer.trust.identity import Identity

        trust = Identity.load(Path(options["fleet"]) / options["name"])
        belongs = {"fabric": trust.holder.fabric, "trust": trust}
    peer = edgepeer.Peer(
        options["broker"],
        **belongs,
        peer_id=options["name"],
        listen=f"{options['address']}:0",
        insecure=True,  # in network namespaces of our own
        machine=MachineMaker(options["protocol"], options["static_timeout"]),
    )
    vector = np.full(options["elements"], worth(options["name"]), dtype=np.float32)
    async with peer:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, lambda: say(diagnosis=peer.diagnosis()))
        say(started=1)
        await peer.ready(options["peers"])
        say(ready=1)
        view, left = None, 0
        while True:
            if left == 0:
                left = int(await asyncio.to_thread(sys.stdin.readline)) or -1
            if peer.view is not view and peer.view is not None:
                view = peer.view
                say(view=view.ids)
            await asyncio.sleep(options["pause"] * 4 / 5)
            start = time.monotonic()
            try:
                outcome = await peer.allreduce(vector, timeout=options["timeout"])
            except (FellBehind, LeftFabric, NotReady, RoundTimeout) as error:
                say(lost=str(error))
                await peer.ready()
                continue
            end = time.monotonic()
            left -= left > 0
            # Checking and telling wait until the others have their result as well: they are few cores' worth of work.
            await asyncio.sleep(options["pause"] / 5)
            if not (outcome.vector == sum(map(worth, outcome.contributors))).all():
                raise SystemExit(f"round {outcome.round} is not the sum over {outcome.contributors}")
            say(
                round=outcome.round,
                start=start,
                end=end,
                **{"in": outcome.contributors},
                digest=outcome.digest,
                paths=outcome.paths,
                bytes=peer.traffic.bytes_sent,
            )
            if outcome.round % 100 == 0:
                say(vitals=(resident_mib(), len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())))


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def worth(name: str) -> float:
    """What a peer contributes: small whole numbers, whose sums are exact in any order."""
    return float(int(name[1:]) + 1)


if __name__ == "__main__":
    logging.basicConfig(format="%(created).3f %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    logging.getLogger("edgepeer").setLevel(json.loads(sys.argv[1]).get("log_level", "WARNING"))
    uvloop.run(main(json.loads(sys.argv[1])))
