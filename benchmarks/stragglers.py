"""What lagging devices cost a round, with and without codes: in each round a random quarter of the peers is 8 times
slower. Uncoded on tree, ring and star, gradient coding on the star, CodedReduce, partial stragglers' protocol, and
taking the first N - S; processes in network namespaces of their own, in turns, with the same laggards in each round."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any, Final

import numpy as np
from broker import running_broker
from common import counts, positive, show, warn_if_busy, write_json
from fleet import Fleet, FleetError
from shaped import link_name, shaped_network
from stragglers_model import enough_after

from edgepeer.coding.spec import parse_code
from edgepeer.errors import ConfigError, EdgepeerError

_WORKER: Final = Path(__file__).with_name("stragglers_worker.py")
_WARM_UP: Final = 2
_WARM_UP_CHUNK_S: Final = 0.05
_TOLERANCE: Final = 1e-4
"""Of a sum's greatest element: coefficients of a code are not whole numbers, and float32 has 7 digits."""
_COLUMNS: Final = {
    "how": "system",
    "fanout": "fan-out",
    "median": "median s",
    "p95": "p95 s",
    "mean": "mean s",
    "ratio": "/ tree",
    "network": "network s",
    "worked": "computed",
    "sure": "exact",
}
_turns: Final = count(1)

_NAMES: Final = ("tree", "ring", "star", "gradient-coding", "coded-reduce", "partial", "partial-halves", "first")

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class System:
    """One way to add up."""

    name: str
    fanout: int = 2
    code: str = "none"
    protocol: str = "ft-tree"


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """What one round has come to."""

    seconds: float
    """From when all are told to begin until the last has the sum."""
    computed: float
    """By all devices, in chunks of which each device has one where nothing is coded; what was cut short in part."""
    exact: bool
    error: float
    """By how much the sum is wrong, as a part of its greatest element."""
    enough: float
    """So many of the seconds had passed when enough was computed."""


def systems_for(peers: int, lagging: int, cr_fanout: int, more: Sequence[tuple[str, int]] = ()) -> list[System]:
    """All that can be compared, the uncoded tree first."""
    star = peers - 1
    return [
        System(name="tree"),
        System(name="ring", protocol="ring"),
        System(name="star", fanout=star),
        System(name="gradient-coding", fanout=star, code=f"cyclic:s={lagging}"),
        System(name="coded-reduce", fanout=cr_fanout, code="coded-reduce:s=1"),
        System(name="partial", code="partial:l=1,replication=3,assignment=pairs"),
        System(name="partial-halves", code="partial:l=2,replication=5"),
        System(name="first", code=f"first:s={lagging}"),
        *(System(name="more", code=code, fanout=min(fanout, star)) for code, fanout in more),
    ]


def main() -> int:
    arguments = _arguments()
    warn_if_busy()
    rows: list[Row] = []
    try:
        for peers in arguments.peers:
            rows += measure(peers, arguments)
    except (FleetError, EdgepeerError) as error:
        print(error, file=sys.stderr)
        return 1
    for peers in arguments.peers:
        for share in (arguments.share, 0.0):
            lag = f"{share:.0%} of them {arguments.slower:g} times slower" if share else "no stragglers"
            title = f"{peers} peers, {lag}: {arguments.elements:,} float32, {arguments.chunk_seconds:g} s for a chunk"
            part = [_line(row) for row in rows if (row["peers"], row["stragglers"]) == (peers, share)]
            show(f"{title}, links of {arguments.link}", _COLUMNS, part)
    if arguments.json:
        write_json(arguments.json, rows)
    if arguments.plot:
        from stragglers_plot import draw  # matplotlib is for those who want a picture

        draw(arguments.plot, rows)
    return 0


def measure(peers: int, arguments: argparse.Namespace) -> list[Row]:
    """One row for each system and share of stragglers."""
    lagging = max(1, int(arguments.share * peers + 0.5))
    systems = systems_for(peers, lagging, arguments.cr_fanout, arguments.code)
    systems = [system for system in systems if system.name in ("tree", "more", *arguments.systems)]
    rounds: dict[tuple[System, float], list[Round]] = {(s, q): [] for s in systems for q in (arguments.share, 0.0)}
    with ExitStack() as stack:
        network = stack.enter_context(shaped_network(peers, [arguments.link]))
        broker = stack.enter_context(running_broker(network.broker_address(), network.broker_prefix()))
        slowest_s = 8 * arguments.slower * arguments.chunk_seconds  # codes at hand have a load of 8 chunks at most
        fleet = Fleet("stragglers", peers, arguments.elements, {"broker": broker}, network, _WORKER, 120 + slowest_s)
        stack.enter_context(fleet)
        for block in range(arguments.blocks):
            first = block % len(systems)  # nobody always follows the same neighbour
            for system in systems[first:] + systems[:first]:
                numbers = range(1 + block * arguments.rounds, 1 + (block + 1) * arguments.rounds)
                for share, turn in _turn(fleet, system, block, numbers, arguments).items():
                    rounds[system, share] += turn
    trees = {share: _median(rounds[systems[0], share]) for share in (arguments.share, 0.0)}
    return [
        {
            "peers": peers,
            "system": system.name,
            "code": system.code,
            "fanout": system.fanout if system.protocol != "ring" else None,
            "stragglers": share,
            "slower": arguments.slower,
            "chunk_s": arguments.chunk_seconds,
            "link": arguments.link,
            "rounds": len(done),
            "round_s": _median(done),
            "p95_s": float(np.percentile([r.seconds for r in done], 95)),
            "mean_s": statistics.fmean(r.seconds for r in done),
            "against_tree": _median(done) / trees[share],
            "computed": statistics.fmean(r.computed for r in done) / peers,
            "exact": statistics.fmean(r.exact for r in done),
            "sum_error": max(r.error for r in done),
            "network_s": statistics.median(r.seconds - r.enough for r in done),
        }
        for share in trees
        for system in systems
        for done in [rounds[system, share]]
    ]


def _turn(
    fleet: Fleet, system: System, block: int, numbers: range, arguments: argparse.Namespace
) -> dict[float, list[Round]]:
    """A fleet comes together, and does these rounds with stragglers and without."""
    began = monotonic()
    opened = {
        "fabric": f"turn{next(_turns)}",
        "fanout": system.fanout,
        "code": system.code,
        "protocol": system.protocol,
    }
    fleet.ask({"open": opened})
    for number in range(_WARM_UP):
        _one_round(fleet, system, number, f"constant:{_WARM_UP_CHUNK_S}")
    done = {
        share: [
            _one_round(fleet, system, n, f"stragglers:{arguments.chunk_seconds},{arguments.slower},{share}")
            for n in numbers
        ]
        for share in (arguments.share, 0.0)
    }
    fleet.ask({"close": 0})
    medians = ", ".join(f"{_median(turn):.2f} s" for turn in done.values())
    head = f"{fleet.peers} peers, turn {block + 1}, {system.name} ({system.code})"
    print(f"{head}: {medians} (of {monotonic() - began:.0f} s)", file=sys.stderr)
    return done


def _one_round(fleet: Fleet, system: System, number: int, speed: str) -> Round:
    began = monotonic()
    answers = fleet.ask({"round": {"number": number, "speed": speed}})
    last = max(answers, key=lambda answer: answer["end"])
    if len({answer["digest"] for answer in answers}) != 1:
        raise FleetError(f"{system.name}: not everybody has the same sum in round {number}")
    if (error := max(answer["error"] for answer in answers)) > _TOLERANCE:
        raise FleetError(f"{system.name}: round {number} is wrong by {error:.1e} of the sum's greatest element")
    whole = all(answer["exact"] for answer in answers)
    if not whole and not system.code.startswith("first"):
        raise FleetError(f"{system.name}: round {number} is not exact")
    return Round(
        seconds=last["end"] - began,
        computed=sum(answer["computed"] for answer in answers),
        exact=whole,
        error=error,
        enough=enough_after(system.code, system.fanout, last["slots"] or range(fleet.peers), number, speed),
    )


def _median(rounds: Sequence[Round]) -> float:
    return statistics.median(r.seconds for r in rounds)


def _line(row: Row) -> Row:
    """A row of the JSON file as a person wants to read it."""
    return row | {
        "how": row["system"] if row["code"] == "none" else row["code"],
        "median": f"{row['round_s']:.2f}",
        "p95": f"{row['p95_s']:.2f}",
        "mean": f"{row['mean_s']:.2f}",
        "ratio": f"{row['against_tree']:.2f}",
        "network": f"{row['network_s']:.2f}",
        "worked": f"{row['computed']:.2f}",
        "sure": f"{row['exact']:.0%}",
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=counts, default=[12, 15], help="default: 12,15")
    parser.add_argument("--elements", type=positive, default=407_050, help="float32 per vector; default: 407050")
    parser.add_argument("--rounds", type=positive, default=2, help="with stragglers and without, per turn; default: 2")
    parser.add_argument("--blocks", type=positive, default=3, help="turns of each system; default: 3")
    parser.add_argument("--chunk-seconds", type=_seconds, default=2.0, help="for a peer's data; default: 2")
    parser.add_argument("--slower", type=_seconds, default=8.0, help="how many times stragglers are; default: 8")
    parser.add_argument("--share", type=_share, default=0.25, help="of stragglers; default: 0.25")
    parser.add_argument("--link", type=link_name, default="100mbit,5ms", help="of each process; default: 100mbit,5ms")
    parser.add_argument("--cr-fanout", type=positive, default=3, help="of CodedReduce's tree; default: 3")
    parser.add_argument("--systems", type=_systems, default=list(_NAMES), help=f"beside tree; of {','.join(_NAMES)}")
    parser.add_argument("--code", type=_code, action="append", default=[], metavar="CODE[@FANOUT]", help="one more")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it there (needs matplotlib)")
    return parser.parse_args()


def _systems(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in _NAMES]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r}: must be of {', '.join(_NAMES)}")
    return names


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1000:
        raise ValueError(text)
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value < 1:
        raise ValueError(text)
    return value


def _code(text: str) -> tuple[str, int]:
    code, _, fanout = text.partition("@")
    try:
        return str(parse_code(code)), int(fanout or 2)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())
