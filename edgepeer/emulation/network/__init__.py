"""The network that emulated peers live in: addresses, real cuts, rates and delays, and no trace of it afterwards.

base.py       what any of them offers
shape.py      what a peer's line is like
opening.py    the best one that this machine allows
plain.py      none at all
walled.py     one of the hub's
control.py    the hub's other end: starts it, asks it, ends it
hub.py        the process that the network lives in
isolation.py  its namespaces
lan.py        a bridge with a port for each peer
firewall.py   cuts, losses and shut doors, as rules of the kernel
losses.py     which of a line's packets are lost
delay.py      delays where the kernel has none
pump.py       the process that makes these
gateway.py    carries connections to a broker outside
"""

from edgepeer.emulation.network.base import BROKER, EmulatedNetwork, Mode, Way
from edgepeer.emulation.network.opening import open_network
from edgepeer.emulation.network.shape import LinkShape, parse_links, parse_peers

__all__ = ["BROKER", "EmulatedNetwork", "LinkShape", "Mode", "Way", "open_network", "parse_links", "parse_peers"]
