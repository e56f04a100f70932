"""Twelve peers train one network, none of them has more than a part of it, and some of them compute wrong numbers.

    python examples/split_training.py
    python examples/split_training.py --split none:m=2,n=2

Each matrix of weights is in 2 x 2 blocks, coded so that one wrong or missing line of blocks a step is put right: four
peers would do without errors, eight more make up for them. On the way, peers are made to err: a product that is noise,
weights that are off, a NaN. With the code, all of them are found, and nothing of them is left in the model.
Without it, with four peers, nobody notices.
"""

from __future__ import annotations

import argparse
import asyncio

import numpy as np

import edgepeer
from edgepeer.errors import ConfigError
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.training.split.faults import parse_flip
from edgepeer.training.split.named import parse_split
from edgepeer.training.split.network import Network

FLIPS = ("1@10:kind=garbage,place=product", "3@20:kind=sparse", "0@30:kind=nan,place=stored")

rng = np.random.default_rng(1)
CENTRES = rng.normal(size=(5, 20))
LABELS = rng.integers(0, 5, 1000)
X = (CENTRES[LABELS] + rng.normal(scale=0.7, size=(1000, 20))).astype(np.float32)
TRAIN, TEST = slice(0, 800), slice(800, 1000)


def batch(iteration: int) -> tuple[np.ndarray, np.ndarray]:
    """Twenty samples; the same at all peers."""
    rows = (20 * iteration + np.arange(20)) % 800
    return X[TRAIN][rows], LABELS[TRAIN][rows]


async def train(broker: str, name: str, split: str, nodes: int, iterations: int) -> edgepeer.SplitOutcome:
    """One peer."""
    network = Network(sizes=(20, 32, 5), learning_rate=0.1)
    async with edgepeer.Peer(broker, fabric="split", peer_id=name) as peer:
        return await edgepeer.train_split(
            peer,
            network,
            split,
            batch,
            iterations=iterations,
            test=(X[TEST], LABELS[TEST]),
            # Whoever is that node then makes it.
            faults=[flip for flip in map(parse_flip, FLIPS) if flip.node < nodes and flip.iteration < iterations],
        )


async def main(split: str, iterations: int) -> None:
    nodes = parse_split(split, np.dtype(np.float32)).nodes
    async with EmbeddedBroker("127.0.0.1", 0) as broker:
        outcomes = await asyncio.gather(
            *(train(str(broker.address), f"p{number:02}", split, nodes, iterations) for number in range(nodes))
        )
    first = outcomes[0]
    for outcome in outcomes:
        for error in outcome.soft_errors:
            print(f"node {error.where.node}: {error.kind} in {error.where.place}: {error.fate}")
    held = max(outcome.held_bytes for outcome in outcomes)
    print(f"{nodes} peers, {iterations} iterations, each holds at most {held} bytes of the model")
    print(f"corrected {first.counts.lines} lines, put {first.counts.regenerated} blocks together again", end=", ")
    print(f"went back {first.counts.restored} times")
    accuracy = None if first.evaluation is None else first.evaluation.accuracy
    print(f"loss {first.losses[0]:.2f} to {first.losses[-1]:.4f}, accuracy {accuracy}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", default="codenet:m=2,n=2,t=1", help="default: %(default)s")
    parser.add_argument("--iterations", type=int, default=60, help="default: %(default)s")
    arguments = parser.parse_args()
    if arguments.iterations < 1:
        parser.error("--iterations must be 1 or more")
    try:
        asyncio.run(main(arguments.split, arguments.iterations))
    except ConfigError as error:
        parser.error(str(error))
