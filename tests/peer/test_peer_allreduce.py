"""Peer.allreduce: what goes in, what comes out."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import pytest
import xxhash
from peer_fleet import DEADLINE_S, all_reduce, fleet, peer_at

from edgepeer import Peer
from edgepeer.errors import NotReady, PeerError
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.peer.outcome import check_weight


async def test_the_example_of_the_readme(broker: EmbeddedBroker, both_loops: None) -> None:
    async with fleet(broker, "a", "b", "c") as peers:
        gradients = [np.arange(5, dtype=np.float32) * factor for factor in (1, 2, 6)]
        outcomes = await all_reduce(peers, gradients, weight=100)
    for outcome in outcomes:
        np.testing.assert_array_equal(outcome.mean, np.arange(5) * np.float32(3))
        np.testing.assert_array_equal(outcome.sum, np.arange(5) * np.float32(900))
        assert set(outcome.contributors) == {"a", "b", "c"}
        assert outcome.exact
        assert outcome.weight == 300
        assert outcome.seconds > 0
        assert outcome.round == outcomes[0].round >= 1
        assert outcome.digest == xxhash.xxh3_128_hexdigest(outcome.vector.tobytes())


def _values(kind: str, rank: int) -> Any:
    rng = np.random.default_rng(rank)
    draw = rng.standard_normal
    match kind:
        case "float32":
            return draw(1001).astype(np.float32)
        case "float64":
            return draw(1001)
        case "big-endian":
            return draw(77).astype(">f4")
        case "empty":
            return np.empty(0, dtype=np.float32)
        case "one":
            return draw(1).astype(np.float32)
        case "scalar":
            return np.array(rng.random(), dtype=np.float32)
        case "matrix":
            return draw((13, 7)).astype(np.float32)
        case "strided":
            return draw((40, 30))[::3, ::-2]
        case "fortran":
            return np.asfortranarray(draw((5, 9)).astype(np.float32))
        case "list":
            return [draw((3, 4)).astype(np.float32), np.empty((0, 2), np.float32), draw(5).astype(np.float32)]
        case "list with a scalar":
            return [draw((3, 4)).astype(np.float32), np.float32(rng.random())]
        case "tuple of float64":
            return (draw(2), draw((1, 1, 3)))
        case "segments":
            return draw(300_001).astype(np.float32)
    raise AssertionError(kind)


KINDS = (
    "float32", "float64", "big-endian", "empty", "one", "scalar", "matrix", "strided", "fortran", "list",
    "list with a scalar", "tuple of float64", "segments",
)  # fmt: skip


async def test_shapes_and_types_come_back_as_they_went_in(broker: EmbeddedBroker) -> None:
    weights = (1.0, 2.5, 0.0, 7.0)
    async with fleet(broker, "a", "b", "c", "d", fanout=2) as peers:
        for kind in KINDS:
            values = [_values(kind, rank) for rank in range(4)]
            before = [[np.array(array) for array in _as_list(value)] for value in values]
            async with asyncio.timeout(DEADLINE_S):
                outcomes = await asyncio.gather(
                    *(
                        peer.allreduce(value, weight=weight)
                        for peer, value, weight in zip(peers, values, weights, strict=True)
                    )
                )
            assert len({outcome.digest for outcome in outcomes}) == 1
            for outcome in outcomes:
                assert outcome.weight == 10.5
                assert isinstance(outcome.mean, list) == isinstance(values[0], list | tuple)
                for at, mean in enumerate(_as_list(outcome.mean)):
                    expected = sum(w * arrays[at].astype(np.float64) for w, arrays in zip(weights, before, strict=True))
                    assert mean.shape == before[0][at].shape, kind
                    assert mean.dtype == before[0][at].dtype.newbyteorder("<"), kind
                    tolerance = 1e-5 if mean.dtype.itemsize == 4 else 1e-12
                    np.testing.assert_allclose(mean, expected / 10.5, rtol=tolerance, atol=tolerance)
            for value, copies in zip(values, before, strict=True):
                for array, copy in zip(_as_list(value), copies, strict=True):
                    np.testing.assert_array_equal(array, copy)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
async def test_matrices_are_taken_as_arrays(broker: EmbeddedBroker) -> None:
    async with fleet(broker, "a", "b") as peers:
        value = np.matrix([[1.0, 2.0], [3.0, 4.0]])
        for outcome in [*await all_reduce(peers, [value, value]), *await all_reduce(peers, [value.T, value])]:
            assert type(outcome.sum) is np.ndarray
            assert outcome.sum.shape == (2, 2)


@pytest.mark.parametrize("precision", ["float32", "bf16", "int8"])
async def test_what_numpy_does_about_errors_is_for_the_programs_own_numbers(
    precision: Any, broker: EmbeddedBroker
) -> None:
    with np.errstate(all="raise"):
        async with fleet(broker, "a", "b", "c") as peers:
            small, large = (np.full(3, number, np.float32) for number in (1e-45, 3e38))
            for outcome in await all_reduce(peers, [small] * 3, weight=0.5, precision=precision):
                np.testing.assert_array_equal(outcome.sum, np.zeros(3))
            if precision == "float32":
                for outcome in await all_reduce(peers, [large] * 3):
                    assert np.isposinf(outcome.sum).all()


async def test_one_peer_alone(broker: EmbeddedBroker) -> None:
    async with fleet(broker, "a") as (peer,):
        outcome = await peer.allreduce(np.array([3.0, 4.0]), weight=2)
        np.testing.assert_array_equal(outcome.mean, [3, 4])
        np.testing.assert_array_equal(outcome.sum, [6, 8])
        assert outcome.contributors == ("a",)


async def test_one_that_calls_on_and_on_alone_can_be_joined(broker: EmbeddedBroker, both_loops: None) -> None:
    async with fleet(broker, "a") as (a,):

        async def call_on() -> None:
            end = time.monotonic() + DEADLINE_S  # a loop that has no turns knows no timeouts
            while time.monotonic() < end:
                await a.allreduce(np.ones(3))

        calls = asyncio.create_task(call_on())
        async with asyncio.timeout(DEADLINE_S), peer_at(broker, "b") as b:
            await b.ready(2)
            assert set((await b.allreduce(np.ones(3))).contributors) == {"a", "b"}
            calls.cancel()
            await asyncio.gather(calls, return_exceptions=True)


async def test_one_that_tries_on_and_on_gets_in(broker: EmbeddedBroker, both_loops: None) -> None:
    end = time.monotonic() + DEADLINE_S
    async with peer_at(broker, "a") as a:
        while True:
            try:
                outcome = await a.allreduce(np.ones(3))
            except NotReady:
                assert time.monotonic() < end
            else:
                break
        assert outcome.contributors == ("a",)


async def test_results_may_not_be_written_and_survive_later_rounds(broker: EmbeddedBroker) -> None:
    async with fleet(broker, "a", "b", "c") as peers:
        kept = []
        for number in range(6):
            outcomes = await all_reduce(peers, [np.full(50_000, number + rank, np.float32) for rank in range(3)])
            kept.append(outcomes)
            for outcome in outcomes:
                with pytest.raises(ValueError, match="read-only"):
                    outcome.sum[0] = 1
        for number, outcomes in enumerate(kept):
            for outcome in outcomes:
                assert (outcome.sum == 3 * number + 3).all()


async def test_own_array_may_be_reused_as_soon_as_the_call_returns(broker: EmbeddedBroker) -> None:
    async with fleet(broker, "a", "b", "c", "d", "e", "f", "g") as peers:

        async def work(rank: int) -> list[float]:
            vector = np.empty(100_000, np.float32)
            sums = []
            for number in range(20):
                vector.fill(rank + number)
                outcome = await peers[rank].allreduce(vector)
                vector.fill(np.nan)
                sums.append(outcome.sum)
            return [float(total.min()) for total in sums if total.min() == total.max()]

        async with asyncio.timeout(DEADLINE_S):
            results = await asyncio.gather(*map(work, range(7)))
    assert all(result == [21.0 + 7 * number for number in range(20)] for result in results)


async def test_weights_of_nothing(broker: EmbeddedBroker) -> None:
    async with fleet(broker, "a", "b") as peers:
        values = [np.array([np.nan, np.inf], np.float32), np.array([1.0, 2.0], np.float32)]
        async with asyncio.timeout(DEADLINE_S):
            outcomes = await asyncio.gather(peers[0].allreduce(values[0], weight=0), peers[1].allreduce(values[1]))
        for outcome in outcomes:
            np.testing.assert_array_equal(outcome.mean, [1, 2])
            assert set(outcome.contributors) == {"a", "b"}
        for outcome in await all_reduce(peers, values, weight=0):
            np.testing.assert_array_equal(outcome.mean, [0, 0])
            assert outcome.weight == 0


@pytest.mark.parametrize(
    "weight",
    [
        *(-1.0, float("nan"), float("inf"), 10**400, np.float16("inf"), np.float32("inf"), np.float64("nan")),
        *("1", None, [1.0], np.ones(2)),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
async def test_bad_weights(weight: Any, dtype: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"weight = .*: must be finite and not negative, as a float"):
        await Peer().allreduce(np.ones(2, dtype), weight=weight)


@pytest.mark.parametrize("weight", [2, 2.0, np.float16(2), np.float32(2), np.int8(2), True + 1])
@pytest.mark.parametrize("dtype", ["<f4", "<f8"])
def test_weights_of_any_type(weight: Any, dtype: str) -> None:
    assert check_weight(weight, np.dtype(dtype)) == 2.0


@pytest.mark.parametrize(
    ("precision", "said"),
    [
        ("fp16", "precision = 'fp16': must be one of float32, bf16, int8"),
        ("", "precision = '': must be one of float32, bf16, int8"),
        ("bf16", "precision = 'bf16': is for float32, not for float64, which travels as it is"),
        ("int8", "precision = 'int8': is for float32, not for float64, which travels as it is"),
    ],
)
async def test_bad_precisions(precision: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}$"):
        await Peer().allreduce(np.ones(2), precision=precision)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.ones(2, dtype=np.int64), "float32 or float64, not int64"),
        (np.ones(2, dtype=np.float16), "float32 or float64, not float16"),
        (np.ones(2, dtype=np.complex64), "float32 or float64, not complex64"),
        (np.array(["a"]), "float32 or float64, not <U1"),
        ([], "non-empty list"),
        ([1.0, 2.0], "an array or a non-empty list of arrays"),
        ([np.ones(2), np.ones(2, np.float32)], "one dtype, not float32, float64"),
        ([np.ones(2, np.int8)], "float32 or float64, not int8"),
        (np.ma.masked_invalid([1.0, np.nan]), "no masked arrays"),
        ([np.ma.masked_invalid([1.0, np.nan])], "no masked arrays"),
    ],
)
async def test_bad_values(value: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        await Peer().allreduce(value)


async def test_one_at_a_time(broker: EmbeddedBroker) -> None:
    async with fleet(broker, "a", "b") as (a, b):
        first = asyncio.create_task(a.allreduce(np.ones(3)))
        await asyncio.sleep(0)
        with pytest.raises(PeerError, match="has not ended"):
            await a.allreduce(np.ones(3))
        await b.allreduce(np.ones(3))
        assert (await first).weight == 2


async def test_a_cancelled_call_still_counts(broker: EmbeddedBroker) -> None:
    async with fleet(broker, "a", "b") as (a, b):
        cancelled = asyncio.create_task(a.allreduce(np.full(3, 5.0)))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        with pytest.raises(PeerError, match="was cancelled in mid-round"):
            await a.allreduce(np.ones(3))
        outcome = await b.allreduce(np.full(3, 1.0))
        assert set(outcome.contributors) == {"a", "b"}
        np.testing.assert_array_equal(outcome.sum, [6, 6, 6])
        # Over now at both, so the next call of both is the same round again.
        outcomes = await all_reduce([a, b], [np.ones(3), np.ones(3)])
        assert [outcome.round for outcome in outcomes] == [2, 2]
