"""The thesis' Figure 11 from measured rows: failed links until a peer is isolated, by tree height. Needs matplotlib."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from edgepeer.simulation.isolation import SYSTEMS, Row

__all__ = ["plot_png"]

_LOOKS: Final = {
    "tree": ("#6b7280", "s", "-"),
    "thesis": ("#d9822b", "^", "-"),
    "ours": ("#2f6db5", "o", "-"),
    "thesis-hop": ("#d9822b", "^", ":"),
    "ours-hop": ("#2f6db5", "o", ":"),
}


def plot_png(rows: Sequence[Row]) -> bytes:
    """The picture as a PNG. Draws on its own canvas: needs no display and touches no global state."""
    figure = Figure(figsize=(9.5, 4), dpi=120, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    number, percent = figure.subplots(1, 2)
    for system in SYSTEMS:
        some = sorted((row for row in rows if row.system == system), key=lambda row: row.height)
        colour, marker, line = _LOOKS[system]
        heights = [row.height for row in some]
        for axes, values in ((number, [row.failed for row in some]), (percent, [row.percent for row in some])):
            axes.plot(heights, values, color=colour, marker=marker, linestyle=line, label=system)
    number.set_ylabel("failed links until a peer is isolated")
    percent.set_ylabel("the same as a share of all links, %")
    for axes in (number, percent):
        axes.set_xlabel("tree height")
        axes.set_xticks(sorted({row.height for row in rows}))
        axes.set_ylim(bottom=0)
        axes.grid(True, color="#e5e7eb", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    number.legend(frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
