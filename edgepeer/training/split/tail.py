"""What stands at the end of each vector: how nodes tell what they hold, and how damage on the way is found.

    lines * numbers       the slots of the lines
    2 * lines             of each line, two sums over its numbers z_k: of r_k z_k, and of |z_k|
    2 * nodes             of each node, the digest of what it goes on from

*Digests.* Node p's has 48 bits in two whole numbers below 2^24, which float32 has exactly, in slots that nobody else
adds to. So the tree's sum has the digests of all, bit by bit, and no round is needed to compare. They are of what was
decoded, applied and judged in the round before, and of what is to come next. Who differs from the majority goes on from
wrong numbers. Its contribution counts as lost, which costs half of what a wrong one costs, and it does its last step
again, from the sum that it still has. The round after the last activation is before the update, so no wrong state
gets into weights this way. Who has no blocks, or is not there, leaves zeros, which are no digest. Who is there alone is
its own majority, right or wrong: such rounds are counted, as those that nobody could check.

Digests are of bits: machines whose libraries round differently would all differ. A fleet of such must not compare.

*Sums.* Everything in a vector is added up on the way, so a line's sum of r_k z_k, r_k = +-1 drawn at random, must be
that of what arrives. Where it isn't, an inner peer has spoiled a partial sum: that line is an erasure, whatever is
wrong in it. What a node computed wrong itself agrees, and is for the code. Rounding: a line has so many members, and a
number is rounded once in each addition, by u times a partial sum, which is at most the sum of |z_k|, call it A. So are
the checksums. Together they differ by at most

    2 (members + 1) u A,     and are compared with twice that.

That is certain, not likely. What is less is left to the code, as an error. NaN and infinity compare with nothing, and
are left to it, too.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from math import inf
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from edgepeer.errors import Undecodable

__all__ = ["ABSENT", "WORDS", "Digest", "checksums", "common_digest", "damaged_lines", "digest_of", "digests_in"]

Digest = tuple[int, int]

WORDS: Final = 2
"""Numbers of a digest, and of a line's checksums."""
ABSENT: Final[Digest] = (0, 0)
"""Instead of a digest."""
_WORD: Final = (1 << 24) - 1


def digest_of(*parts: NDArray[Any] | str) -> Digest:
    """48 bits of the xxHash of all of them, never `ABSENT`."""
    state = xxhash.xxh3_64()
    for part in parts:
        state.update(part.encode() if isinstance(part, str) else np.ascontiguousarray(part).data)
    value = state.intdigest()
    return value & _WORD | 1, value >> 24 & _WORD


def digests_in(tail: NDArray[Any]) -> list[Digest]:
    """Of each node, what it has said, or `ABSENT`. tail: shape (2 nodes,)."""
    return [(one, other) for one, other in tail.reshape(-1, WORDS).tolist()]


def common_digest(digests: list[Digest]) -> Digest:
    """The majority's, of those who have said something.

    Raises:
        Undecodable: no digest is that of more than half of them.
    """
    if digests and digests[0] != ABSENT and digests.count(digests[0]) == len(digests):
        return digests[0]  # nearly always
    there = [digest for digest in digests if digest != ABSENT]
    if not there:
        raise Undecodable("no node is there")
    common, count = Counter(there).most_common(1)[0]
    if 2 * count <= len(there):
        raise Undecodable(f"only {count} of {len(there)} nodes agree on what they decoded: there is no majority")
    return common


def checksums(numbers: NDArray[Any]) -> tuple[float, float]:
    """Of a part of a line, as its contributor has it, shape (numbers,)."""
    exact = numbers.astype(np.float64)
    signed = float(_signs(len(exact)) @ exact)
    return signed, float(np.abs(exact, out=exact).sum())


def damaged_lines(rows: NDArray[Any], sums: NDArray[Any], members: int) -> tuple[int, ...]:
    """The lines that aren't the sums of what was contributed.

    Args:
        rows: shape (lines, numbers).
        sums: shape (lines, 2), what was added up of `checksums`.
        members: how many have contributed to a line, at most.
    """
    exact = rows.astype(np.float64)
    part = 2 * (members + 1) * _epsilon(rows.dtype)
    found = (exact @ _signs(rows.shape[1])).tolist()
    damaged = []
    for line, (sum_, (said, size)) in enumerate(zip(found, sums.tolist(), strict=True)):
        off = abs(sum_ - said)
        # What came may be larger than what was said to be contributed: then so is its rounding.
        if part * abs(size) < off < inf and size < inf and off > part * float(np.abs(exact[line]).sum()):
            damaged.append(line)
    return tuple(damaged)


@lru_cache(maxsize=4)
def _epsilon(dtype: np.dtype[Any]) -> float:
    return float(np.finfo(dtype).eps)


@lru_cache(maxsize=16)
def _signs(numbers: int) -> NDArray[np.float64]:
    return np.asarray(np.random.default_rng(numbers).choice((-1.0, 1.0), numbers))
