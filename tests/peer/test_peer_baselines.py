"""Every baseline between real peers over TCP, and what happens where two protocols meet."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import numpy as np
import pytest
from peer_fleet import DEADLINE_S, Broker, all_reduce, fleet, peer_at, view_of

from edgepeer import Peer
from edgepeer.baselines import MachineMaker
from edgepeer.errors import ConfigError, ContributionMismatch, RoundTimeout
from edgepeer.wire.protocols import PROTOCOLS, ProtocolName

NAMES = ("a", "b", "c", "d", "e")
EQUAL = tuple(protocol for protocol in PROTOCOLS if protocol != "ps-async")


@pytest.mark.parametrize("protocol", EQUAL)
async def test_all_get_the_sum(broker: Broker, protocol: ProtocolName) -> None:
    generator = np.random.default_rng(7)
    async with fleet(broker, *NAMES, protocol=protocol) as peers:
        for size in (0, 1, 3, 407_050):
            values = [generator.standard_normal(size).astype(np.float32) for _ in peers]
            outcomes = await all_reduce(peers, values, weight=2.0)
            assert len({outcome.digest for outcome in outcomes}) == 1
            assert all(set(outcome.contributors) == {*NAMES} and outcome.exact for outcome in outcomes)
            assert all(outcome.weight == 10.0 for outcome in outcomes)
            np.testing.assert_allclose(outcomes[0].vector, 2 * sum(map(np.float64, values)), rtol=1e-5, atol=1e-4)
        assert all(peer.traffic.frames_rejected == 0 for peer in peers)


async def test_the_asynchronous_server_answers_each_as_it_comes(broker: Broker) -> None:
    """Each peer's contributions are powers of a base of its own, so a sum tells what is in it."""
    async with fleet(broker, *NAMES, protocol="ps-async") as peers:

        async def run(position: int, rounds: int) -> list[np.ndarray]:
            got = []
            for number in range(rounds):
                value = np.zeros((len(peers), rounds))
                value[position, number] = 1.0
                outcome = await peers[position].allreduce(value)
                assert not outcome.exact
                assert isinstance(outcome.sum, np.ndarray)
                assert outcome.sum[position, number] == 1.0
                assert outcome.weight == outcome.sum.sum()
                got.append(outcome.sum)
            return got

        async with asyncio.timeout(DEADLINE_S):
            sums = await asyncio.gather(*(run(position, 20) for position in range(len(peers))))
        for got in sums:
            assert set(np.unique(np.sum(got, axis=0))) <= {0.0, 1.0}  # every contribution at most once
        assert any(np.all(np.sum(got, axis=0) == 1.0) for got in sums)  # and all of them, at whom was answered last


@pytest.mark.parametrize("protocol", [protocol for protocol in PROTOCOLS if protocol != "ft-tree"])
async def test_none_of_them_rounds(protocol: ProtocolName) -> None:
    with pytest.raises(ValueError, match=f"^precision = 'int8': only rounds of ft-tree can do it, not of {protocol}$"):
        await Peer(machine=MachineMaker(protocol)).allreduce(np.ones(2, np.float32), precision="int8")


@pytest.mark.parametrize("protocol", ["ft-tree-static", "tree", "ring", "ps-sync"])
async def test_without_a_peers_contribution_callers_time_out_together_and_go_on(
    broker: Broker, protocol: ProtocolName
) -> None:
    async with fleet(broker, "a", "b", "c", protocol=protocol) as peers:
        one = np.ones(1000, dtype=np.float32)
        async with asyncio.timeout(DEADLINE_S):
            first = await asyncio.gather(*(p.allreduce(one, timeout=0.3) for p in peers[:2]), return_exceptions=True)
            assert all(isinstance(error, RoundTimeout) for error in first)
            with pytest.raises(RoundTimeout):  # its first call belongs to that first round, which is over
                await peers[2].allreduce(one)
            outcomes = await all_reduce(peers, [one] * 3)
        assert {outcome.round for outcome in outcomes} == {2}
        assert all(set(outcome.vector) == {3.0} for outcome in outcomes)


@pytest.mark.parametrize("protocol", ["ft-tree-static", "tree", "ring", "ps-sync"])
async def test_vectors_that_do_not_fit_are_said_to_be_so(broker: Broker, protocol: ProtocolName) -> None:
    async with fleet(broker, "a", "b", "c", protocol=protocol) as peers:
        async with asyncio.timeout(DEADLINE_S):
            ends = await asyncio.gather(
                *(peer.allreduce(np.ones(3 + (peer.id == "c"))) for peer in peers), return_exceptions=True
            )
        assert all(isinstance(end, ContributionMismatch) for end in ends)


async def test_two_protocols_in_one_fabric_are_refused_with_a_reason(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = asyncio.Event()

    def hear(level: int, text: str, *arguments: object) -> None:
        if "runs rounds by 'tree', this fabric by 'ring'" in text % arguments:
            refused.set()

    monkeypatch.setattr(logging.getLogger("edgepeer.peer.switchboard"), "log", hear)
    async with peer_at(broker, "a", protocol="ring") as ring:
        await view_of(ring, "a")
        async with peer_at(broker, "b", protocol="tree"), asyncio.timeout(DEADLINE_S):
            await refused.wait()
        assert ring.traffic.frames_rejected > 0


async def test_an_unknown_protocol_is_refused(broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="protocol = 'gossip': must be one of ft-tree"):
        async with peer_at(broker, "a", protocol="gossip", state_dir=tmp_path):
            pass
