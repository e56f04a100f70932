"""What the ways between simulated machines are like: how long what is sent takes, and what is kept from whom."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
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


class Ways:
    """From each machine to each other, all alike but for cuts."""

    def __init__(self, clock: Clock, rng: random.Random, model: LinkModel) -> None:
        self.clock = clock
        self._rng = rng
        self.model = model
        self.cuts: Counter[tuple[PeerId, PeerId]] = Counter()
        """How many faults keep what the first sends from the second."""

    def jitter(self) -> float:
        """How much longer than the latency the next message takes."""
        extra = self._rng.random() * self.model.jitter_s if self.model.jitter_s else 0.0
        if self.model.loss:
            pause = RTO_S
            while self._rng.random() < self.model.loss and pause < 10:
                extra += pause
                pause *= 2
        return extra

    def delay(self) -> float:
        return self.model.latency_s + self.jitter()

    def is_cut(self, source: PeerId, target: PeerId) -> bool:
        return (source, target) in self.cuts
