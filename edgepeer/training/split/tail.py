"""How nodes tell each other what they hold, at the end of each vector.

The last 2 P numbers of a vector are P digests: of what node p decoded, applied and judged in the round before. Each has
48 bits in two whole numbers below 2^24, which float32 has exactly, in slots that nobody else adds to. So the tree's sum
has the digests of all, bit by bit, and no round is needed to compare. It lags by one step.

Who differs from the majority goes on from wrong numbers. Its contribution counts as lost, which costs half of what a
wrong one costs, and it does its last step again, from the sum that it still has. Nothing has to be sent. The round
after the last activation is before the update, so no wrong state gets into weights this way.

Digests are of bits: machines whose libraries round differently would all differ. A fleet of such must not compare.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from edgepeer.errors import Undecodable

__all__ = ["WORDS", "Digest", "digest_of", "odd_nodes"]

Digest = tuple[int, int]

WORDS: Final = 2
"""Numbers of a digest."""
_WORD: Final = (1 << 24) - 1


def digest_of(*parts: NDArray[Any] | str) -> Digest:
    """48 bits of the xxHash of all of them."""
    state = xxhash.xxh3_64()
    for part in parts:
        if isinstance(part, str):
            state.update(part.encode())
        else:
            state.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
    value = state.intdigest()
    return value & _WORD, value >> 24 & _WORD


def odd_nodes(tail: NDArray[Any], missing: Collection[int]) -> tuple[int, ...]:
    """The nodes whose digest isn't the majority's, ascending.

    Args:
        tail: shape (2 P,).

    Raises:
        Undecodable: no digest is that of more than half of those who are there.
    """
    rows = tail.reshape(-1, WORDS).tolist()
    there = [node for node in range(len(rows)) if node not in missing]
    common, count = Counter(tuple(rows[node]) for node in there).most_common(1)[0]
    if 2 * count <= len(there):
        raise Undecodable(f"only {count} of {len(there)} nodes agree on what they decoded: there is no majority")
    return tuple(node for node in there if tuple(rows[node]) != common)
