"""Loses packets of lines by chance, in both directions.

What a peer sends is lost at the bridge. What it receives is lost behind its interface, in its own namespace: there
large writes have been cut into packets, of which each is lost for itself.
"""

from __future__ import annotations

from edgepeer.emulation.network.firewall import Drop, Firewall
from edgepeer.emulation.network.isolation import current_namespace, enter_namespace

__all__ = ["Losses"]


class Losses:
    """The lossy ports of a bridge.

    Args:
        firewall: the bridge's.
    """

    def __init__(self, firewall: Firewall) -> None:
        self._bridge = firewall
        self._home = current_namespace()
        self._inside: dict[str, Firewall] = {}
        """By address: of the namespaces whose lines have ever lost something."""

    def set_loss(self, namespace: int, address: str, part: float) -> None:
        """From now on so large a part of the packets to and from that address is lost. Raises OSError."""
        if part and address not in self._inside:
            enter_namespace(namespace)
            try:
                self._inside[address] = Firewall("ip")
            finally:
                enter_namespace(self._home)
        if address in self._inside:
            self._bridge.lose(Drop(address, ""), part)
            self._inside[address].lose(Drop("", address), part)

    def lost(self, address: str) -> int:
        """Packets that were, since the loss was last set."""
        if address not in self._inside:
            return 0
        return self._bridge.losses().get(Drop(address, ""), 0) + sum(self._inside[address].losses().values())
