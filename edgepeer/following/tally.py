"""What became of a split job's wrong numbers, and what its peers hold: added up over what they say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from edgepeer.fabric.documents import PeerReport, RoundRecord, SoftError

__all__ = ["COUNTS", "FATES", "SoftErrorTally", "tally_of"]

COUNTS: Final[Mapping[str, tuple[str, str]]] = {
    "corrected": ("line corrected", "lines corrected"),
    "erased": ("missing contribution made up for", "missing contributions made up for"),
    "damaged": ("line damaged on its way", "lines damaged on their way"),
    "unchecked": ("step that nobody could check", "steps that nobody could check"),
    "odd": ("step done again by a peer that was off", "steps done again by peers that were off"),
    "regenerated": ("block regenerated", "blocks regenerated"),
    "scrubbed": ("block found wrong by a scrub", "blocks found wrong by scrubs"),
    "restored": ("restore", "restores"),
}
"""Fields of a RoundRecord, all of them of the whole fleet since the job began, with words for one and for several."""

FATES: Final[Mapping[str, str]] = {
    "found": "found",
    "restored": "undone by a restore",
    "harmless": "lost in rounding",
    "undetected": "undetected",
}
"""Fields of a PeerReport: what became of the errors that the peer made on purpose, with words for them."""


@dataclass(frozen=True, kw_only=True)
class SoftErrorTally:
    """Soft errors of a whole split job, as far as its peers and records have told."""

    injected: int
    """Soft errors that were made on purpose."""
    fates: Mapping[str, int] = field(default_factory=dict)
    """What became of them, by the names of FATES, as far as peers have said."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """What the fleet did, by the names of COUNTS."""
    undetected: Mapping[str, int] = field(default_factory=dict)
    """By peer: errors of its own that could do harm, and that nobody has found."""

    @property
    def gone(self) -> int:
        """Errors of which nobody can say any more what became of them: their peers are gone, their blocks with them."""
        return max(0, self.injected - sum(self.fates.values()))

    def told(self) -> Iterator[str]:
        """What the fleet did, in words; only what there was, but corrections, regenerations and restores always."""
        for name, (one, several) in COUNTS.items():
            count = self.counts.get(name, 0)
            if count or name in ("corrected", "regenerated", "restored"):
                yield f"{count} {one if count == 1 else several}"


def tally_of(
    reports: Mapping[str, PeerReport], made: Mapping[str, Sequence[SoftError]], last: RoundRecord | None
) -> SoftErrorTally:
    """Of what peers have reported, what they have written down of their own errors, and the latest round's record."""
    # A peer that was started again reports of its latest life only; its record has both.
    injected = {peer: report.injected for peer, report in reports.items()}
    for peer, errors in made.items():
        injected[peer] = max(injected.get(peer, 0), len(errors))
    over = {peer: report for peer, report in reports.items() if report.state == "done"}
    # Before the end what has not been found may yet be.
    known = {name: reports if name in ("found", "restored") else over for name in FATES}
    return SoftErrorTally(
        injected=sum(injected.values()),
        fates={name: sum(getattr(report, name) for report in known[name].values()) for name in FATES},
        counts={} if last is None else {name: getattr(last, name) for name in COUNTS},
        undetected={peer: report.undetected for peer, report in over.items() if report.undetected},
    )
