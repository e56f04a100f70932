"""What of a round of stragglers.py is no measurement: who is slow in it, how long each device computes, and when enough
is computed for the sum to be had, if telling anybody took no time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from edgepeer.coding.code import GradientCode
from edgepeer.coding.spec import parse_code
from edgepeer.coding.speed import parse_speed

__all__ = ["enough_after", "names_of", "seconds_of"]


@lru_cache
def names_of(peers: int) -> tuple[str, ...]:
    """What the devices are called."""
    return tuple(f"d{rank}" for rank in range(peers))


def seconds_of(rank: int, peers: int, number: int, speed: str) -> float:
    """How long a device takes in a round for what it computes where nothing is coded."""
    names = names_of(peers)
    return _speed(speed).seconds(names[rank], number, 0, among=names)


_speed = lru_cache(parse_speed)


@lru_cache
def _code(name: str, peers: int, fanout: int) -> GradientCode:
    return parse_code(name).build(peers, fanout)


def enough_after(code: str, fanout: int, slots: Sequence[int], number: int, speed: str) -> float:
    """Seconds from a round's beginning until its sum can be had.

    Args:
        slots: which device computes for each slot of the code.
    """
    peers = len(slots)
    built = _code(code, peers, fanout)
    chunk = peers / built.chunks  # of what a device has where nothing is coded
    ready = sorted(
        (place * chunk * seconds_of(slots[slot], peers, number, speed), slot)
        for slot, order in enumerate(built.assignment.orders)
        for place in range(1, len(order) + 1)
    )
    done = [0] * peers
    for seconds, slot in ready:
        done[slot] += 1
        recovery = built.recovery(done)
        if recovery.exact or recovery.enough:
            return seconds
    raise ValueError(f"{code}: never")
