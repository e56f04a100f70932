"""Makes a schedule that breaks something smaller, as long as it still breaks something."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Final

from edgepeer.errors import ConfigError
from edgepeer.simulation.schedule import Fault, Schedule, names

__all__ = ["shrink"]

_KEPT: Final = ("peers", "faults", "comment")
_FEWER: Final = (1, 2, 3, 4, 5, 6, 7, 9, 11, 13)


def shrink(schedule: Schedule, breaks: Callable[[Schedule], bool], *, tries: int = 400) -> Schedule:
    """The smallest schedule found within so many `tries`: fewer faults, fewer peers, simpler settings, rounder times.

    Args:
        schedule: what breaks.
        breaks: whether another one does, too. What it holds for need not be broken in the same way.
    """
    found = True
    while found:
        found = False
        for smaller in _smaller(schedule):
            if not _can_be(smaller):
                continue
            if tries == 0:
                return schedule
            tries -= 1
            if breaks(smaller):
                schedule, found = smaller, True
                break
    return schedule


def _can_be(schedule: Schedule) -> bool:
    """Whether it says nothing that is impossible: a split and a code need so many peers, and a `wait` a code."""
    try:
        schedule.check()
    except (ValueError, ConfigError):
        return False
    return True


def _smaller(schedule: Schedule) -> Iterator[Schedule]:
    for at in range(len(schedule.faults)):
        yield replace(schedule, faults=schedule.faults[:at] + schedule.faults[at + 1 :])
    for peers in _FEWER:
        if peers < schedule.peers and (fewer := _with_peers(schedule, peers)) is not None:
            yield fewer
    for field in fields(Schedule):
        if field.name not in _KEPT and getattr(schedule, field.name) != field.default:
            yield replace(schedule, **{field.name: field.default})  # type: ignore[arg-type]
    for at, fault in enumerate(schedule.faults):
        for simpler in _simpler(fault):
            yield replace(schedule, faults=(*schedule.faults[:at], simpler, *schedule.faults[at + 1 :]))


def _with_peers(schedule: Schedule, peers: int) -> Schedule | None:
    """The same with fewer peers, if it does not need the others."""
    old, new = names(schedule.peers), names(peers)
    renamed = dict(zip(old, new, strict=False))
    gone = set(old[peers:])
    faults = []
    for fault in schedule.faults:
        if gone & set(fault.who):
            return None
        faults.append(replace(fault, who=tuple(renamed.get(name, name) for name in fault.who)))
    return replace(schedule, peers=peers, faults=tuple(faults))


def _simpler(fault: Fault) -> Iterator[Fault]:
    for places in (0, 1):
        at = round(fault.at, places)
        if at != fault.at:
            yield replace(fault, at=at, until=fault.until if fault.until is None or fault.until > at else at + 1)
            break
    if fault.until is not None:
        until = float(int(fault.until))
        if fault.at < until < fault.until:
            yield replace(fault, until=until)
        half = round((fault.at + fault.until) / 2, 1)
        if fault.at < half < fault.until and fault.until - fault.at > 0.2:
            yield replace(fault, until=half)
