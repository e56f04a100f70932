"""The live picture of a job: pure functions from what is known to rich renderables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from edgepeer.following.progress import JobProgress, PeerState
from edgepeer.following.result import JobResult, Quality
from edgepeer.following.texts import amount, duration, figure, headline, quality, summary, waiting_line
from edgepeer.ids import PeerId
from edgepeer.topology.view import View
from edgepeer.training.split.dense import stored_bytes

__all__ = ["job_panel", "peer_tree", "summary_panel"]

_LOOKS: Final[Mapping[PeerState, tuple[str, str]]] = {
    "gone": ("○", "dim"),
    "joined": ("○", "cyan"),
    "starting": ("◔", "yellow"),
    "running": ("●", "green"),
    "done": ("✔", "bold green"),
    "failed": ("✘", "bold red"),
}
_BROKEN: Final[Mapping[str, tuple[str, str]]] = {
    "killed": ("✗", "bold red"),
    "paused": ("‖", "bold yellow"),
    "slow": ("◐", "yellow"),
}
_SIDE_BY_SIDE_COLUMNS: Final = 72
"""On a narrower terminal tree and numbers stand below each other, and values below what they are."""
_NOTES_SHOWN: Final = 4
_BARS: Final = "▁▂▃▄▅▆▇█"


def peer_tree(
    view: View, label: Callable[[str], Text], *, broken: Callable[[str, str], bool] = lambda parent, child: False
) -> Text:
    """The tree of a view; `label` says how a peer looks, `broken` which links between parent and child are drawn so."""
    text = Text()

    def draw(peer: PeerId, indent: str) -> None:
        text.append(label(peer))
        below = view.children(peer)
        for child in below:
            last = child == below[-1]
            text.append("\n" + indent, "dim")
            if broken(peer, child):
                text.append("└╌× " if last else "├╌× ", "bold red")
            else:
                text.append("└── " if last else "├── ", "dim")
            draw(child, indent + ("    " if last else "│   "))

    draw(view.coordinator, "")
    return text


def job_panel(progress: JobProgress, *, elapsed: float, width: int = _SIDE_BY_SIDE_COLUMNS) -> RenderableType:
    """All that is known of a running job; `elapsed` seconds since its start, `width` columns to draw on."""
    numbers = Group(_numbers(progress, elapsed), Text(), *_notes(progress))
    body: RenderableType = Group(_tree(progress), Text(), numbers)
    if width >= _SIDE_BY_SIDE_COLUMNS:
        body = Table.grid(padding=(0, 3), expand=True)
        body.add_column(no_wrap=True)
        body.add_column(ratio=1)
        body.add_row(_tree(progress), numbers)
    return Panel(
        Group(_bar(progress), Text(), body),
        title=f"[bold]edgepeer[/] {escape(headline(progress))}",
        title_align="left",
        border_style="blue",
    )


def summary_panel(result: JobResult, *, width: int = _SIDE_BY_SIDE_COLUMNS) -> RenderableType:
    """How a job ended, on `width` columns."""
    table = Table.grid(padding=(0, 2))
    narrow = width < _SIDE_BY_SIDE_COLUMNS
    if not narrow:
        table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for what, value, good in summary(result):
        shown = Text(value, style="" if good else "bold red")
        if not narrow:
            table.add_row(what, shown)
            continue
        if what:
            table.add_row(Text(what, style="bold"))
        table.add_row(Padding(shown, (0, 0, 0, 2)))
    good = result.identical and not result.failed and not result.missing and result.diverged is None
    good = good and not result.tally.undetected
    return Panel(
        table,
        title=f"[bold]job {escape(result.job.id)} is done[/]",
        title_align="left",
        border_style="green" if good else "red",
        expand=False,
    )


def _tree(progress: JobProgress) -> RenderableType:
    def label(peer: str) -> Text:
        state: str = progress.state(peer)
        glyph, style = _LOOKS[progress.state(peer)]
        for broken, names in (
            ("slow", progress.marks.slow),
            ("paused", progress.marks.paused),
            ("killed", progress.marks.killed),
        ):
            if peer in names:
                state, (glyph, style) = broken, _BROKEN[broken]
        text = Text.assemble((glyph, style), " ", peer)
        if state != "running":
            text.append(f"  {state}", style)
        if progress.view is not None and peer == progress.view.coordinator:
            text.append("  coordinator", "dim")
        return text

    parts: list[RenderableType] = []
    if progress.view is None:
        parts.append(Text("no tree yet", "dim"))
    else:
        parts.append(peer_tree(progress.view, label, broken=progress.marks.broken))
    outside = sorted({*progress.outside, *progress.marks.killed.difference(progress.members)})
    if outside:
        parts.append(Text("not in the tree", "dim"))
        parts.extend(label(peer) for peer in outside)
    return Group(*parts)


def _bar(progress: JobProgress) -> RenderableType:
    row = Table.grid(padding=(0, 1), expand=True)
    row.add_column(no_wrap=True)
    row.add_column(ratio=1)
    row.add_column(no_wrap=True, justify="right")
    if progress.round == 0:
        row.add_row(waiting_line(progress), ProgressBar(total=None, pulse=True), "")
        return row
    rounds = progress.job.rounds
    left = f"{duration(progress.seconds_left)} left" if progress.round < rounds else "finishing"
    bar = ProgressBar(total=rounds, completed=progress.round, complete_style="blue", finished_style="green")
    row.add_row(f"round [bold]{progress.round}[/]/{rounds}", bar, left)
    return row


def _numbers(progress: JobProgress, elapsed: float) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="ellipsis", no_wrap=True)
    last = progress.last
    speed = progress.rounds_per_s
    table.add_row("loss", "-" if last is None else f"[bold]{figure(last.loss)}[/]  [blue]{_spark(progress)}[/]")
    measured = progress.measured
    found = Quality.of(measured) if measured is not None else None
    if measured is None or found is None:
        table.add_row("test", "-")
    else:
        table.add_row(f"test {found.name}", f"[bold]{found}[/]  [dim]round {measured.round}[/]")
    table.add_row("rounds/s", "-" if speed is None else f"[bold]{speed:.3g}[/]")
    if last is None:
        table.add_row("contributors", "-")
    else:
        everyone = f"{len(last.contributors)} of {max(len(progress.members), len(last.contributors))}"
        table.add_row("contributors", everyone if last.exact or last.chunks else f"[bold red]{everyone}[/]")
    if last is not None and last.chunks:
        table.add_row("sum", quality(last) if last.exact else f"[bold red]{quality(last)}[/]")
        exact = sum(1 for record in progress.records.values() if record.exact)
        table.add_row("exact so far", f"{exact} of {len(progress.records)}")
    if progress.job.split:
        tally, held = progress.tally, [report.held_bytes for report in progress.reports.values()]
        parameters = max((report.parameters for report in progress.reports.values()), default=0)
        if any(held):
            table.add_row(
                "a peer holds", f"{amount(max(held))} at most of {amount(stored_bytes(progress.job, parameters))}"
            )
        table.add_row("soft errors", f"[bold]{tally.injected}[/] made on purpose, {tally.fates['found']} found")
        for told in tally.told():
            table.add_row("", told)
    view = progress.view
    table.add_row("generation", "-" if view is None else str(view.generation))
    table.add_row("view", "-" if view is None else f"epoch {view.epoch}, fan-out {view.fanout}")
    table.add_row("elapsed", duration(elapsed))
    for at, fault in enumerate(progress.marks.labels):
        table.add_row("" if at else "faults", Text(fault, "bold red"))
    return table


def _notes(progress: JobProgress) -> list[Text]:
    return [Text(note, "yellow") for note in list(progress.notes)[-_NOTES_SHOWN:]]


def _spark(progress: JobProgress, width: int = 24) -> str:
    """The loss over all rounds so far, as a row of bars of its logarithm."""
    rounds = sorted(progress.records)
    values = [progress.records[number].loss for number in rounds]
    logs = [math.log(max(value, 1e-9)) for value in values if math.isfinite(value)]
    if len(logs) < 2:
        return ""
    steps = min(width, len(logs))
    picked = [logs[at * (len(logs) - 1) // (steps - 1)] for at in range(steps)]
    low, high = min(picked), max(picked)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in picked)
