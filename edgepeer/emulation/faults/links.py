"""Faults of links: rules in the kernel's firewall that must be in force, and must have dropped something."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from itertools import combinations, product
from typing import Any, Final

from edgepeer.emulation.faults.kinds import Cut, Isolate, Partition
from edgepeer.emulation.faults.scene import BROKER_NAME, Scene, Unconfirmed

__all__ = ["CutBook", "LinkFault"]

_Pair = tuple[str, str]

_TRAFFIC_S: Final = 2.0
"""How much longer a cut lasts until something has tried to pass: heartbeats come more often."""
_POLL_S: Final = 0.02


class CutBook:
    """Which directions are cut by how many faults: each is healed with its last. A broker's are one direction."""

    def __init__(self, scene: Scene) -> None:
        self._network = scene.network
        self._count: Counter[_Pair] = Counter()
        self._busy = asyncio.Lock()

    @property
    def pairs(self) -> frozenset[_Pair]:
        """What is cut."""
        return frozenset(+self._count)

    async def cut(self, pair: _Pair) -> int:
        """Returns: how many packets the other faults that cut the same have dropped until now."""
        source, target = pair
        async with self._busy:
            self._count[pair] += 1
            if self._count[pair] > 1:
                return await self.dropped(pair)
            if target == BROKER_NAME:
                await self._network.cut_broker(source)
            else:
                await self._network.cut(source, target)
            return 0

    async def heal(self, pair: _Pair) -> None:
        source, target = pair
        async with self._busy:
            self._count[pair] -= 1
            if self._count[pair] > 0:
                return
            if target == BROKER_NAME:
                await self._network.heal_broker(source)
            else:
                await self._network.heal(source, target)

    async def in_force(self) -> set[_Pair]:
        """What the kernel says."""
        peers = await self._network.rules()
        return {*peers, *((name, BROKER_NAME) for name in await self._network.broker_rules())}

    async def dropped(self, pair: _Pair) -> int:
        """Packets since the first of the faults that cut it, until the last was healed."""
        source, target = pair
        if target == BROKER_NAME:
            return await self._network.dropped_broker(source)
        return await self._network.dropped(source, target)


class LinkFault:
    """A cut, an isolation or a partition."""

    def __init__(self, fault: Cut | Isolate | Partition, scene: Scene, book: CutBook) -> None:
        self._scene = scene
        self._book = book
        sides, self.target = _sides(fault, scene)
        pairs = [pair for one, other in combinations(sides, 2) for pair in product(one, other)]
        both = not isinstance(fault, Cut) or fault.both
        self.pairs: tuple[_Pair, ...] = tuple(direction for pair in pairs for direction in _directions(pair, both))
        self._used = [pair for pair in pairs if BROKER_NAME not in pair and scene.linked(*pair)]
        self._before: dict[_Pair, int] = {}
        self.confirmed: dict[str, Any] = {}

    async def inject(self) -> None:
        """Cut all of it.

        Raises:
            Unconfirmed: the kernel does not list one of the rules.
        """
        for pair in self.pairs:
            self._before[pair] = await self._book.cut(pair)
        missing = sorted(set(self.pairs) - await self._book.in_force())
        if missing:
            raise Unconfirmed(f"the kernel has no rule from {missing[0][0]} to {missing[0][1]}")
        self.confirmed = {"rules": [f"{source}>{target}" for source, target in self.pairs]}

    async def lift(self) -> None:
        """Heal it, unless other faults cut the same.

        Raises:
            Unconfirmed: a rule is gone; or two are neighbours in the tree, and nothing tried to pass between them.
        """
        missing = sorted(set(self.pairs) - await self._book.in_force())
        await self._tried()
        for pair in self.pairs:
            await self._book.heal(pair)
        if missing:
            raise Unconfirmed(f"the kernel has lost the rule from {missing[0][0]} to {missing[0][1]}")
        dropped = {pair: await self._book.dropped(pair) - self._before[pair] for pair in self.pairs}
        self.confirmed["dropped"] = {f"{source}>{target}": count for (source, target), count in dropped.items()}
        if not self._used:
            self.confirmed["note"] = "no traffic between them is to be expected"
        for one, other in self._used:
            if not _between(dropped, one, other):
                raise Unconfirmed(f"nothing tried to pass between {one} and {other}, which are neighbours in the tree")

    async def _tried(self) -> None:
        """Wait until something has tried to pass the links that are in use, but not for ever."""
        deadline = asyncio.get_running_loop().time() + _TRAFFIC_S
        used = [pair for pair in self.pairs if pair in self._used or pair[::-1] in self._used]
        while asyncio.get_running_loop().time() < deadline:
            dropped = {pair: await self._book.dropped(pair) - self._before[pair] for pair in used}
            if all(_between(dropped, *pair) for pair in self._used):
                return
            await asyncio.sleep(_POLL_S)


def _between(dropped: dict[_Pair, int], one: str, other: str) -> int:
    return dropped.get((one, other), 0) + dropped.get((other, one), 0)


def _directions(pair: _Pair, both: bool) -> tuple[_Pair, ...]:
    source, target = pair
    if BROKER_NAME in pair:
        return ((target if source == BROKER_NAME else source, BROKER_NAME),)
    return ((source, target), (target, source)) if both else ((source, target),)


def _sides(fault: Cut | Isolate | Partition, scene: Scene) -> tuple[Sequence[Sequence[str]], str]:
    """Between whom nothing passes, and that in words."""
    if isinstance(fault, Cut):
        source, target = scene.name(fault.source), scene.name(fault.target)
        _distinct([source, target])
        return [[source], [target]], f"{source}{'-' if fault.both else '>'}{target}"
    if isinstance(fault, Isolate):
        name = scene.name(fault.peer)
        return [[name], [*scene.others([name]), BROKER_NAME]], name
    named = [[scene.name(who) for who in side] for side in fault.sides]
    everyone = [name for side in named for name in side]
    _distinct(everyone)
    if [] in named:
        named[named.index([])] = list(scene.others(everyone))
    if BROKER_NAME not in everyone:
        max(named, key=len).append(BROKER_NAME)
    return named, "|".join(",".join(side) for side in named)


def _distinct(names: Sequence[str]) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise Unconfirmed(f"{twice[0]} would be on both sides of it")
