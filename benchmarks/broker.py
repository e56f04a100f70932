"""The embedded MQTT broker in a process of its own, so that it is not measured with the peers.

`python broker.py [HOST]` prints the broker's URL and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvloop

__all__ = ["running_broker"]


@contextmanager
def running_broker(host: str = "127.0.0.1", prefix: Sequence[str] = ()) -> Iterator[str]:
    """A broker for as long as the context is open; gives its URL. `prefix`: what its command line begins with."""
    command = [*prefix, sys.executable, str(Path(__file__).resolve()), host]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url:
            raise SystemExit("the embedded broker did not start (pip install 'edgepeer[broker]')")
        try:
            yield url
        finally:
            process.stdin.close()


async def _serve(host: str) -> None:
    from edgepeer.fabric.broker import EmbeddedBroker

    async with EmbeddedBroker(host) as broker:
        print(f"mqtt://{broker.address.host}:{broker.address.port}", flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(_serve(*sys.argv[1:]))
