"""Who is in: the first view, joiners, leavers, the lost, and a coordinator that goes.

    role         | is                           | may
    -------------+------------------------------+----------------------------------------------------------
    outside      | in no view                   | make the first view, if its id is the smallest of those
                 |                              | present and no view is alive
    member       | in a view, not at its head   | report the lost to the coordinator; take over when its own
                 |                              | parent is lost and nobody before it in the order has
    coordinator  | position 0                   | make the next view: at a round's end or between rounds for
                 |                              | joiners, leavers and runs, at once for the lost

A coordinator that wants to leave first hands its place to somebody who stays, and then leaves like any member: not
before the new coordinator has the result of the last round that it took part in.

A view replaces another only if that `precedes` it. This module decides; `node` sends, installs and asks.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

import msgspec

from edgepeer.ids import PeerId
from edgepeer.protocol.limits import Limits
from edgepeer.topology.view import MAX_MEMBERS, Member, View

__all__ = ["Membership"]

LOST_S: Final = 1.5
"""How long the word of a loss counts. It is said again every half a second for as long as it is true."""
_FORGIVEN: Final = 10
"""Who has been in for so many times as long as it was kept out, or could have been, is not kept out the next time."""
_PROBED = 8  # how many members of a view that does not admit us are tried at a time


class Membership:
    """The membership of one peer."""

    def __init__(self, me: Member, fanout: int, limits: Limits, quorum: int = 0) -> None:
        self.me = me
        self._id = PeerId(me.id)
        self._fanout = fanout
        self._quorum = quorum
        self._limits = limits
        self.view: View | None = None
        self.seen: View | None = None
        """The newest view that this peer is not in."""
        self.present: dict[PeerId, Member] = {}
        """Presences on MQTT, this peer's included."""
        self.cleared: set[PeerId] = set()
        """Members of the view whose presence has been cleared."""
        self.leaving = False
        self.coordinator = False
        """Whether this peer stands at the head of its view."""
        self.base: View | None = None
        """The last view that all its members are known to have worked in: until the next one is that far, a view must
        have a quorum of this one as well."""
        self.coded = False
        """Whether the owner wants rounds to be coded: then members own slots."""
        self.waits = ""
        """Why this peer can't make the view that it wants; empty if it can, or wants none."""
        self._penalties: dict[PeerId, tuple[float, float]] = {}  # how long who was lost is kept out, and until when
        self._synced_at: float | None = None
        self._appeared_at = 0.0
        self._banned: dict[PeerId, int] = {}  # lives that are over, of peers that are still present
        self._lives: dict[PeerId, int] = {}  # the newest that members have shown on a link
        self._lost: dict[PeerId, float] = {}  # until when, unless that is said again
        self._leavers: dict[PeerId, tuple[int, int]] = {}  # incarnation, last round contributed to
        self._changed_at: float | None = None
        self._run: tuple[str, int] | None = None
        self._outvoted = False
        """Whether this peer's last view has gone on without it."""

    # -- roles -------------------------------------------------------------------------------------------

    def contains_me(self, view: View) -> bool:
        """Whether the view means this peer in this life."""
        return self._id in view and view.member(self._id) == self.me

    def accepts(self, view: View) -> bool:
        """Whether a view that was received replaces what this peer works in or waits for."""
        current = self.view or self.seen
        return current is None or current.precedes(view)

    def enter(self, view: View, now: float) -> None:
        """This peer works in `view` from now on."""
        for member in self.view.members if self.view is not None else ():
            if member.id not in view and member.id in self.present:
                # Left or lost: its presence on MQTT may outlast it, so it takes a new life to be let in again.
                self._banned[PeerId(member.id)] = member.incarnation
        if self.view is None or self.base is None:
            self.base = view
        self.view, self.seen, self.waits, self._outvoted = view, None, "", False
        self.coordinator = view.coordinator == self._id
        self._lost.clear()
        self._lives = {peer: life for peer, life in self._lives.items() if peer in view}
        self.cleared &= set(view.ids)
        for member in self.present.values():
            self._note_life(member)
        self._leavers = {peer: life for peer, life in self._leavers.items() if peer in view}
        # Who came before this peer became coordinator waits still.
        self._changed_at = now if self.coordinator else None

    def exit(self, view: View | None, now: float) -> None:
        """This peer is in no view any more; to come back it needs a new life."""
        self.view, self.seen, self.base, self.waits = None, view, None, ""
        self.coordinator = False
        self._changed_at = None
        self._appeared_at = now
        if view is not None:
            # A view without this peer was made by somebody who holds this life for lost.
            self._new_life()
            self._outvoted = True

    def settle(self) -> None:
        """All members are known to work in the view."""
        self.base = self.view

    # -- quorum ------------------------------------------------------------------------------------------------

    def _dead(self, view: View) -> set[PeerId]:
        """Members whose life has ended for sure: they have shown a newer one."""
        return {PeerId(m.id) for m in view.members if self._newest_life(PeerId(m.id)) > m.incarnation}

    def _newest_life(self, peer: PeerId) -> int:
        here = self.present.get(peer)
        return max(self._lives.get(peer, -1), here.incarnation if here is not None else -1)

    def on_life(self, peer: PeerId, incarnation: int) -> None:
        """A peer has shown this life on a link."""
        if self.view is not None and peer in self.view:
            self._lives[peer] = max(incarnation, self._lives.get(peer, -1))

    def _may(self, following: View, votes: Container[PeerId], leavers: Container[PeerId]) -> bool:
        """Whether those who vote for it, with those who leave of their own will, may go on without the rest."""
        for old in (self.base, self.view):
            if old is None:
                continue
            stay = {p for p in old.ids if p in leavers or (p in votes and _same(old, following, p))}
            if not old.has_quorum(stay, self._dead(old)):
                self.waits = f"{len(stay)} of {old.size} peers are in reach, too few to go on without the others"
                return False
        self.waits = ""
        return True

    # -- what MQTT says ------------------------------------------------------------------------------------

    def on_synced(self, now: float) -> None:
        self._synced_at = now
        self._appeared_at = now
        self.present[self._id] = self.me

    def on_presence(self, member: Member, now: float) -> None:
        peer = PeerId(member.id)
        known = self.present.get(peer)
        if peer == self._id or (known is None and len(self.present) >= MAX_MEMBERS):
            return
        if known is None:
            self._appeared_at = now
        self.present[peer] = member
        self.cleared.discard(peer)
        self._note_life(member)
        self._note_change(now)

    def _note_life(self, member: Member) -> None:
        """A newer life than the one in the view: the one in the view has ended."""
        peer = PeerId(member.id)
        if self.view is not None and peer in self.view and self.view.member(peer).incarnation < member.incarnation:
            self._lost[peer] = float("inf")

    def leave(self, now: float) -> None:
        self.leaving = True
        if self.coordinator:
            self._note_change(now)

    def rejoin(self, now: float) -> None:
        """Want to be in again, in a new life, after having left."""
        self._new_life()
        self._appeared_at = now

    def _new_life(self) -> None:
        self.me = msgspec.structs.replace(self.me, incarnation=self.me.incarnation + 1)
        self.present[self._id] = self.me

    def on_gone(self, peer: PeerId) -> None:
        if peer != self._id:
            self.present.pop(peer, None)
            self._banned.pop(peer, None)
            if self.view is not None and peer in self.view:
                self.cleared.add(peer)

    def outlive(self, view: View) -> bool:
        """A view that knows a later life of this peer, or another with the same number: its identity was lost and
        counts anew. Begin one after that."""
        if self._id not in view or view.member(self._id).incarnation < self.me.incarnation or self.contains_me(view):
            return False
        self.me = msgspec.structs.replace(self.me, incarnation=view.member(self._id).incarnation)
        self._new_life()
        return True

    def want_run(self, run: str | None, peers: int, now: float) -> None:
        self._run = (run, peers) if run is not None else None
        self._note_change(now)

    # -- what peers say ------------------------------------------------------------------------------------

    def on_leaver(self, peer: PeerId, incarnation: int, until: int, now: float) -> None:
        if peer != self._id:  # what it asked for itself as a member, before it became coordinator, is settled
            self._leavers[peer] = incarnation, until
            self._note_change(now)

    def lose(self, peer: PeerId, now: float) -> bool:
        """Coordinator: a member is gone, for as long as somebody goes on to say so. Whether that is news."""
        if self.view is None or peer not in self.view or peer == self._id:
            return False
        news = self._lost.get(peer, 0.0) <= now
        self._lost[peer] = max(self._lost.get(peer, 0.0), now + LOST_S)
        return news

    def lost(self, now: float) -> set[PeerId]:
        """Coordinator: the members that are gone."""
        return {peer for peer, until in self._lost.items() if until > now}

    def _note_change(self, now: float) -> None:
        if self._changed_at is None:
            self._changed_at = now

    # -- the coordinator's next view -----------------------------------------------------------------------

    def _joiners(self, view: View) -> list[Member]:
        return [
            self.present[peer]
            for peer in sorted(self.present)
            if (peer not in view or view.member(peer).incarnation < self.present[peer].incarnation)
            and self._banned.get(peer, -1) < self.present[peer].incarnation
        ]

    def _barred_until(self, peer: PeerId) -> float:
        return self._penalties.get(peer, (0.0, float("-inf")))[1]

    def barred(self, now: float) -> dict[PeerId, float]:
        """Coordinator: who is not to be let in yet, and for how much longer."""
        return {peer: until - now for peer, (_, until) in sorted(self._penalties.items()) if until > now}

    def next_view(
        self, *, first_round: int, boundary: bool, idle: bool, needed: bool, votes: Container[PeerId], now: float
    ) -> View | None:
        """The view that the coordinator should install now, None when there is no need or it is not time.

        `votes`: whom it has heard of just now; without those that are lost it can go on only with a quorum of these.
        """
        view = self.view
        if view is None or (self.leaving and view.size == 1):
            return None
        leavers = {
            p: until for p, (life, until) in self._leavers.items() if p in view and view.member(p).incarnation <= life
        }
        lost = self.lost(now)
        due = self._changed_at is not None and now >= self._changed_at + self._limits.join_batch_s
        # The round in progress can't end without somebody who will not contribute to it, and needs nothing of it.
        stuck = any(until < first_round for until in leavers.values()) or (self.leaving and due and not needed)
        if not (lost or boundary or stuck or (idle and due)):
            return None
        wanted = self._joiners(view) if not self.leaving else []
        joiners = [member for member in wanted if self._barred_until(PeerId(member.id)) <= now]
        later = [until for member in wanted if (until := self._barred_until(PeerId(member.id))) > now]
        gone = lost | set(leavers) | {PeerId(member.id) for member in joiners if member.id in view}
        joiners = joiners[: MAX_MEMBERS - view.size + len(gone)]
        staying = [peer for peer in view.ids if peer not in gone and peer != self._id]
        head = staying[0] if self.leaving and due and staying else None
        size = view.size - len(gone) + len(joiners)
        run = None
        if self._run is not None and self._run[0] != view.run and size >= self._run[1]:
            run, first_round = self._run[0], 1
        if not gone and not joiners and run is None and head is None:
            if not self.leaving:
                self._changed_at = min(later, default=None)
            return None
        following = view.successor(
            first_round=first_round, without=gone, joined=joiners, coordinator=head, run=run, coded=self.coded
        )
        if lost - self._dead(view) and not self._may(following, votes, leavers):
            return None
        for peer in lost:
            self._penalise(peer, now)
        return following

    def _penalise(self, peer: PeerId, now: float) -> None:
        """A peer that is lost again and again must not hold up the others each time. One that has been in for long
        enough since it was let in, for what it had to wait, is forgiven: else it would be out for most of the time."""
        least, most = self._limits.penalty_s, self._limits.penalty_limit_s
        self._penalties = {
            other: (pause, until)
            for other, (pause, until) in self._penalties.items()
            if now - until <= _FORGIVEN * max(pause, least)
        }
        before = self._penalties.get(peer)
        pause = 0.0 if before is None else min(max(2 * before[0], least), most)
        self._penalties[peer] = pause, now + pause

    def my_turn(self, lost_at: float, now: float) -> bool:
        """Whether this peer may try to take over, its parent having been lost."""
        return self.view is not None and now >= lost_at + (self.view.position(self._id) - 1) * self._limits.takeover_s

    def takeover(self, parent: PeerId, votes: Container[PeerId], first_round: int) -> View | None:
        """The view in which this peer takes over, if enough others are for it."""
        view = self.view
        if view is None:
            return None
        for old in (self.base, view):
            voters = [p for p in old.ids if p in votes and _same(old, view, p)] if old is not None else []
            if old is not None and not old.has_quorum(voters, self._dead(old)):
                self.waits = f"{len(voters)} of {old.size} peers are in reach, too few to go on without the others"
                return None
        return view.successor(first_round=first_round, without={parent}, coordinator=self._id, coded=self.coded)

    # -- outside -----------------------------------------------------------------------------------------

    def _alive(self, view: View) -> list[Member]:
        """Members of a view who are present in the life that the view means."""
        return [
            member
            for member in view.members
            if member.id != self._id
            and (here := self.present.get(PeerId(member.id))) is not None
            and here.incarnation == member.incarnation
        ]

    def probes(self) -> list[Member]:
        """Members of the view we are not in: while one of them answers, we wait to be admitted."""
        return self._alive(self.seen)[:_PROBED] if self.view is None and self.seen is not None else []

    def disbelieve(self, member: Member) -> None:
        """A peer that is present on MQTT does not answer: its presence is stale, unless it is of a newer life."""
        known = self.present.get(PeerId(member.id))
        if known is not None and known.incarnation <= member.incarnation:
            del self.present[PeerId(member.id)]

    def first_view(self, now: float) -> View | None:
        """The first view of a fleet, if it is for this peer to make it."""
        limits = self._limits
        if self.view is not None or self._synced_at is None or self.leaving or self.probes():
            return None
        rank = sorted(self.present).index(self._id)
        settled = min(self._appeared_at + limits.settle_s, self._synced_at + limits.settle_limit_s)
        if now < max(settled, self._synced_at + limits.settle_s) + rank * limits.takeover_s:
            return None
        epoch = self.seen.epoch + 1 if self.seen is not None else 1
        others = [peer for peer in sorted(self.present) if peer != self._id]
        members = (self.me, *(self.present[peer] for peer in others[: MAX_MEMBERS - 1]))
        if self._unfinished(members):
            return None
        run = self._run[0] if self._run is not None and len(members) >= self._run[1] else ""
        slots = tuple(member.id for member in members) if self.coded else ()
        return View(epoch=epoch, members=members, fanout=self._fanout, run=run, quorum=self._quorum, slots=slots)

    def _unfinished(self, members: tuple[Member, ...]) -> bool:
        """Whether others may be at work on what these would begin again."""
        seen = self.seen
        if seen is None or not (self._outvoted or (self._run is not None and seen.run == self._run[0])):
            return False
        here = {PeerId(member.id) for member in members}
        if seen.has_quorum(here):
            return False
        there = sum(peer in here for peer in seen.ids)
        self.waits = f"{there} of {seen.size} peers that were at work are here, too few to go on without the others"
        return True

    # -- time --------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When this peer may have to act although nothing happens; the node's tick covers the rest."""
        if self.view is None and self._synced_at is not None:
            return self._appeared_at + self._limits.settle_s
        if self.coordinator and self._changed_at is not None:
            return self._changed_at + self._limits.join_batch_s
        return None


def _same(old: View, new: View, peer: PeerId) -> bool:
    """Whether two views mean the same life of a peer."""
    return peer in new and old.member(peer).incarnation == new.member(peer).incarnation
