"""Which job counts, when brokers come and go: one that was away, or another of the list, may know only an old one.

    told of                               | answer
    --------------------------------------+-----------------------------------------------------------
    the current job                       | SAME
    no job, while connected               | TAKEN: the current one is over
    a job that is over, as we know        | CORRECT: say what is current instead (at most CORRECTIONS times)
    an older job, when we connect         | CORRECT, likewise
    what can't be read                    | CORRECT, likewise; IGNORED if there is no current job
    any other                             | TAKEN, and the one before is over

Plain data: no clock, no network.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable
from typing import Final

from edgepeer.training.job import Job

__all__ = ["JobBoard", "Verdict"]

CORRECTIONS: Final = 3
"""Two who disagree must come to an end."""
_REMEMBERED: Final = 64


class Verdict(enum.Enum):
    """What to do about a job that was announced."""

    SAME = enum.auto()
    TAKEN = enum.auto()
    CORRECT = enum.auto()
    IGNORED = enum.auto()


class JobBoard:
    """What one device knows of its fabric's jobs.

    Args:
        is_over: whether an earlier life of this device knew a job to have been withdrawn.
        in_order: nothing is told of that is older than what was told before, as in a fleet: then no clock is asked.
    """

    def __init__(self, is_over: Callable[[str], bool], *, in_order: bool = False) -> None:
        self.current: Job | None = None
        self.told = False
        """Whether this connection has told of a job."""
        self._is_over = is_over
        self._in_order = in_order
        self._catching_up = False
        self._over: dict[str, None] = {}
        self._corrected: Counter[str] = Counter()

    def connected(self) -> None:
        """What the broker retains comes now."""
        self.told, self._catching_up = False, True

    def synced(self) -> None:
        """What comes from now on is said now."""
        self._catching_up = False

    def see(self, job: Job | None) -> Verdict:
        """The fabric's job, as the broker has it."""
        self.told = True
        current = self.current
        if job is not None and current is not None and job.id == current.id:
            return Verdict.SAME
        if job is not None and (job.id in self._over or self._is_over(job.id) or self._is_stale(job)):
            self._corrected[job.id] += 1
            return Verdict.CORRECT if self._corrected[job.id] <= CORRECTIONS else Verdict.IGNORED
        if current is not None:
            self._over[current.id] = None
            if len(self._over) > _REMEMBERED:
                del self._over[next(iter(self._over))]
        self.current = job
        return Verdict.SAME if job is current else Verdict.TAKEN

    def spoiled(self) -> Verdict:
        """What the broker has for the fabric's job can't be read."""
        if self.current is None:
            return Verdict.IGNORED
        key = f"{self.current.id}?"  # no job has such an id
        self._corrected[key] += 1
        return Verdict.CORRECT if self._corrected[key] <= CORRECTIONS else Verdict.IGNORED

    def _is_stale(self, job: Job) -> bool:
        if self._in_order or not self._catching_up or self.current is None:
            return False
        return 0 < job.created < self.current.created
