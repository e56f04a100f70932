"""In which portions a payload is read.

Left alone, a kernel wakes a process for every packet or two that arrives: on a line that several neighbours share, half
a dozen times for each segment. To wake up costs more than to read. A process can say how much has to be there before
it is woken up (SO_RCVLOWAT); the end of the connection, and a window that is full, wake it all the same.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any

__all__ = ["Portions"]


class Portions:
    """Of what comes over one connection."""

    __slots__ = ("_awaited",)

    def __init__(self) -> None:
        self._awaited = 1
        """Bytes, as the kernel knows it."""

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
            with contextlib.suppress(OSError):  # it is gone
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, awaited)
