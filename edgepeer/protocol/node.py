"""One peer's protocol: events in, effects out, one deadline. What happens when X arrives stands in the tables below.

`handle(event, now)` never fails because of what came from outside: a frame that makes no sense is ignored or
costs its sender the link. It raises ProtocolBug only for a state that must not exist.

What a frame of a round does in which stage of it: allreduce.py; which round that is: course.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from edgepeer.errors import WireError
from edgepeer.ids import Generation, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.attendance import Attendance
from edgepeer.protocol.diagnosis import diagnose
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.links import LinkState
from edgepeer.protocol.machine import Rounds
from edgepeer.protocol.parts import Parts
from edgepeer.protocol.place import UNKNOWN
from edgepeer.protocol.rollcall import Word
from edgepeer.protocol.shape import Choice
from edgepeer.protocol.views import Views, earlier
from edgepeer.protocol.vitals import COARSEST_S
from edgepeer.topology.view import Member, View
from edgepeer.wire import frames as fr
from edgepeer.wire.codec import has_document, unwrap
from edgepeer.wire.precision import encoded_bytes

__all__ = ["Node"]

_OF_ROUNDS: Final = frozenset({fr.Reduce, fr.Result, fr.Have, fr.Decide})
"""Frames that give no reason for another view, as long as they end no round ..."""
_USUAL: Final = _OF_ROUNDS | {fr.Ping, ev.Heard}
"""... and what is no reason to look at the links again soon."""

_VECTORS: Final = frozenset({fr.Reduce, fr.Result})

EXCUSED_S: Final = 0.02
"""A tick that comes later than this finds the peer's own machine busy."""
RELAY_BYTES_PER_S: Final = 10e6
"""What a broker is taken to carry."""


class Node:
    """The machine that a peer runs.

    Args:
        me: this peer as it introduces itself.
        fanout: the tree's fan-out, if this peer makes the first view.
        lanes: into how many ranges a vector is divided, each with a tree of its own, if this peer makes the first view.
        choice: what of that is to follow what is measured, with the order, whoever has made the view; None: nothing,
            and nothing is told of what this peer measures.
        quorum: how many members must be together to go on, if more than a majority, and if this peer makes the first
            view; 0: the majority.
        limits: within which bounds to give up on what.
        known: the newest generation that this peer was ever in.
        now: the current time; all later `now` come from the same clock and never go back.
    """

    def __init__(
        self,
        me: Member,
        *,
        fanout: int = 2,
        lanes: int = 1,
        choice: Choice | None = None,
        quorum: int = 0,
        limits: Limits | None = None,
        known: Generation | None = None,
        now: float,
    ) -> None:
        parts = self.parts = Parts(me, fanout, lanes, quorum, limits or Limits(), known, now, choice)
        self._place = parts.place
        self.id = parts.id
        views = self.views = Views(parts)
        attendance = self.attendance = Attendance(parts, views)
        self._tick_at = now
        self._looked_at, self._beat_s = now, 0.0
        rounds, neighbours = parts.allreduce, parts.neighbours
        self._on_event: dict[type[Any], Callable[[Any], None]] = {
            # links
            ev.FrameReceived: self._on_frame_received,
            ev.Relayed: lambda e: self._on_via(None, e.frame, e.payload, len(e.payload) / RELAY_BYTES_PER_S),
            ev.Heard: lambda e: parts.vitals.heard(e.peer, e.at),
            ev.Unacknowledged: self._on_unacknowledged,
            ev.LinkUp: lambda e: parts.wiring.on_link_up(e.peer, e.incarnation, dialled=e.dialled),
            ev.LinkDown: lambda e: parts.wiring.on_link_down(e.peer),
            ev.DialFailed: lambda e: parts.links.on_dial_failed(e.peer, e.refused, parts.now),
            # MQTT
            ev.PresenceSeen: lambda e: attendance.on_presence_seen(e.member),
            ev.PresenceGone: lambda e: attendance.on_presence_gone(e.peer),
            ev.ViewSeen: lambda e: attendance.on_hint(e.view),
            ev.ControlSynced: lambda e: attendance.on_control_synced(),
            # the owner
            ev.Contribute: self._on_contribute,
            ev.CodeWanted: self._on_code_wanted,
            ev.ChunksDone: self._on_chunks_done,
            ev.Encoded: lambda e: rounds.encoded(e.epoch, e.round, e.vector),
            ev.Abandoned: lambda e: rounds.abandon(),
            ev.TimedOut: lambda e: rounds.time_out(e.reason),
            ev.RunExpected: lambda e: parts.membership.expect_run(e.run, e.peers),
            ev.RunWanted: views.on_run_wanted,
            ev.StateReady: neighbours.on_state_ready,
            ev.StateLost: lambda e: neighbours.on_state_lost(),
            ev.Adopted: neighbours.on_adopted,
            ev.LeaveWanted: lambda e: views.on_leave_wanted(),
            ev.JoinWanted: lambda e: views.on_join_wanted(),
        }
        self._on_frame: dict[type[Any], Callable[[PeerId, Any, ev.FrameReceived], None]] = {
            # rounds
            fr.Reduce: lambda p, f, e: rounds.on_reduce(p, f, e.payload_bytes, e.stored, e.seconds),
            fr.Result: lambda p, f, e: rounds.on_result(p, f, e.payload_bytes, e.stored, e.seconds),
            fr.Have: lambda p, f, e: rounds.on_have(p, f),
            fr.Decide: lambda p, f, e: rounds.on_decide(p, f),
            fr.Progress: lambda p, f, e: rounds.on_progress(p, f),
            fr.Release: lambda p, f, e: rounds.on_release(p, f),
            fr.Abort: lambda p, f, e: rounds.on_abort(p, f),
            # signs of life, and where neighbours stand
            fr.Ping: lambda p, f, e: parts.vitals.on_ping(p, f, parts.now),
            fr.Sync: lambda p, f, e: self._on_sync(p, f),
            fr.StateRequest: lambda p, f, e: neighbours.on_state_request(p, f, parts.now),
            fr.State: lambda p, f, e: neighbours.on_state(p, f, e, parts.now),
            # views
            fr.ViewFrame: lambda p, f, e: views.on_view_frame(p, e),
            fr.Suspect: lambda p, f, e: views.on_suspect(f),
            fr.Leave: lambda p, f, e: views.on_leave(f),
            fr.Measured: lambda p, f, e: views.on_measured(f),
            fr.Poll: lambda p, f, e: views.on_poll(p, f),
            fr.Propose: views.on_propose,
            fr.Vote: views.on_vote,
            # paths
            fr.Via: lambda p, f, e: self._on_via(p, f, e.payload or b"", e.seconds),
            fr.NoWay: lambda p, f, e: parts.paths.on_no_way(p, f),
            fr.Knock: _ignore,  # only inside of a Via, as are the next two
            fr.Call: _ignore,
            fr.Here: _ignore,
            # before and after a link, and of other protocols
            fr.Hello: _ignore,
            fr.Bye: _ignore,
            fr.Meta: _ignore,
        }

    # -- the interface -------------------------------------------------------------------------------------

    @property
    def me(self) -> Member:
        """This peer in its present life."""
        return self.parts.membership.me

    @property
    def view(self) -> View | None:
        """The view that this peer works in."""
        return self.parts.membership.view

    @property
    def allreduce(self) -> Rounds:
        """Its rounds."""
        return self.parts.course

    @property
    def waits(self) -> str:
        """Why nothing comes of the view that this peer wants, and who does not answer; empty if something does."""
        why, view, there = self.parts.membership.waits, self.view, self.parts.succession.there
        silent = [peer for peer in view.ids if peer not in there] if view is not None and why else []
        if not silent:
            return why
        names = ", ".join(silent[:5]) + (f" and {len(silent) - 5} more" if len(silent) > 5 else "")
        return f"{why}; no answer from {names}"

    @property
    def shape(self) -> str:
        """Why the trees of the view are as they are, as its head has found when it last looked; empty elsewhere."""
        return self.parts.shaping.why

    def introduce(self, addresses: tuple[str, ...]) -> None:
        """Where this peer listens: to be said before it takes part in anything."""
        self.parts.membership.introduce(addresses)

    def link_states(self) -> tuple[LinkState, ...]:
        """How all wanted links are, in peer order."""
        return self.parts.vitals.link_states()

    def diagnosis(self, now: float) -> dict[str, Any]:
        """All that decides what this peer does next, as JSON has it."""
        return diagnose(self.parts, now)

    def handle(self, event: ev.Event, now: float) -> list[fx.Effect]:
        """What to do about `event`, which happened at `now`."""
        parts, place = self.parts, self._place
        self._pass_time(now)
        before = place.committed
        self._on_event[type(event)](event)
        self._look_awake()
        if place.committed == UNKNOWN != before:
            parts.neighbours.say_it_is_without()
        boundary = place.committed != before
        if type(event) is ev.Contribute:
            travels = encoded_bytes(event.precision, event.vector.size, event.vector.itemsize)
            parts.shaping.contributed(travels, now)
        if place.committed > before:
            parts.vitals.round_ended(now)
            parts.measuring.round_ended()
            parts.shaping.round_ended(now)
            if self._tick_at > now:
                # While rounds follow each other they show that this peer lives: it need not wake up to say so.
                self._tick_at = max(self._tick_at, parts.vitals.next_due(now, self._looked_at))
        what = type(event.frame) if type(event) is ev.FrameReceived else type(event)
        if what not in _USUAL:
            self._tick_at = min(self._tick_at, now + COARSEST_S)
        if parts.membership.coordinator and (boundary or what not in _OF_ROUNDS):
            self.views.coordinate(boundary=boundary)
        return parts.wiring.drain()

    def sink(self, peer: PeerId, frame: fr.Frame, payload_bytes: int) -> memoryview | None:
        """Where the payload of a frame that is about to arrive belongs; None to throw it away."""
        if isinstance(frame, (fr.Reduce, fr.Result)):
            if self.parts.links.is_ignored(peer):
                return None
            return self.parts.allreduce.sink(peer, frame, payload_bytes)
        if isinstance(frame, fr.State):
            return self.parts.neighbours.sink(peer, frame, payload_bytes)
        return None

    # -- time ----------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[fx.Effect]:
        """What to do because `next_deadline()` has come."""
        parts = self.parts
        self._pass_time(now)
        self._look_awake()
        if now >= self._tick_at:
            self._check_links()
            self._tick_at = parts.vitals.next_due(now, now)
            self._looked_at, self._beat_s = now, parts.vitals.every_s(now)
        parts.paths.tick(now)
        parts.allreduce.look_again()
        if parts.waking.over and (first := parts.outside.first_view(now)) is not None:
            self.views.install(first)
        if parts.membership.coordinator:
            self.views.coordinate(boundary=False)
            parts.shaping.think(now)
        if now >= parts.rolls.next_at:
            self.attendance.call_round()
        return parts.wiring.drain()

    def next_deadline(self) -> float:
        """When to call `tick`, at the latest."""
        parts, now = self.parts, self._place.now
        due = min(self._tick_at, parts.rolls.next_at)
        # Asked for after every event, and most of the time there is none of these.
        for other in (
            parts.outside.next_deadline() if self.view is None else None,
            parts.waking.next_deadline() if self._place.waking else None,
            parts.membership.next_deadline() if parts.membership.coordinator else None,
            parts.paths.next_deadline(),
            parts.allreduce.next_deadline(),
            parts.shaping.next_deadline(now),
        ):
            if other is not None and now < other < due:  # what has passed without effect waits for the next tick
                due = other
        return due

    def _pass_time(self, now: float) -> None:
        """It is now so late."""
        parts, stopped, late = self.parts, now - self._place.now, now - self._tick_at
        self._place.pass_time(now)
        if stopped >= parts.limits.silence_s:  # whoever runs has ticked meanwhile
            parts.waking.begin(stopped, now)
            self.attendance.write_to_myself()
        if late > EXCUSED_S:
            # At once, as what has come may be handled before the next tick: nobody was silent meanwhile.
            parts.links.excuse(late, now)
            parts.membership.excuse(late, now)
            parts.vitals.excuse(late, now)
            self._tick_at = now

    def _look_awake(self) -> None:
        if self._place.waking and self.parts.waking.look(self._place.now):
            self.parts.allreduce.go_on()

    def _on_unacknowledged(self, event: ev.Unacknowledged) -> None:
        parts = self.parts
        if parts.links.unacknowledged(event.peer, event.since, event.within_s, parts.now):
            parts.wiring.on_path_down(event.peer)
        else:
            parts.vitals.in_doubt(event.peer, event.since, event.within_s, parts.now)

    def _check_links(self) -> None:
        """What is to be done of what has not come in time."""
        parts, views, now = self.parts, self.views, self.parts.now
        parts.wiring.on_paths_down(parts.vitals.tick(now))
        parts.membership.on_refused((peer for peer, end in parts.links.all() if end.refused and not end.up), now)
        lost = list(parts.links.lost(now, others=self.view is None))
        if not views.do_without(lost):
            return
        for peer in parts.course.laggards(now):
            link = parts.links.get(peer)
            if link is not None and not link.waiting:
                views.suspect(peer, f"kept the round waiting for {parts.limits.stall_s:g} s")
        if self.view is None:
            parts.links.want([(member, "other") for member in parts.outside.probes()], now)
        elif parts.membership.leaving:
            views.ask_to_leave()
        parts.neighbours.ask_for_state(now, patient=False)
        if (report := parts.measuring.due(now)) is not None:
            views.on_measured(report)
        parts.vitals.say_if_waiting(now)

    # -- what concerns more than one part ------------------------------------------------------------------

    def _on_frame_received(self, event: ev.FrameReceived) -> None:
        link = self.parts.links.get(event.peer)
        if link is None or not link.direct:
            return
        link.hear(self._place.now)
        if event.payload_bytes and event.stored and type(event.frame) in _VECTORS:
            self.parts.measuring.arrived(event.peer, event.payload_bytes, event.seconds, self._place.now)
        self._on_frame[type(event.frame)](event.peer, event.frame, event)

    def _on_via(self, hop: PeerId | None, via: fr.Via, payload: memoryview | bytes, seconds: float) -> None:
        """A frame that has not come over a connection with its source: copied once to where it belongs."""
        try:
            if hop is None and not via.tunnel and via.target == self.id:
                self.attendance.on_letter(PeerId(via.source), unwrap(via, len(payload)), payload)
                return
            source = PeerId(via.source)
            found = self.parts.paths.on_via(hop, via, payload, seconds, self.parts.now)
        except WireError as error:
            if hop is not None:
                self.parts.wiring.fail_link(hop, str(error))
            return
        while found is not None:
            self._on_carried(source, *found)
            found = self.parts.paths.following(source)

    def _on_carried(self, source: PeerId, frame: fr.Frame, payload: memoryview | bytes, seconds: float) -> None:
        sink = self.sink(source, frame, len(payload))
        if sink is not None and len(payload):
            sink[:] = payload
        document = payload if has_document(frame) else None
        event = ev.FrameReceived(source, frame, document, len(payload), sink is not None, seconds)
        self._on_frame[type(frame)](source, frame, event)

    def _on_sync(self, peer: PeerId, frame: fr.Sync) -> None:
        parts, view = self.parts, self.view
        link = parts.links[peer]
        link.on_sync(frame)
        life = max(link.life, frame.life)
        self.attendance.heed(peer, Word(parts.now, life, frame.generation, frame.epoch, answers=link.answers), None)
        if parts.neighbours.is_level(peer):
            parts.neighbours.on_sync(peer, frame, parts.now)
            return
        parts.neighbours.on_word(peer, frame)
        if view is not None and earlier(frame, view):
            self.views.send_view(peer, view)
            parts.neighbours.send_sync(peer)

    def _on_contribute(self, event: ev.Contribute) -> None:
        parts = self.parts
        parts.neighbours.contributed()
        parts.allreduce.contribute(event.vector, event.weight, parts.now, event.precision)
        parts.vitals.contributed(parts.now)
        if (every_s := parts.vitals.every_s(parts.now)) < self._beat_s:
            self._tick_at = min(self._tick_at, parts.now + every_s)  # rounds have begun

    def _on_chunks_done(self, event: ev.ChunksDone) -> None:
        if not self.parts.course.contributed:  # a call that was cancelled says so again with each view
            self.parts.neighbours.contributed()
        self.parts.allreduce.did(event.epoch, event.round, event.done, self.parts.now, event.code)

    def _on_code_wanted(self, event: ev.CodeWanted) -> None:
        self.parts.membership.want_code(event.coding is not None)
        self.parts.allreduce.use_code(event.coding)
        self.parts.neighbours.sync_all()  # children may have spoken of progress before it could be understood here


def _ignore(peer: PeerId, frame: fr.Frame, event: ev.FrameReceived) -> None:
    """Nothing that concerns a peer of this protocol."""
