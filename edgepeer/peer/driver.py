"""The protocol machine with real I/O: what happens becomes events, what the machine wants is done.

Everything runs on the event loop's thread, one event at a time and to its end, so the machine needs no locks.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from edgepeer.complaints import Complaints
from edgepeer.elapsed import elapsed
from edgepeer.errors import PeerError
from edgepeer.ids import PeerId
from edgepeer.peer.control import ControlPlane
from edgepeer.peer.hearsay import Hearsay
from edgepeer.peer.letters import Letters
from edgepeer.peer.switchboard import Switchboard
from edgepeer.printable import one_line
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.machine import Machine
from edgepeer.topology.view import View
from edgepeer.wire.frames import PART, Frame, State, StateRequest, Via

__all__ = ["Driver", "Owner"]

_log = logging.getLogger(__name__)
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}


class Owner(Protocol):
    """Who uses the driver: hears what concerns the application and the control plane."""

    control: ControlPlane

    def publish_presence(self) -> None: ...

    def view_installed(self, view: View) -> None: ...

    def removed(self, effect: fx.Removed) -> None: ...

    def refused(self, effect: fx.Refused) -> None: ...

    def round_committed(self, effect: fx.RoundCommitted) -> None: ...

    def encode_wanted(self, effect: fx.EncodeWanted) -> None: ...

    def round_aborted(self, effect: fx.RoundAborted) -> None: ...

    def provide_state(self, effect: fx.ProvideState) -> None: ...

    def part_wanted(self, peer: PeerId, name: str) -> None: ...

    def state_received(self, effect: fx.StateReceived) -> None: ...

    def behind(self, effect: fx.Behind) -> None: ...


LATER_S: Final = 0.005
"""A deadline that has moved on by this much is worth another timer: to be woken up for nothing costs more."""
LOOK_S: Final = 0.01
"""How soon to look at connections over which something is under way, and again ..."""
LOOK_SELDOM_S: Final = 0.015
"""... where acknowledgements take longer than this, how often ..."""
LOOK_SOON_S: Final = 0.005
"""... and where these are overdue."""
LATE_S: Final = 1.0
"""Others hear nothing meanwhile; after three times as long, or less, they take this peer for gone."""
_SAY_LATE_S: Final = 10.0


class Driver:
    """Runs one machine."""

    def __init__(self, node: Machine, owner: Owner, letters: Letters | None = None) -> None:
        self.node = node
        self._letters = letters
        """Seals what neighbours carry, in a fleet."""
        self.switchboard: Switchboard | None = None
        self.hearsay: Hearsay | None = None
        """What owners tell each other, if this one wants to hear it."""
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets the exception that stopped the machine: always a bug."""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._armed_at = float("inf")
        """When the timer was set: what is due may have been so before."""
        self._say_late_at = float("-inf")
        self._ticking = False
        self._now = float("-inf")
        """What the machine has last been told of the time."""
        self._look: asyncio.TimerHandle | None = None
        self._stopped = False
        self._doing = False
        """Whether something that the machine wants is still to be done ..."""
        self._next: deque[ev.Event] = deque()
        """... and what has come of that meanwhile."""
        self._part_wanted = owner.part_wanted
        self._often = {level: Complaints(_log, level) for level in _LEVELS.values()}
        self._effects: dict[type[Any], Callable[[Any], None]] = {
            fx.Dial: lambda e: self._lines.dial(e.member),
            fx.CloseLink: self._hang_up,
            fx.PublishView: lambda e: owner.control.publish_view(e.view),
            fx.Relay: lambda e: owner.control.relay(e),
            fx.PublishPresence: lambda e: owner.publish_presence(),
            fx.ClearPresence: lambda e: owner.control.clear_presence(e.member),
            fx.ViewInstalled: lambda e: owner.view_installed(e.view),
            fx.Removed: owner.removed,
            fx.RoundCommitted: owner.round_committed,
            fx.EncodeWanted: owner.encode_wanted,
            fx.RoundAborted: owner.round_aborted,
            fx.ProvideState: owner.provide_state,
            fx.StateReceived: owner.state_received,
            fx.Behind: owner.behind,
            fx.Note: self._note,
            fx.Refused: owner.refused,
        }

    @property
    def _lines(self) -> Switchboard:
        assert self.switchboard is not None
        return self.switchboard

    def start(self) -> None:
        self._arm(self.node.next_deadline())

    def stop(self) -> None:
        """Handle nothing any more."""
        self._stopped = True
        for timer in (self._timer, self._look):
            if timer is not None:
                timer.cancel()
        if not self.failure.done():
            self.failure.cancel()

    @property
    def broken(self) -> bool:
        """Whether the machine has failed: it handles nothing any more."""
        failure = self.failure
        return failure.done() and not failure.cancelled() and failure.exception() is not None

    def dispatch(self, event: ev.Event) -> None:
        """Let the machine handle an event and do what it wants; when all that it wants already is done, if this comes
        of that."""
        if self._stopped:
            return
        if self._doing:
            self._next.append(event)
            return
        try:
            self._do(self.node.handle(event, self._pass_time(elapsed())))
        except Exception as error:  # of ours: the machine does not raise for what comes from outside
            self._fail(error)

    def _pass_time(self, now: float) -> float:
        """What to tell the machine of the time, which for it never goes back: the last tick may have come early."""
        if (late := now - max(self._timer_at, self._armed_at)) > LATE_S:
            self._say_late(late, now)
        self._now = max(self._now, now)
        return self._now

    def _say_late(self, late: float, now: float) -> None:
        if now < self._say_late_at:
            return
        self._say_late_at = now + _SAY_LATE_S
        _log.warning(
            "for %.1f s this process did nothing for its peer, which others take for gone after three: it was "
            "stopped, or its program kept the event loop to itself; compute in a thread (asyncio.to_thread), or "
            "with edgepeer.connect",
            late,
        )

    def _fail(self, error: Exception) -> None:
        self._stopped = True
        if isinstance(error, MemoryError):  # which is nobody's mistake
            error = PeerError(f"out of memory: {error}".rstrip(": ") + ": take smaller vectors, or give this peer more")
        if not self.failure.done():
            self.failure.set_exception(error)

    def _do(self, effects: list[fx.Effect]) -> None:
        self._doing = True
        while True:
            for effect in effects:
                if type(effect) is fx.Send:
                    self.send(effect.peer, effect.frame, effect.payload)
                else:
                    self._effects[type(effect)](effect)
            if not self._next or self._stopped:
                break
            effects = self.node.handle(self._next.popleft(), self._pass_time(elapsed()))
        self._doing = False
        due = self.node.next_deadline()
        if not self._ticking and not 0 <= due - self._timer_at < LATER_S:
            self._arm(due)

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at, self._armed_at = due, elapsed()
        self._timer = self._loop.call_later(max(0.0, self._timer_at - self._armed_at), self._tick)

    def _tick(self) -> None:
        if self._stopped:
            return
        # uvloop rounds timers to milliseconds, sometimes down: the machine is told the time it asked for.
        now = self._pass_time(max(elapsed(), self._timer_at))
        self._timer, self._ticking = None, True  # armed again once, when all is done
        try:
            for peer, at in self._lines.receiving():
                self._do(self.node.handle(ev.Heard(peer, at), self._pass_time(now)))
            self._do(self.node.tick(self._pass_time(now)))
            self._ticking = False
            self._arm(self.node.next_deadline())
        except Exception as error:
            self._fail(error)

    def _look_at_lines(self) -> None:
        """See whether the network still takes what is sent, for as long as something is under way."""
        self._look = None
        if self._stopped:
            return
        now = elapsed()
        missing = self._lines.missing(now)
        if missing:
            slowest = max(within_s for _, _, within_s in missing)
            overdue = any(LOOK_S < within_s <= now - since for _, since, within_s in missing)
            again_s = LOOK_SOON_S if overdue else min(max(slowest, LOOK_S), LOOK_SELDOM_S)
            self._look = self._loop.call_later(again_s, self._look_at_lines)
        for peer, since, within_s in missing:
            if now - since >= max(LOOK_S, within_s / 2):  # a machine does something before it gives up
                self.dispatch(ev.Unacknowledged(peer, since, within_s))

    def send(self, peer: PeerId, frame: Frame, payload: memoryview | bytes | None) -> None:
        """What the protocol wants to be sent, or something beside it."""
        if self._letters is not None and type(frame) is Via and frame.source == self.node.me.id:
            if (sealed := self._letters.seal(frame, payload)) is None:
                return
            frame, payload = sealed
        self._lines.send(peer, frame, payload)
        if self._look is None and not self._stopped:
            self._look = self._loop.call_later(LOOK_S, self._look_at_lines)

    def _hang_up(self, effect: fx.CloseLink) -> None:
        self._lines.hang_up(effect.peer, effect.reason, abrupt=effect.abrupt)
        if self.hearsay is not None:
            self.hearsay.gone(effect.peer)

    def _note(self, effect: fx.Note) -> None:
        level = _LEVELS[effect.level]
        if effect.often:
            self._often[level].add("%s", effect.text)
        else:
            _log.log(level, "%s", one_line(effect.text))  # a reason in it may be another peer's words

    # -- what the switchboard tells ----------------------------------------------------------------------------

    def link_up(self, peer: PeerId, incarnation: int, *, dialled: bool) -> None:
        if self.hearsay is not None:
            self.hearsay.met(peer)  # before the machine hears of it, which may hang up at once
        self.dispatch(ev.LinkUp(peer, incarnation, dialled))

    def link_down(self, peer: PeerId, reason: str) -> None:
        _log.debug("link to %s down: %s", peer, reason)
        self.dispatch(ev.LinkDown(peer, reason))
        if self.hearsay is not None:
            self.hearsay.gone(peer)

    def dial_failed(self, peer: PeerId, reason: str, refused: bool) -> None:
        _log.debug("no link to %s: %s", peer, reason)
        self.dispatch(ev.DialFailed(peer, reason, refused))

    def sink(self, peer: PeerId, frame: Frame, payload_bytes: int) -> memoryview | None:
        if self._stopped:
            return None
        if type(frame) is State and self.hearsay is not None and self.hearsay.concerns(frame):
            return self.hearsay.sink(peer, frame, payload_bytes)
        try:
            return self.node.sink(peer, frame, payload_bytes)
        except MemoryError as error:
            self._fail(error)
            return None

    def received(
        self,
        peer: PeerId,
        frame: Frame,
        payload: memoryview | None,
        payload_bytes: int,
        stored: bool,
        seconds: float,
    ) -> None:
        if self.hearsay is not None and isinstance(frame, (State, StateRequest)) and self.hearsay.concerns(frame):
            self.dispatch(ev.Heard(peer, elapsed()))  # that is all that the machine need know
            self.hearsay.received(peer, frame, payload_bytes, stored=stored)
            return
        if type(frame) is StateRequest and PART in frame.run:
            self._part_wanted(peer, frame.run)  # of this peer alone: nothing that the protocol knows of
            return
        if self._letters is not None and type(frame) is Via and frame.target == self.node.me.id:
            if (opened := self._letters.open(frame, payload)) is None:
                return
            frame, payload = opened
            payload_bytes = len(payload)
        self.dispatch(ev.FrameReceived(peer, frame, payload, payload_bytes, stored, seconds))
