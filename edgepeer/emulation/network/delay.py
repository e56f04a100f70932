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
_SO_SNDBUFFORCE: Final = 32
_QUEUE_BYTES: Final = 16 << 20
_OUT_BYTES: Final = 512 << 20


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
        self._inlet = ""
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
            with _capture(port.device) as frames, _outlet(self._inlet) as outlet:
                socket.send_fds(self.control, [order], [frames.fileno(), outlet.fileno()])
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
        self._inlet = self._add_inlet()
        with theirs:
            self._pump = subprocess.Popen(
                [sys.executable, "-m", "edgepeer.emulation.network.pump", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                preexec_fn=dies_with_parent(signal.SIGKILL),
            )
        return ours


def _capture(device: str) -> socket.socket:
    """What comes in by a device."""
    frames = _packet_socket()
    try:
        frames.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        _hold(frames, _SO_RCVBUFFORCE, socket.SO_RCVBUF, _QUEUE_BYTES)
        frames.bind((device, _ETH_P_ALL))
    except BaseException:
        frames.close()
        raise
    return frames


def _outlet(inlet: str) -> socket.socket:
    """By which frames of one port come in later.

    One for each: what stands in the queues of others' lines still counts as its own, and full queues that one port's
    frames wait in must not stop those of another.
    """
    outlet = _packet_socket()
    try:
        outlet.setsockopt(_SOL_PACKET, _PACKET_QDISC_BYPASS, 1)
        _hold(outlet, _SO_SNDBUFFORCE, socket.SO_SNDBUF, _OUT_BYTES)
        outlet.bind((inlet, 0))  # 0: it receives nothing
    except BaseException:
        outlet.close()
        raise
    return outlet


def _hold(sock: socket.socket, force: int, ask: int, count: int) -> None:
    """Let a socket hold so many bytes, or as many as anybody may."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, force, count)
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, ask, count)


def _packet_socket() -> socket.socket:
    """For whole writes of up to 64 KB, with virtio's header in front."""
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    packets.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    return packets
