"""Who is there with what: where a run starts from, and starts again after a restore.

Each peer that has a checkpoint of a node's blocks says so in the node's own slot: the iteration, plus one, and a number
made of its name. Two that claim the same node leave a sum that is nobody's. So all peers know the same claims, and take
the newest iteration of which there are enough blocks to make up for the rest. The beginning is an iteration that
everybody has, for the weights follow from the seed; it is taken up again only if nobody can be waited for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import xxhash
from numpy.typing import NDArray

from edgepeer.training.split.strategy import Split

__all__ = ["Claim", "Start", "assemble", "claims_in", "tag_of"]

_TAG: Final = (1 << 40) - 1


@dataclass(frozen=True, slots=True)
class Claim:
    """A checkpoint of a node."""

    node: int
    iteration: int
    state: bytes


@dataclass(frozen=True, slots=True)
class Start:
    """From where a run goes on."""

    iteration: int
    holders: tuple[str, ...]
    """Who holds each node; empty: nobody."""
    blank: frozenset[int]
    """Nodes whose holders have no blocks of that iteration."""


def tag_of(peer: str) -> int:
    """A peer as a number that a float64 has exactly."""
    return xxhash.xxh3_64_intdigest(peer.encode()) & _TAG | 1


def claims_in(rows: NDArray[Any], contributors: Sequence[str]) -> dict[int, tuple[int, str]]:
    """Iteration and peer, by node. rows: shape (nodes, 2)."""
    by_tag = {float(tag_of(peer)): peer for peer in contributors}
    out: dict[int, tuple[int, str]] = {}
    for node, (plus_one, tag) in enumerate(rows.tolist()):
        if tag in by_tag and plus_one >= 1 and plus_one == int(plus_one):
            out[node] = int(plus_one) - 1, by_tag[tag]
    return out


def assemble(split: Split, claims: Mapping[int, tuple[int, str]], contributors: Sequence[str]) -> Start | None:
    """Where to start from; None: nowhere, without more peers.

    Who claims a node keeps it. The rest go to contributors without one, in order.
    """
    holders = [""] * split.nodes
    for node, (_, peer) in claims.items():
        holders[node] = peer
    free = [peer for peer in contributors if peer not in holders]
    for node in range(split.nodes):
        if not holders[node] and free:
            holders[node] = free.pop(0)
    vacant = {node for node, peer in enumerate(holders) if not peer}
    if not split.readable(vacant):
        return None
    iterations = sorted({iteration for iteration, _ in claims.values()} - {0}, reverse=True)
    for iteration in iterations:
        has = {node for node, (at, _) in claims.items() if at == iteration}
        blank = set(range(split.nodes)) - has - vacant
        if len(split.recoverable(blank, blank | vacant)) == len(blank):
            return Start(iteration, tuple(holders), frozenset(blank))
    if iterations and vacant:
        return None  # who is missing may have what is needed
    return Start(0, tuple(holders), frozenset())
