"""What comes in over a peer's links, by whatever path, and what goes out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from edgepeer.errors import WireError
from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.allreduce import Allreduce
from edgepeer.protocol.catchup import Catchup
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.links import Links, LinkState
from edgepeer.protocol.membership import Membership
from edgepeer.protocol.neighbours import Neighbours
from edgepeer.protocol.paths import Paths
from edgepeer.protocol.rollcall import RollCall
from edgepeer.protocol.succession import Succession
from edgepeer.protocol.vitals import Vitals
from edgepeer.topology.view import Member, View
from edgepeer.wire import frames as fr
from edgepeer.wire.codec import has_document, unwrap

__all__ = ["Wiring"]

RELAY_BYTES_PER_S: Final = 10e6
"""What a broker is taken to carry."""


class Wiring:
    """The parts of one peer, and the links between it and others."""

    def __init__(self, me: Member, fanout: int, quorum: int, limits: Limits, now: float) -> None:
        self.id = PeerId(me.id)
        self.limits = limits
        self._effects: list[fx.Effect] = []
        emit = self._emit = self._effects.append
        self._now = now
        self.rolls = RollCall(emit)
        membership = self.membership = Membership(me, fanout, limits, self.rolls, quorum)
        self.succession = Succession(self.id, emit)
        self.links = Links(limits, emit)
        self.paths = Paths(self.id, self.links, limits, emit, self._on_path_up, self._on_path_down)
        self.allreduce = Allreduce(self.id, limits, emit, self._fail_link, self._paths_in_use)
        self.vitals = Vitals(self.id, self.links, self.allreduce, membership, self.succession, limits, emit)
        self.neighbours = Neighbours(self.links, self.allreduce, Catchup(limits, emit), emit)
        self._on_event: dict[type[Any], Callable[[Any], None]] = {
            ev.FrameReceived: self._on_frame_received,
            ev.Relayed: lambda e: self._on_via(None, e.frame, e.payload, len(e.payload) / RELAY_BYTES_PER_S),
            ev.Heard: lambda e: self.vitals.heard(e.peer, e.at),
            ev.LinkUp: self._on_link_up,
            ev.LinkDown: self._on_link_down,
            ev.DialFailed: lambda e: self.links.on_dial_failed(e.peer, e.refused, self._now),
            ev.TimedOut: lambda e: self.allreduce.time_out(e.reason),
            ev.ChunksDone: lambda e: self.allreduce.did(e.epoch, e.round, e.done, self._now),
            ev.Encoded: lambda e: self.allreduce.encoded(e.epoch, e.round, e.vector),
            ev.Abandoned: lambda e: self.allreduce.abandon(),
            ev.StateReady: lambda e: self.neighbours.on_state_ready(e),
            ev.StateLost: lambda e: self.neighbours.on_state_lost(),
            ev.Adopted: lambda e: self.neighbours.on_adopted(e),
        }
        self._on_frame: dict[type[Any], Callable[[PeerId, Any, ev.FrameReceived], None]] = {
            fr.Reduce: lambda p, f, e: self.allreduce.on_reduce(p, f, e.payload_bytes, e.stored, e.seconds),
            fr.Result: lambda p, f, e: self.allreduce.on_result(p, f, e.payload_bytes, e.stored, e.seconds),
            fr.Have: lambda p, f, e: self.allreduce.on_have(p, f),
            fr.Decide: lambda p, f, e: self.allreduce.on_decide(p, f),
            fr.Progress: lambda p, f, e: self.allreduce.on_progress(p, f),
            fr.Release: lambda p, f, e: self.allreduce.on_release(p, f),
            fr.Abort: lambda p, f, e: self.allreduce.on_abort(p, f),
            fr.Ping: lambda p, f, e: self.vitals.on_ping(p, f, self._now),
            fr.StateRequest: lambda p, f, e: self.neighbours.on_state_request(p, f.run, self._now),
            fr.State: lambda p, f, e: self.neighbours.on_state(p, f, e, self._now),
            fr.Via: lambda p, f, e: self._on_via(p, f, e.payload or b"", e.seconds),
            fr.NoWay: lambda p, f, e: self.paths.on_no_way(p, f),
            fr.Knock: lambda p, f, e: None,  # only inside of a Via, as are the next two
            fr.Call: lambda p, f, e: None,
            fr.Here: lambda p, f, e: None,
            fr.Hello: lambda p, f, e: None,
            fr.Bye: lambda p, f, e: None,
            fr.Meta: lambda p, f, e: None,  # of another protocol
        }

    @property
    def view(self) -> View | None:
        return self.membership.view

    def link_states(self) -> tuple[LinkState, ...]:
        """How all wanted links are, in peer order."""
        return self.vitals.link_states()

    # -- coming in --------------------------------------------------------------------------------------

    def sink(self, peer: PeerId, frame: fr.Frame, payload_bytes: int) -> memoryview | None:
        """Where the payload of a frame that is about to arrive belongs; None to throw it away."""
        if isinstance(frame, (fr.Reduce, fr.Result)):
            return self.allreduce.sink(peer, frame, payload_bytes)
        if isinstance(frame, fr.State):
            return self.neighbours.sink(peer, frame, payload_bytes)
        return None

    # -- paths ---------------------------------------------------------------------------------------------

    def _on_link_up(self, event: ev.LinkUp) -> None:
        if self.links.is_up(event.peer):
            self._path_ends(event.peer)  # the tunnel, or an older connection
        self.links.on_up(event.peer, event.incarnation, self._now)
        self.vitals.announce(self._now)
        self.neighbours.send_sync(event.peer)

    def _on_link_down(self, event: ev.LinkDown) -> None:
        if self.links.is_direct(event.peer):
            self._on_path_down(event.peer)

    def _on_path_up(self, peer: PeerId) -> None:
        self.vitals.announce(self._now)
        self.neighbours.send_sync(peer)

    def _on_path_down(self, peer: PeerId, seek: bool = True) -> None:
        """A link has lost what it ran over: look for another way if `seek`."""
        was_direct = self.links.is_direct(peer)
        self._path_ends(peer)
        if was_direct:
            self.paths.hop_lost(peer)
            self.vitals.announce(self._now)
        link = self.links.get(peer)
        if seek and link is not None and link.main:
            self.paths.seek(peer, self._now)

    def _path_ends(self, peer: PeerId) -> None:
        self.links.on_down(peer, self._now)
        self.neighbours.on_lost(peer)

    def _on_via(self, hop: PeerId | None, via: fr.Via, payload: memoryview | bytes, seconds: float) -> None:
        """A frame that has not come over a connection with its source: copied once to where it belongs."""
        try:
            if hop is None and not via.tunnel and via.target == self.id:
                self._on_letter(PeerId(via.source), unwrap(via, len(payload)), payload)
                return
            found = self.paths.on_via(hop, via, payload, self._now)
        except WireError as error:
            if hop is not None:
                self._fail_link(hop, str(error))
            return
        if found is None:
            return
        source, frame = found
        sink = self.sink(source, frame, len(payload))
        if sink is not None and len(payload):
            sink[:] = payload
        document = payload if has_document(frame) else None
        event = ev.FrameReceived(source, frame, document, len(payload), sink is not None, seconds)
        self._on_frame[type(frame)](source, frame, event)

    def _on_letter(self, source: PeerId, frame: fr.Frame, payload: memoryview | bytes) -> None:
        """What another peer has sent to this one through the broker, link or no link."""
        raise NotImplementedError  # Node's

    def _paths_in_use(self) -> tuple[str, ...]:
        view = self.view
        return tuple(self.links[p].path for p in view.neighbours(self.id) if self.links.get(p)) if view else ()

    def _fail_link(self, peer: PeerId, reason: str, abrupt: bool = False) -> None:
        self._emit(fx.Note("warning", f"link to {peer} closed: {reason}"))
        link = self.links.get(peer)
        carrier = link.tunnel.hop if link is not None and link.tunnel is not None and not link.direct else peer
        if carrier is not None and (carrier == peer or abrupt):
            self._emit(fx.CloseLink(carrier, reason, abrupt))
            if carrier != peer:
                self._on_path_down(carrier)
                return
        self._on_path_down(peer)

    def _on_frame_received(self, event: ev.FrameReceived) -> None:
        link = self.links.get(event.peer)
        if link is None or not link.direct:
            return
        link.hear(self._now)
        self._on_frame[type(event.frame)](event.peer, event.frame, event)

    # -- going out --------------------------------------------------------------------------------------

    def _drain(self) -> list[fx.Effect]:
        out: list[fx.Effect] = []
        for effect in self._effects:
            if type(effect) is fx.Send and (link := self.links.get(effect.peer)) is not None:
                link.sent = self._now
                if link.tunnel is not None and not link.direct:
                    out.extend(self.paths.wrapped(effect, link.tunnel))
                    continue
            out.append(effect)
        self._effects.clear()
        return out
