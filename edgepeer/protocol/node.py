"""One peer's protocol: events in, effects out, one deadline.

`handle(event, now)` never fails because of what came from outside: a frame that makes no sense is ignored or
costs its sender the link. It raises ProtocolBug only for a state that must not exist.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from edgepeer.errors import WireError
from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.allreduce import Allreduce
from edgepeer.protocol.catchup import Catchup
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.links import Links
from edgepeer.protocol.membership import Membership
from edgepeer.protocol.neighbours import Neighbours
from edgepeer.protocol.place import UNKNOWN
from edgepeer.topology.view import Member, View
from edgepeer.wire import frames as fr
from edgepeer.wire.documents import pack, unpack

__all__ = ["Node"]


class Node:
    """The machine that a peer runs.

    Args:
        me: this peer as it introduces itself.
        fanout: the tree's fan-out, if this peer makes the first view.
        limits: when to give up on what.
        now: the current time; all later `now` come from the same clock and never go back.
    """

    def __init__(self, me: Member, *, fanout: int = 2, limits: Limits | None = None, now: float) -> None:
        self.id = PeerId(me.id)
        self.limits = limits or Limits()
        self._effects: list[fx.Effect] = []
        emit = self._effects.append
        self.membership = Membership(me, fanout, self.limits)
        self.links = Links(self.limits, emit)
        self.allreduce = Allreduce(self.id, self.limits, emit, self._fail_link)
        self.neighbours = Neighbours(self.links, self.allreduce, Catchup(self.limits, emit), emit)
        self._emit = emit
        self._now = now
        self._tick_at = now
        self._left = False
        self._on_event: dict[type[Any], Callable[[Any], None]] = {
            ev.FrameReceived: self._on_frame_received,
            ev.LinkUp: self._on_link_up,
            ev.LinkDown: lambda e: self._on_link_down(e.peer),
            ev.DialFailed: lambda e: self.links.on_dial_failed(e.peer, self._now),
            ev.PresenceSeen: self._on_presence_seen,
            ev.PresenceGone: self._on_presence_gone,
            ev.ViewSeen: lambda e: self._on_view(e.view),
            ev.ControlSynced: lambda e: self.membership.on_synced(self._now),
            ev.ControlLost: lambda e: None,
            ev.Contribute: lambda e: self.allreduce.contribute(e.vector, e.weight, self._now),
            ev.TimedOut: lambda e: self.allreduce.time_out(e.reason),
            ev.RunWanted: self._on_run_wanted,
            ev.Abandoned: lambda e: self.allreduce.abandon(),
            ev.StateReady: lambda e: self.neighbours.on_state_ready(e),
            ev.Adopted: lambda e: self.neighbours.on_adopted(e),
            ev.LeaveWanted: self._on_leave_wanted,
            ev.JoinWanted: self._on_join_wanted,
        }
        self._on_frame: dict[type[Any], Callable[[PeerId, Any, ev.FrameReceived], None]] = {
            fr.Reduce: lambda p, f, e: self.allreduce.on_reduce(p, f, e.payload_bytes, e.stored, e.seconds),
            fr.Result: lambda p, f, e: self.allreduce.on_result(p, f, e.payload_bytes, e.stored, e.seconds),
            fr.Abort: lambda p, f, e: self.allreduce.on_abort(p, f),
            fr.Sync: lambda p, f, e: self._on_sync(p, f),
            fr.ViewFrame: self._on_view_frame,
            fr.Ping: self._on_ping,
            fr.Suspect: self._on_suspect,
            fr.Leave: lambda p, f, e: self._on_leave(f),
            fr.StateRequest: lambda p, f, e: self.neighbours.on_state_request(p, f.run, self._now),
            fr.State: lambda p, f, e: self.neighbours.on_state(p, f, e, self._now),
            fr.Hello: lambda p, f, e: None,
            fr.Bye: lambda p, f, e: None,
        }

    # -- the interface -------------------------------------------------------------------------------------

    @property
    def view(self) -> View | None:
        return self.membership.view

    def introduce(self, addresses: tuple[str, ...]) -> None:
        """Where this peer listens: to be said before it takes part in anything."""
        self.membership.me = msgspec.structs.replace(self.membership.me, addresses=addresses)

    def sink(self, peer: PeerId, frame: fr.Frame, payload_bytes: int) -> memoryview | None:
        """Where the payload of a frame that is about to arrive belongs; None to throw it away."""
        if isinstance(frame, fr.Reduce | fr.Result):
            return self.allreduce.sink(peer, frame, payload_bytes)
        if isinstance(frame, fr.State):
            return self.neighbours.sink(peer, frame, payload_bytes)
        return None

    def handle(self, event: ev.Event, now: float) -> list[fx.Effect]:
        """What to do about `event`, which happened at `now`."""
        self._now = now
        before = self.allreduce.committed
        self._on_event[type(event)](event)
        if self.membership.coordinator:
            self._coordinate(boundary=self.allreduce.committed != before)
        return self._drain()

    def tick(self, now: float) -> list[fx.Effect]:
        """What to do because `next_deadline()` has come."""
        self._now = now
        if now >= self._tick_at:
            self._tick_at = now + self.limits.heartbeat_s / 2
            self._check_links()
        if (first := self.membership.first_view(now)) is not None:
            self._install(first)
        if self.membership.coordinator:
            self._coordinate(boundary=False)
        return self._drain()

    def next_deadline(self) -> float:
        """When to call `tick`, at the latest."""
        other = self.membership.next_deadline()
        # A deadline that has passed without effect waits for the regular tick.
        return self._tick_at if other is None or other <= self._now else min(self._tick_at, other)

    def _drain(self) -> list[fx.Effect]:
        out = self._effects[:]
        self._effects.clear()
        for effect in out:
            if type(effect) is fx.Send and (link := self.links.get(effect.peer)) is not None:
                link.sent = self._now
        return out

    # -- links ---------------------------------------------------------------------------------------------

    def _on_link_up(self, event: ev.LinkUp) -> None:
        self.links.on_up(event.peer, event.incarnation, self._now)
        self.neighbours.send_sync(event.peer)

    def _on_link_down(self, peer: PeerId) -> None:
        self.links.on_down(peer, self._now)
        self.neighbours.on_lost(peer)

    def _on_sync(self, peer: PeerId, frame: fr.Sync) -> None:
        self.links[peer].sync = frame
        view = self.view
        if view is not None and frame.epoch < view.epoch:
            self._send_view(peer, view)
            self.neighbours.send_sync(peer)
        elif self.neighbours.is_level(peer):
            self.neighbours.on_sync(peer, frame.committed, self._now)

    def _fail_link(self, peer: PeerId, reason: str, abrupt: bool = False) -> None:
        self._emit(fx.Note("warning", f"link to {peer} closed: {reason}"))
        self._emit(fx.CloseLink(peer, reason, abrupt))
        self._on_link_down(peer)

    def _on_frame_received(self, event: ev.FrameReceived) -> None:
        link = self.links.get(event.peer)
        if link is None or not link.up:
            return
        link.heard = self._now
        self._on_frame[type(event.frame)](event.peer, event.frame, event)

    def _on_ping(self, peer: PeerId, frame: fr.Ping, event: ev.FrameReceived) -> None:
        link = self.links[peer]
        link.waiting = frame.waiting
        if link.member is None:
            self.neighbours.send_sync(peer)  # it wants the link though we don't: let it hear that we live

    def _check_links(self) -> None:
        for peer, _ in self.links.tick(self._now, self.allreduce.waiting):
            self._on_link_down(peer)
        view = self.view
        for peer, reason, since in list(self.links.lost(self._now)):
            if view is None:
                if (member := self.links[peer].member) is not None:
                    self.membership.disbelieve(member)
            elif peer == view.parent(self.id):
                if self.membership.leaving:
                    self._exit(None, "left")  # whoever takes over will find us gone
                    return
                if (mine := self.membership.takeover(peer, since, self._first_round(), self._now)) is not None:
                    self._emit(fx.Note("warning", f"{peer} is gone ({reason}); taking over"))
                    self._install(mine)
                    return
            else:
                self._suspect(peer, reason)
        for peer in list(self.allreduce.laggards(self._now)):
            link = self.links.get(peer)
            if link is not None and not link.waiting:
                self._suspect(peer, f"kept the round waiting for {self.limits.stall_s:g} s")
        if self.view is None:
            self.links.want(self.membership.probes(), (), self._now)
        elif self.membership.leaving:
            self._ask_to_leave()
        self.neighbours.ask_for_state(self._now, patient=False)

    # -- views -----------------------------------------------------------------------------------------------

    def _first_round(self) -> int:
        committed = self.allreduce.committed
        if self.view is not None and (committed == UNKNOWN or self.view.run != self.allreduce.run):
            return self.view.first_round
        return committed + 1

    def _coordinate(self, *, boundary: bool) -> None:
        following = self.membership.next_view(
            first_round=self._first_round(),
            boundary=boundary,
            idle=self.allreduce.idle,
            contributed=self.allreduce.contributed,
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
        parent = view.parent(self.id)
        children = [view.member(child) for child in view.children(self.id)]
        self.links.want([view.member(parent)] if parent is not None else [], children, self._now)
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
            if link.sync is None or link.sync.epoch < view.epoch:
                self._send_view(peer, view)
            if peer in neighbours:
                self.neighbours.send_sync(peer)

    def _send_view(self, peer: PeerId, view: View) -> None:
        self._emit(fx.Send(peer, fr.ViewFrame(epoch=view.epoch), pack(view)))

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
        self.links.want((), (), self._now)
        self._emit(fx.Removed(reason, wanted))
        if not wanted:
            self._emit(fx.PublishPresence())

    def _on_run_wanted(self, event: ev.RunWanted) -> None:
        self.neighbours.wanted_run = event.run
        self.membership.want_run(event.run, event.peers, self._now)
        if event.run is not None and event.have:
            self.allreduce.own_state = {event.run: event.have}
            place = self.allreduce.place
            if (place.run, place.committed, place.loading) == (event.run, UNKNOWN, False):
                self.allreduce.adopt(event.have)
            self.neighbours.sync_all()
        self.neighbours.ask_for_state(self._now, patient=True)

    # -- what is meant for the coordinator -------------------------------------------------------------------

    def _tell_coordinator(self, frame: fr.Suspect | fr.Leave) -> None:
        parent = self.view.parent(self.id) if self.view is not None else None
        if parent is not None and self.links.is_up(parent):
            self._emit(fx.Send(parent, frame))

    def _suspect(self, peer: PeerId, reason: str) -> None:
        view = self.view
        if view is None or peer not in view:
            return
        if self.membership.coordinator:
            self._emit(fx.Note("warning", f"{peer} is gone: {reason}"))
            self.membership.lose(peer)
        else:
            self._tell_coordinator(fr.Suspect(epoch=view.epoch, peer=peer, reason=reason))

    def _on_suspect(self, peer: PeerId, frame: fr.Suspect, event: ev.FrameReceived) -> None:
        if self.view is not None and frame.epoch == self.view.epoch:
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
            until = self.allreduce.committed + (1 if self.allreduce.contributed else 0)
            incarnation = self.membership.me.incarnation
            self._tell_coordinator(fr.Leave(peer=self.id, incarnation=incarnation, until=until))

    def _on_join_wanted(self, event: ev.JoinWanted) -> None:
        self.membership.leaving = False
        if self._left:
            self._left = False
            self.membership.rejoin(self._now)
            self._emit(fx.PublishPresence())
