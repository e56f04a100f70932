"""Faults of links: rules in the kernel's firewall that must be in force, and must have dropped something."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from itertools import combinations, product
from typing import Any, Final

from edgepeer.emulation.faults.kinds import Cut, Isolate, Partition
from edgepeer.emulation.faults.scene import Scene, Unconfirmed
from edgepeer.emulation.network.base import BROKER, Way

__all__ = ["CutBook", "LinkFault"]

_TRAFFIC_S: Final = 10.0
"""How much longer a cut lasts until something has tried to pass: heartbeats come more often, but for those of a process
that stands still."""
_POLL_S: Final = 0.02


class CutBook:
    """Which ways are cut by how many faults: each is healed with its last."""

    def __init__(self, scene: Scene) -> None:
        self._network = scene.network
        self._count: Counter[Way] = Counter()
        self._busy = asyncio.Lock()

    @property
    def ways(self) -> frozenset[Way]:
        """What is cut."""
        return frozenset(+self._count)

    async def cut(self, ways: Sequence[Way]) -> dict[Way, int]:
        """Returns: how many packets the other faults that cut the same have dropped until now."""
        async with self._busy:
            fresh = [way for way in ways if not self._count[way]]
            self._count.update(ways)
            before = await self._network.cuts() if len(fresh) < len(ways) else {}
            await self._network.cut(*fresh)
        return {way: before.get(way, 0) for way in ways}

    async def heal(self, ways: Sequence[Way]) -> dict[Way, int]:
        """Returns: how many packets all faults that cut the same have dropped until now."""
        async with self._busy:
            self._count.subtract(ways)
            over = [way for way in ways if not self._count[way]]
            dropped = await self.dropped() if len(over) < len(ways) else {}
            dropped |= await self._network.heal(*over)
        return {way: dropped.get(way, 0) for way in ways}

    async def dropped(self) -> dict[Way, int]:
        """What the kernel says is cut, with the packets that were dropped."""
        return await self._network.cuts()


class LinkFault:
    """A cut, an isolation or a partition."""

    def __init__(self, fault: Cut | Isolate | Partition, scene: Scene, book: CutBook) -> None:
        self._book = book
        sides, self.target = _sides(fault, scene)
        pairs = [pair for one, other in combinations(sides, 2) for pair in product(one, other)]
        both = not isinstance(fault, Cut) or fault.both
        self.ways: tuple[Way, ...] = tuple(way for pair in pairs for way in _ways(pair, both))
        self._used = [pair for pair in pairs if BROKER not in pair and scene.linked(*pair)]
        self._before: dict[Way, int] = {}
        self.confirmed: dict[str, Any] = {}

    async def inject(self) -> None:
        """Cut all of it.

        Raises:
            Unconfirmed: the kernel does not list one of the rules.
        """
        self._before = await self._book.cut(self.ways)
        missing = sorted(set(self.ways).difference(await self._book.dropped()))
        if missing:
            raise Unconfirmed(f"the kernel has no rule from {missing[0][0]} to {missing[0][1]}")
        self.confirmed = {"rules": [f"{source}>{target}" for source, target in self.ways]}

    async def lift(self) -> None:
        """Heal it, unless other faults cut the same.

        Raises:
            Unconfirmed: a rule is gone; or two are neighbours in the tree, and nothing tried to pass between them.
        """
        missing = sorted(set(self.ways).difference(await self._book.dropped()))
        await self._tried()
        healed = await self._book.heal(self.ways)
        if missing:
            raise Unconfirmed(f"the kernel has lost the rule from {missing[0][0]} to {missing[0][1]}")
        dropped = {way: healed[way] - self._before[way] for way in self.ways}
        self.confirmed["dropped"] = {f"{source}>{target}": count for (source, target), count in dropped.items()}
        if not self._used:
            self.confirmed["note"] = "no traffic between them is to be expected"
        for one, other in self._used:
            if not _between(dropped, one, other):
                raise Unconfirmed(f"nothing tried to pass between {one} and {other}, which are neighbours in the tree")

    async def _tried(self) -> None:
        """Wait until something has tried to pass the links that are in use, but not for ever."""
        deadline = asyncio.get_running_loop().time() + _TRAFFIC_S
        while asyncio.get_running_loop().time() < deadline:
            packets = await self._book.dropped()
            dropped = {way: packets.get(way, 0) - self._before[way] for way in self.ways}
            if all(_between(dropped, *pair) for pair in self._used):
                return
            await asyncio.sleep(_POLL_S)


def _between(dropped: dict[Way, int], one: str, other: str) -> int:
    return dropped.get((one, other), 0) + dropped.get((other, one), 0)


def _ways(pair: tuple[str, str], both: bool) -> tuple[Way, ...]:
    source, target = pair
    if BROKER in pair:
        return ((target if source == BROKER else source, BROKER),)
    return ((source, target), (target, source)) if both else ((source, target),)


def _sides(fault: Cut | Isolate | Partition, scene: Scene) -> tuple[Sequence[Sequence[str]], str]:
    """Between whom nothing passes, and that in words."""
    if isinstance(fault, Cut):
        source, target = scene.name(fault.source), scene.name(fault.target)
        _distinct([source, target])
        return [[source], [target]], f"{source}{'-' if fault.both else '>'}{target}"
    if isinstance(fault, Isolate):
        name = scene.name(fault.peer)
        return [[name], [*scene.others([name]), BROKER]], name
    named = [[scene.name(who) for who in side] for side in fault.sides]
    everyone = [name for side in named for name in side]
    _distinct(everyone)
    if [] in named:
        named[named.index([])] = list(scene.others(everyone))
    if BROKER not in everyone:
        max(named, key=len).append(BROKER)
    return named, "|".join(",".join(side) for side in named)


def _distinct(names: Sequence[str]) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise Unconfirmed(f"{twice[0]} would be on both sides of it")
