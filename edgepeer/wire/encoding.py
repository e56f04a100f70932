"""float32 vectors as fewer bytes: bf16 and int8, as `precision.py` names them.

    bf16   x -> the nearest of the float32 whose lower 16 bits are 0, the even one of two; beyond the largest of them,
           that one. |error| <= 2^-8 |x|, or 2^-134 where |x| < 2^-126.
    int8   a block of 256: scale s, then q = x / s, rounded to the nearest even. s is max|x| / 127, rounded up to 17
           significant bits, but at least 2^-126 and at most SCALE_MAX; 0 where all q are 0.
           |error| <= s / 2, but for one part in 10,000 of that: less than max|x| / 253.9, or at most 2^-127.

All is little-endian, a block's scale stands in front of its numbers, and what a vector becomes does not depend on how
it is cut at blocks. It holds that

- decoding is exact: q has 7 bits and s at most 17, so that q s is a float32, the same on every machine;
- what has been decoded becomes the same bytes when it is encoded again: a full block's largest |q| is 127, since s is
  rounded up by less than one part in 65,536, and 127 s / 127 is s. So whoever has a result in float32 can hand it on;
- `decode` takes exactly what `encode` makes, and refuses the rest: not-a-number, infinity, a scale that is negative or
  none that `encode` would choose, -128. (bf16 has no more to be refused than what isn't finite.)

Not-a-number and infinity can't be encoded: `encode` says that they are there. Vectors are worked on in pieces that stay
in the processor's cache; nothing is done element by element in Python.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from edgepeer.wire.precision import BLOCK, Precision, encoded_bytes

__all__ = ["SCALE_MAX", "SCALE_MIN", "Codec", "codec_of", "first_not_finite"]

Float32Vector = NDArray[np.float32]
Buffer = bytes | bytearray | memoryview | NDArray[Any]

_F4: Final = np.dtype("<f4")
_U4: Final = np.dtype("<u4")
_U2: Final = np.dtype("<u2")
_I1: Final = np.dtype("i1")
_PIECE: Final = 512 * BLOCK
"""Elements that are worked on at a time: 512 KiB of float32, which a segment seldom has more of. In pieces of a quarter
of that, NumPy's calls made a segment of 70,000 take a fifth longer."""
_STARTS: Final = np.arange(0, _PIECE, BLOCK)
"""Where blocks begin."""

_BF16_LARGEST: Final = 0x7F7F
_BF16_INFINITE: Final = 0x7F80

_MAGNITUDE: Final = np.uint32(0x7FFFFFFF)
_INFINITE: Final = np.uint32(0x7F800000)
_SCALE_BYTES: Final = 4
_FULL_BYTES: Final = _SCALE_BYTES + BLOCK
_LARGEST_CODE: Final = 127
_LOW_BITS: Final = 0x7F
"""Of a scale, 0: 24 - 7 significant bits are left."""
SCALE_MIN: Final = float(np.float32(2.0**-126))
"""The smallest that every processor reckons with: some take smaller numbers for 0."""
_SCALE_MIN_BITS: Final = 0x00800000
_SCALE_MAX_BITS: Final = int(np.float32(np.finfo(np.float32).max / _LARGEST_CODE).view(np.uint32)) & ~_LOW_BITS
SCALE_MAX: Final = float(np.uint32(_SCALE_MAX_BITS).view(np.float32))
"""The largest of which 127 are finite."""
_HALF_SCALE_MIN_BITS: Final = 0x00400000
"""2^-127, which is rounded to 0."""


class Codec(Protocol):
    """Vectors in one precision. Without state: it may be shared."""

    precision: Precision

    def encode(self, values: Float32Vector, out: Buffer) -> bool:
        """Write what the values, shape (n,), become to `out`, of `encoded_bytes(precision, n)` bytes.

        Returns whether all are finite; if not, `out` is of no use.
        """

    def decode(self, data: Buffer, out: Float32Vector) -> str:
        """Write the n values that `data` stands for to `out`, shape (n,).

        Returns why `data` stands for none; empty if it does. Then what `out` holds is of no use.
        """


def codec_of(precision: Precision) -> Codec | None:
    """The codec of a precision; None: vectors travel as they are."""
    return _CODECS.get(precision)


def first_not_finite(values: NDArray[Any]) -> int:
    """Index of the first value that is infinite or not a number; -1: none is."""
    finite = np.isfinite(values)
    return -1 if finite.all() else int(finite.argmin())


def _bytes(data: Buffer, precision: Precision, elements: int) -> NDArray[np.uint8]:
    found = np.frombuffer(data, np.uint8)
    if found.size != (due := encoded_bytes(precision, elements)):
        raise ValueError(f"{found.size} bytes for {elements} elements in {precision}, which are {due}")
    return found


class _Bf16:
    """The upper halves of float32 numbers."""

    precision: Precision = "bf16"

    def encode(self, values: Float32Vector, out: Buffer) -> bool:
        codes, bits = _bytes(out, self.precision, values.size).view(_U2), values.view(_U4)
        scratch = np.empty(min(_PIECE, values.size), _U4)
        for start in range(0, values.size, _PIECE):
            piece, into = bits[start : start + _PIECE], codes[start : start + _PIECE]
            rounded = scratch[: piece.size]
            np.right_shift(piece, 16, out=rounded)
            rounded &= 1
            rounded += 0x7FFF
            # A number whose exponent is all ones is none; the largest finite ones may be rounded into that.
            np.add(rounded, piece, out=rounded)
            rounded >>= 16
            np.copyto(into, rounded, casting="unsafe")
            if not np.isfinite(values[start : start + _PIECE]).all():
                return False
            rounded &= 0x7FFF
            if rounded.max(initial=0) >= _BF16_INFINITE:
                over = rounded >= _BF16_INFINITE
                into[over] = (into[over] & 0x8000) | _BF16_LARGEST
        return True

    def decode(self, data: Buffer, out: Float32Vector) -> str:
        codes = _bytes(data, self.precision, out.size).view(_U2)
        bits = out.view(_U4)
        for start in range(0, out.size, _PIECE):
            piece = slice(start, start + _PIECE)
            np.copyto(bits[piece], codes[piece])
            bits[piece] <<= 16
            if (wrong := first_not_finite(out[piece])) >= 0:
                return f"is not finite at element {start + wrong}"
        return ""


class _Int8:
    """Blocks of whole numbers, each with its scale."""

    precision: Precision = "int8"

    def encode(self, values: Float32Vector, out: Buffer) -> bool:
        data = _bytes(out, self.precision, values.size)
        full = values.size // BLOCK
        scratch = np.empty((min(_PIECE // BLOCK, full), BLOCK), _F4)
        blocks, records = values[: full * BLOCK].reshape(full, BLOCK), data[: full * _FULL_BYTES]
        records = records.reshape(full, _FULL_BYTES)
        for start in range(0, full, _PIECE // BLOCK):
            piece = slice(start, start + _PIECE // BLOCK)
            if not _encode_blocks(blocks[piece], records[piece], scratch):
                return False
        if rest := values.size - full * BLOCK:
            last = values[full * BLOCK :].reshape(1, rest)
            return _encode_blocks(last, data[full * _FULL_BYTES :].reshape(1, -1), np.empty((1, rest), _F4))
        return True

    def decode(self, data: Buffer, out: Float32Vector) -> str:
        payload = _bytes(data, self.precision, out.size)
        full = out.size // BLOCK
        blocks, records = out[: full * BLOCK].reshape(full, BLOCK), payload[: full * _FULL_BYTES]
        records = records.reshape(full, _FULL_BYTES)
        for start in range(0, full, _PIECE // BLOCK):
            piece = slice(start, start + _PIECE // BLOCK)
            if wrong := _decode_blocks(records[piece], blocks[piece], start):
                return wrong
        if rest := out.size - full * BLOCK:
            last = out[full * BLOCK :].reshape(1, rest)
            return _decode_blocks(payload[full * _FULL_BYTES :].reshape(1, -1), last, full)
        return ""


def _encode_blocks(values: NDArray[Any], records: NDArray[Any], scratch: NDArray[Any]) -> bool:
    """One block a row."""
    quotients = scratch[: len(values)]
    largest = _largest(np.bitwise_and(values.view(_U4), _MAGNITUDE, out=quotients.view(_U4)))
    if np.maximum.reduce(largest) >= _INFINITE:  # and so are the bits of what isn't a number
        return False
    bits = (largest.view(_F4) / np.float32(_LARGEST_CODE)).view(_U4)
    bits += _LOW_BITS
    bits &= np.uint32(0xFFFFFFFF & ~_LOW_BITS)
    np.minimum(np.maximum(bits, np.uint32(_SCALE_MIN_BITS), out=bits), np.uint32(_SCALE_MAX_BITS), out=bits)
    np.multiply(values, (np.float32(1) / bits.view(_F4))[:, None], out=quotients)
    np.rint(quotients, out=quotients)
    np.copyto(records[:, _SCALE_BYTES:].view(_I1), quotients, casting="unsafe")
    if np.minimum.reduce(largest) <= _HALF_SCALE_MIN_BITS:
        bits[largest <= _HALF_SCALE_MIN_BITS] = 0
    records[:, :_SCALE_BYTES].view(_U4)[:, 0] = bits
    return True


def _largest(rows: NDArray[Any]) -> NDArray[Any]:
    """Of each row, shape (rows,). NumPy takes five times as long to reduce short rows by their axis, and three times as
    long to compare float32 as their bits, which are in the same order where all are positive."""
    count, length = rows.shape
    starts = _STARTS[:count] if length == BLOCK else np.arange(0, rows.size, length)
    found: NDArray[Any] = np.maximum.reduceat(rows.reshape(-1), starts)
    return found


def _decode_blocks(records: NDArray[Any], out: NDArray[Any], first: int) -> str:
    """One block a row, the first being that of the vector."""
    codes = records[:, _SCALE_BYTES:].view(_I1)
    bits = np.ascontiguousarray(records[:, :_SCALE_BYTES]).view(_U4)[:, 0]
    largest = _largest(np.abs(codes).view(np.uint8))  # of -128 too: it is 128 then
    usual = (
        np.minimum.reduce(largest) == np.maximum.reduce(largest) == _LARGEST_CODE
        and np.minimum.reduce(bits) > _SCALE_MIN_BITS
        and np.maximum.reduce(bits) <= _SCALE_MAX_BITS
        and not np.bitwise_or.reduce(bits) & _LOW_BITS
    )
    if not usual and (wrong := _unusual(bits, largest, first)):
        return wrong
    np.copyto(out, codes)
    np.multiply(out, bits.view(_F4)[:, None], out=out)
    return ""


def _unusual(bits: NDArray[Any], largest: NDArray[Any], first: int) -> str:
    """Why blocks with these scales and these largest numbers, shape (rows,), stand for nothing; empty: they don't."""
    full = (bits > _SCALE_MIN_BITS) & (bits <= _SCALE_MAX_BITS) & (bits & _LOW_BITS == 0) & (largest == _LARGEST_CODE)
    least = (bits == _SCALE_MIN_BITS) & (largest > 0) & (largest <= _LARGEST_CODE)
    nothing = (bits == 0) & (largest == 0)
    right = full | least | nothing
    if right.all():
        return ""
    block = int(right.argmin())
    scale = bits[block : block + 1].view(_F4)[0]
    return f"has scale {scale:g} and numbers up to {largest[block]} in block {first + block}"


_CODECS: Final[dict[Precision, Codec]] = {"bf16": _Bf16(), "int8": _Int8()}
