"""Opens the best network that this machine allows, and says which that is."""

from __future__ import annotations

import shutil
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from ipaddress import IPv4Address
from typing import Final, Literal

from edgepeer.emulation.network.base import EmulatedNetwork
from edgepeer.emulation.network.control import HubProcess, KernelRefused
from edgepeer.emulation.network.plain import PlainNetwork
from edgepeer.emulation.network.shape import LinkShape
from edgepeer.emulation.network.walled import Site, WalledNetwork
from edgepeer.errors import ConfigError

__all__ = ["open_network"]

_LAN: Final = IPv4Address("10.77.0.0")
_LOOPBACK: Final = IPv4Address("127.77.0.0")
_BROKERS: Final = IPv4Address("127.78.0.0")
"""On the loopback each peer finds the broker at an address of its own, by which the firewall knows it."""
_LAST: Final = 0xFFFE


@asynccontextmanager
async def open_network(
    names: Iterable[str],
    *,
    mode: Literal["auto", "namespaces", "loopback", "none"] = "auto",
    links: Mapping[str, LinkShape] | None = None,
    shut: Iterable[str] = (),
) -> AsyncIterator[EmulatedNetwork]:
    """A network for peers of these names. All of it is gone when the context closes, or when this process ends.

    Args:
        mode: auto takes the first that this machine allows: namespaces, loopback, none.
        links: what the lines of these peers are like; it takes namespaces.
        shut: the names of those that can only dial out, as behind NAT; it takes a firewall.

    Raises:
        ConfigError: this machine does not allow what was asked for.
        EdgepeerError: the network could be made, but failed.
    """
    peers = tuple(names)
    inward = tuple(shut)
    if links and mode in ("loopback", "none"):
        raise ConfigError(f"network = {mode}: only links between network namespaces have rates, delays and losses")
    if inward and mode == "none":
        raise ConfigError("network = none: peers that can only dial out take a firewall: use namespaces or loopback")
    if mode == "none":
        yield PlainNetwork(peers, "as was asked for")
        return
    async with AsyncExitStack() as stack:
        try:
            if lack := _lack():
                raise KernelRefused(lack)
            hub = await stack.enter_async_context(HubProcess())
            network = await stack.enter_async_context(await _build(hub, peers, mode, bool(links)))
        except KernelRefused as error:
            if mode != "auto" or links or inward:
                needed = "namespaces" if links else mode if mode != "auto" else "namespaces or loopback"
                raise ConfigError(f"network = {needed}: not on this machine: {error}") from None
            yield PlainNetwork(peers, str(error))
            return
        for name, link in (links or {}).items():
            await network.shape(name, link)
        for name in inward:
            await network.shut(name)
        yield network


def _lack() -> str | None:
    """What is missing here of what every network takes."""
    if not sys.platform.startswith("linux"):
        return "only Linux has network namespaces"
    if find_spec("pyroute2") is None:
        return "pyroute2 is not installed (pip install 'edgepeer[emulation]')"
    if shutil.which("nsenter") is None:
        return "nsenter is not installed (it comes with util-linux)"
    return None


async def _build(hub: HubProcess, peers: tuple[str, ...], mode: str, shaped: bool) -> WalledNetwork:
    """Have the hub make the network.

    Raises:
        KernelRefused: this machine does not allow it.
    """
    try:
        in_user_namespace = await hub.ask("leave")
    except KernelRefused as error:
        raise KernelRefused(f"this user may not make network namespaces: {error}") from None
    rights = "in a user namespace" if in_user_namespace else "as root"
    enter = (
        ["nsenter", f"--user=/proc/{hub.pid}/ns/user", "--preserve-credentials"] if in_user_namespace else ["nsenter"]
    )
    if mode == "loopback":
        return await _loopback(hub, peers, enter, f"an address for each peer on one loopback, {rights}")
    try:
        return await _lan(hub, peers, enter, f"a namespace for each peer, {rights}")
    except KernelRefused as error:
        if mode != "auto" or shaped:
            raise
        reason = f"no network namespaces on a bridge: {error}"
    return await _loopback(hub, peers, enter, f"an address for each peer on one loopback, {rights}; {reason}")


async def _lan(hub: HubProcess, peers: tuple[str, ...], enter: list[str], description: str) -> WalledNetwork:
    addresses = [str(_LAN + number) for number, _ in enumerate(peers, 1)]
    broker = str(_LAN + _LAST)
    made = await hub.ask("lan", address=broker, peers=addresses)
    places = {
        name: Site(
            address=address,
            prefix=(*enter, f"--net=/proc/{hub.pid}/fd/{namespace}", "--"),
            broker=broker,
            broker_cuts=((address, broker), (broker, address)),
        )
        for name, address, namespace in zip(peers, addresses, made["namespaces"], strict=True)
    }
    inside = Site(address=broker, prefix=(*enter, f"--net=/proc/{hub.pid}/ns/net", "--"), broker=broker, broker_cuts=())
    return WalledNetwork(hub, places, broker=inside, mode="namespaces", description=description)


async def _loopback(hub: HubProcess, peers: tuple[str, ...], enter: list[str], description: str) -> WalledNetwork:
    await hub.ask("loopback")
    prefix = (*enter, f"--net=/proc/{hub.pid}/ns/net", "--")
    places = {}
    for number, name in enumerate(peers, 1):
        broker = str(_BROKERS + number)
        cuts = (("", broker), (broker, ""))
        places[name] = Site(address=str(_LOOPBACK + number), prefix=prefix, broker=broker, broker_cuts=cuts)
    inside = Site(address=str(_LOOPBACK + _LAST), prefix=prefix, broker=str(_LOOPBACK + _LAST), broker_cuts=())
    return WalledNetwork(hub, places, broker=inside, mode="loopback", description=description)
