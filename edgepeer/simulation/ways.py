"""What the ways between simulated machines are like: how long what is sent takes, and what is kept from whom."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from edgepeer.ids import PeerId
from edgepeer.simulation.clock import Clock

__all__ = ["BROKER", "RTO_S", "LinkModel", "Ways"]

BROKER: Final = PeerId("broker")
"""The broker's machine, where cuts name it."""
RTO_S: Final = 0.2
"""First retransmission after this long, each later one after twice as long: Linux' smallest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkModel:
    """How connections behave."""

    latency_s: float = 1e-3
    jitter_s: float = 0.0
    """Each message takes up to this much longer; order is kept."""
    rate_bytes_per_s: float = 1e9
    loss: float = 0.0
    """Probability that a message must be sent again, and so comes later."""
    lines: Mapping[PeerId, float] = field(default_factory=dict)
    """Machines with a line of their own, of so many bytes/s each way, which all their connections share."""
    sites: Mapping[PeerId, int] = field(default_factory=dict)
    """At which site machines are; 0 if not said."""
    far_s: float = 0.0
    """How much longer messages take from site to site ..."""
    between_bytes_per_s: float = 1e9
    """... over the one line, each way, that joins the two."""
    hidden: frozenset[PeerId] = frozenset()
    """Machines that can connect to others, but nobody to them."""


class Ways:
    """From each machine to each other, alike but for cuts, and what the model says of some."""

    def __init__(self, clock: Clock, rng: random.Random, model: LinkModel) -> None:
        self.clock = clock
        self._rng = rng
        self.model = model
        self.cuts: Counter[tuple[PeerId, PeerId]] = Counter()
        """How many faults keep what the first sends from the second."""
        self._free_at: dict[tuple[object, str], float] = {}
        """When what was sent last over a shared line will have left it."""

    def jitter(self) -> float:
        """How much longer than the latency the next message takes."""
        extra = self._rng.random() * self.model.jitter_s if self.model.jitter_s else 0.0
        if self.model.loss:
            pause = RTO_S
            while self._rng.random() < self.model.loss and pause < 10:
                extra += pause
                pause *= 2
        return extra

    def delay(self, source: PeerId, target: PeerId) -> float:
        return self.latency(source, target) + self.jitter()

    def latency(self, source: PeerId, target: PeerId) -> float:
        far = self.model.sites and self._site(source) != self._site(target)
        return self.model.latency_s + (self.model.far_s if far else 0.0)

    def _site(self, peer: PeerId) -> int:
        return self.model.sites.get(peer, 0)

    def carry(self, source: PeerId, target: PeerId, start: float, size: int) -> tuple[float, float, float, float]:
        """Send so many bytes, from `start` on: when the last has left, when the first and the last are there, and how
        long they take to come in."""
        model = self.model
        seconds = size / model.rate_bytes_per_s
        left = start + seconds
        latency = self.latency(source, target)
        first, last = start, left
        if model.lines or model.sites:
            one, other = self._site(source), self._site(target)
            shared: list[tuple[tuple[object, str], float | None]] = [
                ((source, "up"), model.lines.get(source)),
                ((one, f"to {other}"), model.between_bytes_per_s if one != other else None),
                ((target, "down"), model.lines.get(target)),
            ]
            for line, rate in shared:
                if rate is not None:
                    first = max(first, self._free_at.get(line, 0.0))
                    last = self._free_at[line] = max(last, first + size / rate)
                    left = last if line[1] == "up" else left
            seconds = last - first
        return left, first + latency, last + latency, seconds

    def is_cut(self, source: PeerId, target: PeerId) -> bool:
        return (source, target) in self.cuts
