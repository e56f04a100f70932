"""Who may be half-way in: connections that others have opened and that have not shown yet who they are.

Each of them holds memory, and its handshake takes processor time: so there are never more than a few. Where there
would be, one gives way of the address that most of them are of, so that nobody keeps others out; of these it is the one
that has been there for longest, for a peer is through within some milliseconds, and whoever holds a place on purpose
isn't.

A whole fleet may have one address, behind NAT or in one network of IPv6, and come at once. Were there fewer of each,
those in mid-handshake would give way to those behind them, these to the next, and nobody would get in.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from functools import lru_cache
from typing import Final, Protocol

from edgepeer.sockets import is_loopback

__all__ = ["WITHIN_S", "Door", "Guest"]

MOST: Final = 64
WITHIN_S: Final = 5.0


class Guest(Protocol):
    """A connection that is half-way in."""

    host: str

    def turn_away(self, reason: str) -> None:
        """Close it."""


class Door:
    """All of them, of one listener."""

    def __init__(self) -> None:
        self._inside: dict[Guest, asyncio.TimerHandle] = {}
        """Longest first."""

    def __len__(self) -> int:
        return len(self._inside)

    def enter(self, guest: Guest) -> None:
        """Somebody has connected."""
        if len(self._inside) >= MOST:
            # Those of this machine's loopback, which peers on it share, go last.
            counts = Counter(_place(one.host) for one in self._inside if not is_loopback(one.host))
            place = max(counts, key=counts.__getitem__, default=None)
            oldest = next(one for one in self._inside if place in (None, _place(one.host)))
            self._turn_away(oldest, f"{MOST} others have not shown yet who they are")
        late = f"has not shown within {WITHIN_S:g} s who it is"
        self._inside[guest] = asyncio.get_running_loop().call_later(WITHIN_S, self._turn_away, guest, late)

    def leave(self, guest: Guest) -> None:
        """It is in, or gone."""
        if (timer := self._inside.pop(guest, None)) is not None:
            timer.cancel()

    def close(self, reason: str) -> None:
        """Turn everybody away."""
        for guest in [*self._inside]:
            self._turn_away(guest, reason)

    def _turn_away(self, guest: Guest, reason: str) -> None:
        self.leave(guest)
        guest.turn_away(reason)


@lru_cache(maxsize=4 * MOST)
def _place(host: str) -> str:
    """What one somebody has: an address, or of IPv6 a network of 2^64."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    return str(address.ipv4_mapped or ipaddress.ip_network((int(address) >> 64 << 64, 64)))
