"""Peer.allreduce in bf16 and int8, over TCP: the same bits at all, those that a walk over the trees by hand finds."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from peer_fleet import DEADLINE_S, Broker, all_reduce, fleet

from edgepeer import Outcome, Peer
from edgepeer.errors import ContributionMismatch, NotFinite
from edgepeer.simulation.rounded import rounded_sum
from edgepeer.wire.precision import Precision, encoded_bytes

NAMES = ("a", "b", "c", "d", "e")
LOSSY: list[Precision] = ["bf16", "int8"]
Vector = NDArray[np.float32]


def some(size: int, seed: int) -> Vector:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def check(
    peers: list[Peer], values: list[Vector], weight: float, outcomes: list[Outcome], precision: Precision
) -> None:
    view = peers[0].view
    assert view is not None
    brought = {peer.id: (value, weight) for peer, value in zip(peers, values, strict=True)}
    expected = rounded_sum(view, precision, brought)
    assert expected is not None
    for outcome in outcomes:
        assert outcome.vector.tobytes() == expected.tobytes()
        assert (outcome.precision, outcome.exact, outcome.contributors) == (precision, True, view.ids)
    assert len({outcome.digest for outcome in outcomes}) == 1


async def failures(peers: list[Peer], calls: list[Any]) -> list[BaseException]:
    async with asyncio.timeout(DEADLINE_S):
        ends = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(end, BaseException) for end in ends), ends
    return ends


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("precision", LOSSY)
async def test_all_have_the_same_bits(broker: Broker, precision: Precision, lanes: int) -> None:
    async with fleet(broker, *NAMES, lanes=lanes) as peers:
        for size in (0, 1, 255, 257, 5000, 407_051):
            values = [some(size, seed) for seed in range(len(peers))]
            check(peers, values, 3.0, await all_reduce(peers, values, weight=3.0, precision=precision), precision)
        assert all(peer.traffic.frames_rejected == 0 for peer in peers)


@pytest.mark.parametrize("precision", LOSSY)
async def test_numbers_of_all_sizes(broker: Broker, precision: Precision) -> None:
    async with fleet(broker, "a", "b", "c") as peers:
        values = [np.repeat(np.float32([scale, -scale / 3, 0, 1e-38]), 80) for scale in (1e38, 1e-38, 1e38)]
        check(peers, values, 1.0, await all_reduce(peers, values, precision=precision), precision)


async def test_shapes_means_and_few_bytes(broker: Broker) -> None:
    async with fleet(broker, "a", "b") as peers:
        arrays = [some(6000, 1).reshape(60, 100), some(7, 2)]
        before = [peer.traffic.bytes_sent for peer in peers]
        for outcome in await all_reduce(peers, [arrays, arrays], weight=2.0, precision="int8"):
            means = outcome.mean
            assert [mean.shape for mean in means] == [(60, 100), (7,)]
            for mean, array in zip(means, arrays, strict=True):
                np.testing.assert_allclose(mean, array, atol=0.04)
        sent = [peer.traffic.bytes_sent - was for peer, was in zip(peers, before, strict=True)]
        assert max(sent) < encoded_bytes("int8", 6007) + 2000


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("precision", LOSSY)
async def test_what_is_not_finite_ends_the_round_for_all(broker: Broker, precision: Precision, lanes: int) -> None:
    async with fleet(broker, *NAMES, lanes=lanes) as peers:
        for place, wrong in enumerate((np.nan, np.inf, -np.inf)):
            values = [some(3000, seed) for seed in range(len(peers))]
            values[place][1700] = wrong
            ends = await failures(
                peers, [p.allreduce(v, precision=precision) for p, v in zip(peers, values, strict=True)]
            )
            said = f"{NAMES[place]} brings a vector that is not finite at element 1700, which {precision} can't express"
            assert all(isinstance(end, NotFinite) and str(end).endswith(said) for end in ends), ends
        values = [some(3000, seed) for seed in range(len(peers))]
        check(peers, values, 1.0, await all_reduce(peers, values, precision=precision), precision)


@pytest.mark.parametrize("lanes", [1, 3])
async def test_a_sum_that_overflows_ends_the_round_for_all(broker: Broker, lanes: int) -> None:
    async with fleet(broker, *NAMES, lanes=lanes) as peers:
        value = np.zeros(3000, np.float32)
        value[1700] = 2e38
        ends = await failures(peers, [peer.allreduce(value, precision="bf16") for peer in peers])
        assert all("has a partial sum that is not finite at element 1700" in str(end) for end in ends), ends
        assert all(isinstance(end, NotFinite) for end in ends)
        await all_reduce(peers, [value / np.float32(8)] * 5, precision="bf16")


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize(("most", "one"), [("float32", "int8"), ("bf16", "float32"), ("int8", "bf16")])
async def test_precisions_that_peers_do_not_share(broker: Broker, most: Precision, one: Precision, lanes: int) -> None:
    async with fleet(broker, *NAMES, lanes=lanes) as peers:
        for odd in NAMES:
            calls = [
                peer.allreduce(some(1000, 1), precision=one if peer.id == odd else most, timeout=30.0) for peer in peers
            ]
            ends = await failures(peers, calls)
            assert all(isinstance(end, ContributionMismatch) for end in ends), ends
            assert len({str(end) for end in ends}) == 1
        await all_reduce(peers, [some(1000, 1)] * 5, precision=most)


async def test_as_float32_anything_travels(broker: Broker) -> None:
    async with fleet(broker, "a", "b") as peers:
        value = np.float32([np.nan, np.inf, 1])
        for outcome in await all_reduce(peers, [value, value]):
            assert outcome.precision == "float32"
            np.testing.assert_array_equal(outcome.vector, [np.nan, np.inf, 2])
