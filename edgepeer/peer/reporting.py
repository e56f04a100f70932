"""What is told of every round: to this device's log, record and metrics, and to whoever follows the job.

Records for the followers go in batches, so that fast rounds don't flood the broker.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

from edgepeer.fabric.documents import MAX_ERROR_CHARS, MAX_RECORDS, PeerReport, RoundRecord, SoftError, Telemetry
from edgepeer.fabric.inbox import LIMIT_BYTES
from edgepeer.fabric.topics import Group
from edgepeer.peer.api import Peer
from edgepeer.peer.metrics import Metrics
from edgepeer.peer.outcome import Outcome
from edgepeer.peer.round_log import RoundLog
from edgepeer.training.job import Job
from edgepeer.training.trainer import Evaluation

__all__ = ["RoundReporter"]

_log = logging.getLogger(__name__)

EVERY_S: Final = 0.25
REPORT_EVERY_S: Final = 10.0
"""While rounds go by, where this device stands is said again after so long: `status` shows it."""
_MOST_BYTES: Final = LIMIT_BYTES[Group.TELEMETRY] - 1024
"""Of a batch."""


class RoundReporter:
    """Of one device in one job. The coordinator's records go to the followers, after at most EVERY_S seconds."""

    def __init__(self, peer: Peer, job: Job, round_log: RoundLog, metrics: Metrics) -> None:
        self._peer = peer
        self._job = job
        self._round_log = round_log
        self._metrics = metrics
        metrics.begun()
        self._before = dataclasses.replace(peer.traffic)
        self._records: list[RoundRecord] = []
        self._bytes = 0
        """No fewer than these take."""
        self._timer: asyncio.TimerHandle | None = None
        self._state = ""
        """What was reported last, and when."""
        self._reported_at = float("-inf")

    @property
    def report_due(self) -> bool:
        """Whether where this device stands was said long ago."""
        return time.monotonic() - self._reported_at >= REPORT_EVERY_S

    def committed(
        self,
        outcome: Outcome,
        *,
        chunks: int = 0,
        seconds: float,
        compute_seconds: float,
        loss: float,
        evaluation: Evaluation | None,
        coordinator: bool,
        counts: Mapping[str, int] = MappingProxyType({}),
        made: tuple[SoftError, ...] = (),
    ) -> None:
        """A round is over, and its mean applied.

        Args:
            chunks: in how many the data are, if the round was coded.
            seconds: from the end of the round before.
            counts: of a split job, by the names of the record's fields.
            made: soft errors that this device has made on purpose since the round before.
        """
        phases = outcome.phases
        record = RoundRecord(
            round=outcome.round,
            generation=outcome.generation,
            epoch=outcome.epoch,
            seconds=seconds,
            allreduce_seconds=outcome.seconds,
            compute_seconds=compute_seconds,
            contributors=outcome.contributors,
            exact=outcome.exact,
            loss=loss,
            **{name: getattr(evaluation, name) for name in ("accuracy", "mae", "rmse") if evaluation is not None},
            paths=tuple(sorted({*outcome.paths} - {""})),
            waited_seconds=phases.waited_s,
            broadcast_seconds=phases.broadcast_s,
            decided_seconds=phases.decided_s,
            samples=max(0.0, outcome.weight),
            chunks=chunks,
            covered=len(outcome.chunks),
            error=outcome.error,
            precision=outcome.precision,
            **counts,
        )
        self._round_log.add(record, job=self._job.id, peer=self._peer.id, coordinator=coordinator, made=made)
        self._metrics.committed(outcome, compute_seconds)
        self._metrics.learned(loss, evaluation, leads=coordinator)
        if chunks and not outcome.exact and coordinator:
            missing = sorted(set(range(chunks)) - {*outcome.chunks})
            fields = {"job": self._job.id, "round": record.round, "missing": missing, "error": record.error}
            _log.info(
                "round %d is approximate: %d of %d chunks are whole in the sum (not %s), error %.3g",
                *(record.round, record.covered, chunks, _briefly(map(str, missing)), record.error),
                extra={"fields": fields},
            )
        if _log.isEnabledFor(logging.DEBUG):
            self._tell(record)
        if coordinator:
            size = _size(record)
            if self._bytes + size > _MOST_BYTES:
                self._send()
            self._records.append(record)
            self._bytes += size
            if len(self._records) >= MAX_RECORDS:
                self._send()
            elif self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._send)

    def report(
        self,
        state: Literal["starting", "running", "done", "failed"],
        *,
        error: str,
        round_: int,
        digest: str,
        parameters: int,
        samples: int,
        evaluation: Evaluation | None,
        coordinator: bool,
        diverged: int,
        split: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Tell where this device stands in the job; see PeerReport. `split`: its fields that split jobs have."""
        self._reported_at = time.monotonic()
        if state != self._state:
            self._state = state
            self._log_state(state, round_)
        traffic, before = self._peer.traffic, self._before
        report = PeerReport(
            job=self._job.id,
            peer=self._peer.id,
            state=state,
            error=error[:MAX_ERROR_CHARS],
            round=round_,
            digest=digest,
            parameters=parameters,
            samples=samples,
            bytes_sent=traffic.bytes_sent - before.bytes_sent,
            bytes_received=traffic.bytes_received - before.bytes_received,
            frames_rejected=traffic.frames_rejected - before.frames_rejected,
            **(evaluation._asdict() if evaluation is not None else {}),
            coordinator=coordinator,
            diverged=diverged,
            generation=str(view.generation) if (view := self._peer.view) is not None else "",
            **split,
        )
        self._peer.fabric.publish_retained(self._peer.fabric.topics.report(self._job.id, self._peer.id), report)

    def _log_state(self, state: str, number: int) -> None:
        """Begin and end of the job. Why it failed is said by who ends it."""
        if state != "failed":
            fields = {"job": self._job.id, "state": state, "round": number}
            after = f" after round {number}" if number else ""
            _log.info("job %s: %s%s", self._job.id, state, after, extra={"fields": fields})

    def close(self) -> None:
        """The job is over. What was said of it is the broker's, and not said again, however many jobs there will be."""
        self._send()
        self._peer.fabric.forget(self._peer.fabric.topics.report(self._job.id, self._peer.id))

    def failed(self, number: int, error: Exception) -> None:
        """A round has ended without a result for this device."""
        self._metrics.aborted()
        fields = {"job": self._job.id, "round": number, "cause": type(error).__name__}
        why = str(error).removeprefix(f"round {number}: ")
        _log.info("round %d: %s", number, why, extra={"fields": fields})

    def _tell(self, record: RoundRecord) -> None:
        _log.debug(
            "round %d: %d counted (%s), %s%s, over %s; computed %.1f ms, waited %.1f, broadcast %.1f, decided %.1f",
            record.round,
            len(record.contributors),
            _briefly(record.contributors),
            "exact" if record.exact else "NOT exact",
            f" ({record.covered} of {record.chunks} chunks, error {record.error:.3g})" if record.chunks else "",
            " and ".join(record.paths) or "no link",
            *(
                1000 * seconds
                for seconds in (
                    record.compute_seconds,
                    record.waited_seconds,
                    record.broadcast_seconds,
                    record.decided_seconds,
                )
            ),
            extra={
                "fields": {
                    "job": self._job.id,
                    **{name: getattr(record, name) for name in RoundRecord.__struct_fields__},
                }
            },
        )

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._records:
            telemetry = Telemetry(job=self._job.id, peer=self._peer.id, records=tuple(self._records))
            self._records.clear()
            self._bytes = 0
            self._peer.fabric.publish_event(self._peer.fabric.topics.telemetry(self._peer.id), telemetry)

    async def flush(self, timeout: float = 5.0) -> None:
        """Send what is there, and give the broker up to `timeout` seconds to take it."""
        self._send()
        await self._peer.fabric.flush(timeout)


def _size(record: RoundRecord) -> int:
    """How many bytes it takes in a document, or more: what names peers may be long, the rest is not."""
    return 1024 + sum(len(text) + 3 for texts in (record.contributors, record.paths) for text in texts)


def _briefly(items: Iterable[str], most: int = 8) -> str:
    every = list(items)
    return ", ".join(every[:most]) + ", ..." * (len(every) > most)
