"""Following a job over a real broker, with peers that only talk."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgpack
import msgspec
import pytest
from fleets import Fleet
from told import Told
from virtual_loop import Attentive, VirtualLoop
from way_to_broker import Gate

from edgepeer.cli.train import _withdraw
from edgepeer.errors import FabricError, JobError
from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.fabric.client import FabricClient
from edgepeer.fabric.documents import JobOver, Presence
from edgepeer.fabric.events import (
    Answered,
    Connected,
    Disconnected,
    FabricEvent,
    JobSeen,
    PresenceGone,
    PresenceSeen,
    ReportSeen,
    Synced,
    TelemetrySeen,
    ViewSeen,
)
from edgepeer.following.follow import Follower, run_job
from edgepeer.following.observe import hear_out, hear_the_end, observe
from edgepeer.following.picture import Picture, saver_id
from edgepeer.following.progress import NOT_PASSED_ON, JobProgress
from edgepeer.following.result import JobResult
from edgepeer.following.saving import ModelSaver
from edgepeer.following.texts import summary
from edgepeer.ids import PeerId
from edgepeer.settings import TrainSettings
from edgepeer.simulation.clock import Clock
from edgepeer.topology.view import View
from edgepeer.training.job import Job
from edgepeer.wire.documents import pack, unpack

DEADLINE_S = 90.0


@pytest.fixture
async def broker() -> AsyncIterator[BrokerAddress]:
    async with EmbeddedBroker() as running:
        yield running.address


class Mouth:
    """Plays all peers of a job: waits for it, then says what they would."""

    def __init__(self, broker: BrokerAddress, told: Told, say: Callable[[Mouth, Job], None]) -> None:
        self.told = told
        self._say = say
        self._broker = broker
        self.jobs: list[str | None] = []
        self.over: list[str] = []
        self.cleared = asyncio.Event()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Mouth]:
        async with observe(self._broker, "test", self._hear) as self.client:
            yield self

    def _hear(self, event: FabricEvent) -> None:
        if isinstance(event, JobSeen):
            job = None if event.payload is None else unpack(event.payload, Job)
            self.jobs.append(None if job is None else job.id)
            if job is None:
                self.over.append(event.over)
                self.cleared.set()
            else:
                self._say(self, job)

    def keep(self, topic: str, document: msgspec.Struct | None) -> None:
        self.client.publish_retained(topic, document)

    def join(self) -> None:
        topics = self.client.topics
        for peer in self.told.peers:
            self.keep(topics.presence(peer), self.told.presence(peer))
        self.keep(topics.view, self.told.view())

    def train(self, job: Job) -> None:
        topics = self.client.topics
        for number in range(1, job.rounds + 1):
            self.client.publish_event(topics.telemetry("ash"), self.told.telemetry(self.told.record(number)))
        for peer in self.told.peers:
            self.keep(topics.report(job.id, peer), self.told.report(peer, accuracy=0.97))


async def test_a_job_from_its_document_to_its_result(broker: BrokerAddress, told: Told) -> None:
    def say(mouth: Mouth, job: Job) -> None:
        mouth.join()
        mouth.train(job)

    shown: list[int] = []
    async with asyncio.timeout(DEADLINE_S), Mouth(broker, told, say).open() as mouth:
        old = told.report("ash").__class__(job="old", peer="ash", state="done")
        mouth.keep(mouth.client.topics.report("old", "ash"), old)
        assert await mouth.client.flush(DEADLINE_S)
        progress = JobProgress(told.job, broker="embedded")
        result = await run_job(
            progress, lambda now: shown.append(now.round), broker=broker, fabric="test", timeout=DEADLINE_S
        )
        assert result.identical
        assert result.quality == ("accuracy", 0.97)
        assert [record.round for record in result.records] == list(range(1, 11))
        assert shown[-1] == 10
        await mouth.cleared.wait()
        assert mouth.jobs == ["j1", None]

        picture = Picture()
        async with observe(broker, "test", picture.take):
            assert picture.job is None
            assert sorted(picture.reports) == [("j1", peer) for peer in told.peers], "the old one is cleared"


@pytest.mark.parametrize("state", ["done", "failed"])
async def test_it_hears_until_all_is_done_for_the_job_and_no_longer(
    state: str, broker: BrokerAddress, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(Follower, "close", lambda _: said.append("closed"))

    def say(mouth: Mouth, job: Job) -> None:
        mouth.join()
        if state == "done":
            mouth.train(job)
            return
        for peer in told.peers:
            mouth.keep(mouth.client.topics.report(job.id, peer), told.report(peer, "failed"))

    async def at_end(result: JobResult, withdrawn: asyncio.Event, at: BrokerAddress) -> None:
        said.append("at the end")

    progress = JobProgress(told.job, broker="")
    how = {"broker": broker, "fabric": "test", "timeout": DEADLINE_S, "at_end": at_end}
    async with asyncio.timeout(DEADLINE_S), Mouth(broker, told, say).open():
        with contextlib.nullcontext() if state == "done" else pytest.raises(JobError):
            await run_job(progress, lambda _: None, **how)  # type: ignore[arg-type]  # of these names
    assert said == (["at the end", "closed"] if state == "done" else ["closed"])


async def test_who_is_through_takes_back_no_job_but_its_own(broker: BrokerAddress, told: Told) -> None:
    """While it fetches what was trained, others may have begun with the next; and it says what is over, since it may
    not have heard of that yet."""

    def say(mouth: Mouth, job: Job) -> None:
        if job.id == "j1":
            mouth.join()
            mouth.train(job)

    async with asyncio.timeout(DEADLINE_S), Mouth(broker, told, say).open() as mouth:

        async def announce_another(result: JobResult, withdrawn: asyncio.Event, at: BrokerAddress) -> None:
            mouth.keep(mouth.client.topics.job, Job(id="j2"))
            await withdrawn.wait()

        for at_end in (None, announce_another):
            await run_job(
                JobProgress(told.job, broker=""),
                lambda _: None,
                broker=broker,
                fabric="test",
                timeout=DEADLINE_S,
                at_end=at_end,
            )
            if at_end is None:
                await mouth.cleared.wait()
                assert mouth.over == ["j1"]
        picture = Picture()
        async with observe(broker, "test", picture.take):
            assert picture.job == Job(id="j2")


async def test_all_peers_fail(broker: BrokerAddress, told: Told) -> None:
    def say(mouth: Mouth, job: Job) -> None:
        mouth.join()
        for peer in told.peers:
            mouth.keep(mouth.client.topics.report(job.id, peer), told.report(peer, "failed", error="no data"))

    async with asyncio.timeout(DEADLINE_S), Mouth(broker, told, say).open() as mouth:
        with pytest.raises(JobError, match=r"^all 3 peers failed: no data$"):
            await run_job(
                JobProgress(told.job, broker=""), lambda _: None, broker=broker, fabric="test", timeout=DEADLINE_S
            )
        await mouth.cleared.wait()


async def test_somebody_withdraws_the_job(broker: BrokerAddress, told: Told) -> None:
    def say(mouth: Mouth, job: Job) -> None:
        mouth.keep(mouth.client.topics.job, None)

    async with asyncio.timeout(DEADLINE_S), Mouth(broker, told, say).open():
        with pytest.raises(JobError, match="job j1 was withdrawn after round 0 of 10"):
            await run_job(
                JobProgress(told.job, broker=""), lambda _: None, broker=broker, fabric="test", timeout=DEADLINE_S
            )


@pytest.mark.parametrize("detach", [True, False])
async def test_a_follower_that_is_cancelled(broker: BrokerAddress, told: Told, detach: bool) -> None:
    seen = asyncio.Event()
    async with asyncio.timeout(DEADLINE_S), Mouth(broker, told, lambda _, job: seen.set()).open() as mouth:
        progress = JobProgress(told.job, broker="")
        following = asyncio.create_task(
            run_job(progress, lambda _: None, broker=broker, fabric="test", timeout=DEADLINE_S, detach=detach)
        )
        await seen.wait()
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following
        if not detach:
            await mouth.cleared.wait()
        picture = Picture()
        async with observe(broker, "test", picture.take):
            assert (picture.job is not None) == detach


@asynccontextmanager
async def cut_off(broker: BrokerAddress, progress: JobProgress) -> AsyncIterator[tuple[Gate, asyncio.Task[JobResult]]]:
    """Somebody follows a job, and can't reach its broker any more."""
    gate, seen = Gate(broker), asyncio.Event()
    await gate.open()

    def look(now: JobProgress) -> None:
        if now.published:
            seen.set()

    following = asyncio.create_task(
        run_job(progress, look, broker=gate.address, fabric="test", timeout=DEADLINE_S, detach=True)
    )
    try:
        await seen.wait()
        await gate.shut()
        yield gate, following
    finally:
        following.cancel()
        await asyncio.wait([following])
        await gate.shut()


@pytest.mark.parametrize("gone_on", [True, False])
async def test_who_was_away_puts_back_no_job_that_is_over(broker: BrokerAddress, told: Told, gone_on: bool) -> None:
    """Others have taken it back meanwhile, and may be at the next."""
    progress = JobProgress(told.job, broker="")
    async with (
        asyncio.timeout(DEADLINE_S),
        Mouth(broker, told, lambda _, job: None).open() as mouth,
        cut_off(broker, progress) as (gate, following),
    ):
        mouth.keep(mouth.client.topics.job, Job(id="j2", created=1.0) if gone_on else JobOver(over="j1"))
        assert await mouth.client.flush(DEADLINE_S)
        await gate.open()
        with pytest.raises(JobError, match="job j1 was replaced by job j2" if gone_on else "job j1 was withdrawn"):
            await following
        assert mouth.jobs == ["j1", "j2" if gone_on else None]
        picture = Picture()
        async with observe(broker, "test", picture.take):
            assert picture.job == (Job(id="j2", created=1.0) if gone_on else None)


async def test_a_broker_that_has_lost_its_memory_is_told_of_the_job_again(broker: BrokerAddress, told: Told) -> None:
    progress = JobProgress(told.job, broker="")
    async with asyncio.timeout(DEADLINE_S), cut_off(broker, progress) as (gate, _), EmbeddedBroker() as another:
        gate.behind = another.address
        async with Mouth(another.address, told, lambda mouth, _: mouth.cleared.set()).open() as mouth:
            await gate.open()
            await mouth.cleared.wait()
            assert mouth.jobs == ["j1"]


async def test_a_busy_fabric_is_left_alone(broker: BrokerAddress, told: Told) -> None:
    async with asyncio.timeout(DEADLINE_S), Mouth(broker, told, lambda _, job: None).open() as mouth:
        mouth.keep(mouth.client.topics.job, told.job)
        assert await mouth.client.flush(DEADLINE_S)
        other = JobProgress(Job(id="j2"), broker="")
        with pytest.raises(JobError, match=r"job j1 is not done yet \(it waits for 3 peers\)"):
            await run_job(other, lambda _: None, broker=broker, fabric="test", timeout=DEADLINE_S)
        assert mouth.jobs == ["j1"]


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("in_fleet", [False, True])
async def test_of_two_jobs_that_are_announced_at_once_one_is_followed_and_the_others_user_told_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_fleet: bool, first: int
) -> None:
    """Neither has heard of the other's when it announces its own. In a fleet that which is signed later counts, also
    where it comes first."""
    fleet = Fleet(tmp_path / "fleet", "test") if in_fleet else None
    publish, held = FabricClient.publish_retained, list[tuple[Job, FabricClient, str, bytes]]()

    def publish_both(client: FabricClient, topic: str, document: msgspec.Struct | None) -> None:
        if not isinstance(document, Job):
            publish(client, topic, document)
            return
        held.append((document, client, topic, client._kept_as(topic, client._packed(topic, document))))
        if len(held) == 2:
            for which in (first, 1 - first):
                _, speaker, there, payload = held[which]
                speaker._outbox.keep(there, payload)
                speaker._wake()

    monkeypatch.setattr(FabricClient, "publish_retained", publish_both)
    jobs = {name: Job(id=name, rounds=10, wait_for=3, trainer="numpy") for name in ("j1", "j2")}
    async with asyncio.timeout(DEADLINE_S), EmbeddedBroker(identity=fleet and fleet.a_broker()) as running:

        async def follow(job: Job) -> JobResult:
            return await run_job(
                JobProgress(job, broker=""),
                lambda _: None,
                broker=running.address,
                fabric="test",
                timeout=DEADLINE_S,
                identity=fleet and fleet.operator(f"operator-of-{job.id}"),
            )

        tasks = {name: asyncio.create_task(follow(job)) for name, job in jobs.items()}
        done, pending = await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        assert len(pending) == 1
        beaten, wins = (next(name for name in tasks if tasks[name] in which) for which in (done, pending))
        with pytest.raises(JobError, match=f"job {beaten} was replaced by job {wins} after|job {wins} came first"):
            await tasks[beaten]
        picture, news = Picture(), asyncio.Event()

        def take(event: FabricEvent) -> None:
            picture.take(event)
            news.set()

        async with observe(running.address, "test", take, identity=fleet and fleet.viewer()):
            assert picture.job == jobs[wins]
            tasks[wins].cancel()
            while picture.job is not None:
                news.clear()
                await news.wait()
        await asyncio.wait(tasks.values())
        if in_fleet:
            assert wins == held[1][0].id


async def test_no_broker(told: Told) -> None:
    with pytest.raises(FabricError, match=r"^broker mqtt://127\.0\.0\.1:1: "):
        async with observe(BrokerAddress(host="127.0.0.1", port=1), "test", lambda _: None, timeout=0.5):
            pytest.fail("there is none")


def test_busy(told: Told) -> None:
    picture = Picture()
    assert picture.busy == ""
    picture.take(JobSeen(b"garbage"))
    assert picture.busy.startswith("the fabric has a job that this build can't read (")
    picture.take(JobSeen(pack(told.job)))
    assert picture.busy == "job j1 is not done yet (it waits for 3 peers)"
    for peer in told.peers:
        picture.take(PresenceSeen(told.presence(peer)))
        picture.take(ReportSeen(told.report(peer, "running")))
    assert picture.busy == "job j1 is not done yet (3 peers work on it)"
    picture.take(ReportSeen(told.report("ash")))
    picture.take(ReportSeen(told.report("birch", "failed")))
    assert picture.busy == "job j1 is not done yet (1 peers work on it)"
    picture.take(PresenceGone("cedar"))  # type: ignore[arg-type]
    assert picture.busy == ""
    picture.take(PresenceSeen(Presence(id="saver-0123456789ab", incarnation=1, addresses=())))
    assert picture.busy == "the model of job j1 is being fetched"


def test_who_can_not_do_a_job_does_not_end_it_for_those_who_wait(told: Told) -> None:
    picture = Picture()
    picture.take(JobSeen(pack(told.job)))
    picture.take(PresenceSeen(told.presence("ash")))
    picture.take(ReportSeen(told.report("ash", "failed")))
    assert picture.busy == "", "there is nobody else"
    picture.take(PresenceSeen(told.presence("birch")))
    assert picture.busy == "job j1 is not done yet (it waits for 3 peers)"
    for peer in ("birch", "cedar"):
        picture.take(PresenceSeen(told.presence(peer)))
        picture.take(ReportSeen(told.report(peer, "failed")))
    assert picture.busy == ""


async def test_a_broker_that_has_just_lost_its_memory_is_not_taken_for_idle(broker: BrokerAddress, told: Told) -> None:
    """The peers are back within seconds, and say what they are at."""
    progress = JobProgress(Job(id="j2"), broker="")
    following = run_job(progress, lambda _: None, broker=broker, fabric="test", timeout=DEADLINE_S, beside_others=True)
    async with asyncio.timeout(DEADLINE_S), observe(broker, "test", lambda _: None) as client:
        client.publish_retained(client.topics.view, told.view())
        assert await client.flush(DEADLINE_S)  # or there would be nothing that tells of a job
        began = asyncio.create_task(following)
        client.publish_retained(client.topics.job, told.job)
        with pytest.raises(JobError, match="job j1 is not done yet"):
            await began


OTHER_JOB = "c0ffee0000000001"


def at_a_job(told: Told) -> View:
    """The view of peers that are at a job that train has begun."""
    return msgspec.structs.replace(told.view(), run=OTHER_JOB)


def test_what_peers_are_at_by_themselves_is_no_job(told: Told) -> None:
    """A program calls its run as it likes, and nobody says anything of it here."""
    for run in ("run", "split-0123456789abcdef", "c0ffee", ""):
        picture = Picture()
        picture.take(ViewSeen(msgspec.structs.replace(told.view(), run=run)))
        picture.take(PresenceSeen(told.presence(told.peers[0])))
        assert (picture.run, picture.busy) == ("", "")


@pytest.mark.parametrize("heard", ["of the job", "that it is over", "nothing", "nothing, of the dead"])
async def test_a_view_at_work_is_not_idle_though_its_broker_knows_of_no_job(
    told: Told, heard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has just lost its memory; or nobody who could tell it is there."""
    if heard.startswith("nothing"):
        monkeypatch.setattr("edgepeer.following.observe.BACK_WITHIN_S", 0.0)
    picture, news = Picture(), asyncio.Event()
    for event in (ViewSeen(at_a_job(told)), *(PresenceSeen(told.presence(peer)) for peer in told.peers)):
        picture.take(event)
    async with asyncio.timeout(DEADLINE_S):
        waiting = asyncio.create_task(hear_out(picture, news))
        if not heard.startswith("nothing"):
            await asyncio.sleep(0)
            assert not waiting.done()
            picture.take(JobSeen(pack(told.job)) if heard == "of the job" else JobSeen(None, told.job.id))
            news.set()
        await waiting
    if heard == "nothing, of the dead":
        picture.doubt()
    assert picture.busy == {
        "of the job": "job j1 is not done yet (it waits for 3 peers)",
        "that it is over": "",
        "nothing": f"its peers are at job {OTHER_JOB}, and the broker has yet to hear more of that",
        "nothing, of the dead": "",
    }.get(heard)


@pytest.mark.parametrize("there", [True, False], ids=["at work", "dead"])
async def test_a_job_that_the_broker_has_not_heard_of_can_be_withdrawn(
    broker: BrokerAddress,
    told: Told,
    there: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("edgepeer.following.observe.BACK_WITHIN_S", 0.0)
    monkeypatch.setattr("edgepeer.following.observe._ANSWER_WITHIN_S", DEADLINE_S if there else 0.0)
    settings = TrainSettings(broker=broker.url(), fabric="test", withdraw=True)
    async with asyncio.timeout(DEADLINE_S), Mouth(broker, told, lambda _, job: None).open() as mouth:
        mouth.join()
        mouth.keep(mouth.client.topics.view, at_a_job(told))
        assert await mouth.client.flush(DEADLINE_S)
        if not there:
            for peer in told.peers:
                mouth.client.forget(mouth.client.topics.presence(peer))  # the broker keeps it
        assert await _withdraw(settings) == 0
        assert capsys.readouterr().out == (f"job {OTHER_JOB} is withdrawn\n" if there else "fabric 'test' has no job\n")
        if there:
            await mouth.cleared.wait()
            assert mouth.over == [OTHER_JOB]


async def test_the_model_of_a_job_is_fetched_before_another_begins(broker: BrokerAddress, told: Told) -> None:
    async with asyncio.timeout(DEADLINE_S), Mouth(broker, told, lambda _, job: None).open() as mouth:
        mouth.join()
        mouth.keep(mouth.client.topics.job, told.job)
        for peer in told.peers:
            mouth.keep(mouth.client.topics.report("j1", peer), told.report(peer))
        assert await mouth.client.flush(DEADLINE_S)
        saver = saver_id()
        for fetched in (True, False):
            picture, news = Picture(), asyncio.Event()

            def take(event: FabricEvent, picture: Picture = picture, news: asyncio.Event = news) -> None:
                picture.take(event)
                news.set()

            async with observe(broker, "test", take):
                waiting = asyncio.create_task(hear_out(picture, news))
                if fetched:
                    mouth.keep(mouth.client.topics.presence(saver), Presence(id=saver, incarnation=1, addresses=()))
                else:
                    mouth.keep(mouth.client.topics.job, JobOver(over="j1"))
                await waiting
                assert picture.busy == ("the model of job j1 is being fetched" if fetched else "")
                assert (picture.job is not None) == fetched
            mouth.keep(mouth.client.topics.presence(saver), None)
            assert await mouth.client.flush(DEADLINE_S)


async def test_a_model_is_not_waited_for_when_its_job_is_replaced(
    told: Told, running: JobProgress, finish: Callable[..., JobProgress], tmp_path: Path
) -> None:
    saver, withdrawn = ModelSaver(TrainSettings(save=tmp_path / "a.npz")), asyncio.Event()

    async def fetch(_: JobResult) -> memoryview:
        withdrawn.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with asyncio.timeout(DEADLINE_S):
        await saver.save(finish(running).result(), fetch, withdrawn)
    assert saver.saved is None
    assert saver.error.endswith("job j1 was withdrawn, or another one begun, before a peer had handed over its model")


async def test_why_a_model_is_not_written_does_nothing_to_a_terminal(
    running: JobProgress, finish: Callable[..., JobProgress], tmp_path: Path
) -> None:
    """A state says of which data it is, and whoever hands it over may have written that."""
    saver = ModelSaver(TrainSettings(save=tmp_path / "a.npz"))

    async def fetch(_: JobResult) -> memoryview:
        raise JobError("model mlp: has 10 outputs where \x1b[2J\x9b8m has 9 classes")

    await saver.save(finish(running).result(), fetch, asyncio.Event())
    assert saver.error.isprintable()
    assert saver.error.endswith(r"where \x1b[2J\x9b8m has 9 classes")


async def test_a_standstill_ends_with_what_is_known(running: JobProgress) -> None:
    follower = Follower(running, lambda _: None)
    with pytest.raises(JobError, match=r"nothing has moved for 0\.2 s: round 7 of 10, waiting for ash, birch, cedar"):
        await follower.finish(timeout=0.2)


async def test_what_is_known_at_the_last_update_is_in_the_result(told: Told) -> None:
    progress = told.running()
    progress.see_telemetry(told.telemetry(*(told.record(number) for number in range(1, 11))))
    for peer in told.peers:
        progress.see_report(told.report(peer))
    last = told.logged("birch", told.record(10, paths=("via ash",)))
    result = await Follower(progress, lambda known: known.see_logged([last])).finish(timeout=DEADLINE_S)
    assert result.detours(10) == ("via ash",)


async def test_a_broker_that_passes_the_job_on_to_nobody_is_blamed(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgepeer.following.follow.ECHO_S", 0.1)
    progress = JobProgress(told.job, broker="")
    with pytest.raises(JobError, match=r"nothing has moved for 0\.4 s: no peer is in the fabric"):
        await Follower(progress, lambda _: None).finish(timeout=0.4, said=lambda: False)
    with pytest.raises(
        JobError, match=r"nothing has moved for 0\.4 s: the broker has taken the job, and passes it on "
    ):
        await Follower(progress, lambda _: None).finish(timeout=0.4)
    assert list(progress.notes) == [NOT_PASSED_ON]


async def test_so_is_one_that_does_not_pass_on_that_it_is_over(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgepeer.following.observe.ECHO_S", 0.1)
    picture, news = Picture(), asyncio.Event()
    picture.take(JobSeen(pack(told.job)))
    assert not await hear_the_end(picture, news, told.job.id)
    for event in (JobSeen(pack(Job(id="another"))), JobSeen(None, told.job.id)):
        picture.take(event)
        assert await hear_the_end(picture, news, told.job.id)


async def test_whoever_never_reports_is_named(running: JobProgress, finish: Callable[..., JobProgress]) -> None:
    finish(running, "ash", "birch")
    result = await Follower(running, lambda _: None).finish(timeout=DEADLINE_S, settle=0.2)
    assert result.missing == ("cedar",)
    assert list(running.notes) == ["cedar did not report in time"]


async def test_so_is_who_took_part_to_the_end_and_was_never_heard_of(
    told: Told, finish: Callable[..., JobProgress]
) -> None:
    progress = JobProgress(told.job, broker="")
    progress.see_presence("ash", told.presence("ash"))
    progress.see_telemetry(told.telemetry(told.record(10)))
    finish(progress, "ash")
    result = progress.result()
    assert (result.done, result.missing, result.lost) == (("ash",), ("birch", "cedar"), ())
    assert ("did not report", "birch, cedar", False) in summary(result)


@pytest.mark.parametrize("ends", ["reports", "dies", "is heard of no more"])
def test_who_measures_the_model_is_waited_for_as_long_as_it_lives(
    running: JobProgress, finish: Callable[..., JobProgress], told: Told, ends: str
) -> None:
    """That may take longer than others have to report. Nobody else has the test's result, and the last record."""
    finish(running, "birch", "cedar")
    running.see_report(told.report("ash", "running", round=9))
    follower, asked = Follower(running, lambda _: None), list[float]()
    clock = Clock()
    loop = VirtualLoop(clock, Attentive())

    def ask() -> None:
        asked.append(clock.now)
        if len(asked) <= 4:
            follower.take(Answered(PeerId("ash")))
        elif ends == "reports":
            follower.take(ReportSeen(told.report("ash", accuracy=0.98)))
        elif ends == "dies":
            follower.take(PresenceGone(PeerId("ash")))

    with loop.running():
        finishing = loop.create_task(follower.finish(timeout=DEADLINE_S, settle=0.5, ask=ask))
    clock.run(until=finishing.done, limit_s=DEADLINE_S)
    result = finishing.result()
    loop.end()
    assert asked[4] >= 5 * 0.25
    if ends == "reports":
        assert (result.missing, result.quality) == ((), ("accuracy", 0.98))
    else:
        assert "ash" not in result.done
        assert ("ash did not report in time" in running.notes) == (ends != "dies")


async def test_others_that_live_are_waited_for_no_longer(
    running: JobProgress, finish: Callable[..., JobProgress]
) -> None:
    """They may be at something else for ever, and have nothing of which nobody else knows."""
    finish(running, "ash", "birch")
    asked: list[None] = []
    result = await Follower(running, lambda _: None).finish(
        timeout=DEADLINE_S, settle=0.3, ask=lambda: asked.append(None)
    )
    assert (result.missing, asked) == (("cedar",), [])


async def test_each_sign_of_progress_prolongs_the_wait(told: Told) -> None:
    progress = JobProgress(told.job, broker="")
    follower = Follower(progress, lambda _: None)
    loop = asyncio.get_running_loop()
    for at, peer in enumerate(told.peers):
        loop.call_later(0.4 * (at + 1), follower.take, PresenceSeen(told.presence(peer)))
    began = loop.time()
    with pytest.raises(JobError, match=r"nothing has moved for 0\.6 s"):
        await follower.finish(timeout=0.6)
    assert loop.time() - began >= 1.75
    assert len(progress.present) == 3


def test_events_reach_the_progress(told: Told) -> None:
    progress = JobProgress(told.job, broker="")
    follower = Follower(progress, lambda _: None)
    for event in (
        PresenceSeen(told.presence("ash")),
        ViewSeen(told.view()),
        ReportSeen(told.report("ash", "running")),
        TelemetrySeen(told.telemetry(told.record(3))),
        JobSeen(pack(told.job)),
        PresenceGone("ash"),  # type: ignore[arg-type]
    ):
        follower.take(event)
    assert (progress.members, progress.round, progress.published, progress.present) == (told.peers, 10, True, {})
    follower.take(Disconnected("connection lost"))
    assert progress.trouble().startswith("the broker is away (connection lost)")
    follower.take(Connected())
    assert progress.trouble() == "no peer is in the fabric"
    follower.take(Synced())
    for unreadable in (b"garbage", msgpack.packb({"v": 2, "id": "another build's"}), pack(told.job)[:-1]):
        follower.take(JobSeen(unreadable))
        assert not progress.withdrawn
    follower.take(JobSeen(pack(msgspec.structs.replace(told.job, id="another"))))
    assert progress.withdrawn
