"""Virtual time: callbacks in order of their time, and of their scheduling where times are equal."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

__all__ = ["Clock"]


class Clock:
    """A queue of what happens when. Time passes only in `run`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        """How many callbacks have run."""
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = count()

    def at(self, when: float, callback: Callable[[], None]) -> None:
        """Call back at `when`, or now if that has passed."""
        heapq.heappush(self._queue, (max(when, self.now), next(self._sequence), callback))

    def after(self, delay: float, callback: Callable[[], None]) -> None:
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
            callback()
        return True
