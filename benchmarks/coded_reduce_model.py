"""The run-time model of Reisizadeh et al. 2021 (§III-C): how long each scheme takes for the sum of all gradients.

A worker with d_i data points computes for a d_i + Exp(mean d_i / mu) seconds. A node receives from one other at a time,
and a whole vector takes t_c. All start at once; handing out the model costs nothing, as in the paper. Times are in
seconds, arrays have one row per round.

    UMW          the master waits for everybody's sum
    GC           the same with S + 1 times the data each; the master takes the first N - S
    SGD          the master takes the first N - S, without any redundancy
    RAR          ring allreduce: once the last has computed, 2 (N - 1) steps of t_c / N
    RAR-latency  the same where a message costs at least a part of t_c, however short it is
    CR           CodedReduce: every parent takes the first n - s of its children
    CR-groups    the same allocation as edgepeer does it: a parent takes one message of each group of s + 1 children
                 who hold the same, and leaves the others where they are
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from edgepeer.coding.tree_allocation import Allocation, allocate

__all__ = ["RING_MESSAGE", "SCHEMES", "Setting", "Times", "iteration_times"]

SCHEMES = ("UMW", "GC", "SGD", "RAR", "RAR-latency", "CR", "CR-groups")

#: What part of t_c a message takes however short it is, in RAR-latency.
RING_MESSAGE = 1 / 8


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One experiment of the paper."""

    workers: int
    fanout: int
    stragglers: Fraction
    """The share of children per parent, or of all workers, that need not answer (alpha)."""
    samples: int
    sample_s: float
    """What one data point costs without any delay (a)."""
    delay: float = 1.0
    """Mean of the exponential part, in units of that (1 / (a mu))."""
    vector_s: float
    """What a vector costs on a link (t_c)."""
    rounds: int


@dataclass(frozen=True)
class Times:
    """What the rounds of one scheme took."""

    seconds: NDArray[np.float64]
    """Shape (rounds,)."""
    taken: NDArray[np.bool_] | None = None
    """Whose data is in each round's sum, shape (rounds, workers); None: everybody's."""


def iteration_times(setting: Setting, seed: int) -> dict[str, Times]:
    """All schemes, each with delays of its own drawing."""
    random = np.random.default_rng(seed)
    every, most = setting.workers, setting.workers - int(setting.stragglers * setting.workers)
    uncoded, coded = Fraction(1, every), Fraction(every - most + 1, every)
    s = int(setting.stragglers * setting.fanout)
    tree = allocate(1 + every, setting.fanout, s)
    first = _compute(random, setting, [uncoded] * every)
    after = np.empty(first.shape, np.int64)  # each worker's place in the order of finishing
    np.put_along_axis(after, first.argsort(axis=1), np.arange(every)[None, :], axis=1)
    slowest = _compute(random, setting, [uncoded] * every).max(axis=1)
    steps, step_s = 2 * (every - 1), setting.vector_s / every
    message_s = RING_MESSAGE * setting.vector_s
    return {
        "UMW": Times(_port(_compute(random, setting, [uncoded] * every), setting.vector_s)[:, -1]),
        "GC": Times(_port(_compute(random, setting, [coded] * every), setting.vector_s)[:, most - 1]),
        "SGD": Times(_port(first, setting.vector_s)[:, most - 1], after < most),
        "RAR": Times(slowest + steps * step_s),
        "RAR-latency": Times(slowest + steps * (message_s + (1 - RING_MESSAGE) * step_s)),
        "CR": Times(_up_the_tree(random, setting, tree, groups=False)),
        "CR-groups": Times(_up_the_tree(random, setting, tree, groups=True)),
    }


def _compute(random: np.random.Generator, setting: Setting, shares: list[Fraction]) -> NDArray[np.float64]:
    """When workers with these shares of the data have computed, shape (rounds, workers)."""
    least = np.array([float(share) for share in shares]) * setting.samples * setting.sample_s
    seconds: NDArray[np.float64] = least * (
        1 + setting.delay * random.standard_exponential((setting.rounds, len(shares)))
    )
    return seconds


def _port(ready: NDArray[np.float64], vector_s: float) -> NDArray[np.float64]:
    """When a node has one, two, ... messages of those ready at these times, first come first served; same shape."""
    place = np.arange(ready.shape[1]) * vector_s
    started: NDArray[np.float64] = np.maximum.accumulate(np.sort(ready, axis=1) - place, axis=1) + place
    return started + vector_s


def _up_the_tree(
    random: np.random.Generator, setting: Setting, tree: Allocation, *, groups: bool
) -> NDArray[np.float64]:
    """When the root has its sum. A parent takes the first n - s children's messages, or, with groups, of each group of
    children who hold the same only the first."""
    orders, chunks = tree.assignment.orders, tree.assignment.chunks
    ready = _compute(random, setting, [Fraction(len(order), chunks) for order in orders])
    for node in reversed(range(len(orders))):
        below = tree.children(node)
        if not below:
            continue
        times = ready[:, below.start : below.stop]
        if groups and all(group.replicated for group in tree.groups[node]):
            firsts = np.stack([times[:, list(group.members)].min(axis=1) for group in tree.groups[node]], axis=1)
            collected = _port(firsts, setting.vector_s)[:, -1]
        else:
            collected = _port(times, setting.vector_s)[:, max(len(below) - tree.s, 1) - 1]
        ready[:, node] = np.maximum(ready[:, node], collected)
    return ready[:, 0]
