"""Several peers in one event loop, and ways to wait for what they should come to."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from fleets import Fleet, Identity

from edgepeer import Limits, Outcome, Peer, View
from edgepeer.baselines import MachineMaker
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.fabric.events import FabricEvent
from edgepeer.fabric.mosquitto import Mosquitto
from edgepeer.ids import PeerId
from edgepeer.wire.protocols import ProtocolName

__all__ = [
    "DEADLINE_S",
    "QUICK",
    "Broker",
    "Keeper",
    "Pumps",
    "Stranger",
    "all_reduce",
    "fleet",
    "its_broker",
    "peer_at",
    "until",
    "view_of",
]

DEADLINE_S = 90.0
QUICK = Limits(settle_s=0.05, join_batch_s=0.02)
"""Like the defaults, for fleets that need not wait for anybody on a slow network."""

Broker = EmbeddedBroker | Mosquitto


MEMBERS: Fleet | None = None
"""Set: peers are of that fleet."""


def its_broker() -> Identity | None:
    """Who a broker for these peers must be."""
    return MEMBERS.a_broker() if MEMBERS is not None else None


def peer_at(broker: Broker, name: str | None = None, *, protocol: ProtocolName = "ft-tree", **options: Any) -> Peer:
    """A peer, not yet started."""
    if MEMBERS is not None and name is not None:
        options.setdefault("trust", MEMBERS.member(name))
    if protocol != "ft-tree":
        options["machine"] = MachineMaker(protocol)
    return Peer(broker.address.url(), "lab", **{"peer_id": name, "limits": QUICK, **options})


@contextlib.asynccontextmanager
async def fleet(
    broker: Broker, *names: str, told: Callable[[str, FabricEvent], None] | None = None, **options: Any
) -> AsyncIterator[list[Peer]]:
    """Peers of these names, all in one view when the context opens. `told`: hears what their fabric clients tell."""
    async with contextlib.AsyncExitStack() as stack:
        peers = []
        for name in names:
            hear = {"on_fabric_event": functools.partial(told, name)} if told is not None else {}
            peers.append(await stack.enter_async_context(peer_at(broker, name, **hear, **options)))
        await asyncio.gather(*(view_of(peer, *names) for peer in peers))
        yield peers


class Keeper:
    """Of the state of a run, where that is of no interest.

    Args:
        adopted: gets the peer and the round of every state that has come.
        state: what is given to whoever asks.
    """

    def __init__(self, peer: Peer, adopted: list[tuple[PeerId, int]] | None = None, *, state: bytes = b"state") -> None:
        self._peer = peer
        self._adopted = adopted
        self._state = state

    def state_wanted(self, peer: PeerId, run: str, number: int) -> None:
        self._peer.give_state(peer, run, number, self._state)

    def state_came(self, run: str, number: int, state: memoryview) -> None:
        if self._adopted is not None:
            self._adopted.append((self._peer.id, number))
        self._peer.adopt(run, number)
        self._peer.bell.ring()

    def part_wanted(self, peer: PeerId, name: str) -> None:
        pass


async def until(peer: Peer, condition: Callable[[], bool], deadline: float = DEADLINE_S) -> None:
    """Wait until the condition holds; it is looked at whenever something changes at `peer`."""
    async with asyncio.timeout(deadline):
        while not condition():
            await peer.bell.wait(peer.bell.count)


async def view_of(peer: Peer, *names: str) -> View:
    """Wait until exactly these peers are in the peer's view."""
    await until(peer, lambda: peer.view is not None and set(peer.view.ids) == set(names))
    assert peer.view is not None
    return peer.view


async def all_reduce(peers: Sequence[Peer], values: Sequence[Any], **options: Any) -> list[Outcome]:
    """One round: each peer brings its value."""
    async with asyncio.timeout(DEADLINE_S):
        return await asyncio.gather(
            *(peer.allreduce(value, **options) for peer, value in zip(peers, values, strict=True))
        )


@dataclass
class Pumps:
    """Peers that allreduce on and on, each in a task of its own, and what came out."""

    peers: Sequence[Peer]
    make: Callable[[Peer], np.ndarray] = lambda peer: np.full(1000, _worth(peer.id), dtype=np.float32)
    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aenter__(self) -> Pumps:
        for peer in self.peers:
            self.start(peer)
        return self

    def start(self, peer: Peer) -> None:
        self.outcomes[peer.id] = []
        self._tasks.append(asyncio.create_task(self._pump(peer)))

    async def _pump(self, peer: Peer) -> None:
        value = self.make(peer)
        try:
            while True:
                self.outcomes[peer.id].append(await peer.allreduce(value))
                self._news.set()
        finally:
            self._news.set()

    async def more(self, condition: Callable[[Outcome], bool] = lambda outcome: True, rounds: int = 5) -> Outcome:
        """Wait until every peer has had so many further rounds of that kind; return the last one."""
        start = {name: len(outcomes) for name, outcomes in self.outcomes.items()}

        def enough() -> bool:
            return all(
                sum(map(condition, outcomes[start.get(name, 0) :])) >= rounds
                for name, outcomes in self.outcomes.items()
            )

        async with asyncio.timeout(DEADLINE_S):
            while not enough():
                for task in self._tasks:
                    if task.done():
                        task.result()
                self._news.clear()
                await self._news.wait()
        return next(iter(self.outcomes.values()))[-1]

    async def __aexit__(self, *exception: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def check(self) -> None:
        """Every outcome is the sum over its contributors, and every peer saw the same bits in the same round."""
        seen: dict[int, Outcome] = {}
        for outcomes in self.outcomes.values():
            for outcome in outcomes:
                first = seen.setdefault(outcome.round, outcome)
                assert (first.digest, first.contributors) == (outcome.digest, outcome.contributors)
        for outcome in seen.values():
            expected = sum(_worth(name) for name in outcome.contributors)
            assert (outcome.vector == expected).all(), outcome


def _worth(name: str) -> float:
    """A value for each name such that every set of names has another sum: a power of two."""
    return float(2 ** (ord(name[0]) - ord("a")))


class Stranger:
    """A peer in a process of its own, which is in a view, and brings its worth to round after round."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    @contextlib.asynccontextmanager
    async def come(cls, broker: Broker, name: str) -> AsyncIterator[Stranger]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            Path(__file__).with_name("stranger.py"),
            broker.address.url(),
            name,
            str(_worth(name)),
            *([str(MEMBERS.directory(name))] if MEMBERS is not None else []),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            async with asyncio.timeout(DEADLINE_S):
                assert await process.stdout.readline() == b"ready\n"
            yield cls(process)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)
