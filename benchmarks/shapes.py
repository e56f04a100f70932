#!/usr/bin/env python
"""What rounds take over which trees: simulated, on lines whose ends compute for nothing, beside what the model says by
which a fleet chooses its trees (edgepeer/protocol/shape.py)."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import counts, positive, show, write_json

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.shape import Machine, Network, Shape, round_s
from edgepeer.simulation.schedule import Schedule
from edgepeer.simulation.story import Story
from edgepeer.topology.tree import Trees
from edgepeer.wire.precision import PRECISIONS, Precision, encoded_bytes

__all__ = ["expected_s", "simulated_s"]

_SHAPES = "2:1,2:2,2:4,2:8,2:15,3:3,3:6,4:4,4:6,4:15,6:4"
_COLD = 4
"""Rounds in which the links are still being measured."""
_ROUNDS = 13
_COLUMNS = {
    "peers": "peers",
    "precision": "precision",
    "fanout": "fan-out",
    "lanes": "lanes",
    "simulated_ms": "simulated ms",
    "expected_ms": "expected ms",
    "ratio": "expected / simulated",
}


def main() -> int:
    arguments = _arguments()
    rows = []
    for peers in arguments.peers:
        for precision in arguments.precision:
            for fanout, lanes in arguments.shapes:
                if lanes > peers:
                    continue
                asked = (peers, fanout, lanes, precision, arguments.elements, arguments.rate, arguments.trip)
                simulated, expected = simulated_s(*asked), expected_s(*asked)
                print(f"{peers} peers, {precision}, {fanout}:{lanes}: {1e3 * simulated:.0f} ms", file=sys.stderr)
                rows.append(
                    {
                        "peers": peers,
                        "precision": precision,
                        "fanout": fanout,
                        "lanes": lanes,
                        "simulated_s": simulated,
                        "expected_s": expected,
                    }
                )
    title = f"rounds of {arguments.elements:,} float32, lines of {arguments.rate:,.0f} bytes/s and {arguments.trip:g} s"
    show(title, _COLUMNS, [_line(row) for row in rows])
    if arguments.json:
        write_json(arguments.json, rows)
    return 0


def simulated_s(
    peers: int, fanout: int, lanes: int, precision: Precision, elements: int, rate: float, trip_s: float
) -> float:
    """Median seconds from one round's end to the next one's, of a simulated fleet that does nothing else.

    Args:
        elements: of the vector.
        rate: of each peer's line, in bytes/s in each direction.
        trip_s: of all round trips.
    """
    schedule = Schedule(
        peers=peers,
        fanout=fanout,
        lanes=lanes,
        precision=precision,
        rounds=_ROUNDS,
        size=elements,
        compute_s=1e-4,
        latency_s=trip_s / 2,
        rate_bytes_per_s=rate,
        uneven=1.001,  # each has a line of its own, that its links share
        run="none",
    )
    story, ends = Story(schedule, limits=Limits()), dict[int, float]()

    def hear(now: float, peer: PeerId, effect: fx.Effect) -> None:
        if isinstance(effect, fx.RoundCommitted):
            ends[effect.round] = now  # the last to commit counts

    story.world.on_effect = hear
    story.tell()
    times = [ends[number] for number in sorted(ends)]
    return statistics.median(after - before for before, after in zip(times[_COLD:], times[_COLD + 1 :], strict=False))


def expected_s(
    peers: int, fanout: int, lanes: int, precision: Precision, elements: int, rate: float, trip_s: float
) -> float:
    """What the model says of the same."""
    machines = tuple(Machine(rate, rate, f"host{number}") for number in range(peers))
    trips = tuple(tuple(trip_s * (one != other) for other in range(peers)) for one in range(peers))
    size = encoded_bytes(precision, elements)
    return round_s(Network(machines, trips, {}), Shape(tuple(range(peers)), Trees(peers, fanout, lanes)), size)


def _line(row: dict[str, Any]) -> dict[str, Any]:
    return row | {
        "simulated_ms": f"{1e3 * row['simulated_s']:.0f}",
        "expected_ms": f"{1e3 * row['expected_s']:.0f}",
        "ratio": f"{row['expected_s'] / row['simulated_s']:.2f}",
    }


def _shapes(text: str) -> list[tuple[int, int]]:
    try:
        pairs = [tuple(map(positive, each.split(":"))) for each in text.split(",")]
        return [(fanout, lanes) for fanout, lanes in pairs]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: fan-outs and lanes, such as 2:1,2:4") from None


def _precisions(text: str) -> Sequence[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in PRECISIONS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r}: must be of {', '.join(PRECISIONS)}")
    return names


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=counts, default=[7, 15], help="default: 7,15")
    parser.add_argument("--precision", type=_precisions, default=["float32", "int8"], help="default: float32,int8")
    parser.add_argument("--shapes", type=_shapes, default=_shapes(_SHAPES), help=f"FANOUT:LANES; default: {_SHAPES}")
    parser.add_argument("--elements", type=positive, default=407_050, help="float32 per vector; default: 407050")
    parser.add_argument("--rate", type=float, default=11.85e6, help="of a line, bytes/s; default: 11.85e6")
    parser.add_argument("--trip", type=float, default=0.01, help="a round trip, in seconds; default: 0.01")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
