"""The picture of stragglers.py: round times of all systems, with stragglers and without. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

__all__ = ["draw"]

_BLUE, _ORANGE = "#2f6db5", "#d9822b"


def draw(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a panel for each number of peers to `path`; its ending says as what."""
    sizes = sorted({row["peers"] for row in rows})
    figure = Figure(figsize=(6.5 * len(sizes), 5), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, peers in zip(figure.subplots(1, len(sizes), squeeze=False)[0], sizes, strict=True):
        _panel(axes, [row for row in rows if row["peers"] == peers])
        axes.set_title(f"{peers} peers, {rows[0]['chunk_s']:g} s for a chunk, links of {rows[0]['link']}")
    figure.savefig(path)


def _panel(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    shares = sorted({row["stragglers"] for row in rows}, reverse=True)
    height = 0.8 / len(shares)
    for at, share in enumerate(shares):
        part = [row for row in rows if row["stragglers"] == share]
        places = [y + (at - (len(shares) - 1) / 2) * height for y in range(len(part))]
        label = f"{share:.0%} of the peers {part[0]['slower']:g} times slower" if share else "no stragglers"
        medians = [row["round_s"] for row in part]
        axes.barh(places, medians, height, color=_BLUE if share else _ORANGE, label=label)
        axes.plot([row["mean_s"] for row in part], places, "k|", markersize=9, label="mean" if share else None)
        for place, median in zip(places, medians, strict=True):
            axes.text(median, place, f" {median:.1f}", va="center", fontsize=8)
    names = [row for row in rows if row["stragglers"] == shares[0]]
    labels = [row["system"] if row["code"] == "none" else f"{row['system']}\n{row['code']}" for row in names]
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("median round, s")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", alpha=0.25)
    axes.legend(fontsize=8, loc="lower right")
