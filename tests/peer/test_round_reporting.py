"""Every round's outcome is told in full, at the level for those who look for it."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgepeer.errors import BegunAnew, FellBehind
from edgepeer.fabric.documents import Telemetry
from edgepeer.fabric.inbox import LIMIT_BYTES
from edgepeer.fabric.topics import Group, Topics
from edgepeer.ids import PeerId
from edgepeer.peer.metrics import Metrics
from edgepeer.peer.outcome import Outcome, flatten
from edgepeer.peer.reporting import REPORT_EVERY_S, RoundReporter
from edgepeer.peer.round_log import RoundLog
from edgepeer.protocol.effects import Phases
from edgepeer.training.job import new_job
from edgepeer.transport.base import Traffic
from edgepeer.wire.documents import pack, unpack


def outcome(*names: str, exact: bool) -> Outcome:
    vector, shapes = flatten(np.ones(3, np.float32))
    return Outcome(
        round=12,
        generation="2-00c0ffee",
        epoch=4,
        contributors=tuple(map(PeerId, names)),
        exact=exact,
        weight=2.0,
        seconds=0.03,
        digest="",
        paths=("direct", "via c", "direct"),
        phases=Phases(waited_s=0.0101, broadcast_s=0.02, decided_s=0.0005),
        vector=vector,
        shapes=shapes,
    )


@pytest.fixture
def published() -> list[Telemetry]:
    return []


@pytest.fixture
def reporter(published: list[Telemetry]) -> RoundReporter:
    fabric = SimpleNamespace(
        topics=Topics("lab"),
        publish_event=lambda topic, document: published.append(document),
        publish_retained=lambda topic, document: None,
        forget=lambda topic: None,
    )
    peer: Any = SimpleNamespace(id="a", fabric=fabric, traffic=Traffic(), view=None)
    return RoundReporter(peer, new_job(id="j1"), RoundLog(None), Metrics(None))


def commit(reporter: RoundReporter, outcome: Outcome, *, coordinator: bool) -> None:
    reporter.committed(outcome, seconds=0.05, compute_seconds=0.004, loss=0.5, evaluation=None, coordinator=coordinator)


async def test_a_round_is_told_at_debug(
    reporter: RoundReporter, published: list[Telemetry], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="edgepeer")
    for exact, names in ((True, ("a", "b")), (False, tuple(f"p{number}" for number in range(12)))):
        commit(reporter, outcome(*names, exact=exact), coordinator=exact)
    first, second = caplog.records
    assert first.levelno == logging.DEBUG
    assert first.getMessage() == (
        "round 12: 2 counted (a, b), exact, over direct and via c; "
        "computed 4.0 ms, waited 10.1, broadcast 20.0, decided 0.5"
    )
    assert "12 counted (p0, p1, p2, p3, p4, p5, p6, p7, ...), NOT exact" in second.getMessage()
    fields = first.__dict__["fields"]
    assert fields["job"] == "j1"
    assert fields["contributors"] == ("a", "b")
    assert fields["exact"] is True
    assert fields["paths"] == ("direct", "via c")
    assert (fields["waited_seconds"], fields["broadcast_seconds"], fields["decided_seconds"]) == (0.0101, 0.02, 0.0005)
    reporter._send()
    (telemetry,) = published  # only what the coordinator has seen
    assert [record.paths for record in telemetry.records] == [("direct", "via c")]


async def test_rounds_of_many_are_told_in_as_many_batches_as_that_takes(
    reporter: RoundReporter, published: list[Telemetry]
) -> None:
    names = tuple(f"p{number}".ljust(63, "-") for number in range(1000))
    for _ in range(40):
        commit(reporter, outcome(*names, exact=True), coordinator=True)
    reporter.close()
    assert reporter._timer is None
    assert sum(len(telemetry.records) for telemetry in published) == 40
    for telemetry in published:
        unpack(pack(telemetry), Telemetry, limit=LIMIT_BYTES[Group.TELEMETRY])


async def test_a_round_that_was_lost_is_told_at_info(reporter: RoundReporter, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="edgepeer")
    reporter.failed(12, FellBehind("rounds up to 14 were decided without this peer"))
    (record,) = caplog.records
    assert record.getMessage() == "round 12: rounds up to 14 were decided without this peer"
    assert record.__dict__["fields"] == {"job": "j1", "round": 12, "cause": "FellBehind"}
    reporter.failed(13, BegunAnew("round 13: generation 2 has begun"))
    assert caplog.records[-1].getMessage() == "round 13: generation 2 has begun", "its number is said once"


async def test_begin_and_end_of_a_job_are_told_once(
    reporter: RoundReporter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="edgepeer")
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    assert reporter.report_due
    for state, number in (("starting", 0), ("running", 0), ("running", 40), ("done", 200), ("failed", 200)):
        reporter.report(
            state,  # type: ignore[arg-type]  # one of the literals
            error="",
            round_=number,
            digest="",
            parameters=0,
            samples=0,
            evaluation=None,
            coordinator=False,
            diverged=0,
        )
    assert [record.getMessage() for record in caplog.records] == [
        "job j1: starting",
        "job j1: running",
        "job j1: done after round 200",
    ]
    assert not reporter.report_due
    now += REPORT_EVERY_S
    assert reporter.report_due
