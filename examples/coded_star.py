"""A star of nine peers, two of which lag in every round: exact after a while, or approximate at once, as you say.

    python examples/coded_star.py
    python examples/coded_star.py --wait "error<1.5"
    python examples/coded_star.py --code cyclic:s=2

Each peer is connected with the first one only. Every chunk of the data is on three peers, as the code says. With
--wait exact a round ends when the sum can be had exactly; with "error<1.5" as soon as its expected squared error is
below 1.5 times a chunk's squared gradient. What is approximate says so, and by how much.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from functools import partial

import numpy as np

import edgepeer
from edgepeer.errors import FellBehind, LeftFabric, NotReady, PeerError
from edgepeer.fabric.broker import EmbeddedBroker

PEERS = 9
CHUNK_S = 0.03
SLOWER = 10
LAG = 2
SIZE = 1000


def lags(number: int, round_: int) -> bool:
    """Whether a peer is slow in a round: always two of them, never the same two for long."""
    return number in {(3 * round_ + k * 4) % PEERS for k in range(LAG)}


async def gradient(pause: float, chunk: int, chunks: int) -> tuple[np.ndarray, float]:
    """What stands for a chunk's gradient, and what it counts for."""
    await asyncio.sleep(pause)
    return np.full(SIZE, 1.0 + chunk), 1.0


async def work(broker: str, number: int, arguments: argparse.Namespace) -> dict[tuple[str, int], edgepeer.Outcome]:
    """One peer. Returns what came of each round that it has heard of, by generation and number."""
    outcomes, last = {}, 0
    async with edgepeer.Peer(
        broker, fabric="star", peer_id=f"p{number}", fanout=PEERS - 1, code=arguments.code, wait=arguments.wait
    ) as peer:
        await peer.ready(peers=PEERS)
        while last < arguments.rounds:
            pause = CHUNK_S * (SLOWER if lags(number, last) else 1)
            try:
                outcome = await peer.allreduce_chunks(partial(gradient, pause))
            except (FellBehind, LeftFabric, NotReady):
                # This process stood still for seconds: some went on without this peer, or all began anew.
                try:
                    await peer.ready(peers=PEERS, timeout=20)
                except NotReady:
                    break  # they are through
            else:
                outcomes[outcome.generation, last := outcome.round] = outcome
    return outcomes


async def main(arguments: argparse.Namespace) -> None:
    async with EmbeddedBroker("127.0.0.1", 0) as broker:
        fleet = await asyncio.gather(*(work(str(broker.address), n, arguments) for n in range(PEERS)))
    for which in set().union(*fleet):
        assert len({mine[which].digest for mine in fleet if which in mine}) == 1  # all peers have the same bits
    outcomes = list(max(fleet, key=len).values())
    plain = sum(range(1, PEERS + 1))
    exact = [outcome for outcome in outcomes if outcome.exact]
    print(f"{arguments.code}, {arguments.wait}: {len(exact)} of {len(outcomes)} rounds exact, ", end="")
    print(f"median {statistics.median(outcome.seconds for outcome in outcomes) * 1e3:.0f} ms")
    for outcome in exact:
        np.testing.assert_allclose(outcome.sum, sum(1 + chunk for chunk in outcome.chunks))  # fewer, with fewer peers
    for outcome in [outcome for outcome in outcomes if not outcome.exact][:3]:
        print(f"  approximate: {outcome.sum[0]:.1f} instead of {plain}, chunks {outcome.chunks} are whole, ", end="")
        print(f"expected squared error {outcome.error:.2f} of a chunk's")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--code", default="partial:l=1,replication=3", help="default: %(default)s")
    parser.add_argument("--wait", default="exact", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=20, help="default: %(default)s")
    try:
        asyncio.run(main(parser.parse_args()))
    except PeerError as error:
        raise SystemExit(f"this machine is too busy for {PEERS} peers in one process: {error}") from None
