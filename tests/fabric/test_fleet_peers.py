"""Real peers of a fleet, and what can be done to them by whoever can write at their broker, or is the broker."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec
import numpy as np
import pytest
from fabric_guests import DEADLINE_S, Broker, Invite
from fleet_guests import TOPICS, announcement, liar, signed
from fleets import Fleet
from worked import Worked

from edgepeer import Limits, Outcome, Peer
from edgepeer.baselines import MachineMaker
from edgepeer.errors import TrustError
from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.events import FabricEvent, JobSeen, ReportSeen
from edgepeer.fabric.hearing import Hearing
from edgepeer.following.follow import run_job
from edgepeer.following.progress import JobProgress
from edgepeer.following.result import JobResult
from edgepeer.following.saving import state_from_fleet
from edgepeer.peer import run
from edgepeer.peer.agent import run_agent
from edgepeer.peer.job_board import CORRECTIONS
from edgepeer.peer.translation import as_message
from edgepeer.settings import PeerSettings
from edgepeer.topology.view import Member
from edgepeer.training.job import new_job
from edgepeer.training.state import read_about
from edgepeer.wire.codec import wrap
from edgepeer.wire.documents import pack
from edgepeer.wire.frames import Here, Via

QUICK = Limits(settle_s=0.05, join_batch_s=0.02)


class Watched(Peer):
    """A peer that tells what it has heard at the broker."""

    def __init__(self, broker: Broker, fleet: Fleet, name: str) -> None:
        self._events: list[FabricEvent] = []
        self._news = asyncio.Event()
        url, trust = broker.address.url(), fleet.member(name)
        super().__init__(url, "lab", trust=trust, limits=QUICK, on_fabric_event=self._note)

    def _note(self, event: FabricEvent) -> None:
        self._events.append(event)
        self._news.set()

    async def until_seen(self, *events: FabricEvent) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not all(event in self._events for event in events):
                self._news.clear()
                await self._news.wait()


@contextlib.asynccontextmanager
async def peers(broker: Broker, fleet: Fleet, *names: str) -> AsyncIterator[list[Watched]]:
    """Peers of these names, all in one view when the context opens."""
    async with contextlib.AsyncExitStack() as stack:
        made = [Watched(broker, fleet, name) for name in names]
        for peer in made:
            await stack.enter_async_context(peer)
        await asyncio.gather(*(until(peer, lambda peer=peer: ids(peer) == set(names)) for peer in made))  # type: ignore[misc]
        yield made


def ids(peer: Peer) -> set[str]:
    return set(peer.view.ids) if peer.view is not None else set()


async def until(peer: Peer, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await peer.bell.wait(peer.bell.count)


async def reduce(made: Sequence[Peer]) -> list[Outcome]:
    async with asyncio.timeout(DEADLINE_S):
        return await asyncio.gather(*(peer.allreduce(np.ones(10)) for peer in made))


async def test_who_is_evicted_is_out_of_the_view_within_two_seconds(
    strict_broker: Broker, invite: Invite, fleet: Fleet
) -> None:
    """Told by an operator at the broker. Rounds go on without it."""
    boss = await invite(strict_broker.address, "boss", identity=fleet.operator())
    async with peers(strict_broker, fleet, "p0", "p1", "p2") as made:
        evicted = Watched(strict_broker, fleet, "p3")
        there = asyncio.Event()

        async def live() -> None:
            async with evicted:
                there.set()
                await asyncio.Event().wait()

        life = asyncio.create_task(live())
        await there.wait()
        everybody = [*made, evicted]
        await asyncio.gather(*(until(peer, lambda peer=peer: len(ids(peer)) == 4) for peer in everybody))  # type: ignore[misc]
        await reduce(everybody)
        assert boss.client._fleet is not None
        async with Worked() as worked:
            boss.client._fleet.identity.evictions.accept(fleet.evict("p3"))
            await asyncio.gather(*(until(peer, lambda peer=peer: ids(peer) == {"p0", "p1", "p2"}) for peer in made))  # type: ignore[misc]
        print(f"out of all views after {worked.seconds:.2f} s")
        assert worked.seconds < 2
        for outcome in await reduce(made):
            assert outcome.exact
            assert set(outcome.contributors) == {"p0", "p1", "p2"}
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(TrustError, match="peer p3 of lab was evicted on "):
                await life


async def test_a_broker_that_shows_other_views_ends_nothing(lax_broker: Broker, fleet: Fleet) -> None:
    """Views of before, of a higher place, which their heads had signed; and such as somebody has made up."""
    names = ("p0", "p1", "p2")
    heads = {name: fleet.member(name) for name in names}
    async with peers(lax_broker, fleet, *names) as made, liar(lax_broker.address, fleet.member("evil")) as evil:
        view = made[0].view
        assert view is not None
        earlier = tuple(Member(id=name, incarnation=7, addresses=("127.0.0.1:9",)) for name in names)
        lies = [
            msgspec.structs.replace(view, epoch=900, members=earlier),
            msgspec.structs.replace(
                view, generation=msgspec.structs.replace(view.generation, counter=900), members=earlier
            ),
            msgspec.structs.replace(view, epoch=901, members=earlier[::-1]),
        ]
        before = [peer.fabric.rejected_documents for peer in made]
        for lie in lies:
            await evil.write(TOPICS.view, signed(heads[lie.coordinator], TOPICS.view, lie), retain=True)
            await evil.write(TOPICS.view, signed(fleet.member("evil"), TOPICS.view, lie), retain=True)
            await evil.write(TOPICS.presence("p1"), b"", retain=True)
            for outcome in await reduce(made):
                assert outcome.exact
                assert set(outcome.contributors) == {*names}
        await evil.until_read_by(*made)  # type: ignore[arg-type]
        for peer, count in zip(made, before, strict=True):
            assert peer.fabric.rejected_documents == count + 2 * len(lies)
            assert ids(peer) == {*names}


async def test_letters_of_others_are_dropped(strict_broker: Broker, fleet: Fleet) -> None:
    """Anybody of the fleet may write to anybody through the broker: in nobody else's name."""
    async with peers(strict_broker, fleet, "p0", "p1") as made, liar(strict_broker.address, fleet.member("x")) as evil:
        rejected = made[0].traffic.frames_rejected
        letter = letter_of("p1", "p0")
        for payload in (b"garbage", bytes(100_000), letter):
            await evil.write(TOPICS.relay("p0"), payload)
        await evil.until_read_by(*made)  # type: ignore[arg-type]
        assert made[0].traffic.frames_rejected == rejected + 3
        for outcome in await reduce(made):
            assert outcome.exact


def letter_of(source: str, target: str) -> bytes:
    """As a peer without a fleet writes it."""
    kind, header = wrap(Here(incarnation=1, generation=None, epoch=0))
    return as_message(Via(source=source, target=target, tunnel=0, serial=0, kind=kind, header=header), b"")


# -- jobs ----------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def agents(broker: Broker, fleet: Fleet, *names: str) -> AsyncIterator[None]:
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for name in names:
            given = PeerSettings(
                broker=broker.address.url(),
                fabric="lab",
                peer_id=name,
                fleet=fleet.directory(name),
                state_dir=fleet.root / f"{name}-state",
            )
            tasks.create_task(run_agent(given, machine=MachineMaker(given.protocol), stop=stop))
        try:
            yield
        finally:
            stop.set()


async def test_a_fleet_trains_for_its_operators_alone(lax_broker: Broker, invite: Invite, fleet: Fleet) -> None:
    """Jobs of others, and of last year, change nothing, however often they are announced."""
    operator = fleet.operator()
    job = new_job(id="j1", trainer="numpy", rounds=40, wait_for=2, batch_size=20)
    last_year = announcement(operator, time.time() - 365 * 86400, new_job(id="old", trainer="numpy", rounds=10_000))
    saved: list[object] = []

    async def save(result: JobResult, withdrawn: asyncio.Event, at: BrokerAddress) -> None:
        saved.append(await state_from_fleet(at.url(), "lab", result, timeout=10, identity=operator))

    async with agents(lax_broker, fleet, "p0", "p1"), liar(lax_broker.address, fleet.member("evil")) as evil:
        progress = JobProgress(job, broker="")
        result = asyncio.create_task(
            run_job(
                *(progress, lambda _: None),
                broker=lax_broker.address,
                fabric="lab",
                timeout=DEADLINE_S,
                identity=operator,
                at_end=save,
            )
        )
        watcher = await invite(lax_broker.address, "w", identity=fleet.viewer())
        await watcher.until_seen(JobSeen(pack(job)))
        for lie in [last_year, pack(job), announcement(fleet.member("p1"), time.time(), job), b""] * (CORRECTIONS + 1):
            await evil.write(TOPICS.job, lie, retain=True)
        done = await result
    assert sorted(done.done) == ["p0", "p1"]
    assert done.identical
    assert isinstance(saved[0], memoryview)
    assert read_about(saved[0])[0] == "numpy sgd"
    _, at, *_ = msgspec.msgpack.decode((fleet.directory("p0") / "announced").read_bytes())
    assert at > time.time() - 3600
    assert operator._told == []  # whoever wanted to hear of changes has ended


async def test_a_job_survives_a_broker_that_forgets(strict_broker: Broker, invite: Invite, fleet: Fleet) -> None:
    """No peer can sign it: they say again what its operator has signed, and who joins then takes part."""
    job = new_job(id="j1", trainer="numpy", rounds=150, wait_for=2, batch_size=20, eval_every=1000)
    boss = await invite(strict_broker.address, "boss", identity=fleet.operator())
    async with agents(strict_broker, fleet, "p0", "p1"):
        boss.client.publish_retained(TOPICS.job, job)
        await boss.until(lambda seen: any(type(event).__name__ == "TelemetrySeen" for event in seen))
        boss.client.forget(TOPICS.job)  # the operator's terminal is closed
        await boss.client.close()
        await strict_broker.stop()
        await strict_broker.start()
        watcher = await invite(strict_broker.address, "w", identity=fleet.viewer())
        await watcher.until_seen(JobSeen(pack(job)))
        assert watcher.client.rejected_documents == 0


async def test_a_job_that_nobody_takes_back_has_not_failed(
    strict_broker: Broker, invite: Invite, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its operator may be away for long, and no peer can sign that it is over."""
    monkeypatch.setattr(run, "RETIRE_S", 0.0)
    boss = await invite(strict_broker.address, "boss", identity=fleet.operator())
    async with agents(strict_broker, fleet, "p0"):
        for name in ("j1", "j2"):
            job = new_job(id=name, trainer="numpy", rounds=5, eval_every=1000)
            boss.client.publish_retained(TOPICS.job, job)
            await boss.until(lambda seen, name=name: (name, "done") in states_in(seen))
        assert {state for _, state in states_in(boss.events)} == {"starting", "running", "done"}


async def test_who_is_not_told_by_the_broker_hears_of_signed_jobs_from_the_others(
    strict_broker: Broker, invite: Invite, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also over a restart, of which job was announced last."""
    receive = Hearing.receive

    def receive_others(hearing: Hearing, topic: str, payload: bytes, kept: bool) -> None:
        if topic != TOPICS.job or hearing._client_id != "p0":
            receive(hearing, topic, payload, kept)

    monkeypatch.setattr(Hearing, "receive", receive_others)
    boss = await invite(strict_broker.address, "boss", identity=fleet.operator())
    for name in ("j1", "j2"):
        async with agents(strict_broker, fleet, "p0", "p1"):
            job = new_job(id=name, trainer="numpy", rounds=5, wait_for=2, eval_every=1000)
            boss.client.publish_retained(TOPICS.job, job)
            await boss.until(lambda seen, name=name: states_in(seen).count((name, "done")) == 2)
    kept = [(fleet.directory(name) / "announced").read_bytes() for name in ("p0", "p1")]
    assert kept[0] == kept[1]


def states_in(events: Sequence[FabricEvent]) -> list[tuple[str, str]]:
    """What peers have reported: of which job, and how it stands."""
    return [(event.report.job, event.report.state) for event in events if isinstance(event, ReportSeen)]
