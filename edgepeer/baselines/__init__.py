"""The protocols that ft-tree is compared with: what others do, behind the same surface, and none of what they don't.

    ft-tree-static   the thesis' fault-tolerant tree: backup links, metadata, one static timeout   static_tree.py
    tree             a tree allreduce without any tolerance                                        tree.py
    ring             reduce-scatter and allgather along the view's order                           ring.py
    ps-sync          a parameter server that waits for everybody                                   tree.py
    ps-async         a parameter server that waits for nobody                                      async_server.py

They are chosen by name (`MachineMaker`) and run in the same peers, emulator and simulator. `shell.py` is what they
share of a `Node`: a first view, links, one deadline. `collective.py` is what their rounds have in common.

A baseline's view grows until its first round begins and does not change afterwards: nobody is removed, nobody joins.
A run's initial state is not handed out, so it must be the same at all peers (for a job it is, by its seed). When a
caller's timeout ends a round, it ends it for all that can be reached, but nobody makes sure that no other peer has
committed it.
"""

from __future__ import annotations

from edgepeer.baselines.make import MachineMaker
from edgepeer.wire.protocols import STATIC_TIMEOUT_S

__all__ = ["STATIC_TIMEOUT_S", "MachineMaker"]
