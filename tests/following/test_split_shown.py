"""Split jobs as a user sees them: what peers hold, which numbers were wrong, and what became of them."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from told import Divided, Told

from edgepeer.cli.outcome import conclude
from edgepeer.following.display import PlainDisplay
from edgepeer.following.panels import job_panel
from edgepeer.following.progress import JobProgress
from edgepeer.following.report import write_report
from edgepeer.following.result import JobResult
from edgepeer.following.saving import ModelSaver
from edgepeer.following.texts import headline, progress_line, summary
from edgepeer.settings import EmulateSettings


@pytest.fixture
def told() -> Divided:
    return Divided()


@pytest.fixture
def running(told: Divided) -> JobProgress:
    return told.running()


def rows(result: JobResult) -> list[tuple[str, str, bool]]:
    return list(summary(result))


def test_while_it_runs(told: Divided, running: JobProgress) -> None:
    assert headline(running) == ("job j1: mlp-plain on digits, sgd 0.1, batch 50, split none:m=2,n=1 (adversarial)")
    assert "soft errors" not in progress_line(running)
    told.see_made(running, "birch", 4, told.error(3), told.error(4))
    told.see_made(running, "birch", 5, told.error(5))
    assert progress_line(running).startswith("round 7/10  3 soft errors, 0 found or undone  loss ")
    parts = {"round": 5, "digest": "", "held_bytes": 900, "parameters": 450}
    running.see_report(told.report("birch", "running", **parts, injected=3, found=1, undetected=2))
    assert progress_line(running).startswith("round 7/10  3 soft errors, 1 found or undone  loss ")
    console = Console(record=True, width=110, file=io.StringIO(), force_terminal=True)
    console.print(job_panel(running, elapsed=3.2))
    text = console.export_text()
    for part in (
        "900 B at most of 1.8 kB",
        "3 made on purpose, 1 found",
        "3 lines corrected",
        "2 blocks regenerated",
        "0 restores",
    ):
        assert part in text
    assert "scrub" not in text, "what there was none of isn't told"


def test_at_the_end(told: Divided, running: JobProgress) -> None:
    told.see_made(running, "birch", 4, told.error(3), told.error(4), told.error(4), told.error(4))
    result = told.ended(running, injected=4, found=2, restored=1, harmless=1)
    assert ("split none:m=2,n=1", "2 peers hold 900 B at most of 1.8 kB", True) in rows(result)
    said = "4 made on purpose: 2 found, 1 undone by a restore, 1 lost in rounding, 0 undetected"
    assert ("soft errors", said, True) in rows(result)
    assert ("", "5 lines corrected, 3 blocks regenerated, 0 restores", True) in rows(result)
    assert any(what.startswith("state bit-identical on all 3") for what, _, _ in rows(result))


def test_who_was_killed_can_not_say_what_became_of_its_errors(told: Divided, running: JobProgress) -> None:
    told.see_made(running, "birch", 4, *(told.error(4) for _ in range(5)))
    result = told.ended(running, injected=2, found=2)  # it was started again
    assert ("soft errors", "5 made on purpose: 2 found, 0 undetected, 3 gone with killed peers", True) in rows(result)
    assert result.tally.gone == 3


def test_why_nothing_goes_on(told: Divided, running: JobProgress) -> None:
    for peer in ("ash", "birch"):
        running.see_report(told.report(peer, "running", round=7, digest="", error="2 peers are there, too few"))
    assert list(running.notes) == ["waiting: 2 peers are there, too few"]
    assert running.trouble() == "round 7 of 10: 2 peers are there, too few"
    for peer in ("ash", "birch"):
        running.see_report(told.report(peer, "running", round=7, digest=""))
    assert running.trouble() == "round 7 of 10, waiting for ash, birch, cedar"


def test_nothing_made_on_purpose(told: Divided, running: JobProgress) -> None:
    assert ("soft errors", "none made on purpose", True) in rows(told.ended(running))


def test_an_error_that_nobody_has_found_is_a_failure(
    told: Divided, running: JobProgress, capsys: pytest.CaptureFixture[str]
) -> None:
    result = told.ended(running, injected=3, found=1, undetected=2)
    assert ("soft errors", "3 made on purpose: 1 found, 2 undetected", False) in rows(result)
    display, saver = PlainDisplay(io.StringIO()), ModelSaver(EmulateSettings())
    assert conclude(result, display, report=None, saver=saver) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "edgepeer: job j1: nobody has found 2 soft errors (2 of birch): weights may be wrong; "
        "try a split that looks for them: codenet:m=2,n=2,t=1"
    )
    for split, better in (("abft:m=1,n=2", "a split that looks"), ("replicate:m=1,n=1,copies=2", "peers to spare")):
        other = dataclasses.replace(result, job=msgspec.structs.replace(result.job, split=split))
        assert conclude(other, display, report=None, saver=saver) == 1
        assert f"weights may be wrong; try {better}" in capsys.readouterr().err
    fine = JobProgress(told.job, broker="embedded")
    assert conclude(told.ended(fine, injected=3, found=3), display, report=None, saver=saver) == 0


def test_report(told: Divided, running: JobProgress, tmp_path: Path) -> None:
    told.see_made(running, "birch", 4, told.error(3))
    write_report(tmp_path, told.ended(running, injected=2, found=1, harmless=1))
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["computed"] is None
    assert report["split"] == {
        "split": "none:m=2,n=1",
        "guarantee": "adversarial",
        "scrub_every": 10,
        "model_bytes": 1800,
        "held_bytes_per_peer": {"ash": 900, "birch": 900, "cedar": 0},
        "cells": {"ash": 0, "birch": 1, "cedar": -1},
        "injected": 2,
        "found": 1,
        "reverted": 0,
        "harmless": 1,
        "undetected": 0,
        "gone": 0,
        "corrected": 5,
        "erased": 0,
        "unchecked": 0,
        "damaged": 0,
        "odd": 0,
        "regenerated": 3,
        "scrubbed": 0,
        "restores": 0,
        "errors": [
            {"peer": "birch", "round": 3, "node": 1, "step": "update 0", "place": "stored", "kind": "flip"},
        ],
    }
    assert report["rounds_detail"][5]["corrected"] == 3
    assert report["rounds_detail"][5]["restored"] == 0


def test_dataclasses_of_no_use_are_not_told(told: Divided, running: JobProgress) -> None:
    """A job that isn't split says nothing of splits."""
    plain = JobProgress(Told.job, broker="embedded")
    result = dataclasses.replace(told.ended(running), job=Told.job)
    assert not any("split" in what or "soft" in what for what, _, _ in rows(result))
    assert "split" not in headline(plain)
