"""What is known of a job in words: pure functions to plain text, shared by all displays."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from statistics import median
from typing import NamedTuple

from edgepeer.fabric.documents import RoundRecord
from edgepeer.following.progress import JobProgress
from edgepeer.following.result import JobResult, Quality, Spread
from edgepeer.following.tally import FATES
from edgepeer.printable import one_line

__all__ = [
    "SummaryRow",
    "amount",
    "briefly",
    "duration",
    "figure",
    "headline",
    "progress_line",
    "quality",
    "summary",
    "waiting_line",
]


class SummaryRow(NamedTuple):
    """One line of a summary."""

    what: str
    """Empty: more of what the row before it is about."""
    value: str
    good: bool = True
    """Whether it is as it should be."""


def duration(seconds: float | None) -> str:
    """As people say it: 3.2 ms, 1.5 s, 2 min 05 s, 1 h 02 min."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    if seconds < 0.9995:
        return f"{1e3 * seconds:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min"


def amount(count: float) -> str:
    """Bytes as people say them: 512 B, 1.6 MB. Decimal prefixes."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"


def briefly(items: Iterable[str], most: int = 4) -> str:
    """The first few of them."""
    every = list(items)
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")


def figure(value: float) -> str:
    """A loss or an error, in as many digits as are of use."""
    return f"{value:.4f}" if abs(value) < 1e4 else f"{value:.4g}"


def headline(progress: JobProgress) -> str:
    """The job in one line: model, data, how it is trained."""
    job = progress.job
    model = job.model_name
    rate = f"{job.learning_rate:g}" + (f" {job.schedule}" if job.schedule != "constant" else "")
    loss = f", loss {job.loss}" if job.loss != "auto" else ""
    how = f"{job.trainer}, {job.optimizer} {rate}, batch {job.batch_size}{loss}"
    code = f", code {job.code}, wait {job.wait}" if job.code != "none" else ""
    if job.precision != "float32":
        code = f", rounded to {job.precision}"
    if job.split:
        how = f"{job.optimizer} {rate}, batch {job.batch_size}{loss}"
        code = f", split {job.split} ({job.guarantee})"
    return one_line(f"job {job.id}: {model} on {job.dataset}, {how}{code}")


def quality(record: RoundRecord) -> str:
    """What the sum of a coded round is."""
    if record.exact:
        return "exact"
    return f"approximate ({record.covered}/{record.chunks} chunks, error {record.error:.3g})"


def waiting_line(progress: JobProgress) -> str:
    """Before the first round: who is in."""
    wanted = progress.job.wait_for
    inside = len(progress.members)
    ready = sum(1 for peer in progress.members if progress.state(peer) == "running")
    if inside < wanted:
        return f"waiting for peers: {inside} of {wanted} in"
    return f"getting ready: {ready} of {inside} peers"


def progress_line(progress: JobProgress) -> str:
    """Where the job is, in one line of plain ASCII."""
    if progress.round == 0:
        return waiting_line(progress)
    parts = [f"round {progress.round}/{progress.job.rounds}"]
    if progress.job.split and (errors := progress.tally).injected:
        parts.append(
            f"{errors.injected} soft errors, {errors.fates['found'] + errors.fates['restored']} found or undone"
        )
    if (last := progress.last) is not None:
        of = "" if last.round == progress.round else f" (of round {last.round})"
        parts.append(f"loss {figure(last.loss)}{of}")
        if (measured := progress.measured) is not None:
            found = Quality.of(measured)
            assert found is not None
            parts.append(f"{found.name} {found}")
        parts.append(f"{len(last.contributors)}/{max(len(progress.members), len(last.contributors))} contributed")
        if last.chunks:
            parts.append(quality(last))
            if approximate := sum(1 for record in progress.records.values() if not record.exact):
                parts.append(f"exact {len(progress.records) - approximate} of {len(progress.records)}")
    if (speed := progress.rounds_per_s) is not None:
        parts.append(f"{speed:.3g} rounds/s")
    if progress.round < progress.job.rounds:
        parts.append(f"{duration(progress.seconds_left)} left")
    return "  ".join(parts)


def summary(result: JobResult) -> Iterator[SummaryRow]:
    """How the job ended. Peers say some of it: a terminal is not to obey that."""
    return (row._replace(what=one_line(row.what), value=one_line(row.value)) for row in _summary(result))


def _summary(result: JobResult) -> Iterator[SummaryRow]:
    quality = result.quality
    more = [] if result.rmse is None else [f"rmse {result.rmse:.4g}"]
    more += [] if result.loss is None else [f"loss {figure(result.loss)}"]
    found = "not measured" if quality is None else str(quality)
    yield SummaryRow(
        "test" if quality is None else f"test {quality.name}",
        found + (f" ({', '.join(more)})" if more else ""),
    )
    if result.diverged is not None:
        yield SummaryRow("diverged", f"the loss is not finite from round {result.diverged} on", False)
    yield from _rounds(result)
    yield SummaryRow("round time", _spread(result.round_seconds))
    yield SummaryRow("allreduce time", _spread(result.allreduce_seconds))
    yield from _sent(result)
    yield from _digests(result)
    if result.job.split:
        yield from _split(result)
    yield from _faults(result)
    for peer in result.failed:
        yield SummaryRow("failed", f"{peer}: {' '.join(result.reports[peer].error.split())}", False)
    if result.lost:
        yield SummaryRow("gone before the end", ", ".join(result.lost))
    if result.late:
        yield SummaryRow("not ready in time", ", ".join(result.late))
    if result.missing:
        yield SummaryRow("did not report", ", ".join(result.missing), False)


def _rounds(result: JobResult) -> Iterator[SummaryRow]:
    total = sum(record.seconds for record in result.records)
    inexact = sum(1 for record in result.records if not record.exact)
    early = result.rounds < result.job.rounds
    done = f"{result.rounds} of {result.job.rounds}, ended early," if early else str(result.rounds)
    views = f", {result.view_epochs} views" if result.view_epochs > 1 else ""
    if not result.unreported and not result.thinned:
        yield SummaryRow("rounds", f"{done} in {duration(total)}{views}", result.rounds == result.job.rounds)
    else:  # the time is of the others only
        yield SummaryRow("rounds", f"{done}, {len(result.records)} of them in {duration(total)}{views}")
    if result.thinned:
        yield SummaryRow("", f"{result.thinned} records of earlier rounds were not kept (so many rounds)")
    if result.unreported:
        count = f"{result.unreported} round{'s' if result.unreported > 1 else ''}"
        were = "were" if result.unreported > 1 else "was"
        yield SummaryRow("", f"{count} {were} not reported (broker outage, or who reports was lost)")
    if result.job.code != "none":
        yield from _coded(result)
    elif inexact and not result.job.split:  # whose missing parts are made up for
        yield SummaryRow("", f"{inexact} of them without everyone's contribution", False)
    rerouted = [found for record in result.records if (found := result.detours(record.round))]
    if rerouted:
        names = sorted({path for found in rerouted for path in found})
        yield SummaryRow("", f"{len(rerouted)} of them with links on detours: {briefly(names)}")


def _sent(result: JobResult) -> Iterator[SummaryRow]:
    sent, partly = result.bytes_sent, [peer for peer in result.done if peer in result.again]
    yield SummaryRow("bytes sent", f"median {amount(median(sent.values()))} a peer" if sent else "not known")
    if sent:
        for row in _chunks([f"{peer} {amount(count)}" for peer, count in sent.items()]):
            yield SummaryRow("", row)
    if partly:
        yield SummaryRow("", f"not known of {briefly(partly)}: started again on the way")


def _coded(result: JobResult) -> Iterator[SummaryRow]:
    """What a code gave, and took."""
    approximate = result.approximate
    exact = f"exact {len(result.records) - len(approximate)} of {len(result.records)}"
    if not approximate:
        yield SummaryRow("coded sums", f"{exact} ({result.job.code})")
    else:
        chunks = approximate[0].chunks
        fewest, most = (limit(record.covered for record in approximate) for limit in (min, max))
        covered = f"{fewest} to {most}" if fewest < most else str(most)
        errors = Spread.of(record.error for record in approximate)
        told = f"the others: {covered} of {chunks} chunks whole, error median {errors.median:.3g}, p95 {errors.p95:.3g}"
        yield SummaryRow("coded sums", f"{exact} ({result.job.code}, wait {result.job.wait})", False)
        yield SummaryRow("", told, False)
    if (computed := result.computed) is not None:
        yield SummaryRow("computed", f"{computed:.3g} times as many samples as the sums are of")


def _split(result: JobResult) -> Iterator[SummaryRow]:
    """What peers held, and what was wrong on the way."""
    held, tally = [count for count in result.held.values() if count], result.tally
    most = f"{amount(max(held))} at most" if held else "nothing"
    yield SummaryRow(
        f"split {result.job.split}", f"{len(held)} peers hold {most} of {amount(result.whole)}", bool(held)
    )
    fates = [f"{count} {FATES[name]}" for name, count in tally.fates.items() if count or name == "undetected"]
    if tally.gone:
        fates.append(f"{tally.gone} gone with killed peers")
    made = f"{tally.injected} made on purpose: {', '.join(fates)}" if tally.injected else "none made on purpose"
    yield SummaryRow("soft errors", made, not tally.undetected)
    yield SummaryRow("", ", ".join(tally.told()))


def _faults(result: JobResult) -> Iterator[SummaryRow]:
    for at, fault in enumerate(result.faults):
        last = fault.last_round
        until = "" if last == fault.first_round else f" to {last}" if last is not None else " to the end"
        rounds = f"round {fault.first_round}" if not until else f"rounds {fault.first_round}{until}"
        yield SummaryRow("" if at else "faults, all confirmed", f"{fault.label}: {rounds}{fault.evidence}")


def _spread(spread: Spread) -> str:
    if spread.median is None:
        return "not measured"
    return f"median {duration(spread.median)}, p95 {duration(spread.p95)}"


def _digests(result: JobResult) -> Iterator[SummaryRow]:
    count = len(result.done)
    thing = "state" if result.job.split else "parameters"  # of a divided network nobody has them all
    what = f"{thing} bit-identical on {'all ' if count > 1 else ''}{count} peer{'s' if count > 1 else ''}"
    if result.identical:
        yield SummaryRow(what, f"yes ({next(iter(result.digests.values()))[:16]})")
        return
    yield SummaryRow(what, "NO", False)
    for peer, digest in result.digests.items():
        yield SummaryRow("", f"{peer} {digest[:16] or 'sent no digest'}", False)


def _chunks(items: list[str], width: int = 60) -> Iterator[str]:
    per_row = max(1, width // (2 + max(map(len, items))))
    for at in range(0, len(items), per_row):
        yield ", ".join(items[at : at + per_row])
