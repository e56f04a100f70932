"""One direction of a simulated TCP connection: what is sent arrives in order, or waits.

the way there     | the way back | what is sent
------------------+--------------+---------------------------------------------------------------------------
open              | open         | arrives after the latency and the time that its bytes take
cut               | any          | waits; tried again after 0.2 s, 0.4 s, 0.8 s ... (RFC 6298, 5.5)
open              | cut          | arrives, but nobody hears of it: after 0.2 s or a window the rest waits too
open, not taken   | open         | waits until the receiver takes it: its process is frozen, its buffer full
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from edgepeer.ids import PeerId
from edgepeer.simulation.ways import RTO_S, Line, Ways

__all__ = ["Message", "Pipe"]

WINDOW_BYTES: Final = 64 << 10
"""How much may be under way without an acknowledgement."""
PIECE_BYTES: Final = 8 << 10
"""Connections that share a line take turns in pieces of this size."""


def _nothing() -> None:
    pass


class Message:
    """Something that is sent. `begin` is called when its first bytes are there, `arrive` when all are; `keep` if they
    wait then for a process that does not read."""

    __slots__ = ("arrive", "begin", "keep", "seconds", "size")

    def __init__(
        self,
        size: int,
        arrive: Callable[[], None],
        begin: Callable[[], None] | None = None,
        keep: Callable[[], None] | None = None,
    ) -> None:
        self.size = size
        self.arrive = arrive
        self.begin = begin
        self.keep = keep
        self.seconds = 0.0
        """How long its bytes take."""


class _Piece(NamedTuple):
    """A part of a message on its way over shared lines."""

    of: Message
    size: int
    number: int
    pieces: int


class Pipe:
    """From `source` to `target`; `take` says whether the target's kernel takes a message that has arrived."""

    __slots__ = (
        "_flushing", "_lost_at", "_unheard_at", "_unheard_bytes", "_waiting", "_ways", "broken", "free_at", "source",
        "take", "target", "unheard",
    )  # fmt: skip

    def __init__(self, ways: Ways, source: PeerId, target: PeerId, take: Callable[[Message], bool]) -> None:
        self._ways = ways
        self.source = source
        self.target = target
        self.take = take
        self.free_at = 0.0
        """When what was sent last will have left."""
        self._waiting: deque[Message] = deque()  # has arrived at something that does not let it through
        self._flushing = False
        self.broken = False
        """Whether nothing arrives any more."""
        self._lost_at = 0.0  # when the first of those that wait was lost
        self._unheard_at: float | None = None  # since when no acknowledgement has got back
        self._unheard_bytes = 0
        self.unheard: Callable[[], None] = _nothing
        """Called when something begins to wait for an acknowledgement in vain."""

    @property
    def missing_since(self) -> float | None:
        """From when on nothing has been acknowledged of what has left, or has found no room at the other end; None if
        nothing is missing."""
        if self.broken:
            return None
        if self._unheard_at is not None and self._ways.is_cut(self.target, self.source):
            return self._unheard_at
        return self._lost_at if self._waiting else None

    def send(self, message: Message) -> None:
        """Put a message on the way."""
        ways = self._ways
        clock = ways.clock
        # Jitter must not reorder: a message leaves no earlier than the one before it.
        start = max(self.free_at, clock.now + ways.jitter())
        latency = ways.latency(self.source, self.target)
        lines = ways.shared(self.source, self.target) if ways.model.lines or ways.model.sites else []
        if lines:
            message.seconds = message.size / min(line.rate_bytes_per_s for line in lines)
            self.free_at = start
            pieces = -(-message.size // PIECE_BYTES)
            for number in range(pieces):
                piece = _Piece(message, min(PIECE_BYTES, message.size - number * PIECE_BYTES), number, pieces)
                clock.at(start, partial(self._over, lines, latency, piece))
            return
        message.seconds = message.size / ways.model.rate_bytes_per_s
        self.free_at = start + message.seconds
        if message.begin is not None:
            clock.at(start + latency, partial(self._begins, message))
        clock.at(self.free_at + latency, partial(self.arrives, message))

    def _over(self, lines: list[Line], latency: float, piece: _Piece) -> None:
        """On over the first of these lines, and then over the others."""
        clock, rest, message = self._ways.clock, lines[1:], piece.of

        def done() -> None:
            if rest:
                self._over(rest, latency, piece)
                return
            if piece.number == 0 and message.begin is not None:
                clock.after(latency, partial(self._begins, message))
            if piece.number == piece.pieces - 1:
                clock.after(latency, partial(self.arrives, message))

        if not self.broken:
            lines[0].put(self, piece.size, done)

    def destroy(self) -> None:
        """Nothing arrives any more."""
        self.broken = True
        self._waiting.clear()
        if self._ways.model.lines or self._ways.model.sites:
            for line in self._ways.shared(self.source, self.target):
                line.drop(self)

    def _begins(self, message: Message) -> None:
        through = not (self.broken or self._waiting or self._ways.is_cut(self.source, self.target))
        if message.begin is not None and through:
            message.begin()

    def arrives(self, message: Message) -> None:
        """A message has come to the end of the way, or to what blocks it."""
        if self.broken:
            return
        if self._waiting or not self._passes(message):
            self._waiting.append(message)

    def _passes(self, message: Message) -> bool:
        """Let a message through if it gets through."""
        ways, now = self._ways, self._ways.clock.now
        if ways.cuts:
            if ways.is_cut(self.source, self.target):
                return self._lose(now)
            if ways.is_cut(self.target, self.source):
                if self._unheard_at is None:
                    self._unheard_at = now
                    self.unheard()
                self._unheard_bytes += message.size
                if now - self._unheard_at > RTO_S or self._unheard_bytes > WINDOW_BYTES:
                    return self._lose(self._unheard_at)
            else:
                self._unheard_at, self._unheard_bytes = None, 0
        return self.take(message) or self._lose(now)

    def _lose(self, since: float) -> bool:
        if not self._waiting:
            self._lost_at = since
            self.unheard()
        return False

    # -- when it gets through again ----------------------------------------------------------------------------

    def try_again(self) -> None:
        """Something has changed: what waits is tried again when its retransmission is due."""
        if not self._ways.is_cut(self.target, self.source):
            self._unheard_at, self._unheard_bytes = None, 0
        if self._waiting:
            pause, at = RTO_S, self._lost_at + RTO_S
            while at < self._ways.clock.now:
                pause *= 2
                at += pause
            self._ways.clock.at(at, self.flush)

    def flush(self) -> None:
        """Try what waits now."""
        if self._waiting and not self._flushing and not self.broken:
            self._flushing = True
            self._next()

    def _next(self) -> None:
        self._flushing = False
        if self.broken or not self._waiting or not self._passes(self._waiting[0]):
            return
        if self._waiting:  # what has just arrived may have ended the connection
            self._waiting.popleft()
        if self._waiting:
            self._flushing = True
            self._ways.clock.after(self._waiting[0].size / self._ways.model.rate_bytes_per_s, self._next)
