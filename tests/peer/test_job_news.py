"""News of the fabric's job, for those whom the broker does not tell; and what is said against an old one."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from peer_agents import agents
from peer_fleet import DEADLINE_S
from test_peer_resume import Watcher, announce, devices, said

from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.fabric.client import FabricClient
from edgepeer.fabric.documents import JobOver
from edgepeer.fabric.hearing import Hearing
from edgepeer.fabric.topics import Topics
from edgepeer.ids import Generation, PeerId
from edgepeer.peer import agent
from edgepeer.peer.agent import _Agent
from edgepeer.peer.checkpoints import Checkpoints, Ending
from edgepeer.peer.hearsay import Hearsay
from edgepeer.peer.worker import Worker
from edgepeer.topology.view import Member, View
from edgepeer.training.job import Job, new_job
from edgepeer.wire.documents import pack
from edgepeer.wire.frames import Frame, State, StateRequest

TOPIC = Topics("lab").job


def job(name: str, **fields: object) -> Job:
    quick = {"model": "linear", "trainer": "numpy", "batch_size": 20, "rounds": 30, "wait_for": 2, "eval_every": 1000}
    return new_job(id=name, **{**quick, **fields})


@contextlib.contextmanager
def deaf(monkeypatch: pytest.MonkeyPatch, *names: str) -> Iterator[None]:
    """These hear nothing of jobs from the broker: they may be at another one of the list."""
    receive = Hearing.receive

    def receive_others(hearing: Hearing, topic: str, payload: bytes, kept: bool) -> None:
        if topic != TOPIC or hearing._client_id not in names:
            receive(hearing, topic, payload, kept)

    with monkeypatch.context() as patch:
        patch.setattr(Hearing, "receive", receive_others)
        yield


@pytest.mark.parametrize("name", ["p0", "p2"], ids=["the head", "a leaf"])
async def test_who_is_not_told_by_the_broker_hears_of_it_from_the_others(
    name: str, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with deaf(monkeypatch, name):
        async with Watcher.at(broker) as watcher, agents(broker, 3):
            for run in ("j1", "j2"):
                await announce(broker, job(run, wait_for=3))
                everybody = {(peer, run, "done") for peer in ("p0", "p1", "p2")}
                async with asyncio.timeout(DEADLINE_S):
                    while {(r.peer, r.job, r.state) for r in watcher.reports.values()} != everybody:
                        watcher._news.clear()
                        await watcher._news.wait()
                assert len({report.digest for report in watcher.reports.values()}) == 1


async def test_the_next_job_counts_whatever_its_clock_says(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the broker does not tell: whoever knows that the one before is over says so."""
    with deaf(monkeypatch, "p0"):
        async with Watcher.at(broker) as watcher, agents(broker, 2):
            await announce(broker, job("j1", created=300.0, rounds=1_000_000))
            await watcher.until_begun("j1")
            await announce(broker, job("j2", created=200.0))
            await watcher.until_begun("j2")
            reports = await watcher.until_done("p0", "p1")
            assert {report.job for report in reports.values()} == {"j2"}


@pytest.fixture
def living(monkeypatch: pytest.MonkeyPatch) -> list[_Agent]:
    """The agents that have begun to live."""
    found: list[_Agent] = []
    live = _Agent.live

    async def live_here(agent: _Agent, *until: asyncio.Event) -> None:
        found.append(agent)
        await live(agent, *until)

    monkeypatch.setattr(_Agent, "live", live_here)
    return found


async def test_of_jobs_that_are_over_nothing_is_said_again(broker: EmbeddedBroker, living: list[_Agent]) -> None:
    """Else more and more would be, in every new connection, and to whoever asks."""
    async with Watcher.at(broker) as watcher, agents(broker, 1):
        for run in ("j1", "j2"):
            await announce(broker, job(run, wait_for=1))
            async with asyncio.timeout(DEADLINE_S):
                while (watcher.reports["p0"].job if watcher.reports else "") != run:
                    watcher._news.clear()
                    await watcher._news.wait()
            await watcher.until_done("p0")
        kept = living[0]._peer.fabric._outbox.kept
        assert [topic for topic in kept if "/report/" in topic] == [Topics("lab").report("j2", PeerId("p0"))]


async def test_the_next_job_goes_on_whoever_hears_only_then_that_the_one_before_was_taken_back(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, living: list[_Agent]
) -> None:
    """Its broker's line is slow, and the others have told it of the next one."""
    receive, late = Hearing.receive, asyncio.Event()
    held: asyncio.Queue[tuple[Hearing, str, bytes, bool]] = asyncio.Queue()

    def receive_late(hearing: Hearing, topic: str, payload: bytes, kept: bool) -> None:
        if topic == TOPIC and hearing._client_id == "p1" and late.is_set():
            held.put_nowait((hearing, topic, payload, kept))
        else:
            receive(hearing, topic, payload, kept)

    monkeypatch.setattr(Hearing, "receive", receive_late)
    async with Watcher.at(broker) as watcher, agents(broker, 2):
        await announce(broker, job("j1", rounds=1_000_000))
        await watcher.until_begun("j1")
        late.set()
        await announce(broker, None)
        await announce(broker, job("j2"))
        await watcher.until_begun("j2")
        for _ in ("that there is none", "j2"):
            async with asyncio.timeout(DEADLINE_S):
                receive(*await held.get())
        assert [agent._jobs.current is not None and agent._jobs.current.id for agent in living] == ["j2", "j2"]
        assert {report.job for report in (await watcher.until_done("p0", "p1")).values()} == {"j2"}


async def test_a_job_that_gave_way_to_a_peers_counts_again_when_that_is_over(
    tmp_path: Path, broker: EmbeddedBroker, living: list[_Agent]
) -> None:
    """The peer had not heard that its own was over, and somebody's clock was wrong."""
    first, other = job("j1", created=100.0, wait_for=1), job("j0", created=300.0, wait_for=1)
    async with Watcher.at(broker) as watcher, devices(broker, tmp_path, ("p0",)):
        await announce(broker, first)
        await watcher.until_done("p0")
        living[0]._hear_of_peer(PeerId("p1"), pack(other))
        await watcher.until_begun("j0")
        living[0]._hear_of_peer(PeerId("p1"), pack(JobOver(over="j0")))
        living[0]._hear_of_peer(PeerId("p1"), pack(first))
        assert living[0]._jobs.current == first
        await watcher.until_begun("j1")
    store = Checkpoints(tmp_path / "p0", every=10, keep=3)
    store.unfinished()
    assert (store.ending("j0"), store.ending("j1")) == ("withdrawn", "done")


async def test_what_is_withdrawn_ends_also_where_the_broker_does_not_tell(
    tmp_path: Path, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, mark, marked = asyncio.get_running_loop(), Checkpoints.mark_over, asyncio.Event()

    def mark_and_tell(store: Checkpoints, job: str, how: Ending) -> None:
        mark(store, job, how)
        if store.directory == tmp_path / "p0" / "checkpoints":
            assert (job, how) == ("j1", "withdrawn")
            loop.call_soon_threadsafe(marked.set)

    monkeypatch.setattr(Checkpoints, "mark_over", mark_and_tell)
    with deaf(monkeypatch, "p0"):
        async with Watcher.at(broker) as watcher, devices(broker, tmp_path, ("p0", "p1")):
            await announce(broker, job("j1", rounds=1_000_000))
            await watcher.until_begun("j1")
            await announce(broker, None)
            async with asyncio.timeout(DEADLINE_S):
                await marked.wait()


@contextlib.asynccontextmanager
async def slow_to_speak(monkeypatch: pytest.MonkeyPatch, broker: EmbeddedBroker, first: Job) -> AsyncIterator[None]:
    """Before a device says anything of jobs, somebody else announces that one."""
    publish = FabricClient.publish_retained
    saying: list[asyncio.Task[None]] = []

    def publish_late(client: FabricClient, topic: str, document: object) -> None:
        if topic != TOPIC or client._client_id == "user" or saying:
            publish(client, topic, document)  # type: ignore[arg-type]  # whatever it was
            return

        async def later() -> None:
            await announce(broker, first)
            publish(client, topic, document)  # type: ignore[arg-type]

        saying.append(asyncio.create_task(later()))

    with monkeypatch.context() as patch:
        patch.setattr(FabricClient, "publish_retained", publish_late)
        yield
    assert saying


async def test_who_says_that_an_old_job_is_over_takes_back_no_newer_one(
    tmp_path: Path, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not heard of the newer one yet when it says so."""
    old, new = job("j0"), job("j1", wait_for=1)
    Checkpoints(tmp_path / "p0", every=10, keep=3).mark_over("j0", "withdrawn")
    await announce(broker, old)
    async with Watcher.at(broker) as watcher, slow_to_speak(monkeypatch, broker, new):
        await watcher.until(old)
        async with devices(broker, tmp_path, ("p0",)):
            assert (await watcher.until_done("p0"))["p0"].job == "j1"
            await watcher.until(new)


async def test_who_takes_its_job_up_again_takes_back_no_newer_one(
    tmp_path: Path, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it says of its own comes back behind the newer one, and is none that somebody has announced since."""
    old, new = (job(name, created=created, wait_for=1) for name, created in (("j0", 100.0), ("j1", 200.0)))
    async with EmbeddedBroker() as before, Watcher.at(before) as watcher, devices(before, tmp_path, ("p0",)):
        await announce(before, old)
        await watcher.until_done("p0")
    (tmp_path / "p0" / "checkpoints" / "over.json").unlink()  # as if it had stopped before
    async with (
        Watcher.at(broker) as watcher,
        slow_to_speak(monkeypatch, broker, new),
        devices(broker, tmp_path, ("p0",)),
    ):
        async with asyncio.timeout(DEADLINE_S):
            while watcher.jobs_seen < 3:  # the newer one, the older behind it, and what is said to that
                watcher._news.clear()
                await watcher._news.wait()
        await watcher.until(new)
        await watcher.until_begun("j1")
        assert (await watcher.until_done("p0"))["p0"].job == "j1"


async def leave_behind(broker: EmbeddedBroker, run: str, said: Job | JobOver | None) -> None:
    """A broker keeps a view of a run, of which nobody is there any more, and what was said of the fabric's job."""
    client = FabricClient(broker.address, "lab", "user", on_event=lambda _: None)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(client.run())
        await client.connected()
        view = View(generation=Generation(), epoch=1, members=(Member(id="gone", incarnation=1),), fanout=2, run=run)
        client.publish_retained(client.topics.view, view)
        client.publish_retained(client.topics.job, said)
        await client.close()


async def test_an_unfinished_job_is_taken_up_where_the_broker_keeps_an_older_one_and_its_view(
    tmp_path: Path, broker: EmbeddedBroker
) -> None:
    old, new = job("j0", created=100.0), job("j1", created=200.0, wait_for=1, rounds=20)
    async with EmbeddedBroker() as before, Watcher.at(before) as watcher, devices(before, tmp_path, ("p0",)):
        await announce(before, new)
        await watcher.until_done("p0")
    (tmp_path / "p0" / "checkpoints" / "over.json").unlink()  # as if it had stopped before
    await leave_behind(broker, "j0", old)
    async with Watcher.at(broker) as watcher, devices(broker, tmp_path, ("p0",)):
        await watcher.until_begun("j1")
        assert (await watcher.until_done("p0"))["p0"].job == "j1"
        await watcher.until(new)


async def test_what_only_looks_older_is_done_where_what_this_device_was_at_is_over(
    tmp_path: Path, broker: EmbeddedBroker
) -> None:
    """The clock of who began that one was ahead; it has been replaced while nobody was there."""
    ahead, new = job("j1", created=200.0, wait_for=1, rounds=20), job("j2", created=100.0, wait_for=1, rounds=20)
    async with EmbeddedBroker() as before, Watcher.at(before) as watcher, devices(before, tmp_path, ("p0",)):
        await announce(before, ahead)
        await watcher.until_done("p0")
    (tmp_path / "p0" / "checkpoints" / "over.json").unlink()  # as if it had stopped before
    await leave_behind(broker, "j1", new)
    async with Watcher.at(broker) as watcher, devices(broker, tmp_path, ("p0",)):
        assert (await watcher.until_done("p0"))["p0"].job == "j2"
    store = Checkpoints(tmp_path / "p0", every=10, keep=3)
    store.unfinished()
    assert store.ending("j1") == "done"  # also where j2 has left no checkpoint, it is not taken up again


async def test_where_only_the_view_is_told_what_it_names_may_go_on(
    tmp_path: Path, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker has lost its memory, and the fleet at work has yet to put the job back in its place."""
    noted = list[str]()
    async with EmbeddedBroker() as before, Watcher.at(before) as watcher, devices(before, tmp_path, ("p0",)):
        await announce(before, job("j1", wait_for=1, rounds=20))
        await watcher.until_done("p0")
    (tmp_path / "p0" / "checkpoints" / "over.json").unlink()  # as if it had stopped before
    await leave_behind(broker, "j1", None)
    monkeypatch.setattr(Checkpoints, "mark_over", lambda store, job, how: noted.append(job))
    caplog.set_level(logging.INFO)
    async with (
        said("is over: the fleet has gone on") as heard,
        Watcher.at(broker) as watcher,
        devices(broker, tmp_path, ("p0",)),
    ):
        await heard.wait()
        await watcher.until_head("p0")
    assert noted == []


async def test_what_is_to_be_noted_waits_where_too_much_waits_for_the_worker(
    tmp_path: Path, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "STUCK_S", 0.01)
    submit, refused, marked = Worker.submit, list[None](), asyncio.Event()
    loop = asyncio.get_running_loop()

    def submit_late(worker: Worker, fn: Any, /, *args: Any) -> Any:
        if isinstance(fn, functools.partial) and fn.args == ("j1", "withdrawn"):
            if len(refused) < 3:
                refused.append(None)
                raise RuntimeError("too many calls are waiting")
            loop.call_soon(marked.set)
        return submit(worker, fn, *args)

    async with EmbeddedBroker() as before, Watcher.at(before) as watcher, devices(before, tmp_path, ("p0",)):
        await announce(before, job("j1", wait_for=1, rounds=20))
        await watcher.until_done("p0")
    (tmp_path / "p0" / "checkpoints" / "over.json").unlink()  # as if it had stopped before
    monkeypatch.setattr(Worker, "submit", submit_late)
    await announce(broker, JobOver(over="j1"))
    async with asyncio.timeout(DEADLINE_S), devices(broker, tmp_path, ("p0",)):
        await marked.wait()
    store = Checkpoints(tmp_path / "p0", every=10, keep=3)
    assert store.unfinished() is None
    assert len(refused) == 3


async def test_what_the_head_hears_from_peers_its_broker_hears_as_well(
    broker: EmbeddedBroker, living: list[_Agent]
) -> None:
    """The peers have it from another broker: who comes to this one would find no job, and begin another."""
    async with Watcher.at(broker) as watcher, agents(broker, 1):
        await watcher.until_head("p0")
        told = job("j1", rounds=1_000_000, wait_for=1)
        living[0]._hear_of_peer(PeerId("p1"), pack(told))
        await watcher.until(told)
        await watcher.until_begun("j1")
        living[0]._hear_of_peer(PeerId("p1"), pack(JobOver(over="j1")))
        await watcher.until(None)


async def test_two_jobs_that_are_taken_up_at_the_same_moment_come_to_one(
    tmp_path: Path, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker has the later one first, and only then the other; nobody heard of another's before it said its own."""
    older, later = job("j0", created=100.0, rounds=20), job("j1", created=200.0, rounds=20)
    for done, name in ((older, "p0"), (later, "p1")):
        home = tmp_path / done.id
        async with EmbeddedBroker() as before, Watcher.at(before) as watcher, devices(before, home, ("p0", "p1")):
            await announce(before, done)
            await watcher.until_done("p0", "p1")
        (home / name / "checkpoints" / "over.json").unlink()  # as if it had stopped before
    receive, held, both = Hearing.receive, list[tuple[Hearing, str, bytes, bool]](), asyncio.Event()

    def receive_later(hearing: Hearing, topic: str, payload: bytes, kept: bool) -> None:
        if topic == TOPIC and hearing._client_id == "p0":
            held.append((hearing, topic, payload, kept))
            if len(held) == 2:
                both.set()
        else:
            receive(hearing, topic, payload, kept)

    async with Watcher.at(broker) as watcher, devices(broker, tmp_path / "j1", ("p1",)):
        await watcher.until(later)
        with monkeypatch.context() as patch:
            patch.setattr(Hearing, "receive", receive_later)
            async with devices(broker, tmp_path / "j0", ("p0",)):
                await watcher.until(older)
                async with asyncio.timeout(DEADLINE_S):
                    await both.wait()
                patch.undo()
                for said_earlier in held:
                    receive(*said_earlier)
                reports = await watcher.until_done("p0", "p1")
                assert [report.job for report in reports.values()] == ["j1", "j1"]


async def test_what_the_fabric_was_at_last_is_over_and_no_older_job_is_taken_up_for_that(
    tmp_path: Path, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """It has gone on to another one, which has ended as well: that is said, and nothing of the one before."""
    async with EmbeddedBroker() as before, Watcher.at(before) as watcher, devices(before, tmp_path, ("p0",)):
        await announce(before, job("j1", wait_for=1, rounds=20))
        await watcher.until_done("p0")
    (tmp_path / "p0" / "checkpoints" / "over.json").unlink()  # as if it had stopped before
    await leave_behind(broker, "j2", JobOver(over="j2"))
    with caplog.at_level(logging.INFO):
        async with said("this device") as heard, devices(broker, tmp_path, ("p0",)):
            await heard.wait()
    assert "taken up again" not in caplog.text
    store = Checkpoints(tmp_path / "p0", every=10, keep=3)
    assert store.unfinished() is None
    assert store.ending("j1") == "done"  # who says that it is not over may be right


# -- how it is told ----------------------------------------------------------------------------------------------------


class Line:
    """Two that are connected."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, bytes]] = []
        self.sent: list[Frame] = []
        self.ends = {name: self._end(name, other) for name, other in (("a", "b"), ("b", "a"))}

    def _end(self, name: str, other: str) -> Hearsay:
        def send(peer: PeerId, frame: Frame, payload: memoryview | None) -> None:
            assert peer == other
            assert isinstance(frame, State | StateRequest)
            self.sent.append(frame)
            there, size = self.ends[other], len(payload or b"")
            assert there.concerns(frame)
            sink = there.sink(PeerId(name), frame, size) if isinstance(frame, State) else None
            if sink is not None and payload is not None:
                sink[:] = payload
            there.received(PeerId(name), frame, size, stored=sink is not None)

        def heard(peer: PeerId, document: bytes) -> None:
            self.heard.append((name, document))

        return Hearsay(send, heard, limit_bytes=100, piece_bytes=40)

    def meet(self) -> None:
        self.ends["a"].met(PeerId("b"))
        self.ends["b"].met(PeerId("a"))


@pytest.mark.parametrize("document", [b"x", b"y" * 40, b"z" * 100])
def test_whoever_meets_is_told_what_it_does_not_have(document: bytes) -> None:
    line = Line()
    line.ends["a"].say(document)
    assert not line.sent
    line.meet()
    assert line.heard == [("b", document)]
    line.ends["b"].say(b"newer")
    assert line.heard[1:] == [("a", b"newer")]


def test_nothing_is_told_to_who_has_the_same() -> None:
    line = Line()
    for end in line.ends.values():
        end.say(b"same")
    line.meet()
    assert not line.heard


def test_what_is_too_long_or_out_of_order_is_thrown_away() -> None:
    line = Line()
    end, peer = line.ends["a"], PeerId("b")
    for offset, total, size in ((0, 101, 40), (40, 80, 40), (0, 80, 90), (0, 0, 0)):
        assert end.sink(peer, State(run="/job", round=0, offset=offset, total=total), size) is None
    assert not line.heard


def pieces(size: int, *, total: int, of: int) -> Iterator[tuple[State, int]]:
    for offset in range(0, of, size):
        yield State(run="/job", round=0, offset=offset, total=total), min(size, of - offset)


def test_the_same_is_told_again_from_the_same_memory() -> None:
    """Whoever has it told over and over, and does not read, costs no more."""
    told: list[object] = []
    end = Hearsay(
        lambda peer, frame, piece: told.append(piece and piece.obj), lambda *_: None, limit_bytes=100, piece_bytes=40
    )
    end.say(document := b"z" * 50)
    end.tell(PeerId("b"), bytes(bytearray(document)))
    assert [each is document for each in told] == [True, True]


def test_no_room_is_made_for_what_has_not_come() -> None:
    """However long the document is said to be, of however many peers."""
    heard: list[bytes] = []
    end = Hearsay(lambda *_: None, lambda _, document: heard.append(document), limit_bytes=4 << 20, piece_bytes=1 << 10)
    tracemalloc.start()
    try:
        for number in range(256):
            frame = State(run="/job", round=0, offset=0, total=4 << 20)
            assert end.sink(PeerId(f"p{number}"), frame, 1) is not None
            end.received(PeerId(f"p{number}"), frame, 1, stored=True)
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_document_in_small_pieces_takes_no_more_room_than_in_large_ones() -> None:
    heard: list[bytes] = []
    end = Hearsay(lambda *_: None, lambda _, document: heard.append(document), limit_bytes=4 << 20, piece_bytes=1 << 10)
    end.met(PeerId("b"))
    tracemalloc.start()
    try:
        for frame, size in pieces(1, total=10_000, of=9_999):
            sink = end.sink(PeerId("b"), frame, size)
            assert sink is not None
            sink[:] = b"x"
            end.received(PeerId("b"), frame, size, stored=True)
        assert tracemalloc.get_traced_memory()[0] < 20_000
    finally:
        tracemalloc.stop()
    last = State(run="/job", round=0, offset=9_999, total=10_000)
    assert end.sink(PeerId("b"), last, 1) is not None
    end.received(PeerId("b"), last, 1, stored=True)
    assert heard == [b"x" * 9_999 + b"\0"]


def test_who_never_comes_to_an_end_makes_room_for_others() -> None:
    heard: list[tuple[PeerId, int]] = []
    end = Hearsay(
        lambda *_: None, lambda peer, document: heard.append((peer, len(document))), limit_bytes=100, piece_bytes=40
    )
    for name, of in (("a", 80), ("b", 80), ("c", 80), ("d", 100)):
        for frame, size in pieces(40, total=100, of=of):
            assert end.sink(PeerId(name), frame, size) is not None
            end.received(PeerId(name), frame, size, stored=True)
    assert heard == [("d", 100)]
    frame = State(run="/job", round=0, offset=80, total=100)
    assert [end.sink(PeerId(name), frame, 20) is not None for name in "abc"] == [False, False, True]


def test_a_run_has_no_such_name() -> None:
    assert not Hearsay.concerns(StateRequest(run="job/blocks"))
