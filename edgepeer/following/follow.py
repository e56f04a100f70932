"""Publishes a job in a fabric and follows it until nobody is left to wait for, or nothing moves any more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from edgepeer.errors import JobError, WireError
from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.connection import ECHO_S, SLOWEST_BYTES_PER_S
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
from edgepeer.following.announcing import Announcer
from edgepeer.following.jobs import check_trees
from edgepeer.following.observe import BACK_WITHIN_S, hear_out, observe, question
from edgepeer.following.picture import Picture
from edgepeer.following.progress import JobProgress
from edgepeer.following.result import JobResult
from edgepeer.peer.said_again import Again
from edgepeer.training.job import Job
from edgepeer.wire.documents import pack, unpack

if TYPE_CHECKING:
    from edgepeer.trust.identity import Identity

__all__ = ["AtEnd", "Follower", "run_job"]

_SETTLE_S: Final = 20.0
"""How long the others have to report once one peer is done; who measures the model has it as long as it answers."""
_LAST_RECORD_S: Final = 2.0
"""How long to wait for the last round's telemetry, which may come after the reports, or be lost."""
_TICK_S: Final = 0.125
_END_IT: Final = "end it with edgepeer train --withdraw"


class AtEnd(Protocol):
    """What is still to be done for a job that is done."""

    async def __call__(self, result: JobResult, withdrawn: asyncio.Event, at: BrokerAddress) -> None:
        """`withdrawn` is set when somebody else has cleared the job: nobody has its state then. `at`: the brokers, that
        first at which the job has ended: of several it need not be the best, and the peers are there."""


async def run_job(
    progress: JobProgress,
    on_update: Callable[[JobProgress], None],
    *,
    broker: BrokerAddress,
    fabric: str,
    timeout: float,
    identity: Identity | None = None,
    detach: bool = False,
    at_end: AtEnd | None = None,
    beside_others: bool = False,
) -> JobResult:
    """Publish `progress.job` in the fabric, follow it to its end, and clear it.

    Args:
        on_update: called several times a second, on the event loop, and just before the result is made: it may tell
            `progress` what else is known.
        identity: in a fleet, an operator's: only its jobs count there.
        timeout: seconds without any progress (a peer joining, a round finished) after which to give up.
        at_end: awaited when the job is done, before it is cleared: its peers still have its state.
        beside_others: others may begin and fetch jobs in this fabric: they are given time to say so.
        detach: leave the job to its fabric when we are cancelled or, if a peer has taken it up, give up; otherwise it
            ends with us.

    Raises:
        FabricError: the broker can't be reached.
        ConfigError: the job's code can't be had on the fleet's trees.
        JobError: the fabric is busy, all peers failed, the job was withdrawn, or nothing moved for too long.
    """
    picture, news = Picture(), asyncio.Event()
    follower = Follower(progress, on_update, in_order=identity is not None)
    announcer: Announcer | None = None

    def take(event: FabricEvent) -> None:
        picture.take(event)
        follower.take(event)
        if announcer is not None:
            announcer.take(event)
            if announcer.rival:
                progress.see_rival(announcer.rival)
        news.set()

    with contextlib.closing(follower):
        async with observe(broker, fabric, take, identity=identity) as client:
            if beside_others:
                await hear_out(picture, news)
            if picture.busy:
                await question(client, picture, news)  # whoever works on it may be dead
            if picture.busy:
                raise JobError(f"fabric {fabric!r}: {picture.busy}; wait, or {_END_IT}")
            if picture.view is not None and not picture.deserted:
                check_trees(progress.job, picture.view)
            for job, peer in picture.reports:
                client.publish_retained(client.topics.report(job, peer), None)  # nobody will ask for them any more
            client.clear_outdated()
            announcer = Announcer(client, progress.job, picture)
            try:
                result = await follower.finish(timeout=timeout, said=lambda: client.all_said, ask=client.ask)
                if at_end is not None:
                    await at_end(result, follower.withdrawn, broker.beginning_with(client.broker))
            except asyncio.CancelledError:
                if not detach:
                    _take_back(announcer, progress)
                raise
            except JobError as error:
                if detach and isinstance(error, _Stuck) and progress.reports:  # devices have it, and checkpoints of it
                    raise JobError(f"{error}; job {progress.job.id} goes on when it can: {_END_IT}") from None
                _take_back(announcer, progress)
                raise
            _take_back(announcer, progress)
            return result


class _Stuck(JobError):
    """Nothing has moved for too long."""


def _take_back(announcer: Announcer, progress: JobProgress) -> None:
    if not progress.withdrawn:
        announcer.take_back()


class Follower:
    """Feeds a JobProgress from a client's events and waits for its end.

    A broker may be back with what it knew long ago. Its peers put that right when they are back themselves, and know
    which job is the later one by when it was begun, as this does:

    told of another job, or none  | so
    ------------------------------+---------------------------------------------------------------------------------
    that was begun later          | ours is over
    by who begins it, or takes    | the same
    ours back, now                |
    before Synced, or by a device | it is, if nobody says otherwise for as long as peers may take to come back, and
                                  | their word to come here

    Args:
        in_order: nothing is told of that is older than what was told before, as in a fleet: then all counts at once.
    """

    def __init__(
        self, progress: JobProgress, on_update: Callable[[JobProgress], None], *, in_order: bool = False
    ) -> None:
        self._progress = progress
        self._in_order = in_order
        self._on_update = on_update
        self._changed = asyncio.Event()
        self._moved = False
        self._echo_s = ECHO_S + len(pack(progress.job)) / SLOWEST_BYTES_PER_S
        self._catching_up = False
        self._believe: Callable[[], None] | None = None
        """Takes for true what may be of before, of the fabric's job ..."""
        self._believed: asyncio.TimerHandle | None = None
        """... when nobody has said otherwise."""
        self.withdrawn = asyncio.Event()
        """As long as somebody else has taken the job back, or put another in its place."""

    def take(self, event: FabricEvent) -> None:
        """Hear of one event; for a FabricClient's `on_event`."""
        if self._tell(event):
            self._moved = True
        self._look()

    def close(self) -> None:
        """What has been heard counts as it stands: nothing changes any more what is told of the job."""
        self._doubt_no_more()

    def _look(self) -> None:
        if self._progress.withdrawn:
            self.withdrawn.set()
        else:
            self.withdrawn.clear()
        self._changed.set()

    async def finish(
        self,
        *,
        timeout: float,
        settle: float = _SETTLE_S,
        said: Callable[[], bool] = lambda: True,
        ask: Callable[[], None] = lambda: None,
    ) -> JobResult:
        """Wait until the job has ended.

        Args:
            timeout: seconds without any sign of progress after which to give up.
            settle: the same, once a peer is done.
            said: whether the broker has taken the job.
            ask: asks all peers whether they live.

        Raises:
            JobError: all peers failed, the job was withdrawn, or nothing moved for too long.
        """
        progress = self._progress
        clock = asyncio.get_running_loop().time
        said_at = moved_at = asked_at = clock()
        shown_at, round_then = float("-inf"), progress.round
        while True:
            now = clock()
            if not said() or progress.away:
                said_at = now
            if now - said_at >= self._echo_s:
                progress.miss_job()
            if self._moved or progress.round != round_then:
                self._moved, moved_at, round_then = False, now, progress.round
            if now - shown_at >= _TICK_S or progress.finished:
                shown_at = now
                self._on_update(progress)
            if progress.finished and (progress.recorded or now - moved_at >= _LAST_RECORD_S):
                return progress.result()
            patience = min(settle, timeout) if progress.done else timeout
            if now - moved_at >= patience:
                return self._give_up(timeout)
            if now - max(moved_at, asked_at) >= patience / 2 and progress.done and progress.measuring:
                asked_at = now
                ask()
            self._changed.clear()
            try:
                async with asyncio.timeout(_TICK_S):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _give_up(self, timeout: float) -> JobResult:
        progress = self._progress
        if not progress.done:
            raise _Stuck(f"nothing has moved for {timeout:g} s: {progress.trouble()}")
        for peer in progress.pending:
            progress.note(f"{peer} did not report in time")
        self._on_update(progress)
        return progress.result()

    def _tell(self, event: FabricEvent) -> bool:
        progress = self._progress
        match event:
            case ViewSeen(view):
                return progress.see_view(view)
            case PresenceSeen(presence):
                return progress.see_presence(presence.id, presence)
            case PresenceGone(peer_id):
                return progress.see_presence(peer_id, None)
            case Answered(peer_id):
                return progress.see_answer(peer_id)
            case ReportSeen(report):
                return progress.see_report(report)
            case TelemetrySeen(telemetry):
                return progress.see_telemetry(telemetry)
            case JobSeen(None, over):
                if over in ("", progress.job.id):
                    self._hear_of_job(None, of_before=self._catching_up and not over)
            case JobSeen(payload) if payload is not None:
                try:
                    job, again = unpack(payload, Job), unpack(payload, Again).again
                except WireError:
                    return False  # the peers don't take up what can't be read either
                older = job.id != progress.job.id and job.created <= progress.job.created
                self._hear_of_job(job.id, of_before=older and (self._catching_up or again))
            case Connected():
                self._doubt_no_more()
                self._catching_up = True
                progress.found_broker()
            case Synced():
                self._catching_up = False
                self._wait_for_others()
            case Disconnected(reason) if reason != "left":
                self._doubt_no_more()
                progress.lost_broker(reason)
        return False

    def _hear_of_job(self, job: str | None, *, of_before: bool) -> None:
        self._doubt_no_more()
        if not of_before or self._in_order:
            self._progress.see_job(job)
            return

        def believe() -> None:
            self._progress.see_job(job)
            self._look()

        self._believe = believe
        if not self._catching_up:
            self._wait_for_others()

    def _wait_for_others(self) -> None:
        if self._believe is not None and self._believed is None:
            loop = asyncio.get_running_loop()
            self._believed = loop.call_later(BACK_WITHIN_S + self._echo_s, self._believe)

    def _doubt_no_more(self) -> None:
        if self._believed is not None:
            self._believed.cancel()
        self._believe = self._believed = None
