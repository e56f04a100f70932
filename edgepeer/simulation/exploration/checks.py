"""What must be true of every state of a fleet, whatever the machines think of it.

- No two applications see different ends of a round: neither other bits nor other contributors, nor a sum and none. What
  the dead knew counts for as long as a majority of the view lives in which it was decided.
- No application sees a round end twice, or out of order; every sum is the sum over its contributors (`life.py`).
- Of a round that has counted somewhere, every view that is made later has a member that has its end, or holds it.
- A view has no two successors, where that is asked for.
- No machine breaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from edgepeer.errors import ProtocolBug
from edgepeer.ids import PeerId
from edgepeer.simulation.exploration.life import Committed, Facts, Step
from edgepeer.topology.view import View

__all__ = ["NOTHING_YET", "History", "Violation", "living", "look_at"]


class Violation(ProtocolBug):
    """Something is true of a fleet that must not be."""


@dataclass(frozen=True, slots=True)
class _End:
    """How a round has ended."""

    end: Committed
    view: View | None
    """In which it was decided, as far as that is known."""


@dataclass(frozen=True, slots=True)
class History:
    """What is on record."""

    ends: tuple[tuple[tuple[int, int], _End], ...] = ()
    """By generation and round."""
    views: tuple[View, ...] = ()
    """All that were ever installed."""
    fingerprint: bytes = field(default=b"", compare=False)


NOTHING_YET: Final = History()


def look_at(history: History, peer: int, step: Step, facts: Sequence[Facts | None], *, one_successor: bool) -> History:
    """The history after a step of a peer. `facts`: of all that live, after it.

    Raises:
        Violation: something is true that must not be.
    """
    ends, views = dict(history.ends), history.views
    for view in step.views:
        if view not in views:
            views = (*views, view)
            _check_view(view, history, ends, facts, one_successor)
    mine = facts[peer]
    name = mine.peer if mine is not None else PeerId(str(peer))
    for end in step.ends:
        key = end.generation, end.round
        known = ends.get(key)
        if known is not None and _same(known.end, end):
            continue
        if known is not None:
            _rule_out(name, known, end, facts)
        decided_in = next((view for view in reversed(views) if view.epoch == end.epoch), None)
        ends[key] = _End(end, decided_in)
    if (tuple(ends.items()), views) == (history.ends, history.views):
        return history
    ordered, seen = tuple(sorted(ends.items(), key=lambda item: item[0])), tuple(sorted(views, key=lambda v: v.stamp))
    printed = blake2b(repr((ordered, seen)).encode(), digest_size=8).digest()
    return History(ordered, seen, printed)


def _same(one: Committed, other: Committed) -> bool:
    return (one.total, one.contributors) == (other.total, other.contributors)


def _told(end: Committed) -> str:
    return f"the sum over {', '.join(end.contributors)}" if end.contributors else "no sum"


def _rule_out(name: PeerId, known: _End, end: Committed, facts: Sequence[Facts | None]) -> None:
    """Nobody may know of the end that is on record."""
    said = f"{name} ends round {end.round} with {_told(end)}, but {{}} with {_told(known.end)}"
    for other in facts:
        if other is not None and other.peer != name and other.rounds.get(end.round) == known.end.total:
            raise Violation(said.format(other.peer))
    if known.view is not None and living(known.view, facts) * 2 > known.view.size:
        raise Violation(said.format(f"a majority of view {known.view.epoch} lives, which has ended it"))


def living(view: View, facts: Sequence[Facts | None]) -> int:
    """How many of a view's lives go on."""
    lives = {each.peer: each.me.incarnation for each in facts if each is not None}
    return sum(lives.get(PeerId(member.id)) == member.incarnation for member in view.members)


def _check_view(
    view: View,
    history: History,
    ends: dict[tuple[int, int], _End],
    facts: Sequence[Facts | None],
    one_successor: bool,
) -> None:
    generation = getattr(view, "generation", 0)
    if one_successor:
        for other in history.views:
            if (getattr(other, "generation", 0), other.epoch) == (generation, view.epoch) and other.stamp != view.stamp:
                raise Violation(f"two views of epoch {view.epoch}: {_members(other)}; {_members(view)}")
    newest = max((key for key in ends if key[0] == generation), default=None)
    if newest is None:
        return
    known = ends[newest]
    if known.view is None or known.view.run != view.run or living(known.view, facts) * 2 <= known.view.size:
        return
    for each in facts:
        if each is not None and each.peer in view and (each.over >= newest[1] or each.holding):
            return
    raise Violation(f"nobody in view {view.epoch} ({_members(view)}) holds the end of round {newest[1]}, which counts")


def _members(view: View) -> str:
    return ", ".join(f"{member.id}/{member.incarnation >> 16}" for member in view.members)
