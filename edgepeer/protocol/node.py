"""One peer's protocol: events in, effects out, one deadline. What is in this file is about views.

`handle(event, now)` never fails because of what came from outside: a frame that makes no sense is ignored or
costs its sender the link. It raises ProtocolBug only for a state that must not exist.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from edgepeer.errors import WireError
from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.diagnosis import diagnose
from edgepeer.protocol.election import Election
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.membership import Membership
from edgepeer.protocol.place import UNKNOWN
from edgepeer.protocol.wiring import Wiring
from edgepeer.topology.view import Member, View
from edgepeer.wire import frames as fr
from edgepeer.wire.documents import pack, unpack

__all__ = ["Node"]

EXCUSED_S: Final = 0.02
"""A tick that comes later than this finds the peer's own machine busy."""
SUSPECT_AGAIN_S: Final = 0.5
"""The coordinator is told of the same loss this often, until there is a new view."""


class Node(Wiring):
    """The machine that a peer runs.

    Args:
        me: this peer as it introduces itself.
        fanout: the tree's fan-out, if this peer makes the first view.
        quorum: how many members must stay together to go on without the others, if this peer makes the first view;
            0: the majority.
        limits: within which bounds to give up on what.
        now: the current time; all later `now` come from the same clock and never go back.
    """

    def __init__(
        self, me: Member, *, fanout: int = 2, quorum: int = 0, limits: Limits | None = None, now: float
    ) -> None:
        super().__init__(Membership(me, fanout, limits or Limits(), quorum), limits or Limits(), now)
        self.election = Election(self.id, self._emit)
        self._tick_at = now
        self._left = False
        self._suspect_again: dict[PeerId, float] = {}
        self._on_event |= {
            ev.PresenceSeen: self._on_presence_seen,
            ev.PresenceGone: self._on_presence_gone,
            ev.ViewSeen: lambda e: self._on_view(e.view),
            ev.ControlSynced: lambda e: self.membership.on_synced(self._now),
            ev.ControlLost: lambda e: None,
            ev.Contribute: self._on_contribute,
            ev.CodeWanted: self._on_code_wanted,
            ev.RunWanted: self._on_run_wanted,
            ev.LeaveWanted: self._on_leave_wanted,
            ev.JoinWanted: self._on_join_wanted,
        }
        self._on_frame |= {
            fr.Sync: self._on_sync,
            fr.ViewFrame: self._on_view_frame,
            fr.Suspect: self._on_suspect,
            fr.Leave: lambda p, f, e: self._on_leave(f),
            fr.Poll: lambda p, f, e: self._on_poll(p, f),
            fr.Vote: lambda p, f, e: self._on_vote(f),
        }

    # -- the interface -------------------------------------------------------------------------------------

    @property
    def view(self) -> View | None:
        return self.membership.view

    def introduce(self, addresses: tuple[str, ...]) -> None:
        """Where this peer listens: to be said before it takes part in anything."""
        self.membership.me = msgspec.structs.replace(self.membership.me, addresses=addresses)

    def handle(self, event: ev.Event, now: float) -> list[fx.Effect]:
        """What to do about `event`, which happened at `now`."""
        self._now = self.allreduce.place.now = now
        before = self.allreduce.committed
        self._on_event[type(event)](event)
        if self.allreduce.committed > before:
            self.vitals.round_ended(now)
        if self.membership.coordinator:
            self._coordinate(boundary=self.allreduce.committed != before)
        return self._drain()

    def tick(self, now: float) -> list[fx.Effect]:
        """What to do because `next_deadline()` has come."""
        late, self._now = now - self._tick_at, now
        self.allreduce.place.now = now
        if late >= 0:
            if late > EXCUSED_S:
                self.links.excuse(late, now)  # this peer was not listening; what has come meanwhile is still to be read
            self._check_links()
            self._tick_at = self.vitals.next_due(now)
        self.paths.tick(now)
        self.allreduce.look_again()
        if (first := self.membership.first_view(now)) is not None:
            self._install(first)
        if self.membership.coordinator:
            self._coordinate(boundary=False)
        return self._drain()

    def next_deadline(self) -> float:
        """When to call `tick`, at the latest."""
        due = self._tick_at
        deadlines = self.membership.next_deadline(), self.paths.next_deadline(), self.allreduce.next_deadline()
        for other in deadlines:
            if other is not None and self._now < other < due:  # what has passed without effect waits for the next tick
                due = other
        return due

    def diagnosis(self, now: float) -> dict[str, Any]:
        """All that decides what this peer does next, as JSON has it."""
        return diagnose(self, now)

    # -- neighbours -----------------------------------------------------------------------------------------

    def _on_sync(self, peer: PeerId, frame: fr.Sync, event: ev.FrameReceived) -> None:
        self.links[peer].sync = frame
        view = self.view
        if view is not None and frame.epoch < view.stamp:
            self._send_view(peer, view)
            self.neighbours.send_sync(peer)
        elif self.neighbours.is_level(peer):
            self.neighbours.on_sync(peer, frame.committed, self._now)

    def _check_links(self) -> None:
        for peer in self.vitals.tick(self._now):
            self._on_path_down(peer)
        view = self.view
        for peer, reason, since in list(self.links.lost(self._now, others=view is None)):
            self.membership.on_life(peer, self.links[peer].life)
            if view is None:
                if (member := self.links[peer].member) is not None:
                    self.membership.disbelieve(member)
            elif peer == view.parent(self.id):
                if self.membership.leaving:
                    self._exit(None, "left")  # whoever takes over will find us gone
                    return
                if self._try_takeover(view, peer, reason, since):
                    return
            else:
                self._suspect(peer, reason)
        for peer in list(self.allreduce.laggards(self._now)):
            link = self.links.get(peer)
            if link is not None and not link.waiting:
                self._suspect(peer, f"kept the round waiting for {self.limits.stall_s:g} s")
        if self.view is None:
            self.links.want([(member, "other") for member in self.membership.probes()], self._now)
        elif self.membership.leaving:
            self._ask_to_leave()
        self.neighbours.ask_for_state(self._now, patient=False)
        self.vitals.say_if_waiting(self._now)

    def _on_contribute(self, event: ev.Contribute) -> None:
        self.allreduce.contribute(event.vector, event.weight, self._now)
        self._tick_at = min(self._tick_at, self._now + self.vitals.every_s(self._now))

    def _on_code_wanted(self, event: ev.CodeWanted) -> None:
        self.membership.coded = event.coding is not None
        self.allreduce.use_code(event.coding)
        self.neighbours.sync_all()  # children may have spoken of their progress before it could be understood here

    # -- taking over -------------------------------------------------------------------------------------------

    def _try_takeover(self, view: View, parent: PeerId, reason: str, since: float) -> bool:
        if not self.membership.my_turn(since, self._now):
            return False
        self.election.poll(view, self.vitals.members(), self._now, self.limits.poll_s)
        mine = self.membership.takeover(parent, self.election.votes, self._first_round())
        if mine is None:
            self.vitals.reach_out(view, self._now)
            return False
        self._emit(fx.Note("warning", f"{parent} is gone ({reason}); taking over"))
        self._install(mine)
        return True

    def _on_poll(self, peer: PeerId, poll: fr.Poll) -> None:
        view = self.view
        if view is not None and poll.epoch == view.stamp:
            orphan = self.vitals.orphan
            self.election.on_poll(peer, poll, view, self.vitals.members(), orphan=orphan)
        elif view is not None and poll.epoch < view.stamp:
            self._send_view(peer, view)

    def _on_vote(self, vote: fr.Vote) -> None:
        if self.view is not None and vote.epoch == self.view.stamp:
            self.election.on_vote(vote, self.view)

    # -- views -----------------------------------------------------------------------------------------------

    def _first_round(self) -> int:
        committed = self.allreduce.committed
        if self.view is not None and (committed == UNKNOWN or self.view.run != self.allreduce.run):
            return self.view.first_round
        return committed + 1

    def _coordinate(self, *, boundary: bool) -> None:
        if self.view is None:
            return
        if self.membership.lost(self._now):
            self.election.poll(self.view, self.vitals.members(), self._now, self.limits.poll_s)
        following = self.membership.next_view(
            first_round=self._first_round(),
            boundary=boundary,
            # A round of a run that the owner has given up may never end: others have given it up as well.
            idle=self.allreduce.idle or self.view.run not in ("", self.neighbours.wanted_run),
            needed=self.allreduce.needed,
            votes=self.election.votes,
            now=self._now,
        )
        if following is not None:
            self._install(following)

    def _on_presence_seen(self, event: ev.PresenceSeen) -> None:
        self.membership.on_presence(event.member, self._now)
        self.links.on_presence(PeerId(event.member.id), event.member.incarnation, self._now)

    def _on_presence_gone(self, event: ev.PresenceGone) -> None:
        self.membership.on_gone(event.peer)
        self.links.on_gone(event.peer)

    def _on_view_frame(self, peer: PeerId, frame: fr.ViewFrame, event: ev.FrameReceived) -> None:
        try:
            view = unpack(event.payload or b"", View)
        except WireError as error:
            self._fail_link(peer, f"bad view: {error}")
            return
        if self.view is not None and view.precedes(self.view):
            self.allreduce.learn(peer, view)
        else:
            self._on_view(view)

    def _on_view(self, view: View) -> None:
        if self._left:
            return
        if self.membership.outlive(view):
            self._emit(fx.PublishPresence())
        if not self.membership.accepts(view):
            if self.membership.coordinator and self.view is not None and view.precedes(self.view):
                self._emit(fx.PublishView(self.view))  # ours is the newer one: MQTT should hold it
            return
        if self.membership.contains_me(view):
            self._install(view)
        elif self.view is not None:
            self._exit(view, "another view was made without this peer")
        else:
            self.membership.seen = view

    def _install(self, view: View) -> None:
        was_coordinator = self.membership.coordinator
        self.membership.enter(view, self._now)
        self.election.reset()
        self._suspect_again.clear()
        self.paths.view, self.paths.incarnation = view, self.membership.me.incarnation
        self.vitals.enter(view, self._now)
        for peer in view.neighbours(self.id):
            if peer in self.membership.cleared:
                self.links.on_gone(peer)
        run = self.allreduce.run
        self._emit(fx.ViewInstalled(view))
        self.allreduce.install(view, self._now)
        if run != view.run:
            self.neighbours.reset()
        self._spread(view)
        for peer in view.neighbours(self.id):
            self.neighbours.hear_again(peer)
        self.neighbours.hope()
        self.neighbours.ask_for_state(self._now, patient=True)
        if self.membership.coordinator:
            self._emit(fx.PublishView(view))
        elif was_coordinator:
            self._emit(fx.PublishView(None))
        if self.membership.leaving:
            self._ask_to_leave()

    def _spread(self, view: View) -> None:
        """Tell everybody we are connected to, who does not know it yet."""
        neighbours = view.neighbours(self.id) if self.id in view else ()
        for peer, link in self.links.connected():
            if link.sync is None or link.sync.epoch < view.stamp:
                self._send_view(peer, view)
            if peer in neighbours:
                self.neighbours.send_sync(peer)

    def _send_view(self, peer: PeerId, view: View) -> None:
        self._emit(fx.Send(peer, fr.ViewFrame(epoch=view.stamp), pack(view)))

    def _exit(self, view: View | None, reason: str) -> None:
        """Out of the view, because we left or because others think that we are gone."""
        was_coordinator, wanted = self.membership.coordinator, self.membership.leaving
        if self._left:
            return
        self._left = wanted
        if view is not None:
            # Over the links, behind the last commit; MQTT, which might overtake it, hears from the next coordinator.
            self._spread(view)
        if was_coordinator:
            self._emit(fx.PublishView(None))
        self.allreduce.leave(reason)
        self.neighbours.reset()
        self.membership.exit(view, self._now)
        self.links.want((), self._now)
        self.paths.view = None
        self.election.reset()
        self._emit(fx.Removed(reason, wanted))
        if not wanted:
            self._emit(fx.PublishPresence())

    def _on_run_wanted(self, event: ev.RunWanted) -> None:
        self.neighbours.wanted_run = event.run
        self.membership.want_run(event.run, event.peers, self._now)
        if event.run is not None and event.have:
            self.allreduce.own_state(event.run, event.have)
            self.neighbours.sync_all()
        self.neighbours.ask_for_state(self._now, patient=True)

    # -- what is meant for the coordinator -------------------------------------------------------------------

    def _tell_coordinator(self, frame: fr.Suspect | fr.Leave) -> None:
        parent = self.view.parent(self.id) if self.view is not None else None
        if parent is not None and self.links.is_up(parent):
            self._emit(fx.Send(parent, frame))

    def _suspect(self, peer: PeerId, reason: str) -> None:
        view = self.view
        if view is None or peer not in view or self._now < self._suspect_again.get(peer, 0.0):
            return
        self._suspect_again[peer] = self._now + SUSPECT_AGAIN_S
        if not self.membership.coordinator:
            self._tell_coordinator(fr.Suspect(epoch=view.stamp, peer=peer, reason=reason))
        elif self.membership.lose(peer, self._now):
            self._emit(fx.Note("warning", f"{peer} is gone: {reason}"))

    def _on_suspect(self, peer: PeerId, frame: fr.Suspect, event: ev.FrameReceived) -> None:
        if self.view is not None and frame.epoch == self.view.stamp:
            self._suspect(PeerId(frame.peer), frame.reason)

    def _on_leave(self, frame: fr.Leave) -> None:
        if self.membership.coordinator:
            self.membership.on_leaver(PeerId(frame.peer), frame.incarnation, frame.until, self._now)
        else:
            self._tell_coordinator(frame)

    def _on_leave_wanted(self, event: ev.LeaveWanted) -> None:
        self.membership.leave(self._now)
        self._ask_to_leave()

    def _ask_to_leave(self) -> None:
        if self.view is None or self.view.size == 1:
            self._exit(None, "left")
        elif not self.membership.coordinator:
            until = self.allreduce.committed + (1 if self.allreduce.needed else 0)
            incarnation = self.membership.me.incarnation
            self._tell_coordinator(fr.Leave(peer=self.id, incarnation=incarnation, until=until))

    def _on_join_wanted(self, event: ev.JoinWanted) -> None:
        self.membership.leaving = False
        if self._left:
            self._left = False
            self.membership.rejoin(self._now)
            self._emit(fx.PublishPresence())
