"""What must be true of every state of a fleet, whatever the machines think of it.

- Of one generation, a round ends in one way only, whoever has seen it, and whether they live or not: neither other bits
  nor other contributors, nor a sum and none.
- No application sees a round end twice, or out of order; every sum is the sum over its contributors (`life.py`).
- Of one generation and epoch there is one view: no two are installed, and no two proposals for it are each accepted by
  a quorum of the view before, in whatever ballots.
- Of a round that has ended in a view, every later view of the generation has a member that has its end, or holds it.
- Once a view is settled for anybody, all members have seen all rounds end that have ended in views before it, but for
  one that was put forward again, and has been decided in this view as well. Who has lost its state since has seen them.
- A life that is frozen sends nothing that could help to decide a round of its view.
- No machine breaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Final, TypeAlias

from edgepeer.errors import ProtocolBug
from edgepeer.ids import Generation, PeerId
from edgepeer.simulation.exploration.life import Committed, Facts, Frames, Step
from edgepeer.topology.view import Life, View
from edgepeer.wire.codec import unwrap
from edgepeer.wire.frames import Have, Reduce, Result, Via

__all__ = ["NOTHING_YET", "History", "Violation", "check_sent", "ended", "look_at"]


class Violation(ProtocolBug):
    """Something is true of a fleet that must not be."""


_Key: TypeAlias = tuple[Generation, int]


@dataclass(frozen=True, slots=True)
class _End:
    """How a round has ended at the first who saw it."""

    peer: PeerId
    end: Committed
    epoch: int
    """Of the view that it worked in."""
    last: int
    """Of the last view that has decided it: what is held from one is put forward again in the next."""


@dataclass(frozen=True, slots=True)
class History:
    """What is on record."""

    ends: tuple[tuple[_Key, _End], ...] = ()
    """By generation and round."""
    views: tuple[tuple[tuple[Generation, int], View], ...] = ()
    """All that were ever installed, by generation and epoch."""
    votes: tuple[tuple[tuple[View, int, View], frozenset[PeerId]], ...] = ()
    """Of views that anybody works in: in which ballot which proposal was accepted, and by whom. By nobody: the ballot
    is void."""
    past: tuple[tuple[Life, int], ...] = ()
    """Lives that have ended, and up to which round they knew, or held, how all have ended."""
    fingerprint: bytes = field(default=b"", compare=False)


NOTHING_YET: Final = History()


def look_at(history: History, peer: int, before: Facts | None, step: Step, facts: Sequence[Facts | None]) -> History:
    """The history after a step of a peer. `before`: where it stood before; `facts`: of all that live, after it.

    Raises:
        Violation: something is true that must not be.
    """
    mine = facts[peer]
    if mine is None:
        return history
    if before is not None and before.me.incarnation != mine.me.incarnation:
        history = ended(history, before)
    history = _views(history, step, facts)
    history, news = _ends(history, mine, step)
    if before is not None and before.view == mine.view and before.leading not in (-1, mine.leading):
        history = _void(history, mine, before.leading)
    if mine.accepted is not None and (before is None or before.accepted != mine.accepted):
        history = _accepted(history, mine, facts)
    for each in facts:
        if each is not None and each.settled and (news or each is mine):
            _check_settled(history, each, facts)
    return history


def ended(history: History, life: Facts) -> History:
    """The history after the end of a life."""
    of = Life(life.me.id, life.me.incarnation), life.over + life.holding
    past = sorted((*history.past, of), key=lambda item: (item[0].id, item[0].incarnation))
    return _printed(replace(history, past=tuple(past)))


def check_sent(frames: Frames, number: int, sender: Facts) -> None:
    """A frozen life must not say this.

    Raises:
        Violation: it has.
    """
    frame, data = frames[number]
    if isinstance(frame, Via) and frame.source == sender.peer:
        frame = unwrap(frame, len(data))
    helps = isinstance(frame, Reduce | Have) or (isinstance(frame, Result) and frame.up)
    if helps and sender.view is not None and frame.epoch == sender.view.stamp:
        raise Violation(f"{sender.peer} is frozen, and sends {type(frame).__name__} of round {frame.round}")


def _printed(history: History) -> History:
    known = history.ends, [view.stamp for _, view in history.views], history.past
    votes = [(before.stamp, ballot, to.stamp, sorted(who)) for (before, ballot, to), who in history.votes]
    return replace(history, fingerprint=blake2b(repr((known, votes)).encode(), digest_size=8).digest())


# -- rounds --------------------------------------------------------------------------------------------------------


def _ends(history: History, mine: Facts, step: Step) -> tuple[History, bool]:
    ends = dict(history.ends)
    for end in step.ends:
        known = ends.get((end.generation, end.round))
        last = mine.proven >> 32
        if known is None:
            epoch = mine.view.epoch if mine.view is not None else end.epoch >> 32
            ends[end.generation, end.round] = _End(mine.peer, end, epoch, last)
        elif (known.end.total, known.end.contributors) != (end.total, end.contributors):
            was, now = _told(known.end), _told(end)
            raise Violation(f"{mine.peer} ends round {end.round} with {now}, but {known.peer} with {was}")
        elif known.last < last:
            ends[end.generation, end.round] = replace(known, last=last)
    news = len(ends) > len(history.ends)
    found = tuple(sorted(ends.items(), key=lambda item: item[0]))
    return (_printed(replace(history, ends=found)) if found != history.ends else history), news


def _told(end: Committed) -> str:
    return f"the sum over {', '.join(end.contributors)}" if end.contributors else "no sum"


def _newest_before(history: History, view: View) -> int:
    """The last round that has ended in an earlier view of the same chain."""
    found = (number for (of, number), end in history.ends if of == view.generation and end.epoch < view.epoch)
    return max(found, default=0)


def _knows(life: Life, history: History, facts: Sequence[Facts | None], *, knew: bool = False) -> int:
    """Up to which round a life knows, or holds, how all have ended. `knew`: or knew so."""
    for each in facts:
        if each is not None and (each.me.id, each.me.incarnation) == (life.id, life.incarnation):
            return max(each.over + each.holding, each.knew if knew else 0)
    return next((upto for of, upto in history.past if of == life), 0)


def _check_settled(history: History, mine: Facts, facts: Sequence[Facts | None]) -> None:
    view = mine.view
    if view is None or not view.guards:
        return
    ends = ((number, end) for (of, number), end in history.ends if of == view.generation and end.epoch < view.epoch)
    newest = max((number for number, end in ends if end.last < view.epoch), default=0)
    for member in view.members:
        if _knows(Life(member.id, member.incarnation), history, facts, knew=True) < newest:
            what = f"and {member.id} does not know how round {newest} has ended"
            raise Violation(f"view {view.epoch} ({_members(view)}) is settled for {mine.peer}, {what}")


# -- views ---------------------------------------------------------------------------------------------------------


def _views(history: History, step: Step, facts: Sequence[Facts | None]) -> History:
    views = dict(history.views)
    for view in step.views:
        other = views.setdefault(view.place, view)
        if other != view:
            raise Violation(f"two views of epoch {view.epoch}: {_members(other)}; {_members(view)}")
        newest = _newest_before(history, view)
        lives = [Life(member.id, member.incarnation) for member in view.members]
        if newest and view.run and max(_knows(life, history, facts) for life in lives) < newest:
            what = f"holds the end of round {newest}, which counts"
            raise Violation(f"nobody in view {view.epoch} ({_members(view)}) {what}")
    if not step.views:
        return history
    working = {each.view for each in facts if each is not None}
    votes = tuple(item for item in history.votes if item[0][0] in working)
    return _printed(replace(history, views=tuple(sorted(views.items(), key=lambda item: item[0])), votes=votes))


def _accepted(history: History, mine: Facts, facts: Sequence[Facts | None]) -> History:
    """A life has accepted a proposal: once a quorum has, in one ballot, no other can be chosen."""
    view, votes = mine.view, dict(history.votes)
    if view is None or mine.accepted is None:
        return history
    ballot, proposal = mine.accepted
    key = view, ballot, proposal
    if votes.get(key) == frozenset():
        return history
    votes[key] = votes.get(key, frozenset()) | {mine.peer}
    settled = any(each is not None and each.view == view and each.settled for each in facts)
    chosen = {to for (before, _, to), who in votes.items() if before == view and view.may_go_on(who, settled=settled)}
    if len(chosen) > 1:
        one, other = sorted(chosen, key=lambda each: each.stamp)
        raise Violation(f"view {view.epoch} has two successors: {_members(one)}; {_members(other)}")
    order = sorted(votes.items(), key=lambda item: (item[0][0].stamp, item[0][1], item[0][2].stamp))
    return _printed(replace(history, votes=tuple(order)))


def _void(history: History, mine: Facts, ballot: int) -> History:
    """A life has given up the ballot that it led: nobody else counts the votes of that."""
    votes = tuple((key, frozenset() if key[:2] == (mine.view, ballot) else who) for key, who in history.votes)
    return _printed(replace(history, votes=votes)) if votes != history.votes else history


def _members(view: View) -> str:
    return ", ".join(f"{member.id}/{member.incarnation >> 16}" for member in view.members)
