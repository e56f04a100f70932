"""What the ways between simulated machines are like: how long what is sent takes, and what is kept from whom."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from edgepeer.ids import PeerId
from edgepeer.simulation.clock import Clock

__all__ = ["BROKER", "RTO_S", "Line", "LinkModel", "Ways"]

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


class Line:
    """What several connections share: they take turns."""

    def __init__(self, clock: Clock, rate_bytes_per_s: float) -> None:
        self._clock = clock
        self.rate_bytes_per_s = rate_bytes_per_s
        self._waiting: dict[object, deque[tuple[int, Callable[[], None]]]] = {}
        self._busy = False

    def drop(self, of: object) -> None:
        """A connection is gone, with all of it that still waits."""
        self._waiting.pop(of, None)

    def put(self, of: object, size: int, done: Callable[[], None]) -> None:
        """Carry so many bytes of a connection; told when the last has passed."""
        self._waiting.setdefault(of, deque()).append((size, done))
        if not self._busy:
            self._next()

    def _next(self) -> None:
        self._busy = bool(self._waiting)
        if not self._busy:
            return
        of = next(iter(self._waiting))
        queue = self._waiting.pop(of)
        size, done = queue.popleft()
        if queue:
            self._waiting[of] = queue  # behind the others

        def passed() -> None:
            done()
            self._next()

        self._clock.after(size / self.rate_bytes_per_s, passed)


class Ways:
    """From each machine to each other, alike but for cuts, and what the model says of some."""

    def __init__(self, clock: Clock, rng: random.Random, model: LinkModel) -> None:
        self.clock = clock
        self._rng = rng
        self.model = model
        self.cuts: Counter[tuple[PeerId, PeerId]] = Counter()
        """How many faults keep what the first sends from the second."""
        self._lines: dict[tuple[object, str], Line] = {}

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

    def shared(self, source: PeerId, target: PeerId) -> list[Line]:
        """The lines with a rate of their own on the way, in order."""
        model = self.model
        one, other = self._site(source), self._site(target)
        wanted = [
            ((source, "up"), model.lines.get(source)),
            ((one, f"to {other}"), model.between_bytes_per_s if one != other else None),
            ((target, "down"), model.lines.get(target)),
        ]
        return [self._line(key, rate) for key, rate in wanted if rate is not None]

    def _line(self, key: tuple[object, str], rate: float) -> Line:
        found = self._lines.get(key)
        if found is None:
            found = self._lines[key] = Line(self.clock, rate)
        return found

    def is_cut(self, source: PeerId, target: PeerId) -> bool:
        return (source, target) in self.cuts
