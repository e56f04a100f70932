"""The pictures of polydot.py: digits by points and losses, wrong nodes corrected, time by price of a checkpoint. Needs
matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

__all__ = ["draw"]

_COLOURS = {"real": "#c0392b", "pairs": "#2f6db5"}
_MARKERS = {"float32": "o", "float64": "s"}

_Row = Mapping[str, Any]


def draw(path: Path, rows: Sequence[_Row]) -> None:
    """Write the three panels to `path`; its ending says as what."""
    figure = Figure(figsize=(15, 5), layout="constrained")
    FigureCanvasAgg(figure)
    parts = {name: [row for row in rows if row["table"] == name] for name in ("accuracy", "locating", "checkpoints")}
    panels = figure.subplots(1, 3)
    _accuracy(panels[0], [row for row in parts["accuracy"] if "refused" not in row])
    _locating(panels[1], parts["locating"])
    _checkpoints(panels[2], parts["checkpoints"])
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        axes.legend(fontsize=8)
    figure.savefig(path)


def _accuracy(axes: Any, rows: Sequence[_Row]) -> None:
    for kind, dtype in dict.fromkeys((row["points"], row["dtype"]) for row in rows):
        part = [row for row in rows if (row["points"], row["dtype"]) == (kind, dtype)]
        for name, fill in (("forward", "none"), ("backward", _COLOURS[kind])):
            axes.plot(
                [row[f"{name}_planned"] for row in part],
                [row[f"{name}_worst"] for row in part],
                linestyle="none",
                marker=_MARKERS[dtype],
                color=_COLOURS[kind],
                markerfacecolor=fill,
                label=f"{kind}, {dtype}, {name}",
            )
    axes.plot([1e-16, 100], [1e-16, 100], color="#888888", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("relative error that the plan says")
    axes.set_ylabel("worst measured")
    axes.set_title("Products without the worst losses")


def _locating(axes: Any, rows: Sequence[_Row]) -> None:
    for code, nodes, dtype in dict.fromkeys((row["code"], row["nodes"], row["dtype"]) for row in rows):
        part = [row for row in rows if (row["code"], row["nodes"], row["dtype"]) == (code, nodes, dtype)]
        spare = part[0]["nodes"] - part[0]["needed"]
        axes.plot(
            [row["wrong_nodes"] / spare for row in part],
            [row["right"] / (row["right"] + row["declared"] + row["wrong"]) for row in part],
            marker="o",
            label=f"{code}, P={nodes}, {dtype}",
        )
    axes.set_xlabel("wrong nodes, of those beyond the threshold")
    axes.set_ylabel("corrected")
    axes.set_title("Unrelated errors")


def _checkpoints(axes: Any, rows: Sequence[_Row]) -> None:
    for scheme in dict.fromkeys(row["scheme"] for row in rows):
        part = [row for row in rows if row["scheme"] == scheme]
        label = f"{scheme}, {part[0]['nodes']} nodes"
        axes.plot([row["checkpoint_s"] for row in part], [row["seconds"] for row in part], marker="o", label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("time of a checkpoint in s")
    axes.set_ylabel("time of training in s")
    axes.set_title("Best checkpoint intervals")
