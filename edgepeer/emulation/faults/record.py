"""A fault that was injected: when it came and went, what confirms it, and how a report tells of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from edgepeer.emulation.faults.kinds import Flip, PlannedFault, Slow
from edgepeer.emulation.faults.schedule import Instant
from edgepeer.emulation.faults.texts import write
from edgepeer.following.marks import ReportedFault

__all__ = ["FaultRecord"]

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


@dataclass(kw_only=True)
class FaultRecord:
    """One fault that was injected."""

    fault: PlannedFault
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

    @property
    def proof(self) -> str:
        """What shows it, in words that stand alone."""
        confirmed = self.confirmed
        match self.fault.kind:
            case "cut" | "isolate" | "partition":
                dropped = sum(confirmed.get("dropped", {}).values())
                return f"{len(confirmed.get('rules', []))} rules in force, {dropped} packets dropped"
            case "kill":
                return f"pid {confirmed.get('pid')} ended by SIGKILL"
            case "restart":
                return f"pid {confirmed.get('pid')} after {confirmed.get('pid_before')}"
            case "pause":
                return f"state {confirmed.get('state')}"
            case "slow" if "batches" in confirmed:
                took, usual = confirmed.get("seconds", 0.0), confirmed.get("unslowed_seconds", 0.0)
                return f"{confirmed['batches']} batches begun so slowly, {took:.2f} s for what takes {usual:.2f} s"
            case "slow":
                return f"ran for {confirmed.get('share', 1.0):.0%} of the time, {confirmed.get('stops')} stops"
            case "flip":
                return f"{confirmed.get('peer')}'s own record, at {confirmed.get('step')}"
            case _:
                return f"connections {confirmed.get('while_down')}, then {confirmed.get('when_back')}"

    def reported(self) -> ReportedFault:
        """What a report says of it; its fields have `from` and `to` as asked for, what happened, and what shows it."""
        asked, span = write(self.fault), self.fault.span
        return ReportedFault(
            label=self.label,
            first_round=self.first_round,
            last_round=self.last_round,
            asked=asked,
            evidence=self.evidence,
            proof=self.proof,
            fields={
                "kind": self.fault.kind,
                "target": self.target,
                "asked": asked,
                "unit": span.unit,
                "from": _plain(span.start),
                "to": None if span.end is None else _plain(span.end),
                "first_round": self.first_round,
                "last_round": self.last_round,
                "began_s": round(self.begun.second, 4),
                "ended_s": None if self.ended is None else round(self.ended.second, 4),
                "confirmed": self.confirmed,
            },
        )


def _plain(value: float) -> float:
    return int(value) if value.is_integer() else value
