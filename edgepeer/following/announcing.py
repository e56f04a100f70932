"""Says in a fabric what its job is, until a broker has it. Who says it again after each time that it was away puts an
old one in the place of what others have said meanwhile.

a broker tells, at first or once we are back  | so
----------------------------------------------+---------------------------------------------------------------------
of our job, or that it, or any, is over       | nothing: it knows
of another, before it has told of ours, and   | ours gives way, and is not said: the other came first
ours is not on its way there yet              |
the same, and it is on its way                | nothing: it comes behind the other, and replaces that; but in a fleet
                                              | it gives way, too: the other was signed later, which alone counts, and
                                              | is said again, as it may lie behind ours
of another, after it has told of ours         | nothing: ours has been replaced
what it told before ours was announced, or    | it has lost its memory: the job is said again; in a fleet, what was
of no job at all                              | signed last, be it of another

So of several that are announced at once, each before its announcer has heard of another, one counts: the one that its
broker, or in a fleet its signature, puts last. The announcers of the others all hear of that.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from edgepeer.errors import WireError
from edgepeer.fabric.documents import JobOver
from edgepeer.fabric.events import Connected, FabricEvent, JobSeen, Synced
from edgepeer.training.job import Job
from edgepeer.wire.documents import unpack

if TYPE_CHECKING:
    from edgepeer.fabric.client import FabricClient
    from edgepeer.following.picture import Picture

__all__ = ["Announcer"]


class Announcer:
    """Says it at once, to the broker that the client is at.

    Args:
        before: what the fabric was at.
    """

    def __init__(self, client: FabricClient, job: Job, before: Picture) -> None:
        self._client = client
        self._job = job
        self._before = "" if before.job is None else before.job.id, before.over
        self._told = True
        """Whether this connection has told of a job, or that one is over, of which nothing was told before."""
        self._heard = False
        """Whether any has told of ours."""
        self._over = False
        self.rival = ""
        """The job that ours has given way to, never having counted; empty: to none."""
        client.publish_retained(client.topics.job, job)

    def take_back(self) -> None:
        """The job is over. Whoever has said so already may have put another one there; or does so now, unheard yet:
        only of this one anything is said, but in a fleet, where what is signed last is all that counts."""
        self._over, client = True, self._client
        client.publish_retained(client.topics.job, None if client.in_fleet else JobOver(over=self._job.id))

    def take(self, event: FabricEvent) -> None:
        """Hear of one event."""
        match event:
            case Connected():
                self._told = False
            case JobSeen(payload, over):
                job = ""
                if payload is not None:
                    with suppress(WireError):
                        job = unpack(payload, Job).id
                if (job, over) != self._before or not (job or over):
                    self._take(job, over)
            case Synced() if not (self._told or self._over or self.rival):
                if not self._client.announce_again():
                    self._client.publish_retained(self._client.topics.job, self._job)

    def _take(self, job: str, over: str) -> None:
        self._told = True
        if job == self._job.id:
            self._heard = True
        elif job and not (self._heard or self._over or self.rival) and self._gives_way():
            self.rival = job
        if self._heard or over == self._job.id:
            self._client.is_said(self._client.topics.job)

    def _gives_way(self) -> bool:
        client, topic = self._client, self._client.topics.job
        held_back = client.hold_back(topic)
        if client.in_fleet and not held_back:
            client.forget(topic)
            client.announce_again()
        return held_back or client.in_fleet
