"""The picture of allreduce.py's tables: how long a round takes over each link, by system, in parts of Gloo's time.

Takes the JSON files of any number of runs, each with Gloo. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

__all__ = ["draw", "ratios"]

_Row = Mapping[str, Any]
_COLOURS = {"gloo": "#9ca3af", "edgepeer": "#1d4ed8", "edgepeer-bf16": "#0d9488", "edgepeer-int8": "#d97706"}
_WIDTH = 0.8
"""Of all bars of one fleet, of the room that there is for it."""

Fleet = tuple[str, int]
"""Its link, and how many peers it has."""


def ratios(rows: Sequence[_Row]) -> dict[Fleet, dict[str, float]]:
    """Of each fleet the systems' medians, in parts of Gloo's with the same link and as many peers.

    Raises:
        ValueError: a fleet was measured twice, or without Gloo.
    """
    found: dict[Fleet, dict[str, float]] = {}
    for row in rows:
        of = found.setdefault((row["link"] or "loopback", row["peers"]), {})
        if row["system"] in of:
            raise ValueError(f"{row['system']} with {row['peers']} peers on {row['link'] or 'loopback'} is there twice")
        of[row["system"]] = row["median_s"]
    for (link, peers), of in found.items():
        if "gloo" not in of:
            raise ValueError(f"{peers} peers on {link} were measured without gloo")
    return {fleet: {system: s / of["gloo"] for system, s in of.items()} for fleet, of in found.items()}


def draw(path: Path, rows: Sequence[_Row]) -> None:
    """A group of bars for each fleet, with the milliseconds on top; the ending of `path` says as what."""
    found = ratios(rows)
    took = {((row["link"] or "loopback", row["peers"]), row["system"]): row["median_s"] for row in rows}
    systems = [system for system in _COLOURS if any(system in of for of in found.values())]
    figure = Figure(figsize=(1.2 + 1.7 * len(found), 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    wide = _WIDTH / len(systems)
    for number, system in enumerate(systems):
        there = [(at, fleet) for at, fleet in enumerate(found) if system in found[fleet]]
        bars = axes.bar(
            [at + (number - (len(systems) - 1) / 2) * wide for at, _ in there],
            [found[fleet][system] for _, fleet in there],
            0.9 * wide,
            color=_COLOURS[system],
            label={"gloo": "Gloo"}.get(system, system),
        )
        axes.bar_label(bars, [f"{1e3 * took[fleet, system]:,.0f}" for _, fleet in there], fontsize=7, padding=1)
    axes.set_xticks(range(len(found)), [f"{link}\n{peers} peers" for link, peers in found])
    axes.set_ylabel("a round, in parts of Gloo's (ms on top)")
    axes.axhline(1, color="#111827", linewidth=0.8, linestyle="--")
    axes.margins(y=0.12)
    axes.legend(fontsize=8, ncols=len(systems), loc="upper center", bbox_to_anchor=(0.5, 1.14), frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def main() -> int:
    """Read the files, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="what allreduce.py --json wrote")
    parser.add_argument("--plot", type=Path, required=True, metavar="FILE", help="draw there")
    arguments = parser.parse_args()
    try:
        draw(arguments.plot, [row for file in arguments.files for row in json.loads(file.read_text())["rows"]])
    except (OSError, ValueError) as error:
        print(f"allreduce_plot.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
