"""In which portions a payload is read.

Left alone, a kernel wakes a process for every packet or two that arrives: on a line that several neighbours share, half
a dozen times for each segment. To wake up costs more than to read. A process can say how much has to be there before
it is woken up (SO_RCVLOWAT); the end of the connection, and a window that is full, wake it all the same.

A line may at any time become so slow that what came in a moment takes a second. Whoever sends shows all that while
that it is alive: the kernel, which keeps what is too little, knows when the last of it has come.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable
from typing import Any, Final

from edgepeer.elapsed import elapsed

__all__ = ["Portions"]

_GONE: Final = contextlib.suppress(OSError)
_AGO: Final = struct.Struct("=52x I")
"""Of Linux' struct tcp_info: tcpi_last_data_recv, in milliseconds."""


class Portions:
    """Of what comes over one connection.

    Args:
        clock: seconds.
    """

    __slots__ = ("_awaited", "_came_at", "_clock")

    def __init__(self, clock: Callable[[], float] = elapsed) -> None:
        self._clock = clock
        self._awaited = 1
        """Bytes, as the kernel knows it."""
        self._came_at = float("-inf")
        """When something had last come, as was told."""

    def came(self, sock: Any, read_at: float | None) -> float | None:
        """When something of a payload has last come, read or not; None if not since this was last asked.

        Args:
            sock: the connection's.
            read_at: the same of what has been read.
        """
        at = self._came_at if read_at is None else read_at
        if self._awaited > 1:
            with contextlib.suppress(OSError, ValueError, AttributeError, struct.error):  # as in acknowledged.py
                (ago,) = _AGO.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _AGO.size))
                at = max(at, self._clock() - 1e-3 * ago)
        if at <= self._came_at:
            return None
        self._came_at = at
        return at

    def expect(self, sock: Any, missing: int, portion: int) -> None:
        """Wake up for so much, or for what is missing if that is less.

        Args:
            sock: the connection's.
            missing: bytes of a payload that are still to come; 0: whatever comes is to be read at once.
            portion: bytes.
        """
        awaited = max(min(missing, portion), 1)
        if awaited != self._awaited:
            self._awaited = awaited
            with _GONE:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, awaited)
