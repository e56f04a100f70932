"""Another congestion control where packets get lost.

cubic and reno take every lost packet for a full queue and slow down: on a path that loses one in a hundred for other
reasons, such as a bad radio link, to a fraction of what it carries. bbr goes by what arrives. On a clean path it stops
now and then (options.py), so a connection gets there only when it loses packets. Kernels let an ordinary user choose
only what `net.ipv4.tcp_allowed_congestion_control` names: where bbr is not among it, nothing changes.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Any, Final

__all__ = ["LossWatch"]

_LOOK_AFTER: Final = 8
"""Segments of vectors that are sent between two looks at a connection."""
_ENOUGH: Final = 1000
"""Packets that have to have been sent for their losses to say something ..."""
_LOSSY: Final = 0.003
"""... if it is more than this part of them; or that part of so many is lost before they have been sent: of many trees
each sends few packets a round, and until then rounds are slow."""
_RETRANSMITTED_AT: Final = 100
"""Where tcpi_total_retrans stands in Linux' struct tcp_info ..."""
_SENT_AT: Final = 156
"""... and tcpi_data_segs_out."""


class LossWatch:
    """Looks after one connection's losses, as its sender."""

    __slots__ = ("_retransmitted", "_sends", "_sent")

    def __init__(self) -> None:
        self._sends = 0
        self._sent = self._retransmitted = 0
        """Of the connection, when the present count began."""

    def sending(self, sock: Any) -> None:
        """A segment of a vector is sent over the connection."""
        self._sends += 1
        if self._sends % _LOOK_AFTER:
            return
        with contextlib.suppress(OSError, struct.error):  # it is gone, or this kernel tells less, or does not let us
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SENT_AT + 4)
            (sent,) = struct.unpack_from("=I", info, _SENT_AT)
            (retransmitted,) = struct.unpack_from("=I", info, _RETRANSMITTED_AT)
            lossy = retransmitted - self._retransmitted > _LOSSY * max(sent - self._sent, _ENOUGH)
            if sent - self._sent < _ENOUGH and not lossy:
                return
            self._sent, self._retransmitted = sent, retransmitted
            if lossy:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
