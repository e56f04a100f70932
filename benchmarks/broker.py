"""The embedded MQTT broker in a process of its own, so that it is not measured with the peers.

`python broker.py [HOST [DIRECTORY]]` prints the broker's URL and serves until its standard input ends. The directory
makes it a fleet's.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvloop
from common import BROKER

__all__ = ["running_broker"]


@contextmanager
def running_broker(host: str = "127.0.0.1", prefix: Sequence[str] = (), members: Path | None = None) -> Iterator[str]:
    """A broker for as long as the context is open; gives its URL.

    Args:
        prefix: what its command line begins with.
        members: directories of the members of the fleet that it is for.
    """
    own = [str(members / BROKER)] if members is not None else []
    command = [*prefix, sys.executable, str(Path(__file__).resolve()), host, *own]
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


async def _serve(host: str, directory: str = "") -> None:
    from edgepeer.fabric.broker import EmbeddedBroker
    from edgepeer.trust.loading import load_trust

    identity = load_trust(Path(directory)) if directory else None
    async with EmbeddedBroker(host, identity=identity, insecure=identity is None) as broker:
        scheme = "mqtts" if identity is not None else "mqtt"
        print(f"{scheme}://{broker.address.host}:{broker.address.port}", flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(_serve(*sys.argv[1:]))
