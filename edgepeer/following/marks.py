"""What is broken on purpose: now, for pictures; in a run, for reports. Plain data, told by whoever breaks it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Marks", "ReportedFault", "labels_in"]


@dataclass(frozen=True, kw_only=True)
class Marks:
    """Links, peers and the broker, as far as they are broken at this moment."""

    cut: frozenset[tuple[str, str]] = frozenset()
    """Directions (source, target) in which nothing passes; a target may be `broker`."""
    killed: frozenset[str] = frozenset()
    """Peers that were killed and not started again."""
    paused: frozenset[str] = frozenset()
    """Peers that are frozen."""
    slow: frozenset[str] = frozenset()
    """Peers that are kept from computing as fast as they could."""
    labels: tuple[str, ...] = ()
    """All of it in words."""

    def broken(self, one: str, other: str) -> bool:
        """Whether nothing passes between the two in at least one direction."""
        return (one, other) in self.cut or (other, one) in self.cut


@dataclass(frozen=True, kw_only=True)
class ReportedFault:
    """What a report says of one fault."""

    label: str
    """In words."""
    first_round: int
    """The first round that it may have touched."""
    last_round: int | None
    """The last one; None: it was never lifted."""
    asked: str = ""
    """As the user wrote it."""
    evidence: str = ""
    """What shows that it took effect, to stand after the label; empty where that says it all."""
    proof: str = ""
    """The same at length, to stand alone."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """For report.json."""


def labels_in(number: int, faults: Iterable[ReportedFault]) -> list[str]:
    """The faults that a round was under, in words."""
    return [
        fault.label
        for fault in faults
        if fault.first_round <= number and (fault.last_round is None or number <= fault.last_round)
    ]
