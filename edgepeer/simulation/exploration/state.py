"""A small fleet as one value: what is explored, and where it stands."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

from edgepeer.simulation.exploration.calls import OTHER_CALLS
from edgepeer.simulation.exploration.checks import History

__all__ = ["FAULTS", "Action", "Setting", "State", "is_cut"]

Action: TypeAlias = tuple[Any, ...]
FAULTS: Final = (
    "kill", "power", "isolate", "cut", "oneway", "freeze", "reset", "damage", "leave", "timeout", "cancel", "lose",
    *OTHER_CALLS,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What is explored."""

    peers: int = 3
    faults: int = 2
    """How many, at most, one after the other or at once."""
    kinds: tuple[str, ...] = ("kill", "isolate", "cut", "freeze")
    """Which of FAULTS."""
    rounds: int = 3
    """How many rounds applications contribute to; the first is over before anything happens."""
    run: str = "run"
    """What the applications work on; "": plain allreduce calls."""
    fanout: int = 2
    lanes: int = 1
    code: str = "none"
    """How rounds are coded ..."""
    wait: str = "exact"
    """... and when the root may close one."""


class State(NamedTuple):
    """A fleet. Peers are numbered; what is of pairs stands at sender * peers + receiver."""

    lives: tuple[int, ...]
    """Number of each peer's state (`Lives`); -1: it is not alive."""
    born: tuple[int, ...]
    """With which incarnation the last life began."""
    open: tuple[int, ...]
    """Bit set of the peers that each holds a connection to."""
    dials: tuple[int, ...]
    """Bit set of the peers that each tries to connect to."""
    channels: tuple[tuple[int, ...], ...]
    words: tuple[tuple[int, ...], ...]
    """From the broker to each peer."""
    says: tuple[tuple[int, int], ...]
    """Presence and view that each peer wants retained; -1: none."""
    unsaid: int
    """Bit set of the peers whose `says` has not come to the broker yet."""
    sessions: int
    """Bit set of the peers that the broker takes for connected."""
    presences: tuple[int, ...]
    view: int
    """What the broker retains; -1: nothing."""
    active: tuple[Action, ...]
    """Faults that last."""
    off: int
    """Bit set of the dead whose machines are off."""
    held: int
    """Bit set of the sources that are held back."""
    faults: int
    """How many there have been."""
    rounds: int
    """Up to which round the applications contribute."""
    history: History


@lru_cache(maxsize=1 << 14)
def is_cut(active: tuple[Action, ...], a: int, b: int) -> bool:
    """Whether nothing gets from a to b while these faults last. The broker's number is that of the peers."""
    for fault in active:
        if fault[0] == "isolate" and fault[1] in (a, b):
            return True
        if fault[0] == "cut" and {a, b} == {fault[1], fault[2]}:
            return True
        if fault == ("oneway", a, b):
            return True
    return False
