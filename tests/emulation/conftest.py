"""A small job of three peers, as its fabric tells of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from told import PEERS, Told

from edgepeer.emulation.progress import Progress


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def running(told: Told) -> Progress:
    """All peers are in and work; seven of ten rounds are done."""
    progress = Progress(told.job, broker="embedded")
    for peer in PEERS:
        progress.see_presence(peer, told.presence(peer))
        progress.see_report(told.report(peer, "running", round=0, digest=""))
    progress.see_view(told.view())
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
