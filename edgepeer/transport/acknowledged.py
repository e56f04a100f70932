"""Whether the network still takes what is sent.

A peer's kernel acknowledges what arrives within a round trip, whatever the peer itself is busy with. So whoever sends
over a path that is broken can know that long before heartbeats are missed, which wait behind vectors in the sender's
own buffers. Silence is what counts while something is under way; what a receiver doesn't read isn't.
"""

from __future__ import annotations

import socket
import struct
from typing import Any, Final

__all__ = ["Acknowledgements"]

_WATCHED_S: Final = 0.03
"""More than this between two looks says nothing: whoever was kept from looking may have been kept from hearing ..."""
_ASLEEP_S: Final = 0.1
"""... and of more than this nothing counts: the machine may have been stopped, with its kernel."""
_TRIPS: Final = 3
"""Where the last packets of several are lost, TCP asks for them after two round trips (RFC 8985, 7.2)."""
_DELAYED_S: Final = 0.04
"""For how long Linux holds back the acknowledgement of a single packet, to send it with others."""
_FADES: Final = 0.99
"""What is left, at the next acknowledgement, of how long one has been in coming."""
_INFO: Final = struct.Struct("=24x I 40x II 68x I 44x I")
"""Of Linux' struct tcp_info: tcpi_unacked, tcpi_rtt, tcpi_rttvar, tcpi_notsent_bytes and tcpi_delivered. That counts
packets, those too that have arrived behind one that was lost."""


class Acknowledgements:
    """Looks after what one connection's other end acknowledges."""

    __slots__ = ("_alone", "_delivered", "_longest", "_looked_at", "_since", "_waits")

    def __init__(self) -> None:
        self._waits = False
        """Whether something may be under way."""
        self._alone = False
        """Whether a single packet was under way."""
        self._delivered = -1
        self._since: float | None = None
        """From when on nothing has been acknowledged, while something was under way."""
        self._looked_at = 0.0
        self._longest = 0.0
        """How long an acknowledgement has been in coming of late."""

    def sent(self) -> None:
        """Something is sent over the connection."""
        self._waits = True

    def missing(self, sock: Any, now: float, *, queued: bool) -> tuple[float, float] | None:
        """From when on nothing has been acknowledged of what is under way, and how long that takes on this path at
        most, in seconds; None if nothing is under way. To be asked often.

        Args:
            sock: the connection's.
            now: by time.monotonic().
            queued: whether there is more to send that the kernel hasn't taken yet.
        """
        if not self._waits:
            return None
        looked_at, self._looked_at = self._looked_at, now
        try:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
            unacked, trip, variation, unsent, delivered = _INFO.unpack(info)
        except (OSError, ValueError, struct.error):  # it is gone, uvloop's another way, or this kernel tells less
            self._waits = False
            return None
        if not unacked or delivered != self._delivered or self._since is None:
            if self._since is not None:
                self._longest = max(looked_at - self._since, _FADES * self._longest)
            self._since, self._delivered = now if unacked else None, delivered
            self._waits = bool(unacked or unsent or queued)
        elif self._alone and unacked > 1:
            self._since = now  # it may be that packet alone that is lost: what has come behind it will tell
        else:
            gap = now - looked_at
            self._since += gap if gap > _ASLEEP_S else max(gap - _WATCHED_S, 0.0)
        self._alone = unacked == 1
        since = now if self._since is None else self._since
        trip_s, varies_s = 1e-6 * trip, 4e-6 * variation
        within = max(_TRIPS * trip_s, trip_s + self._longest) + varies_s + (_DELAYED_S if self._alone else 0.0)
        return (since, within) if self._waits else None
