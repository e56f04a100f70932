"""How a job's end becomes an exit code."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from edgepeer.cli.outcome import conclude
from edgepeer.fabric.documents import PeerReport
from edgepeer.following.display import PlainDisplay
from edgepeer.following.progress import JobProgress
from edgepeer.following.saving import ModelSaver
from edgepeer.settings import TrainSettings
from edgepeer.training.job import Job


@pytest.mark.parametrize(
    ("digests", "code", "said"),
    [
        (("ab", "ab"), 0, ""),
        (("ab",), 0, ""),  # the other one was lost on the way
        (("ab", "ab", ""), 0, ""),  # one more than was asked for
        (("ab", "cd"), 1, ""),
        (("ab", ""), 1, "edgepeer: job j1: 1 of 2 peers could not do it; p1: no data\n"),
    ],
)
def test_a_job_fails_where_peers_could_not_do_it_or_differ(
    digests: tuple[str, ...], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = JobProgress(Job(id="j1", rounds=3, wait_for=2), broker="embedded")
    for number, digest in enumerate(digests):
        progress.see_report(
            PeerReport(job="j1", peer=f"p{number}", state="done", round=3, digest=digest)
            if digest
            else PeerReport(job="j1", peer=f"p{number}", state="failed", error="no\ndata")
        )
    display = PlainDisplay(io.StringIO())
    assert conclude(progress.result(), display, report=tmp_path, saver=ModelSaver(TrainSettings())) == code
    assert capsys.readouterr().err == said
    assert (tmp_path / "report.json").is_file(), "also a job that failed has a report"
