"""Whether the network still takes what is sent.

A peer's kernel acknowledges what arrives within a round trip, whatever the peer itself is busy with. So whoever sends
over a path that is broken can know that long before heartbeats are missed, which wait behind vectors in the sender's
own buffers. Silence is what counts while something is under way; what a receiver doesn't read isn't.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Any, Final

from edgepeer.elapsed import elapsed

__all__ = ["Acknowledgements"]

_WATCHED_S: Final = 0.03
"""More than this between two looks says nothing: whoever was kept from looking may have been kept from hearing ..."""
_ASLEEP_S: Final = 0.1
"""... and of more than this nothing counts: the machine may have been stopped, with its kernel."""
_TRIPS: Final = 3
"""Where the last packets of several are lost, TCP asks for them after two round trips (RFC 8985, 7.2)."""
_FLIGHT: Final = 8
"""Of so many packets that go out together, on a path that is whole, the first are not lost, whatever becomes of the
last in a queue that is full; nor can their acknowledgements be held back. So one comes in a round trip; two, for a path
may have become longer."""
_DELAYED_S: Final = 0.04
"""For how long Linux holds back the acknowledgement of a single packet, or of several that would fit into one, to send
it with others; unless the process at that end asks for it, which it does when it gets to it (connection.py)."""
_FADES: Final = 0.99
"""What is left, at the next acknowledgement, of how long one has been in coming."""
_INFO: Final = struct.Struct("=16x I 4x I 40x II 44x Q 16x I 44x I 4x QQ")
"""Of Linux' struct tcp_info: tcpi_snd_mss, tcpi_unacked, tcpi_rtt, tcpi_rttvar, tcpi_bytes_acked, tcpi_notsent_bytes,
tcpi_delivered, tcpi_bytes_sent and tcpi_bytes_retrans. tcpi_delivered counts packets, those too that have arrived
behind one that was lost."""


class Acknowledgements:
    """Looks after what one connection's other end acknowledges.

    Args:
        clock: seconds.
    """

    __slots__ = (
        "_began", "_behind", "_clock", "_delivered", "_flight", "_held_s", "_longest", "_looked_at", "_since",
        "_unacked", "_waits",
    )  # fmt: skip

    def __init__(self, clock: Callable[[], float] = elapsed) -> None:
        self._clock = clock
        self._waits = False
        """Whether something may be under way."""
        self._began: float | None = None
        """When the first was sent of what has been since the last look ..."""
        self._behind = False
        """... unless something was to go before it that the kernel had not sent: then nobody knows when it went."""
        self._unacked = 0
        """How many packets were."""
        self._delivered = -1
        self._since: float | None = None
        """From when on nothing has been acknowledged, while something was under way ..."""
        self._flight: float | None = None
        """... of many packets that went out together."""
        self._held_s = 0.0
        """How much of the time for which an acknowledgement may be held back was over by then."""
        self._looked_at = 0.0
        self._longest = 0.0
        """How long an acknowledgement has been in coming of late."""

    def sent(self) -> None:
        """Something is sent over the connection."""
        self._waits = True
        if self._began is None:
            self._began = self._clock()

    def missing(self, sock: Any, now: float, *, queued: bool) -> tuple[float, float] | None:
        """From when on nothing has been acknowledged of what is under way, and how long that takes on this path at
        most, in seconds; None if nothing is under way. To be asked often.

        Args:
            sock: the connection's.
            now: by elapsed().
            queued: whether there is more to send that the kernel hasn't taken yet.
        """
        if not self._waits:
            return None
        looked_at, self._looked_at = self._looked_at, now
        try:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
            mss, unacked, trip, variation, acked, unsent, delivered, sent, again = _INFO.unpack(info)
        except (OSError, ValueError, struct.error):  # it is gone, uvloop's another way, or this kernel tells less
            self._waits, self._began = False, None
            return None
        went = now if self._began is None or self._behind else max(self._began, now - _WATCHED_S)
        self._began, self._behind = None, bool(unsent or queued)
        before, self._unacked = self._unacked, unacked
        gap = now - looked_at
        unseen = gap if gap > _ASLEEP_S else max(gap - _WATCHED_S, 0.0)
        # Whether nothing is acknowledged but what was under way at the last look: then all else has gone out since.
        fresh = delivered - self._delivered & 0xFFFFFFFF <= before
        if not unacked or delivered != self._delivered or self._since is None:
            if self._since is not None:
                self._longest = max(looked_at - self._since, _FADES * self._longest)
            self._since, self._delivered, self._flight = now if unacked else None, delivered, None
            self._held_s = 0.0
            self._waits = bool(unacked or unsent or queued)
        elif before == 1 < unacked:
            # It may be that packet alone that is lost: what has come behind it will tell, in a trip. That is not held
            # back, unless that packet is there, and for no longer than its own acknowledgement.
            self._since, self._held_s = now, min(max(now - self._since - unseen, 0.0), _DELAYED_S)
        else:
            self._since += unseen
            if self._flight is not None:
                self._flight += unseen
        if not self._waits:
            return None
        if fresh and unacked >= _FLIGHT > before:
            self._flight = went
        since = now if self._since is None else self._since
        trip_s, varies_s = 1e-6 * trip, 4e-6 * variation
        held_back = unacked == 1 or sent - again - acked <= mss
        delayed_s = _DELAYED_S - self._held_s if held_back else 0.0
        within = max(_TRIPS * trip_s, trip_s + self._longest) + varies_s + delayed_s
        together = max(2 * trip_s, self._longest) + varies_s
        if self._flight is not None and self._flight + together < since + within:
            return self._flight, together
        return since, within
