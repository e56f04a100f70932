"""State for whoever joins a run or fell behind it.

    this peer                        | a neighbour that is ahead
    ---------------------------------+---------------------------------------------------
    waits for the state (or is       | StateRequest ->
    too far behind for a kept result)|                 ProvideState to its owner
                                     | <- State, State, ..., as much as may be on its way
    StateRequest -> (so much is here)| <- State, State, ...
    StateReceived to its owner,      |
    who loads it: Adopted            |

Where nothing comes for a while, the next neighbour that is ahead is asked, too, and whoever begins to deliver counts:
an owner that computes may take its time, and so may a slow link. Who delivers is not asked again. A state that has
come too late, because handed-over results were faster, is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.limits import Limits
from edgepeer.wire.frames import State, StateRequest

__all__ = ["PATIENCE_S", "PROVIDING_S", "Catchup"]

PATIENCE_S: Final = 5.0
"""How long a neighbour that is ahead may take to show it."""
_UNDER_WAY_S: Final = 120.0
"""How long a piece of a state may take on a very slow line, and still come."""
PROVIDING_S: Final = 30.0
"""How long the owner may take to pack a state before it is asked again: so nobody asks its peer any sooner."""


class Catchup:
    """Both ends of a state transfer."""

    def __init__(self, limits: Limits, emit: Callable[[fx.Effect], None]) -> None:
        self._limits = limits
        self._emit = emit
        self._run = ""
        self._asked: dict[PeerId, float] = {}  # when, or when the last piece came; they may still deliver
        self._progress_at = self._came_at = self._gave_at = 0.0
        """When something was asked for or came; when a piece of what is needed did; when the last transfer from here
        began."""
        self._took_s = 0.0
        """How long the last piece of what is needed was on its way."""
        self._source: PeerId | None = None
        """Who delivers ..."""
        self._stalled = False
        """... or seems not to: whoever begins to is taken instead."""
        self._buffer: bytearray | None = None
        self._received = 0
        self._round = -1
        self._loading = False
        self._given: dict[PeerId, tuple[str, int, int, memoryview | bytes]] = {}
        """Who takes one, until it stands there: of which run, after which round, how much of it has been sent, and what
        goes on as that comes."""
        self._for_owners: set[PeerId] = set()
        """Those of them that have stood there themselves, until all is sent."""

    def reset(self) -> None:
        """No transfer any more: another run, or the state is in use."""
        self._asked.clear()
        self._drop()
        self._loading = False

    def stop_giving(self) -> list[PeerId]:
        """The state here is given up, or of another run. Returns who was taking it."""
        takers = list(self._given)
        self._given.clear()
        self._for_owners.clear()
        return takers

    def _drop(self) -> None:
        self._source, self._buffer = None, None

    def on_lost(self, peer: PeerId) -> None:
        self._asked.pop(peer, None)
        self._given.pop(peer, None)
        self._for_owners.discard(peer)
        if peer == self._source:
            self._drop()
            self._asked = dict.fromkeys(self._asked, float("-inf"))  # what they have sent beside it is thrown away

    @property
    def asked(self) -> tuple[PeerId, ...]:
        """Of whom the state was asked, and may still come."""
        return tuple(sorted(self._asked))

    @property
    def others(self) -> tuple[PeerId, ...]:
        """Who was asked for a state, or takes one."""
        return *self._asked, *self._given

    def is_coming(self, now: float) -> bool:
        """Whether somebody delivers."""
        return self._buffer is not None and now - self._came_at < _UNDER_WAY_S

    def coming(self, now: float) -> int:
        """After which round the state is that somebody delivers; -1: nobody does."""
        return self._round if self.is_coming(now) else -1

    def is_given(self, now: float) -> bool:
        """Whether this peer has begun to give one so lately that who takes it may not know yet; after that they say so
        themselves, or have no use of it."""
        return bool(self._given) and now - self._gave_at < PATIENCE_S

    def is_from(self, peer: PeerId) -> bool:
        """Whether that neighbour delivers."""
        return peer == self._source

    def outrun(self, committed: int) -> None:
        """What comes of a state of no later round than this is of no use any more."""
        if self._buffer is not None and self._round <= committed:
            self._drop()

    def ask(self, ahead: Sequence[PeerId], run: str, now: float) -> None:
        """Ask one of the neighbours that are ahead, unless somebody who was asked delivers."""
        patience_s = max(PATIENCE_S, 2 * self._took_s) if self._buffer is not None else PATIENCE_S
        if self._loading or (self._asked and now - self._progress_at < patience_s):
            return
        self._run = run
        for peer in ahead:
            if now - self._asked.get(peer, float("-inf")) >= PROVIDING_S + PATIENCE_S:
                self._asked[peer] = self._progress_at = now
                self._stalled = True
                self._emit(fx.Send(peer, StateRequest(run=run)))
                return

    def provide(
        self, peer: PeerId, run: str, number: int, state: memoryview | bytes, now: float, *, stands_there: bool = False
    ) -> None:
        """Send a state to the neighbour that asked for it. `stands_there`: that needs it for its owner only."""
        self._gave_at = now
        self._given[peer] = run, number, 0, memoryview(state).cast("B")
        if stands_there:
            self._for_owners.add(peer)
        else:
            self._for_owners.discard(peer)
        self._send(peer, 0)

    def go_on(self, peer: PeerId, frame: StateRequest) -> None:
        """So much of a state has come at a neighbour."""
        given = self._given.get(peer)
        if given is not None and given[:2] == (frame.run, frame.round) and given[3]:
            self._send(peer, frame.received)

    def stands(self, peer: PeerId, committed: int) -> None:
        """A neighbour says how far it has come: what is of before it needs no more. Nor does the rest come of what it
        has given up itself, before it was all sent."""
        given = self._given.get(peer)
        if given is not None and given[1] + (peer in self._for_owners) <= committed:
            del self._given[peer]
            self._for_owners.discard(peer)
        if committed < 0 and peer == self._source and not self._loading:
            self.on_lost(peer)

    def _send(self, peer: PeerId, received: int) -> None:
        """Send on as much as may be on its way, of which all who take one now have a share. A state that is empty is a
        piece: else it would never come."""
        run, number, sent, rest = self._given[peer]
        total = sent + len(rest)
        until = received + max(self._limits.state_window_bytes // len(self._given), 1)
        while sent < until:
            part = rest[: min(self._limits.state_segment_bytes, until - sent)]
            self._emit(fx.Send(peer, State(run=run, round=number, offset=sent, total=total), part))
            sent, rest = sent + len(part), rest[len(part) :]
            if not rest:
                rest = b""  # holds no longer what all of it lies in
                break
        if rest or peer not in self._for_owners:
            self._given[peer] = run, number, sent, rest
            return
        del self._given[peer]
        self._for_owners.discard(peer)

    def sink(self, peer: PeerId, frame: State, payload_bytes: int, now: float) -> memoryview | None:
        """Where a piece of the state belongs, of which the first bytes are here; None if nobody asked for it."""
        if peer not in self._asked or frame.run != self._run or self._loading:
            return None
        if frame.total > self._limits.max_state_bytes:
            return None
        if frame.offset == 0 and (self._source in (None, peer) or self._stalled):
            self._source, self._stalled, self._round = peer, False, frame.round
            self._buffer, self._received, self._came_at = bytearray(frame.total), 0, now
        due = self._source, self._received, self._round
        if self._buffer is None or (peer, frame.offset, frame.round) != due or frame.total != len(self._buffer):
            return None
        return memoryview(self._buffer)[frame.offset : frame.offset + payload_bytes]

    def on_state(
        self, peer: PeerId, frame: State, payload_bytes: int, now: float, *, stored: bool
    ) -> memoryview | None:
        """A piece has come. Returns the state once it is complete; `reset` or `Adopted` must follow."""
        if peer in self._asked and frame.run == self._run:
            self._asked[peer] = now  # the rest is under way, be it of use or not: asked again, it would all come twice
        if not stored or peer != self._source or frame.run != self._run or self._buffer is None:
            return None
        self._received = frame.offset + payload_bytes
        self._took_s, self._progress_at, self._came_at = now - self._came_at, now, now
        self._stalled = False
        if self._received < frame.total:
            self._emit(fx.Send(peer, StateRequest(run=frame.run, round=frame.round, received=self._received)))
            return None
        self._loading = True
        state, self._buffer = memoryview(self._buffer).toreadonly(), None
        return state
