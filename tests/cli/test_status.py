"""What `edgepeer status` says of a job's peers."""

from __future__ import annotations

from edgepeer.cli.status import status_fields, status_lines
from edgepeer.emulation.picture import Picture
from edgepeer.fabric.documents import PeerReport
from edgepeer.training.job import Job


def test_only_a_peer_that_has_ended_has_a_round() -> None:
    """Peers report when their state changes, so what a running one said of its round is long past."""
    picture = Picture()
    picture.job = Job(id="j1", trainer="numpy")
    for report in (
        PeerReport(job="j1", peer="ash", state="running"),
        PeerReport(job="j1", peer="birch", state="done", round=200),
        PeerReport(job="j1", peer="cedar", state="failed", round=7, error="no\nmemory"),
        PeerReport(job="j1", peer="daisy", state="starting"),
    ):
        picture.reports[report.job, report.peer] = report
    fields = status_fields(picture, fabric="lab", broker="mqtt://b")
    assert [report["round"] for report in fields["job"]["reports"].values()] == [None, 200, 7, None]
    assert status_lines(fields)[1:6] == [
        "job j1: mlp on digits, numpy, 200 rounds",
        "  ash running",
        "  birch done, round 200",
        "  cedar failed, round 7: no memory",
        "  daisy starting",
    ]
