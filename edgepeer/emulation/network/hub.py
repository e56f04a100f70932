"""The process that an emulated network lives in: `python -m edgepeer.emulation.network.hub CONTROL`.

It leaves this machine's network for one of its own, holds the namespaces of all peers, and does as it is told over
CONTROL, a SOCK_SEQPACKET socket: one JSON object each way. When the other end is closed, if only because
whoever held it is no more, it ends, and the kernel takes the network down.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from edgepeer.emulation.network.control import MESSAGE_BYTES
from edgepeer.emulation.network.delay import DelayLines
from edgepeer.emulation.network.firewall import Drop, Firewall
from edgepeer.emulation.network.isolation import leave_machine, new_namespace
from edgepeer.emulation.network.lan import Lan, Port
from edgepeer.emulation.network.losses import Losses
from edgepeer.emulation.network.shape import LinkShape

__all__ = ["Hub"]

_BACKLOG: Final = 256
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 1


class Hub:
    """The network, and what can be asked of it. Requests raise OSError or pyroute2's NetlinkError."""

    def __init__(self) -> None:
        self._ports: dict[str, Port] = {}
        self._lan: Lan | None = None
        self._lines: DelayLines | None = None
        self._losses: Losses | None = None
        self._firewall: Firewall | None = None
        self._listeners: list[socket.socket] = []
        self._requests: dict[str, Callable[..., object]] = {
            request.__name__: request
            for request in (
                self.leave,
                self.lan,
                self.loopback,
                self.shape,
                self.lost,
                self.shut,
                self.knocks,
                self.cut,
                self.heal,
                self.cuts,
                self.listen,
            )
        }

    def serve(self, control: socket.socket) -> None:
        """Answer until the other end is closed, or the pump has ended."""
        from pyroute2.netlink.exceptions import NetlinkError

        while True:
            pump = self._lines.control if self._lines is not None else None
            readable, _, _ = select.select([control] if pump is None else [control, pump], [], [])
            if pump in readable:
                raise SystemExit("the process that delays frames has ended")
            request = control.recv(MESSAGE_BYTES)
            if not request:
                if self._lines is not None:
                    self._lines.close()
                return
            name, arguments = msgspec.json.decode(request)
            answer: dict[str, Any] = {}
            try:
                answer["result"] = self._requests[name](**arguments)
            except OSError as error:
                answer["error"] = error.strerror or str(error)
            except NetlinkError as error:
                answer["error"] = os.strerror(error.code)
            listeners, self._listeners = self._listeners, []
            socket.send_fds(control, [msgspec.json.encode(answer)], [listener.fileno() for listener in listeners])
            for listener in listeners:
                listener.close()

    def leave(self) -> bool:
        """Leave this machine's network; whether that took a user namespace."""
        return leave_machine()

    def lan(self, address: str, peers: Sequence[str]) -> dict[str, Any]:
        """A namespace for each of the peers' addresses, on one bridge with an address of its own.

        Returns: the namespaces' descriptors, in this process, and whether there is netem.
        """
        self._firewall = Firewall("bridge")
        self._lan = Lan(address, self._delay)
        self._lines = DelayLines(self._firewall, self._lan.add_inlet)
        self._losses = Losses(self._firewall)
        self._ports = {peer: self._lan.plug(peer) for peer in peers}
        return {"namespaces": [port.namespace for port in self._ports.values()], "netem": self._lan.has_netem}

    def loopback(self) -> None:
        """One namespace for all, in place of whatever there was."""
        os.close(new_namespace())
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _IFF_UP))
        self._lan = None
        self._firewall = Firewall("ip")

    def shape(self, peer: str, link: Mapping[str, Any]) -> None:
        """Make the line of the peer with that address such a link: the fields of a LinkShape."""
        assert self._lan is not None
        assert self._losses is not None
        port, shape = self._ports[peer], LinkShape(**link)
        self._lan.shape(port, shape)
        self._losses.set_loss(port.namespace, peer, shape.loss)

    def lost(self, peer: str) -> int:
        """Packets that the line of the peer with that address has lost by chance."""
        return 0 if self._losses is None else self._losses.lost(peer)

    def shut(self, peer: str) -> None:
        """Let nobody begin a TCP connection to the peer with that address."""
        if Drop("", peer) not in self._wall().knocks():
            self._wall().shut(peer)

    def knocks(self, peer: str) -> int:
        """Packets that were to begin one, and were dropped."""
        return self._wall().knocks().get(Drop("", peer), 0)

    def cut(self, cuts: Sequence[tuple[str, str]]) -> None:
        """Let nothing through from one address to the other."""
        self._wall().add(Drop(*cut) for cut in cuts)

    def heal(self, cuts: Sequence[tuple[str, str]]) -> list[tuple[str, str, int]]:
        """Undo cuts. Returns those of them that were in force, as `cuts` does."""
        return _told(self._wall().remove(Drop(*cut) for cut in cuts))

    def cuts(self) -> list[tuple[str, str, int]]:
        """All cuts: source, target, packets dropped."""
        return _told(self._wall().cuts())

    def listen(self) -> int:
        """Send a socket that listens in the network; its port."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listeners.append(listener)
        listener.bind(("0.0.0.0", 0))
        listener.listen(_BACKLOG)
        return int(listener.getsockname()[1])

    def _wall(self) -> Firewall:
        if self._firewall is None:
            raise OSError(errno.ENOSYS, "there is no firewall")
        return self._firewall

    def _delay(self, port: Port, seconds: float, jitter_s: float) -> None:
        assert self._lines is not None
        self._lines.set_delay(port, seconds, jitter_s)


def _told(cuts: Mapping[Drop, int]) -> list[tuple[str, str, int]]:
    return [(*cut, packets) for cut, packets in cuts.items()]


if __name__ == "__main__":
    Hub().serve(socket.socket(fileno=int(sys.argv[1])))
