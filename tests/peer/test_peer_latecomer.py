"""Who comes to a fleet at work joins when it is ready to work, and keeps nobody waiting before."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import numpy as np
import pytest
from peer_agents import agents, train
from peer_fleet import DEADLINE_S, Keeper, Pumps, all_reduce, fleet, peer_at, until, view_of

from edgepeer import Peer
from edgepeer.errors import ModelError, PeerError
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.fabric.events import FabricEvent, PresenceGone, PresenceSeen, ReportSeen, Synced, TelemetrySeen
from edgepeer.following.observe import observe
from edgepeer.ids import PeerId
from edgepeer.peer import job_run
from edgepeer.peer.agent import _Agent
from edgepeer.training.build import make_trainer
from edgepeer.training.datasets import Dataset
from edgepeer.training.job import Job, new_job
from edgepeer.training.trainer import Trainer
from edgepeer.wire.codec import PRELUDE, decode_header, decode_prelude
from edgepeer.wire.frames import Hello


class Fabric:
    """Who is seen in a fabric, and which rounds are over."""

    def __init__(self) -> None:
        self.present: set[str] = set()
        self.states: dict[str, str] = {}
        self.rounds: dict[int, tuple[str, ...]] = {}
        self._news = asyncio.Event()

    def take(self, event: FabricEvent) -> None:
        match event:
            case PresenceSeen(presence):
                self.present.add(presence.id)
            case PresenceGone(peer):
                self.present.discard(peer)
            case ReportSeen(report):
                self.states[report.peer] = report.state
            case TelemetrySeen(telemetry):
                self.rounds |= {record.round: record.contributors for record in telemetry.records}
        self._news.set()

    async def until_round(self, after: int) -> None:
        """Wait for a round later than that."""
        async with asyncio.timeout(DEADLINE_S):
            while max(self.rounds, default=0) <= after:
                self._news.clear()
                await self._news.wait()

    async def until_in(self, peer: str) -> None:
        """Wait until it counts in the last round that is known."""
        async with asyncio.timeout(DEADLINE_S):
            while peer not in self.rounds[max(self.rounds)]:
                self._news.clear()
                await self._news.wait()

    async def until_state(self, peer: str, state: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while self.states.get(peer) != state:
                self._news.clear()
                await self._news.wait()


class SlowDevice:
    """From now on, trainers are built when that is allowed, or not at all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, error: Exception | None = None) -> None:
        self.allowed = threading.Event()
        self._error = error
        monkeypatch.setattr(job_run, "make_trainer", self._make)

    def _make(self, job: Job, data: Dataset, **device: Any) -> Trainer:
        assert self.allowed.wait(DEADLINE_S)
        if self._error is not None:
            raise self._error
        return make_trainer(job, data, **device)


JOB = new_job(id="j1", model="linear", trainer="numpy", batch_size=20, rounds=100_000, wait_for=2, eval_every=100_000)


async def test_an_agent_that_comes_to_a_run_joins_when_its_model_is_built(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fabric = Fabric()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(observe(broker.address, "lab", fabric.take))
        await stack.enter_async_context(agents(broker, 2))
        training = asyncio.create_task(train(broker, JOB))
        stack.callback(training.cancel)
        await fabric.until_round(10)
        slow = SlowDevice(monkeypatch)
        stack.callback(slow.allowed.set)
        await stack.enter_async_context(agents(broker, 1, peer_id="late"))
        await fabric.until_state("late", "starting")
        await fabric.until_round(max(fabric.rounds) + 100)  # nobody waits for it ...
        assert fabric.present == {"p0", "p1"}
        slow.allowed.set()
        await fabric.until_state("late", "running")  # ... and it gets in
        await fabric.until_in("late")  # of rounds is told a while after they are over


async def test_an_agent_that_cannot_do_the_job_joins_for_the_next_one(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fabric = Fabric()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(observe(broker.address, "lab", fabric.take))
        await stack.enter_async_context(agents(broker, 2))
        training = asyncio.create_task(train(broker, JOB))
        await fabric.until_round(10)
        slow = SlowDevice(monkeypatch, error=ModelError("no such thing here"))
        slow.allowed.set()
        await stack.enter_async_context(agents(broker, 1, peer_id="late"))
        await fabric.until_state("late", "failed")
        assert fabric.present == {"p0", "p1"}
        training.cancel()
        monkeypatch.undo()
        job = new_job(id="j2", model="linear", trainer="numpy", batch_size=20, rounds=20, wait_for=3)
        await asyncio.wait([training])
        result = await train(broker, job)
        assert set(result.done) == {"p0", "p1", "late"}
        assert result.identical


async def test_who_cannot_do_the_job_stays_aside_when_it_learns_late_what_the_fabric_is_at(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had failed, and came back with the last of what the broker retains: no round ended, for it was in the view."""
    fabric, held, heard = Fabric(), list[tuple[_Agent, FabricEvent]](), asyncio.Event()
    hear, prepare = _Agent._hear, job_run.JobRun._prepare

    def hear_later(agent: _Agent, event: FabricEvent) -> None:
        if agent._peer.id == "late" and isinstance(event, Synced):
            held.append((agent, event))
            heard.set()
        else:
            hear(agent, event)

    async def fail(run: job_run.JobRun) -> None:
        if run._peer.id == "late":
            raise ModelError("too large for this device")
        await prepare(run)

    monkeypatch.setattr(_Agent, "_hear", hear_later)
    monkeypatch.setattr(job_run.JobRun, "_prepare", fail)
    job = new_job(id="j1", model="linear", trainer="numpy", batch_size=20, rounds=20, wait_for=3)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(observe(broker.address, "lab", fabric.take))
        await stack.enter_async_context(agents(broker, 2))
        training = asyncio.create_task(train(broker, job))
        stack.callback(training.cancel)
        await fabric.until_state("p0", "starting")
        await stack.enter_async_context(agents(broker, 1, peer_id="late"))
        await fabric.until_state("late", "failed")
        await asyncio.wait_for(heard.wait(), DEADLINE_S)
        for agent, event in held:
            hear(agent, event)
        await stack.enter_async_context(agents(broker, 1, peer_id="p2"))
        await asyncio.wait([training])
        result = training.result()
        assert (set(result.done), result.failed) == ({"p0", "p1", "p2"}, ("late",))


async def test_who_leaves_before_it_was_let_in_is_another_life_to_whoever_connects(broker: EmbeddedBroker) -> None:
    async with peer_at(broker, "a", aside=True) as peer:
        before = peer._driver.node.me.incarnation
        peer.stand_aside()
        after = peer._driver.node.me.incarnation
        assert after > before
        host, _, port = peer.address.rpartition(":")
        async with asyncio.timeout(DEADLINE_S):
            reader, writer = await asyncio.open_connection(host, int(port))
            prelude = await reader.readexactly(PRELUDE.size)
            kind, header_bytes, _ = decode_prelude(prelude)
            hello = decode_header(kind, await reader.readexactly(header_bytes), 0)
            writer.transport.abort()
        assert isinstance(hello, Hello)
        assert hello.incarnation == after


async def test_a_peer_that_stands_aside_is_unseen_until_it_comes_back(broker: EmbeddedBroker) -> None:
    fabric = Fabric()
    async with (
        observe(broker.address, "lab", fabric.take),
        fleet(broker, "a", "b") as peers,
        peer_at(broker, "c", aside=True) as late,
        Pumps(peers) as pumps,
    ):
        await pumps.more(rounds=50)
        assert late.view is None
        assert fabric.present == {"a", "b"}
        late.come_back()
        await view_of(late, "a", "b", "c")
        pumps.start(late)
        await pumps.more(lambda outcome: len(outcome.contributors) == 3)
        late.come_back()  # who is in stays in
        await pumps.more(lambda outcome: len(outcome.contributors) == 3)
        assert late.view is not None
        assert late.view.size == 3


async def test_who_comes_to_a_run_whose_state_is_empty_gets_in(broker: EmbeddedBroker) -> None:
    """A program without a state of its own has one all the same: there is nothing in it."""
    adopted: list[tuple[PeerId, int]] = []
    async with fleet(broker, "a", "b") as peers:
        for peer in peers:
            peer.attach(Keeper(peer, state=b""))
            peer.want_run("run", 2)
        await asyncio.gather(*(until(peer, partial(_is_in_run, peer, 0)) for peer in peers))
        await all_reduce(peers, [np.ones(1)] * 2)
        async with peer_at(broker, "c") as late:
            late.attach(Keeper(late, adopted, state=b""))
            late.want_run("run", 2)
            await until(late, partial(_is_in_run, late, 1))
            assert adopted == [("c", 1)]
            outcomes = await all_reduce([*peers, late], [np.ones(1)] * 3)
            assert [(outcome.round, len(outcome.contributors)) for outcome in outcomes] == [(2, 3)] * 3


async def test_a_program_in_a_fabric_that_works_on_a_job_is_told_so_and_holds_up_nobody(broker: EmbeddedBroker) -> None:
    async with fleet(broker, "a", "b") as peers, peer_at(broker, "c") as program:
        for peer in peers:
            peer.attach(Keeper(peer, state=b""))
        await view_of(program, "a", "b", "c")
        for peer in peers:
            peer.want_run("run", 2)
        await until(program, lambda: program.view is not None and program.view.run == "run")
        with pytest.raises(PeerError, match="works on job run, and this program takes no part in that: give it a fab"):
            await program.allreduce(np.ones(3))
        await view_of(peers[0], "a", "b")
        await asyncio.gather(*(until(peer, partial(_is_in_run, peer, 0)) for peer in peers))
        outcomes = await all_reduce(peers, [np.ones(1)] * 2)
        assert [outcome.contributors for outcome in outcomes] == [("a", "b")] * 2
        with pytest.raises(PeerError, match="takes no part"):
            await program.allreduce(np.ones(3))
        with pytest.raises(PeerError, match="takes no part"):
            await program.ready(3)


async def test_a_large_state_gets_through_the_broker(broker: EmbeddedBroker) -> None:
    """Where nobody can connect to anybody: the broker takes only so much at a time."""
    adopted: list[tuple[PeerId, int]] = []
    nowhere = {"advertise": ("192.0.2.1:9",)}
    async with peer_at(broker, "a", **nowhere) as a, peer_at(broker, "b", **nowhere) as late:
        for peer in (a, late):
            peer.attach(Keeper(peer, adopted, state=bytes(12 << 20)))
        a.want_run("run", 1)
        await until(a, partial(_is_in_run, a, 0))
        late.want_run("run", 1)
        await until(late, partial(_is_in_run, late, 0))
        assert adopted == [("b", 0)]


def _is_in_run(peer: Peer, committed: int) -> bool:
    return peer.view is not None and peer.view.run == "run" and peer.committed == committed


async def test_a_peer_that_never_comes_back_leaves_at_once(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long others may take."""
    monkeypatch.setattr("edgepeer.peer.leaving.LEAVE_S", 1000.0)
    async with asyncio.timeout(DEADLINE_S), peer_at(broker, "a", aside=True):
        pass
