"""A network of the hub's: a namespace for each peer, or one loopback with an address for each."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from edgepeer.emulation.network.base import Link, Mode
from edgepeer.emulation.network.control import HubProcess, Refused
from edgepeer.emulation.network.gateway import Gateway
from edgepeer.errors import ConfigError, EdgepeerError

__all__ = ["Place", "WalledNetwork"]

_Cut = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a peer is."""

    address: str
    prefix: tuple[str, ...]
    broker: str
    """The address at which it finds a broker that is outside."""
    broker_cuts: tuple[_Cut, ...]
    """Between which addresses nothing must get through to put that broker out of its reach."""


class WalledNetwork:
    """A network with a firewall. See EmulatedNetwork; close it before the hub ends.

    Args:
        places: by name of the peer.
        broker: where a broker inside the network is.
    """

    def __init__(
        self, hub: HubProcess, places: Mapping[str, Place], *, broker: Place, mode: Mode, description: str
    ) -> None:
        self.mode = mode
        self.description = description
        self._hub = hub
        self._places = places
        self._broker = broker
        self._healed: dict[_Cut, int] = {}
        """What cuts that are no more have dropped."""
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

    async def cut(self, source: str, target: str) -> None:
        await self._cut((self.address(source), self.address(target)))

    async def heal(self, source: str, target: str) -> None:
        await self._heal((self.address(source), self.address(target)))

    async def dropped(self, source: str, target: str) -> int:
        return await self._dropped((self.address(source), self.address(target)))

    async def rules(self) -> list[tuple[str, str]]:
        names = {place.address: name for name, place in self._places.items()}
        cuts = await self._cuts()
        return sorted((names[source], names[target]) for source, target in cuts if source in names and target in names)

    async def cut_broker(self, name: str) -> None:
        for cut in self._places[name].broker_cuts:
            await self._cut(cut)

    async def heal_broker(self, name: str) -> None:
        for cut in self._places[name].broker_cuts:
            await self._heal(cut)

    async def dropped_broker(self, name: str) -> int:
        return sum([await self._dropped(cut) for cut in self._places[name].broker_cuts])

    async def broker_rules(self) -> list[str]:
        cuts = await self._cuts()
        return sorted(name for name, place in self._places.items() if cuts.keys() >= set(place.broker_cuts))

    async def shape(self, name: str, *, rate_bits_per_s: float | None, delay_s: float) -> None:
        address = self.address(name)
        Link(rate_bits_per_s=rate_bits_per_s, delay_s=delay_s)  # raises what is out of bounds
        if self.mode != "namespaces":
            raise ConfigError(f"link of {name}: only links between network namespaces have a rate and a delay")
        try:
            await self._hub.ask("shape", peer=address, rate_bits_per_s=rate_bits_per_s, delay_s=delay_s)
        except Refused as error:
            raise ConfigError(f"link of {name}: {error}") from None

    async def _cut(self, cut: _Cut) -> None:
        self._healed.pop(cut, None)
        await self._ask("cut", cut)

    async def _heal(self, cut: _Cut) -> None:
        packets = await self._ask("heal", cut)
        if packets is not None:
            self._healed[cut] = packets

    async def _dropped(self, cut: _Cut) -> int:
        return (await self._cuts()).get(cut, self._healed.get(cut, 0))

    async def _cuts(self) -> dict[_Cut, int]:
        rules = await self._hub.ask("cuts")
        return {(source, target): packets for source, target, packets in rules}

    async def _ask(self, request: str, cut: _Cut) -> Any:
        source, target = cut
        try:
            return await self._hub.ask(request, source=source, target=target)
        except Refused as error:
            raise EdgepeerError(f"emulated network: {request} {source or '*'} to {target or '*'}: {error}") from None
