"""In no view: wait to be let in, or begin a generation.

    heard of                                    | this peer
    --------------------------------------------+---------------------------------------------------------------
    somebody who is there, and in a view        | waits to be let in by that view's coordinator
    others who are there, and outside           | the smallest id begins a generation with all of these; the next
                                                | does if that does not happen, and so on
    a view, of which nobody answers             | begins one after it: at once if all of its lives have ended, or so
                                                | their machines say; after `silence_s` if no majority of them is left
                                                | to go on, for who is may be slow to answer; if there is one, its
                                                | members may be frozen, or cut off: after
                                                | `anew_s`; after `anew_run_s` if it works on the run that is wanted
                                                | here, or is to be once the owner is ready, and only if there are
                                                | enough peers for that. And only while the broker brings this peer its
                                                | own letters: else it may be this one that is cut off

Only those who have spoken in this life are counted on, whatever is retained of others (rollcall.py). Whoever is soon to
begin calls everybody, and begins nothing before they have had time to answer: one before it in the order may wait for a
view that only that one has heard of. Others call only those before them, more and more of them while none answers.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from edgepeer.ids import Generation, PeerId
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.membership import Membership
from edgepeer.protocol.rollcall import RollCall, Word
from edgepeer.topology.view import MAX_MEMBERS, Member, View, enough, hand_on

__all__ = ["Outside"]

_PROBED: Final = 8
"""So many members of a view that does not admit us are connected with at a time."""
_LEAP: Final = 1_000_000
"""No fleet has begun anew so often that nobody has heard of it."""
_CALLED: Final = 64
"""And so many called."""
_FURTHER: Final = 8
"""If none of those answers that are called, so many times more are: few of a fleet that is there, and soon all of one
that is not."""
_APART: Final = 4
"""So many begin one after the other where all learn at once that they may; further ones do together with the last."""


class Outside:
    """One peer while it is in no view."""

    def __init__(self, membership: Membership, rolls: RollCall, limits: Limits) -> None:
        self._membership = membership
        self._rolls = rolls
        self._limits = limits
        self.hint: View | None = None
        """The newest view that was heard of, and that this peer is not in. It may be of the dead."""
        self.hint_at = 0.0
        """When it was last heard of ..."""
        self.hint_since = 0.0
        """... and when the first that is newer than this peer's own was."""
        self._synced_at: float | None = None
        self._since = 0.0
        """When it came to be outside, or could begin to ask who else is."""
        self._quiet_since = 0.0
        """When somebody in a view was last heard of, or this peer was in one, or could not have heard of anybody."""
        self._held_at = float("-inf")
        """When it was left to the members of a view to come back, last."""
        self._refused: set[PeerId] = set()
        self._reach = 1
        """How many of those before this peer in the order are called."""
        self._all_since = float("inf")
        """Since when everybody is called."""

    def on_synced(self, now: float) -> None:
        """All that MQTT retains is known."""
        self._synced_at = self._quiet_since = self._since = now

    def enter(self, view: View | None, now: float) -> None:
        """This peer has come to be outside, because of that view."""
        if view is not None:
            self.on_hint(view, now)
        self._quiet_since = self._since = now
        self._rolls.wait_anew(now)
        self._refused.clear()
        self._reach, self._all_since = 1, float("inf")

    def on_hint(self, view: View, now: float) -> None:
        """There is, or was, such a view."""
        self.hint_at = now
        if self.hint is None:
            self.hint_since = now
        if self.hint is None or self.hint.precedes(view):
            self.hint = view
            self._refused.clear()

    def forget_hint(self) -> None:
        """It is this peer's own, or nobody's."""
        self.hint = None

    def on_refused(self, peer: PeerId, *, refused: bool) -> None:
        """A member of that view has been dialled; `refused`: its machine says that nobody listens there."""
        (self._refused.add if refused else self._refused.discard)(peer)

    # -- whom to ask -------------------------------------------------------------------------------------------

    def probes(self) -> list[Member]:
        """Members of the view we are not in, to be connected with: they may be there though the broker is not."""
        hint = self.hint
        if hint is None:
            return []
        me, refused = self._membership.id, self._refused
        found = (m for m in hint.members if m.id != me and m.id not in refused and not self._over(m))
        return list(islice(found, _PROBED))

    def _over(self, member: Member) -> bool:
        """Whether that life of a member is known to have ended."""
        peer = PeerId(member.id)
        life = self._membership.me.incarnation if peer == self._membership.id else self._rolls.life(peer)
        return life > member.incarnation

    def callees(self, now: float) -> list[PeerId]:
        """Whom to call."""
        if self._synced_at is None or self._membership.leaving:
            return []
        me, hint = self._membership.id, self.hint
        members = hint.members if hint is not None else ()
        others = (PeerId(m.id) for m in members if m.id != me and not self._over(m))
        found = list(islice(others, _CALLED))
        before = self._rolls.before(me, self._reach)
        everybody = now >= self._turn(now) - self._limits.found_s / 2
        while not everybody and all(self._rolls.silent(peer, now) for peer in before):
            everybody = len(before) < self._reach
            self._reach *= _FURTHER
            before = self._rolls.before(me, self._reach)
        self._all_since = min(self._all_since, now) if everybody else float("inf")
        return found + (self._rolls.order if everybody else before)

    # -- beginning -------------------------------------------------------------------------------------------

    def first_view(self, now: float) -> View | None:
        """The first view of a generation, if it is for this peer to make it."""
        membership, limits, rolls = self._membership, self._limits, self._rolls
        if membership.view is not None or self._synced_at is None or membership.leaving:
            return None
        there = rolls.there(now)
        if any(word.epoch for peer, word in there if peer != membership.id):
            self._quiet_since = now
            membership.wait_for("")
            return None
        if self._may_be_at_work(there, now):
            self._held_at = now
            return None
        if now < max(self._turn(now), self._all_since + limits.settle_s) or self._is_held(now):
            return None
        if now < self._since + limits.settle_limit_s and rolls.asked(now):
            return None
        members = self._members(there, now)
        run = membership.run[0] if membership.run is not None and len(members) >= membership.run[1] else ""
        ids = tuple(member.id for member in members)
        return View(
            generation=Generation.after(self._known(), [(m.id, m.incarnation) for m in members]),
            epoch=1,
            members=members,
            fanout=membership.fanout,
            lanes=membership.lanes,
            run=run,
            quorum=membership.quorum,
            slots=hand_on(membership.slots if run else (), ids) if membership.coded else (),
        )

    def _members(self, there: list[tuple[PeerId, Word]], now: float) -> tuple[Member, ...]:
        """Who would be in a view: this peer, and those who are there."""
        found = (self._rolls.joiner(peer, now) for peer, _ in there if peer != self._membership.id)
        return (self._membership.me, *(m for m in found if m is not None))[:MAX_MEMBERS]

    def _is_held(self, now: float) -> bool:
        """Whether others before this peer in the order, which have left it to the members of a view as well, may have
        learned at the same moment that they need not."""
        after, step = now - self._held_at, self._limits.settle_s
        return after < step * _APART and after < step * self._rank(now, _APART)

    def _rank(self, now: float, most: int) -> int:
        """How many before this peer in the order are there, as far as it knows; more than `most` change nothing."""
        return self._rolls.count_before(self._membership.id, most, now)

    def _turn(self, now: float) -> float:
        """When it is this peer's turn to begin, if none of those before it in the order has; if that is not soon, some
        time that is not soon either."""
        limits, rolls = self._limits, self._rolls
        synced = self._synced_at if self._synced_at is not None else now
        settled = min(rolls.appeared_at + limits.settle_s, synced + limits.settle_limit_s)
        settled = max(settled, synced + limits.settle_s)
        since = max(settled, self._quiet_since)
        gone_by = max(now - since, 0.0) / limits.found_s if limits.found_s else float("inf")
        rank = self._rank(now, int(min(gone_by, MAX_MEMBERS)) + 2)
        return since + rank * limits.found_s if rank else settled

    def _known(self) -> Generation | None:
        """The newest generation: what is only retained counts as well, if it is not too far from what is known."""
        newest, hint = self._rolls.newest, self.hint.generation if self.hint is not None else None
        if hint is None or hint.counter > (newest.counter if newest is not None else 0) + _LEAP:
            return newest
        return max(newest, hint) if newest is not None else hint

    def _may_be_at_work(self, there: list[tuple[PeerId, Word]], now: float) -> bool:
        """Whether to leave it to the members of a view of which nobody answers to come back."""
        hint, membership, limits, rolls = self.hint, self._membership, self._limits, self._rolls
        membership.wait_for("")
        if hint is None:
            return False
        rest = [PeerId(m.id) for m in hint.members if not self._over(m)]
        if self._refused.issuperset(rest):
            return False
        wanted, patience = membership.cares_for, limits.anew_s
        if not enough(hint.ids, {*rest}):  # of a thousand members, many times a second
            # They can't go on in it. But who is left is to begin anew, with what it has, and may be slow to answer. A
            # majority that is too few for its `quorum` is not given any less time for that than one that is enough.
            patience = limits.silence_s
        elif wanted is not None and wanted[0] == hint.run:
            here = {PeerId(m.id) for m in self._members(there, now)}
            patience = limits.anew_s if enough(hint.ids, here, hint.quorum) else limits.anew_run_s
            if len(here) < wanted[1]:
                patience = float("inf")
        if rolls.word(membership.id, now) is None:
            self._quiet_since = now
        if now >= self._quiet_since + patience:
            return False
        names = ", ".join(rest[:5]) + (", ..." if len(rest) > 5 else "")
        membership.wait_for(f"nobody of the view before answers: {names}")
        return True

    def next_deadline(self) -> float | None:
        """When this peer may have to act although nothing happens; the node's tick covers the rest."""
        if self._membership.view is None and self._synced_at is not None:
            return self._rolls.appeared_at + self._limits.settle_s
        return None
