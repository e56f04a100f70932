"""How a job's end becomes an exit code."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from edgepeer.cli.outcome import conclude
from edgepeer.emulation.display import PlainDisplay
from edgepeer.emulation.progress import Progress
from edgepeer.fabric.documents import PeerReport
from edgepeer.training.job import Job


@pytest.mark.parametrize(
    ("digests", "code", "said"),
    [
        (("ab", "ab"), 0, ""),
        (("ab", "ab", "ab"), 0, ""),
        (("ab", "cd"), 1, ""),
        (("ab",), 1, "edgepeer: job j1: only 1 of the 2 peers that it asked for finished it\n"),
    ],
)
def test_a_job_needs_the_peers_that_it_asked_for_and_equal_parameters(
    digests: tuple[str, ...], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = Progress(Job(id="j1", rounds=3, wait_for=2), broker="embedded")
    for number, digest in enumerate(digests):
        progress.see_report(PeerReport(job="j1", peer=f"p{number}", state="done", round=3, digest=digest))
    display = PlainDisplay(io.StringIO())
    assert conclude(progress.result(), display, report=tmp_path) == code
    assert capsys.readouterr().err == said
    assert (tmp_path / "report.json").is_file(), "also a job that failed has a report"
