"""One bridge, and network namespaces that are plugged into it: each with an interface eth0 and an address.

The bridge is in the namespace that this process is in. A port's rate is tbf's, in both directions; its delay is
netem's, or a delay line's where the kernel has no netem.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from edgepeer.emulation.network.isolation import current_namespace, enter_namespace, new_namespace
from edgepeer.emulation.network.shape import LinkShape

__all__ = ["Lan", "Port"]

_BRIDGE: Final = "lan"
_INLET: Final = "inlet"
_INLET_PORT: Final = "delayed"
_PREFIX_BITS: Final = 16
_MTU: Final = 1500
_LOOPBACK_INDEX: Final = 1
_ROOT: Final = 0xFFFFFFFF
_SLICE_S: Final = 0.001
"""How much of a line's time one write may take at once: the granularity of its rate."""
_LATE_S: Final = 0.002
"""How late the kernel may look at a queue, on a busy machine, without the line's time being lost."""
_MAX_WRITE: Final = 65_536
_MAX_SEGMENTS: Final = 65_535
_MIN_WRITE: Final = 2 * _MTU
_NETEM_PACKETS: Final = 100_000
_ALL_ARE_NEAR: Final = "30"
"""Whoever is less than 2^30 microseconds away."""
_NUD_NOARP: Final = 0x40
_NTF_MASTER: Final = 0x04


@dataclass(frozen=True, kw_only=True)
class Port:
    """A namespace that is plugged in."""

    namespace: int
    """A descriptor that holds it."""
    device: str
    """The interface at the bridge's end."""
    index: int
    """The number of that interface."""
    inside: Any
    """A netlink socket in the namespace."""
    inside_index: int
    """The number of eth0."""


class Lan:
    """The bridge.

    Args:
        address: its own.
        delay: called with a port, seconds and seconds of jitter where netem can't do it; it keeps no order in jitter.

    Raises:
        OSError: the kernel lacks something.
    """

    def __init__(self, address: str, delay: Callable[[Port, float, float], None]) -> None:
        from pyroute2 import IPRoute

        self._delay = delay
        self._home = current_namespace()
        self._ip: Any = IPRoute()
        self._ip.link("set", index=_LOOPBACK_INDEX, state="up")
        _without_ipv6()
        _without_ip_firewall()
        self._ip.link("add", ifname=_BRIDGE, kind="bridge", br_mcast_snooping=0)
        self.index = self._index(_BRIDGE)
        self._ip.addr("add", index=self.index, address=address, prefixlen=_PREFIX_BITS)
        self._ip.link("set", index=self.index, state="up")
        self.has_netem = self._try_netem()

    def plug(self, address: str) -> Port:
        """A new namespace with that address, reached by all others."""
        from pyroute2 import IPRoute

        mac = "02:00:" + ipaddress.IPv4Address(address).packed.hex(":")
        namespace = new_namespace()
        try:
            inside: Any = IPRoute()
            _without_ipv6()
            _with_long_writes()
        finally:
            enter_namespace(self._home)
        device = f"port{namespace}"
        self._ip.link(
            "add",
            ifname=device,
            kind="veth",
            peer={"ifname": "eth0", "net_ns_fd": namespace, "address": mac},
        )
        index = self._index(device)
        self._ip.link("set", index=index, master=self.index, state="up")
        # The bridge need not learn it, and can't where it does not see what comes in by this port.
        self._ip.fdb("add", ifindex=index, lladdr=mac, state=_NUD_NOARP, flags=_NTF_MASTER)
        inside.link("set", index=_LOOPBACK_INDEX, state="up")
        (inside_index,) = inside.link_lookup(ifname="eth0")
        inside.addr("add", index=inside_index, address=address, prefixlen=_PREFIX_BITS)
        inside.link("set", index=inside_index, state="up")
        return Port(namespace=namespace, device=device, index=index, inside=inside, inside_index=inside_index)

    def shape(self, port: Port, link: LinkShape) -> None:
        """From now on the port is such a link. Raises OSError where the kernel has no tbf."""
        down = (self._ip, port.index, link.down_bits_per_s)
        up = (port.inside, port.inside_index, link.up_bits_per_s)
        for ip, index, rate in (down, up):
            write = _MAX_WRITE if rate is None else round(min(max(_SLICE_S * rate / 8, _MIN_WRITE), _MAX_WRITE))
            # What is lost is to be one packet, not a write of many.
            ip.link("set", index=index, gso_max_size=write, gso_max_segs=1 if link.loss else _MAX_SEGMENTS)
            _remove_qdisc(ip, index)
            if rate is not None:
                bytes_per_s = rate / 8
                burst = write + round(_LATE_S * bytes_per_s) + _MTU
                _limit(ip, index, bytes_per_s=round(bytes_per_s), burst=burst, queue=round(link.queue_s * bytes_per_s))
        by_pump = not self.has_netem or link.jitter_s > 0
        self._delay(port, *((link.delay_s, link.jitter_s) if by_pump else (0.0, 0.0)))
        if link.delay_s and not by_pump:
            above = {} if link.up_bits_per_s is None else {"parent": "1:1"}
            port.inside.tc(
                "add",
                "netem",
                port.inside_index,
                handle="2:",
                delay=round(1e6 * link.delay_s),
                limit=_NETEM_PACKETS,
                **above,
            )

    def add_inlet(self) -> str:
        """A device; what is sent by it comes in by a port of the bridge.

        Nothing goes out by that port, and for the bridge the senders stay where they were.
        """
        self._ip.link("add", ifname=_INLET, kind="veth", peer={"ifname": _INLET_PORT})
        index = self._index(_INLET_PORT)
        self._ip.link("set", index=index, master=self.index, state="up")
        self._ip.brport("set", index=index, learning=0, unicast_flood=0, mcast_flood=0, bcast_flood=0)
        self._ip.link("set", index=self._index(_INLET), state="up")
        return _INLET

    def _try_netem(self) -> bool:
        if _refused(lambda: self._ip.tc("add", "netem", self.index, handle="2:", delay=1000), errno.ENOENT):
            return False
        _remove_qdisc(self._ip, self.index)
        return True

    def _index(self, device: str) -> int:
        (index,) = self._ip.link_lookup(ifname=device)
        return int(index)


def _refused(request: Callable[[], object], *codes: int) -> bool:
    """Whether the kernel refuses the request with one of these errors."""
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        request()
    except NetlinkError as error:
        if error.code not in codes:
            raise
        return True
    return False


def _limit(ip: Any, index: int, *, bytes_per_s: int, burst: int, queue: int) -> None:
    request = partial(ip.tc, "add", "tbf", index, handle="1:", rate=bytes_per_s, burst=burst, limit=burst + queue)
    if _refused(request, errno.ENOENT):
        raise OSError(errno.ENOENT, "this kernel has no token bucket filter (sch_tbf)")


def _remove_qdisc(ip: Any, index: int) -> None:
    _refused(lambda: ip.tc("del", index=index, parent=_ROOT), errno.ENOENT, errno.EINVAL)  # where there is none


def _without_ipv6() -> None:
    """Nobody uses it here, and its own chatter would be counted and delayed with the rest."""
    for which in ("all", "default"):
        _try_setting(f"ipv6/conf/{which}/disable_ipv6", "1")


def _without_ip_firewall() -> None:
    """What passes the bridge need not pass this namespace's IP firewall too: that is empty, and costs time."""
    _try_setting("bridge/bridge-nf-call-iptables", "0")


def _with_long_writes() -> None:
    """TCP's writes are as long as `shape` lets them be, as between hosts that are near each other. To hosts far away
    the kernel sends a thousand a second over each connection; where several share a line they would be of a few
    packets, and to carry them from host to host the most of a machine's work."""
    _try_setting("ipv4/tcp_tso_rtt_log", _ALL_ARE_NEAR)


def _try_setting(name: str, value: str) -> None:
    """In some containers nothing may be written there, and none of it matters much."""
    path = Path("/proc/sys/net", name)
    if path.exists():
        with contextlib.suppress(OSError):
            path.write_text(value)
