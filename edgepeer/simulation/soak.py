"""Random schedules, one after the other, until one breaks something or time is up. Same seed, same schedules."""

from __future__ import annotations

import gc
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import count, takewhile
from typing import Final, TypeAlias

from edgepeer.errors import ProtocolBug
from edgepeer.simulation.account import Account
from edgepeer.simulation.drawing import MIXES, Random
from edgepeer.simulation.schedule import Schedule
from edgepeer.simulation.shrinking import shrink
from edgepeer.simulation.story import Story

__all__ = ["Looked", "Over", "Tally", "broken", "drawn_from", "look", "smallest", "soak"]

_COLLECT_AFTER: Final = 100_000, 20, 100
"""New objects, before Python looks for circles among them; how often that is, before it looks among older ones as well;
and again. Fleets make next to none, but a million presences: to look through those every 700 objects takes a third of a
large fleet's time, and looking through all that a small one is made of a twelfth."""


@dataclass(slots=True)
class Tally:
    """What has been gone through so far."""

    schedules: int = 0
    unfinished: int = 0
    """Schedules after which too few were alive for anybody to go on."""
    rounds: int = 0
    """Ends of rounds that were checked."""
    events: int = 0
    virtual_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    """By kind: how many found somebody to happen to."""

    def add(self, other: Tally) -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


@dataclass(frozen=True, slots=True)
class Looked:
    """What one seed has come to."""

    seed: int
    complaint: str | None
    """What it breaks."""
    tally: Tally


Over: TypeAlias = Callable[[Callable[[int], Looked], Iterator[int]], Iterator[Looked]]
"""`map`, or what does the same on several cores, in any order: takes seeds only as it needs them."""


def broken(
    schedule: Schedule,
    tally: Tally | None = None,
    account: Account | None = None,
    *,
    make: Callable[..., Story] = Story,
) -> str | None:
    """What a schedule breaks, None if all is well. `tally` and `account` are kept, if given; `make` makes the story."""
    story = make(schedule, account=account)
    try:
        with _seldom_collecting():
            story.tell()
    except ProtocolBug as error:
        return str(error)
    except Exception as error:  # whatever the protocol raises, somebody must be able to let it happen again
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} in {where.name}, line {where.lineno} of {where.filename}: {error}"
    finally:
        if tally is not None:
            tally.add(
                Tally(
                    schedules=1,
                    unfinished=not story.ended_well,
                    rounds=story.world.ledger.checked,
                    events=story.world.clock.events,
                    virtual_s=story.world.clock.now,
                    faults=Counter(story.happened),
                )
            )
    return None


@contextmanager
def _seldom_collecting() -> Iterator[None]:
    before = gc.get_threshold()
    if before[0]:  # 0: whoever has called wants none at all
        gc.set_threshold(*map(max, before, _COLLECT_AFTER))
    try:
        yield
    finally:
        gc.set_threshold(*before)


def smallest(schedule: Schedule, *, tries: int = 400, make: Callable[..., Story] = Story) -> Schedule:
    """The smallest schedule found that still breaks the same; its comment says what.

    Args:
        schedule: breaks something.
        tries: how many smaller ones are tried.
        make: makes the story that breaks.
    """
    kind = _kind(broken(schedule, make=make))
    small = shrink(schedule, lambda each: _kind(broken(each, make=make)) == kind, tries=tries)
    return replace(small, comment=" ".join((broken(small, make=make) or "").split())[:300])


def _kind(complaint: str | None) -> str | None:
    """A complaint without whom and when: what is broken."""
    return None if complaint is None else " ".join(w for w in complaint.split() if w.strip(".,:;()").isalpha())


def drawn_from(seed: int, peers: int, mix: str = "all") -> Schedule:
    """A seed's schedule, with up to so many peers, of one of the `MIXES`."""
    return MIXES[mix](Random(seed), peers=peers)


def look(seed: int, *, peers: int, mix: str = "all") -> Looked:
    """Let a seed's schedule happen."""
    tally = Tally()
    return Looked(seed, broken(drawn_from(seed, peers, mix), tally), tally)


def soak(
    go_on: Callable[[Tally], bool],
    *,
    seed: int = 0,
    peers: int = 21,
    mix: str = "all",
    limit: int | None = None,
    over: Over = map,
) -> Looked | None:
    """Go through schedules with up to so many peers.

    Args:
        go_on: asked before each schedule.
        seed: of the first schedule; the next has the next seed.
        peers: how many at most.
        mix: what is drawn (`MIXES`).
        limit: of the number of schedules.
        over: what goes through them.

    Returns:
        The first that was found to break something, None if none was.
    """
    tally = Tally()
    seeds = takewhile(lambda _: go_on(tally), count(seed) if limit is None else iter(range(seed, seed + limit)))
    for looked in over(partial(look, peers=peers, mix=mix), seeds):
        tally.add(looked.tally)
        if looked.complaint is not None:
            return looked
    go_on(tally)
    return None
