"""No network at all: all peers on this machine's own loopback, and no faults between them."""

from __future__ import annotations

from edgepeer.emulation.network.base import Mode, Way
from edgepeer.emulation.network.shape import LinkShape
from edgepeer.errors import ConfigError

__all__ = ["PlainNetwork"]

_LOOPBACK = "127.0.0.1"


class PlainNetwork:
    """What there is where nothing else can be had, or was asked for.

    Args:
        reason: why, as in "... for lack of a network of their own: <reason>".
    """

    mode: Mode = "none"

    def __init__(self, names: tuple[str, ...], reason: str) -> None:
        self._names = names
        self._reason = reason
        self.description = f"peers share this machine's own loopback, where no link can be cut: {reason}"

    def address(self, name: str) -> str:
        self._check(name)
        return _LOOPBACK

    def prefix(self, name: str) -> list[str]:
        self._check(name)
        return []

    def broker_address(self) -> str:
        return _LOOPBACK

    def broker_prefix(self) -> list[str]:
        return []

    async def reach(self, name: str, host: str, port: int) -> tuple[str, int]:
        self._check(name)
        return host, port

    async def cut(self, *ways: Way) -> None:
        raise self._unable()

    async def heal(self, *ways: Way) -> dict[Way, int]:
        return {}

    async def cuts(self) -> dict[Way, int]:
        return {}

    async def shape(self, name: str, link: LinkShape) -> None:
        raise self._unable()

    async def lost(self, name: str) -> int:
        return 0

    async def shut(self, name: str) -> None:
        raise self._unable()

    async def knocks(self, name: str) -> int:
        return 0

    def _check(self, name: str) -> None:
        if name not in self._names:
            raise KeyError(name)

    def _unable(self) -> ConfigError:
        return ConfigError(f"link faults and NAT need network namespaces or a loopback of their own: {self._reason}")
