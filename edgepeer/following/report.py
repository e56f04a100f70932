"""What a run leaves behind: report.json for programs and report.png for people; of faults also a plot and tables."""

from __future__ import annotations

import csv
import io
import logging
import tempfile
from pathlib import Path
from typing import Any, Final

import msgspec

from edgepeer.errors import ConfigError, EdgepeerError
from edgepeer.following.fault_table import fault_table
from edgepeer.following.marks import labels_in
from edgepeer.following.result import JobResult
from edgepeer.following.tally import COUNTS
from edgepeer.training.checkpoint import write_atomically

__all__ = ["prepare_report", "report_fields", "write_report"]

_log = logging.getLogger(__name__)
_PHASES: Final = ("compute", "waited", "broadcast", "decided")
"""Of a round, as its coordinator measured them; see RoundRecord."""


def prepare_report(directory: Path) -> None:
    """Make the directory and check that files can be written there: before a run, not after it.

    Raises:
        ConfigError: they can't.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise ConfigError(f"report = {directory}: can't write there: {error.strerror or error}") from error


def write_report(directory: Path, result: JobResult) -> list[Path]:
    """Write report.json and, where matplotlib is installed, report.png; returns the files written.

    Where something was broken on purpose also rounds.csv, faults.md and faults.png.

    Raises:
        EdgepeerError: the directory can't be written to any more.
    """
    try:
        text = msgspec.json.format(msgspec.json.encode(report_fields(result)), indent=2)
        written = [_replace(directory / "report.json", text + b"\n")]
        if result.faults:
            written.append(_replace(directory / "rounds.csv", _rounds_csv(result).encode()))
            written.append(_replace(directory / "faults.md", fault_table(result).encode()))
        try:
            from edgepeer.following.plot import faults_png, plot_png
        except ImportError as error:
            _log.error("no report.png: it needs matplotlib: pip install 'edgepeer[plot]' (%s)", error)
            return written
        written.append(_replace(directory / "report.png", plot_png(result)))
        if result.faults:
            written.append(_replace(directory / "faults.png", faults_png(result)))
        return written
    except OSError as error:
        raise EdgepeerError(f"report {directory}: can't be written: {error.strerror or error}") from error


def report_fields(result: JobResult) -> dict[str, Any]:
    """The content of report.json. Numbers that are not finite become null."""
    found: dict[str, float | None] = {"accuracy": None}
    if result.quality is not None:
        found = {result.quality.name: result.quality.value}
    if result.rmse is not None:
        found["rmse"] = result.rmse
    return {
        "job": result.job.id,
        "peers": len(result.reports),
        "rounds": result.rounds,
        "trainer": result.job.trainer,
        "dataset": result.job.dataset,
        "broker": result.broker,
        "code": result.job.code,
        "wait": result.job.wait,
        "precision": result.job.precision,
        "computed": result.computed,
        "final": {**found, "loss": result.loss},
        "diverged": result.diverged,
        "round_seconds": result.round_seconds._asdict(),
        "allreduce_seconds": result.allreduce_seconds._asdict(),
        "bytes_sent_per_peer": result.bytes_sent,
        "parameter_digests": result.digests,
        **({"split": _split_fields(result)} if result.job.split else {}),
        "view_epochs": result.view_epochs,
        "generations": result.generations,
        "rounds_detail": [
            {
                "round": record.round,
                "generation": record.generation,
                "epoch": record.epoch,
                "seconds": record.seconds,
                "phases": {name: getattr(record, f"{name}_seconds") for name in _PHASES},
                "contributors": record.contributors,
                "exact": record.exact,
                "chunks": record.chunks,
                "chunks_covered": record.covered,
                "error": record.error,
                "precision": record.precision,
                **({name: getattr(record, name) for name in COUNTS} if result.job.split else {}),
                "paths": result.paths.get(record.round, {}),
                "faults": labels_in(record.round, result.faults),
            }
            for record in result.records
        ],
        "faults": [fault.fields for fault in result.faults],
    }


def _split_fields(result: JobResult) -> dict[str, Any]:
    """What a split job is made of, and what was wrong in it."""
    tally = result.tally
    return {
        "split": result.job.split,
        "guarantee": result.job.guarantee,
        "scrub_every": result.job.scrub_every,
        "model_bytes": result.whole,
        "held_bytes_per_peer": result.held,
        "cells": {peer: result.reports[peer].cell for peer in result.done},
        "injected": tally.injected,
        **{("reverted" if name == "restored" else name): count for name, count in tally.fates.items()},
        "gone": tally.gone,
        **{("restores" if name == "restored" else name): count for name, count in tally.counts.items()},
        "errors": [
            {"peer": peer, **msgspec.structs.asdict(error)}
            for peer, error in sorted(
                ((peer, error) for peer, errors in result.made.items() for error in errors),
                key=lambda each: (each[1].round, each[1].node),
            )
        ],
    }


def _rounds_csv(result: JobResult) -> str:
    """A line a round, for spreadsheets."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    times = ["seconds", "allreduce_seconds", *(f"{phase}_seconds" for phase in _PHASES)]
    counts = [name for name in COUNTS if result.job.split]
    table.writerow(["round", *times, "contributors", "exact", "covered", "error", "paths", "faults", *counts])
    for record in result.records:
        seconds = [f"{getattr(record, name):.6f}" for name in times]
        paths = "; ".join(result.paths.get(record.round, ()))
        faults = "; ".join(labels_in(record.round, result.faults))
        numbers = [record.round, *seconds, len(record.contributors)]
        told = [getattr(record, name) for name in counts]
        table.writerow(
            [*numbers, str(record.exact).lower(), record.covered, f"{record.error:.6g}", paths, faults, *told]
        )
    return text.getvalue()


def _replace(path: Path, content: bytes) -> Path:
    # Whoever reads the report meanwhile finds the old one or the new one, never half of one.
    write_atomically(path, content, mode=0o666)  # as any file that somebody asks for
    return path
