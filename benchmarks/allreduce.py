"""Time an allreduce of one vector over TCP between processes: edgepeer against Gloo, OpenMPI, hivemind and a bare tree
without a protocol, and against itself in bf16 and int8 and sealed, interleaved in one run, so that the ratios mean
something; over loopback, or over links of a given rate and delay, each process in a network namespace of its own."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from broker import running_broker
from common import counts, machine_cpu, members, positive, show, warn_if_busy, write_json
from fleet import WARM_UP, Fleet, FleetError, missing, rank_names
from shaped import link_name, shaped_network

from edgepeer.errors import EdgepeerError

_COMPARATORS = (
    *("gloo", "mpi", "hivemind", "bare", "lanes", "tree"),
    *("edgepeer-bf16", "edgepeer-int8", "edgepeer-lane", "edgepeer-secure"),
)
_COLUMNS = {
    "peers": "peers",
    "system": "system",
    "median_ms": "median ms",
    "p95_ms": "p95 ms",
    "ratio": "edgepeer / system",
    "cpu_ms": "CPU ms of all",
    "cpu_ratio": "CPU ratio",
    "idle": "CPU when idle",
    "busy": "cores in use",
}

# A fleet goes on with the heartbeats of its rounds until so long after the last (Pace in edgepeer/protocol/timing.py):
# the next turn would be measured beside those, and nobody has two fleets on a machine.
RESTS_AFTER_ROUNDS = 21
RESTS_AFTER_S = 2.0


def main() -> int:
    arguments = _arguments()
    warn_if_busy()
    systems = ["edgepeer"]
    for system in arguments.against:
        if lack := missing(system, apart=bool(arguments.link)):
            print(f"skipping {system}: {lack}", file=sys.stderr)
        else:
            systems.append(system)
    rows: list[dict[str, Any]] = []
    try:
        for peers in arguments.peers:
            print(f"{peers} peers: starting {', '.join(systems)} ...", file=sys.stderr)
            rows += measure(
                systems,
                peers,
                arguments.elements,
                arguments.rounds,
                arguments.blocks,
                arguments.link,
                arguments.lanes,
                arguments.segment << 10,
            )
    except (FleetError, EdgepeerError) as error:
        print(error, file=sys.stderr)
        return 1
    place = f"links of {'; '.join(arguments.link)}" if arguments.link else "loopback"
    show(f"allreduce of {arguments.elements:,} float32 over TCP, {place}", _COLUMNS, [_line(row) for row in rows])
    if arguments.json:
        write_json(arguments.json, rows)
    return 0


def measure(
    systems: list[str],
    peers: int,
    elements: int,
    rounds: int,
    blocks: int,
    links: Sequence[str] = (),
    lanes: int = 3,
    segment_bytes: int = 64 << 10,
) -> list[dict[str, Any]]:
    """Run the systems in turns, `blocks` times `rounds` allreduces each; one row per system.

    With links, rank i of every system is in the same namespace, so that all have the same links.
    """
    seconds: dict[str, list[float]] = {system: [] for system in systems}
    busy = dict.fromkeys(systems, 0.0)  # processor time in the system's own turns
    turns = dict.fromkeys(systems, 0.0)  # how long those took
    cores = {system: np.zeros(2) for system in systems}  # their time in them: in use, by whomever, and all there was
    with ExitStack() as stack:
        network = stack.enter_context(shaped_network(peers, links)) if links else None
        place = () if network is None else (network.broker_address(), network.broker_prefix())
        broker = stack.enter_context(running_broker(*place))
        options = {"broker": broker, "fabric": "benchmark", "lanes": lanes, "segment_bytes": segment_bytes}
        if "edgepeer-secure" in systems:
            fleet_of_all = stack.enter_context(members(rank_names(peers)))
            options["fleet"] = str(fleet_of_all)
            options["its broker"] = stack.enter_context(running_broker(*(place or ("127.0.0.1", ())), fleet_of_all))
        fleets = {s: stack.enter_context(Fleet(s, peers, elements, options, network)) for s in systems}
        for fleet in fleets.values():
            fleet.measure(3)
        began, before = time.monotonic(), {s: fleet.cpu_seconds() for s, fleet in fleets.items()}
        for block in range(blocks):
            first = block % len(systems)  # nobody always follows the same neighbour
            for system in systems[first:] + systems[:first]:
                turn, used, of_all = time.monotonic(), fleets[system].cpu_seconds(), np.array(machine_cpu())
                seconds[system] += fleets[system].measure(rounds)
                turns[system] += time.monotonic() - turn
                busy[system] += fleets[system].cpu_seconds() - used
                cores[system] += np.array(machine_cpu()) - of_all
                if system.startswith("edgepeer") and len(systems) > 1:
                    time.sleep(max(RESTS_AFTER_ROUNDS * statistics.median(seconds[system]), RESTS_AFTER_S))
        total = time.monotonic() - began
        idle = {s: fleets[s].cpu_seconds() - before[s] - busy[s] for s in systems}
    medians = {system: statistics.median(seconds[system]) for system in systems}
    cpu = {system: busy[system] / blocks / (rounds + WARM_UP) for system in systems}
    return [
        {
            "system": system,
            "peers": peers,
            "link": "; ".join(links) or None,
            "bytes": 4 * elements,
            "median_s": medians[system],
            "p95_s": float(np.percentile(seconds[system], 95)),
            "rounds": len(seconds[system]),
            "edgepeer_ratio": medians["edgepeer"] / medians[system],
            "cpu_s": cpu[system],
            "edgepeer_cpu_ratio": cpu["edgepeer"] / cpu[system],
            "cores_in_use_fraction": float(cores[system][0] / cores[system][1]),
            "idle_cpu_fraction": max(0.0, idle[system] / (total - turns[system])) if len(systems) > 1 else None,
        }
        for system in systems
    ]


def _line(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the JSON file as a person wants to read it."""
    idle = row["idle_cpu_fraction"]
    return row | {
        "median_ms": f"{row['median_s'] * 1e3:.2f}",
        "p95_ms": f"{row['p95_s'] * 1e3:.2f}",
        "cpu_ms": f"{row['cpu_s'] * 1e3:.1f}",
        "cpu_ratio": f"{row['edgepeer_cpu_ratio']:.2f}",
        "ratio": f"{row['edgepeer_ratio']:.2f}",
        "busy": f"{row['cores_in_use_fraction']:.0%}",
        "idle": None if idle is None else f"{idle:.1%}",
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=counts, default=[3, 7, 15, 31], help="default: 3,7,15,31")
    parser.add_argument("--against", type=_systems, default=["gloo", "mpi"], help=f"of {','.join(_COMPARATORS)}")
    parser.add_argument("--elements", type=positive, default=407_050, help="float32 per vector; default: 407050")
    parser.add_argument("--rounds", type=positive, default=20, help="timed allreduces per block; default: 20")
    parser.add_argument("--blocks", type=positive, default=5, help="turns of each system; default: 5")
    parser.add_argument(
        "--link",
        type=link_name,
        action="append",
        default=[],
        help="such as 100mbit,5ms for each process; 3,7,11=10mbit,5ms, for those, may follow; default: loopback",
    )
    parser.add_argument("--lanes", type=positive, default=3, help="trees of the system lanes; default: 3")
    parser.add_argument("--segment", type=positive, default=64, help="KiB at once of the system lanes; default: 64")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there")
    return parser.parse_args()


def _systems(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    if unknown := [name for name in names if name not in _COMPARATORS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r}: must be of {', '.join(_COMPARATORS)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
