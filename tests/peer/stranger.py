"""Run as a program: a peer that allreduces its one number until it is killed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import edgepeer
from edgepeer.errors import FellBehind, LeftFabric, NotReady


def main(broker: str, name: str, worth: str, fleet: str = "") -> None:
    value = np.full(1000, float(worth), dtype=np.float32)
    trust = {}
    if fleet:
        from edgepeer.trust.identity import Identity

        trust = {"trust": Identity.load(Path(fleet))}
    with edgepeer.connect(broker, "lab", peer_id=name, **trust) as peer:
        peer.ready()
        print("ready", flush=True)
        while True:
            try:
                peer.allreduce(value)
            except (FellBehind, LeftFabric, NotReady):
                peer.ready()


if __name__ == "__main__":
    main(*sys.argv[1:])
