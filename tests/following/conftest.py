"""A small job of three peers, as its fabric tells of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from told import PEERS, Told

from edgepeer.following.progress import Progress


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def running(told: Told) -> Progress:
    """All peers are in and work; seven of ten rounds are done."""
    progress = told.running()
    progress.see_telemetry(told.telemetry(*(told.record(number) for number in range(1, 8))))
    return progress


@pytest.fixture
def finish(told: Told) -> Callable[..., Progress]:
    """Lets all peers, or some, end the job."""

    def finished(progress: Progress, *peers: str, **fields: object) -> Progress:
        progress.see_telemetry(told.telemetry(*(told.record(number) for number in range(8, 11))))
        for peer in peers or PEERS:
            progress.see_report(told.report(peer, accuracy=0.97, loss=0.125, **fields))
        return progress

    return finished
