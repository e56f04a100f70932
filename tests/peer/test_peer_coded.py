"""Peer.allreduce_chunks: sums of chunks that several peers compute, exact although some are slow, or gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from peer_fleet import DEADLINE_S, Keeper, all_reduce, fleet, peer_at, until, view_of

from edgepeer import Limits, Outcome, Peer
from edgepeer.baselines import MachineMaker
from edgepeer.errors import ConfigError, ContributionMismatch, PeerError
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.peer.switchboard import Switchboard
from edgepeer.transport.base import Listener

NAMES = ("a", "b", "c", "d", "e", "f")
SIZE = 1001


def gradient_of(chunk: int) -> NDArray[np.float64]:
    return np.random.default_rng(chunk).standard_normal(SIZE)


def whole(chunks: int) -> NDArray[np.float64]:
    """The sum that is to come out: each gradient counts as often as its chunk's number + 1 says."""
    return np.asarray(np.sum([(chunk + 1) * gradient_of(chunk) for chunk in range(chunks)], axis=0))


class Worker:
    """Computes gradients, and is stuck after so many, until the round is over."""

    def __init__(self, *, stuck_after: int | None = None) -> None:
        self.left = stuck_after
        self.computed: list[int] = []
        self.cancelled = 0

    async def __call__(self, chunk: int, chunks: int) -> tuple[NDArray[np.float64], float]:
        assert 0 <= chunk < chunks
        if self.left is not None and len(self.computed) >= self.left:
            try:
                await asyncio.Event().wait()
            finally:
                self.left, self.cancelled = None, self.cancelled + 1
        self.computed.append(chunk)
        return gradient_of(chunk), chunk + 1.0


async def rounds_of(peers: Sequence[Peer], workers: Sequence[Worker]) -> list[Outcome]:
    async with asyncio.timeout(DEADLINE_S):
        return await asyncio.gather(
            *(peer.allreduce_chunks(worker) for peer, worker in zip(peers, workers, strict=True))
        )


@pytest.mark.parametrize(
    "code", ["none", "cyclic:s=1", "fractional:s=1", "coded-reduce:s=1", "graph:degree=2", "partial:l=2,replication=3"]
)
async def test_every_code_gives_the_plain_sum(code: str, broker: EmbeddedBroker) -> None:
    if code == "none":
        async with fleet(broker, *NAMES) as peers:
            with pytest.raises(PeerError, match="not coded: give it a code"):
                await peers[0].allreduce_chunks(Worker())
        return
    async with fleet(broker, *NAMES, code=code) as peers:
        for number in (1, 2):
            outcomes = await rounds_of(peers, [Worker() for _ in peers])
            assert len({outcome.digest for outcome in outcomes}) == 1
            for outcome in outcomes:
                chunks = len(outcome.chunks)
                assert outcome.chunks == tuple(range(chunks))
                assert (outcome.exact, outcome.error, outcome.round) == (True, 0, number)
                np.testing.assert_allclose(outcome.vector, whole(chunks), rtol=1e-10, atol=1e-9)
                assert outcome.weight == pytest.approx(chunks * (chunks + 1) / 2)
                np.testing.assert_allclose(outcome.mean, whole(chunks) / outcome.weight, rtol=1e-10, atol=1e-9)


async def test_the_shape_that_was_given_comes_back(broker: EmbeddedBroker) -> None:
    async def gradient(chunk: int, chunks: int) -> tuple[list[NDArray[np.float32]], float]:
        return [np.full((2, 3), chunk, np.float32), np.array(1.0, np.float32)], 2.0

    async with fleet(broker, *NAMES[:3], code="partial:l=2,replication=2") as peers:
        outcomes = await asyncio.gather(*(peer.allreduce_chunks(gradient) for peer in peers))
    matrix, scalar = outcomes[0].mean
    np.testing.assert_allclose(matrix, np.ones((2, 3)), rtol=1e-5)
    assert scalar.shape == ()
    assert scalar == pytest.approx(1)


async def test_a_peer_that_is_stuck_costs_nothing(broker: EmbeddedBroker) -> None:
    async with fleet(broker, *NAMES, code="cyclic:s=1") as peers:
        for stuck in (5, 0, 3):
            workers = [Worker(stuck_after=0 if number == stuck else None) for number in range(6)]
            for outcome in await rounds_of(peers, workers):
                assert outcome.exact
                assert NAMES[stuck] not in outcome.contributors
                np.testing.assert_allclose(outcome.vector, whole(6), rtol=1e-9, atol=1e-8)
            assert workers[stuck].cancelled == 1  # the round was over without it


async def test_what_slow_peers_have_done_counts(broker: EmbeddedBroker) -> None:
    """Nobody computes more than the first of three chunks: only all of them together have everything."""
    async with fleet(broker, *NAMES, code="partial:l=1,replication=3") as peers:
        workers = [Worker(stuck_after=1) for _ in peers]
        for outcome in await rounds_of(peers, workers):
            assert outcome.exact
            assert set(outcome.contributors) == set(NAMES)
            np.testing.assert_allclose(outcome.vector, whole(6), rtol=1e-10, atol=1e-9)
        assert [len(worker.computed) for worker in workers] == [1] * 6


async def test_half_a_chunk_weighs_half_of_it_whoever_has_computed_it(broker: EmbeddedBroker) -> None:
    """Of one worker of eight, what its chunk counted for was next to nothing, so the mean was of any size."""
    names = (*NAMES, "g", "h")
    async with fleet(broker, *names, code="partial:l=2,replication=4", wait="deadline:0.1") as peers:
        for one in range(len(peers)):
            workers = [Worker(stuck_after=int(number == one)) for number in range(len(peers))]
            outcome = (await rounds_of(peers, workers))[one]
            if not outcome.contributors:
                continue  # that one was late
            (chunk,) = workers[one].computed
            assert (outcome.contributors, outcome.exact, outcome.chunks) == ((names[one],), False, ())
            assert outcome.weight == pytest.approx((chunk + 1) / 2)
            assert isinstance(outcome.mean, np.ndarray)
            assert np.linalg.norm(outcome.mean) < 2 * np.linalg.norm(gradient_of(chunk))


async def test_an_approximate_sum_says_so(broker: EmbeddedBroker) -> None:
    """The first four of six are enough; two are stuck."""
    async with fleet(broker, *NAMES, code="first:s=2") as peers:
        assert peers[0].view is not None
        slots = peers[0].view.slots  # in the order in which they were let in
        lost = [slots.index(NAMES[number]) for number in (2, 4)]
        workers = [Worker(stuck_after=0 if number in (2, 4) else None) for number in range(6)]
        outcomes = await rounds_of(peers, workers)
    for outcome in outcomes:
        assert not outcome.exact
        assert outcome.chunks == tuple(chunk for chunk in range(6) if chunk not in lost)
        assert outcome.error == pytest.approx(2)
        found = whole(6) - sum((chunk + 1) * gradient_of(chunk) for chunk in lost)
        np.testing.assert_allclose(outcome.vector, found, rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize(("wait", "missing"), [("error<1.5", 1), ("deadline:0.3", 2)])
async def test_policies(wait: str, missing: int, broker: EmbeddedBroker) -> None:
    async with fleet(broker, *NAMES, code="partial:l=1,replication=1", wait=wait) as peers, asyncio.timeout(DEADLINE_S):
        found = {0}
        while found != {6 - missing}:  # who stands still until the deadline has passed is not counted either
            workers = [Worker(stuck_after=0 if number > 5 - missing else None) for number in range(6)]
            outcomes = await rounds_of(peers, workers)
            found = {len(outcome.chunks) for outcome in outcomes}
            assert found == {6 - missing} or (wait.startswith("deadline") and max(found) < 6 - missing)
            for outcome in outcomes:
                assert (outcome.exact, outcome.error) == (False, 6 - len(outcome.chunks))


async def test_who_leaves_hands_its_chunks_on(broker: EmbeddedBroker) -> None:
    async with fleet(broker, *NAMES[:5], code="cyclic:s=1") as peers:
        async with peer_at(broker, "f", code="cyclic:s=1") as last:
            await asyncio.gather(*(join_run(peer) for peer in (*peers, last)))
            await rounds_of([*peers, last], [Worker() for _ in range(6)])
        await asyncio.gather(*(view_of(peer, *NAMES[:5]) for peer in peers))
        for peer in peers:
            assert peer.view is not None
            assert len(peer.view.slots) == 6  # the code stays the same
            assert set(peer.view.slots) == set(NAMES[:5])
        for outcome in await rounds_of(peers, [Worker() for _ in range(5)]):
            assert (outcome.exact, outcome.round, outcome.chunks) == (True, 2, (0, 1, 2, 3, 4, 5))
            np.testing.assert_allclose(outcome.vector, whole(6), rtol=1e-9, atol=1e-8)


async def join_run(peer: Peer) -> None:
    """A run keeps its code when its members change. Its state is of no interest here."""
    peer.attach(Keeper(peer))
    peer.want_run("run", 6)
    await until(peer, lambda: peer.view is not None and peer.view.run == "run" and peer.committed == 0)


async def test_an_error_of_the_program_is_the_callers(broker: EmbeddedBroker) -> None:
    async def fails(chunk: int, chunks: int) -> tuple[NDArray[np.float64], float]:
        raise ArithmeticError("no gradient today")

    async with fleet(broker, *NAMES[:3], code="cyclic:s=1") as peers:
        calls = [asyncio.create_task(peer.allreduce_chunks(Worker())) for peer in peers[:2]]
        with pytest.raises(ArithmeticError, match="no gradient today"):
            await peers[2].allreduce_chunks(fails)
        async with asyncio.timeout(DEADLINE_S):
            assert all(outcome.exact for outcome in await asyncio.gather(*calls))


@pytest.mark.parametrize("number", [1e-45, 3e38])
@pytest.mark.parametrize("code", ["cyclic:s=1", "partial:l=1,replication=2"])
async def test_numbers_that_are_too_large_or_small_do_not_keep_others_waiting(
    code: str, number: float, broker: EmbeddedBroker
) -> None:
    async def compute(chunk: int, chunks: int) -> tuple[NDArray[np.float32], float]:
        return np.full(4, number, np.float32), 0.5

    with np.errstate(all="raise"):
        async with fleet(broker, "a", "b", "c", code=code) as peers, asyncio.timeout(DEADLINE_S):
            for outcome in await asyncio.gather(*(peer.allreduce_chunks(compute) for peer in peers)):
                assert outcome.chunks == (0, 1, 2)


async def test_different_codes_do_not_mix(broker: EmbeddedBroker) -> None:
    async with fleet(broker, "a", "b", code="cyclic:s=1") as peers, peer_at(broker, "c", code="partial") as other:
        await asyncio.gather(*(view_of(peer, "a", "b", "c") for peer in (*peers, other)))
        calls = [asyncio.create_task(peer.allreduce_chunks(Worker())) for peer in (*peers, other)]
        async with asyncio.timeout(DEADLINE_S):
            results = await asyncio.gather(*calls, return_exceptions=True)
    errors = [result for result in results if isinstance(result, ContributionMismatch)]
    assert errors
    assert "partial" in str(errors[0])


async def test_plain_and_coded_rounds_do_not_mix(broker: EmbeddedBroker) -> None:
    async with fleet(broker, "a", "b", code="cyclic:s=1") as peers:
        with pytest.raises(ContributionMismatch, match="brings a plain vector, but rounds are coded here"):
            await all_reduce(peers, [np.ones(3), np.ones(3)])


@pytest.mark.parametrize(
    ("code", "wait", "said"),
    [
        ("nosuch:s=1", "exact", "there is no code 'nosuch'"),
        ("cyclic:t=1", "exact", "cyclic takes s, not 't'"),
        ("cyclic:s=1", "soon", "wait = 'soon': must be exact, error<E or deadline:SECONDS"),
    ],
)
def test_a_code_that_there_is_not(code: str, wait: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Peer(code=code, wait=wait)


def test_only_fault_tolerant_rounds_are_coded() -> None:
    with pytest.raises(ConfigError, match="only rounds of ft-tree can be coded, not of ring"):
        Peer(code="cyclic:s=1", machine=MachineMaker("ring"))


async def test_a_code_that_is_none_for_so_many(broker: EmbeddedBroker) -> None:
    async with fleet(broker, "a", "b", code="partial:l=1,replication=5") as peers:
        results = await asyncio.gather(*(peer.allreduce_chunks(Worker()) for peer in peers), return_exceptions=True)
    for result in results:
        assert isinstance(result, ContributionMismatch)
        assert "5 copies of each chunk can't be spread over 2 workers" in str(result)


async def test_a_machine_that_stands_still_while_a_peer_starts(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it begins to listen, for longer than its silence would be borne: it notices, and writes a letter to itself."""
    listen = Switchboard.listen

    async def late(self: Switchboard, at: str) -> Listener:
        listener = await listen(self, at)
        time.sleep(0.5)  # noqa: ASYNC251  # all of the loop is to stand still
        await asyncio.sleep(0.01)  # a turn of the loop, in which its timers are due
        return listener

    monkeypatch.setattr(Switchboard, "listen", late)
    async with peer_at(broker, "a", code="cyclic:s=1", limits=Limits(settle_s=0.05, silence_s=0.1)) as peer:
        assert (await peer.ready()).size == 1
