"""What the rounds of all baselines have in common: one contribution at a time, an end, and links that may lose things.

the link to a neighbour                    | what is sent on it
-------------------------------------------+---------------------------------------------------
is up, and both ends are in this view      | goes out; lost if the connection fails before it is there
is not, or not yet                         | waits; dropped when its round and the next are over
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Literal

import numpy as np

from edgepeer.errors import ProtocolBug
from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.events import FloatVector, FrameReceived
from edgepeer.protocol.headers import Shape
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.links import Role
from edgepeer.protocol.streams import as_bytes
from edgepeer.topology.view import View
from edgepeer.wire.frames import Abort, Cause, Frame, Reduce, Result

__all__ = ["Collective", "weighted"]

_OWED_LIMIT: Final = 16


class Collective:
    """The rounds of one peer. Subclasses say with whom it is linked, and what it does with vectors and frames."""

    _together = True
    """Whether a round that is given up by one peer is over for all that can be reached."""

    def __init__(self, me: PeerId, limits: Limits) -> None:
        self.me = me
        self._limits = limits
        self._emit: Callable[[fx.Effect], None] = lambda effect: None
        self._fail_link: Callable[[PeerId, str], None] = lambda peer, reason: None
        self._now = 0.0
        self.view: View | None = None
        self.run = ""
        """The run that is worked on; empty for plain allreduces."""
        self.committed = 0
        """The last round that is over here."""
        self._own: FloatVector | None = None
        self._weight = 1.0
        self._lent: set[PeerId] = set()  # to whom the contribution's own memory was sent in this round
        self._level: set[PeerId] = set()  # whose links are up, with both ends in this view
        self._owed: deque[fx.RoundAborted] = deque(maxlen=_OWED_LIMIT)  # given up before this peer had contributed
        self._held: dict[PeerId, list[tuple[int, fx.Send]]] = {}  # by peer: round and frame

    def connect(self, emit: Callable[[fx.Effect], None], fail_link: Callable[[PeerId, str], None]) -> None:
        """Where effects go, and how to give up a link."""
        self._emit, self._fail_link = emit, fail_link

    # -- for subclasses to say -----------------------------------------------------------------------------------

    def neighbours(self, view: View) -> tuple[PeerId, ...]:
        """Whom to have a link with."""
        raise ProtocolBug(f"{type(self).__name__} has no links")

    def role(self, peer: PeerId) -> Role:
        """What a neighbour is to this peer."""
        return "other"

    def restart(self) -> None:
        """Forget what has come of the round in progress: the next one begins, or the same one in a new view."""
        raise ProtocolBug(f"{type(self).__name__} has no rounds")

    def begin(self, vector: FloatVector) -> None:
        """This peer has contributed `vector`, or has done so before `restart`."""

    def moved(self, old: FloatVector, new: FloatVector) -> None:
        """The contribution is now in other memory; the old is not to be read any more."""

    def sink(self, peer: PeerId, frame: Reduce | Result, payload_bytes: int) -> memoryview | None:
        """Where the payload of a frame that is about to arrive belongs; None if nowhere."""

    def on_frame(self, peer: PeerId, frame: Frame, event: FrameReceived) -> None:
        """A frame of this view; its payload lies where `sink` said, if `event.stored`."""

    def missing(self) -> tuple[PeerId, ...]:
        """Whom the round waits for, as far as this peer can tell."""
        return ()

    def tick(self) -> None:
        """`deadline` has come."""

    @property
    def deadline(self) -> float:
        """When to call `tick`."""
        return float("inf")

    # -- what the shell tells ------------------------------------------------------------------------------------

    @property
    def owed(self) -> int:
        """How many rounds were given up before this peer had contributed, and are still to be answered."""
        return len(self._owed)

    @property
    def has_state(self) -> bool:
        return self.committed >= 0

    @property
    def contributed(self) -> bool:
        return self._own is not None

    @property
    def begun(self) -> bool:
        """Whether any round of this view has begun here: then the view stays as it is."""
        return self.view is not None and (self.contributed or self.committed >= self.view.first_round)

    @property
    def position(self) -> int:
        return self._in_view.position(self.me)

    @property
    def _in_view(self) -> View:
        if self.view is None:
            raise ProtocolBug("no view")
        return self.view

    def at(self, now: float) -> None:
        """What is told next happens at `now`."""
        self._now = now

    def install(self, view: View) -> None:
        """Work in `view` from now on; the round in progress starts again."""
        if self.view is None or view.run != self.run:
            self._drop("run", "another run has begun")
            self.run, self.committed = view.run, view.first_round - 1
        self.view = view
        self._level.clear()
        self._held.clear()
        self.restart()
        if self._own is not None:
            self.begin(self._own)

    def leave(self, reason: str) -> None:
        """In no view any more."""
        self._drop("left", reason)
        self.view = None
        self.run, self.committed = "", 0
        self._level.clear()

    def contribute(self, vector: FloatVector, weight: float) -> None:
        """This peer's vector for the next round."""
        if self._own is not None:
            raise ProtocolBug(f"two contributions to round {self.committed + 1}")
        if self._owed:
            self._emit(replace(self._owed.popleft(), mine=True))
            return
        self._own, self._weight = vector, weight
        if self.view is not None:
            self.begin(vector)

    def abandon(self) -> None:
        """The contribution's memory is about to change: go on without it, as far as it has not arrived."""
        self._take_back("a contribution was abandoned while it was being sent")

    def time_out(self, reason: str) -> None:
        """The owner gives up on the round."""
        if self.contributed:
            self._abort("timeout", reason)

    def on_level(self, peer: PeerId) -> None:
        """The link to a neighbour is up, and both ends are in this view."""
        self._level.add(peer)
        for _, send in self._held.pop(peer, ()):
            self._emit(send)

    def on_down(self, peer: PeerId) -> None:
        """The link to a neighbour is gone."""
        self._level.discard(peer)

    # -- frames ------------------------------------------------------------------------------------------------

    def current(self, frame: Reduce | Result) -> bool:
        """Whether a frame is of this view, and of the round that comes next here."""
        return self.view is not None and (frame.epoch, frame.round) == (self.view.stamp, self.committed + 1)

    def too_large(self, shape: Shape) -> bool:
        """Whether no vector may be as large."""
        return shape.bytes > self._limits.max_vector_bytes

    def send(self, peer: PeerId, frame: Frame, part: FloatVector | None = None) -> None:
        """Send a frame and a piece of a vector that stays as it is until the round is over everywhere."""
        self.send_on(fx.Send(peer, frame, as_bytes(part) if part is not None else None))

    def send_on(self, send: fx.Send) -> None:
        """The same, of what is ready to be sent."""
        if send.payload is not None and self._own is not None and _lies_in(send.payload, self._own):
            self._lent.add(send.peer)
        if send.peer in self._level:
            self._emit(send)
        else:
            self._held.setdefault(send.peer, []).append((self.committed + 1, send))

    # -- the end of a round --------------------------------------------------------------------------------------

    def commit(
        self,
        total: FloatVector,
        *,
        contributors: int,
        weight: float,
        exact: bool,
        digest: bytes,
        paths: tuple[str, ...] | None = None,
    ) -> None:
        """The round is over, with this sum; it is the owner's from now on."""
        view, mine = self._in_view, self.contributed
        total.flags.writeable = False
        self._end(self.committed + 1)
        self._emit(
            fx.RoundCommitted(
                run=self.run,
                round=self.committed,
                generation=view.generation,
                epoch=view.epoch,
                sum=total,
                weight=weight,
                contributors=view.names(contributors),
                exact=exact,
                digest=digest,
                mine=mine,
                paths=paths if paths is not None else tuple("direct" for _ in self.neighbours(view)),
            )
        )

    def on_abort(self, frame: Abort) -> None:
        """A neighbour says that a round is over without a sum. A later round's end is this one's, too."""
        if self.view is not None and frame.epoch == self.view.stamp and frame.round > self.committed:
            self._abort(frame.cause, frame.reason, frame.round)

    def _abort(self, cause: Cause, reason: str, number: int | None = None) -> None:
        """End the round without a sum, and tell the neighbours: also those whose links are up again only later."""
        view, mine = self._in_view, self.contributed
        number = self.committed + 1 if number is None else number
        self._take_back("a round was given up while it was being sent")
        self._end(number)
        # Who is alone in a ring stands beside itself.
        for peer in sorted({*self.neighbours(view)} - {self.me}) if self._together else ():
            self.send(peer, Abort(epoch=view.stamp, round=number, cause=cause, reason=reason[:250], over=True))
        aborted = fx.RoundAborted(self.run, number, cause, reason, mine)
        self._emit(aborted)
        if not mine:
            self._owed.append(aborted)  # this peer's next contribution is one to that round

    def _end(self, number: int) -> None:
        self.committed = number
        self._own = None
        self._lent.clear()
        for peer, sends in self._held.items():
            self._held[peer] = [(of, send) for of, send in sends if of >= number]
        self.restart()

    def _take_back(self, reason: str) -> None:
        """Let no more be read from the contribution's memory."""
        if self._own is not None:
            old, self._own = self._own, self._own.copy()
            self.moved(old, self._own)
        lent, self._lent = sorted(self._lent), set()
        for peer in lent:
            self._held.pop(peer, None)
            self._fail_link(peer, reason)

    def _drop(self, cause: Literal["left", "run"], reason: str) -> None:
        if self._own is not None:
            self._emit(fx.RoundAborted(self.run, self.committed + 1, cause, reason, mine=True))
        self._own = None
        self._lent.clear()
        self._held.clear()
        self._owed.clear()


def _lies_in(payload: memoryview | bytes, vector: FloatVector) -> bool:
    return len(payload) > 0 and np.may_share_memory(np.frombuffer(payload, np.uint8), vector)


def weighted(vector: FloatVector, weight: float, out: FloatVector | None = None) -> FloatVector:
    """The vector times its weight: itself for 1 without `out`; zeros for 0, whatever it holds, NaN included."""
    if weight == 1 and out is None:
        return vector
    if weight == 0:
        if out is None:
            return np.zeros_like(vector)
        out.fill(0)
        return out
    product: FloatVector = np.multiply(vector, vector.dtype.type(weight), out=out)
    return product
