"""Delays what ports send, where the kernel can't: starts the pump and gives it their frames."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Final

from edgepeer.emulation.network.firewall import Firewall
from edgepeer.emulation.network.lan import Port
from edgepeer.emulation.network.pump import ORDER
from edgepeer.processes import dies_with_parent

__all__ = ["DelayLines"]

_ETH_P_ALL: Final = 0x0003
_SOL_PACKET: Final = 263
_PACKET_VNET_HDR: Final = 15
_PACKET_QDISC_BYPASS: Final = 20
_PACKET_IGNORE_OUTGOING: Final = 23
_SO_RCVBUFFORCE: Final = 33
_QUEUE_BYTES: Final = 16 << 20


class DelayLines:
    """The delayed ports of a bridge.

    Their frames are kept from the bridge, read from packet sockets, and come in by another port later.

    Args:
        firewall: the bridge's.
        add_inlet: returns the name of a device: what is sent by it comes in by a port of the bridge.
    """

    def __init__(self, firewall: Firewall, add_inlet: Callable[[], str]) -> None:
        self._firewall = firewall
        self._add_inlet = add_inlet
        self._delayed: set[int] = set()
        self._pump: subprocess.Popen[bytes] | None = None
        self.control: socket.socket | None = None
        """Connected to the pump; it can be read from when that has ended."""

    def set_delay(self, port: Port, seconds: float, jitter_s: float) -> None:
        """From now on what the port sends arrives so much later, and up to so much later still. Raises OSError."""
        late = seconds > 0 or jitter_s > 0
        if late and self.control is None:
            self.control = self._start()
        if self.control is None or (not late and port.index not in self._delayed):
            return
        order = ORDER.pack(port.index, round(1e9 * seconds) if late else -1, round(1e9 * jitter_s))
        if not late:
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

    def close(self) -> None:
        """End the pump. What is on its way is lost."""
        if self._pump is not None and self.control is not None:
            self.control.close()
            self._pump.kill()
            self._pump.wait()

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, _packet_socket() as outlet:
            outlet.setsockopt(_SOL_PACKET, _PACKET_QDISC_BYPASS, 1)
            outlet.bind((self._add_inlet(), 0))  # 0: it receives nothing
            descriptors = (theirs.fileno(), outlet.fileno())
            self._pump = subprocess.Popen(
                [sys.executable, "-m", "edgepeer.emulation.network.pump", *map(str, descriptors)],
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
                preexec_fn=dies_with_parent(signal.SIGKILL),
            )
        return ours


def _capture(device: str) -> socket.socket:
    """What comes in by a device."""
    frames = _packet_socket()
    try:
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


def _packet_socket() -> socket.socket:
    """For whole writes of up to 64 KB, with virtio's header in front."""
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    packets.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    return packets
