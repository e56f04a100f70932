"""The end of a job on the command line: summary, report and exit code, alike for `train` and `emulate`."""

from __future__ import annotations

import sys
from pathlib import Path

from edgepeer.cli.verb import FAILED
from edgepeer.emulation.display import Display
from edgepeer.emulation.report import write_report
from edgepeer.emulation.result import JobResult

__all__ = ["conclude"]


def conclude(result: JobResult, display: Display, *, report: Path | None) -> int:
    """Show how the job ended, write the report; returns the exit code.

    A job counts as failed when its peers hold different parameters, or when fewer peers finished than it
    asked for.
    """
    display.summarise(result)
    if report is not None:
        for path in write_report(report, result):
            print(f"wrote {path}")
    if not result.enough:
        print(
            f"edgepeer: job {result.job.id}: only {len(result.done)} of the {result.job.wait_for} peers "
            "that it asked for finished it",
            file=sys.stderr,
        )
    return 0 if result.identical and result.enough else FAILED
