"""The connections of a simulated peer: at most one for each other peer, whoever opened it.

The same rules as in the real one: a newer connection replaces the older, except where both ends have dialled
each other at once; then the one that the smaller id opened stays.
"""

from __future__ import annotations

from typing import Final

from edgepeer.ids import PeerId
from edgepeer.protocol import events as ev
from edgepeer.simulation.connection import End, Owner
from edgepeer.simulation.network import Network
from edgepeer.wire.frames import Frame

__all__ = ["Lines"]

CROSSING_S: Final = 2.0
"""Two connections made within this time may be two peers who dialled each other at once."""


class Lines:
    """Connections by peer."""

    def __init__(self, network: Network, owner: Owner) -> None:
        self._network = network
        self._owner = owner
        self._ends: dict[PeerId, End] = {}
        self._dialling: set[PeerId] = set()

    def get(self, peer: PeerId) -> End | None:
        return self._ends.get(peer)

    def send(self, peer: PeerId, frame: Frame, payload: memoryview | bytes | None) -> int:
        """Send over the connection to a peer, if there is one. Returns the bytes sent."""
        end = self._ends.get(peer)
        return end.send(frame, payload) if end is not None else 0

    def dial(self, peer: PeerId) -> None:
        """LinkUp or DialFailed follows, unless a connection arrives meanwhile."""
        if peer not in self._dialling:
            self._dialling.add(peer)
            self._network.dial(self._owner, peer)

    def hang_up(self, peer: PeerId, reason: str, *, abrupt: bool = False) -> None:
        """Close the connection to a peer, if there is one: no LinkDown follows."""
        end = self._ends.pop(peer, None)
        if end is not None:
            if abrupt:
                end.abort()
            else:
                end.close(reason)

    def hang_up_all(self, reason: str) -> None:
        for peer in sorted(self._ends):
            self.hang_up(peer, reason)

    def receiving(self) -> list[PeerId]:
        """The peers of whom a part of a frame has just come."""
        return sorted([peer for peer, end in self._ends.items() if end.receiving])

    # -- what the network tells --------------------------------------------------------------------------------

    def dial_failed(self, peer: PeerId, reason: str, refused: bool = False) -> None:
        """A dial that this peer had begun came to nothing."""
        self._dialling.discard(peer)
        if peer not in self._ends:
            self._owner.receive(ev.DialFailed(peer, reason, refused))

    def introduced(self, end: End, incarnation: int) -> None:
        """Who is at the other end of a connection has said so."""
        peer = end.other
        if end.dialled:
            self._dialling.discard(peer)
        old = self._ends.get(peer)
        if old is not None and self._keeps(old, end):
            end.close("another connection is in use")
            return
        if old is not None:
            del self._ends[peer]
            old.close("replaced by a newer connection")
            self._owner.receive(ev.LinkDown(peer, "replaced by a newer connection"))
        self._ends[peer] = end
        self._owner.receive(ev.LinkUp(peer, incarnation, end.dialled))

    def _keeps(self, old: End, new: End) -> bool:
        if (new.met_at or 0.0) - (old.met_at or 0.0) > CROSSING_S or old.dialled == new.dialled:
            return False
        opened_by_us_stays = self._owner.id < new.other
        return old.dialled == opened_by_us_stays

    def ended(self, end: End, reason: str) -> None:
        """A connection is gone, not by this peer's own will."""
        if end.met_at is None and end.dialled:
            self.dial_failed(end.other, reason)
        elif self._ends.get(end.other) is end:
            del self._ends[end.other]
            self._owner.receive(ev.LinkDown(end.other, reason))
