"""What is known of a running job, put together from what its fabric says. No I/O and no clock.

Documents may come late, twice, or in any order (MQTT promises at least once): the state is the same.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec

from edgepeer.errors import JobError
from edgepeer.fabric.documents import PeerReport, Presence, RoundRecord, SoftError, Telemetry
from edgepeer.following.marks import Marks
from edgepeer.following.result import JobResult, Quality
from edgepeer.following.tally import SoftErrorTally, tally_of
from edgepeer.ids import generation_order
from edgepeer.peer.round_log import LoggedRound
from edgepeer.printable import one_line
from edgepeer.topology.view import View
from edgepeer.training.job import Job

__all__ = ["KEPT_ROUNDS", "NOT_PASSED_ON", "JobProgress", "PeerState"]

PeerState = Literal["gone", "joined", "starting", "running", "done", "failed"]

_NOTES: Final = 200
_RECENT: Final = 20
"""Over how many rounds the speed is taken."""
KEPT_ROUNDS: Final = 20_000
"""Of a job with more, all of the latest half are kept, and of the earlier ones every second, fourth, eighth ..."""
_SHARED: Final = 4096
NOT_PASSED_ON: Final = (
    "the broker has taken the job, and passes it on to nobody: do its rules let you write it, or does it limit how "
    "long packets may be?"
)
"""Brokers acknowledge that, too."""


class JobProgress:
    """One job as seen from outside."""

    def __init__(self, job: Job, *, broker: str) -> None:
        """`broker` is how the broker is called in reports, without any password."""
        self.job = job
        self.broker = broker
        self.view: View | None = None
        self.present: dict[str, Presence] = {}
        self.reports: dict[str, PeerReport] = {}
        self._lives: dict[str, float] = {}
        self._again: set[str] = set()
        """Who took part and was started again: what it counts, it counts from then on."""
        self.records: dict[int, RoundRecord] = {}
        """By round; of two records of one round the one of the later view counts, and its coordinator's."""
        self._ranks: dict[int, tuple[tuple[int, str], int, bool]] = {}
        self._paths: dict[int, frozenset[tuple[str, str]]] = {}
        self._stride = 2
        self._shared: dict[Any, Any] = {}
        self.made: dict[str, list[SoftError]] = {}
        """Soft errors by the peer that made them on purpose: of peers on this machine."""
        self.thinned = 0
        """How many rounds had a record that is not kept."""
        self.marks = Marks()
        """What is broken on purpose."""
        self.notes: deque[str] = deque(maxlen=_NOTES)
        """What a user should read in one line, oldest first."""
        self.noted = 0
        """How many notes there ever were."""
        self.round = 0
        """The last round that is known to be done."""
        self._diverged = False
        self._waits = ""
        """Why nothing goes on, as peers say."""
        self.away = ""
        """Why no broker is there; empty while one is."""
        self._unheard: set[str] = set()
        """Who took part when the broker went away, and has not been heard of since."""
        self.withdrawn = False
        """Whether somebody took the job back, or put another one in its place."""
        self._replaced_by: str | None = None
        self.published = False
        self._missed = False

    # What the fabric says. Each returns whether it is a sign of progress.

    def see_view(self, view: View) -> bool:
        """A view was announced; an older one than is known changes nothing."""
        if self.view is not None and not self.view.precedes(view):
            return False
        self.view = view
        return True

    def see_presence(self, peer: str, presence: Presence | None) -> bool:
        """A peer is in, or gone (None)."""
        self._unheard.discard(peer)
        if presence is not None:
            # Not the incarnation: who joins again, after another generation has begun, has it all in memory still.
            another = self._lives.get(peer, presence.started) != presence.started
            if another and self.state(peer) != "done" and peer in self.reports:
                self._again.add(peer)
            self._lives[peer] = presence.started
            news = peer not in self.present
            self.present[peer] = presence
            return news
        if self.present.pop(peer, None) is not None and peer in self.reports and not self._final(peer):
            when = f"after round {self.round}" if self.round else "before the first round"
            self.note(f"{peer} is gone, {when}")
        return False

    def lost_broker(self, reason: str) -> None:
        """No broker is there. One that ends may say of all whom it had that they are gone, and knows of nobody when it
        is back: whoever took part is waited for until it is heard of again."""
        self.note(f"lost the broker, trying again; the job goes on meanwhile: {reason}")
        self.away = reason
        self._unheard |= set(self.members) & set(self.reports)

    def found_broker(self) -> None:
        """One has let us in."""
        self.away = ""

    def see_answer(self, peer: str) -> bool:
        """A peer that was asked whether it lives says so. Once others are through, it is a sign of progress where all
        that is left is that peer's to do: to measure a large model takes as long as it takes."""
        return bool(self.done) and peer in self.measuring

    def see_report(self, report: PeerReport) -> bool:
        """A peer told how far it is with a job."""
        known = self.reports.get(report.peer)
        if report.job != self.job.id or report == known:
            return False
        self.reports[report.peer] = report
        self.round = min(max(self.round, report.round), self.job.rounds)
        if report.state == "failed" and (known is None or known.state != "failed"):
            self.note(f"{report.peer} failed: {' '.join(report.error.split()) or 'it did not say why'}")
        elif report.state == "running" and report.error and not self._waits:
            self.note(f"waiting: {' '.join(report.error.split())}")
        self._waits = self._reason()
        return known is None or (known.state, known.round) != (report.state, report.round)

    def see_telemetry(self, telemetry: Telemetry) -> bool:
        """The coordinator told of finished rounds."""
        if telemetry.job != self.job.id:
            return False
        news = [self._take(record, telemetry.peer, coordinator=True) for record in telemetry.records]
        return any(news)

    def see_logged(self, lines: Iterable[LoggedRound]) -> None:
        """Peers on this machine wrote down finished rounds."""
        for line in lines:
            if line.job == self.job.id:
                self.made.setdefault(line.peer, []).extend(line.made)
                fields = {name: getattr(line, name) for name in RoundRecord.__struct_fields__}
                self._take(RoundRecord(**fields), line.peer, coordinator=line.coordinator)

    def _take(self, record: RoundRecord, peer: str, *, coordinator: bool) -> bool:
        if record.round > self.job.rounds:
            return False
        record = msgspec.structs.replace(
            record, contributors=self._share(record.contributors), paths=self._share(record.paths)
        )
        used = self._paths.get(record.round, frozenset()) | {(path, peer) for path in record.paths}
        self._paths[record.round] = self._share(used)
        rank = (generation_order(record.generation), record.epoch, coordinator)
        known = self._ranks.get(record.round)
        if known is not None and known >= rank:
            return False
        if not math.isfinite(record.loss) and not self._diverged:
            self._diverged = True
            self.note(f"the loss of round {record.round} is not finite: the training diverges")
        self._ranks[record.round] = self._share(rank)
        self.records[record.round] = record
        if len(self.records) > KEPT_ROUNDS:
            self._thin_out()
        self.round = max(self.round, record.round)
        return known is None

    def _share(self, value: Any) -> Any:
        """The same value, once: most rounds have the same contributors and paths."""
        if len(self._shared) >= _SHARED:
            self._shared.clear()
        return self._shared.setdefault(value, value)

    def _thin_out(self) -> None:
        measured = self.measured
        while True:
            for number in sorted(self.records)[: -KEPT_ROUNDS // 2]:
                if number % self._stride and self.records[number] is not measured:
                    del self.records[number], self._ranks[number], self._paths[number]
                    self.thinned += 1
            if len(self.records) <= KEPT_ROUNDS * 3 // 4:
                break
            self._stride *= 2

    def see_job(self, job: str | None) -> None:
        """The fabric's current job is the one of this id, or none."""
        if job == self.job.id:
            self.published, self.withdrawn = True, False
        elif self.published:
            self.withdrawn, self._replaced_by = True, job

    def see_rival(self, job: str) -> None:
        """That one is the fabric's, and this never was."""
        self.withdrawn, self._replaced_by = True, job

    def miss_job(self) -> None:
        """The broker has taken the job, and there was time enough to hear of it."""
        if self._unpublished and not self._missed:
            self._missed = True
            self.note(NOT_PASSED_ON)

    @property
    def _unpublished(self) -> bool:
        """Whether the broker has neither told us of the job nor of anybody who works on it."""
        return not (self.published or self.reports or self.records)

    def note(self, line: str) -> None:
        """Tell the user something, once."""
        self.notes.append(one_line(line))  # peers say some of it
        self.noted += 1

    # What follows from it.

    @property
    def members(self) -> tuple[str, ...]:
        """The peers of the current view in tree order; none before the first view."""
        return () if self.view is None else self.view.ids

    @property
    def outside(self) -> tuple[str, ...]:
        """Peers that are in the fabric but not, or not yet, in the view."""
        return tuple(peer for peer in sorted(self.present) if peer not in self.members)

    def state(self, peer: str) -> PeerState:
        """What is known of one peer."""
        report = self.reports.get(peer)
        if report is not None and report.state in ("done", "failed"):
            return report.state
        if peer not in self.present:
            return "gone"
        return "joined" if report is None else report.state

    @property
    def tally(self) -> SoftErrorTally:
        """Of a split job, what became of wrong numbers until now."""
        return tally_of(self.reports, self.made, self.last)

    @property
    def last(self) -> RoundRecord | None:
        """The record of the latest round that has one."""
        return self.records[max(self.records)] if self.records else None

    @property
    def measured(self) -> RoundRecord | None:
        """The record of the latest round in which the model was measured on the test data."""
        rounds = sorted(self.records, reverse=True)
        return next((self.records[at] for at in rounds if Quality.of(self.records[at]) is not None), None)

    @property
    def rounds_per_s(self) -> float | None:
        """Speed over the latest rounds."""
        latest = heapq.nlargest(_RECENT, self.records)
        seconds = sum(self.records[number].seconds for number in latest)
        return len(latest) / seconds if seconds > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """How long the remaining rounds take at this speed."""
        speed = self.rounds_per_s
        return None if speed is None else (self.job.rounds - self.round) / speed

    @property
    def pending(self) -> tuple[str, ...]:
        """Members that are in, as far as is known, and have not said that they are through; where no view is heard of,
        as the broker's rules may let nobody say it: whoever has said that it works on the job."""
        there = self._unheard.union(self.present)
        members = self.members if self.view is not None else sorted(self.reports)
        return tuple(peer for peer in members if peer in there and not self._final(peer))

    @property
    def measuring(self) -> tuple[str, ...]:
        """Of these, who leads, or did when it was heard of last: it alone measures the model, and tells of rounds."""
        head = self.members[:1]
        return tuple(
            peer for peer in self.pending if peer in self.reports and (peer in head or self.reports[peer].coordinator)
        )

    @property
    def done(self) -> tuple[str, ...]:
        """Peers that finished the job."""
        return tuple(peer for peer in sorted(self.reports) if self.reports[peer].state == "done")

    @property
    def failed(self) -> tuple[str, ...]:
        """Peers that could not go on."""
        return tuple(peer for peer in sorted(self.reports) if self.reports[peer].state == "failed")

    @property
    def finished(self) -> bool:
        """Whether nobody is left to wait for: everyone is done or failed, or the job was withdrawn."""
        if self.withdrawn:
            return True
        if self.done:
            return not self.pending
        known = {*self.present, *self.reports}
        others = known.difference(self.failed)  # those that are gone may come back
        return bool(self.failed) and len(known) >= self.job.wait_for and not others

    @property
    def recorded(self) -> bool:
        """Whether no more telemetry is to be expected."""
        return not self.done or max(self.reports[peer].round for peer in self.done) in self.records

    def result(self) -> JobResult:
        """How the job ended.

        Raises:
            JobError: no peer finished it.
        """
        if not self.done:
            raise JobError(self.trouble())
        judge = next((peer for peer in self.done if self.reports[peer].coordinator), self.done[0])
        final = self.reports[judge]
        return JobResult(
            job=self.job,
            broker=self.broker,
            reports={peer: self.reports[peer] for peer in self._ordered()},
            records=tuple(self.records[number] for number in sorted(self.records)),
            paths={
                number: {path: tuple(sorted(peer for at, peer in used if at == path)) for path, _ in sorted(used)}
                for number, used in sorted(self._paths.items())
            },
            thinned=self.thinned,
            again=frozenset(self._again),
            made={peer: tuple(errors) for peer, errors in self.made.items() if errors},
            missing=self._silent(),
            quality=Quality.of(final) or (Quality.of(self.measured) if self.measured else None),
            rmse=self.measured.rmse if final.rmse is None and self.measured else final.rmse,
            loss=self.last.loss if final.loss is None and self.last else final.loss,
        )

    def _silent(self) -> tuple[str, ...]:
        """Who was in at the end and has not said how it ended; or was of the last round and has never said anything."""
        unknown = {*self.last.contributors}.difference(self.reports) if self.last is not None else set()
        return (*self.pending, *sorted(unknown.difference(self.pending)))

    def trouble(self) -> str:
        """Why the job is not going on, as far as is known, in one line."""
        if self.withdrawn and not self.published:
            return f"job {self._replaced_by} came first; wait, or end it with edgepeer train --withdraw"
        if self.withdrawn:
            how = "withdrawn" if self._replaced_by is None else f"replaced by job {self._replaced_by}"
            return f"job {self.job.id} was {how} after round {self.round} of {self.job.rounds}"
        failures = {peer: " ".join(self.reports[peer].error.split()) for peer in self.failed}
        texts = sorted(set(failures.values()))
        if failures and len(failures) == len({*self.present, *self.reports}):
            if len(failures) == 1:
                return f"peer {self.failed[0]} failed: {texts[0]}"
            return f"all {len(failures)} peers failed: {texts[0]}"
        known = f"; {self.failed[0]} failed: {failures[self.failed[0]]}" if failures else ""
        if self.away:
            at = f"round {self.round} of {self.job.rounds}"
            return f"the broker is away ({self.away}); when it was last there: {at}{known}"
        if self._missed and self._unpublished:
            return NOT_PASSED_ON
        if not self.present:
            return f"no peer is in the fabric{known}"
        wanted = self.job.wait_for
        if len(self.members) < wanted and self.round == 0:
            return f"{len(self.members)} of {wanted} wanted peers are in{known}"
        if self._waits:
            return f"round {self.round} of {self.job.rounds}: {self._waits}{known}"
        waiting = f", waiting for {', '.join(self.pending)}" if self.pending else ""
        return f"round {self.round} of {self.job.rounds}{waiting}{known}"

    def _reason(self) -> str:
        """What they wait for, of those who are in."""
        told = (self.reports[peer] for peer in sorted(self.reports) if peer in self.present)
        return next((" ".join(each.error.split()) for each in told if each.state == "running" and each.error), "")

    def _final(self, peer: str) -> bool:
        return peer in self.reports and self.reports[peer].state in ("done", "failed")

    def _ordered(self) -> list[str]:
        """Whoever reported, members in tree order first."""
        order = {peer: at for at, peer in enumerate(self.members)}
        return sorted(self.reports, key=lambda peer: (order.get(peer, len(order)), peer))
