"""Two fleets that were one fabric without knowing: the smaller gives up what it has done, and is told so."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses

import numpy as np
import pytest
from peer_fleet import DEADLINE_S, QUICK, all_reduce, fleet, view_of

from edgepeer import Peer
from edgepeer.errors import BegunAnew, FellBehind
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.ids import generation_order


async def test_who_gives_up_what_it_has_done_is_told_once(broker: EmbeddedBroker) -> None:
    one = np.ones(3)
    async with contextlib.AsyncExitStack() as stack:
        elsewhere = await stack.enter_async_context(contextlib.AsyncExitStack())
        first = await elsewhere.enter_async_context(EmbeddedBroker())
        both = f"{first.address.url()},{broker.address.url()}"
        few = [await stack.enter_async_context(Peer(both, "lab", peer_id=name, limits=QUICK)) for name in "ab"]
        await asyncio.gather(*(view_of(peer, "a", "b") for peer in few))
        # However slow they are here, the three begin together: more founders count more than those two.
        patient = dataclasses.replace(QUICK, settle_s=2.0)
        many = await stack.enter_async_context(fleet(broker, "c", "d", "e", limits=patient))
        a, b = few
        before = await all_reduce(few, [one, one])
        assert {outcome.generation for outcome in before} == {str(a.view.generation)}  # type: ignore[union-attr]
        pending = asyncio.create_task(a.allreduce(one))
        await elsewhere.aclose()  # now they meet the others
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(BegunAnew, match=r"round 2: generation 1-\w+ has begun, and what was done in 1-\w+ is"):
                await pending
        for peer in (*few, *many):
            await view_of(peer, *"abcde")
        with pytest.raises(
            FellBehind, match=r"generation 1-\w+ has begun, and what was done in 1-\w+ is given up"
        ) as told:
            await b.allreduce(one)
        assert type(told.value) is BegunAnew
        # Nobody is told twice, nor who has given up nothing.
        after = await all_reduce([*few, *many], [one] * 5)
        assert {(outcome.round, outcome.weight, outcome.exact) for outcome in after} == {(1, 5.0, True)}
        (generation,) = {outcome.generation for outcome in after}
        assert generation != before[0].generation
        assert generation_order(generation)[0] == 1
