"""The network that emulated peers live in: addresses, real cuts, rates and delays, and no trace of it afterwards."""

from edgepeer.emulation.network.base import BROKER, EmulatedNetwork, LinkShape, Mode, Way
from edgepeer.emulation.network.opening import open_network

__all__ = ["BROKER", "EmulatedNetwork", "LinkShape", "Mode", "Way", "open_network"]
