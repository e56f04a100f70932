"""What goes into an allreduce and what comes out, in the caller's own shapes."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgepeer.errors import (
    BegunAnew,
    ContributionMismatch,
    FellBehind,
    LeftFabric,
    NotFinite,
    PeerError,
    RoundTimeout,
)
from edgepeer.ids import PeerId
from edgepeer.printable import printable
from edgepeer.protocol.effects import Phases, RoundCommitted
from edgepeer.protocol.events import FloatVector
from edgepeer.topology.view import MAX_MEMBERS
from edgepeer.wire.codec import MAX_PAYLOAD_BYTES
from edgepeer.wire.precision import PRECISIONS, Precision

__all__ = [
    "ABORTED",
    "Arrays",
    "FloatArray",
    "Outcome",
    "Shapes",
    "as_peers",
    "as_seconds",
    "check_precision",
    "check_weight",
    "flatten",
    "of_another_kind",
]

_AS_IS: Final = (np.dtype("<f4"), np.dtype("<f8"))
ABORTED: Final[dict[str, type[PeerError]]] = {
    "mismatch": ContributionMismatch,
    "nonfinite": NotFinite,
    "timeout": RoundTimeout,
    "left": LeftFabric,
    "anew": BegunAnew,
    "run": FellBehind,
}
"""What a round that has no result raises, by cause."""
_LIGHTEST: Final = {np.dtype(kind): float(np.finfo(kind).smallest_subnormal) for kind in ("<f4", "<f8")}
_HEAVIEST: Final = {np.dtype(kind): float(np.finfo(kind).max) for kind in ("<f4", "<f8")}
_HEAVIEST_EACH: Final = float(np.finfo(np.float64).max) / MAX_MEMBERS
"""Weights are added up in float64."""

FloatArray: TypeAlias = NDArray[Any]
Arrays: TypeAlias = FloatArray | list[FloatArray]


@dataclass(frozen=True, slots=True)
class Shapes:
    """How the arrays lay in the vector."""

    shapes: tuple[tuple[int, ...], ...]
    is_list: bool

    @property
    def size(self) -> int:
        """How many elements the vector has."""
        return sum(map(math.prod, self.shapes))

    def restore(self, vector: FloatVector) -> Arrays:
        """The vector in the caller's shapes, without a copy."""
        if not self.is_list:
            return vector.reshape(self.shapes[0])
        parts, at = [], 0
        for shape in self.shapes:
            size = math.prod(shape)
            parts.append(vector[at : at + size].reshape(shape))
            at += size
        return parts


def flatten(value: FloatArray | Sequence[FloatArray]) -> tuple[FloatVector, Shapes]:
    """One contiguous vector of all elements; a contiguous array is not copied.

    Raises:
        TypeError: not a float32 or float64 array, or a list of arrays of one of these types.
        ValueError: they are longer than anybody takes; nothing was copied.
    """
    if isinstance(value, np.floating):  # what Keras' and TensorFlow's scalars are in NumPy
        value = np.asarray(value)
    if isinstance(value, np.ndarray):
        _check_length((value,))
        if value.dtype in _AS_IS and value.flags.c_contiguous:
            return _plain(value).reshape(-1), Shapes((value.shape,), False)
        return _vector(value), Shapes((value.shape,), False)
    given: list[Any] = list(value) if isinstance(value, Sequence) else []
    arrays = [np.asarray(array) if isinstance(array, np.floating) else array for array in given]
    if not arrays or not all(isinstance(array, np.ndarray) for array in arrays):
        raise TypeError("allreduce takes an array or a non-empty list of arrays")
    dtypes = {array.dtype for array in arrays}
    if len(dtypes) > 1:
        raise TypeError(f"allreduce takes arrays of one dtype, not {', '.join(sorted(map(str, dtypes)))}")
    _check_length(arrays)
    shapes = tuple(array.shape for array in arrays)
    return _vector(np.concatenate([_vector(array) for array in arrays])), Shapes(shapes, True)


def _check_length(arrays: Sequence[FloatArray]) -> None:
    if (found := sum(array.nbytes for array in arrays)) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"allreduce takes {MAX_PAYLOAD_BYTES:,} bytes at most, not {found:,}")


def _vector(array: FloatArray) -> FloatVector:
    if array.dtype.kind != "f" or array.dtype.itemsize not in (4, 8):
        raise TypeError(f"allreduce takes float32 or float64, not {array.dtype}")
    little = array.dtype.newbyteorder("<")
    return np.ascontiguousarray(_plain(array), dtype=little).reshape(-1)


def _plain(array: FloatArray) -> FloatArray:
    """The same numbers as NumPy's own kind of array: a matrix has no single dimension, whatever it is told."""
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError("allreduce takes no masked arrays, as each number counts: fill it first")
    return np.asarray(array)


def check_weight(weight: float, dtype: np.dtype[Any]) -> float:
    """The weight, unless it is none, or none that vectors of that type can have.

    Raises:
        ValueError: which, and why; TypeError: it is no number.
    """
    wanted = f"finite and not negative, as a {dtype}"
    # Not as NumPy compares it: a limit that the weight's type can't hold would be infinite, and such a weight allowed.
    number = as_number("weight", weight, wanted)
    if not 0 <= number <= _HEAVIEST[dtype]:
        raise ValueError(f"weight = {printable(repr(weight))}: must be {wanted}")
    if number > _HEAVIEST_EACH:
        raise ValueError(f"weight = {number:g}: several could be infinite; must be {_HEAVIEST_EACH:g} at most")
    if 0 < number < _LIGHTEST[dtype]:
        raise ValueError(f"weight = {weight}: is 0 as a {dtype}")
    return number


def as_number(name: str, value: object, wanted: str) -> float:
    """What a program has given as a number, of whatever type; infinite if it is too large.

    Raises:
        TypeError: it is none; says what is `wanted`.
    """
    try:
        if not isinstance(value, str | bytes | bytearray):
            return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        pass
    raise TypeError(f"{name} = {printable(repr(value))}: must be {wanted}")


def as_seconds(value: object) -> float:
    """A `timeout` that a program has given.

    Raises:
        TypeError: it is no number; ValueError: it never comes, or has passed.
    """
    wanted = "a positive number of seconds"
    seconds = as_number("timeout", value, wanted)
    if not 0 < seconds < math.inf:
        raise ValueError(f"timeout = {printable(repr(value))}: must be {wanted}")
    return seconds


def as_peers(value: object) -> int:
    """How many peers a program wants to be there.

    Raises:
        TypeError: it is no whole number; ValueError: less than the one that asks.
    """
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise TypeError(f"peers = {printable(repr(value))}: must be a whole number, 1 or more")
    if (peers := operator.index(value)) < 1:
        raise ValueError(f"peers = {peers}: must be a whole number, 1 or more")
    return peers


def check_precision(precision: str, vector: FloatVector) -> None:
    """Refuse a precision that there is none of, or not for such a vector.

    Raises:
        ValueError: so it is.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision = {precision!r}: must be one of {', '.join(PRECISIONS)}")
    if precision != "float32" and vector.itemsize != 4:
        raise ValueError(f"precision = {precision!r}: is for float32, not for {vector.dtype}, which travels as it is")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Outcome:
    """The result of one allreduce: the same at every peer, bit for bit."""

    round: int
    """Number of the round within its run."""
    generation: str
    """The generation that it was decided in: in one, a round ends in one way only."""
    epoch: int
    """Epoch of the view in which it was decided."""
    contributors: tuple[PeerId, ...]
    """Whose vectors are in the sum, each exactly once, in tree order."""
    exact: bool
    """Whether nobody who was in when the round began at the coordinator is missing.
    The sum is of what was encoded: see `precision`."""
    weight: float
    """Sum of the contributors' weights."""
    seconds: float
    """From this peer's call to the result."""
    digest: str
    """xxh3_128 of the sum's bytes, as they travelled; hexadecimal."""
    paths: tuple[str, ...]
    """What this peer's links to its parent and children ran over at the end: "direct", "via x", "via x+y", "relay"."""
    phases: Phases
    """Where the time went."""
    vector: FloatVector = field(repr=False)
    """The weighted sum as one vector, read-only."""
    shapes: Shapes = field(repr=False)
    chunks: tuple[int, ...] = ()
    """Of a coded round: the chunks whose gradients are in the sum, each exactly once."""
    error: float = 0.0
    """Of a coded round: expected squared error of the sum, in units of one chunk's squared gradient norm."""
    precision: Precision = "float32"
    """What each partial sum, and then the result, was rounded to: bf16 is off by at most 2^-8 of a number, int8 by
    1/253 of the largest in its block of 256, each time; or by 2^-134 and 2^-127, where that is more. float32: nothing
    was."""

    @property
    def sum(self) -> Arrays:
        """Weighted sum over the contributors, in the shape that was given; read-only, not copied."""
        return self.shapes.restore(self.vector)

    @property
    def mean(self) -> Arrays:
        """Weighted mean over the contributors, in the shape that was given; zeros if all weights were 0."""
        weight, dtype = self.weight or 1.0, self.vector.dtype
        if weight <= _HEAVIEST[dtype]:
            return self.shapes.restore(self.vector / dtype.type(weight))
        return self.shapes.restore((self.vector / np.float64(weight)).astype(dtype))  # each alone was not as heavy


def of_another_kind(effect: RoundCommitted, found: str, mine: str) -> ContributionMismatch:
    """A sum of `found` elements that was decided without this peer: with its `mine`, there would be none."""
    decided = f"{', '.join(effect.contributors)} decided it with {found} elements"
    return ContributionMismatch(f"round {effect.round}: {decided}; this peer brings {mine}")
