"""Where other peers are, as far as this one has seen: only there does it say anything that nobody listens.

    connections are refused by             | so that life
    ---------------------------------------+-------------------------------------------------------------------
    this machine, to a peer on it, at one  | has ended: its own kernel says so
    of this machine's own addresses        |
    a host where it has answered in this   | has ended
    process' time, or has called from      |
    this machine, or another one on its    | may go on: a peer behind NAT says addresses that are another
    network, to any other peer             | machine's here, its own loopback above all, or 192.168.1.23

Who is behind NAT, and cut off as well, would be taken for dead by these others' word; and a part of a fleet would begin
a generation of its own beside it.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import socket
from pathlib import Path
from typing import Final

from edgepeer.ids import PeerId
from edgepeer.sockets import is_loopback
from edgepeer.topology.view import Member

__all__ = ["Whereabouts", "this_machine"]

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_NETWORK: Final = "/proc/self/ns/net"
_MOST: Final = 4096
"""Peers have many names in time, where they keep none."""


def this_machine() -> str:
    """What tells the network stack of this process from all others, until the machine starts again; empty if unknown.
    In a container, or a network namespace, there is another one."""
    try:
        told = f"{_BOOT.read_text().strip()} {os.readlink(_NETWORK)}"
    except OSError:
        return ""
    return hashlib.sha256(told.encode()).hexdigest()[:16]


class Whereabouts:
    """Of one process. `machine`: see `this_machine`."""

    def __init__(self, machine: str = "") -> None:
        self._machine = machine
        self._found: dict[tuple[PeerId, str], None] = {}
        self._moved: dict[PeerId, tuple[int, tuple[str, ...]]] = {}
        """Who listens elsewhere by now than when its life, of that number, began."""

    def found(self, peer: PeerId, place: str) -> None:
        """A peer has answered there, or has called from there (host:port)."""
        host = _host(place)
        if is_loopback(host):
            return  # a tunnel ends there: the machine behind it is another one
        self._found.pop((peer, host), None)
        self._found[peer, host] = None
        if len(self._found) > _MOST:
            del self._found[next(iter(self._found))]

    def moved(self, peer: PeerId, incarnation: int, places: tuple[str, ...]) -> None:
        """That life of a peer listens there by now; (): where it did when it began."""
        self._moved.pop(peer, None)
        if places:
            self._moved[peer] = incarnation, places
            if len(self._moved) > _MOST:
                del self._moved[next(iter(self._moved))]

    def addresses(self, member: Member) -> tuple[str, ...]:
        """Where that life of a peer may listen, most promising first."""
        life, places = self._moved.get(PeerId(member.id), (0, ()))
        return tuple(dict.fromkeys((*places, *member.addresses))) if life == member.incarnation else member.addresses

    def is_known(self, member: Member) -> bool:
        """Whether it says something of that peer if all of its addresses refuse."""
        here = bool(self._machine) and member.machine == self._machine
        if here and all(_is_ours(_host(address)) for address in self.addresses(member)):
            return True
        return any((PeerId(member.id), _host(address)) in self._found for address in self.addresses(member))

    def elsewhere(self, member: Member) -> tuple[str, ...]:
        """The addresses where that peer may be found."""
        return tuple(address for address in self.addresses(member) if not is_loopback(_host(address)))


def _is_ours(host: str) -> bool:
    """Whether it is an address of this machine, and not a router's that forwards a port to it."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((host, 0))
    except (ValueError, OSError):
        return False
    return True


def _host(place: str) -> str:
    return place.rpartition(":")[0].removeprefix("[").removesuffix("]").lower()
