"""What an emulated network offers, whatever it is made of: addresses, cuts that the kernel makes, and shaped links."""

from __future__ import annotations

from typing import Final, Literal, Protocol, TypeAlias

from edgepeer.emulation.network.shape import LinkShape

__all__ = ["BROKER", "EmulatedNetwork", "Mode", "Way"]

Mode = Literal["namespaces", "loopback", "none"]
"""What keeps the peers apart: a network namespace each, an address each on one loopback, or nothing."""

Way: TypeAlias = tuple[str, str]
"""From which peer to which; or from a peer to BROKER, which stands for both directions between the two."""

BROKER: Final = "broker"


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

    async def shape(self, name: str, link: LinkShape) -> None:
        """Change that peer's line from now on; connections stay.

        Raises:
            ConfigError: it can't be done here.
        """

    async def lost(self, name: str) -> int:
        """Packets that the loss of that peer's line has taken so far, as the kernel counts them."""

    async def shut(self, name: str) -> None:
        """From now on that peer can only dial out, as behind NAT: TCP connections to it are not begun. Idempotent.

        Raises:
            ConfigError: there is no firewall here.
        """

    async def knocks(self, name: str) -> int:
        """Packets that were to begin a connection to that peer, and were dropped since it is shut."""
