"""Randomness that every device computes alike: permutations and uniform numbers as pure functions of a key.

Peers agree on who trains on which sample without sending a list around, so the numbers must not depend on
the machine or on NumPy's version. NumPy promises that for the raw output of its bit generators, not for
`Generator.permutation` and its kin; so everything here is made of raw bits.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

__all__ = ["bits", "permutation", "uniform"]


def bits(count: int, *key: int | str) -> NDArray[np.uint64]:
    """`count` random 64-bit words, shape (count,). Other keys give independent words."""
    text = "/".join(str(part) for part in key)
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    words: NDArray[np.uint64] = np.random.PCG64(int.from_bytes(digest, "little")).random_raw(count)
    return words


def permutation(count: int, *key: int | str) -> NDArray[np.int64]:
    """0 to count-1 in random order, shape (count,)."""
    return np.argsort(bits(count, *key), kind="stable").astype(np.int64, copy=False)


def uniform(count: int, limit: float, *key: int | str) -> NDArray[np.float32]:
    """Numbers from [-limit, limit), shape (count,)."""
    # A float32 has 24 bits of precision: this many, and the product is exact before the last line.
    unit = (bits(count, *key) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1.0)
    return unit * np.float32(limit)
