"""The list of who is out, on its way from peer to peer: whoever has an older one is told."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from edgepeer.errors import WireError
from edgepeer.transport.records import MOST_BYTES

__all__ = ["News", "in_pieces"]

_TOTAL: Final = struct.Struct("!I")
_MOST_BYTES: Final = 4 << 20
"""Of a list."""


def in_pieces(document: bytes) -> Iterator[memoryview]:
    """A list as what one record each can hold."""
    data = memoryview(_TOTAL.pack(len(document)) + document)
    for start in range(0, len(data), MOST_BYTES):
        yield data[start : start + MOST_BYTES]


class News:
    """What one other peer has told of it, and knows of it."""

    __slots__ = ("_came", "_total", "number")

    def __init__(self) -> None:
        self.number = 0
        """Of the newest list that is known there, as far as is known here."""
        self._total = 0
        self._came = bytearray()

    def take(self, piece: memoryview) -> bytes | None:
        """A piece has come. Returns the list once it is complete.

        Raises:
            WireError: it is none.
        """
        if not self._total:
            if len(piece) < _TOTAL.size:
                raise WireError(f"list of evictions that begins with {len(piece)} bytes")
            (self._total,) = _TOTAL.unpack_from(piece)
            if not 0 < self._total <= _MOST_BYTES:
                raise WireError(f"list of evictions of {self._total} bytes, limit {_MOST_BYTES}")
            piece = piece[_TOTAL.size :]
        self._came += piece
        if len(self._came) > self._total:
            raise WireError("list of evictions that is longer than announced")
        if len(self._came) < self._total:
            return None
        told, self._came, self._total = bytes(self._came), bytearray(), 0
        return told
