"""How often one address may be wrong about a secret: a few times at once, then once in a while.

A secret has 128 bits, so that nobody guesses it; this keeps who tries from our processor and disk.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from typing import Final

__all__ = ["Guesses", "source_of"]

_AT_ONCE: Final = 10
_PER_S: Final = 0.2
_SOURCES: Final = 1024


def source_of(host: str) -> str:
    """Who somebody is, by address: of IPv6 the network, for a host has as many addresses as it likes."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


class Guesses:
    """Counts them."""

    def __init__(self) -> None:
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By source: how many it has left, and when that was; the one that guessed longest ago first."""

    def allowed(self, source: str, now: float) -> bool:
        """Whether that one may try now."""
        return self._of(source, now) >= 1

    def wrong(self, source: str, now: float) -> None:
        """It has tried, and was wrong."""
        self._left[source] = (self._of(source, now) - 1, now)
        self._left.move_to_end(source)
        if len(self._left) > _SOURCES:
            self._left.popitem(last=False)

    def _of(self, source: str, now: float) -> float:
        left, since = self._left.get(source, (float(_AT_ONCE), now))
        return min(left + (now - since) * _PER_S, float(_AT_ONCE))
