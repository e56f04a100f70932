"""Split jobs as a user sees them: what peers hold, which numbers were wrong, and what became of them."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from stage import DEADLINE_S, scene_of
from told import PEERS, Told

from edgepeer.cli.outcome import conclude
from edgepeer.emulation.display import PlainDisplay
from edgepeer.emulation.faults.injector import Injector
from edgepeer.emulation.faults.texts import read
from edgepeer.emulation.jobs import make_job
from edgepeer.emulation.panels import job_panel
from edgepeer.emulation.progress import Progress
from edgepeer.emulation.report import write_report
from edgepeer.emulation.result import JobResult
from edgepeer.emulation.saving import ModelSaver
from edgepeer.emulation.texts import headline, progress_line, summary
from edgepeer.errors import ConfigError, JobError
from edgepeer.fabric.documents import RoundRecord, SoftError
from edgepeer.settings import EmulateSettings
from edgepeer.training.job import Job


class Divided(Told):
    """The same three peers, of which two hold a cell each; one makes errors."""

    job = Job(id="j1", rounds=10, wait_for=3, split="none:m=2,n=1", optimizer="sgd", model="mlp-plain")

    def counted(self, number: int, **counts: int) -> RoundRecord:
        return self.record(number, corrected=number // 2, regenerated=number // 3, **counts)

    def error(self, number: int, **fields: object) -> SoftError:
        given = {"node": 1, "step": "update 0", "place": "stored", "kind": "flip"} | fields
        return SoftError(round=number, **given)  # type: ignore[arg-type]


@pytest.fixture
def told() -> Divided:
    return Divided()


@pytest.fixture
def running(told: Divided) -> Progress:
    progress = Progress(told.job, broker="embedded")
    for peer in PEERS:
        progress.see_presence(peer, told.presence(peer))
        progress.see_report(told.report(peer, "running", round=0, digest=""))
    progress.see_view(told.view())
    for number in range(1, 8):
        progress.see_telemetry(told.telemetry(told.counted(number)))
    return progress


def logged(told: Divided, progress: Progress, peer: str, number: int, *errors: SoftError) -> None:
    progress.see_logged([msgspec.structs.replace(told.logged(peer, told.counted(number)), made=errors)])


def ended(told: Divided, progress: Progress, **of_birch: int) -> JobResult:
    for number in range(8, 11):
        progress.see_telemetry(told.telemetry(told.counted(number)))
    parts = {"held_bytes": 900, "parameters": 450}
    progress.see_report(told.report("ash", cell=0, **parts))
    progress.see_report(told.report("birch", cell=1, **parts, **of_birch))
    progress.see_report(told.report("cedar", parameters=450, held_bytes=0))
    return progress.result()


def rows(result: JobResult) -> list[tuple[str, str, bool]]:
    return list(summary(result))


def test_while_it_runs(told: Divided, running: Progress) -> None:
    assert headline(running) == ("job j1: mlp-plain on digits, sgd 0.1, batch 50, split none:m=2,n=1 (adversarial)")
    assert "soft errors" not in progress_line(running)
    logged(told, running, "birch", 4, told.error(3), told.error(4))
    logged(told, running, "birch", 5, told.error(5))
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


def test_at_the_end(told: Divided, running: Progress) -> None:
    logged(told, running, "birch", 4, told.error(3), told.error(4), told.error(4), told.error(4))
    result = ended(told, running, injected=4, found=2, restored=1, harmless=1)
    assert ("split none:m=2,n=1", "2 peers hold 900 B at most of 1.8 kB", True) in rows(result)
    said = "4 made on purpose: 2 found, 1 undone by a restore, 1 lost in rounding, 0 undetected"
    assert ("soft errors", said, True) in rows(result)
    assert ("", "5 lines corrected, 3 blocks regenerated, 0 restores", True) in rows(result)
    assert any(what.startswith("state bit-identical on all 3") for what, _, _ in rows(result))


def test_who_was_killed_can_not_say_what_became_of_its_errors(told: Divided, running: Progress) -> None:
    logged(told, running, "birch", 4, *(told.error(4) for _ in range(5)))
    result = ended(told, running, injected=2, found=2)  # it was started again
    assert ("soft errors", "5 made on purpose: 2 found, 0 undetected, 3 gone with killed peers", True) in rows(result)
    assert result.tally.gone == 3


def test_why_nothing_goes_on(told: Divided, running: Progress) -> None:
    for peer in ("ash", "birch"):
        running.see_report(told.report(peer, "running", round=7, digest="", error="2 peers are there, too few"))
    assert list(running.notes) == ["waiting: 2 peers are there, too few"]
    assert running.trouble() == "round 7 of 10: 2 peers are there, too few"
    for peer in ("ash", "birch"):
        running.see_report(told.report(peer, "running", round=7, digest=""))
    assert running.trouble() == "round 7 of 10, waiting for ash, birch, cedar"


def test_nothing_made_on_purpose(told: Divided, running: Progress) -> None:
    assert ("soft errors", "none made on purpose", True) in rows(ended(told, running))


def test_an_error_that_nobody_has_found_is_a_failure(
    told: Divided, running: Progress, capsys: pytest.CaptureFixture[str]
) -> None:
    result = ended(told, running, injected=3, found=1, undetected=2)
    assert ("soft errors", "3 made on purpose: 1 found, 2 undetected", False) in rows(result)
    display, saver = PlainDisplay(io.StringIO()), ModelSaver(EmulateSettings())
    assert conclude(result, display, report=None, saver=saver) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("edgepeer: job j1: nobody has found 2 soft errors (2 of birch): weights may be wrong; try ")
    fine = Progress(told.job, broker="embedded")
    assert conclude(ended(told, fine, injected=3, found=3), display, report=None, saver=saver) == 0


def test_report(told: Divided, running: Progress, tmp_path: Path) -> None:
    logged(told, running, "birch", 4, told.error(3))
    write_report(tmp_path, ended(told, running, injected=2, found=1, harmless=1))
    report = json.loads((tmp_path / "report.json").read_text())
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


class Playing:
    """A split job of ten rounds with flips."""

    def __init__(self, told: Divided, progress: Progress, *flips: str) -> None:
        self.told, self.progress = told, progress
        self._ended = asyncio.Event()
        self._seen = asyncio.Event()
        plan = [read("flip", text) for text in flips]
        self.injector = Injector(plan, scene_of(), progress, refresh=self._seen.set, clock=lambda: 0.0)

    async def look(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            for _ in range(3):
                self._seen.clear()
                await self._seen.wait()

    async def job(self) -> JobResult:
        async with asyncio.timeout(DEADLINE_S):
            await self._ended.wait()
        return ended(self.told, self.progress, injected=1, found=1)

    def end(self) -> None:
        self._ended.set()


async def test_flips_are_confirmed_by_the_peers_own_records(told: Divided, running: Progress) -> None:
    play = Playing(told, running, "1@3", "1@9:kind=nan,place=product")
    following = asyncio.create_task(play.injector.accompany(play.job()))
    await play.look()
    assert list(running.notes) == []
    logged(told, running, "birch", 5, told.error(3, place="product"), told.error(2), told.error(3, node=0))
    await play.look()
    assert list(running.notes) == [], "another place, another round, another node"
    logged(told, running, "birch", 6, told.error(3))
    await play.look()
    assert list(running.notes) == ["round 8, 0.0 s: flip error in node 1 (birch), stored"]
    running.see_telemetry(told.telemetry(told.counted(8)))
    await play.look()
    logged(told, running, "cedar", 10, told.error(9, kind="nan", place="product", step="forward 1"))
    play.end()
    result = await following
    assert [(fault.target, fault.first_round, fault.last_round) for fault in result.faults] == [
        ("node 1 (birch)", 3, 3),
        ("node 1 (cedar)", 9, 9),
    ]
    assert result.faults[1].confirmed == {"peer": "cedar", "round": 9, "step": "forward 1"}
    assert ("", "nan error in node 1 (cedar), product: round 9", True) in rows(result)
    assert "cedar's own record, at forward 1" in (write_table(result))


def write_table(result: JobResult) -> str:
    from edgepeer.emulation.fault_table import fault_table

    return fault_table(result)


async def test_a_flip_that_nobody_has_made_fails_the_run(told: Divided, running: Progress) -> None:
    play = Playing(told, running, "1@3")
    following = asyncio.create_task(play.injector.accompany(play.job()))
    await play.look()
    logged(told, running, "birch", 5, told.error(4))
    play.end()
    with pytest.raises(BaseExceptionGroup) as caught:
        await following
    error = caught.value.exceptions[0]
    assert isinstance(error, JobError)
    assert str(error) == ("fault flip 1@3 was not confirmed: no peer says that it was node 1 in round 3 and did that")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"soft_errors": "p=0.1"}, "soft_errors = p=0.1: only split jobs have them: add --split"),
        ({"soft_errors": "p=1.5", "split": "none"}, "soft errors: p = 1.5 is no probability"),
        ({"soft_errors": "p=-1", "split": "none"}, "soft errors: p = -1.0 is no probability"),
        ({"soft_errors": "q=1", "split": "none"}, "there are p, steps and kind, not 'q'"),
        ({"soft_errors": "steps=O4", "split": "none"}, "steps are O1+O2+O3+encoding"),
        ({"soft_errors": "kind=loud", "split": "none"}, "kind is sparse, garbage, flip, nan, not 'loud'"),
    ],
)
def test_errors_that_can_not_be_made(fields: dict[str, str], said: str) -> None:
    settings = dict.fromkeys(["optimizer"], "sgd") | {"model": "mlp-plain", "learning_rate": 0.1, "peers": 20} | fields
    with pytest.raises(ConfigError) as caught:
        make_job(EmulateSettings(**settings), wait_for=20)  # type: ignore[arg-type]
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_dataclasses_of_no_use_are_not_told(told: Divided, running: Progress) -> None:
    """A job that isn't split says nothing of splits."""
    plain = Progress(Told.job, broker="embedded")
    result = dataclasses.replace(ended(told, running), job=Told.job)
    assert not any("split" in what or "soft" in what for what, _, _ in rows(result))
    assert "split" not in headline(plain)
