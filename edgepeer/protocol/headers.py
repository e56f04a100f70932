"""What the frames of a round say: which round it is, and of what kind its vectors are.

Structs, as both are made and compared several times a frame; and in a file of their own, as what declares structs is
not compiled where the rest of the machine is (`setup.py`)."""

from __future__ import annotations

import msgspec

from edgepeer.protocol.events import FloatVector
from edgepeer.wire.frames import Dtype, Reduce, Result
from edgepeer.wire.precision import Precision, block_of, elements_in, encoded_bytes

__all__ = ["Address", "Shape"]


class Address(msgspec.Struct, frozen=True):
    """What frames of a round are named by."""

    epoch: int
    round: int


class Shape(msgspec.Struct, frozen=True):
    """Length and element type of a round's vectors, and what they travel as."""

    total: int
    """Elements."""
    dtype: Dtype
    precision: Precision = "float32"

    @classmethod
    def of(cls, vector: FloatVector, precision: Precision = "float32") -> Shape:
        return cls(vector.size, "<f4" if vector.itemsize == 4 else "<f8", precision)

    @classmethod
    def said(cls, frame: Reduce | Result) -> Shape:
        """As a frame says it: of the whole vector, whatever the lane."""
        return cls(frame.total, frame.dtype, frame.precision)

    @property
    def itemsize(self) -> int:
        return 4 if self.dtype == "<f4" else 8

    @property
    def bytes(self) -> int:
        """In memory ..."""
        return self.total * self.itemsize

    @property
    def wire_bytes(self) -> int:
        """... and as it travels."""
        return encoded_bytes(self.precision, self.total, self.itemsize)

    @property
    def block(self) -> int:
        """Segments begin at a multiple of so many elements, and end at one or with the vector."""
        return block_of(self.precision)

    def elements(self, payload_bytes: int) -> int:
        """How many a segment of so many bytes has; -1: it is none."""
        return elements_in(self.precision, payload_bytes, self.itemsize)

    def step(self, segment_bytes: int) -> int:
        """How many elements a segment of about so many bytes has."""
        if segment_bytes >= self.wire_bytes:
            return max(1, self.total)
        block = self.block
        return max(1, segment_bytes // encoded_bytes(self.precision, block, self.itemsize)) * block

    def __str__(self) -> str:
        of = f"{self.total} x {'float32' if self.dtype == '<f4' else 'float64'}"
        return of if self.precision == "float32" else f"{of} in {self.precision}"
