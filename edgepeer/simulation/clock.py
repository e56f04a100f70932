"""Virtual time: callbacks in order of their time, and of their scheduling where times are equal."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from edgepeer.errors import ProtocolBug

__all__ = ["Clock"]


class Clock:
    """A queue of what happens when. Time passes only in `run`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        """How many callbacks have run."""
        self.budget = float("inf")
        """More than so many are a bug: a fleet that is busy with nothing but itself."""
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._sequence = count()

    def at(self, when: float, callback: Callable[[], object]) -> None:
        """Call back at `when`, or now if that has passed."""
        heapq.heappush(self._queue, (max(when, self.now), next(self._sequence), callback))

    def after(self, delay: float, callback: Callable[[], object]) -> None:
        self.at(self.now + delay, callback)

    def run(self, *, until: Callable[[], bool], limit_s: float) -> bool:
        """Let time pass until `until()` holds (checked after every callback).

        Returns:
            Whether it came to hold within `limit_s` of virtual time.
        """
        end = self.now + limit_s
        while not until():
            if not self._queue or self._queue[0][0] > end:
                self.now = end
                return False
            self.now, _, callback = heapq.heappop(self._queue)
            self.events += 1
            if self.events > self.budget:
                raise ProtocolBug(f"{self.events} things have happened by {self.now:.1f} s: a storm")
            callback()
        return True
