"""A Peer's coming and going: views, joiners, leavers, and what is left behind (nothing)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from peer_fleet import DEADLINE_S, Pumps, all_reduce, fleet, peer_at, view_of
from ports import free_port

from edgepeer import Limits, Peer, View
from edgepeer.cancelling import unless
from edgepeer.errors import ConfigError, LeftFabric
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.ids import load_identity
from edgepeer.peer import api, leaving
from edgepeer.peer.agent import run_agent
from edgepeer.protocol.machine import ProtocolName
from edgepeer.settings import PeerSettings


async def test_who_leaves_in_mid_round_lends_its_array_no_more(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is still queued would go out of an array that is the program's again."""
    monkeypatch.setattr(leaving, "LEAVE_S", 0.05)
    async with fleet(broker, "a", "b") as (a, _):
        array = np.ones(4)
        call = asyncio.create_task(a.allreduce(array))
        rounds = a._driver.node.allreduce
        async with asyncio.timeout(DEADLINE_S):
            for _ in range(10):
                await asyncio.sleep(0)
            assert rounds.contributed
            await a.__aexit__(None, None, None)
            with pytest.raises(LeftFabric):
                await call
        vector = rounds.round.brings.vector
        assert vector is None or not np.shares_memory(vector, array)


async def test_a_clock_before_1970_keeps_nobody_out(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where its 32 bits have run over."""
    monkeypatch.setattr(time, "time", lambda: -86400.0)
    async with fleet(broker, "a", "b") as (a, b):
        await asyncio.gather(*(view_of(peer, "a", "b") for peer in (a, b)))


async def test_views_tells_every_change_and_ends_with_the_peer(broker: EmbeddedBroker) -> None:
    views: list[View] = []

    async def follow(peer: Peer) -> None:
        async for view in peer.views():
            views.append(view)

    async with fleet(broker, "a") as (a,):
        following = asyncio.create_task(follow(a))
        async with peer_at(broker, "b") as b:
            await view_of(a, "a", "b")
            assert (await b.ready(2)).coordinator == "a"
        await view_of(a, "a")
    async with asyncio.timeout(DEADLINE_S):
        await following
    assert [view.ids for view in views] == [("a",), ("a", "b"), ("a",)]
    assert [view.epoch for view in views] == sorted({view.epoch for view in views})
    assert views[0].fanout == 2


async def test_a_slow_reader_of_views_gets_the_latest(broker: EmbeddedBroker) -> None:
    async with fleet(broker, "a") as (a,):
        views = a.views()
        assert (await anext(views)).size == 1
        async with peer_at(broker, "b") as b, peer_at(broker, "c") as c:
            for peer in (a, b, c):
                await view_of(peer, "a", "b", "c")
        await view_of(a, "a")
        assert (await anext(views)) is a.view
        await views.aclose()


async def test_peers_that_start_together_make_one_view(broker: EmbeddedBroker) -> None:
    names = [f"{letter}{digit}" for letter in "abc" for digit in "012"]
    async with asyncio.timeout(DEADLINE_S):
        async with asyncio.TaskGroup() as tasks:
            gone = asyncio.Barrier(len(names))

            async def live(name: str) -> tuple[View, float]:
                async with peer_at(broker, name, limits=Limits(), fanout=3) as peer:
                    view = await peer.ready(len(names))
                    total = (await peer.allreduce(np.ones(7))).sum
                    await gone.wait()
                    return view, float(np.sum(total))

            lives = [tasks.create_task(live(name)) for name in names]
    epochs = {life.result()[0].epoch for life in lives}
    assert len(epochs) == 1
    assert {life.result()[1] for life in lives} == {7.0 * len(names)}
    assert lives[0].result()[0].fanout == 3


async def test_a_late_joiner_is_in_from_a_boundary_on(broker: EmbeddedBroker) -> None:
    async with fleet(broker, "a", "b", "c") as peers, Pumps(peers) as pumps:
        await pumps.more()
        async with peer_at(broker, "d") as d:
            await d.ready(4)
            pumps.start(d)
            last = await pumps.more(lambda outcome: len(outcome.contributors) == 4)
            assert set(last.contributors) == {"a", "b", "c", "d"}
            assert last.exact
            pumps.check()
            first = pumps.outcomes["d"][0]
            # Its first round is one that the others have had too, and nobody's numbering started anew.
            assert first.round in [outcome.round for outcome in pumps.outcomes["a"]]
            assert [outcome.round for outcome in pumps.outcomes["a"]] == list(range(1, last.round + 1))


async def test_who_leaves_is_gone_at_the_next_boundary(broker: EmbeddedBroker) -> None:
    async with fleet(broker, "a", "b", "c") as peers, contextlib.AsyncExitStack() as stack:
        d = await stack.enter_async_context(peer_at(broker, "d"))
        await asyncio.gather(*(view_of(peer, "a", "b", "c", "d") for peer in [*peers, d]))
        async with Pumps(peers) as pumps:
            last = await d.allreduce(np.full(1000, 8, np.float32))
            await stack.aclose()
            await pumps.more(rounds=3)
            pumps.check()
            rounds = {o.round: o for o in pumps.outcomes["a"]}
            assert "d" in rounds[last.round].contributors
            # Not one round waited for it; only the one that had begun may say that somebody is missing.
            assert "d" not in rounds[last.round + 1].contributors
            assert rounds[last.round + 2].exact
        with pytest.raises(LeftFabric):
            await d.allreduce(np.ones(1000, np.float32))


@pytest.mark.parametrize("leaver", ["a", "b", "f"])
async def test_root_inner_node_and_leaf_leave_in_mid_round(leaver: str, broker: EmbeddedBroker) -> None:
    names = ["a", "b", "c", "d", "e", "f"]
    async with contextlib.AsyncExitStack() as stack:
        peers = {}
        for name in names:
            if name != leaver:
                peers[name] = await stack.enter_async_context(peer_at(broker, name))
                await peers[name].ready(len(peers))
        async with contextlib.AsyncExitStack() as lone:
            peers[leaver] = await lone.enter_async_context(peer_at(broker, leaver))
            await asyncio.gather(*(view_of(peer, *names) for peer in peers.values()))
            await all_reduce(list(peers.values()), [np.ones(10)] * 6)
            stayers = [peers[name] for name in names if name != leaver]
            calls = [asyncio.create_task(peer.allreduce(np.ones(10))) for peer in stayers]
            await asyncio.sleep(0)
            # It leaves in the middle of a round to which it has not contributed.
        async with asyncio.timeout(DEADLINE_S):
            outcomes = await asyncio.gather(*calls)
    for outcome in outcomes:
        assert set(outcome.contributors) == set(names) - {leaver}
        assert not outcome.exact
        assert (outcome.sum == 5).all()


async def test_leave_and_come_back_under_the_same_name(broker: EmbeddedBroker, tmp_path: Path) -> None:
    async with fleet(broker, "a", "b") as peers:
        for number in range(3):
            async with peer_at(broker, "c", state_dir=tmp_path / "c") as c:
                await asyncio.gather(*(view_of(peer, "a", "b", "c") for peer in [*peers, c]))
                outcomes = await all_reduce([*peers, c], [np.ones(3)] * 3)
                assert {outcome.round for outcome in outcomes} == {number + 1}
            await asyncio.gather(*(view_of(peer, "a", "b") for peer in peers))


async def test_come_back_at_once_without_a_state_directory(broker: EmbeddedBroker) -> None:
    async with fleet(broker, "a", "b") as peers:
        for _ in range(3):
            async with peer_at(broker, "c") as c:
                await asyncio.gather(*(view_of(peer, "a", "b", "c") for peer in [*peers, c]))
            await asyncio.gather(*(view_of(peer, "a", "b") for peer in peers))


async def test_the_identity_is_kept(broker: EmbeddedBroker, tmp_path: Path) -> None:
    async with peer_at(broker, state_dir=tmp_path) as peer:
        name = peer.id
    async with peer_at(broker, state_dir=tmp_path) as peer:
        assert peer.id == name
    path = tmp_path / "identity"
    before = path.read_text()
    path.write_text("a one")
    with pytest.raises(ConfigError, match=f"{path} is damaged: write a 0 into it, and no more"):
        load_identity(tmp_path)
    path.write_text(before)
    with pytest.raises(ConfigError, match="belongs to peer"):
        async with peer_at(broker, "other", state_dir=tmp_path):
            pass


async def test_fabrics_do_not_mix(broker: EmbeddedBroker) -> None:
    async with fleet(broker, "a", "b"), Peer(broker.address.url(), "greenhouse", peer_id="a") as other:
        assert (await other.ready()).ids == ("a",)


async def test_nothing_is_left_behind(broker_elsewhere: EmbeddedBroker, both_loops: None) -> None:
    process = psutil.Process()

    async def live() -> int:
        async with fleet(broker_elsewhere, "a", "b", "c") as peers:
            await all_reduce(peers, [np.ones(100_000)] * 3)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        async with asyncio.timeout(DEADLINE_S):
            # Sockets are closed a few turns of the loop later, and the broker's ends by the broker.
            while len(process.net_connections("tcp")) > 1:  # noqa: ASYNC110  # the one that the broker listens on
                await asyncio.sleep(0)
        return process.num_fds()

    first = await live()  # what is made once is made now
    for _ in range(3):
        assert await live() == first


async def test_only_loopback_listens_unless_told(broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
    async with peer_at(broker) as peer:
        assert peer.address.startswith("127.0.0.1:")
    assert "not encrypted" not in caplog.text
    for everywhere in ("0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:0", "pi.local:0"):
        with pytest.raises(ConfigError, match=r"could read and change everything: .* trust=\.\.\., or insecure=True"):
            peer_at(broker, listen=everywhere)
    async with peer_at(broker, listen="0.0.0.0:0", insecure=True) as peer:
        assert peer.address.startswith("0.0.0.0:")
    assert f"listening on {peer.address}: the links between peers are not encrypted" in caplog.text


async def test_it_is_reached_under_what_it_advertises(broker: EmbeddedBroker) -> None:
    real = f"127.0.0.1:{free_port()}"
    # The first of a's addresses leads nowhere, the second to somebody else.
    a = peer_at(broker, "a", listen=real, advertise=["127.0.0.1:1", str(broker.address)[7:], real])
    async with a, peer_at(broker, "b") as b:
        view, _ = await asyncio.gather(view_of(a, "a", "b"), view_of(b, "a", "b"))
        assert view.member(a.id).addresses[-1] == real
        assert {outcome.weight for outcome in await all_reduce([a, b], [np.ones(2)] * 2)} == {2}


async def test_open_to_all_it_advertises_every_address(broker: EmbeddedBroker) -> None:
    async with peer_at(broker, "a", listen="0.0.0.0:0", insecure=True) as a:
        (member,) = (await a.ready()).members
        port = a.address.rpartition(":")[2]
        assert f"127.0.0.1:{port}" in member.addresses
        assert not any(address.startswith("0.0.0.0") for address in member.addresses)


@pytest.mark.parametrize("protocol", ["ft-tree", "tree"])
async def test_a_peer_says_whom_it_waits_for(broker: EmbeddedBroker, protocol: ProtocolName) -> None:
    async with fleet(broker, "a", "b", protocol=protocol) as (a, b):
        round_ = asyncio.create_task(a.allreduce(np.ones(3)))
        await asyncio.sleep(0)
        assert "b" in a.diagnosis()["missing"]
        standing = json.loads(json.dumps(a.diagnosis()))
        assert set(standing["view"]["members"]) == {"a", "b"}
        assert "b" in standing["links"]
        await asyncio.gather(round_, b.allreduce(np.ones(3)))
        assert "b" not in a.diagnosis()["missing"]


async def test_a_device_that_is_told_to_stop_waits_for_no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    heard, stop = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await reader.read(1)
            heard.set()
            await reader.read()

    monkeypatch.setattr(api, "FabricClient", functools.partial(api.FabricClient, timeout=1000.0))
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as silent, asyncio.timeout(DEADLINE_S):
        settings = PeerSettings(broker=f"mqtt://127.0.0.1:{silent.sockets[0].getsockname()[1]}")
        agent = asyncio.create_task(run_agent(settings, stop=stop))
        await heard.wait()
        stop.set()
        await agent


async def test_what_is_done_unless_it_is_to_stop() -> None:
    stop, never = asyncio.Event(), asyncio.Event()
    assert await unless(stop, asyncio.sleep(0))
    with pytest.raises(ZeroDivisionError):
        await unless(stop, _fails(ZeroDivisionError()))
    with pytest.raises(TimeoutError):
        await unless(stop, _fails(TimeoutError()))
    waiting = asyncio.create_task(unless(stop, never.wait()))
    await asyncio.sleep(0)
    stop.set()
    assert not await waiting
    assert not await unless(stop, never.wait())
    assert len(asyncio.all_tasks()) == 1


async def _fails(error: Exception) -> None:
    await asyncio.sleep(0)
    raise error
