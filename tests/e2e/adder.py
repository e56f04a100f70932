"""A program that adds up numbers with others, one round after the other, and says what came of each.

    python adder.py BROKER PEER_ID

A line for each result: generation, round, digest, contributors; no two calls anywhere bring the same number.
"""

from __future__ import annotations

import asyncio
import sys

import numpy as np

import edgepeer
from edgepeer.errors import EdgepeerError

PAUSE_S = 0.02


async def main(broker: str, name: str) -> None:
    numbers = np.random.default_rng()
    async with edgepeer.Peer(broker, fabric="default", peer_id=name) as peer:
        await peer.ready(timeout=300)
        while True:
            try:
                outcome = await peer.allreduce(numbers.random(8))
            except EdgepeerError as error:
                print(f"! {type(error).__name__}: {error}", flush=True)
            else:
                print(outcome.generation, outcome.round, outcome.digest, ",".join(outcome.contributors), flush=True)
            await asyncio.sleep(PAUSE_S)  # as a user's program computes between rounds; no test waits by it


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
