"""A baseline's peer: membership up to the first round, links, and the rounds of some `Collective`.

    a link is | wanted                                          | not wanted
    ----------+-------------------------------------------------+---------------------------------------
    up        | stays, however silent: there are no heartbeats  | closed when the view that wanted it is over
    down      | dialled again with back-off, by the later       | forgotten
              | of the two in the view's order                  |

Views come over MQTT alone. Who has installed one says so on its links (Sync), and rounds begin on a link when both
ends have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from edgepeer.baselines.collective import Collective
from edgepeer.baselines.gathering import Gathering
from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.links import LinkState
from edgepeer.topology.view import Member, View
from edgepeer.wire import frames as fr

__all__ = ["Shell"]


class _Link:
    """What is known of one peer's link."""

    __slots__ = ("dialling", "member", "pause_s", "redial_at", "stamp", "up")

    def __init__(self) -> None:
        self.up = False
        self.member: Member | None = None
        """Set while this end is to dial."""
        self.stamp = 0
        """The view that the other end has said to be in, on this connection."""
        self.dialling = False
        self.redial_at = 0.0
        self.pause_s = 0.0


class Shell:
    """Implements protocol.machine.Machine for a baseline.

    Args:
        me: this peer as it introduces itself.
        rounds: what it does with vectors.
        fanout: the tree's fan-out, if this peer makes the first view.
        limits: when to give up on what.
        now: the current time; all later `now` come from the same clock and never go back.
    """

    def __init__(self, me: Member, rounds: Collective, *, fanout: int, limits: Limits, now: float) -> None:
        self.id = PeerId(me.id)
        self.membership = Gathering(me, fanout, limits)
        self.allreduce = rounds
        self._limits = limits
        self._effects: list[fx.Effect] = []
        self._emit = self._effects.append
        rounds.connect(self._emit, self._fail_link)
        self._links: dict[PeerId, _Link] = {}
        self._wanted_run: str | None = None
        self._left = False
        self._now = now
        self._tick_at = now
        self._on_event: dict[type[Any], Callable[[Any], None]] = {
            ev.FrameReceived: self._on_frame,
            ev.LinkUp: lambda e: self._on_link_up(e.peer),
            ev.LinkDown: lambda e: self._on_link_down(e.peer),
            ev.DialFailed: lambda e: self._on_dial_failed(e.peer),
            ev.PresenceSeen: lambda e: self.membership.on_presence(e.member, self._now),
            ev.PresenceGone: lambda e: self.membership.on_gone(e.peer),
            ev.ViewSeen: lambda e: self._on_view(e.view),
            ev.ControlSynced: lambda e: self.membership.on_synced(self._now),
            ev.Contribute: lambda e: rounds.contribute(e.vector, e.weight),
            ev.TimedOut: lambda e: rounds.time_out(e.reason),
            ev.Abandoned: lambda e: rounds.abandon(),
            ev.RunWanted: self._on_run_wanted,
            ev.LeaveWanted: lambda e: self._exit(None, "left", wanted=True),
            ev.JoinWanted: lambda e: self._on_join_wanted(),
        }

    # -- the interface -------------------------------------------------------------------------------------

    @property
    def me(self) -> Member:
        """This peer in its present life."""
        return self.membership.me

    @property
    def view(self) -> View | None:
        return self.membership.view

    @property
    def shape(self) -> str:
        return ""

    @property
    def waits(self) -> str:
        return ""  # a fleet without a member stands still, and makes no other view

    def introduce(self, addresses: tuple[str, ...]) -> None:
        """Where this peer listens: to be said before it takes part in anything."""
        self.membership.me = msgspec.structs.replace(self.membership.me, addresses=addresses)

    def sink(self, peer: PeerId, frame: fr.Frame, payload_bytes: int) -> memoryview | None:
        """Where the payload of a frame that is about to arrive belongs; None to throw it away."""
        if not isinstance(frame, (fr.Reduce, fr.Result)) or self.view is None or frame.epoch != self.view.stamp:
            return None
        if frame.precision != "float32":
            return None  # costs the link
        return self.allreduce.sink(peer, frame, payload_bytes)

    def link_states(self) -> tuple[LinkState, ...]:
        """How all wanted links are, in peer order; a baseline measures none of them."""
        if self.view is None:
            return ()
        return tuple(
            LinkState(peer, self.allreduce.role(peer), link.up, "direct" if link.up else "", None)
            for peer in sorted(self.allreduce.neighbours(self.view))
            if (link := self._links.get(peer)) is not None
        )

    def diagnosis(self, now: float) -> dict[str, Any]:
        """All that decides what this peer does next, as JSON has it."""
        view = self.view
        return {
            "peer": self.id,
            "life": self.membership.me.incarnation,
            "view": {"epoch": view.epoch, "members": view.ids, "run": view.run} if view is not None else None,
            "committed": self.allreduce.committed,
            "missing": self.allreduce.missing(),
            "links": {
                peer: {"dialled": link.member is not None, "up": link.up, "level": view and link.stamp == view.stamp}
                for peer, link in sorted(self._links.items())
            },
        }

    def handle(self, event: ev.Event, now: float) -> list[fx.Effect]:
        """What to do about `event`, which happened at `now`. Events that mean nothing to a baseline do nothing."""
        self._at(now)
        if (act := self._on_event.get(type(event))) is not None:
            act(event)
        self._coordinate()
        return self._drain()

    def tick(self, now: float) -> list[fx.Effect]:
        """What to do because `next_deadline()` has come."""
        self._at(now)
        if now >= self._tick_at:
            self._tick_at = now + self._limits.settle_s
        if (first := self.membership.first_view(now)) is not None:
            self._install(first)
        self._coordinate()
        self._dial()
        if now >= self.allreduce.deadline:
            self.allreduce.tick()
        return self._drain()

    def next_deadline(self) -> float:
        """When to call `tick`, at the latest."""
        dials = [link.redial_at for link in self._links.values() if self._to_dial(link)]
        due = [self._tick_at, self.allreduce.deadline, *dials]
        other = self.membership.next_deadline()
        # A deadline that has passed without effect waits for the regular tick.
        return min(due if other is None or other <= self._now else [*due, other])

    def _at(self, now: float) -> None:
        self._now = now
        self.allreduce.at(now)

    def _drain(self) -> list[fx.Effect]:
        out = self._effects[:]
        self._effects.clear()
        return out

    # -- links ---------------------------------------------------------------------------------------------

    def _to_dial(self, link: _Link) -> bool:
        return link.member is not None and not link.up and not link.dialling

    def _dial(self) -> None:
        for _, link in sorted(self._links.items()):
            if self._to_dial(link) and self._now >= link.redial_at and link.member is not None:
                link.dialling = True
                self._emit(fx.Dial(link.member))

    def _want(self, view: View) -> None:
        """Be linked with the neighbours in `view`, and with nobody else."""
        wanted = set(self.allreduce.neighbours(view)) - {self.id}
        for peer in sorted(set(self._links) - wanted):
            link = self._links[peer]
            link.member = None
            if link.up and link.stamp <= view.stamp:
                self._emit(fx.CloseLink(peer, "no neighbour any more"))
                link.up = False
            if not link.up:
                del self._links[peer]
        for peer in sorted(wanted):
            link = self._links.setdefault(peer, _Link())
            link.member = view.member(peer) if view.position(peer) < view.position(self.id) else None
            link.redial_at, link.pause_s = self._now, self._limits.redial_min_s

    def _on_link_up(self, peer: PeerId) -> None:
        link = self._links.setdefault(peer, _Link())
        link.up, link.dialling, link.stamp = True, False, 0
        link.pause_s = self._limits.redial_min_s
        self._sync(peer)

    def _on_link_down(self, peer: PeerId) -> None:
        if (link := self._links.get(peer)) is None:
            return
        link.up, link.dialling, link.stamp, link.redial_at = False, False, 0, self._now + link.pause_s
        self.allreduce.on_down(peer)
        if self.view is None or peer not in self.allreduce.neighbours(self.view):
            del self._links[peer]

    def _on_dial_failed(self, peer: PeerId) -> None:
        if (link := self._links.get(peer)) is not None:
            link.dialling = False
            link.redial_at = self._now + link.pause_s
            link.pause_s = min(2 * link.pause_s, self._limits.redial_max_s)

    def _fail_link(self, peer: PeerId, reason: str) -> None:
        self._emit(fx.Note("warning", f"link to {peer} closed: {reason}", often=True))
        self._emit(fx.CloseLink(peer, reason, abrupt=True))
        self._on_link_down(peer)

    def _sync(self, peer: PeerId) -> None:
        """Say which view this peer is in."""
        stamp = self.view.stamp if self.view is not None else 0
        self._emit(fx.Send(peer, fr.Sync(epoch=stamp, run=self.allreduce.run, committed=self.allreduce.committed)))
        self._compare(peer)

    def _compare(self, peer: PeerId) -> None:
        view, link = self.view, self._links[peer]
        if view is not None and link.stamp == view.stamp and peer in self.allreduce.neighbours(view):
            self.allreduce.on_level(peer)

    def _on_frame(self, event: ev.FrameReceived) -> None:
        link, frame = self._links.get(event.peer), event.frame
        if link is None or not link.up:
            return
        if isinstance(frame, fr.Sync):
            link.stamp = frame.epoch
            self._compare(event.peer)
        elif self.view is None or event.peer not in self.view:
            return
        elif isinstance(frame, fr.Abort):
            self.allreduce.on_abort(frame)
        elif isinstance(frame, (fr.Reduce, fr.Result)) and frame.precision != "float32":
            self._fail_link(event.peer, f"{type(frame).__name__} in {frame.precision}: this protocol has float32 only")
        else:
            self.allreduce.on_frame(event.peer, frame, event)

    # -- views -----------------------------------------------------------------------------------------------

    def _coordinate(self) -> None:
        """Let the view grow until its first round begins, or until another run is wanted."""
        view, rounds = self.view, self.allreduce
        if view is None or not self.membership.coordinator:
            return
        if rounds.begun and self._wanted_run in (None, view.run):
            return
        following = self.membership.next_view(first_round=rounds.committed + 1, now=self._now)
        if following is not None:
            self._install(following)

    def _on_run_wanted(self, event: ev.RunWanted) -> None:
        self._wanted_run = event.run
        self.membership.want_run(event.run, event.peers, self._now)

    def _on_view(self, view: View) -> None:
        if self._left:
            return
        me = self.membership.me
        if self.id in view and view.member(self.id).incarnation >= me.incarnation and view.member(self.id) != me:
            # Its identity was lost, and counts anew: begin after that.
            self.membership.begin_life(self._now, after=view.member(self.id).incarnation)
            self._emit(fx.PublishPresence())
        if not self.membership.accepts(view):
            if self.membership.coordinator and self.view is not None and view.precedes(self.view):
                self._emit(fx.PublishView(self.view))  # ours is the newer one: MQTT should hold it
        elif self.id in view and view.member(self.id) == self.membership.me:
            self._install(view)
        elif self.view is not None:
            self._exit(view, "another view was made without this peer")
        else:
            self.membership.seen = view

    def _install(self, view: View) -> None:
        was_coordinator = self.membership.coordinator
        self.membership.enter(view, self._now)
        self._emit(fx.ViewInstalled(view))
        self._want(view)
        self.allreduce.install(view)
        for peer, link in sorted(self._links.items()):
            if link.up:
                self._sync(peer)
        self._dial()
        if self.membership.coordinator:
            self._emit(fx.PublishView(view))
        elif was_coordinator:
            self._emit(fx.PublishView(None))

    def _exit(self, view: View | None, reason: str, *, wanted: bool = False) -> None:
        """Out of the view, because we left or because another one was made without us."""
        if self._left:
            return
        if wanted:
            self.membership.leaving = True
        self._left = wanted
        if self.membership.coordinator:
            self._emit(fx.PublishView(None))
        self.allreduce.leave(reason)
        self.membership.exit(view, self._now)
        for peer, link in sorted(self._links.items()):
            if link.up:
                self._emit(fx.CloseLink(peer, reason))
        self._links.clear()
        self._emit(fx.Removed(reason, wanted))
        if not wanted:
            self._emit(fx.PublishPresence())

    def _on_join_wanted(self) -> None:
        self.membership.leaving = False
        if self._left:
            self._left = False
            self.membership.begin_life(self._now)
            self._emit(fx.PublishPresence())
