"""The network that emulated peers live in: addresses, real cuts, rates and delays, and no trace of it afterwards."""

from edgepeer.emulation.network.base import EmulatedNetwork, Link, Mode
from edgepeer.emulation.network.opening import open_network

__all__ = ["EmulatedNetwork", "Link", "Mode", "open_network"]
