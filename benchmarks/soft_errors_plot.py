"""The pictures of soft_errors.py: accuracy, Table I beside the paper's, time by the price of a checkpoint, and events
beside the model's. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

__all__ = ["draw"]

_Row = Mapping[str, Any]


def draw(path: Path, rows: Sequence[_Row]) -> None:
    """Write a panel for each table that there is to `path`; its ending says as what."""
    panels = (("accuracy", _accuracy), ("table1", _table_1), ("time", _time), ("events", _events))
    parts = {name: [row for row in rows if row["table"] == name] for name, _ in panels}
    there = [(name, panel) for name, panel in panels if parts[name]]
    figure = Figure(figsize=(5 * len(there), 5), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (name, panel) in zip(figure.subplots(1, len(there), squeeze=False)[0], there, strict=True):
        panel(axes, parts[name])
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8)
    figure.savefig(path)


def _accuracy(axes: Any, rows: Sequence[_Row]) -> None:
    clean, *others = rows
    axes.axhline(clean["accuracy"], color="#888888", linewidth=0.8, label="no errors")
    for kind, p in dict.fromkeys((row["kind"], row["p"]) for row in others):
        part = [row for row in others if (row["kind"], row["p"]) == (kind, p)]
        label = f"{kind}, p = {p:g}"
        axes.plot([row["scheme"] for row in part], [row["accuracy"] for row in part], "o", label=label)
    axes.set_ylim(0, 1)
    axes.tick_params(axis="x", rotation=45)
    axes.set_ylabel("accuracy")
    axes.set_title("After training with errors")


def _table_1(axes: Any, rows: Sequence[_Row]) -> None:
    names = [f"{row['scheme']}\nI = {row['interval'] or '-'}" for row in rows]
    for shift, key, label in (
        (-0.25, "seconds_paper", "paper"),
        (0, "seconds", "counted"),
        (0.25, "seconds_model", "model"),
    ):
        axes.bar([at + shift for at in range(len(rows))], [row[key] for row in rows], 0.25, label=label)
    axes.set_xticks(range(len(rows)), names, rotation=45)
    axes.set_ylabel("s of training")
    axes.set_title("Table I: the paper's seconds for events counted here")


def _time(axes: Any, rows: Sequence[_Row]) -> None:
    p = min({row["p"] for row in rows}, key=lambda each: abs(each - 3e-4))
    part = [row for row in rows if row["p"] == p and row["step"] == "paper"]
    for scheme in dict.fromkeys(row["scheme"] for row in part):
        own = [row for row in part if row["scheme"] == scheme]
        label = f"{scheme}, {own[0]['nodes']} nodes"
        axes.plot([row["checkpoint_s"] for row in own], [row["seconds"] for row in own], marker="o", label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("time of a checkpoint in s")
    axes.set_ylabel("time of training in s")
    axes.set_title(f"Best intervals, p = {p:g}, the paper's iterations")


def _events(axes: Any, rows: Sequence[_Row]) -> None:
    names = [row["scheme"] for row in rows]
    axes.axhline(1, color="#888888", linewidth=0.8)
    axes.axhspan(0.95, 1.05, color="#888888", alpha=0.15)
    axes.errorbar(
        names,
        [row["computed_ratio"] for row in rows],
        yerr=[row["deviation"] for row in rows],
        fmt="o",
        capsize=3,
        label="iterations, with the deviation of their restores",
    )
    axes.tick_params(axis="x", rotation=45)
    axes.set_ylabel("counted / Theorem 2")
    axes.set_title("Events")
