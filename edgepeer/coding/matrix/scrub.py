"""Scrubbing: find stored weights that are wrong before anything reads them.

A wrong weight times a zero (a relu's output, a black pixel) changes no product, so training's own checks may not see it
for hundreds of iterations. Meanwhile others join it, until they are more than the code corrects. Dense inputs leave
nothing unread. Coded weights are a word of a linear code, block by block. So their products with the *same* vectors
are one as well:

    y_p = (W~_p R, L W~_p),   R: three random columns, L: three random rows,   y = G X,

with the generator G of the weights' own code. Nothing has to be encoded, and that code has fewer symbols than the
products of training have, so it corrects more. Each node computes y_p alone, from a seed that all share, and sends
3 (rows + columns) numbers: forward products see what errs along a row, backward ones along a column.

**What it sees.** R and L have random signs and sizes between 1/2 and 1. So a weight that is off by e moves six numbers
by e/2 at least, and several wrong weights cancel with probability 0. The products are computed in float64, whatever the
weights are: what remains is how the weights themselves were rounded, when they were coded and in each update since.
That is `tolerance.relative_noise(blocks of W, dtype, updates)`, as a part of the largest number in y, which grows like
sqrt(columns). So less is seen of wide blocks, and after many updates. With 12 blocks of float32, 1000 x 1000, a scrub
finds flips of signs, of exponents and of the mantissa's bit 22, unless the weight was next to nothing; of bits 21 and
20 all before training, and four of five after 2000 updates. What stays unseen is a small error in one weight.

Three of each, since one alone could have its 1/2 where the error is.

Dutta et al., "CodeNet", check weights by training's own products only; scrubbing is known from memories with
error-correcting codes (Saleh, Serrano, Patel 1990, "Reliability of scrubbing recovery-techniques for memory systems").
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["PROBES", "probe"]

PROBES: Final = 3
"""Vectors on each side."""


def probe(blocks: NDArray[Any], seed: int) -> NDArray[Any]:
    """y of these nodes: their blocks' products with the vectors of this seed.

    Args:
        blocks: coded weights, shape (nodes, rows, columns); one node's with shape (1, rows, columns). Float32, float64
            or complex ones of these precisions.
        seed: the same at all nodes; another in each scrub.

    Returns:
        Shape (nodes, 3 (rows + columns)), float64 or complex128: W~ R, then L W~.
    """
    _, rows, columns = blocks.shape
    rng = np.random.default_rng(seed)
    right, left = _dense(rng, columns), _dense(rng, rows)
    out = [np.concatenate([exact @ right, exact.T @ left]).ravel() for exact in map(_in_double, blocks)]
    return np.stack(out)


def _in_double(block: NDArray[Any]) -> NDArray[Any]:
    """One at a time: blocks of float32 may fill the memory."""
    return block.astype(np.result_type(block.dtype, np.float64), copy=False)


def _dense(rng: np.random.Generator, size: int) -> NDArray[np.float64]:
    """Vectors without small numbers, shape (size, 3)."""
    sizes = rng.uniform(0.5, 1.0, (size, PROBES))
    return np.asarray(np.where(rng.random((size, PROBES)) < 0.5, -sizes, sizes))
