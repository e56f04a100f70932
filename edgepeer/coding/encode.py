"""Encoding and expanding of gradients, at about the speed of memory.

Blocks of a vector are interleaved: block k of `blocks` is every `blocks`-th element from the k-th on, g[k::blocks]. Any
partition into equal parts does for the code (Ramamoorthy, Meng, Girimaji 2024, §II); of this one, a front part of an
encoded vector belongs to a front part of the sum, so it can be added up while the rest is still on its way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["encode", "expand", "padded"]

_PIECE: Final = 1 << 14
"""Rows at a time: what is added up stays in the processor's cache."""


def padded(size: int, blocks: int) -> int:
    """The least multiple of `blocks` that is not below `size`."""
    return -(-size // blocks) * blocks


def encode(gradients: Sequence[NDArray[Any]], coefficients: NDArray[Any]) -> NDArray[Any]:
    """One worker's vector.

    Args:
        gradients: vectors of one float dtype, shape (size,) each, size a multiple of `blocks`; at least one.
        coefficients: shape (len(gradients), blocks); a row of zeros leaves its gradient out.

    Returns:
        The sum over i and k of coefficients[i, k] * block k of gradients[i], shape (size // blocks,).
    """
    blocks = coefficients.shape[1]
    dtype = gradients[0].dtype
    out = np.zeros(gradients[0].size // blocks, dtype)
    used = [(g, row) for g, row in zip(gradients, coefficients.astype(dtype), strict=True) if row.any()]
    if blocks == 1:
        for gradient, row in used:
            out += gradient * row[0]
        return out
    scratch = np.empty(min(out.size, _PIECE), dtype)
    for start in range(0, out.size, _PIECE):
        piece = out[start : start + _PIECE]
        for gradient, row in used:
            product = scratch[: piece.size]
            np.dot(gradient.reshape(-1, blocks)[start : start + _PIECE], row, out=product)
            piece += product
    return out


def expand(narrow: NDArray[Any], column: NDArray[Any], out: NDArray[Any]) -> None:
    """Add column[k] * narrow to block k of `out`, shape (len(narrow) * len(column),), for all k; in place."""
    rows = out.reshape(-1, len(column))
    for block, weight in enumerate(column.astype(narrow.dtype)):
        rows[:, block] += narrow * weight
