"""What the owners of peers that are connected tell each other, beside the protocol: the newest document that each has.

    so                                    | this peer
    --------------------------------------+------------------------------------------------------------------------
    a connection stands                   | asks the other end, and says which document is here
    the other end asks, and has another   | tells it
    there is another document here        | tells it to all that are connected

So news comes also to whoever has lost the broker, or is at another one, as long as anybody is connected with it. What
is told is for the owner to judge: nobody tells again what he does not take.

Of documents that are under way no more is kept than has come, and together no more than two may have: whoever is the
longest without saying more makes room.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import xxhash

from edgepeer.ids import PeerId
from edgepeer.wire.frames import PART, Frame, State, StateRequest

__all__ = ["Hearsay"]

_DOCUMENTS: Final = 2
"""As many bytes as so many may have are kept of all that are under way."""

_NAME: Final = f"{PART}job"  # a part of a run's state has the run's name before it


class Hearsay:
    """Of one peer.

    Args:
        send: sends a frame on the connection with a peer, if there is one.
        heard: told what a peer has told.
        limit_bytes: the longest document.
        piece_bytes: how much of it goes in a frame.
    """

    def __init__(
        self,
        send: Callable[[PeerId, Frame, memoryview | None], None],
        heard: Callable[[PeerId, bytes], None],
        *,
        limit_bytes: int,
        piece_bytes: int,
    ) -> None:
        self._send = send
        self._heard = heard
        self._limit_bytes = limit_bytes
        self._piece_bytes = piece_bytes
        self._document = b""
        self._met: set[PeerId] = set()
        self._coming: dict[PeerId, _Coming] = {}  # whoever has said something of it last comes last

    def say(self, document: bytes) -> None:
        """That is the newest here."""
        if document != self._document:
            self._document = document
            for peer in self._met:
                self.tell(peer, document)

    def tell(self, peer: PeerId, document: bytes) -> None:
        """Tell it to one peer."""
        view = memoryview(self._document if document == self._document else document)  # the same memory each time
        for start in range(0, len(view), self._piece_bytes):
            frame = State(run=_NAME, round=0, offset=start, total=len(view))
            self._send(peer, frame, view[start : start + self._piece_bytes])

    def met(self, peer: PeerId) -> None:
        """A connection stands."""
        self._met.add(peer)
        self._coming.pop(peer, None)
        self._send(peer, StateRequest(run=self._question), None)

    def gone(self, peer: PeerId) -> None:
        """It is over."""
        self._met.discard(peer)
        self._coming.pop(peer, None)

    @property
    def _question(self) -> str:
        return f"{_NAME}{PART}{xxhash.xxh3_64_hexdigest(self._document)}"

    def sink(self, peer: PeerId, frame: State, payload_bytes: int) -> memoryview | None:
        """Where a piece of a document belongs."""
        if frame.offset == 0 and 0 < frame.total <= self._limit_bytes:  # of an empty one nobody tells
            self._coming[peer] = _Coming(frame.total)
        coming = self._coming.get(peer)
        if coming is None or (frame.offset, frame.total) != (coming.here, coming.total):
            return None
        if payload_bytes > min(coming.total - coming.here, self._piece_bytes):
            return None
        coming.piece = bytearray(payload_bytes)
        return memoryview(coming.piece)

    def received(self, peer: PeerId, frame: State | StateRequest, payload_bytes: int, *, stored: bool) -> None:
        """A piece has come, or a question."""
        if isinstance(frame, StateRequest):
            if frame.run != self._question:
                self.tell(peer, self._document)
        elif stored and (coming := self._coming.pop(peer, None)) is not None:
            coming.take()
            if coming.here == coming.total:
                self._heard(peer, bytes(coming.pieces))
            else:
                self._coming[peer] = coming
                self._make_room()

    def _make_room(self) -> None:
        kept = sum(each.here for each in self._coming.values())
        while kept > _DOCUMENTS * self._limit_bytes:
            kept -= self._coming.pop(next(iter(self._coming))).here

    @staticmethod
    def concerns(frame: State | StateRequest) -> bool:
        """Whether it is no matter of the protocol's, nor of a run's."""
        return frame.run.startswith(_NAME)


class _Coming:
    """What is here of a document that is under way."""

    __slots__ = ("piece", "pieces", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self.pieces = bytearray()  # in one: each by itself would take dozens of bytes more, and may have but one
        self.piece = bytearray()
        """That is being read."""

    @property
    def here(self) -> int:
        """How many bytes are."""
        return len(self.pieces)

    def take(self) -> None:
        """It has been."""
        self.pieces += self.piece
        self.piece = bytearray()
