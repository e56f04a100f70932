"""What is broken at a moment, for pictures, and what was broken in a run, for reports. Plain data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from edgepeer.emulation.faults.kinds import Fault, Flip, Slow
from edgepeer.emulation.faults.schedule import Instant
from edgepeer.emulation.faults.texts import write

__all__ = ["FaultRecord", "Marks", "labels_in"]

_WORDS: Final = {
    "cut": "cut {target}",
    "isolate": "{target} isolated",
    "partition": "partition {target}",
    "kill": "{target} killed",
    "restart": "{target} restarted",
    "pause": "{target} paused",
    "slow": "{target} {factor:g} times slower",
    "broker_down": "broker down",
    "flip": "{how} error in {target}, {place}",
}


@dataclass(frozen=True, kw_only=True)
class Marks:
    """What is broken now."""

    cut: frozenset[tuple[str, str]] = frozenset()
    """Directions (source, target) in which nothing passes; a target may be `broker`."""
    killed: frozenset[str] = frozenset()
    paused: frozenset[str] = frozenset()
    slow: frozenset[str] = frozenset()
    broker_down: bool = False
    labels: tuple[str, ...] = ()
    """All of it in words."""

    def broken(self, one: str, other: str) -> bool:
        """Whether nothing passes between the two in at least one direction."""
        return (one, other) in self.cut or (other, one) in self.cut


@dataclass(kw_only=True)
class FaultRecord:
    """One fault that was injected."""

    fault: Fault
    target: str
    """Who, by names."""
    begun: Instant
    ended: Instant | None = None
    """When it was lifted; for a killed peer, when it was started again."""
    confirmed: dict[str, Any] = field(default_factory=dict)
    """What shows that it took effect."""

    @property
    def label(self) -> str:
        """In words, while it lasts."""
        fault = self.fault
        factor = fault.factor if isinstance(fault, Slow) else 1.0
        how, place = (fault.how, fault.place) if isinstance(fault, Flip) else ("", "")
        return _WORDS[fault.kind].format(target=self.target, factor=factor, how=how, place=place)

    @property
    def evidence(self) -> str:
        """What shows it, in words, to stand after others; empty where the fault itself says it all."""
        dropped = self.confirmed.get("dropped")
        if dropped is not None:
            return f", {sum(dropped.values())} packets dropped"
        if "share" in self.confirmed:
            return f", it ran for {self.confirmed['share']:.0%} of the time"
        if "batches" in self.confirmed:
            return f", {self.confirmed['batches']} batches begun so slowly"
        return ""

    @property
    def first_round(self) -> int:
        """The first round that it may have touched."""
        return self.begun.round + 1

    @property
    def last_round(self) -> int | None:
        """The last one; None: it was never lifted. One that comes at a moment touches one round."""
        if self.ended is None:
            return None if self.fault.lasts or self.fault.kind == "kill" else self.first_round
        # Lifted by rounds, it goes when a round is done; lifted by the clock, in the middle of one.
        return max(self.first_round, self.ended.round + (self.fault.span.unit == "second"))

    def fields(self) -> dict[str, Any]:
        """For report.json: `from` and `to` as asked for, what happened, and what confirms it."""
        return {
            "kind": self.fault.kind,
            "target": self.target,
            "asked": write(self.fault),
            "unit": self.fault.span.unit,
            "from": _plain(self.fault.span.start),
            "to": None if self.fault.span.end is None else _plain(self.fault.span.end),
            "first_round": self.first_round,
            "last_round": self.last_round,
            "began_s": round(self.begun.second, 4),
            "ended_s": None if self.ended is None else round(self.ended.second, 4),
            "confirmed": self.confirmed,
        }


def labels_in(number: int, records: Iterable[FaultRecord]) -> list[str]:
    """The faults that a round was under, in words."""
    return [
        record.label
        for record in records
        if record.first_round <= number and (record.last_round is None or number <= record.last_round)
    ]


def _plain(value: float) -> float:
    return int(value) if value.is_integer() else value
