"""What runs through a tunnel, in order.

    to send        | goes through the hops by turns, numbered: so none of them carries all of it
    what comes ... | so
    ---------------+---------------------------------------------------------------------------------------------
    in order       | is taken, and what waited for it
    too early      | waits: what is before it comes through another hop
    again          | is dropped
    before what a  | that has been lost on its way: each hop keeps to the order, and as many as the other end uses have
    hop has lost   | carried later ones. The tunnel is broken
    before what a  | waits for so long, and so much of it (a hop may carry on Knocks, and nothing else). The tunnel is
    hop keeps back | given up, and the next ones go through one hop

How many the other end uses goes with all that it sends: it may use one that is not known here yet, since the answer by
that one is slower than what was sent after it by another.

One hop is the broker, or one neighbour, or there are several neighbours.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from edgepeer.ids import PeerId
from edgepeer.wire.frames import Frame, Knock

__all__ = ["MOST_EARLY_BYTES", "MOST_HOPS", "Carried", "Tunnel"]

MOST_HOPS: Final = 4
"""Through how many neighbours at once, of whatever goes over several trees."""
MOST_EARLY_BYTES: Final = 16 << 20
"""More does not wait for what is before it ..."""
_FRAME_BYTES: Final = 1 << 10
"""... where a frame without payload counts as so many."""

Carried: TypeAlias = tuple[Frame, memoryview | bytes, float]
"""A frame that has come through a tunnel, its payload, and for how long that has been coming."""


class Tunnel:
    """A way to a peer without a connection.

    Args:
        number: by who has knocked.
        hop: through whom; None: the broker.
        opened: when it was agreed to, by the clock of who has.
        most: through how many neighbours it may go at once: no more than either end would have it.
        answer: what this end has agreed with; None: it has knocked.
        patience_s: how long what comes too early may wait for the same.
    """

    __slots__ = (
        "_bytes", "_early", "_last", "_missing", "_most", "_patience_s", "_since", "_through", "answer", "hops",
        "number", "opened", "overtaken", "received", "sent",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        hop: PeerId | None,
        opened: float,
        *,
        most: int = 1,
        answer: Knock | None = None,
        patience_s: float = float("inf"),
    ) -> None:
        self.number = number
        self.hops: list[PeerId | None] = [hop]
        self.opened = opened
        self._most = most
        self.answer = answer
        self.sent = self.received = 1  # the Knock and its answer
        self._early: dict[int, Carried] = {}
        self._last: dict[PeerId | None, int] = {}
        """The last of what waits, or has waited, by each hop."""
        self._through = 1
        """Through how many hops the other end has sent, at most."""
        self._bytes = 0
        self._patience_s = patience_s
        self._missing = 0
        """What others have overtaken ..."""
        self._since = 0.0
        """... and since when."""
        self.overtaken = False
        """Whether more waits than may, or for longer: one hop is much slower than another, or carries nothing on."""

    def renew(self) -> None:
        """Count from 1 again: nothing is under way."""
        self.sent = self.received = 1
        self._last.clear()

    @property
    def relayed(self) -> bool:
        """Whether it goes through the broker."""
        return self.hops[0] is None

    @property
    def path(self) -> str:
        return "relay" if self.relayed else "via " + "+".join(map(str, self.hops))

    def goes_through(self, hop: PeerId | None) -> bool:
        """Whether it does; None: the broker."""
        return hop in self.hops

    def go_also(self, hop: PeerId | None) -> None:
        """Go through this neighbour as well, if there may be more."""
        if hop is not None and hop not in self.hops and not self.relayed and len(self.hops) < self._most:
            self.hops.append(hop)

    def next_hop(self) -> tuple[int, PeerId | None]:
        """The number of what is sent now, and through whom it goes."""
        serial = self.sent
        self.sent += 1
        return serial, self.hops[serial % len(self.hops)]

    def put(self, hop: PeerId | None, serial: int, what: Carried, now: float, through: int = 1) -> bool:
        """That has come through a hop, one of as many as the other end uses by then. False: nothing more will, or it is
        `overtaken`."""
        if serial < self.received or serial in self._early:
            return True
        self._last[hop] = serial
        self._through = max(self._through, through)
        self._early[serial] = what
        self._bytes += len(what[1]) + _FRAME_BYTES
        if self.received in self._early:
            return True
        if self._missing != self.received:
            self._missing, self._since = self.received, now
        self.overtaken = self._bytes > MOST_EARLY_BYTES or now - self._since > self._patience_s
        passed = sum(last > self.received for last in self._last.values())
        return not self.overtaken and passed < self._through

    def take(self) -> Carried | None:
        """What is next, if it has come."""
        found = self._early.pop(self.received, None)
        if found is None:
            return None
        self.received += 1
        self._bytes -= len(found[1]) + _FRAME_BYTES
        if not self._early:
            self._last.clear()
            self._missing, self._since = 0, 0.0
        return found
