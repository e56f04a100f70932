"""A list of faults that can happen: to peers that exist, in rounds that there are, without contradicting each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Final

from edgepeer.emulation.faults.kinds import (
    BROKER,
    BrokerDown,
    Cut,
    Flip,
    Isolate,
    Kill,
    Partition,
    Pause,
    PlannedFault,
    Restart,
    Span,
    Who,
)
from edgepeer.emulation.faults.scenarios import find_scenario
from edgepeer.emulation.faults.texts import SHAPES, read, show, write
from edgepeer.emulation.jobs import peers_of
from edgepeer.emulation.network.base import EmulatedNetwork
from edgepeer.errors import ConfigError
from edgepeer.following.jobs import nodes_of
from edgepeer.settings import EmulateSettings

__all__ = ["make_plan", "plan_of", "possible"]

_CHANGE_THE_TREE: Final = (Isolate, Kill, Partition, Pause, Restart)


def plan_of(settings: EmulateSettings) -> tuple[PlannedFault, ...]:
    """The faults that an emulation is to have: its scenario's and its own.

    Raises:
        ConfigError: see `make_plan`; or there is no such scenario, or it wants more peers or rounds.
    """
    given = {kind: getattr(settings, kind) for kind in SHAPES}
    peers = peers_of(settings)
    if settings.scenario is not None:
        scenario = find_scenario(settings.scenario)
        for field, asked in (("peers", peers), ("rounds", settings.rounds)):
            fewest = getattr(scenario, field)
            if asked < fewest:
                raise ConfigError(
                    f"scenario = {scenario.name}: needs {fewest} {field} or more: {field} = {asked}; "
                    f"add --{field} {fewest}"
                )
        given = {kind: (*scenario.faults.get(kind, ()), *own) for kind, own in given.items()}
    own_broker = settings.broker in ("embedded", "mosquitto")
    return make_plan(given, peers=peers, rounds=settings.rounds, own_broker=own_broker, nodes=nodes_of(settings))


def possible(
    faults: Sequence[PlannedFault], network: EmulatedNetwork, *, skip: bool, note: Callable[[str], None]
) -> tuple[PlannedFault, ...]:
    """The faults that this network can have: without a firewall none of links.

    Args:
        skip: leave out the others, and `note` that.

    Raises:
        ConfigError: there are others, and they are not to be left out.
    """
    if network.mode != "none":
        return tuple(faults)
    kept = tuple(fault for fault in faults if not isinstance(fault, Cut | Isolate | Partition))
    others = [fault for fault in faults if fault not in kept]
    if others and not skip:
        raise _refusal(others[0], f"{network.description}; --skip-impossible leaves it out")
    for fault in others:
        note(f"left out {fault.kind} {write(fault)}: {network.description}")
    return kept


def make_plan(
    given: Mapping[str, Iterable[str]], *, peers: int, rounds: int, own_broker: bool = True, nodes: int = 0
) -> tuple[PlannedFault, ...]:
    """The faults that the texts describe, by kind, in the order of their times.

    Args:
        peers, rounds: of the emulation.
        own_broker: whether the broker is ours to stop.
        nodes: of the split; 0: the job isn't split.

    Raises:
        ConfigError: a text is none, or the faults can't all happen; one line with kind, text and what is allowed.
    """
    faults = [read(kind, text) for kind in SHAPES for text in given.get(kind, ())]
    faults.sort(key=lambda fault: (fault.span.unit, fault.span.start))
    _check(faults, peers=peers, rounds=rounds, own_broker=own_broker, nodes=nodes)
    return tuple(faults)


def _check(faults: Sequence[PlannedFault], *, peers: int, rounds: int, own_broker: bool, nodes: int) -> None:
    for fault in faults:
        if isinstance(fault, Flip) and not nodes:
            raise _refusal(fault, "only split jobs have soft errors: add --split, such as codenet:m=2,n=2,t=1")
        if isinstance(fault, Flip) and fault.node >= nodes:
            raise _refusal(fault, f"node {fault.node} is unknown: the split has 0 to {nodes - 1}")
        for who in fault.concerns:
            if who.by == "number" and who.index >= peers:
                raise _refusal(fault, f"peer {who.index} is unknown: must be 0 to {peers - 1}")
            if who.by == "position" and who.index >= peers:
                raise _refusal(fault, f"position {who.index} is not in the tree: must be 0 to {peers - 1}")
        if fault.span.unit == "round" and fault.span.start > rounds:
            raise _refusal(fault, f"the job ends before that: must be in rounds 1 to {rounds}")
        if isinstance(fault, BrokerDown) and not own_broker:
            raise _refusal(
                fault, "only a broker that is started here can be stopped: must go with embedded or mosquitto"
            )
        if isinstance(fault, Partition):
            _check_sides(fault, peers)
    subjects = dict.fromkeys(fault.subject for fault in faults if fault.subject is not None)
    for subject in subjects:
        _check_life([fault for fault in faults if fault.subject == subject], subject)
    _check_reached([fault for fault in faults if fault.span.unit == "round"], peers)
    _check_places(faults)


def _check_places(faults: Sequence[PlannedFault]) -> None:
    """Who is where in the tree is told by the broker."""
    for down in (fault for fault in faults if isinstance(fault, BrokerDown)):
        those = [f for f in faults if f.span.unit == down.span.unit and f.span.start >= down.span.start]
        changes = (fault for fault in those if isinstance(fault, _CHANGE_THE_TREE))
        if (first := min(changes, key=lambda fault: fault.span.start, default=None)) is None:
            continue
        for fault in those:
            by_place = any(who.by in ("position", "last") for who in fault.concerns)
            if by_place and fault.span.start > first.span.start and not _over(down.span, fault.span.start):
                raise _refusal(
                    fault,
                    f"after {first.kind} {write(first)} nobody can tell who that is while the broker is down: "
                    "give a number",
                )


def _check_sides(fault: Partition, peers: int) -> None:
    named = [who for who in fault.concerns if who != BROKER]
    rest = () in fault.sides
    if not rest and len(named) < peers:
        by_number = all(who.by == "number" for who in named)
        unnamed = min(set(range(peers)).difference(who.index for who in named))
        some = f"peer {unnamed} is" if by_number else f"{peers - len(named)} of {peers} peers are"
        raise _refusal(fault, f"{some} on no side: name all {peers}, or let one side be rest")
    if rest and len(named) >= peers:
        raise _refusal(fault, "nobody is left for the rest")


def _check_reached(faults: Sequence[PlannedFault], peers: int) -> None:
    """Where rounds stand, none that comes later is ever reached, nor the end of what they stand for."""
    alive = peers
    away: list[float | None] = []
    """The last rounds of those who are frozen, or reach nobody."""
    for start in sorted({fault.span.start for fault in faults}):
        now = [fault for fault in faults if fault.span.start == start]
        away = [end for end in away if end is None or end >= start]
        there = alive - len(away)  # rounds go on without the others by now
        killed = [fault for fault in now if isinstance(fault, Kill)]
        out = [fault for fault in now if isinstance(fault, Pause | Isolate)]
        later = next((fault for fault in faults if fault.span.start > start), None)
        for fault in now:
            never = fault if fault.span.end is not None else later
            if isinstance(fault, Partition) and 2 * _largest(fault, peers) < there and never is not None:
                raise _stands(never, start, f"no side of {write(fault)} has half of the {there} peers")
        lost = len(killed) + len(out)
        # Who is cut off with half of two goes on; and the first to join is the head until something happens to it.
        heads = {Who("position", 0), *([Who("number", 0)] if there == peers else [])}
        head = any(fault.peer in heads for fault in [*killed, *(f for f in out if isinstance(f, Pause) or there > 2)])
        never = next((fault for fault in out if fault.span.end is not None), later)
        if (2 * lost > there or (2 * lost == there and head)) and never is not None:
            how = "frozen, cut off or killed" if out else "killed"
            raise _stands(never, start, f"{lost} of {there} peers are {how} then, and the others are too few to go on")
        away += [fault.span.end for fault in out]
        alive += sum(isinstance(fault, Restart) for fault in now) - len(killed)


def _largest(fault: Partition, peers: int) -> int:
    """How many are on the largest side."""
    named = [sum(who != BROKER for who in side) for side in fault.sides]
    return max(*named, peers - sum(named) if () in fault.sides else 0)


def _stands(fault: PlannedFault, start: float, why: str) -> ConfigError:
    return _refusal(fault, f"rounds end at {start:g}: {why}; give all times in seconds, such as 20s")


def _check_life(faults: Sequence[PlannedFault], subject: Who) -> None:
    """What happens to one peer, or the broker, must follow on each other."""
    for first, second in combinations(faults, 2):
        if first.span.unit != second.span.unit:
            raise _refusal(
                second, f"{first.kind} {write(first)} counts otherwise: both must be in rounds, or in seconds"
            )
    killed: PlannedFault | None = None
    before: PlannedFault | None = None
    for fault in sorted(faults, key=lambda fault: fault.span.start):
        if isinstance(fault, Restart):
            if killed is None:
                raise _refusal(fault, f"peer {show(subject)} is not dead then: it must be killed before, by kill")
            if fault.span.start <= killed.span.start:
                raise _refusal(fault, f"must come after kill {write(killed)}")
            killed = None
            before = None
            continue
        if killed is not None and subject.by == "number":  # at a place in the tree there is soon somebody else
            raise _refusal(
                fault, f"peer {show(subject)} is dead since kill {write(killed)}: it must be restarted first"
            )
        if before is not None and not _over(before.span, fault.span.start):
            raise _refusal(fault, f"{before.kind} {write(before)} is not over then: they must not overlap")
        if isinstance(fault, Kill):
            killed, before = fault, None
        else:
            before = fault


def _over(span: Span, start: float) -> bool:
    if span.end is None:
        return False
    return span.end < start if span.unit == "round" else span.end <= start


def _refusal(fault: PlannedFault, reason: str) -> ConfigError:
    return ConfigError(f"{fault.kind} = {write(fault)}: {reason}")
