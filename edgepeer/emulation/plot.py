"""The picture of a run: loss, test accuracy and round time over the rounds. Needs matplotlib."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import PercentFormatter

if TYPE_CHECKING:
    from edgepeer.emulation.result import JobResult

__all__ = ["plot_png"]

_BLUE, _GREEN, _ORANGE, _GREY, _RED = "#2f6db5", "#2e8b57", "#d9822b", "#6b7280", "#c0392b"


def plot_png(result: JobResult) -> bytes:
    """The picture as a PNG. Draws on its own canvas: needs no display and touches no global state."""
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08)
    figure = Figure(figsize=(9.5, 9), dpi=120, layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    loss, accuracy, time = figure.subplots(3, 1, sharex=True, height_ratios=(3, 3, 2.4))
    job = result.job
    figure.suptitle(
        f"{'Keras model' if job.model_config else job.model} on {job.dataset}: {len(result.reports)} peers, "
        f"{job.rounds} rounds, {job.trainer}, {job.optimizer} {job.learning_rate:g}",
        fontsize=13,
        fontweight="bold",
        parse_math=False,  # a path may hold a dollar sign
    )
    rounds = [record.round for record in result.records]
    for axes in (loss, accuracy, time):
        _mark_views(axes, result)
    _loss(loss, result, rounds)
    _accuracy(accuracy, result)
    _time(time, result, rounds)
    for axes in (loss, accuracy, time):
        axes.grid(True, color="#e5e7eb", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(_GREY)
        axes.tick_params(colors=_GREY)
        axes.set_xlim(0, 1.01 * job.rounds)
    time.set_xlabel("round")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _loss(axes: Any, result: JobResult, rounds: list[int]) -> None:
    values = [record.loss for record in result.records]
    axes.plot(rounds, values, color=_BLUE, linewidth=1.6)
    finite = [value for value in values if 0 < value < float("inf")]
    if finite and max(finite) > 20 * min(finite):
        _logarithmic(axes)
    axes.set_ylabel("training loss")


def _accuracy(axes: Any, result: JobResult) -> None:
    points = [(record.round, record.accuracy) for record in result.records if record.accuracy is not None]
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    axes.set_ylabel("test accuracy")
    if result.accuracy is not None and (not points or points[-1][0] < result.job.rounds):
        points.append((result.job.rounds, result.accuracy))
    if not points:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=_GREY)
        return
    axes.plot(*zip(*points, strict=True), color=_GREEN, linewidth=1.6, marker="o", markersize=3.5)
    last_round, last = points[-1]
    axes.set_ylim(max(0.0, min(value for _, value in points) - 0.05), 1.02)
    axes.annotate(
        f"{last:.1%}",
        (last_round, last),
        xytext=(-4, -16),
        textcoords="offset points",
        ha="right",
        color=_GREEN,
        fontweight="bold",
    )


def _time(axes: Any, result: JobResult, rounds: list[int]) -> None:
    whole = [1e3 * record.seconds for record in result.records]
    sums = [1e3 * record.allreduce_seconds for record in result.records]
    axes.plot(rounds, whole, color=_ORANGE, linewidth=1.0, label="whole round")
    axes.plot(rounds, sums, color=_GREY, linewidth=1.0, label="allreduce")
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
    changes = [after.round for before, after in pairs if after.epoch != before.epoch]
    for at, change in enumerate(changes):
        label = "new view" if at == 0 else None
        axes.axvline(change - 0.5, color=_RED, linewidth=0.9, linestyle=":", label=label)


def _logarithmic(axes: Any) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
