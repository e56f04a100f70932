"""Seven peers on a tree fit a line to data, and one of them is ten times slower than the others.

    python examples/coded_tree.py
    python examples/coded_tree.py --code none

The data are in seven chunks. With the code, each chunk is on three peers; each computes its chunks one after the other,
and the round ends as soon as every chunk has been computed by anybody. The sum is exact, and nobody waits for the slow
peer. Without it, each round takes as long as that one needs.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from functools import partial

import numpy as np

import edgepeer
from edgepeer.fabric.broker import EmbeddedBroker

PEERS = 7
CHUNK_S = 0.05
SLOWER = 10
STEP = 0.5

rng = np.random.default_rng(1)
X = np.column_stack([rng.uniform(-1, 1, 700), np.ones(700)])
Y = X @ [2.0, -1.0] + rng.normal(0, 0.1, 700)


async def gradient(theta: np.ndarray, pause: float, chunk: int, chunks: int) -> tuple[np.ndarray, float]:
    """Mean gradient of the squared error over one chunk, and how many samples that is."""
    await asyncio.sleep(pause)  # stands for a device that has something to compute
    x, y = np.array_split(X, chunks)[chunk], np.array_split(Y, chunks)[chunk]
    return x.T @ (x @ theta - y) / len(y), len(y)


async def train(broker: str, number: int, code: str, rounds: int) -> list[float]:
    """One peer. Returns how long its rounds took, in seconds."""
    theta, seconds = np.zeros(2), []
    pause = CHUNK_S * (SLOWER if number == PEERS - 1 else 1)
    async with edgepeer.Peer(broker, fabric="line", peer_id=f"p{number}", code=code) as peer:
        await peer.ready(peers=PEERS)
        for number_of_round in range(1, rounds + 1):
            if code == "none":
                mine, samples = await gradient(theta, pause, number, PEERS)
                outcome = await peer.allreduce(mine, weight=samples)
            else:
                outcome = await peer.allreduce_chunks(partial(gradient, theta, pause))
            theta = theta - STEP * np.asarray(outcome.mean)
            seconds.append(outcome.seconds)
            if number == 0 and number_of_round == rounds:
                who = ", ".join(outcome.contributors)
                print(f"last sum: exact {outcome.exact}, over {outcome.weight:g} samples, from {who}")
                print(f"fitted y = {theta[0]:.2f} x + {theta[1]:.2f}", flush=True)
    return seconds


async def main(code: str, rounds: int) -> None:
    async with EmbeddedBroker("127.0.0.1", 0) as broker:
        fleet = [train(str(broker.address), number, code, rounds) for number in range(PEERS)]
        seconds = (await asyncio.gather(*fleet))[0]
    print(f"code {code}: median round {statistics.median(seconds) * 1e3:.0f} ms; the slow peer needs", end=" ")
    print(f"{CHUNK_S * SLOWER * 1e3:.0f} ms for a chunk, the others {CHUNK_S * 1e3:.0f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--code", default="partial:l=1,replication=3", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=20, help="default: %(default)s")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.code, arguments.rounds))
