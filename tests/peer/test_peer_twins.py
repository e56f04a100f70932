"""A device that was copied: what a second peer of one id does to the first, before it ends."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from peer_fleet import DEADLINE_S, Broker, fleet, peer_at

from edgepeer import Peer
from edgepeer.errors import ConfigError, FellBehind, LeftFabric


async def reduces_with_all(peer: Peer, weight: float, times: int) -> None:
    """Until it was in so many rounds of that weight; it may be out of the view, and in again, before."""
    while times:
        await peer.ready(1)
        try:
            outcome = await peer.allreduce(np.ones(3))
        except (LeftFabric, FellBehind):
            continue  # the others have gone on without it meanwhile
        times -= outcome.weight == weight


@pytest.mark.parametrize("copied", ["a", "b", "c"])
async def test_who_was_there_first_is_in_again_when_its_copy_has_ended(copied: str, broker: Broker) -> None:
    """The others have heard the copy in a later life, and take the first for dead: it comes back in one that is later
    still."""
    async with asyncio.timeout(DEADLINE_S), fleet(broker, "a", "b", "c") as peers:
        with pytest.raises(ConfigError, match="another peer with the id"):
            async with peer_at(broker, copied) as copy:
                await copy.ready(4)
        await asyncio.gather(*(reduces_with_all(peer, 3.0, 100) for peer in peers))
