"""A simulated TCP connection between two processes: two pipes, and what its ends do when it is over.

an end                             | the other end
-----------------------------------+--------------------------------------------------------------------------
closes                             | hears of it behind everything that was sent before, as of any message
aborts, or its process dies        | is reset after the latency, once, unless that is lost on the way
is gone, and something arrives     | is reset, as soon as a reset gets through
is on a machine without power      | hears nothing at all
"""

from __future__ import annotations

from functools import partial
from typing import Final, Protocol

from edgepeer.ids import PeerId
from edgepeer.protocol import events as ev
from edgepeer.simulation.pipe import Message, Pipe
from edgepeer.simulation.process import Process
from edgepeer.simulation.ways import Ways
from edgepeer.wire.codec import encode
from edgepeer.wire.frames import Frame

__all__ = ["RECEIVE_BUFFER_BYTES", "Connection", "End", "Holder", "Owner"]

RECEIVE_BUFFER_BYTES: Final = 256 << 10
"""What a kernel keeps for a process that does not read."""
LINGER_S: Final = 10.0
"""How long a closed connection may take to deliver what is queued."""
HELLO_WITHIN_S: Final = 5.0
LOOK_S: Final = 0.01
"""How soon a peer looks whether what it sends is acknowledged, and again ..."""
LOOK_SELDOM_S: Final = 0.015
"""... and how often where the way there and back takes longer than this."""
WATCHED_S: Final = 0.03
"""More than this between two looks says nothing."""
_SMALL_FRAME_BYTES: Final = 40


class Holder(Protocol):
    """What a process keeps its connections in."""

    def dial_failed(self, peer: PeerId, reason: str, refused: bool = False) -> None:
        """A dial that this peer had begun came to nothing."""

    def introduced(self, end: End, incarnation: int) -> None:
        """Who is at the other end of a connection has said so."""

    def ended(self, end: End, reason: str) -> None:
        """A connection is gone, not by this peer's own will."""


class Owner(Process, Protocol):
    """A process that has connections."""

    @property
    def lines(self) -> Holder: ...


class End:
    """One end of a connection."""

    __slots__ = (
        "_counts_from", "_watched", "buffered", "connection", "dialled", "far", "gone", "met_at", "open", "other",
        "owner", "pipe", "reading",
    )  # fmt: skip

    def __init__(self, connection: Connection, owner: Owner, other: PeerId, *, dialled: bool) -> None:
        self.connection = connection
        self.owner = owner
        self.other = other
        """The peer at the other end."""
        self.dialled = dialled
        """Whether this end opened the connection."""
        self.open = True
        """Whether the process holds it."""
        self.gone = False
        """Whether the kernel has forgotten it too, and answers with a reset."""
        self.met_at: float | None = None
        """When the other end's Hello came."""
        self._watched = False
        self._counts_from = 0.0
        """From when on what is missing counts: later, by as much as the process has not looked."""
        self.buffered = 0
        """Bytes that wait for a process that does not read."""
        self.reading: tuple[memoryview | None, memoryview | bytes] | None = None
        """Where the frame that is arriving goes, and what it holds."""
        self.pipe: Pipe
        """To the other end ..."""
        self.far: End
        """... which is this one."""

    # -- sending -------------------------------------------------------------------------------------------

    def send(self, frame: Frame, payload: memoryview | bytes | None) -> int:
        """Put a frame on the way. Returns its size in bytes.

        Its payload is not copied here but when it has arrived: who touches a buffer too early is found out.
        """
        size = len(payload) if payload is not None else 0
        total = size + (len(encode(frame, size)) if size else _SMALL_FRAME_BYTES)
        if not self.open:
            return total
        far = self.far
        if not size:
            self.pipe.send(Message(total, partial(far.receive, frame, payload, None, False, 0.0)))
            return total
        sinks: list[memoryview | None] = []

        def begin() -> None:
            if far.open and far.met_at is not None and far.owner.attentive:
                sinks.append(far.owner.sink(self.owner.id, frame, size))
                far.reading = sinks[0], payload or b""

        def arrive() -> None:
            far.reading = None
            far.receive(frame, payload, sinks[0] if sinks else None, bool(sinks), message.seconds)

        def keep() -> None:
            nonlocal payload
            payload = bytes(payload or b"")

        message = Message(total, arrive, begin, keep)
        self.pipe.send(message)
        return total

    @property
    def missing_since(self) -> float | None:
        """From when on nothing of what was sent has been acknowledged, as TCP tells who sends; None if nothing is
        missing. That a process does not read is no reason: its kernel says that there is no room."""
        ways, here, there = self.connection.ways, self.owner.id, self.other
        if self.far.owner.frozen and not (ways.is_cut(here, there) or ways.is_cut(there, here)):
            return None
        return self.pipe.missing_since if self.open else None

    def watch(self) -> None:
        """Look again and again, as long as something is missing."""
        if self._watched:
            return
        self._watched = True
        ways = self.connection.ways
        looked_at = ways.clock.now
        trip = 2 * (ways.latency(self.owner.id, self.other) + ways.model.jitter_s)

        def look() -> None:
            self._watched = False
            if self.open and self.met_at is not None and (since := self.missing_since) is not None:
                unwatched = max(ways.clock.now - looked_at - WATCHED_S, 0.0)
                self._counts_from = min(max(since, self._counts_from) + unwatched, ways.clock.now)
                self.watch()
                self.owner.receive(ev.Unacknowledged(self.other, self._counts_from + self.owner.ahead_s, trip))

        ways.clock.after(min(max(trip, LOOK_S), LOOK_SELDOM_S), lambda: self.owner.soon(look))

    def close(self, reason: str) -> None:
        """Close once everything that was sent is there."""
        self._tear()  # nobody reads what still comes
        if self.open:
            self.open = False
            said = f"closed by the other end: {reason}"
            self.pipe.send(Message(_SMALL_FRAME_BYTES, partial(self.far.end, said)))
            self.connection.ways.clock.after(LINGER_S, self.abort)

    def abort(self) -> None:
        """Close at once; what has not arrived is lost."""
        self._tear()
        if not self.gone:
            self.open, self.gone = False, True
            self.connection.reset_from(self)

    # -- receiving -----------------------------------------------------------------------------------------

    def take(self, message: Message) -> bool:
        """The kernel's side: whether what arrives is taken."""
        owner = self.owner
        if not self.open:
            if not self.gone and owner.alive:
                return True  # closed, and lingering: nobody reads it
            if owner.powered:
                self.connection.answer_with_reset(self)
            return False
        if owner.attentive:
            message.arrive()
            return True
        if owner.frozen and self.buffered + message.size > RECEIVE_BUFFER_BYTES:
            return False
        self.buffered += message.size
        if message.keep is not None:
            message.keep()

        def read() -> None:
            self.buffered -= message.size
            message.arrive()

        owner.soon(read)
        return True

    def receive(
        self, frame: Frame, payload: memoryview | bytes | None, sink: memoryview | None, asked: bool, seconds: float
    ) -> None:
        """A frame has come."""
        if self.open and self.met_at is not None:
            if not asked:
                sink = self.owner.sink(self.other, frame, len(payload or b""))
            self.owner.receive_frame(self.other, frame, payload, sink, seconds)

    @property
    def receiving(self) -> bool:
        """Whether a frame is on its way in, and comes forward."""
        sender, ways = self.far.owner, self.connection.ways
        return self.reading is not None and sender.powered and not ways.is_cut(sender.id, self.owner.id)

    def say_hello(self) -> None:
        """This end's process has found the connection, and says who it is."""
        if self.open:
            self.pipe.send(Message(_SMALL_FRAME_BYTES, partial(self.far.meet, self.owner.incarnation)))
            self.expect_hello()

    def meet(self, incarnation: int) -> None:
        """The other end's Hello has come."""
        if self.open and self.owner.alive:
            self.met_at = self.connection.ways.clock.now
            self.owner.lines.introduced(self, incarnation)

    def expect_hello(self) -> None:
        """Give up on an other end that does not say who it is."""

        def overdue() -> None:
            if self.open and self.met_at is None:
                self.close("no Hello")
                self.owner.lines.ended(self, "no Hello")

        self.connection.ways.clock.after(HELLO_WITHIN_S, lambda: self.owner.soon(overdue))

    def end(self, reason: str) -> None:
        """The other end has closed the connection, or it has broken."""
        self._tear()
        was_open, self.open, self.gone = self.open, False, True
        if was_open:
            self.owner.lines.ended(self, reason)

    def _tear(self) -> None:
        """A frame that has begun to arrive has left half of itself in memory."""
        if self.reading is not None:
            sink, payload = self.reading
            half = len(payload) // 2
            if sink is not None:
                sink[:half] = payload[:half]
            self.reading = None


class Connection:
    """Both ends, and the two ways between them."""

    def __init__(self, ways: Ways, dialler: Owner, dialled: Owner) -> None:
        self.ways = ways
        self.ends = (
            End(self, dialler, dialled.id, dialled=True),
            End(self, dialled, dialler.id, dialled=False),
        )
        for end, far in (self.ends, self.ends[::-1]):
            end.far = far
            end.pipe = Pipe(ways, end.owner.id, end.other, far.take)
            end.pipe.unheard = end.watch

    def end_of(self, peer: PeerId) -> End:
        return self.ends[0] if self.ends[0].owner.id == peer else self.ends[1]

    @property
    def over(self) -> bool:
        """Whether nobody has anything to do with it any more."""
        return self.ends[0].gone and self.ends[1].gone

    def greet(self) -> None:
        """Both ends say who they are, as soon as their processes get to it: it was their kernels that connected."""
        for end in self.ends:
            end.owner.soon(end.say_hello)

    def reset_from(self, end: End) -> None:
        """This end is gone without a word but a reset: what it has sent is dropped, and the reset may get lost."""
        far = end.far
        end.pipe.destroy()
        ways = self.ways

        def arrive() -> None:
            if not ways.is_cut(end.owner.id, end.other) and far.owner.powered:
                far.pipe.destroy()
                far.owner.soon(lambda: far.end("reset by peer"))

        if not far.gone:
            ways.clock.after(ways.delay(end.owner.id, end.other), arrive)

    def answer_with_reset(self, end: End) -> None:
        """Something has come to an end that is gone."""
        self.reset_from(end)
