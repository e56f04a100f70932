"""What an emulated network offers, whatever it is made of: addresses, cuts that the kernel makes, and shaped links."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

from edgepeer.errors import ConfigError

__all__ = ["BROKER", "EmulatedNetwork", "LinkShape", "Mode", "Way"]

Mode = Literal["namespaces", "loopback", "none"]
"""What keeps the peers apart: a network namespace each, an address each on one loopback, or nothing."""

Way: TypeAlias = tuple[str, str]
"""From which peer to which; or from a peer to BROKER, which stands for both directions between the two."""

BROKER: Final = "broker"

_RATE_UNITS: Final = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_DELAY_UNITS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_QUANTITY: Final = re.compile(r"(?P<number>\d+(\.\d+)?)(?P<unit>[a-z]+)")


@dataclass(frozen=True, kw_only=True)
class LinkShape:
    """The line between one peer and everybody else, full duplex."""

    rate_bits_per_s: float | None = None
    """What passes at most, in each direction; None: as fast as this machine can."""
    delay_s: float = 0.0
    """How much later arrives what the peer sends: from peer to peer it is a one-way delay, a round trip takes two."""

    def __post_init__(self) -> None:
        if self.rate_bits_per_s is not None and not 8e3 <= self.rate_bits_per_s <= 30e9:
            raise ConfigError(f"link rate {self.rate_bits_per_s:g} bit/s: must be 8kbit to 30gbit")
        if not 0.0 <= self.delay_s <= 10.0:
            raise ConfigError(f"link delay {self.delay_s:g} s: must be 0 to 10 s")

    @classmethod
    def parse(cls, text: str) -> LinkShape:
        """`100mbit,5ms`, `100mbit` or `5ms`: a rate per direction, a one-way delay, or both.

        Raises:
            ConfigError: it is none of these, or out of bounds.
        """
        rate: float | None = None
        delay: float | None = None
        for part in text.lower().split(","):
            found = _QUANTITY.fullmatch(part.strip())
            unit = found["unit"] if found else ""
            if found and unit in _RATE_UNITS and rate is None:
                rate = float(found["number"]) * _RATE_UNITS[unit]
            elif found and unit in _DELAY_UNITS and delay is None:
                delay = float(found["number"]) * _DELAY_UNITS[unit]
            else:
                raise ConfigError(f"link {text!r}: must be a rate, a delay or both, such as 100mbit,5ms")
        return cls(rate_bits_per_s=rate, delay_s=delay or 0.0)


class EmulatedNetwork(Protocol):
    """The network of one fleet, while it is open. Peers are named; their processes are started by others.

    All methods raise EdgepeerError when the network itself has failed, and KeyError for a name it does not have.
    """

    mode: Mode
    description: str
    """One line for people: which mode is in use, and why not a better one."""

    def address(self, name: str) -> str:
        """The IP address on which that peer is to listen, and from which it is to connect."""

    def prefix(self, name: str) -> list[str]:
        """What to put in front of a command line so that it runs in that peer's network, with the same pid."""

    def broker_address(self) -> str:
        """The IP address at which a broker inside the network is reached by all peers, whatever is cut between them."""

    def broker_prefix(self) -> list[str]:
        """As `prefix`, for a broker that listens on `broker_address()`."""

    async def reach(self, name: str, host: str, port: int) -> tuple[str, int]:
        """Where that peer finds a broker that this process reaches at `host:port`, outside of the network.

        Connections are accepted inside the network and carried outside by this process. Cuts apply to them.
        """

    async def cut(self, *ways: Way) -> None:
        """From now on nothing gets from source to target; the other direction is left alone. Idempotent.

        Raises:
            ConfigError: there is no firewall here.
        """

    async def heal(self, *ways: Way) -> dict[Way, int]:
        """Undo cuts. Idempotent.

        Returns: packets that each of them has dropped, of those that were in force.
        """

    async def cuts(self) -> dict[Way, int]:
        """The cuts that the kernel says are in force, with the packets that each has dropped. One question for all."""

    async def shape(self, name: str, *, rate_bits_per_s: float | None, delay_s: float) -> None:
        """Change that peer's link (see LinkShape) from now on; connections stay.

        Raises:
            ConfigError: out of bounds, or it can't be done here.
        """
