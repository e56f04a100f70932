"""Random schedules: what is drawn, whatever draws it. A soak draws from a seed, the tests let Hypothesis draw."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from edgepeer.simulation.network import BROKER
from edgepeer.simulation.schedule import KINDS, Fault, Schedule, names

__all__ = ["DRAWN", "LONG_S", "Picker", "Random", "draw_schedule"]

_T = TypeVar("_T")

DRAWN: Final[tuple[str, ...]] = (
    "oneway", "cut", "reset", "kill", "power", "slow", "broker", "leave", "join", "freeze", "timeout", "restart",
    "isolate", "partition",
)  # fmt: skip
"""What is drawn: the kinds of faults, and for who dies and comes back `restart`."""
SHORT_S: Final = (0.1, 0.5, 2.0, 5.0, 12.0)
"""How long things last: less than any patience, and more than most."""
CODES: Final = (
    "partial:l=1,replication=2", "partial:l=2,replication=3", "cyclic:s=1", "fractional:s=1", "coded-reduce:s=1",
    "graph:degree=2", "first:s=1", "partial:l=3,replication=3",
)  # fmt: skip
"""The codes that are drawn. Not all can be had for all fleets: then rounds are given up."""
LONG_S: Final = (*SHORT_S, 40.0, 120.0)
"""The same with time enough for the broker to miss a peer."""


class Picker(Protocol):
    """Where choices come from. What comes first counts as simpler."""

    def integer(self, least: int, most: int) -> int: ...

    def choice(self, of: Sequence[_T]) -> _T: ...

    def many(self, most: int, make: Callable[[Picker], _T]) -> list[_T]: ...


class Random:
    """Choices from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def integer(self, least: int, most: int) -> int:
        return self._random.randint(least, most)

    def choice(self, of: Sequence[_T]) -> _T:
        return self._random.choice(of)

    def many(self, most: int, make: Callable[[Picker], _T]) -> list[_T]:
        return [make(self) for _ in range(self._random.randint(0, most))]


def draw_schedule(
    pick: Picker,
    *,
    kinds: Sequence[str] = DRAWN,
    peers: tuple[int, int] = (1, 15),
    most_faults: int = 4,
    within_s: float = 6.0,
    lengths_s: Sequence[float] = SHORT_S,
    coded: bool = False,
) -> Schedule:
    """A fleet and its faults.

    Args:
        pick: what chooses.
        kinds: which kinds of fault may happen.
        peers: how many peers, from and to.
        most_faults: how many faults at most.
        within_s: when the last of them begins, at the latest.
        lengths_s: how long they may last.
        coded: whether rounds are.
    """
    least, most = peers
    count = pick.integer(least, most if pick.integer(0, 3) == 3 else min(most, max(least, 7)))
    fleet = names(count)
    return Schedule(
        peers=count,
        fanout=pick.integer(1, 4),
        rounds=pick.choice([6, 3, 20]),
        size=pick.choice([16, 0, 1, 100, 501]),
        dtype=pick.choice(["<f4", "<f8"]),
        compute_s=pick.choice([0.2, 0.0, 0.02, 0.5]),
        latency_s=pick.choice([1e-3, 1e-4, 2e-2]),
        jitter_s=pick.choice([0.0, 1e-3, 2e-2, 0.1]),
        rate_bytes_per_s=pick.choice([1e6, 1e5, 1e9]),
        loss=pick.choice([0.0, 0.0, 0.0, 0.02]),
        run=pick.choice(["run", "run", "none"]),
        seed=pick.integer(0, 1 << 16),
        code=pick.choice(CODES) if coded else "none",
        wait=pick.choice(["exact", "exact", "deadline:0.7", "error<1.1"]) if coded else "exact",
        faults=_in_order(pick.many(most_faults, lambda pick: _draw_fault(pick, kinds, fleet, within_s, lengths_s))),
    )


def _draw_fault(
    pick: Picker, kinds: Sequence[str], fleet: list[str], within_s: float, lengths_s: Sequence[float]
) -> Fault:
    name = pick.choice(kinds)
    again = name == "restart"
    name = pick.choice(["kill", "power"]) if again else name
    kind = KINDS[name]
    at = pick.integer(0, round(within_s * 100)) / 100
    if name == "join":
        return Fault(at, name, (f"{pick.choice('qa')}{pick.integer(1, 9)}",))
    some = [*fleet, BROKER] if kind.broker and name != "partition" else fleet
    least = min(kind.least, len(fleet))
    many = pick.integer(least, max(least, min(kind.most, len(fleet) // 2))) if kind.most > 2 else kind.most
    who = _distinct(pick, some, many)
    if name == "partition" and pick.integer(0, 1):
        who.append(BROKER)
    if len(who) < kind.least:
        return Fault(at, "timeout", (fleet[0],))  # a fleet of one has nobody to be cut from
    until = round(at + pick.choice(lengths_s), 2) if kind.lasts == "yes" or again else None
    extra = {"slow": f"x{pick.choice([3, 10, 30])}", "broker": pick.choice(["", "forget"])}.get(name, "")
    return Fault(at, name, tuple(who), until, extra)


def _distinct(pick: Picker, some: list[str], many: int) -> list[str]:
    """The first of the order, the root, as often as all others together."""
    left = list(some)
    who: list[str] = []
    while left and len(who) < many:
        who.append(left.pop(pick.integer(0, len(left) - 1) if pick.integer(0, 1) else 0))
    return who


def _in_order(faults: list[Fault]) -> tuple[Fault, ...]:
    """By time; nobody joins twice, and nobody comes to a broker that has lost its memory before the others are back.

    Such a newcomer begins a fleet of its own, since nothing tells it of another.
    """
    seen: set[tuple[str, ...]] = set()
    kept: list[Fault] = []
    for fault in sorted(faults, key=lambda fault: fault.at):
        begins = fault.at if fault.kind == "join" else fault.until if fault.kind in ("kill", "power") else None
        lost = any(f.extra == "forget" and f.at - 5 <= (begins or 0) <= f.end + 5 for f in faults)
        if not (fault.kind == "join" and fault.who in seen) and not (begins is not None and lost):
            kept.append(fault)
            seen.add(fault.who)
    return tuple(kept)
