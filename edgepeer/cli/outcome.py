"""The end of a job on the command line: summary, report and exit code, alike for `train` and `emulate`."""

from __future__ import annotations

import sys
from pathlib import Path

from edgepeer.cli.verb import FAILED
from edgepeer.following.display import Display
from edgepeer.following.report import write_report
from edgepeer.following.result import JobResult
from edgepeer.following.saving import ModelSaver
from edgepeer.printable import one_line

__all__ = ["conclude"]


def conclude(result: JobResult, display: Display, *, report: Path | None, saver: ModelSaver) -> int:
    """Show how the job ended, write the report; returns the exit code.

    A job counts as failed when its loss was not finite, when its peers hold different parameters, when soft errors
    that were made on purpose have stayed in it, when its model could not be saved, or when so many of them could not do
    it that fewer finished than it asked for. That peers left or were lost on the way is what edgepeer is made for.
    """
    display.summarise(result)
    if report is not None:
        for path in write_report(report, result):
            print(f"wrote {path}")
    if saver.saved is not None:
        print(f"wrote {saver.saved}")
    short = bool(result.failed) and len(result.done) < result.job.wait_for
    if short:
        first = result.failed[0]
        error = one_line(" ".join(result.reports[first].error.split()))
        print(
            f"edgepeer: job {result.job.id}: {len(result.failed)} of {len(result.reports)} peers could not do it; "
            f"{first}: {error}",
            file=sys.stderr,
        )
    if result.diverged is not None:
        print(
            f"edgepeer: job {result.job.id}: diverged: the loss is not finite from round {result.diverged} on; try a "
            f"smaller --learning-rate than {result.job.learning_rate:g}, or look at the data",
            file=sys.stderr,
        )
    undetected = result.tally.undetected
    if undetected:
        where = ", ".join(f"{count} of {peer}" for peer, count in undetected.items())
        print(
            f"edgepeer: job {result.job.id}: nobody has found {sum(undetected.values())} soft errors ({where}): "
            f"weights may be wrong; try {_better(result.job.split)}",
            file=sys.stderr,
        )
    if saver.error:
        print(f"edgepeer: job {result.job.id}: {saver.error}", file=sys.stderr)
    good = not short and result.identical and result.diverged is None and not undetected and not saver.error
    return 0 if good else FAILED


def _better(split: str) -> str:
    """In which not all errors are found: some don't look for all of them, others where nobody is missing."""
    if split.partition(":")[0] in ("none", "abft"):
        return "a split that looks for them: codenet:m=2,n=2,t=1"
    return "peers to spare, or a split that makes up for more: with so many missing nobody could look"
