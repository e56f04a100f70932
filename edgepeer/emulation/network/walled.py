"""A network of the hub's: a namespace for each peer, or one loopback with an address for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import Any

from edgepeer.emulation.network.base import BROKER, Mode, Way
from edgepeer.emulation.network.control import HubProcess, KernelRefused
from edgepeer.emulation.network.gateway import Gateway
from edgepeer.emulation.network.shape import LinkShape
from edgepeer.errors import ConfigError, EdgepeerError

__all__ = ["Site", "WalledNetwork"]

_Addresses = tuple[str, str]
"""From which address to which; empty: any."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where a peer is in the network, and where it finds the broker."""

    address: str
    prefix: tuple[str, ...]
    broker: str
    """The address at which it finds a broker that is outside."""
    broker_cuts: tuple[_Addresses, ...]
    """Between which addresses nothing must get through to put that broker out of its reach."""


class WalledNetwork:
    """A network with a firewall. See EmulatedNetwork; close it before the hub ends.

    Args:
        places: by name of the peer.
        broker: where a broker inside the network is.
    """

    def __init__(
        self, hub: HubProcess, places: Mapping[str, Site], *, broker: Site, mode: Mode, description: str
    ) -> None:
        self.mode = mode
        self.description = description
        self._hub = hub
        self._places = places
        self._broker = broker
        self._gateways: dict[tuple[str, int], int] = {}
        """By broker outside: the port inside."""
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> WalledNetwork:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._stack.aclose()

    def address(self, name: str) -> str:
        return self._places[name].address

    def prefix(self, name: str) -> list[str]:
        return list(self._places[name].prefix)

    def broker_address(self) -> str:
        return self._broker.address

    def broker_prefix(self) -> list[str]:
        return list(self._broker.prefix)

    async def reach(self, name: str, host: str, port: int) -> tuple[str, int]:
        place = self._places[name]
        if (host, port) not in self._gateways:
            listener, inside = await self._hub.listener()
            await self._stack.enter_async_context(Gateway(listener, host, port))
            self._gateways[host, port] = inside
        return place.broker, self._gateways[host, port]

    async def cut(self, *ways: Way) -> None:
        await self._ask("cut", cuts=[cut for way in ways for cut in self._between(way)])

    async def heal(self, *ways: Way) -> dict[Way, int]:
        healed = await self._ask("heal", cuts=[cut for way in ways for cut in self._between(way)])
        return self._counted(ways, healed)

    async def cuts(self) -> dict[Way, int]:
        told = await self._ask("cuts")
        names = {place.address: name for name, place in self._places.items()}
        cut = [(names[source], names[target]) for source, target, _ in told if source in names and target in names]
        return self._counted([*sorted(cut), *((name, BROKER) for name in sorted(self._places))], told)

    async def shape(self, name: str, link: LinkShape) -> None:
        address = self.address(name)
        if self.mode != "namespaces":
            raise ConfigError(f"link of {name}: only links between network namespaces have rates, delays and losses")
        try:
            await self._hub.ask("shape", peer=address, link=asdict(link))
        except KernelRefused as error:
            raise ConfigError(f"link of {name}: {error}") from None

    async def lost(self, name: str) -> int:
        return int(await self._ask("lost", peer=self.address(name)))

    async def shut(self, name: str) -> None:
        await self._ask("shut", peer=self.address(name))

    async def knocks(self, name: str) -> int:
        return int(await self._ask("knocks", peer=self.address(name)))

    def _between(self, way: Way) -> tuple[_Addresses, ...]:
        source, target = way
        if target == BROKER:
            return self._places[source].broker_cuts
        return ((self.address(source), self.address(target)),)

    def _counted(self, ways: Iterable[Way], told: Iterable[tuple[str, str, int]]) -> dict[Way, int]:
        """Those of the ways that are cut altogether, with the packets dropped."""
        packets = {(source, target): count for source, target, count in told}
        between = {way: self._between(way) for way in ways}
        cut = [way for way in between if packets.keys() >= set(between[way])]
        return {way: sum(packets[each] for each in between[way]) for way in cut}

    async def _ask(self, request: str, **arguments: object) -> Any:
        try:
            return await self._hub.ask(request, **arguments)
        except KernelRefused as error:
            raise EdgepeerError(f"emulated network: {request}: {error}") from None
