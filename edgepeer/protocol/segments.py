"""How large a segment should be on a link.

A vector of V bytes that goes through h links of rate r in segments of S bytes takes about
(V/S + h) * (S/r + c), where c is what each segment costs both ends. The minimum is at S = sqrt(V*r*c/h). On a
link so fast that the whole vector is through in a few milliseconds, segments cost more than they overlap
(all ends share the CPU with the trainer), so the vector stays whole; but not where a neighbour passes it on, which
begins to do so when a segment is there, over connections that begin slowly.

Where l trees move at once, a link has its share of a line, r/l or so, and in the time of a segment both ends handle one
of each tree: c counts l times. They are busy then, so it waits for them as long again: S = sqrt(2*l*V*r*c/h). Seven
peers on 100 Mbit/s, in seven trees, with this and without: 303 and 314 ms, and 200 and 257 ms of processor time.

What a peer passes on may come together much more slowly than its link could carry it, as from a child behind a slow
line. A segment is full only then, so that pace stands for the rate. It also shows where the rate is wrong: of small
segments with pauses between them each is read at once, as if it had come over a machine's own memory. Three peers in a
chain, 38,000 float32, the last of them behind 10 Mbit/s, with this and without: 171 and 286 ms.

Of l trees each brings its part of what the others bring meanwhile, so there a pace is slow if it is so l times over:
on lines that are alike it never is, and 15 peers in four trees took a tenth more processor time where it was taken for
slow, and no less time. Three of 15 leaves behind lines of a tenth, 100,000 float32 in four trees, simulated, with this
and without: 449 and 548 ms, of which one vector takes 333 there.
"""

from __future__ import annotations

from collections import deque
from math import inf, sqrt
from typing import Final

__all__ = ["MEASURABLE_BYTES", "WHOLE_BELOW_S", "RateEstimate", "segment_bytes"]

SEGMENT_COST_S: Final = 800e-6
WHOLE_BELOW_S: Final = 8e-3
FAST_BYTES_PER_S: Final = 64e6
"""A machine's own memory, or a network that carries a Gbit/s."""
_BUSY: Final = 2
_WAITS: Final = 4
"""What comes together so many times more slowly than a link carries it is waited for, not the link."""
_APART_S: Final = 1.0
"""Segments with a longer pause between them are of different rounds: one may have been given up."""
LARGEST_BYTES: Final = 4 << 20
MEASURABLE_BYTES: Final = 16 << 10


def segment_bytes(
    total_bytes: int,
    rate_bytes_per_s: float,
    hops: int,
    *,
    smallest: int,
    unknown: int,
    lanes: int = 1,
    around: bool = False,
    pace_bytes_per_s: float = inf,
) -> int:
    """Segment size for a vector on a link.

    Args:
        total_bytes: size of the vector.
        rate_bytes_per_s: measured rate of the link, 0 when unknown.
        hops: links from the deepest leaf up to the root and down again.
        smallest: the least size, a multiple of 8 bytes.
        unknown: the size to begin with while the rate is unknown, a multiple of 8 bytes.
        lanes: how many trees move at once, each with a vector of that size.
        around: the link goes through a neighbour.
        pace_bytes_per_s: how fast that comes together which is to be sent.

    Returns:
        A multiple of 8 bytes.
    """
    if rate_bytes_per_s <= 0:
        return unknown
    if _WAITS * lanes * pace_bytes_per_s < min(rate_bytes_per_s, FAST_BYTES_PER_S):
        rate_bytes_per_s = pace_bytes_per_s
    fast = rate_bytes_per_s >= FAST_BYTES_PER_S and not around
    if fast and total_bytes <= rate_bytes_per_s * WHOLE_BELOW_S:
        return max(total_bytes + 7 & ~7, smallest)
    cost_s = SEGMENT_COST_S * (_BUSY * lanes if lanes > 1 else 1)
    best = sqrt(total_bytes * rate_bytes_per_s * cost_s / max(hops, 1))
    return int(max(min(best, LARGEST_BYTES), smallest)) & ~7


class RateEstimate:
    """How fast a neighbour's segments come: the best of the last rounds, as a busy receiver only ever looks slower."""

    __slots__ = ("_bytes", "_paces", "_rates", "_seconds", "_since", "_until", "bytes_per_s", "pace_bytes_per_s")

    def __init__(self) -> None:
        self.bytes_per_s = 0.0
        """While they do; 0 while unknown."""
        self.pace_bytes_per_s = inf
        """From the first to the last, with all pauses between them; infinite while unknown."""
        self._rates: deque[float] = deque(maxlen=8)
        self._paces: deque[float] = deque(maxlen=8)
        self._bytes = 0
        self._seconds = 0.0
        self._since = self._until = inf

    def add(self, payload_bytes: int, seconds: float, now: float) -> None:
        """A segment has arrived, within the last seconds. One long after those before it is of another round."""
        if now - seconds - self._until > _APART_S:
            self._bytes, self._seconds, self._since = 0, 0.0, inf
        self._bytes += payload_bytes
        self._seconds += seconds
        self._since, self._until = min(self._since, now - seconds), now

    def close_round(self) -> None:
        """All of a round's segments have arrived."""
        if self._bytes >= MEASURABLE_BYTES:
            self._rates.append(self._bytes / max(self._seconds, 1e-6))
            self.bytes_per_s = max(self._rates)
            self._paces.append(self._bytes / max(self._until - self._since, 1e-6))
            self.pace_bytes_per_s = max(self._paces)
        self._bytes, self._seconds, self._since = 0, 0.0, inf
