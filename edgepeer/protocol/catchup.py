"""State for whoever joins a run or fell behind it.

    this peer                        | a neighbour that is ahead
    ---------------------------------+---------------------------------------------------
    waits for the state (or is       | StateRequest ->
    too far behind for a kept result)|                 ProvideState to its owner
                                     | <- State, State, ...
    StateReceived to its owner,      |
    who loads it: Adopted            |

One request at a time; if it makes no progress, the next neighbour that is ahead is asked. A state that has come
too late, because handed-over results were faster, is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.limits import Limits
from edgepeer.wire.frames import State, StateRequest

__all__ = ["PATIENCE_S", "Catchup"]

PATIENCE_S: Final = 5.0
"""How long a neighbour that is ahead may take to show it."""


class Catchup:
    """Both ends of a state transfer."""

    def __init__(self, limits: Limits, emit: Callable[[fx.Effect], None]) -> None:
        self._limits = limits
        self._emit = emit
        self._asked: PeerId | None = None
        self._run = ""
        self._progress_at = 0.0
        self._buffer: bytearray | None = None
        self._received = 0
        self._round = -1
        self._loading = False

    def reset(self) -> None:
        """No transfer any more: another run, or the state is in use."""
        self._asked = None
        self._buffer = None
        self._loading = False

    def on_lost(self, peer: PeerId) -> None:
        if peer == self._asked:
            self._asked, self._buffer = None, None

    @property
    def asked(self) -> PeerId | None:
        """Whom the state was asked of; None if nobody, or nobody any more."""
        return self._asked

    def ask(self, ahead: Sequence[PeerId], run: str, now: float) -> None:
        """Ask one of the neighbours that are ahead, unless one is being asked and delivers."""
        if not ahead or self._loading or (self._asked is not None and now - self._progress_at < PATIENCE_S):
            return
        last = ahead.index(self._asked) if self._asked in ahead else -1
        self._asked, self._run, self._progress_at = ahead[(last + 1) % len(ahead)], run, now
        self._buffer, self._received, self._round = None, 0, -1
        self._emit(fx.Send(self._asked, StateRequest(run=run)))

    def provide(self, peer: PeerId, run: str, number: int, state: memoryview | bytes) -> None:
        """Send a state to the neighbour that asked for it."""
        view = memoryview(state).cast("B")
        step = self._limits.state_segment_bytes
        for start in range(0, len(view), step):
            part = view[start : start + step]
            self._emit(fx.Send(peer, State(run=run, round=number, offset=start, total=len(view)), part))

    def sink(self, peer: PeerId, frame: State, payload_bytes: int) -> memoryview | None:
        """Where a piece of the state belongs; None if nobody asked for it."""
        if (peer, frame.run) != (self._asked, self._run) or self._loading:
            return None
        if frame.total > self._limits.max_state_bytes:
            return None
        if self._buffer is None and frame.offset == 0:
            self._buffer, self._received, self._round = bytearray(frame.total), 0, frame.round
        if self._buffer is None or (frame.offset, frame.round, frame.total) != (
            self._received,
            self._round,
            len(self._buffer),
        ):
            return None
        return memoryview(self._buffer)[frame.offset : frame.offset + payload_bytes]

    def on_state(self, peer: PeerId, frame: State, payload_bytes: int, now: float) -> memoryview | None:
        """A piece has been stored. Returns the state once it is complete; `reset` or `Adopted` must follow."""
        if (peer, frame.run) != (self._asked, self._run) or self._buffer is None:
            return None
        self._received = frame.offset + payload_bytes
        self._progress_at = now
        if self._received < frame.total:
            return None
        self._loading = True
        state, self._buffer = memoryview(self._buffer).toreadonly(), None
        return state
