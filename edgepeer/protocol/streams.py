"""What has arrived of a vector, and where it lies.

A vector arrives front to back, over one link or, after a reconnect, over several; so what is there is a
prefix, and a segment that begins beyond it means that something is missing. A segment that repeats what is
there already carries the same bits, whoever sends it, and may be stored again or dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import xxhash

from edgepeer.protocol.encoded import Encoded
from edgepeer.protocol.events import FloatVector
from edgepeer.protocol.headers import Shape
from edgepeer.protocol.segments import RateEstimate
from edgepeer.topology.view import View
from edgepeer.wire.frames import Commit
from edgepeer.wire.precision import Precision

__all__ = ["NOTHING", "Held", "Prefix", "Upstream", "as_bytes", "bytes_of", "digest_of", "digest_of_all"]


NOTHING: Final = np.empty(0, dtype="<f4")
"""What there is of a round that ends without a sum."""


class Prefix:
    """A vector that is on its way. `received` is -1 until the first segment, even an empty one, is there."""

    __slots__ = ("_given", "buffer", "encoded", "received", "shape")

    def __init__(
        self, shape: Shape | None = None, buffer: FloatVector | None = None, encoded: Encoded | None = None
    ) -> None:
        self.shape = shape
        self.buffer = buffer
        self.encoded = encoded
        """What has come, where that is not what lies in `buffer`."""
        self.received = -1
        self._given: tuple[int, int] | None = None
        """What there was room for here when it began to arrive: where, and how many elements."""

    @property
    def complete(self) -> bool:
        return self.shape is not None and self.received == self.shape.total

    def room(self, shape: Shape, offset: int, count: int) -> memoryview | None:
        """Where to put `count` elements that begin at `offset`; None when they are of no use here."""
        end = offset + count
        if offset > max(self.received, 0) or (self.received >= 0 and end <= self.received):
            return None
        if end > shape.total or count < 0:
            return None
        if self.shape is None:
            self.shape = shape
        elif self.shape != shape:
            return None
        if self.buffer is None or self.buffer.size != shape.total or self.buffer.dtype.itemsize != shape.itemsize:
            self.buffer = np.empty(shape.total, dtype=shape.dtype)
        if shape.precision == "float32":
            self.encoded, self._given = None, (offset, count)
            return as_bytes(self.buffer[offset:end])
        if offset % shape.block or (end % shape.block and end != shape.total):
            return None
        self._given = offset, count
        if self.encoded is None or not self.encoded.is_like(shape.precision, shape.total):
            self.encoded = Encoded(shape.precision, shape.total)
        return self.encoded.part(offset, end)

    def stored(self, offset: int, count: int) -> str:
        """Elements up to offset + count are there. Returns why they are none, and don't count; empty if they do. So do
        those that there was no room for here: they lie in what was here before the round was begun again."""
        given, self._given = self._given, None
        if given != (offset, count):
            return ""
        wrong = ""
        if self.encoded is not None and self.buffer is not None:
            wrong = self.encoded.decode(offset, offset + count, self.buffer)  # what repeats, too: it is what goes on
        if wrong:
            return wrong
        self.received = max(self.received, offset + count)
        return ""

    @property
    def digest(self) -> bytes:
        """Of a vector that is complete, as it travels."""
        if self.encoded is not None:
            return self.encoded.digest()
        return digest_of(self.buffer if self.buffer is not None else NOTHING)


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A round's whole result, in an earlier view put forward by its root: it may count already, somewhere."""

    total: FloatVector
    commit: Commit
    view: View
    """The view that the commit's positions are of."""


class Upstream(Prefix):
    """A child's partial aggregate, and what it stands for."""

    __slots__ = (
        "added",
        "allowed",
        "blocks",
        "column",
        "contributors",
        "expected",
        "gives_up",
        "held",
        "held_total",
        "rate",
        "weight",
    )

    def __init__(self, allowed: int, rate: RateEstimate) -> None:
        super().__init__()
        self.allowed = allowed
        """Positions at or below the child: nobody else's contribution may come through it."""
        self.expected = allowed
        """Those of them whose contributions the round waits for."""
        self.column: FloatVector | None = None
        """Of a vector that is shorter than the sum: with which weights it enters each block of it, shape (blocks,)."""
        self.blocks = 1
        """How many elements of the sum each of its elements enters."""
        self.contributors = 0
        self.weight = 0.0
        self.added = -1
        """How many elements of it are in this peer's sum; -1 before any, even an empty one, is."""
        self.rate = rate
        self.held_total = Prefix()
        """In the place of a partial aggregate: a result that is held below from an earlier view, as it comes."""
        self.held: Held | None = None
        """The same, once all of it is here."""
        self.gives_up = False
        """Whether all peers below have said that they hold nothing, and that no sum can come of the round."""

    @property
    def begun(self) -> bool:
        """Whether all peers below have said what they bring: a partial aggregate begins when all of its parts have."""
        return self.received >= 0 or self.held is not None or self.gives_up

    def expect(self, positions: int, column: FloatVector | None) -> None:
        """Only these contribute, with a vector that is to be expanded, if there is a column."""
        self.expected, self.column = positions, column
        self.blocks = 1 if column is None else column.size

    def take_held(self, held: Held) -> None:
        """All of it is here, and what its commit says."""
        held.total.flags.writeable = False
        self.held = held

    def give_up(self) -> bool:
        """All below hold nothing, and no sum can come of the round. Returns whether that is news."""
        news, self.gives_up = not self.gives_up, True
        return news

    def refuse_held(self) -> None:
        """What has come is not what its commit says."""
        self.held_total = Prefix()

    def emptied(self) -> Upstream:
        """The same for the next round, in the same memory."""
        following = Upstream(self.allowed, self.rate)
        following.buffer, following.encoded = self.buffer, self.encoded
        return following


def as_bytes(vector: FloatVector) -> memoryview:
    """The memory of a contiguous vector, without a copy."""
    return vector.data.cast("B") if vector.size else memoryview(bytearray())


def bytes_of(vector: FloatVector, precision: Precision) -> memoryview:
    """What a result, or the end of one from a block on, travels as."""
    if precision == "float32":
        return as_bytes(vector)
    return Encoded.of(vector, precision).part(0, vector.size)


def digest_of(vector: FloatVector, precision: Precision = "float32") -> bytes:
    """xxh3_128 of a contiguous vector's bytes, as they travel."""
    return xxhash.xxh3_128_digest(bytes_of(vector, precision))


def digest_of_all(parts: Iterable[memoryview]) -> bytes:
    """xxh3_128 of what ranges of a vector travel as, one after the other."""
    digest = xxhash.xxh3_128()
    for part in parts:
        digest.update(part)
    return digest.digest()
