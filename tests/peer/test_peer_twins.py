"""A device that was copied: what a second peer of one id does to the first, before it ends."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from peer_fleet import DEADLINE_S, Broker, fleet, peer_at

from edgepeer import Peer
from edgepeer.errors import ConfigError, FellBehind, LeftFabric


async def reduces(peer: Peer, with_all: dict[str, int]) -> None:
    """Counts the rounds that it was in with all three; it may be out of the view, and in again, before. Until
    cancelled: of a round that the others count it may not have heard."""
    while True:
        await peer.ready(1)
        try:
            outcome = await peer.allreduce(np.ones(3))
        except (LeftFabric, FellBehind):
            continue  # the others have gone on without it meanwhile
        with_all[peer.id] += outcome.weight == 3.0


@pytest.mark.parametrize("copied", ["a", "b", "c"])
async def test_who_was_there_first_is_in_again_when_its_copy_has_ended(copied: str, broker: Broker) -> None:
    """The others have heard the copy in a later life, and take the first for dead: it comes back in one that is later
    still."""
    async with asyncio.timeout(DEADLINE_S), fleet(broker, "a", "b", "c") as peers:
        with pytest.raises(ConfigError, match="another peer with the id"):
            async with peer_at(broker, copied) as copy:
                await copy.ready(4)
        with_all = dict.fromkeys("abc", 0)
        async with asyncio.TaskGroup() as tasks:
            work = [tasks.create_task(reduces(peer, with_all)) for peer in peers]
            while min(with_all.values()) < 100:  # noqa: ASYNC110  # peers have no Event for that
                await asyncio.sleep(0.001)  # looks again, until the deadline
            for task in work:
                task.cancel()
