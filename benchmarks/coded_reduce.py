"""The figures of CodedReduce (Reisizadeh, Prakash, Pedarsani, Avestimehr 2021) in its own run-time model: how long an
iteration takes in each scheme, how much faster CodedReduce is and was in the paper, and how training converges."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from coded_reduce_learning import CURVE_STEP, Taken, digits_by_cnn, four_or_nine, linear_regression
from coded_reduce_model import SCHEMES, Setting, Times, iteration_times
from common import positive, show, warn_if_busy, write_json
from numpy.typing import NDArray

from edgepeer.errors import EdgepeerError

_POINTS = 30  # of a curve in the JSON file
_LOOKS = {
    "UMW": ("#6b7280", ":"),
    "GC": ("#7c5cbf", "-."),
    "SGD": ("#3a9d5d", "-"),
    "RAR": ("#d9822b", "-"),
    "RAR-latency": ("#d9822b", "--"),
    "CR": ("#2f6db5", "-"),
    "CR-groups": ("#2f6db5", "--"),
}


def _on_ec2(workers: int, stragglers: Fraction, samples: int, size: int, rounds: int = 300) -> Setting:
    """The paper measured these, and gives neither a nor t_c. Here both are in proportion to the parameters: a link as
    fast as in its simulation (120,000 in 0.05 s), and 4 operations per parameter and data point, 10^9 a second."""
    fanout = 4 if workers == 84 else 12
    speeds = {"sample_s": 4e-9 * size, "vector_s": 0.05 * size / 120_000}
    return Setting(workers=workers, fanout=fanout, stragglers=stragglers, samples=samples, rounds=rounds, **speeds)


@dataclass(frozen=True)
class _Figure:
    setting: Setting
    problem: str
    paper: Mapping[str, float]
    """By how much the paper's CodedReduce is faster than each scheme."""


def _figures(cnn_rounds: int) -> dict[str, _Figure]:
    def paper(umw: float, gc: float, rar: float, sgd: float | None) -> dict[str, float]:
        return {"UMW": umw, "GC": gc, "RAR": rar, "RAR-latency": rar} | ({"SGD": sgd} if sgd is not None else {})

    quarter = Fraction(1, 4)
    digits, linear, large = (6552, 5001), (7644, 6500), (32760, 5000)
    cnn = Setting(
        workers=156,
        fanout=12,
        stragglers=Fraction(5, 12),
        samples=49_920,
        sample_s=5e-5,
        vector_s=0.05,
        rounds=cnn_rounds,
    )
    twelfths = {letter: Fraction(part, 12) for part, letter in enumerate("abc", 1)}
    nine = {"a": (32.3, 27.2, 7.0, 25.4), "b": (29.3, 23.3, 6.4, 21.9), "c": (25.0, 16.8, 5.4, 15.4)}
    eleven = {"a": (31.7, 22.0, 5.2, 20.7), "b": (27.1, 18.1, 4.4, 16.8), "c": (22.2, 13.7, 3.6, 13.0)}
    return {
        "2": _Figure(_on_ec2(84, quarter, *linear), "", paper(22.5, 6.4, 4.3, None)),
        "8": _Figure(_on_ec2(84, quarter, *digits), "digits", paper(32.8, 5.3, 3.8, 3.2)),
        **{f"9{k}": _Figure(_on_ec2(156, twelfths[k], *digits), "digits", paper(*nine[k])) for k in "abc"},
        "10": _Figure(_on_ec2(84, quarter, *linear), "linear", paper(24.1, 4.6, 3.0, 2.8)),
        **{f"11{k}": _Figure(_on_ec2(156, twelfths[k], *linear), "linear", paper(*eleven[k])) for k in "abc"},
        "12": _Figure(_on_ec2(156, quarter, *large, rounds=50), "large", paper(11.3, 9.7, 1.69, 6.1)),
        "13": _Figure(cnn, "cnn", paper(6.6, 4.8, 1.8, 4.0)),
    }


_MEASURES = {
    "digits": "relative error of logistic regression",
    "linear": "normalized error of linear regression",
    "large": "normalized error of linear regression",
    "cnn": "test accuracy of the CNN",
}

_COLUMNS = {
    "figure": "fig.",
    "workers": "N",
    "alpha": "α",
    "scheme": "scheme",
    "iteration_s": "mean s",
    "std_s": "std s",
    "speedup_of_CR": "CR faster",
    "speedup_in_paper": "in paper",
    "reached": "reached",
}

Curve = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Seconds, and what has been reached by then."""


def main() -> int:
    arguments = _arguments()
    warn_if_busy()
    figures = {
        name: figure
        for name, figure in _figures(arguments.cnn_rounds).items()
        if name.rstrip("abc") in arguments.figures
    }
    times = {name: iteration_times(figure.setting, arguments.seed) for name, figure in figures.items()}
    try:
        curves = {} if arguments.no_training else _train(figures, times, arguments)
    except EdgepeerError as error:
        print(error, file=sys.stderr)
        return 1
    rows = [
        _row(name, figure, scheme, times[name], curves.get(name, {}).get(scheme))
        for name, figure in figures.items()
        for scheme in SCHEMES
    ]
    show("CodedReduce in the paper's run-time model", _COLUMNS, rows)
    if arguments.json:
        write_json(arguments.json, rows)
    if arguments.plot:
        arguments.plot.write_bytes(_plot_png(figures, times, curves))
    return 0


def _train(
    figures: Mapping[str, _Figure], times: Mapping[str, Mapping[str, Times]], arguments: argparse.Namespace
) -> dict[str, dict[str, Curve]]:
    """By figure and scheme."""
    out: dict[str, dict[str, Curve]] = {}
    for problem in _MEASURES:
        names = [name for name, figure in figures.items() if figure.problem == problem]
        if not names:
            continue
        print(f"training: {_MEASURES[problem]}, for figures {', '.join(names)}", file=sys.stderr)
        runs = [None, *(times[name]["SGD"].taken for name in names)]
        exact, *partial = _reached(problem, figures[names[0]].setting, runs, arguments)
        for name, of_sgd in zip(names, partial, strict=True):
            out[name] = {}
            for scheme, timed in times[name].items():
                reached = exact if timed.taken is None else of_sgd
                seconds = timed.seconds.cumsum()
                out[name][scheme] = (seconds[CURVE_STEP - 1 :: CURVE_STEP] if problem == "cnn" else seconds, reached)
    return out


def _reached(
    problem: str, setting: Setting, runs: Sequence[Taken], arguments: argparse.Namespace
) -> list[NDArray[np.float64]]:
    if problem == "cnn":
        return digits_by_cnn(setting.rounds, runs, arguments.seed)
    if problem == "digits":
        count, curves = four_or_nine(arguments.data, arguments.data_dir, setting.samples, setting.rounds, runs)
        print(f"{count} fours and nines of {arguments.data}; times are for {setting.samples}", file=sys.stderr)
        return curves
    size = 6500 if problem == "linear" else 5000
    return linear_regression(setting.samples, size, setting.rounds, runs, arguments.seed)


def _row(name: str, figure: _Figure, scheme: str, times: Mapping[str, Times], curve: Curve | None) -> dict[str, object]:
    seconds, reference = times[scheme].seconds, times["CR"].seconds.mean()
    paper = figure.paper.get(scheme)
    row: dict[str, object] = {
        "figure": name,
        "workers": figure.setting.workers,
        "alpha": round(float(figure.setting.stragglers), 4),
        "scheme": scheme,
        "iteration_s": round(float(seconds.mean()), 4),
        "std_s": round(float(seconds.std()), 4),
        "speedup_of_CR": round(float(seconds.mean() / reference), 2),
        "speedup_in_paper": paper,
        "measure": _MEASURES.get(figure.problem),
        "reached": None,
        "total_s": round(float(seconds.sum()), 2),
        "curve": None,
    }
    if curve is not None:
        some = np.unique(np.linspace(0, len(curve[0]) - 1, _POINTS).astype(int))
        row["reached"] = float(f"{curve[1][-1]:.3g}")
        row["curve"] = [
            [round(float(at), 4), float(f"{value:.4g}")]
            for at, value in zip(curve[0][some], curve[1][some], strict=True)
            if np.isfinite(value)
        ]
    return row


def _plot_png(
    figures: Mapping[str, _Figure],
    times: Mapping[str, Mapping[str, Times]],
    curves: Mapping[str, Mapping[str, Curve]],
) -> bytes:
    import io

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = [name for name in figures if name == "2" or name in curves]
    wide = min(4, max(1, len(drawn)))
    tall = max(1, -(-len(drawn) // wide))
    picture = Figure(figsize=(4.2 * wide, 3.3 * tall), dpi=110, layout="constrained", facecolor="white")
    FigureCanvasAgg(picture)
    panels = picture.subplots(tall, wide, squeeze=False).flat
    for name, axes in zip(drawn, panels, strict=False):
        figure = figures[name]
        title = f"Fig. {name}: {figure.setting.workers} workers, α = {figure.setting.stragglers}"
        axes.set_title(title, fontsize=9, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(True, color="#e5e7eb", linewidth=0.8)
        axes.set_axisbelow(True)
        if name == "2":
            means = [times[name][scheme].seconds.mean() for scheme in SCHEMES]
            axes.barh(SCHEMES, means, color=[_LOOKS[scheme][0] for scheme in SCHEMES])
            axes.set_xlabel("seconds per iteration")
            continue
        for scheme in SCHEMES:
            colour, line = _LOOKS[scheme]
            axes.plot(*curves[name][scheme], color=colour, linestyle=line, linewidth=1.3, label=scheme)
        axes.set_xscale("log")
        axes.set_xlabel("seconds")
        axes.set_ylabel(_MEASURES[figure.problem], fontsize=8)
        if figure.problem != "cnn":
            axes.set_yscale("log")
        if name == next(iter(curves)):
            axes.legend(frameon=False, fontsize=7)
    for axes in panels:
        axes.set_visible(False)
    buffer = io.BytesIO()
    picture.savefig(buffer, format="png")
    return buffer.getvalue()


def _figure_names(text: str) -> list[str]:
    names, known = text.split(","), [name.rstrip("abc") for name in _figures(1)]
    if not set(names) <= set(known):
        raise argparse.ArgumentTypeError(f"{text!r}: some of {','.join(dict.fromkeys(known))}")
    return names


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__)
    every = "2,8,9,10,11,12,13"
    parser.add_argument("--figures", type=_figure_names, default=every.split(","), help=f"default: {every}")
    parser.add_argument("--no-training", action="store_true", help="times only: a second")
    parser.add_argument(
        "--cnn-rounds", type=positive, default=1000, help="of Fig. 13; default: 1000, the paper's: 2500"
    )
    parser.add_argument("--data", default="digits", help="where fours and nines are from: digits (default) or mnist")
    parser.add_argument("--data-dir", type=Path, help="where the MNIST files are")
    parser.add_argument("--seed", type=int, default=1, help="default: 1")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there, with 30 points of each curve")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a picture there (PNG)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
