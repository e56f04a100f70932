"""How a job ended: what the summary and the report say."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from edgepeer.fabric.documents import PeerReport, RoundRecord, SoftError
from edgepeer.following.marks import ReportedFault
from edgepeer.following.tally import SoftErrorTally, tally_of
from edgepeer.ids import generation_order
from edgepeer.training.job import Job
from edgepeer.training.split.dense import stored_bytes

__all__ = ["JobResult", "Quality", "Spread"]


class Quality(NamedTuple):
    """How good a model is: one number, by its name."""

    name: Literal["accuracy", "mae", "rmse"]
    value: float

    @classmethod
    def of(cls, told: RoundRecord | PeerReport) -> Quality | None:
        """What a peer has measured: accuracy, or where numbers are learned their mean absolute error."""
        for name in ("accuracy", "mae"):
            if (value := getattr(told, name)) is not None:
                return cls(name, value)
        return None

    def __str__(self) -> str:
        return f"{self.value:.4f}" if self.name == "accuracy" else f"{self.value:.4g}"


class Spread(NamedTuple):
    """Where a number lies over many rounds."""

    median: float | None
    p95: float | None

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Of the values; None where there are none."""
        import numpy as np

        taken = list(values)
        if not taken:
            return cls(None, None)
        median, p95 = np.percentile(taken, (50, 95))
        return cls(float(median), float(p95))


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """A job that at least one peer finished."""

    job: Job
    broker: str
    """embedded, mosquitto or a URL without password."""
    reports: Mapping[str, PeerReport]
    """The last report of every peer that took part, in tree order."""
    records: tuple[RoundRecord, ...]
    """The rounds, in order; there are gaps where telemetry was lost."""
    missing: tuple[str, ...]
    """Peers that were still in at the end but did not report; and those of the last round that never have."""
    quality: Quality | None
    """How good the model is on the test samples; None if that is not known."""
    loss: float | None
    """Mean loss on the test samples, or of the last batches if nothing was held out."""
    rmse: float | None = None
    """Root of the mean squared error on the test samples, where numbers are learned."""
    faults: tuple[ReportedFault, ...] = ()
    """What was broken on purpose, in the order in which it was."""
    paths: Mapping[int, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    """What links ran over when a round ended ("direct", "via x", "via x+y", "relay"), and whose, as far as that is
    known: of peers on this machine, else of the coordinator."""
    made: Mapping[str, tuple[SoftError, ...]] = field(default_factory=dict)
    """Soft errors by the peer that made them on purpose: of peers on this machine."""
    thinned: int = 0
    """How many rounds had a record that was not kept: of a very long job there are too many."""

    again: frozenset[str] = frozenset()
    """Peers that took part and were started again: what they have counted before is not known."""

    def detours(self, number: int) -> tuple[str, ...]:
        """What links ran over in a round, where that was not a connection of their own."""
        return tuple(path for path in self.paths.get(number, ()) if path != "direct")

    @property
    def diverged(self) -> int | None:
        """The first round whose loss was not finite, as far as peers and records say; None: there was none."""
        told = [report.diverged for report in self.reports.values() if report.diverged]
        seen = [record.round for record in self.records if not math.isfinite(record.loss)]
        last = [self.rounds] if self.loss is not None and not math.isfinite(self.loss) else []
        return min([*told, *seen, *last], default=None)

    @property
    def rounds(self) -> int:
        """How many rounds were done: as many as the job has, unless it ended early."""
        return max(report.round for report in self.reports.values() if report.state == "done")

    @property
    def done(self) -> tuple[str, ...]:
        """Peers that finished the job, in tree order."""
        return tuple(peer for peer, report in self.reports.items() if report.state == "done")

    @property
    def failed(self) -> tuple[str, ...]:
        """Peers that could not go on."""
        return tuple(peer for peer, report in self.reports.items() if report.state == "failed")

    @property
    def lost(self) -> tuple[str, ...]:
        """Peers that took part and were gone before the end."""
        others = {*self.done, *self.failed, *self.missing, *self.late}
        return tuple(peer for peer in self.reports if peer not in others)

    @property
    def late(self) -> tuple[str, ...]:
        """Peers that were still getting ready to join when the others had finished."""
        starting = (peer for peer, report in self.reports.items() if report.state == "starting")
        return tuple(peer for peer in starting if peer not in self.missing)

    @property
    def digests(self) -> dict[str, str]:
        """Digest of the final parameters of every peer that finished, as hex."""
        return {peer: self.reports[peer].digest for peer in self.done}

    @property
    def identical(self) -> bool:
        """Whether all peers that finished hold the same bits."""
        return len(set(self.digests.values())) == 1 and "" not in self.digests.values()

    @property
    def bytes_sent(self) -> dict[str, int]:
        """Bytes sent to other peers, by every peer that finished and was never started again: the others did not count
        to the end, or not from the beginning."""
        return {peer: self.reports[peer].bytes_sent for peer in self.done if peer not in self.again}

    @property
    def computed(self) -> float | None:
        """How many samples went through the model for each one that counts: 1 without a code.

        By the peers that finished; None if it is not known for how many, or if others have computed some of them, who
        did not count to the end; and of split jobs, in which each batch goes through parts of the model.
        """
        counted = sum(record.samples for record in self.records)
        if self.job.split or self.unreported or self.thinned or not counted:
            return None
        if self.again or not {*self.done}.issuperset(peer for record in self.records for peer in record.contributors):
            return None
        return sum(self.reports[peer].samples for peer in self.done) / counted

    @property
    def tally(self) -> SoftErrorTally:
        """Of a split job, what became of wrong numbers."""
        return tally_of(self.reports, self.made, self.records[-1] if self.records else None)

    @property
    def held(self) -> dict[str, int]:
        """Of a split job, what each peer that finished stores of the model, in bytes."""
        return {peer: self.reports[peer].held_bytes for peer in self.done if self.job.split}

    @property
    def whole(self) -> int:
        """Of a split job: what the model and its optimizer take undivided, in bytes."""
        return stored_bytes(self.job, max(report.parameters for report in self.reports.values()))

    @property
    def approximate(self) -> tuple[RoundRecord, ...]:
        """Coded rounds whose sum was not exact."""
        return tuple(record for record in self.records if record.chunks and not record.exact)

    @property
    def view_epochs(self) -> int:
        """Under how many views rounds were done."""
        return len({(record.generation, record.epoch) for record in self.records})

    @property
    def generations(self) -> tuple[str, ...]:
        """In which generations rounds were done, oldest first: more than one where most of the fleet was lost."""
        return tuple(sorted({record.generation for record in self.records} - {""}, key=generation_order))

    @property
    def unreported(self) -> int:
        """How many rounds of the job have no record, because the broker was away or telemetry was lost."""
        return max(0, self.rounds - len(self.records) - self.thinned)

    @property
    def round_seconds(self) -> Spread:
        """Time of a whole round: gradients, sum and step."""
        return Spread.of(record.seconds for record in self.records)

    @property
    def allreduce_seconds(self) -> Spread:
        """Time of the sum alone."""
        return Spread.of(record.allreduce_seconds for record in self.records)
