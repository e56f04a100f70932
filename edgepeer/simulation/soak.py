"""Random schedules, one after the other, until one breaks something or time is up. Same seed, same schedules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from edgepeer.errors import ProtocolBug
from edgepeer.simulation.account import Account
from edgepeer.simulation.drawing import LONG_S, Random, draw_schedule
from edgepeer.simulation.schedule import Schedule
from edgepeer.simulation.shrinking import shrink
from edgepeer.simulation.story import Story

__all__ = ["Tally", "broken", "smallest", "soak"]


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


def broken(schedule: Schedule, tally: Tally | None = None, account: Account | None = None) -> str | None:
    """What a schedule breaks, None if all is well. `tally` and `account` are kept, if given."""
    story = Story(schedule, account=account)
    try:
        story.tell()
    except ProtocolBug as error:
        return str(error)
    finally:
        if tally is not None:
            tally.schedules += 1
            tally.unfinished += not story.ended_well
            tally.rounds += story.world.ledger.checked
            tally.events += story.world.clock.events
            tally.virtual_s += story.world.clock.now
            tally.faults.update(story.happened)
    return None


def smallest(schedule: Schedule, *, tries: int = 400) -> Schedule:
    """The smallest schedule found that still breaks something; its comment says what.

    Args:
        schedule: breaks something.
        tries: how many smaller ones are tried.
    """
    small = shrink(schedule, lambda each: broken(each) is not None, tries=tries)
    return replace(small, comment=" ".join((broken(small) or "").split())[:300])


def soak(go_on: Callable[[Tally], bool], *, seed: int = 0, peers: int = 15) -> Schedule | None:
    """Go through schedules with up to so many peers.

    Args:
        go_on: asked before each schedule.
        seed: of the first schedule; the next has the next seed.
        peers: how many at most.

    Returns:
        The first schedule that breaks something, None if there was none.
    """
    tally = Tally()
    while go_on(tally):
        pick = Random(seed + tally.schedules)
        schedule = draw_schedule(pick, peers=(1, peers), most_faults=8, within_s=20.0, lengths_s=LONG_S)
        if broken(schedule, tally) is not None:
            return schedule
    return None
