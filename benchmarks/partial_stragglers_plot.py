"""The pictures of partial_stragglers.py, laid out as the paper's Figures 3, 5, 6 and 7. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

__all__ = ["draw"]

_BLUE, _PURPLE, _RED, _GREEN, _ORANGE = "#2f6db5", "#8e44ad", "#c0392b", "#2e8b57", "#d9822b"
_COLOURS = {
    "proposed": _BLUE,
    "estimate": _PURPLE,
    "original": _RED,
    "proposed, optimal order": _BLUE,
    "proposed, random order": _ORANGE,
}
_DASHES = {1: "-", 2: "--", 3: ":"}
_LEAST = 1e-4  # errors below this count as none: the mean of 1000 runs can't be less than 1e-3

_Row = Mapping[str, Any]


def draw(path: Path, rows: Sequence[_Row]) -> None:
    """Write all six panels to `path`; its ending says as what."""
    figure = Figure(figsize=(15, 9), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 3)
    for axes, name in zip(panels.flat, ("3a", "5", "3b", "6a", "6b", "7"), strict=True):
        part = [row for row in rows if row["figure"] == name]
        if name in ("3b", "7"):
            _times(axes, part)
        else:
            _errors(axes, part)
        label = f"{name[0]}({name[1]})" if len(name) > 1 else name
        axes.set_title(f"Figure {label}: {', '.join(dict.fromkeys(row['assignment'] for row in part))}")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        axes.legend(fontsize=8)
    figure.savefig(path)


def _errors(axes: Any, rows: Sequence[_Row]) -> None:
    for protocol, blocks in dict.fromkeys((row["protocol"], row["l"]) for row in rows):
        line = [row for row in rows if (row["protocol"], row["l"]) == (protocol, blocks) and row["mean"] > _LEAST]
        means = [row["mean"] for row in line]
        stds = [row["std"] for row in line]
        lower = [min(std, 0.9 * mean) for mean, std in zip(means, stds, strict=True)]  # a logarithm has no zero
        axes.errorbar(
            [row["time"] for row in line],
            means,
            None if protocol == "estimate" else (lower, stds),
            color=_COLOURS[protocol],
            linestyle="none" if protocol == "estimate" else _DASHES[blocks],
            marker="o" if protocol == "estimate" else None,
            markersize=4,
            markerfacecolor="none",
            capsize=2,
            elinewidth=0.7,
            label=f"{protocol}, l = {blocks}",
        )
    axes.set_yscale("log")
    axes.set_xlabel("T")
    axes.set_ylabel("mean squared error")


def _times(axes: Any, rows: Sequence[_Row]) -> None:
    for assignment, protocol in dict.fromkeys((row["assignment"], row["protocol"]) for row in rows):
        line = [row for row in rows if (row["assignment"], row["protocol"]) == (assignment, protocol)]
        axes.errorbar(
            [row["l"] for row in line],
            [row["mean"] for row in line],
            [row["std"] for row in line],
            color=_GREEN if protocol == "original" else _COLOURS[protocol],
            linestyle="--" if assignment.startswith("cyclic") else "-",
            marker="o",
            capsize=4,
            label=f"{protocol}, {assignment}",
        )
    axes.set_xticks(sorted({row["l"] for row in rows}))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("l")
    axes.set_ylabel("time until the sum is exact")
