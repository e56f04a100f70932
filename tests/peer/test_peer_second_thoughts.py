"""Calls that are given up, identities that are lost, and jobs that follow each other."""

from __future__ import annotations

import asyncio
import signal
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peer_fleet import DEADLINE_S, Stranger, all_reduce, fleet, peer_at, view_of

from edgepeer.errors import PeerError
from edgepeer.fabric.broker import EmbeddedBroker


@pytest.mark.parametrize("who", [0, 1], ids=["root", "leaf"])
async def test_after_a_cancelled_call_the_array_is_the_callers_again(broker: EmbeddedBroker, who: int) -> None:
    async with fleet(broker, "a", "b") as peers:
        mine = np.ones(1000, np.float32)
        call = asyncio.ensure_future(peers[who].allreduce(mine))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        mine[:] = 999
        with pytest.raises(PeerError, match="one at a time"):
            await peers[who].allreduce(mine)
        async with asyncio.timeout(DEADLINE_S):
            outcome = await peers[1 - who].allreduce(np.ones(1000, np.float32))
        np.testing.assert_array_equal(outcome.sum, np.full(1000, 2, np.float32))
        assert outcome.exact
        assert set(outcome.contributors) == {"a", "b"}


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan"), float("inf"), 10**400])
async def test_bad_timeouts_leave_the_peer_as_it_was(broker: EmbeddedBroker, timeout: float) -> None:
    async with fleet(broker, "a") as (peer,):
        with pytest.raises(ValueError, match="must be a positive number of seconds"):
            await peer.allreduce(np.ones(2), timeout=timeout)
        with pytest.raises(TypeError, match="timeout = None: must be a positive number of seconds"):
            await peer.allreduce(np.ones(2), timeout=None)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="must be a positive number of seconds"):
            await peer.ready(timeout=timeout)
        assert (await peer.allreduce(np.ones(2), timeout=Decimal(60))).contributors == ("a",)  # type: ignore[arg-type]
        assert (await peer.allreduce(np.ones(2))).contributors == ("a",)


@pytest.mark.parametrize("peers", ["2", None, 1.5, True, 0, -1])
async def test_numbers_of_peers_that_can_not_be_are_refused(broker: EmbeddedBroker, peers: Any) -> None:
    async with fleet(broker, "a") as (peer,):
        with pytest.raises((TypeError, ValueError), match=r"peers = .*: must be a whole number, 1 or more"):
            await peer.ready(peers)
        assert (await peer.ready(np.int64(1))).size == 1  # type: ignore[arg-type]


async def test_weights_that_overflow_the_dtype_are_refused(broker: EmbeddedBroker) -> None:
    async with fleet(broker, "a") as (peer,):
        with pytest.raises(ValueError, match="as a float32"):
            await peer.allreduce(np.ones(2, np.float32), weight=1e300)
        with pytest.raises(ValueError, match="is 0 as a float32"):
            await peer.allreduce(np.ones(2, np.float32), weight=1e-46)
        with pytest.raises(ValueError, match=r"several could be infinite; must be 4\.3\d+e\+304 at most"):
            await peer.allreduce(np.ones(2), weight=1e305)
        assert (await peer.allreduce(np.float64(3), weight=1e300)).mean == 3


async def test_a_mean_by_weights_that_only_together_overflow_the_dtype(broker: EmbeddedBroker) -> None:
    async with fleet(broker, "a", "b") as peers:
        for outcome in await all_reduce(peers, [np.full(2, 1e-3, np.float32)] * 2, weight=3e38):
            assert outcome.weight == 6e38
            np.testing.assert_allclose(outcome.mean, [1e-3, 1e-3], rtol=1e-6)
            assert outcome.mean.dtype == np.float32


async def test_a_peer_whose_incarnation_counts_anew_is_let_in_again(broker: EmbeddedBroker, tmp_path: Path) -> None:
    async with fleet(broker, "a") as (a,), Stranger.come(broker, "b") as stranger:
        before = await view_of(a, "a", "b")
        stranger.signal(signal.SIGKILL)
        # A new state directory counts from 1; without one, the clock had given a far higher number.
        async with peer_at(broker, "b", state_dir=tmp_path) as again:
            await view_of(again, "a", "b")
            async with asyncio.timeout(DEADLINE_S):
                outcomes = await asyncio.gather(a.allreduce(np.ones(3)), again.allreduce(np.ones(3)))
            assert set(outcomes[0].contributors) == set(outcomes[1].contributors) == {"a", "b"}
            assert again.view is not None
            assert again.view.member(again.id).incarnation > before.member(again.id).incarnation
