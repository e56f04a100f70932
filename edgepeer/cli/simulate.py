"""`edgepeer simulate`: fleets in virtual time. Schedules of faults, random ones, all; isolation by failed links."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from edgepeer.cli.verb import FAILED, Verb
from edgepeer.errors import ConfigError
from edgepeer.given import read_given
from edgepeer.settings import ExploreSettings, IsolationSettings, RunSettings, SoakSettings

if TYPE_CHECKING:
    from edgepeer.simulation.exploration.search import Tally as Explored
    from edgepeer.simulation.schedule import Schedule
    from edgepeer.simulation.soak import Tally

__all__ = ["VERBS", "command"]

_LINE_EVERY_S: Final = 10.0
_REDRAW_EVERY_S: Final = 0.2


# -- run -------------------------------------------------------------------------------------------------------


def run(settings: RunSettings) -> int:
    """Let the schedules in files happen, and tell of each what came of it."""
    from edgepeer.simulation.account import Account
    from edgepeer.simulation.soak import Tally, broken

    if not settings.files:
        raise ConfigError("files: name at least one, as in: edgepeer simulate run partition.txt")
    schedules = [_read(path) for path in settings.files]  # all of them, before anything happens
    complaints = 0
    for path, schedule in zip(settings.files, schedules, strict=True):
        tally, account = Tally(), Account() if settings.tell else None
        complaint = broken(schedule, tally, account)
        print(account or "", end="")
        if complaint is not None:
            complaints += 1
            print(f"{path}: broken: {complaint}", flush=True)
            continue
        end = "too few were left for anybody to go on" if tally.unfinished else "all who live have the same history"
        said = f"{tally.rounds} ends of rounds checked in {tally.virtual_s:.1f} s of virtual time"
        print(f"{path}: {said}; {end}", flush=True)
    return FAILED if complaints else 0


def _read(path: Path) -> Schedule:
    from edgepeer.simulation.schedule import Schedule

    try:
        text = read_given(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{path}: can't read it: {reason}") from None
    return Schedule.parse(text, str(path))


# -- soak ------------------------------------------------------------------------------------------------------


def soak(settings: SoakSettings) -> int:
    """Draw schedules and let them happen, until time or count is up, or one fails."""
    from edgepeer.cli.crew import crew  # here: it imports multiprocessing
    from edgepeer.simulation.soak import Tally, drawn_from, smallest
    from edgepeer.simulation.soak import soak as go_through

    limit_s, limit, began = _seconds(settings), settings.schedules or float("inf"), time.monotonic()
    # Microseconds: no soak takes a seed in less, so two of them never draw the same.
    seed = settings.seed if settings.seed is not None else time.time_ns() // 1000
    print(f"seeds from {seed}", flush=True)
    last = Tally()
    with crew(settings.jobs) as over, _progress() as show:

        def go_on(tally: Tally) -> bool:
            nonlocal last
            last, elapsed = tally, time.monotonic() - began
            done = max(elapsed / limit_s, tally.schedules / limit)
            show(elapsed, done, _told(tally))
            return done < 1

        found = go_through(
            go_on, seed=seed, peers=settings.peers, mix=settings.mix, limit=settings.schedules, over=over
        )
    print(_told(last), flush=True)
    if found is None:
        print("nothing broke")
        return 0
    again = f"edgepeer simulate soak --schedules 1 --seed {found.seed} --peers {settings.peers} --mix {settings.mix}"
    print(f"broken by seed {found.seed} (again: {again}): {found.complaint}", flush=True)
    print("making the schedule smaller ...\n", flush=True)
    print(smallest(drawn_from(found.seed, settings.peers, settings.mix)), end="")
    return FAILED


def _seconds(settings: SoakSettings) -> float:
    if settings.seconds is not None:
        return settings.seconds
    if settings.hours is not None:
        return settings.hours * 3600
    return float("inf") if settings.schedules is not None else 3600.0


def _told(tally: Tally) -> str:
    faults = ", ".join(f"{count} {kind}" for kind, count in sorted(tally.faults.items()))
    return (
        f"{tally.schedules} schedules, {tally.virtual_s / 3600:.1f} hours of virtual time, {tally.rounds} ends of "
        f"rounds checked; {tally.unfinished} without a majority in the end; faults: {faults or 'none'}"
    )


@contextmanager
def _progress() -> Iterator[Callable[[float, float, str], None]]:
    """Shows how far it is, from 0 to 1: a bar on a terminal, a line now and then elsewhere."""
    if not sys.stdout.isatty():
        due = _LINE_EVERY_S

        def line(elapsed: float, done: float, text: str) -> None:
            nonlocal due
            if elapsed >= due and done < 1:
                due = elapsed + _LINE_EVERY_S
                print(f"{elapsed:.0f} s: {text}", flush=True)

        yield line
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}")
    drawn = 0.0
    with Progress(*columns, auto_refresh=False, transient=True) as bar:
        task = bar.add_task("", total=1.0)

        def draw(elapsed: float, done: float, text: str) -> None:
            nonlocal drawn
            if elapsed - drawn >= _REDRAW_EVERY_S:
                drawn = elapsed
                bar.update(task, completed=min(done, 1.0), description=text.partition(",")[0], refresh=True)

        yield draw


# -- explore ---------------------------------------------------------------------------------------------------


def explore(settings: ExploreSettings) -> int:
    """Go through all that can become of a small fleet, within bounds."""
    from edgepeer.coding.scheme import parse_scheme
    from edgepeer.simulation.exploration.search import Bounds
    from edgepeer.simulation.exploration.shared import explore as go_through
    from edgepeer.simulation.exploration.state import Setting
    from edgepeer.simulation.exploration.telling import lines

    setting = Setting(
        peers=settings.peers,
        faults=settings.faults,
        kinds=settings.kinds,
        rounds=settings.rounds,
        fanout=settings.fanout,
        lanes=settings.lanes,
        run="" if settings.plain else "run",
        code=settings.code,
        wait=settings.wait,
    )
    parse_scheme(settings.code, settings.wait)  # what is wrong with that is said here, once
    bounds = Bounds(
        depth=settings.depth,
        states=settings.states,
        any_order=settings.any_order,
        probe_every=settings.probe_every,
    )
    limit_s, began = settings.seconds or float("inf"), time.monotonic()
    with _progress() as show:

        def go_on(tally: Explored) -> bool:
            elapsed = time.monotonic() - began
            done = max(elapsed / limit_s, tally.states / settings.states)
            show(elapsed, done, f"{tally.states} states, depth {tally.depth}, {tally.states / elapsed:.0f} a second")
            return done < 1

        tally, find = go_through(setting, bounds, go_on, jobs=settings.jobs)
    _print_explored(tally, settings, time.monotonic() - began)
    if find is None:
        print(
            "all states within these bounds: nothing broke" if tally.whole else "not all states: nothing broke so far"
        )
        return 0
    print(f"broken: {find.complaint}\n", flush=True)
    print("\n".join(lines(setting, find)))
    return FAILED


def _print_explored(tally: Explored, settings: ExploreSettings, elapsed: float) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{settings.peers} peers, {settings.faults} faults", title_justify="left")
    for name in ("depth", "new states"):
        table.add_column(name, justify="right")
    for depth, states in enumerate(tally.by_depth):
        table.add_row(str(depth), str(states))
    Console(highlight=False, width=None if sys.stdout.isatty() else 100).print(table)
    print(
        f"{tally.states} states, {tally.transitions} transitions, the longest way {tally.longest} steps, in "
        f"{elapsed:.1f} s ({tally.states / elapsed:.0f} a second)\n"
        f"checked: {tally.committed} states in which a round ends, {tally.views} in which a view begins, "
        f"{tally.probes} from which the fleet recovers; {tally.cut_short} ways on that only repeat were left"
    )


# -- isolation -------------------------------------------------------------------------------------------------


def isolation(settings: IsolationSettings) -> int:
    """Measure how many links fail until a peer is isolated: a table, files, a plot."""
    from edgepeer.simulation.isolation import SYSTEMS, measure, table

    for path, setting in ((settings.json, "json"), (settings.plot, "plot")):
        if path is not None:
            there = path.exists()
            _write(path, b"", setting, mode="ab")  # not only when all is measured
            if not there:
                path.unlink()
    if settings.plot is not None:
        try:
            from edgepeer.simulation.isolation_plot import plot_png
        except ImportError as error:
            raise ConfigError(f"plot needs matplotlib: pip install 'edgepeer[plot]' ({error})") from None
    rows = [
        measure(system, peers, trials=settings.trials, seed=settings.seed)
        for peers in settings.peers
        for system in SYSTEMS
    ]
    print("\n".join(table(rows)))
    if settings.json is not None:
        import msgspec

        document = {"trials": settings.trials, "seed": settings.seed, "rows": [row.fields() for row in rows]}
        _write(settings.json, msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n", "json")
    if settings.plot is not None:
        _write(settings.plot, plot_png(rows), "plot")
    return 0


def _write(path: Path, content: bytes, setting: str, *, mode: str = "wb") -> None:
    try:
        with path.open(mode) as file:
            file.write(content)
    except OSError as error:
        raise ConfigError(f"{setting} = {path}: can't write it: {error.strerror}") from None


# -- the verbs -------------------------------------------------------------------------------------------------

RUN = Verb(
    kind=RunSettings,
    about="Let faults happen as written in files.\n\n"
    "Each FILE is a schedule: a fleet and its faults as text. Every round of every peer is checked, and that all who "
    "live are one fleet in the end. Where anything breaks, the exit code is 1. docs/simulator.md has the format.",
    examples=[
        ("what has once been broken", "edgepeer simulate run tests/scenarios/*.txt"),
        ("and what happens in one of them", "edgepeer simulate run --tell tests/scenarios/partitioned_root.txt"),
    ],
    run=run,
)
SOAK = Verb(
    kind=SoakSettings,
    about="Let random faults happen until something breaks.\n\n"
    "Random fleets with random faults, one after the other, and every round of every peer is checked. At the first "
    "thing that must not be, prints the smallest schedule that shows it, as text for `edgepeer simulate run`, and "
    "ends with exit code 1. The same seed gives the same schedules; without one, they are others each time.",
    examples=[
        ("over night, on four cores", "edgepeer simulate soak --hours 8 --jobs 4"),
        ("a few, the same each time", "edgepeer simulate soak --schedules 500 --seed 1"),
    ],
    run=soak,
)
EXPLORE = Verb(
    kind=ExploreSettings,
    about="Go through everything that can become of a small fleet.\n\n"
    "Each state of two to five peers, their links and the broker is gone through once, those with the fewest faults "
    "and delays first. At the first thing that must not be, prints how it comes to that, an action a line, and ends "
    "with exit code 1. docs/simulator.md says what is checked, and what is left out.",
    examples=[
        (
            "three peers, two faults, as far as it gets in ten minutes",
            "edgepeer simulate explore --seconds 600 --jobs 2",
        ),
        ("two peers, all orders of the next 14 steps", "edgepeer simulate explore --peers 2 --any-order --depth 14"),
        (
            "coded rounds, beside peers that bring a plain vector",
            "edgepeer simulate explore --code fractional:s=1 --kinds power,plain --depth 2",
        ),
    ],
    run=explore,
)
ISOLATION = Verb(
    kind=IsolationSettings,
    about="Count failed links until a peer is isolated.\n\n"
    "Links fail at random, one after the other: how many, and which share of all, until somebody is isolated, by tree "
    "height. Figure 11 of Padrão's thesis (2020, §6.4), for a tree, for the thesis' tree with links to brothers and "
    "uncles, and for this one, which has the broker as well; with -hop where a way may lead over one other peer only.",
    examples=[
        ("heights 2 to 5", "edgepeer simulate isolation"),
        ("with a picture", "edgepeer simulate isolation --peers 7,15,31 --trials 5000 --plot isolation.png"),
    ],
    run=isolation,
)
VERBS = (RUN, SOAK, EXPLORE, ISOLATION)


def command() -> click.Group:
    """`edgepeer simulate` with its four verbs."""
    group = click.Group(name="simulate", help="Simulate fleets and faults in virtual time.", no_args_is_help=True)
    for verb in VERBS:
        one = verb.command()
        one.params = [_shaped(parameter) for parameter in one.params]
        group.add_command(one, name=verb.kind.verb.removeprefix("simulate-"))
    return group


def _shaped(parameter: click.Parameter) -> click.Parameter:
    """Files are arguments; several sizes are one value, with commas between."""
    if parameter.name == "files":
        return click.Argument(["files"], metavar="FILE...", nargs=-1)
    if isinstance(parameter, click.Option) and parameter.name in ("peers", "kinds") and parameter.multiple:
        name = parameter.name
        return click.Option([name, f"--{name}"], metavar=parameter.metavar, default=None, help=parameter.help)
    return parameter
