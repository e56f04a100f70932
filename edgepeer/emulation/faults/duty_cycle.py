"""For how long something is stopped, and then runs, to run for a part of the time only. No clock, no process."""

from __future__ import annotations

from typing import Final

__all__ = ["DutyCycle"]

PERIOD_S: Final = 0.02
LONGEST_S: Final = 0.5
"""What makes up for lost time is no longer than this at once."""


class DutyCycle:
    """Of something that is to run for one part in `factor` of the time, however late single turns are.

    It runs at first, from `now` on, and is stopped and let go on by turns.
    """

    def __init__(self, factor: float, now: float) -> None:
        self._factor = factor
        self._since = now
        self._ahead = PERIOD_S * (1 - 1 / factor)  # it begins and ends with a stop
        self.running_s = 0.0
        self.stopped_s = 0.0
        self.is_even = True
        """Whether the stop that has begun last makes up for all that it ran too long."""

    @property
    def share(self) -> float:
        """For which part of the time it ran."""
        total = self.running_s + self.stopped_s
        return self.running_s / total if total else 1.0

    def stop(self, now: float) -> float:
        """It is being stopped. Returns for how many seconds it should be."""
        self.running_s += now - self._since
        self._since = now
        owed = self.running_s * (self._factor - 1) - self.stopped_s + self._ahead
        self.is_even = owed <= LONGEST_S
        return min(max(owed, 0.0), LONGEST_S)

    def go_on(self, now: float) -> float:
        """It runs again. Returns for how many seconds it should."""
        self.stopped_s += now - self._since
        self._since = now
        due = self.stopped_s / (self._factor - 1) - self.running_s  # more, where a stop took too long
        return min(max(due, PERIOD_S / self._factor), LONGEST_S)
