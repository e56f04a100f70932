"""A stream of sealed records: what goes over a connection once both ends know who the other is.

    header (4 bytes, big-endian): kind u8 | length of what follows u24
    sealed: at most MOST_BYTES, encrypted, and a tag of 16 bytes over it and the header

Each direction has a key of its own, and the number of a record is its nonce: what is cut out, repeated, put in another
place or sent back to where it came from does not open. After _RENEW_AFTER records both ends go on with the next key,
which is derived from the last, so that no nonce comes twice and no key seals more than it should (RFC 8446, 5.5).
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

from cryptography.exceptions import InvalidTag

from edgepeer.errors import WireError
from edgepeer.trust.ciphers import KEY_BYTES, TAG_BYTES, cipher, derive

__all__ = ["HEAD_BYTES", "MOST_BYTES", "OVERHEAD_BYTES", "Kind", "Opener", "Sealer", "measure"]

MOST_BYTES: Final = 64 << 10
"""Of what is sealed in one record."""
_HEAD: Final = struct.Struct("!I")
HEAD_BYTES: Final = _HEAD.size
OVERHEAD_BYTES: Final = HEAD_BYTES + TAG_BYTES
_NONCE: Final = struct.Struct("!4xQ")
_RENEW_AFTER: Final = 1 << 22
_RENEWED: Final = b"edgepeer-records-1 next key"


class Kind(IntEnum):
    """What a record is part of."""

    FRAMES = 0
    EVICTIONS = 1


_KINDS: Final = frozenset(Kind)


def measure(data: memoryview, at: int) -> tuple[int, int]:
    """The kind of the record that begins at `data[at:]`, and the length of what is sealed in it, tag included.

    Raises:
        WireError: there can be no such record.
    """
    (head,) = _HEAD.unpack_from(data, at)
    kind, length = head >> 24, head & 0xFFFFFF
    if not TAG_BYTES < length <= MOST_BYTES + TAG_BYTES or kind not in _KINDS:
        raise WireError(f"no sealed record: one of kind {kind} and {length} bytes is announced")
    return kind, length


class _Direction:
    """One way: its key, and how many records have gone there."""

    __slots__ = ("_aes", "_cipher", "_count", "_key")

    def __init__(self, key: bytes, *, aes: bool) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key of {len(key)} bytes")
        self._key, self._aes = key, aes
        self._cipher = cipher(key, aes=aes)
        self._count = 0

    def _next(self) -> bytes:
        """The nonce of the next record."""
        count = self._count
        if count == _RENEW_AFTER:
            self._key = derive(self._key, _RENEWED)
            self._cipher = cipher(self._key, aes=self._aes)
            count = 0
        self._count = count + 1
        return _NONCE.pack(count)


class Sealer(_Direction):
    """Makes records."""

    __slots__ = ()

    def seal(self, kind: int, data: bytes | memoryview, into: memoryview) -> int:
        """Write data, 1 to MOST_BYTES of it, as a record to the beginning of `into`. Returns the record's length."""
        length = len(data) + TAG_BYTES
        _HEAD.pack_into(into, 0, kind << 24 | length)
        end = HEAD_BYTES + length
        nonce = self._next()  # first: it may change the cipher
        self._cipher.encrypt_into(nonce, data, into[:HEAD_BYTES], into[HEAD_BYTES:end])
        return end


class Opener(_Direction):
    """Opens the records that the other end's sealer has made, in their order."""

    __slots__ = ()

    def open(self, record: memoryview, into: memoryview) -> None:
        """Write what is sealed in one whole record to `into`, which must have exactly its size.

        Raises:
            WireError: it is not the next one that the other end has sealed. What `into` holds means nothing.
        """
        nonce = self._next()
        try:
            self._cipher.decrypt_into(nonce, record[HEAD_BYTES:], record[:HEAD_BYTES], into)
        except InvalidTag:
            raise WireError(
                "a sealed record does not open: it was changed on its way, or is not the next one"
            ) from None
