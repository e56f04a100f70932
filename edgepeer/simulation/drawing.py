"""Random schedules: what is drawn, whatever draws it. A soak draws from a seed, the tests let Hypothesis draw."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final, Protocol, TypeVar

from edgepeer.coding.spec import parse_code
from edgepeer.errors import ConfigError
from edgepeer.simulation.schedule import KINDS, Fault, Schedule, names
from edgepeer.simulation.split_app import split_of
from edgepeer.simulation.ways import BROKER
from edgepeer.wire.precision import Precision

__all__ = [
    "DRAWN", "LONG_S", "MIXES", "OWNERS", "Picker", "Random", "draw_burst", "draw_minds", "draw_owners",
    "draw_schedule", "draw_story",
]  # fmt: skip

_T = TypeVar("_T")

DRAWN: Final[tuple[str, ...]] = (
    "oneway", "cut", "reset", "kill", "power", "slow", "broker", "leave", "join", "freeze", "timeout", "restart",
    "isolate", "partition", "run", "cancel", "sleep",
)  # fmt: skip
"""What is drawn: the kinds of faults, and for who dies and comes back `restart`."""
OWNERS: Final[tuple[str, ...]] = ("aside", "quit", "lose", "busy")
"""What owners do besides: not in `DRAWN`, so that seeds go on to draw what they have drawn."""
OWNERS_S: Final = (0.0, 0.3, 1.0, 2.0, 3.0, 5.0, 10.0)
"""How long it takes until they change their minds."""
SHORT_S: Final = (0.1, 0.5, 2.0, 5.0, 12.0)
"""How long things last: less than any patience, and more than most."""
CODES: Final = (
    "partial:l=1,replication=2", "partial:l=2,replication=3", "cyclic:s=1", "fractional:s=1", "coded-reduce:s=1",
    "graph:degree=2", "first:s=1", "partial:l=3,replication=3",
)  # fmt: skip
"""The codes that are drawn. Not all can be had for all fleets: then rounds are dropped."""
SPLITS: Final = (
    "replicate:m=1,n=1,copies=3", "codenet:m=1,n=1,t=1", "polydot:m=2,n=1", "replicate:m=2,n=1", "codenet:m=2,n=1,t=1",
    "none:m=2,n=1", "codenet:m=2,n=2,t=1",
)  # fmt: skip
SOFT_ERRORS: Final = (
    "none", "p=0.003", "p=0.01,kind=garbage", "p=0.003,kind=nan,steps=O1+O2+O3+encoding+decoded+activation+verdict+sum",
    "p=0.01,kind=flip",
)  # fmt: skip
ROUNDED: Final[tuple[Precision, ...]] = ("float32", "float32", "bf16", "int8")
BURST: Final = (*DRAWN, "timeout", "cancel", "reset", "freeze", "kill", "power")
"""What happens at once: what is short, and what ends rounds without a sum, more often."""
BURST_S: Final = (0.1, 0.3, 0.6, 1.0, 2.0, 3.3, 4.0, 6.0)
"""How long: around the time that it takes to miss somebody."""
WINDOW: Final = 256
"""Of a state: most go in several pieces, then, and some in many."""
CLOCKS_S: Final = 1e5
"""By how much clocks differ in every second fleet: a day, as where devices have run for so long before."""
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
    split: bool = False,
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
        split: whether it trains a network that is divided, if there are peers enough, with soft errors.
    """
    least, most = peers
    precision = pick.choice(ROUNDED) if not coded else "float32"
    count = pick.integer(least, most if pick.integer(0, 3) == 3 else min(most, max(least, 7)))
    fleet = names(count)
    schedule = Schedule(
        peers=count,
        fanout=pick.integer(1, 4),
        lanes=pick.choice([1, 1, 2, 3, 4, 7]) if not coded else 1,
        rounds=pick.choice([6, 3, 20]),
        size=pick.choice([16, 0, 1, 100, 501, 1100]),
        dtype=pick.choice(["<f4", "<f8"]) if precision == "float32" else "<f4",
        precision=precision,
        infinite=pick.choice([0.0, 0.2]) if precision != "float32" else 0.0,
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
    if not _has_code(schedule):
        schedule = replace(schedule, no_code="dropped")
    if schedule.seed % 2:
        schedule = replace(schedule, clocks_s=CLOCKS_S)
    if schedule.seed % 5 < 2:
        schedule = replace(schedule, hidden=count // (3 - schedule.seed % 5))
    if schedule.seed % 3 == 0:
        schedule = replace(schedule, twice=0.2)
    if schedule.seed % 3 == 2 and schedule.rate_bytes_per_s >= 1e6:
        schedule = replace(schedule, uneven=30 if schedule.rate_bytes_per_s > 1e6 else 10)
    if schedule.seed % 7 == 0:
        most = count // 2 + 1
        schedule = replace(schedule, quorum=most + schedule.seed // 7 % (count + 1 - most))
    if schedule.seed % 11 < 2:
        schedule = replace(schedule, odd=round(0.3 / count, 3))
    schedule = _divided(pick, schedule, within_s) if split else schedule
    if schedule.run == "none":
        return schedule
    if schedule.seed % 4 == 1:
        schedule = replace(schedule, window=WINDOW)
    kept = pick.choice([0, 0, 1, 3]) if schedule.split == "none" else 0
    return replace(schedule, after=pick.choice([0, 0, 1, 3]), checkpoint=kept)


def _has_code(schedule: Schedule) -> bool:
    try:
        parse_code(schedule.code).build(schedule.peers, schedule.fanout)
    except ConfigError:
        return False
    return True


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


def _divided(pick: Picker, schedule: Schedule, within_s: float) -> Schedule:
    """The same fleet with a network that is divided over it, if there are peers enough."""
    possible = [split for split in SPLITS if split_of(split).nodes <= schedule.peers]
    if not possible:
        return schedule
    split, fleet = pick.choice(possible), names(schedule.peers)
    safe = split_of(split).name != "none"
    flips = pick.many(4, lambda pick: _draw_flip(pick, fleet, within_s)) if safe else []
    return replace(
        schedule,
        split=split,
        soft_errors=pick.choice(SOFT_ERRORS) if safe else "none",
        rounds=pick.choice([4, 8]),
        compute_s=pick.choice([0.2, 0.02, 0.5]),
        run="run",
        precision="float32",
        infinite=0.0,
        odd=0.0,
        checkpoint=0,
        code="none",
        wait="exact",
        no_code="refused",
        faults=_in_order([*(each for each in schedule.faults if each.kind not in _OF_WHOLE_STATES), *flips]),
    )


_OF_WHOLE_STATES: Final = ("run", "aside", "quit", "lose")
"""What does not happen to those who train a divided network: each has another state."""


def _draw_flip(pick: Picker, fleet: list[str], within_s: float) -> Fault:
    place = pick.choice(["product", "stored", "encoding", "decoded", "activation", "verdict", "sum"])
    at, kind = pick.integer(0, round(within_s * 100)) / 100, pick.choice(["nan", "garbage", "sparse", "flip"])
    return Fault(at, "flip", (pick.choice(fleet),), extra=f"kind={kind},place={place}")


def _distinct(pick: Picker, some: list[str], many: int) -> list[str]:
    """The first of the order, the root, as often as all others together."""
    left = list(some)
    who: list[str] = []
    while left and len(who) < many:
        who.append(left.pop(pick.integer(0, len(left) - 1) if pick.integer(0, 1) else 0))
    return who


def _in_order(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    """By time; nobody joins twice."""
    seen: set[tuple[str, ...]] = set()
    kept: list[Fault] = []
    for fault in sorted(faults, key=lambda fault: fault.at):
        if not (fault.kind == "join" and fault.who in seen):
            kept.append(fault)
            seen.add(fault.who)
    return tuple(kept)


# -- stories for soaks -------------------------------------------------------------------------------------------


def draw_story(pick: Picker, *, peers: int) -> Schedule:
    """A fleet of up to so many peers, coded or not, with faults of all kinds, and what is hard on a fleet among them:
    restarts within partitions, isolation again and again, several who would take over at once, joiners at any time.
    Half of all are small and have bursts instead. Of the others, one in eight trains a network that is divided, with
    soft errors. In one of eleven owners want this and then that."""
    schedule = _draw_story(pick, peers)
    if schedule.seed % 11 != 3 or schedule.split != "none":
        return schedule
    return draw_owners(Random(schedule.seed), schedule)  # by that seed, so that all else is drawn as it was


def draw_minds(pick: Picker, *, peers: int) -> Schedule:
    """A burst in a fleet of up to seven that takes part in a run, whose owners change their minds, up to twice as often
    as in `draw_story`."""
    schedule = draw_burst(pick, peers=(min(3, peers), min(7, peers)))
    if schedule.run == "none":
        schedule = replace(schedule, run="run", after=pick.choice([0, 1]), checkpoint=pick.choice([0, 0, 1, 3]))
    schedule = draw_owners(pick, schedule)
    return draw_owners(pick, schedule) if pick.integer(0, 1) else schedule


def draw_owners(pick: Picker, schedule: Schedule) -> Schedule:
    """The same, and what owners do beside it: alone or most of a fleet, at any time or in the same second as other
    things; and every second joiner just as it joins."""
    fleet = names(schedule.peers)
    happens, faults = [fault.at for fault in schedule.faults] or [2.0], list[Fault]()
    for _ in range(pick.integer(1, 4)):
        kind, at = pick.choice(OWNERS), pick.integer(0, round(max(happens) * 100) + 300) / 100
        if pick.integer(0, 1):
            at = round(max(0.0, pick.choice(happens) + pick.integer(-100, 200) / 100), 2)
        many = pick.choice([1, 1, 2, len(fleet) // 2 + 1, len(fleet)]) if kind in ("aside", "quit") else 1
        lasts = pick.choice(OWNERS_S if kind != "busy" else LONG_S) + pick.integer(1, 40) / 100
        until = round(at + lasts, 2) if KINDS[kind].lasts == "yes" else None
        faults.append(Fault(at, kind, tuple(_distinct(pick, fleet, many)), until))
    for join in [fault for fault in schedule.faults if fault.kind == "join"]:
        if pick.integer(0, 1):  # it has second thoughts, as likely as not before it is in
            at = round(join.at + pick.integer(0, 150) / 100, 2)
            until = round(at + pick.choice(OWNERS_S) + pick.integer(1, 40) / 100, 2)
            faults.append(Fault(at, pick.choice(["aside", "aside", "quit"]), join.who, until))
    return replace(schedule, faults=_in_order([*schedule.faults, *faults]))


def draw_shapes(pick: Picker, *, peers: int) -> Schedule:
    """Up to six faults of any kind in a fleet that chooses its trees: on lines that are slow enough for it to matter,
    half of the time not all alike, and for so many rounds that trees change."""
    schedule = draw_schedule(
        pick,
        peers=(min(3, peers), peers),
        most_faults=6,
        within_s=20.0,
        lengths_s=LONG_S,
    )
    return replace(
        schedule,
        shape="auto",
        rounds=pick.choice([40, 80]),
        size=pick.choice([5000, 20_000]),
        compute_s=pick.choice([0.02, 0.2]),
        latency_s=pick.choice([5e-3, 2e-2]),
        rate_bytes_per_s=1e6,
        uneven=pick.choice([1, 10]),
    )


def _draw_story(pick: Picker, peers: int) -> Schedule:
    if pick.integer(0, 1):
        return draw_burst(pick, peers=(min(3, peers), min(7, peers)))
    coded = pick.integer(0, 3) == 3
    schedule = draw_schedule(pick, peers=(1, peers), most_faults=8, within_s=20.0, lengths_s=LONG_S, coded=coded)
    fleet = names(schedule.peers)
    hard = pick.many(2, lambda pick: pick.choice(_HARD)(pick, fleet)) if len(fleet) >= 3 else []
    joins = pick.many(2, lambda pick: _draw_fault(pick, ("join",), fleet, 20.0, LONG_S))
    schedule = replace(schedule, faults=_in_order([*schedule.faults, *chain.from_iterable(hard), *joins]))
    if schedule.checkpoint:  # long enough to be gone on with
        schedule = replace(schedule, rounds=pick.choice([20, 60]), compute_s=pick.choice([0.2, 0.5]))
    return _divided(pick, schedule, 20.0) if pick.integer(0, 7) == 7 else schedule


def draw_burst(pick: Picker, *, peers: tuple[int, int] = (3, 7)) -> Schedule:
    """A small fleet, coded or not, to which much happens at once, up to three times: what goes wrong only where a link
    breaks, a process stops and an owner's patience ends within the same second."""
    schedule = draw_schedule(pick, peers=peers, most_faults=0, coded=pick.integer(0, 3) == 3)
    fleet, at, faults = names(schedule.peers), pick.integer(20, 150) / 100, list[Fault]()
    for _ in range(pick.integer(1, 3)):
        for _ in range(pick.integer(2, 5)):
            fault = _draw_fault(pick, BURST, fleet, 1.2, BURST_S)
            until = round(fault.until + at, 2) if fault.until is not None else None
            faults.append(replace(fault, at=round(fault.at + at, 2), until=until))
        at += pick.choice([0.5, 2.0, 3.5, 5.0])
    return replace(schedule, rounds=pick.choice([20, 40]), faults=_in_order(faults))


def _restarts_apart(pick: Picker, fleet: list[str]) -> list[Fault]:
    """Some start anew while they can't reach the others, or the others them."""
    at, lasts = pick.integer(0, 1000) / 100, pick.choice([2.0, 5.0, 12.0, 40.0])
    who = _distinct(pick, fleet, pick.integer(1, max(1, len(fleet) // 2)))
    if pick.integer(0, 1):
        who.append(BROKER)
    faults = [Fault(at, "partition", tuple(who), round(at + lasts, 2))]
    for victim in _distinct(pick, fleet, pick.integer(1, 2)):
        dies = round(at + lasts * pick.integer(0, 8) / 10, 2)
        lives = round(dies + pick.choice([0.1, 0.5, 2.0]), 2)
        faults.append(Fault(dies, pick.choice(["kill", "power"]), (victim,), lives))
    return faults


def _isolated_again(pick: Picker, fleet: list[str]) -> list[Fault]:
    """The same peer, with little time between."""
    (who,), at = _distinct(pick, fleet, 1), pick.integer(0, 1000) / 100
    faults = []
    for _ in range(pick.integer(2, 4)):
        until = round(at + pick.choice([0.5, 2.0, 3.2, 5.0, 12.0]), 2)
        faults.append(Fault(at, "isolate", (who,), until))
        at = round(until + pick.choice([0.0, 0.1, 1.0, 4.0]), 2)
    return faults


def _several_candidates(pick: Picker, fleet: list[str]) -> list[Fault]:
    """The root goes, and two or three who would take over hardly reach each other."""
    at, lasts = pick.integer(0, 1000) / 100, pick.choice([5.0, 12.0, 40.0])
    root, heirs = fleet[0], fleet[1 : 1 + pick.integer(2, 3)]
    ends = round(at + lasts, 2)
    kind = pick.choice(["isolate", "freeze", "kill", "power"])
    back = ends if kind in ("isolate", "freeze") or pick.integer(0, 1) else None
    faults = [Fault(at, kind, (root,), back)]
    ways = [(one, other) for at, one in enumerate(heirs) for other in (*heirs[at + 1 :], BROKER)]
    for one, other in ways:
        cut = pick.choice(["cut", "oneway", "none"])
        if cut != "none":
            both = (other, one) if pick.integer(0, 1) else (one, other)
            faults.append(Fault(round(at + pick.choice([0.0, 0.1, 0.5]), 2), cut, both, ends))
    return faults


def _fleet_restarts(pick: Picker, fleet: list[str]) -> list[Fault]:
    """All lose power, or most, up to three times, and come back one after the other: each time others are first."""
    at, faults = pick.integer(20, 400) / 100, list[Fault]()
    for _ in range(pick.integer(1, 3)):
        spread = pick.choice([0.5, 2.0, 8.0])
        who = _distinct(pick, fleet, pick.integer(len(fleet) // 2 + 1, len(fleet)))
        lives = [round(at + 0.4 + spread * pick.integer(0, 10) / 10, 2) for _ in who]
        kind = pick.choice(["kill", "power"])
        faults += [
            Fault(round(at + pick.integer(0, 30) / 100, 2), kind, (one,), back)
            for one, back in zip(who, lives, strict=True)
        ]
        at = round(max(lives) + pick.choice([0.5, 3.0, 8.0, 15.0]), 2)
    return faults


_HARD: Final = (_restarts_apart, _isolated_again, _several_candidates, _fleet_restarts)
MIXES: Final[dict[str, Callable[..., Schedule]]] = {
    "all": draw_story,
    "owners": draw_minds,
    "shapes": draw_shapes,
}
"""What a soak may draw."""
