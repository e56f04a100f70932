"""A device's agent: one peer that takes part in whatever job its fabric announces, until it is told to stop.

A fleet that has lost everything but its checkpoints, the broker's memory included, takes up its job again: an agent
that stopped in mid-job announces that job, if the fabric has none and has not gone on to another.

An agent that finds its fabric at work joins when its model is built, not before: a round needs all who are in.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import time
from typing import TYPE_CHECKING, Any, Final

from edgepeer.cancelling import unless
from edgepeer.coding.speed import parse_speed
from edgepeer.complaints import Complaints
from edgepeer.errors import JobError, WireError
from edgepeer.fabric import events as seen
from edgepeer.fabric.documents import JobOver
from edgepeer.ids import PeerId
from edgepeer.peer.api import Peer
from edgepeer.peer.checkpoints import Checkpoints, Ending
from edgepeer.peer.job_board import JobBoard, Verdict
from edgepeer.peer.job_run import JobRun
from edgepeer.peer.machines import FtTree, MachineFactory
from edgepeer.peer.metrics import Metrics
from edgepeer.peer.pacing import Pacing
from edgepeer.peer.reminding import Reminder
from edgepeer.peer.round_log import RoundLog
from edgepeer.peer.run import REGATHER_S, Device, Run
from edgepeer.peer.said_again import Again, said_again
from edgepeer.peer.service import Service
from edgepeer.peer.watching import Watch
from edgepeer.peer.worker import Worker
from edgepeer.training.job import Job
from edgepeer.trust.loading import load_trust
from edgepeer.wire.documents import pack, unpack

if TYPE_CHECKING:
    from edgepeer.settings import PeerSettings

__all__ = ["run_agent"]

_log = logging.getLogger(__name__)
_FT_TREE: Final = FtTree()
_RESTORE_S: Final = 1.0
"""In a fleet, its job is put back in its place at most so often."""
STUCK_S: Final = 5.0
"""What the code of a job that is over still does is done within that time, or may never be."""


async def run_agent(
    settings: PeerSettings,
    *,
    machine: MachineFactory = _FT_TREE,
    stop: asyncio.Event,
    asked: asyncio.Event | None = None,
    regather_s: float = REGATHER_S,
) -> None:
    """Run one peer until `stop` is set, then leave. Whenever `asked` is set, it logs how it stands.

    Args:
        machine: what rounds run by.
        regather_s: how long it waits for all who have lost power with it.

    Raises:
        ConfigError: a setting can't be used on this device.
        FabricError: the broker can't be reached, or refuses us.
    """
    await _Agent(settings, machine, regather_s).live(stop, asked or asyncio.Event())


class _Agent:
    """Starts and ends job runs as the fabric's job changes."""

    def __init__(self, settings: PeerSettings, machine: MachineFactory, regather_s: float) -> None:
        self._settings = settings
        self._regather_s = regather_s
        self._speed = parse_speed(settings.device_speed)
        if settings.soft_errors or settings.flip:
            _check_soft_errors(settings)
        self._peer = Peer(
            settings.broker,
            settings.fabric,
            peer_id=settings.peer_id,
            state_dir=settings.state_dir,
            listen=settings.listen,
            insecure=settings.insecure,
            advertise=settings.advertise,
            fanout=settings.fanout,
            lanes=settings.lanes,
            quorum=settings.quorum,
            trust=load_trust(settings.fleet),
            machine=machine,
            aside=True,
            on_fabric_event=self._hear,
            on_hearsay=self._hear_of_peer,
        )
        self._checkpoints = Checkpoints(
            settings.state_dir, every=settings.checkpoint_every, keep=settings.checkpoint_keep
        )
        in_fleet = settings.fleet is not None
        self._jobs = JobBoard(lambda job: self._checkpoints.ending(job) == "withdrawn", in_order=in_fleet)
        self._was_at = ""
        """The job that this device was at when it stopped, until it is noted that it is over."""
        self._to_note: asyncio.Queue[tuple[str, Ending]] = asyncio.Queue()
        """Which job is not to be taken up in a later life, and how it has ended: of two at most."""
        self._ended: JobOver | None = None
        """The job that the fabric had before the current one, or none."""
        self._ignored = Complaints(_log)
        self._restored_at = float("-inf")
        self._run_told = ""
        self._said: Job | JobOver | None = None
        """What this device has said of the fabric's job in this connection, since something else counts there."""
        self._put_off: seen.JobSeen | None = None
        """What the broker has for the fabric's job, as long as what this device was at when it stopped counts more."""
        self._met = False
        """Whether it is known what the fabric is at."""
        self._aside = False
        """Whether this device can't do what the fabric is at, so that the others are to do without it."""
        self._changed = asyncio.Event()

    async def live(self, stop: asyncio.Event, asked: asyncio.Event) -> None:
        """Be in the fabric until `stop` is set."""
        settings, peer, checkpoints = self._settings, self._peer, self._checkpoints
        # One thread computes, and writes what is to stay; the loop's thread only moves frames.
        with RoundLog(settings.round_log) as round_log:
            async with Worker() as worker, Metrics(settings.metrics_port) as metrics, Service(peer, stop):
                unfinished = await asyncio.get_running_loop().run_in_executor(worker, checkpoints.unfinished)
                self._jobs.unfinished = unfinished
                self._was_at = unfinished.id if unfinished is not None else ""
                device = Device(
                    peer=peer,
                    settings=settings,
                    worker=worker,
                    round_log=round_log,
                    checkpoints=checkpoints,
                    metrics=metrics,
                    regather_s=self._regather_s,
                )
                async with contextlib.AsyncExitStack() as membership:
                    if not await unless(stop, membership.enter_async_context(peer)):
                        return
                    self._pass_on()
                    _log.info("peer %s listens on %s, fabric %s", peer.id, peer.address, settings.fabric)
                    metrics.watch(peer, checkpoints)
                    if metrics.url:
                        _log.info("metrics at %s", metrics.url)
                    await self._run(device, stop, asked)

    def _hear(self, event: seen.FabricEvent) -> None:
        match event:
            case seen.Connected():
                self._run_told, self._put_off, self._said = "", None, None
                self._jobs.connected()
            case seen.ViewSeen(view):
                self._run_told = view.run
            case seen.JobSeen():
                self._see(event)
                self._peer.bell.ring()
            case seen.JobSpoiled():
                self._restore()
            case seen.Synced():
                self._jobs.synced()
                if (unfinished := self._jobs.unfinished) is not None:
                    self._jobs.unfinished = None
                    self._take_up(unfinished)
                self._meet()
                self._peer.bell.ring()

    def _meet(self) -> None:
        """Join now, or leave that to the run."""
        if self._met:
            return
        self._met = True
        job = self._jobs.current
        if job is not None and self._run_told == job.id:
            _log.info("job %s is under way: joining when the model is built", job.id)
        elif not self._aside:  # it may have failed at that already
            self._peer.come_back()

    def _stand_aside(self) -> None:
        self._aside = True
        self._peer.stand_aside()

    def _come_back(self) -> None:
        self._aside = False
        self._peer.come_back()

    def _is_untold(self) -> bool:
        """Whether the broker is to hear what the fabric is at: joiners need the job, and whoever begins another one is
        to know of this one."""
        at = self._jobs.current or self._ended
        return bool(self._peer.broker_there) and self._jobs.behind and at is not None and at != self._said

    def _restore(self) -> None:
        """Something that can't be read stands where the fabric's job was: those who join now would not know it."""
        if not self._leads:
            return
        if self._peer.fabric.in_fleet:
            # What counts there is the same for all: nobody can disagree for ever, but somebody may keep us busy.
            now = time.monotonic()
            if now - self._restored_at >= _RESTORE_S:
                self._restored_at = now
                self._peer.fabric.announce_again()
        elif self._jobs.spoiled() is Verdict.CORRECT:
            self._announce(self._jobs.current)

    @property
    def _leads(self) -> bool:
        return self._peer.view is not None and self._peer.view.coordinator == self._peer.id

    def _take_up(self, job: Job) -> None:
        """All has stopped, the broker too: the job is known from checkpoints alone."""
        if self._run_told and not self._jobs.came_before(self._run_told):
            _log.info("job %s, which this device has checkpoints of, is over: the fleet has gone on", job.id)
            if self._put_off is not None:
                self._see(self._put_off)  # it was only older, by the clock of who began it
            at = self._jobs.current.id if self._jobs.current is not None else self._run_told
            if at != job.id:  # else its fleet may be at work, and the broker have lost what it knew
                # As if it were done: not to be taken up from here again, though it counts if others say so.
                self._to_note.put_nowait((job.id, "done"))
            return
        _log.info("job %s is taken up again from this device's checkpoints", job.id)
        if not self._peer.fabric.in_fleet:  # there it counts once it has come, as its operator has signed it
            self._jobs.take_up(job)
            self._changed.set()
            self._pass_on()
        self._announce(job)

    def _announce(self, job: Job | JobOver | None, *, over: str = "") -> None:
        """Say what the fabric's job is. `over`: which one is known to be over, if not the one before it."""
        fabric, self._said = self._peer.fabric, job
        if fabric.in_fleet:
            fabric.announce_again()  # as its operator has signed it, which no peer can
        else:
            before = self._ended.over if self._ended is not None else ""
            said = said_again(job, after=over or before) if isinstance(job, Job) else job
            fabric.publish_retained(fabric.topics.job, said)

    def _see(self, event: seen.JobSeen) -> None:
        """The broker tells what it has for the fabric's job."""
        fabric = self._peer.fabric
        try:
            correction = self._judge(event)
        except WireError as error:
            fabric.reject(fabric.topics.job, str(error))
            self._jobs.unreadable()
            self._restore()
            return
        fabric.forget(fabric.topics.job)  # whatever we had announced has its answer
        # What this device was at is said in its place when all is known that the broker retains.
        if correction is not None and self._jobs.unfinished is not None:
            self._put_off = event
        elif correction is not None:
            over = correction.over if self._jobs.knows_over(correction.over) else ""
            self._announce(self._jobs.current or correction, over=over)

    def _hear_of_peer(self, peer: PeerId, document: bytes) -> None:
        """A peer that is connected tells what it knows of the fabric's job: one of the two may be without a broker."""
        try:
            event = self._peer.fabric.job_in(document)
            correction = self._judge(event, by_peer=True)
        except WireError as error:
            _log.debug("%s told of a job that does not count: %s", peer, error)
            return
        self._peer.bell.ring()
        if correction is None or self._peer.fabric.in_fleet:
            return  # in a fleet, what is newer counts at both, and has been told
        if event.payload is not None and self._jobs.knows_over(correction.over):
            self._peer.tell(pack(correction), peer)
        if self._jobs.current is not None:
            self._peer.tell(pack(self._jobs.current), peer)

    def _judge(self, event: seen.JobSeen, *, by_peer: bool = False) -> JobOver | None:
        """Make up one's mind about what is told of the fabric's job. Returns what is to be corrected, if anything is.

        Raises:
            WireError: it can't be read.
        """
        before = self._jobs.current
        if event.payload is None:
            named = event.over
            verdict = self._jobs.see(None, over=named, by_peer=by_peer)
        else:
            job, more = unpack(event.payload, Job), unpack(event.payload, Again)
            named = job.id
            verdict = self._jobs.see(job, over=more.after, by_peer=by_peer, again=more.again)
        match verdict:
            case Verdict.TAKEN:
                over = before is not None and self._jobs.knows_over(before.id)
                self._ended, self._said = JobOver(over=before.id) if before is not None and over else None, None
                self._changed.set()
            case Verdict.CORRECT:
                level = logging.DEBUG if by_peer else logging.INFO
                _log.log(level, "job %s is over, or not the first of that id: somebody had not heard", named)
            case Verdict.IGNORED:
                self._ignored.add("job %s, which is over, is announced again and again: ignored", named)
        self._note_over()
        self._pass_on()
        return JobOver(over=named) if verdict is Verdict.CORRECT else None

    def _note_over(self) -> None:
        """What this device was at when it stopped is not to be taken up in a later life either, when nobody may be
        there to say that it is over. (Of what it takes part in, `_work` notes that.)"""
        if self._was_at and self._jobs.knows_over(self._was_at):
            self._to_note.put_nowait((self._was_at, "withdrawn"))
            self._was_at = ""

    async def _note(self, device: Device) -> None:
        """Note what has become of what this device was at when it stopped."""
        while True:
            await self._noted(device, *await self._to_note.get())

    async def _noted(self, device: Device, job: str, how: Ending) -> None:
        """Note what has become of a job, as soon as the worker takes that and has done what comes before it."""
        mark = functools.partial(self._checkpoints.mark_over, job, how)
        while True:
            try:
                marking = asyncio.get_running_loop().run_in_executor(device.worker, mark)
            except RuntimeError:  # far too much is waiting there
                await asyncio.sleep(STUCK_S)
            else:
                break
        await asyncio.wait([marking])  # not cancelled with this: it is done before the worker ends

    def _pass_on(self) -> None:
        """Tell peers that are connected what is known of the fabric's job."""
        self._peer.tell(self._peer.fabric.job_document(self._jobs.current or self._ended))

    async def _run(self, device: Device, stop: asyncio.Event, asked: asyncio.Event) -> None:
        """Take part in jobs until `stop` is set, and log how the peer stands when `asked` is."""
        fabric = self._peer.fabric
        async with asyncio.TaskGroup() as tasks:
            reminder = Reminder(
                self._peer, untold=self._is_untold, tell=lambda: self._announce(self._jobs.current or self._ended)
            )
            beside = (Watch(self._peer).run(), reminder.run(), self._tell(asked), self._note(device))
            aside = [tasks.create_task(each) for each in beside]
            await self._work(device, stop)
            for task in aside:
                task.cancel()
        fabric.publish_retained(fabric.topics.links(self._peer.id), None)

    async def _tell(self, asked: asyncio.Event) -> None:
        while True:
            await asked.wait()
            asked.clear()
            standing = self._peer.diagnosis()
            _log.warning("asked how it stands: %s", json.dumps(standing), extra={"fields": {"standing": standing}})

    async def _work(self, device: Device, stop: asyncio.Event) -> None:
        while not stop.is_set():
            self._changed.clear()
            job = self._jobs.current
            async with asyncio.TaskGroup() as tasks:
                waits = [tasks.create_task(stop.wait()), tasks.create_task(self._changed.wait())]
                run = tasks.create_task(self._take_part(device, job)) if job is not None else None
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                for task in [*waits, *([run] if run is not None else [])]:
                    task.cancel()
            if job is not None and self._changed.is_set():
                self._come_back()  # wherever that job had left it
                if not self._jobs.knows_over(job.id):
                    continue  # it may count again
                _log.info("job %s is over", job.id, extra={"fields": {"job": job.id}})
                await self._mark_over(device, job, stop)

    async def _mark_over(self, device: Device, job: Job, stop: asyncio.Event) -> None:
        """Note that a job is over, once what its code does in the worker has come to an end. Until then this device can
        do no other: the others don't count on it."""
        marked = asyncio.create_task(self._noted(device, job.id, "withdrawn"))
        stopping = asyncio.create_task(stop.wait())
        either: list[asyncio.Future[Any]] = [marked, stopping]
        try:
            _, waiting = await asyncio.wait(either, timeout=STUCK_S, return_when=asyncio.FIRST_COMPLETED)
            if len(waiting) == len(either):
                text = (
                    "job %s is over, but what it computes does not come to an end: aside until it does, or restart me"
                )
                _log.warning(text, job.id, extra={"fields": {"job": job.id}})
                self._stand_aside()
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if not stop.is_set():
                    self._come_back()
        finally:
            for each in either:
                each.cancel()

    async def _take_part(self, device: Device, job: Job) -> None:
        pacing = Pacing(self._speed, self._peer.id, self._settings.state_dir)
        run = _kind_of(job)(device, job, pacing)
        try:
            await run.run()
        except JobError as error:
            _log.error("job %s: %s", job.id, error)
            # Whoever can't do this job must not keep the others waiting, but may do the next one.
            self._stand_aside()
            await run.hand_over()
        finally:
            run.close()


# What few devices ever do is imported by those that do it: memory is what small ones have least of.


def _kind_of(job: Job) -> type[Run]:
    if not job.split:
        return JobRun
    from edgepeer.peer.split_run import SplitRun

    return SplitRun


def _check_soft_errors(settings: PeerSettings) -> None:
    from edgepeer.peer.split_run import planned_errors

    planned_errors(settings)
