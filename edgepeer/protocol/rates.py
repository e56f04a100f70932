"""How fast a peer's links are, in both directions, and what follows for the segments it sends on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import inf

from edgepeer.ids import PeerId
from edgepeer.protocol.headers import Shape
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.segments import RateEstimate, segment_bytes

__all__ = ["Rates"]


class Rates:
    """Rates of the links with this view's neighbours. Each end measures what it receives and tells the other.

    Args:
        direct: whether a link is a connection, and does not go through a neighbour.
    """

    def __init__(self, limits: Limits, direct: Callable[[PeerId], bool] = lambda peer: True) -> None:
        self._limits = limits
        self._direct = direct
        self._receiving: dict[PeerId, RateEstimate] = {}
        self._sending: dict[PeerId, float] = {}
        self._hops = 0
        self._lanes = 1

    def keep(self, neighbours: Iterable[PeerId], hops: int, lanes: int = 1) -> None:
        """Another view. `hops`: links from the deepest leaf up to the root and down again. `lanes`: how many trees move
        at once."""
        self._hops, self._lanes = hops, lanes
        self._receiving = {peer: self._receiving.get(peer) or RateEstimate() for peer in neighbours}
        self._sending = {peer: rate for peer, rate in self._sending.items() if peer in self._receiving}

    def of(self, peer: PeerId) -> RateEstimate:
        """What this peer receives from a neighbour."""
        return self._receiving[peer]

    def told(self, peer: PeerId, bytes_per_s: float) -> None:
        """A neighbour says how fast it receives from this peer."""
        self._sending[peer] = bytes_per_s

    def segments(
        self, peer: PeerId, shape: Shape, sent: int, ready: int, sources: Iterable[PeerId] = ()
    ) -> Iterator[tuple[int, int]]:
        """The ranges [start, end) to send next to a neighbour when `sent` of `ready` elements are out (-1: none).
        `sources`: the neighbours that the rest comes from."""
        if sent >= ready:
            return
        sent -= sent % shape.block if sent > 0 else 0  # a neighbour says what it has
        size = segment_bytes(
            shape.wire_bytes,
            self._sending.get(peer, 0.0),
            self._hops,
            smallest=self._limits.smallest_segment_bytes,
            unknown=self._limits.first_segment_bytes,
            lanes=self._lanes,
            around=not self._direct(peer),
            pace_bytes_per_s=min(map(self._pace, sources), default=inf),
        )
        step = shape.step(size)
        while sent < ready:
            start = max(sent, 0)
            sent = min(start + step, ready)
            if sent - start < step and sent != shape.total:
                return  # the rest of this segment is still to come
            yield start, sent

    def _pace(self, peer: PeerId) -> float:
        estimate = self._receiving.get(peer)
        return estimate.pace_bytes_per_s if estimate is not None else inf
