"""Frames over TCP between members of a fleet: a handshake first (handshake.py), and then sealed records (records.py).

Records are opened straight into the machine's buffers: the reader of frames says where what comes next belongs, and a
sender begins a record with each payload. What is sent waits as it is, and is sealed when the kernel takes it, into a
buffer that is used again and again: so nothing is encrypted that is never sent, and what is fits the processor's cache.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from edgepeer.errors import TrustError, WireError
from edgepeer.processes import os_reason
from edgepeer.transport import connection
from edgepeer.transport.base import Accept
from edgepeer.transport.connection import Connection, Shared
from edgepeer.transport.door import Door
from edgepeer.transport.handshake import Handshake, Met, Refused
from edgepeer.transport.news import News, in_pieces
from edgepeer.transport.records import HEAD_BYTES, MOST_BYTES, OVERHEAD_BYTES, Kind, measure
from edgepeer.transport.tcp import TcpTransport
from edgepeer.wire.codec import encode
from edgepeer.wire.frames import Bye, Frame

if TYPE_CHECKING:
    from edgepeer.trust.identity import Identity
    from edgepeer.trust.names import Holder

__all__ = ["SecureTransport"]

_BATCH_BYTES: Final = 4 * (MOST_BYTES + OVERHEAD_BYTES)
"""Sealed, and handed to the kernel, at once."""
_ARRIVING_BYTES: Final = 256 << 10
"""Read at once where more is."""
_FIRST_BYTES: Final = 4096
"""Read at once from somebody who has not shown yet who it is, and over a link where little is said."""
_EVERYTHING: Final = 1 << 64
_SMALL_BYTES: Final = 4096
"""What is shorter goes into a record with others."""


class _Fleet(Shared):
    """What all connections of one transport have in common, of one identity."""

    def __init__(self, shared: Shared, identity: Identity) -> None:
        self.traffic, self.windows, self.complaints = shared.traffic, shared.windows, shared.complaints
        self.unread = shared.unread
        self.identity = identity
        self.door = Door()
        self.open: set[SecureConnection] = set()
        self._buffers: list[memoryview] = []

    def take_buffer(self) -> memoryview:
        """Room for a batch of records."""
        return self._buffers.pop() if self._buffers else memoryview(bytearray(_BATCH_BYTES))

    def give_buffer(self, buffer: memoryview) -> None:
        """It is not needed any more."""
        if not self._buffers:
            self._buffers.append(buffer)


class SecureConnection(Connection):
    """One connection with a member of the fleet, or with somebody who has yet to show that."""

    def __init__(self, accept: Accept, fleet: _Fleet, *, dialled: bool) -> None:
        super().__init__(accept, fleet)
        self._fleet = fleet
        self._dialled = dialled
        self._handshake: Handshake | None = None
        self._met: Met | None = None
        self._news = News()
        self.host = "?"
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the other end has shown who it is."""
        # What has arrived and is not read yet: arriving[at:filled].
        self._arriving = memoryview(bytearray(_FIRST_BYTES))
        self._at = 0
        self._filled = 0
        self._enough = 0
        """How far it has to be filled for a record to be whole."""
        # What is to be sent, and how much of the first is on its way already.
        self._waiting: deque[tuple[int, bytes | memoryview]] = deque()
        self._waiting_bytes = 0
        self._sent_of_first = 0
        self._held: memoryview | None = None
        """The buffer that the kernel has yet to take something from."""
        self._scheduled = False

    @property
    def holder(self) -> Holder | None:
        """Who is at the other end, by its certificate."""
        return self._met.holder if self._met is not None else None

    # -- asyncio's side ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.host = self.remote.rpartition(":")[0].removeprefix("[").removesuffix("]")
        assert self._transport is not None
        self._transport.set_write_buffer_limits(high=0)  # so that what is written goes out at once
        if not self._dialled:
            self._fleet.door.enter(self)
            return  # nothing is made for whoever says nothing
        try:
            self._handshake = self._new_handshake()
        except Refused as error:
            self._turn_down(str(error))
            return
        self._handshake.begin()
        self._answer(self._handshake)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._closing:  # then nothing of it counts
            return self._fleet.unread
        return self._arriving[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._traffic.bytes_received += nbytes
        if self._closing:
            return
        self._filled += nbytes
        if self._filled < self._enough:
            self._wait_for_more(nbytes)
            return
        try:
            if self._met is None:
                self._meet()
            else:
                of_payload = self._reader is not None and self._reader.in_payload
                self._take_records(self._met)
                self._wait_for_more(nbytes, of_payload=of_payload)
                self._acknowledge()
        except Refused as error:
            self._turn_down(str(error))
        except WireError as error:
            self._reject(error)

    def resume_writing(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._fleet.give_buffer(held)
        self._pump()

    def lost(self, reason: str) -> None:
        self._fleet.door.leave(self)
        self._fleet.open.discard(self)
        self._handshake = None
        self._waiting.clear()
        self._waiting_bytes = 0
        if not self.opened.done():
            self.opened.set_exception(ConnectionError(self._reason or reason))
            self.opened.exception()  # nobody need ask
        super().lost(reason)

    def _wait_for_more(self, nbytes: int, *, of_payload: bool = False) -> None:
        """So many bytes have come, of a payload or not, and what is not read of them yet waits for more."""
        reader = self._reader
        if reader is not None and (of_payload or reader.in_payload or nbytes > _SMALL_BYTES):
            if self._network is not None:
                self._fleet.windows.received(self._network, nbytes)
            if self._filled:
                reader.go_on()
        if reader is not None:
            # What waits to be opened is of the payload, or of records' heads: at least so much is still to come.
            self._read_in_portions(max(reader.missing - (self._filled - self._at), 0))

    # -- meeting -------------------------------------------------------------------------------------------

    def _meet(self) -> None:
        """Something has come of the handshake."""
        if self._handshake is None:
            self._handshake = self._new_handshake()
        came = self._arriving[: self._filled]
        self._filled = 0
        try:
            self._handshake.take(came)
        finally:
            self._answer(self._handshake)
        if self._handshake.met is not None:
            rest, self._met, self._handshake = self._handshake.rest, self._handshake.met, None
            self._open(self._met, rest)

    def _new_handshake(self) -> Handshake:
        identity = self._fleet.identity
        try:
            return Handshake(identity, server=not self._dialled)
        except OSError as error:  # ssl's are, too: TLS can't be given what this device holds
            raise Refused(f"fleet = {identity.directory}: can't be used any more: {os_reason(error)}") from None

    def _answer(self, handshake: Handshake) -> None:
        if (data := handshake.outgoing()) and self._transport is not None:
            self._traffic.bytes_sent += len(data)
            self._transport.write(data)

    def _open(self, met: Met, rest: bytes) -> None:
        """The other end has shown who it is."""
        self._fleet.door.leave(self)
        try:
            self._fleet.identity.check(met.certificate)
        except TrustError as error:  # it was evicted in between
            raise Refused(str(error)) from None
        self._arriving = memoryview(bytearray(len(rest) + _FIRST_BYTES))
        self._fleet.open.add(self)
        self._speak()
        self.spread(met.evictions)
        if not self.opened.done():
            self.opened.set_result(None)
        self._arriving[: len(rest)] = rest
        self._filled = len(rest)
        self._take_records(met)

    def turn_away(self, reason: str) -> None:
        """Somebody else has more of a claim to the place of who does not show who it is."""
        self._complain("connection from %s refused: %s", reason)
        self.abort(reason)

    def _turn_down(self, reason: str) -> None:
        """The other end is nobody to talk to, or does not want to talk to us."""
        self._complain("connection with %s refused: %s", reason)
        self._reason = self._reason or reason
        self._closing = True
        if self._transport is not None and not self._dialled and reason.startswith("it speaks without"):
            self._transport.write(encode(Bye(reason="this peer speaks with members of its fleet only: join it")))
        self._finish()
        if self._transport is not None:
            self._linger = asyncio.get_running_loop().call_later(connection.LINGER_S, self.abort, reason)

    # -- who is out ----------------------------------------------------------------------------------------

    def recheck(self) -> None:
        """Other certificates count than before."""
        if self._met is None:
            return
        try:
            self._fleet.identity.check(self._met.certificate)
        except TrustError as error:
            self._fleet.complaints.add("connection with %s closed: %s", self.remote, error)
            self.abort(str(error))
        else:
            self.spread(self._news.number)

    def spread(self, known: int) -> None:
        """Tell the other end who is out, if all that it knows of is an older list."""
        evictions = self._fleet.identity.evictions
        self._news.number = max(self._news.number, known)
        if evictions.number > self._news.number and self._transport is not None and not self._closing:
            self._news.number = evictions.number
            for piece in in_pieces(evictions.signed):
                self._queue(Kind.EVICTIONS, piece)
            self._schedule()

    def _hear(self, piece: memoryview) -> None:
        """A piece of the other end's list."""
        told = self._news.take(piece)
        if told is None:
            return
        known, self._news.number = self._news.number, _EVERYTHING  # it need not be told what it tells
        try:
            taken = self._fleet.identity.evictions.accept(told)
        except TrustError as error:
            raise WireError(f"list of evictions: {error}") from None
        self._news.number = self._fleet.identity.evictions.number if taken else known

    # -- reading -------------------------------------------------------------------------------------------

    def _take_records(self, met: Met) -> None:
        data, at, filled = self._arriving, self._at, self._filled
        end = at
        while filled - at >= HEAD_BYTES and not self._closing:
            kind, length = measure(data, at)
            end = at + HEAD_BYTES + length
            if end > filled:
                break
            self._take_record(met, kind, data[at:end])
            at = end
        rest, wanted = filled - at, max(end - at, HEAD_BYTES)
        if len(data) < _ARRIVING_BYTES and (filled == len(data) or end > len(data)):
            self._arriving = memoryview(bytearray(_ARRIVING_BYTES))  # more comes than a link at rest has room for
            self._arriving[:rest] = data[at:filled]
            at, filled = 0, rest
        elif not rest:
            at = filled = 0
        elif at and len(data) - at < MOST_BYTES + OVERHEAD_BYTES:
            data[:rest] = data[at:filled]
            at, filled = 0, rest
        self._at, self._filled = at, filled
        self._enough = at + wanted

    def _take_record(self, met: Met, kind: int, record: memoryview) -> None:
        size = len(record) - OVERHEAD_BYTES
        reader = self._reader
        assert reader is not None
        if kind == Kind.FRAMES:
            room = reader.room()
            if len(room) >= size:
                met.opener.open(record, room[:size])
                reader.came(size)
                return
        plain = memoryview(bytearray(size))
        met.opener.open(record, plain)
        if kind == Kind.EVICTIONS:
            self._hear(plain)
            return
        while plain and not self._closing:
            room = reader.room()
            count = min(len(room), len(plain))
            room[:count] = plain[:count]
            reader.came(count)
            plain = plain[count:]

    # -- writing -------------------------------------------------------------------------------------------

    @property
    def _queued(self) -> int:
        return super()._queued + self._waiting_bytes

    def send(self, frame: Frame, payload: memoryview | bytes | None = None) -> None:
        if self._transport is None or self._closing or self._transport.is_closing() or self._met is None:
            return
        self._acknowledgements.sent()
        head = encode(frame, len(payload)) if payload else encode(frame)
        self._queue(Kind.FRAMES, head)
        if payload:
            self._queue(Kind.FRAMES, memoryview(payload).cast("B"))
            if self._network is not None:
                self._losses.sending(self._network)
        self._schedule()
        self._has_queued(len(head) + len(payload or b""))

    def _queue(self, kind: int, data: bytes | memoryview) -> None:
        self._waiting.append((kind, data))
        self._waiting_bytes += len(data)

    def _schedule(self) -> None:
        """Send soon: what else comes up until then goes with it."""
        if not self._scheduled and self._held is None:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        self._pump()

    def _pump(self) -> None:
        """Seal and send as much as the kernel takes."""
        transport, met = self._transport, self._met
        if transport is None or met is None:
            return
        # Of one that is gone nothing is queued, and whatever it is given it takes: a state takes seconds to seal.
        while (
            self._waiting and self._held is None and not (transport.is_closing() or transport.get_write_buffer_size())
        ):
            buffer = self._fleet.take_buffer()
            count = self._fill(met, buffer)
            self._traffic.bytes_sent += count
            transport.write(buffer[:count])
            if transport.get_write_buffer_size():
                self._held = buffer  # until writing is resumed
            else:
                self._fleet.give_buffer(buffer)
        if self._closing and not self._waiting:
            super()._finish()

    def _fill(self, met: Met, buffer: memoryview) -> int:
        """Make records of what waits, as many as the buffer has room for. Returns how many bytes they are."""
        waiting, filled = self._waiting, 0
        while waiting and len(buffer) - filled >= MOST_BYTES + OVERHEAD_BYTES:
            kind, data = waiting[0]
            start = self._sent_of_first
            if len(data) <= _SMALL_BYTES:
                data = self._small(kind)
            elif len(data) - start > MOST_BYTES:
                self._sent_of_first = start + MOST_BYTES
                data = memoryview(data)[start : start + MOST_BYTES]
            else:
                waiting.popleft()
                self._sent_of_first = 0
                data = memoryview(data)[start:]
            self._waiting_bytes -= len(data)
            filled += met.sealer.seal(kind, data, buffer[filled:])
        return filled

    def _small(self, kind: int) -> bytes | memoryview:
        """What is short and waits at the front, together."""
        waiting = self._waiting
        found, room = [], MOST_BYTES
        while waiting and waiting[0][0] == kind and len(waiting[0][1]) <= _SMALL_BYTES <= room:
            data = waiting.popleft()[1]
            found.append(data)
            room -= len(data)
        return found[0] if len(found) == 1 else b"".join(found)

    def _finish(self) -> None:
        self._pump()
        if self._transport is not None and self._met is None:
            self._transport.close()


class SecureTransport(TcpTransport):
    """TCP between members of one fleet, of which `identity` makes this peer one."""

    def __init__(self, identity: Identity) -> None:
        super().__init__()
        self._fleet = _Fleet(self._shared, identity)
        self._end = identity.on_change(self._changed)

    def close(self) -> None:
        """Hear no more of what changes in the fleet, and turn away who is half-way in."""
        self._end()
        self._fleet.door.close("this peer ends")

    def _changed(self) -> None:
        """Somebody is out, or there are new authorities."""
        for each in list(self._fleet.open):
            each.recheck()

    def _accepted(self, accept: Accept) -> Connection:
        return SecureConnection(accept, self._fleet, dialled=False)

    def _dialled(self, accept: Accept) -> Connection:
        return SecureConnection(accept, self._fleet, dialled=True)

    async def _met(self, channel: Connection) -> None:
        assert isinstance(channel, SecureConnection)
        await asyncio.shield(channel.opened)
