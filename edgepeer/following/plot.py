"""The pictures of a run: loss, accuracy and round time over the rounds; its faults. Needs matplotlib."""

from __future__ import annotations

import io
import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator, PercentFormatter

from edgepeer.following.result import Quality

if TYPE_CHECKING:
    from edgepeer.following.result import JobResult

__all__ = ["faults_png", "plot_png", "with_gaps"]

_BLUE, _GREEN, _ORANGE, _GREY, _RED = "#2f6db5", "#2e8b57", "#d9822b", "#6b7280", "#c0392b"
_FAULTS = (_ORANGE, "#8e44ad", _GREEN, _RED, "#16a2b8", "#b7950b")


def plot_png(result: JobResult) -> bytes:
    """The picture as a PNG. Draws on its own canvas: needs no display and touches no global state."""
    figure = _figure(9)
    loss, quality, time = figure.subplots(3, 1, sharex=True, height_ratios=(3, 3, 2.4))
    job = result.job
    figure.suptitle(
        f"{job.model_name} on {job.dataset}: {_peers(result)}, "
        f"{job.rounds} rounds, {job.trainer}, {job.optimizer} {job.learning_rate:g}",
        fontsize=13,
        fontweight="bold",
        parse_math=False,  # a path may hold a dollar sign
    )
    for axes in (loss, quality, time):
        _mark_views(axes, result)
    _loss(loss, result)
    _quality(quality, result)
    _time(time, result)
    for axes in (loss, quality, time):
        _plain(axes)
        axes.set_xlim(0, 1.01 * job.rounds)
    time.set_xlabel("round")
    return _png(figure)


def faults_png(result: JobResult) -> bytes:
    """Time per round with the faults marked (Padrão 2020, Figures 14 to 17), as a PNG.

    A bar a round, with a mark on it where links were on detours; above, a line for each fault over the rounds that it
    lasted, and its shadow over the bars.
    """
    lines = 0.28 * len(result.faults) + 0.3
    figure = _figure(4.2 + lines)
    marks, time = figure.subplots(2, 1, sharex=True, height_ratios=(lines, 4.2))
    job, last = result.job, result.job.rounds
    figure.suptitle(
        f"Time per round under faults: {_peers(result)}, {job.rounds} rounds",
        fontsize=13,
        fontweight="bold",
    )
    for at, fault in enumerate(result.faults):
        begin = fault.first_round - 0.5
        end = (last if fault.last_round is None else min(fault.last_round, last)) + 0.5
        color = _FAULTS[at % len(_FAULTS)]
        marks.barh(-at, end - begin, left=begin, height=0.55, color=color)
        if begin < last / 2:
            marks.annotate(fault.label, (end, -at), (4, 0), textcoords="offset points", va="center", fontsize=9)
        else:
            marks.annotate(
                fault.label, (begin, -at), (-4, 0), textcoords="offset points", va="center", ha="right", fontsize=9
            )
        time.axvspan(begin, end, color=color, alpha=0.12, linewidth=0)
    marks.set_ylim(0.6 - len(result.faults), 0.6)
    marks.set_axis_off()
    exact = [record for record in result.records if record.exact]
    others = [record for record in result.records if not record.exact]
    for records, color, label in ((exact, _BLUE, "all contributed"), (others, _RED, "not everyone contributed")):
        if records:
            time.bar(
                [each.round for each in records], [each.seconds for each in records], 0.8, color=color, label=label
            )
    for relayed, marker, label in ((False, "v", "detour by a peer"), (True, "s", "detour through the broker")):
        marked = [r for r in result.records if (found := result.detours(r.round)) and ("relay" in found) == relayed]
        if marked:
            places = [each.round for each in marked], [each.seconds for each in marked]
            time.plot(*places, linestyle="", marker=marker, markersize=4, color="#111827", label=label)
    longest = sorted(record.seconds for record in result.records)
    if longest and longest[0] > 0 and longest[-1] > 20 * longest[len(longest) // 2]:
        _logarithmic(time)
    _plain(time)
    time.set_xlim(0.2, last + 0.8)
    time.xaxis.set_major_locator(MaxNLocator(integer=True))
    time.set_xlabel("round")
    time.set_ylabel("time in s")
    time.legend(loc="upper right", frameon=False, fontsize=9)
    return _png(figure)


def _figure(height: float) -> Figure:
    figure = Figure(
        figsize=(9.5, height), dpi=120, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08), facecolor="white"
    )
    FigureCanvasAgg(figure)
    return figure


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _plain(axes: Any) -> None:
    axes.grid(True, color="#e5e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_GREY)
    axes.tick_params(colors=_GREY)


def with_gaps(points: Sequence[tuple[int, float]], result: JobResult) -> list[tuple[float, float]]:
    """What to draw a line through: with a break wherever a round between two points was not reported. A straight line
    there would say what nobody knows. (Of very long runs records were left out on purpose: there it would be dust.)"""
    found: list[tuple[float, float]] = []
    rounds = [] if result.thinned else [record.round for record in result.records]
    for at, (number, value) in enumerate(points):
        if at and rounds:
            before = points[at - 1][0]
            if bisect_right(rounds, number - 1) - bisect_right(rounds, before) < number - 1 - before:
                found.append((number - 0.5, math.nan))
        found.append((number, value))
    return found


def _draw(axes: Any, points: Sequence[tuple[int, float]], result: JobResult, **look: Any) -> None:
    axes.plot(*zip(*(with_gaps(points, result) or [(math.nan, math.nan)]), strict=True), **look)


def _peers(result: JobResult) -> str:
    count = len(result.reports)
    return f"{count} peer{'s' * (count != 1)}"


def _loss(axes: Any, result: JobResult) -> None:
    values = [record.loss for record in result.records]
    _draw(axes, [(record.round, record.loss) for record in result.records], result, color=_BLUE, linewidth=1.6)
    finite = [value for value in values if 0 < value < float("inf")]
    if finite and max(finite) > 20 * min(finite):
        _logarithmic(axes)
    axes.set_ylabel("training loss")


def _quality(axes: Any, result: JobResult) -> None:
    found = [(record.round, quality) for record in result.records if (quality := Quality.of(record)) is not None]
    if result.quality is not None and (not found or found[-1][0] < result.rounds):
        found.append((result.rounds, result.quality))
    name = found[-1][1].name if found else "accuracy"
    points = [(at, quality.value) for at, quality in found if math.isfinite(quality.value)]
    axes.set_ylabel(f"test {name}")
    if name == "accuracy":
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    if not points:
        what = "not finite" if found else "not measured"
        axes.text(0.5, 0.5, what, transform=axes.transAxes, ha="center", color=_GREY)
        return
    _draw(axes, points, result, color=_GREEN, linewidth=1.6, marker="o", markersize=3.5)
    last_round, last = points[-1]
    if name == "accuracy":
        axes.set_ylim(max(0.0, min(value for _, value in points) - 0.05), 1.02)
    axes.annotate(
        f"{last:.1%}" if name == "accuracy" else f"{last:.4g}",
        (last_round, last),
        xytext=(-4, -16),
        textcoords="offset points",
        ha="right",
        color=_GREEN,
        fontweight="bold",
    )


def _time(axes: Any, result: JobResult) -> None:
    whole = [1e3 * record.seconds for record in result.records]
    sums = [1e3 * record.allreduce_seconds for record in result.records]
    rounds = [record.round for record in result.records]
    _draw(axes, list(zip(rounds, whole, strict=True)), result, color=_ORANGE, linewidth=1.0, label="whole round")
    _draw(axes, list(zip(rounds, sums, strict=True)), result, color=_GREY, linewidth=1.0, label="allreduce")
    inexact = [record for record in result.records if not record.exact]
    if inexact:
        axes.plot(
            [record.round for record in inexact],
            [1e3 * record.seconds for record in inexact],
            linestyle="",
            marker="x",
            color=_RED,
            label="not everyone contributed",
        )
    median = result.round_seconds.median
    if median is not None:
        axes.axhline(1e3 * median, color=_ORANGE, linewidth=0.9, linestyle="--", label=f"median {1e3 * median:.3g} ms")
    # The first rounds build graphs and take far longer: a linear axis would show nothing else.
    if whole and min(sums) > 0 and max(whole) > 8 * min(sums):
        _logarithmic(axes)
    axes.set_ylabel("round time in ms")
    axes.legend(loc="upper right", frameon=False, fontsize=9, ncols=5)


def _mark_views(axes: Any, result: JobResult) -> None:
    pairs = zip(result.records, result.records[1:], strict=False)
    changes = [
        after.round for before, after in pairs if (after.generation, after.epoch) != (before.generation, before.epoch)
    ]
    for at, change in enumerate(changes):
        label = "new view" if at == 0 else None
        axes.axvline(change - 0.5, color=_RED, linewidth=0.9, linestyle=":", label=label)


def _logarithmic(axes: Any) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
