"""The picture of split.py: what a link carries in an iteration, by batch, of divided networks and of gradients. Needs
matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

__all__ = ["draw"]

_Row = Mapping[str, Any]


def draw(path: Path, rows: Sequence[_Row]) -> None:
    """A panel for each network; the ending of `path` says as what."""
    part = [row for row in rows if row["table"] == "bytes"]
    networks = list(dict.fromkeys(row["network"] for row in part))
    figure = Figure(figsize=(3.6 * len(networks), 4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(networks), sharey=True, squeeze=False)[0]
    for axes, network in zip(panels, networks, strict=True):
        _network(axes, [row for row in part if row["network"] == network])
        axes.set_title(network)
    panels[0].set_ylabel("bytes a link carries each way, an iteration")
    panels[-1].legend(fontsize=7)
    figure.savefig(path)


def _network(axes: Any, rows: Sequence[_Row]) -> None:
    for row in rows:
        points = {int(key.rpartition("_")[2]): value for key, value in row.items() if key.startswith("vector_bytes_")}
        if points:
            axes.plot(list(points), list(points.values()), marker="o", markersize=3, label=row["split"])
        else:
            axes.axhline(
                row["held_bytes"], color="#111827", linewidth=1.2, linestyle="--", label="gradients, any batch"
            )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("samples an iteration")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
