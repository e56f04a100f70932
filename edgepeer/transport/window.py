"""How much may be under way to this peer.

Left alone, most kernels' TCP fills the queues on its way: often a tenth of a second, in every one. The
acknowledgements and heartbeats that a peer sends up wait there behind the vectors that come down, so round trips take a
multiple of what they should, and retransmission timers go off for nothing. A receiver can prevent that: it knows how
fast all its neighbours together can send to it, and lets them have no more under way than half as much again as the
path holds at that rate, an equal share each; but each at least half of what the path holds. For many neighbours, those
of several trees, send by turns more than all at once: any two of them can fill the line.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

__all__ = ["ReceiveWindows"]

_SPAN_S: Final = 0.02
"""The rate is measured over so long at a time ..."""
_GAP_S: Final = 0.01
"""... in which nothing is longer in coming than this ..."""
_KEPT: Final = 64
"""... and the best of so many counts: whatever is in the way only makes it look slower."""
_LOOK_AFTER: Final = 8
"""Windows are set anew after so many spans."""
_CROWDS: Final = 8
_GAIN: Final = 1.5
"""Room to find out that there is more."""
_SOONEST_S: Final = 0.005
"""Round trips count as no shorter than this: how late a busy machine may read."""
_ALONE: Final = 0.5
"""What part of the path is left to each, however many they are."""
_LEAST_BYTES: Final = 16 << 10
"""A dozen packets: enough for acknowledgements not to be held back, and 13 ms of a line of 10 Mbit/s."""
_MOST_BYTES: Final = 1 << 30
_PORTION_S: Final = 0.003
"""What comes within this time is worth being woken up for ..."""
_PART: Final = 2
"""... and so is this part of a window: who sends has room for the rest meanwhile ..."""
_PART_OF_BUFFER: Final = 2
"""... and this one of what the kernel keeps. It makes that larger for more, and older ones (5.10) the window as narrow
as what is waited for: then who sends would have to wait until that is read."""
_MIN_RTT_AT: Final = 148
"""Where tcpi_min_rtt stands in Linux' struct tcp_info, in microseconds."""


class ReceiveWindows:
    """The windows of all connections of one peer, by what comes over them.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rates: deque[float] = deque(maxlen=_KEPT)
        self._crowds: deque[int] = deque(maxlen=_CROWDS)
        """How many have sent at once, each of the last times that was looked at."""
        self._senders: dict[Any, None] = {}
        self._portions: dict[Any, int] = {}
        self._spans = 0
        self._bytes = 0
        self._since = self._last = float("-inf")

    def received(self, sock: Any, count: int) -> None:
        """So many bytes of a vector have been read from a connection."""
        now = self._clock()
        if now - self._last > _GAP_S:
            self._bytes, self._since = 0, now
        else:
            self._bytes += count
        self._last = now
        self._senders[sock] = None
        if now - self._since >= _SPAN_S:
            self._rates.append(self._bytes / (now - self._since))
            self._bytes, self._since = 0, now
            self._spans += 1
            if self._spans % _LOOK_AFTER == 0:
                self._set()

    def forget(self, sock: Any) -> None:
        """The connection is gone."""
        self._senders.pop(sock, None)
        self._portions.pop(sock, None)

    def portion(self, sock: Any) -> int:
        """How many bytes of what comes over a connection are worth being woken up for; 0: any."""
        return self._portions.get(sock, 0)

    def _set(self) -> None:
        self._crowds.append(len(self._senders))
        rate = max(self._rates)
        share = rate * max(_GAIN / max(self._crowds), _ALONE)
        for sock in self._senders:
            with contextlib.suppress(OSError, struct.error):  # it is gone, or this kernel tells less
                info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MIN_RTT_AT + 4)
                (microseconds,) = struct.unpack_from("=I", info, _MIN_RTT_AT)
                width = round(share * max(1e-6 * microseconds, _SOONEST_S))
                width = min(max(width, _LEAST_BYTES), _MOST_BYTES)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, width)
                buffer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
                self._portions[sock] = min(round(rate * _PORTION_S), width // _PART, buffer // _PART_OF_BUFFER)
        self._senders.clear()
