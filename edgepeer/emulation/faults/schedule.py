"""When which fault comes and goes. Pure: told the round and the second, it says what is due, each step once.

A fault that comes late, because rounds went by faster than they were reported, still lasts as long as asked. Faults
in the life of one peer come and go strictly in the order of their times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgepeer.emulation.faults.kinds import PlannedFault, Who

__all__ = ["FaultSchedule", "FaultStep", "Instant"]


@dataclass(frozen=True, slots=True)
class Instant:
    """How far a job is."""

    round: int
    """Rounds that are done."""
    second: float
    """Since the job began."""


@dataclass(frozen=True, slots=True)
class FaultStep:
    """One fault comes or goes."""

    at: int
    """Which of the faults, counted from 0."""
    lift: bool
    """Whether it ends; else it begins."""


class FaultSchedule:
    """What is still to come of some faults."""

    def __init__(self, faults: Sequence[PlannedFault]) -> None:
        """Faults with one subject must not overlap (see `plan`)."""
        self._faults = tuple(faults)
        self._begun: dict[int, Instant] = {}
        self._over: set[int] = set()
        self._before: dict[int, int] = {}
        latest: dict[Who, int] = {}
        for at in sorted(range(len(faults)), key=lambda at: (faults[at].span.start, at)):
            subject = faults[at].subject
            if subject is not None:
                if subject in latest:
                    self._before[at] = latest[subject]
                latest[subject] = at

    def due(self, now: Instant) -> list[FaultStep]:
        """What must be done at `now`, in this order. Call it with instants that never go back."""
        steps: list[FaultStep] = []
        while found := self._due(now):
            steps += found
        return steps

    def _due(self, now: Instant) -> list[FaultStep]:
        lifts = [FaultStep(at, lift=True) for at in sorted(self._begun) if at not in self._over and self._ends(at, now)]
        self._over |= {step.at for step in lifts}
        begins = [
            FaultStep(at, lift=False)
            for at in range(len(self._faults))
            if at not in self._begun and self._begins(at, now) and self._before.get(at) in {None, *self._over}
        ]
        for step in begins:
            self._begun[step.at] = now
            if not self._faults[step.at].lasts:
                self._over.add(step.at)
        return lifts + begins

    def _begins(self, at: int, now: Instant) -> bool:
        span = self._faults[at].span
        return now.round >= span.start - 1 if span.unit == "round" else now.second >= span.start

    def _ends(self, at: int, now: Instant) -> bool:
        span, begun = self._faults[at].span, self._begun[at]
        if span.length is None:
            return False
        if span.unit == "round":
            return now.round >= begun.round + span.length
        return now.second >= begun.second + span.length

    @property
    def over(self) -> bool:
        """Whether nothing is to come any more, nor to go before the job's end."""
        lasting = (at for at in self._begun if at not in self._over)
        return not self.waiting and all(self._faults[at].span.length is None for at in lasting)

    @property
    def waiting(self) -> tuple[int, ...]:
        """The faults that have not begun."""
        return tuple(at for at in range(len(self._faults)) if at not in self._begun)
