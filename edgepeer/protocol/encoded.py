"""The bytes that a vector travels as where it is rounded: on their way in, on their way out, or both.

    comes    | room for a segment; once it is there, it is decoded into a vector
    goes     | a vector is encoded, as far as it is known, and its bytes are sent
    both     | what has come goes on as it is: nobody but the root encodes a result

Where vectors travel as they are there is none of these: the vector's own memory is what comes and goes.
"""

from __future__ import annotations

import numpy as np
import xxhash

from edgepeer.errors import ProtocolBug
from edgepeer.protocol.events import FloatVector
from edgepeer.wire.encoding import codec_of
from edgepeer.wire.precision import Precision, encoded_bytes

__all__ = ["Encoded"]


class Encoded:
    """Of `total` elements. Ranges [start, end) begin at a block, and end at one or with the vector."""

    __slots__ = ("_codec", "_memory", "precision", "total")

    def __init__(self, precision: Precision, total: int) -> None:
        codec = codec_of(precision)
        if codec is None:
            raise ProtocolBug(f"{precision} is not encoded")
        self._codec = codec
        self.precision = precision
        self.total = total
        self._memory = np.empty(encoded_bytes(precision, total), np.uint8)

    @classmethod
    def of(cls, vector: FloatVector, precision: Precision) -> Encoded:
        """The bytes of a vector that has been decoded from them."""
        encoded = cls(precision, vector.size)
        if not encoded.encode(vector, 0, vector.size):
            raise ProtocolBug("what was decoded is not finite")
        return encoded

    def is_like(self, precision: Precision, total: int) -> bool:
        """Whether it is of such a vector."""
        return (self.precision, self.total) == (precision, total)

    def part(self, start: int, end: int) -> memoryview:
        """Those of a range."""
        first, last = encoded_bytes(self.precision, start), encoded_bytes(self.precision, end)
        return self._memory.data[first:last]

    def encode(self, vector: FloatVector, start: int, end: int) -> bool:
        """Fill a range. Returns whether the vector is finite there."""
        return self._codec.encode(vector[start:end], self.part(start, end))

    def decode(self, start: int, end: int, out: FloatVector) -> str:
        """What a range stands for, to the same range of `out`. Returns why it stands for nothing; empty if it does."""
        return self._codec.decode(self.part(start, end), out[start:end])

    def digest(self) -> bytes:
        """xxh3_128 of all."""
        return xxhash.xxh3_128_digest(self._memory.data)
