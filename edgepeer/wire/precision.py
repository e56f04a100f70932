"""How precisely the numbers of a round travel, and how many bytes that takes.

    precision | an element travels as                                     | bytes of n elements
    ----------+-----------------------------------------------------------+---------------------
    float32   | itself (so do float64 vectors)                            | 4 n (8 n)
    bf16      | the upper half of a float32, rounded to the nearest even  | 2 n
    int8      | a whole number from -127 to 127, times its block's scale  | n + 4 ⌈n / 256⌉

`encoding.py` has the numbers themselves. Here is what can be had without NumPy.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

__all__ = ["BLOCK", "PRECISIONS", "Precision", "block_of", "elements_in", "encoded_bytes"]

Precision: TypeAlias = Literal["float32", "bf16", "int8"]
PRECISIONS: Final[tuple[Precision, ...]] = get_args(Precision)
BLOCK: Final = 256
"""Elements that share a scale in int8; the last block of a vector may be shorter."""
_SCALE_BYTES: Final = 4
_FULL_BYTES: Final = _SCALE_BYTES + BLOCK


def block_of(precision: Precision) -> int:
    """Where a vector may be cut: a segment begins at a multiple of so many elements, and ends there or at the end."""
    return BLOCK if precision == "int8" else 1


def encoded_bytes(precision: Precision, elements: int, itemsize: int = 4) -> int:
    """How many bytes elements take that begin at a block. `itemsize`: of a vector that travels as it is."""
    if precision == "float32":
        return elements * itemsize
    if precision == "bf16":
        return 2 * elements
    return elements + _SCALE_BYTES * -(-elements // BLOCK)


def elements_in(precision: Precision, payload_bytes: int, itemsize: int = 4) -> int:
    """How many elements so many bytes are, the inverse of `encoded_bytes`; -1: no whole number of elements."""
    if precision == "float32":
        elements, odd = divmod(payload_bytes, itemsize)
    elif precision == "bf16":
        elements, odd = divmod(payload_bytes, 2)
    else:
        blocks, rest = divmod(payload_bytes, _FULL_BYTES)
        odd = 0 < rest <= _SCALE_BYTES
        elements = blocks * BLOCK + max(rest - _SCALE_BYTES, 0)
    return -1 if odd else elements
