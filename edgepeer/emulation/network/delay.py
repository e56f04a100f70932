"""Delays what ports send, where the kernel can't: starts the pump and gives it their frames."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Final

from edgepeer.emulation.network.firewall import Firewall
from edgepeer.emulation.network.lan import Port
from edgepeer.emulation.network.pump import ORDER
from edgepeer.processes import dies_with_parent

__all__ = ["DelayLines"]

_OUTLET: Final = "delayed"
_TUNSETIFF: Final = 0x400454CA
_IFF_TAP: Final = 0x0002
_IFF_NO_PI: Final = 0x1000
_IFF_VNET_HDR: Final = 0x4000
_ETH_P_ALL: Final = 0x0003
_SOL_PACKET: Final = 263
_PACKET_VNET_HDR: Final = 15
_PACKET_IGNORE_OUTGOING: Final = 23
_SO_RCVBUFFORCE: Final = 33
_QUEUE_BYTES: Final = 16 << 20


class DelayLines:
    """The delayed ports of a bridge.

    Their frames are kept from the bridge, read from a packet socket, and come in by a device of their own later.

    Args:
        firewall: the bridge's.
        add_inlet: called with the name of a TAP device, to plug it into the bridge.
    """

    def __init__(self, firewall: Firewall, add_inlet: Callable[[str], None]) -> None:
        self._firewall = firewall
        self._add_inlet = add_inlet
        self._delayed: set[int] = set()
        self.control: socket.socket | None = None
        """Connected to the pump; it can be read from when that has ended."""

    def set_delay(self, port: Port, seconds: float) -> None:
        """From now on what the port sends arrives so much later. Raises OSError."""
        if seconds and self.control is None:
            self.control = self._start()
        if self.control is None or (not seconds and port.index not in self._delayed):
            return
        order = ORDER.pack(port.index, round(1e9 * seconds) if seconds else -1)
        if not seconds:
            self._firewall.give_back(port.device)
            self._delayed.remove(port.index)
            self.control.send(order)
        elif port.index in self._delayed:
            self.control.send(order)
        else:
            with _capture(port.device) as frames:
                socket.send_fds(self.control, [order], [frames.fileno()])
            self._firewall.take(port.device)
            self._delayed.add(port.index)

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        outlet = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
        flags = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
        fcntl.ioctl(outlet, _TUNSETIFF, struct.pack("16sH22x", _OUTLET.encode(), flags))
        self._add_inlet(_OUTLET)
        with theirs:
            subprocess.Popen(
                [sys.executable, "-m", "edgepeer.emulation.network.pump", str(theirs.fileno()), str(outlet)],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), outlet),
                preexec_fn=dies_with_parent(signal.SIGKILL),
            )
        os.close(outlet)
        return ours


def _capture(device: str) -> socket.socket:
    """What comes in by a device, whole writes with virtio's header in front."""
    frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    try:
        frames.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
        frames.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        try:
            frames.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _QUEUE_BYTES)
        except PermissionError:
            frames.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _QUEUE_BYTES)  # as much as anybody may have
        frames.bind((device, _ETH_P_ALL))
    except BaseException:
        frames.close()
        raise
    return frames
