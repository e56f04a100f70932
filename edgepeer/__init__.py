"""edgepeer: train one model on many small, unreliable machines.

    Peer, connect     one member of a fabric: with an event loop, and without
    Outcome, View     what an allreduce gives back; who is in
    train_split       a network that is divided over the peers, coded so that machines may err
    errors            every exception, as a tree

Everything else is found by package: `edgepeer.training` (trainers, data, jobs), `edgepeer.fabric` (MQTT and an
embedded broker), `edgepeer.simulation` (fleets in virtual time), `edgepeer.protocol` (the machine without I/O).
Importing edgepeer imports none of them, nor TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from edgepeer import errors
from edgepeer.version import VERSION as __version__

if TYPE_CHECKING:
    from edgepeer.peer.api import Peer
    from edgepeer.peer.blocking import BlockingPeer, connect
    from edgepeer.peer.outcome import Outcome
    from edgepeer.peer.split_training import SplitOutcome, train_split
    from edgepeer.protocol.limits import Limits
    from edgepeer.topology.view import Member, View

__all__ = [
    "BlockingPeer",
    "Limits",
    "Member",
    "Outcome",
    "Peer",
    "SplitOutcome",
    "View",
    "__version__",
    "connect",
    "errors",
    "train_split",
]

_HOMES = {
    "BlockingPeer": "edgepeer.peer.blocking",
    "Limits": "edgepeer.protocol.limits",
    "Member": "edgepeer.topology.view",
    "Outcome": "edgepeer.peer.outcome",
    "Peer": "edgepeer.peer.api",
    "SplitOutcome": "edgepeer.peer.split_training",
    "View": "edgepeer.topology.view",
    "connect": "edgepeer.peer.blocking",
    "train_split": "edgepeer.peer.split_training",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'edgepeer' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
