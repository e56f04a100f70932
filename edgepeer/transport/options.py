"""Addresses as text, and what is set on every socket."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from typing import Any, Final

import ifaddr

from edgepeer.errors import ConfigError
from edgepeer.sockets import format_place, is_loopback

__all__ = ["advertised", "format_address", "parse_address", "share_loopback", "tune"]

_NAME_BYTES: Final = 16
"""The longest name that the kernel has for a congestion control."""
_BBR: Final = b"bbr"
_CONTROLS: Final = (b"cubic", b"reno")
"""In place of bbr, the default on some kernels, before packets are lost (losses.py). It lets a connection have next to
nothing under way for 0.2 s, every 10 s (PROBE_RTT): in every other round one of those of several trees. Any other
default is left as it is."""


def parse_address(text: str) -> tuple[str, int]:
    """`host:port`, `[v6]:port` or `:port` (all interfaces) as host and port. Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ConfigError(f"address {text!r}: an address of IPv6 stands in brackets, like [::1]:7700")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise ConfigError(f"address {text!r}: must be host:port with a port from 0 to 65535, like 127.0.0.1:0")
    if not _can_be_looked_up(host or "0.0.0.0"):
        raise ConfigError(f"address {text!r}: its host can be none: take a name as DNS has it, or an IP address")
    return host or "0.0.0.0", int(port)


def _can_be_looked_up(host: str) -> bool:
    """Whether loops try it: of other texts they raise whatever it is that they can't do with them."""
    try:
        name = host if host.isascii() else host.encode("idna").decode()
    except UnicodeError:
        return False
    return "\0" not in name and all(0 < len(label) < 64 for label in name.removesuffix(".").split("."))


def format_address(name: Any) -> str:
    """What getsockname() returned, as text."""
    if not isinstance(name, tuple) or len(name) < 2:
        return "?"
    return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"


def share_loopback(own: str, other: str) -> bool:
    """Whether two hosts are addresses of one loopback interface, told apart, by firewalls above all, by these."""
    try:
        here, there = ipaddress.ip_address(own), ipaddress.ip_address(other)
    except ValueError:
        return False
    return here.is_loopback and there.is_loopback and here.version == there.version


def advertised(bound: str) -> tuple[str, ...]:
    """Under which addresses others may reach a listener that is bound to `bound`, most promising first."""
    host, port = parse_address(bound)
    here = ipaddress.ip_address(host)
    if _of_a_link(here):
        raise ConfigError(
            f"address {bound!r}: link-local, so others can't reach it by that alone: listen on [::]:{port}, or say "
            "what to advertise"
        )
    if not here.is_unspecified:
        return (bound,)
    # All of IPv4, or all of IPv6: loops let nobody in by the other one.
    own = (ipaddress.ip_address(_text(ip)) for adapter in ifaddr.get_adapters() for ip in adapter.ips)
    # By a link-local address of IPv6 it is reached only from machines that know which of their own links is meant.
    found = [ip for ip in own if ip.version == here.version and not (ip.is_loopback or _of_a_link(ip))]
    loopback = "127.0.0.1" if here.version == 4 else "::1"
    return tuple(format_place(str(ip), port) for ip in (*found[:15], loopback))


def _text(ip: ifaddr.IP) -> str:
    return ip.ip if isinstance(ip.ip, str) else ip.ip[0]


def _of_a_link(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return ip.version == 6 and ip.is_link_local


def tune(sock: socket.socket) -> bool:
    """Small frames at once, and a congestion control that does not stop now and then.

    Of no effect on a connection that is gone already: whoever reads from it will find that out.

    Returns:
        Whether there is a network: the other end is not on this machine's loopback.
    """
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = sock.getpeername()
    except OSError:
        return False
    _leave_bbr(sock)
    return not is_loopback(str(peer[0]))


def _leave_bbr(sock: socket.socket) -> None:
    with contextlib.suppress(OSError, AttributeError):  # it is gone, or this is not Linux
        if sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME_BYTES).rstrip(b"\0") != _BBR:
            return
        for control in _CONTROLS:
            with contextlib.suppress(OSError):  # not every kernel has it, or lets everybody choose it
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control)
                return
