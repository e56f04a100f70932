"""What faults cost, as a table for people: the rounds under each, beside clean ones (Padrão 2020, Tables 1 and 2)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Final

from edgepeer.following.marks import ReportedFault, labels_in
from edgepeer.following.texts import briefly, duration

if TYPE_CHECKING:
    from edgepeer.fabric.documents import RoundRecord
    from edgepeer.following.result import JobResult

__all__ = ["fault_table"]

_WARM_UP: Final = 3
"""The first rounds build graphs and open links: they are no measure."""
_ONSET: Final = 3
"""The first round under a fault is the slowest of so many: which of them it hits is a matter of milliseconds."""


def fault_table(result: JobResult) -> str:
    """Markdown: a row a fault, with the rounds before, at its beginning, and later."""
    clean = [
        record
        for record in result.records
        if record.round > _WARM_UP and record.exact and not labels_in(record.round, result.faults)
    ]
    lines = [
        "# Faults",
        "",
        f"{len(result.reports)} peers, {result.job.rounds} rounds; a clean round takes {_seconds(clean)} (median of "
        f"{len(clean)}, the first {_WARM_UP} left out).",
        "",
        "| fault | as asked | rounds | slowest of the first 3 | of which | later rounds, median | not exact | detours "
        "| confirmed by |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for fault in result.faults:
        under = [record for record in result.records if _under(fault, record)]
        onset, later = under[:_ONSET], under[_ONSET:]
        asked = f"`{fault.asked}`".replace("|", "\\|")
        last = "end" if fault.last_round is None else fault.last_round
        slowest = max(onset, key=lambda record: record.seconds, default=None)
        detours = sorted({path for record in under for path in result.detours(record.round)})
        cells = [
            fault.label.replace("|", "\\|"),
            asked,
            f"{fault.first_round} to {last}",
            duration(slowest.seconds if slowest is not None else None),
            _phases(slowest),
            _seconds(later),
            str(sum(not record.exact for record in under)),
            briefly(detours) or "-",
            fault.proof,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _under(fault: ReportedFault, record: RoundRecord) -> bool:
    return bool(labels_in(record.round, [fault]))


def _phases(record: RoundRecord | None) -> str:
    """What the allreduce consisted of, at its root."""
    if record is None:
        return "-"
    return (
        f"waiting {duration(record.waited_seconds)}, broadcast {duration(record.broadcast_seconds)}, "
        f"deciding {duration(record.decided_seconds)}"
    )


def _seconds(records: Sequence[RoundRecord]) -> str:
    return duration(median(record.seconds for record in records) if records else None)
