"""Calls of `Peer.allreduce_chunks` that are cancelled, come twice, or come too late."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray
from peer_fleet import DEADLINE_S, Keeper, fleet, peer_at, until, view_of

from edgepeer import Outcome, Peer
from edgepeer.coding.scheme import parse_scheme
from edgepeer.errors import ContributionMismatch, FellBehind, PeerError, RoundTimeout
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.ids import PeerId

ONCE = "partial:l=1,replication=1"  # everybody has one chunk, which nobody else has
TWICE = "cyclic:s=1"


class Gradients:
    """Computes gradients of `size` elements, as soon as it may."""

    def __init__(self, size: int = 10, *, at_once: bool = True) -> None:
        self._size = size
        self.go_on = asyncio.Event()
        self.asked = asyncio.Event()
        self.computed = asyncio.Event()
        if at_once:
            self.go_on.set()

    async def __call__(self, chunk: int, chunks: int) -> tuple[NDArray[np.float64], float]:
        self.asked.set()
        await self.go_on.wait()
        self.computed.set()
        return np.full(self._size, 10.0 * chunks + chunk), 1.0

    async def used(self) -> None:
        """Wait until the peer has taken note of the first one."""
        async with asyncio.timeout(DEADLINE_S):
            await self.computed.wait()
        for _ in range(5):
            await asyncio.sleep(0)


def whole(chunks: int, size: int = 10) -> NDArray[np.float64]:
    return np.full(size, sum(10.0 * chunks + chunk for chunk in range(chunks)))


async def together(*peers: Peer, size: int = 10) -> Sequence[Outcome]:
    async with asyncio.timeout(DEADLINE_S):
        return await asyncio.gather(*(peer.allreduce_chunks(Gradients(size)) for peer in peers))


def check(outcomes: Sequence[Outcome], chunks: int, size: int = 10) -> None:
    for outcome in outcomes:
        assert outcome.exact
        np.testing.assert_allclose(outcome.vector, whole(chunks, size), rtol=1e-9)


async def test_what_a_cancelled_call_has_computed_still_counts(broker: EmbeddedBroker) -> None:
    async with fleet(broker, "a", "b", "c", code=ONCE) as (a, b, c):
        gradients = Gradients()
        cancelled = asyncio.create_task(c.allreduce_chunks(gradients))
        await gradients.used()
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        with pytest.raises(PeerError, match="one at a time"):
            await c.allreduce_chunks(Gradients())
        check(await together(a, b), 3)
        check(await together(a, b, c), 3)


async def test_a_second_call_does_not_disturb_the_first(broker: EmbeddedBroker) -> None:
    async with fleet(broker, "a", "b", code=ONCE) as (a, b):
        gradients = Gradients()
        first = asyncio.create_task(a.allreduce_chunks(gradients))
        await gradients.used()
        with pytest.raises(PeerError, match="one at a time"):
            await a.allreduce_chunks(Gradients())
        check([*await together(b), await first], 2)


async def test_a_call_that_was_cancelled_before_anything_was_computed(broker: EmbeddedBroker) -> None:
    async with fleet(broker, "a", "b", code=TWICE) as (a, b):
        gradients = Gradients(at_once=False)
        cancelled = asyncio.create_task(b.allreduce_chunks(gradients))
        async with asyncio.timeout(DEADLINE_S):
            await gradients.asked.wait()
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        check(await together(a), 2)


async def test_who_has_cancelled_and_leaves_holds_nobody_up(broker: EmbeddedBroker) -> None:
    """Also where more have than the code can spare; and to come again is no matter of the round's time."""
    async with fleet(broker, "a", "b", code=TWICE) as (a, b):
        async with peer_at(broker, "c", code=TWICE) as c:
            await asyncio.gather(*(view_of(peer, "a", "b", "c") for peer in (a, b, c)))
            gradients = Gradients(at_once=False)
            cancelled = [asyncio.create_task(peer.allreduce_chunks(gradients)) for peer in (b, c)]
            async with asyncio.timeout(DEADLINE_S):
                await gradients.asked.wait()
            waiting = asyncio.create_task(together(a))
            for call in cancelled:
                call.cancel()
            await asyncio.gather(*cancelled, return_exceptions=True)
            for peer in (b, c):
                with pytest.raises(PeerError, match="have ended the round, or come again as another Peer"):
                    await peer.allreduce_chunks(Gradients())
        check(await waiting, 2)  # of the view without c, where it is enough that a computes
        async with peer_at(broker, "c", code=TWICE) as c:
            await asyncio.gather(*(view_of(peer, "a", "b", "c") for peer in (a, b, c)))
            check(await together(a, b, c), 3)


async def test_nobody_hears_of_a_round_that_the_program_has_ended_itself(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgepeer.peer.calls._VERDICT_S", 0.0)
    computed = []

    async def fails(chunk: int, chunks: int) -> tuple[NDArray[np.float64], float]:
        if computed:
            raise ArithmeticError("no second gradient today")
        computed.append(chunk)
        return np.ones(3), 1.0

    async with fleet(broker, "a", "b", code=TWICE) as (a, b), asyncio.timeout(DEADLINE_S):
        with pytest.raises(ArithmeticError):
            await a.allreduce_chunks(fails, timeout=0.2)
        with pytest.raises(RoundTimeout):  # which a has asked for
            await b.allreduce_chunks(Gradients(at_once=False))
        while a._calls._driver.node.allreduce.contributed:  # noqa: ASYNC110  # the program has no part in it any more
            await asyncio.sleep(0)
        gc.collect()  # an exception that nobody has taken note of would be logged by now


@pytest.mark.parametrize("cancel", [False, True])
async def test_data_that_are_cut_anew_in_mid_round(cancel: bool, broker: EmbeddedBroker) -> None:
    """Without a run, there are as many chunks as members: what was computed of one of three is of no use for halves."""
    async with fleet(broker, "a", "b", code=TWICE) as (a, b):
        gradients = Gradients()
        async with peer_at(broker, "c", code=TWICE) as c:
            await asyncio.gather(*(view_of(peer, "a", "b", "c") for peer in (a, b, c)))
            call = asyncio.create_task(a.allreduce_chunks(gradients))
            await gradients.used()
            if cancel:
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
        check(await together(b), 2)
        if not cancel:
            check([await call], 2)


async def test_rounds_may_differ_in_size(broker: EmbeddedBroker) -> None:
    async with fleet(broker, "a", "b", "c", code=TWICE) as (a, b, c):
        for size in (10, 3, 10):
            check(await together(a, b, c, size=size), 3, size)


@pytest.mark.parametrize("size", [4, 12])
async def test_a_sum_of_another_size_than_this_peers_gradients_is_not_cut_to_theirs(
    size: int, broker: EmbeddedBroker
) -> None:
    """Of the others' alone: with this peer's there would be none."""
    async with fleet(broker, "a", "b", "c", code=TWICE) as (a, b, c):
        check(await together(a, b, c), 3)
        gradients = Gradients(size)

        async def once(chunk: int, chunks: int) -> tuple[NDArray[np.float64], float]:
            if gradients.computed.is_set():
                await asyncio.Event().wait()
            return await gradients(chunk, chunks)

        call = asyncio.create_task(c.allreduce_chunks(once))
        await gradients.used()
        check(await together(a, b), 3)
        with pytest.raises(ContributionMismatch, match=f"decided it with 10 elements; this peer brings {size}"):
            await call
        check(await together(a, b, c), 3)


@pytest.mark.parametrize("code", ["partial:l=2,replication=2", "partial:l=1,replication=2"])
async def test_gradients_of_two_types(code: str, broker: EmbeddedBroker) -> None:
    """They can't be encoded together: the round stood still, after an error that nobody handled; or one was rounded."""

    async def gradient(chunk: int, chunks: int) -> tuple[NDArray[np.float64], float]:
        return np.ones(10, np.float32 if chunk else np.float64), 1.0

    async with fleet(broker, "a", "b", code=code) as (a, b), asyncio.timeout(DEADLINE_S):
        calls = [peer.allreduce_chunks(gradient, timeout=0.5) for peer in (a, b)]
        failed = await asyncio.gather(*calls, return_exceptions=True)
        assert any(isinstance(error, ContributionMismatch) for error in failed)


async def test_outcomes_that_were_not_asked_for_wait_and_too_many_are_lost(broker: EmbeddedBroker) -> None:
    async with fleet(broker, "a", "b", "c", code=TWICE) as (a, b, c):
        check(await together(a, b, c), 3)
        for size in (10, 3):
            check(await together(a, b, size=size), 3, size)
        await until(c, lambda: c.missed == 2)
        check([await c.allreduce_chunks(Gradients(10))], 3, 10)
        check([await c.allreduce_chunks(Gradients(3))], 3, 3)
        for _ in range(9):
            check(await together(a, b), 3)
        await until(c, lambda: c.committed == 12)
        with pytest.raises(FellBehind, match="rounds up to 12 were decided without this peer"):
            await c.allreduce_chunks(Gradients())
        check(await together(a, b, c), 3)


async def test_who_is_far_behind_in_a_run_is_given_its_state(broker: EmbeddedBroker) -> None:
    async with fleet(broker, "a", "b", "c", code=TWICE) as (a, b, c):
        adopted: list[tuple[PeerId, int]] = []
        for peer in (a, b, c):
            peer.attach(Keeper(peer, adopted))
            peer.want_run("run", 3)
        await asyncio.gather(*(until(peer, partial(_is_ready, peer)) for peer in (a, b, c)))
        check(await together(a, b, c), 3)
        adopted.clear()
        for _ in range(9):
            check(await together(a, b), 3)
        await until(c, lambda: bool(adopted))
        assert adopted == [(c.id, 10)]
        assert [outcome.round for outcome in await together(a, b, c)] == [11] * 3


def _is_ready(peer: Peer) -> bool:
    return peer.view is not None and peer.view.run == "run" and peer.committed == 0


async def test_all_may_take_another_code_between_two_rounds(broker: EmbeddedBroker) -> None:
    """Each when its program comes to that: a child may have said what it has computed before its parent has."""
    async with fleet(broker, "a", "b", "c", code=TWICE) as (a, b, c):
        check(await together(a, b, c), 3)
        for late in (a, b, c):
            other = parse_scheme(ONCE if late is not b else TWICE)
            soon = [peer for peer in (a, b, c) if peer is not late]
            for peer in soon:
                peer.use_scheme(other)
            calls = asyncio.create_task(together(*soon))
            await asyncio.sleep(0.1)  # lets what they have computed come first; no test waits by it
            late.use_scheme(other)
            check([*await together(late), *await calls], 3)
