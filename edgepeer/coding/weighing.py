"""What a chunk counts for, at the end of its vector: the weight of a sum is what the sum itself holds.

A vector is rows of l numbers, one of each block. Of a chunk that only D < l workers have computed, a sum holds P z
instead of each row z, where P projects on the columns of these D (`partial.py`). The weight b is l rows, b e_1 to
b e_l: of those it holds P b row by row, and the l-th part of the trace is b D / l, whoever the workers are. A single
row (b, ..., b) would say b 1'P1 / l, and that may be next to nothing, or l times as much.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["weight_in", "weight_rows"]


def weight_rows(weight: float, blocks: int) -> NDArray[np.float64]:
    """What to put at the end of a chunk's vector, shape (blocks * blocks,)."""
    return (weight * np.eye(blocks)).ravel()


def weight_in(rows: NDArray[Any], blocks: int) -> float:
    """What a sum counts for, of which that is the end, shape (blocks * blocks,)."""
    return float(rows.reshape(blocks, blocks).diagonal().mean())
