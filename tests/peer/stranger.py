"""Run as a program: a peer that allreduces its one number until it is killed."""

from __future__ import annotations

import sys

import numpy as np

import edgepeer
from edgepeer.errors import FellBehind, LeftFabric, NotReady


def main(broker: str, name: str, worth: str) -> None:
    value = np.full(1000, float(worth), dtype=np.float32)
    with edgepeer.connect(broker, "lab", peer_id=name) as peer:
        peer.ready()
        print("ready", flush=True)
        while True:
            try:
                peer.allreduce(value)
            except (FellBehind, LeftFabric, NotReady):
                peer.ready()


if __name__ == "__main__":
    main(*sys.argv[1:])
