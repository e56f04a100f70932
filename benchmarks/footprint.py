"""What one peer costs a small device: memory, time to start, and which heavy libraries it pulls in (none)."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

from broker import running_broker
from common import SINGLE_THREADED, cpu_seconds, positive, show, warn_if_busy, write_json

_HEAVY = ("tensorflow", "keras", "sklearn", "matplotlib", "amqtt")
_COLUMNS = {"process": "process", "start": "start s", "rss": "RSS MB", "cpu": "CPU idle", "heavy": "heavy libraries"}
_DEADLINE = 30.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--idle", type=positive, default=5, help="seconds to idle before RSS is read; default: 5")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there")
    parser.add_argument("--as", dest="role", choices=["bare", "peer", "trainer"], help=argparse.SUPPRESS)
    parser.add_argument("--broker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        import uvloop

        uvloop.run(_be(arguments.role, arguments.broker))
        return 0
    warn_if_busy()
    with running_broker() as broker:
        rows = [
            _probe("import edgepeer", "bare", broker, arguments.idle),
            _probe("import to joined: a peer", "peer", broker, arguments.idle),
            _probe("import to joined: a peer with the NumPy trainer", "trainer", broker, arguments.idle),
            _device("process to joined: edgepeer peer", broker, arguments.idle),
        ]
    show("what a peer costs", _COLUMNS, [_line(row) for row in rows])
    if arguments.json:
        write_json(arguments.json, rows)
    return 0


async def _be(role: str, broker: str) -> None:
    """A probe: become that, tell how long it took and what it has imported, and stay until the input ends."""
    began = time.monotonic()
    import edgepeer

    async with AsyncExitStack() as stack:
        if role == "trainer":
            trainer = _used_trainer()
        if role != "bare":
            peer = await stack.enter_async_context(edgepeer.Peer(broker=broker, fabric=f"footprint-{role}"))
            await peer.ready()
        seconds = time.monotonic() - began
        print(json.dumps({"seconds": seconds, "heavy": [m for m in _HEAVY if m in sys.modules]}), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        if role == "trainer":
            trainer.parameters()  # it has stayed alive


def _used_trainer() -> Any:
    """The built-in network for MNIST after one batch of 100, so that all its buffers are there."""
    import numpy as np

    from edgepeer.training.numpy_trainer import NumpyTrainer

    trainer = NumpyTrainer(features=784, outputs=10)
    gradient = np.empty(trainer.size, np.float32)
    trainer.gradient(np.zeros((100, 784), np.float32), np.zeros(100, np.int64), gradient, seed=0)
    trainer.apply(gradient)
    return trainer


def _probe(name: str, role: str, broker: str, idle: int) -> dict[str, Any]:
    with _process(__file__, "--as", role, "--broker", broker) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"{name}: failed; its error stands above")
        told = json.loads(line)
        return {"process": name, "start_s": told["seconds"], **_idling(process, idle), "heavy": told["heavy"]}


def _device(name: str, broker: str, idle: int) -> dict[str, Any]:
    """The command that runs on a device, from its start as a process to its view on the broker."""
    command = ["-m", "edgepeer", "peer", "--config", os.devnull, "--fabric", "footprint", "--trainer", "numpy"]
    began = time.monotonic()
    with _process(*command, "--broker", broker) as process:
        try:
            asyncio.run(_view_published(broker))
        except TimeoutError:
            raise SystemExit(f"{name}: not in a view within {_DEADLINE:g} s") from None
        row = {"process": name, "start_s": time.monotonic() - began, **_idling(process, idle), "heavy": None}
        process.terminate()
        return row


async def _view_published(broker: str) -> None:
    from aiomqtt import Client

    from edgepeer.fabric.address import BrokerAddress
    from edgepeer.fabric.topics import Topics

    address, topic = BrokerAddress.parse(broker), Topics("footprint").view
    async with asyncio.timeout(_DEADLINE), Client(address.host, address.port) as client:
        await client.subscribe(topic)
        async for message in client.messages:
            if message.topic.value == topic and message.payload:
                return


@contextmanager
def _process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, *arguments],
        env=os.environ | SINGLE_THREADED,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.communicate()  # closes its input: it leaves


def _idling(process: subprocess.Popen[str], idle: int) -> dict[str, float]:
    """Resident memory after, and processor time during `idle` seconds of nothing to do."""
    before = cpu_seconds(process.pid)
    time.sleep(idle)
    used = cpu_seconds(process.pid) - before
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return {"rss_bytes": pages * os.sysconf("SC_PAGE_SIZE"), "idle_cpu_fraction": used / idle}


def _line(row: dict[str, Any]) -> dict[str, Any]:
    heavy = row["heavy"]
    return row | {
        "start": f"{row['start_s']:.2f}",
        "rss": f"{row['rss_bytes'] / 1e6:.1f}",
        "cpu": f"{row['idle_cpu_fraction']:.1%}",
        "heavy": None if heavy is None else ", ".join(heavy) or "none",
    }


if __name__ == "__main__":
    sys.exit(main())
