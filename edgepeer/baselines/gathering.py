"""Who is in a baseline's view: all that are announced on MQTT before its first round, whether they are there or not.

Nobody is removed and nobody takes over; so nothing has to be agreed on. Of two first views that are made at once, the
later generation counts.
"""

from __future__ import annotations

import msgspec

from edgepeer.ids import Generation, PeerId
from edgepeer.protocol.limits import Limits
from edgepeer.topology.view import MAX_MEMBERS, Member, View

__all__ = ["Gathering"]


class Gathering:
    """The membership of one baseline's peer."""

    def __init__(self, me: Member, fanout: int, limits: Limits) -> None:
        self.me = me
        self._id = PeerId(me.id)
        self._fanout = fanout
        self._limits = limits
        self.view: View | None = None
        self.seen: View | None = None
        """The newest view that this peer is not in."""
        self.leaving = False
        self._present: dict[PeerId, Member] = {}
        self._run: tuple[str, int] | None = None
        self._synced_at: float | None = None
        self._appeared_at = 0.0
        self._changed_at: float | None = None

    @property
    def coordinator(self) -> bool:
        """Whether this peer stands at the head of its view."""
        return self.view is not None and self.view.coordinator == self._id

    def accepts(self, view: View) -> bool:
        """Whether a view that was received replaces what this peer works in or waits for."""
        current = self.view or self.seen
        return current is None or current.precedes(view)

    def enter(self, view: View, now: float) -> None:
        """This peer works in `view` from now on."""
        self.view, self.seen = view, None
        self._changed_at = now

    def exit(self, view: View | None, now: float) -> None:
        """This peer is in no view any more."""
        self.view, self.seen, self._changed_at, self._appeared_at = None, view, None, now
        if view is not None:
            self.begin_life(now)

    def begin_life(self, now: float, *, after: int = 0) -> None:
        """Come back as somebody new."""
        self.me = msgspec.structs.replace(self.me, incarnation=max(self.me.incarnation, after) + 1)
        self._appeared_at = now

    def on_synced(self, now: float) -> None:
        """All that MQTT retains is known."""
        self._synced_at = self._appeared_at = now

    def on_presence(self, member: Member, now: float) -> None:
        """A peer is announced."""
        if member.id not in self._present:
            self._appeared_at = now
        self._present[PeerId(member.id)] = member
        self._changed_at = self._changed_at or now

    def on_gone(self, peer: PeerId) -> None:
        """It is announced no more."""
        self._present.pop(peer, None)

    def want_run(self, run: str | None, peers: int, now: float) -> None:
        """The owner wants a run, of at least so many peers."""
        self._run = (run, peers) if run is not None else None
        self._changed_at = self._changed_at or now

    def _others(self) -> list[Member]:
        return [self._present[peer] for peer in sorted(self._present) if peer != self._id]

    def first_view(self, now: float) -> View | None:
        """The first view, if it is for this peer to make it."""
        limits = self._limits
        if self.view is not None or self._synced_at is None or self.leaving:
            return None
        if self.seen is not None and any(self._present.get(PeerId(m.id)) == m for m in self.seen.members):
            return None
        rank = sum(peer < self._id for peer in self._present)
        settled = min(self._appeared_at + limits.settle_s, self._synced_at + limits.settle_limit_s)
        if now < max(settled, self._synced_at + limits.settle_s) + rank * limits.found_s:
            return None
        members = (self.me, *self._others())[:MAX_MEMBERS]
        run = self._run[0] if self._run is not None and len(members) >= self._run[1] else ""
        known = self.seen.generation if self.seen is not None else None
        generation = Generation.after(known, [(m.id, m.incarnation) for m in members])
        return View(generation=generation, epoch=1, members=members, fanout=self._fanout, run=run)

    def next_view(self, *, first_round: int, now: float) -> View | None:
        """The next one, for those who came later or for a run; None when there is no need or it is not time."""
        view = self.view
        if view is None or self._changed_at is None or now < self._changed_at + self._limits.join_batch_s:
            return None
        self._changed_at = None
        joined = [member for member in self._others() if member not in view.members]
        size = len({*view.ids, *(PeerId(m.id) for m in joined)})
        run = None
        if self._run is not None and self._run[0] != view.run and size >= self._run[1]:
            run = self._run[0]
        if not joined and run is None:
            return None
        gone = {PeerId(member.id) for member in joined if PeerId(member.id) in view}
        return view.successor(first_round=first_round, without=gone, joined=joined, run=run)

    def next_deadline(self) -> float | None:
        """When this peer may have to act although nothing happens."""
        if self.view is None and self._synced_at is not None:
            return self._appeared_at + self._limits.settle_s
        if self.coordinator and self._changed_at is not None:
            return self._changed_at + self._limits.join_batch_s
        return None
