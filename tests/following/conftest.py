"""A small job of three peers, as its fabric tells of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from told import PEERS, Told

from edgepeer.following.progress import JobProgress


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def running(told: Told) -> JobProgress:
    """All peers are in and work; seven of ten rounds are done."""
    progress = told.running()
    progress.see_telemetry(told.telemetry(*(told.record(number) for number in range(1, 8))))
    return progress


@pytest.fixture
def finish(told: Told) -> Callable[..., JobProgress]:
    """Lets all peers, or some, end the job."""

    def finished(progress: JobProgress, *peers: str, **fields: object) -> JobProgress:
        progress.see_telemetry(told.telemetry(*(told.record(number) for number in range(8, 11))))
        for peer in peers or PEERS:
            progress.see_report(told.report(peer, accuracy=0.97, loss=0.125, **fields))
        return progress

    return finished
