"""How long a peer's event loop is busy at a stretch while it trains: links that are not read for long look dead.

Three peers train a model of 407,050 parameters in one process, which makes it the worst case: their computing
threads and one event loop share an interpreter.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from broker import running_broker
from common import positive, show, warn_if_busy, write_json

from edgepeer.fabric.address import BrokerAddress
from edgepeer.following.follow import run_job
from edgepeer.following.progress import JobProgress
from edgepeer.peer.agent import run_agent
from edgepeer.peer.driver import Driver
from edgepeer.settings import PeerSettings
from edgepeer.training.job import new_job

_PEERS = 3
_BEAT_S = 0.005
_COLUMNS = {
    "trainer": "trainer",
    "what": "what",
    "count": "times",
    "median_s": "median ms",
    "p99_s": "p99 ms",
    "max_s": "longest ms",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainers", default="numpy,keras", help="default: numpy,keras")
    parser.add_argument("--rounds", type=positive, default=100, help="default: 100")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there")
    arguments = parser.parse_args()
    warn_if_busy()
    rows = []
    stretches = _timed_driver()
    with running_broker() as broker, tempfile.TemporaryDirectory() as directory:
        for trainer in arguments.trainers.split(","):
            stretches.clear()
            lags = asyncio.run(_measure(trainer, arguments.rounds, broker, Path(directory)))
            rows += [_row(trainer, "handling a frame or a tick", stretches), _row(trainer, "a timer's delay", lags)]
    shown = [{k: f"{1e3 * v:.2f}" if k.endswith("_s") else v for k, v in row.items()} for row in rows]
    show("how long the event loop is busy at a stretch", _COLUMNS, shown)
    if arguments.json:
        write_json(arguments.json, rows)
    return 0


async def _measure(trainer: str, rounds: int, broker: str, directory: Path) -> list[float]:
    """Train; returns how late a timer every 5 ms came, in seconds (because of other processes, too)."""
    data = directory / "noise.npz"
    rng = np.random.default_rng(0)
    np.savez(data, x=rng.random((2000, 28, 28), dtype=np.float32), y=np.arange(2000) % 10)
    job = new_job(
        trainer=trainer, dataset=f"npz:{data}", rounds=rounds, wait_for=_PEERS, batch_size=20, eval_every=10
    )  # fmt: skip
    fabric, stop = f"loop-lag-{trainer}", asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for number in range(_PEERS):
            settings = PeerSettings(broker=broker, fabric=fabric, peer_id=f"p{number}")
            tasks.create_task(run_agent(settings, stop=stop))
        lags: list[float] = []
        beating = tasks.create_task(_beat(lags))
        address = BrokerAddress.parse(broker)
        await run_job(JobProgress(job, broker=broker), lambda _: None, broker=address, fabric=fabric, timeout=300)
        beating.cancel()
        stop.set()
    return lags


def _timed_driver() -> list[float]:
    """Gets the processor time of each of the drivers' stays in the loop from now on."""
    taken: list[float] = []

    def timed(method: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            began = time.thread_time()
            method(*arguments)
            taken.append(time.thread_time() - began)

        return call

    for name in ("dispatch", "_tick"):
        setattr(Driver, name, timed(getattr(Driver, name)))
    return taken


async def _beat(lags: list[float]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _BEAT_S
        await asyncio.sleep(_BEAT_S)
        lags.append(loop.time() - due)


def _row(trainer: str, what: str, seconds: list[float]) -> dict[str, Any]:
    median, p99, longest = np.percentile(seconds, [50, 99, 100])
    return {
        "trainer": trainer, "what": what, "count": len(seconds),
        "median_s": float(median), "p99_s": float(p99), "max_s": float(longest),
    }  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
