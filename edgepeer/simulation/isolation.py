"""How many links must fail, at random and one after the other, until a peer is isolated: Padrão 2020, §6.4, Figure 11.

The thesis removes random links from the network "until a node became disconnected". Systems, over one binary tree:

tree        Links: parent to child. Isolated: somebody who has no path to the root over the links that are left.
            That is the first failure.
thesis      Links: the tree's, and of each node to its brother and its uncles (§6.1, Figure 7). Isolated: somebody
            who has no path to the root over the links that are left, whether or not its algorithms find that path.
ours        Links: the thesis', and of each peer to the broker. Isolated: the same, where paths may lead over the
            broker, too.

A path is not yet a round: both protocols carry data around a failed link over one other peer at most, and only ours
moves whoever is left without such a way to another place in the tree, by a new view. So two stricter ones:

thesis-hop  Links: the thesis'. Isolated: somebody whose link to its parent is gone, and with it every way over a
            brother or an uncle (§6.2, Algorithm 1, lines 20 to 23).
ours-hop    Links: ours. Isolated: somebody whose link to its parent is gone, and with it every way over a peer that
            both have a link to, and over the broker: the next round has to go on without somebody.

All of these only get worse with each link that fails. So for one order of failures, in which the link e fails as
number r(e), the failure that isolates somebody is found without trying: a way is there until the first of its links
fails, two ends are connected until the last of their ways goes, and somebody is isolated as soon as one pair is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from edgepeer.topology import tree

__all__ = ["SYSTEMS", "Link", "Row", "System", "failures_until_isolation", "links_of", "measure", "table"]

System: TypeAlias = Literal["tree", "thesis", "ours", "thesis-hop", "ours-hop"]
SYSTEMS: Final[tuple[System, ...]] = get_args(System)
Link: TypeAlias = tuple[int, int]
"""Two positions, the smaller one first; the broker's is -1."""
BROKER: Final = -1
_BATCH_BYTES: Final = 2 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """What was found for one system and one tree."""

    system: System
    peers: int
    height: int
    links: int
    """How many there are that can fail."""
    trials: int
    failed: float
    """How many had failed when somebody was isolated: the mean over all trials."""
    percent: float
    """The same as a share of the links."""
    percentile_5: int
    """In one trial out of twenty it were not more than so many."""

    def fields(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def links_of(system: System, peers: int, fanout: int = 2) -> list[Link]:
    """All links of a system that can fail."""
    found: set[Link] = set()
    for position in range(peers):
        if (above := tree.parent(position, fanout)) is not None:
            found.add((above, position))
        if system != "tree":
            beside = (*tree.brothers(position, fanout, peers), *tree.uncles(position, fanout, peers))
            found.update((min(position, other), max(position, other)) for other in beside)
        if system.startswith("ours"):
            found.add((BROKER, position))
    return sorted(found)


def failures_until_isolation(
    system: System, peers: int, order: NDArray[np.integer[Any]], fanout: int = 2
) -> NDArray[np.int64]:
    """After how many failures somebody is isolated.

    Args:
        system, peers, fanout: which network.
        order: for each trial and each link, in the order of `links_of`, as which the link fails, from 1 on;
            shape (trials, links).

    Returns:
        The number of failures of each trial, shape (trials,).
    """
    links = links_of(system, peers, fanout)
    trials = order.shape[0]
    if order.shape != (trials, len(links)):
        raise ValueError(f"order has shape {order.shape}, not (trials, {len(links)})")
    # lasts[t, a, b]: as which failure the link between a and b fails in trial t; 0 where there is none.
    # The broker stands behind the last peer.
    lasts = np.zeros((trials, peers + 1, peers + 1), dtype=np.int32)
    for at, (one, other) in enumerate(links):
        lasts[:, one, other] = lasts[:, other, one] = order[:, at]
    isolated: NDArray[np.int64] = np.full(trials, len(links), dtype=np.int64)
    if system.endswith("-hop"):
        for child in range(1, peers):
            above = (child - 1) // fanout
            around = np.minimum(lasts[:, above], lasts[:, child]).max(axis=1)
            np.minimum(isolated, np.maximum(lasts[:, above, child], around), out=isolated)
        return isolated
    # The way that lasts longest between each two, over ever more in between (Floyd 1962, Warshall 1962).
    for between in range(peers + 1):
        np.maximum(lasts, np.minimum(lasts[:, :, between, None], lasts[:, between, None, :]), out=lasts)
    np.minimum(isolated, lasts[:, 0, 1:peers].min(axis=1), out=isolated)
    return isolated


def measure(system: System, peers: int, *, trials: int, seed: int = 0, fanout: int = 2) -> Row:
    """Let links fail in `trials` random orders.

    Args:
        system: one of SYSTEMS.
        peers: at least 2.
        trials: how many orders.
        seed: of the random orders.
        fanout: of the tree.
    """
    links = len(links_of(system, peers, fanout))
    rng = np.random.default_rng([seed, peers, SYSTEMS.index(system)])
    batch = max(1, _BATCH_BYTES // (4 * (peers + 1) ** 2))
    found = []
    for start in range(0, trials, batch):
        count = min(batch, trials - start)
        order = rng.permuted(np.tile(np.arange(1, links + 1), (count, 1)), axis=1)
        found.append(failures_until_isolation(system, peers, order, fanout))
    failed = np.concatenate(found)
    return Row(
        system=system,
        peers=peers,
        height=tree.height(fanout, peers),
        links=links,
        trials=trials,
        failed=float(failed.mean()),
        percent=float(100 * failed.mean() / links),
        percentile_5=int(np.percentile(failed, 5, method="lower")),
    )


def table(rows: Iterable[Row]) -> list[str]:
    """The rows as lines of text."""
    head: Sequence[str] = ("peers", "height", "system", "links", "failed", "percent", "5th percentile")
    lines = [f"{head[0]:>5} {head[1]:>6} {head[2]:<10} {head[3]:>5} {head[4]:>8} {head[5]:>8} {head[6]:>15}"]
    for row in rows:
        lines.append(
            f"{row.peers:>5} {row.height:>6} {row.system:<10} {row.links:>5} {row.failed:>8.2f} {row.percent:>7.2f}% "
            f"{row.percentile_5:>15}"
        )
    return lines
