"""Says in a fabric what its job is, until a broker has it. Who says it again after each time that it was away puts an
old one in the place of what others have said meanwhile.

a broker that we have come back to tells of | so
--------------------------------------------+-------------------------------------------------------------------
our job, or that it is over, or of another  | nothing: it knows
no job at all                               | it may have lost its memory: the job is said again
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgepeer.fabric.documents import JobOver
from edgepeer.fabric.events import Connected, FabricEvent, JobSeen, JobSpoiled, Synced
from edgepeer.training.job import Job

if TYPE_CHECKING:
    from edgepeer.fabric.client import FabricClient

__all__ = ["Announcer"]


class Announcer:
    """Says it at once, to the broker that the client is at."""

    def __init__(self, client: FabricClient, job: Job) -> None:
        self._client = client
        self._job = job
        self._told = True
        """Whether this connection has told of a job."""
        self._over = False
        self._say()

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
            case JobSeen(None, over) if over not in ("", self._job.id):
                self._told = True  # what is said of one before may come before ours is there
            case JobSeen():
                self._told = True
                self._client.is_said(self._client.topics.job)
            case JobSpoiled():
                self._told = True  # its peers say it again
            case Synced() if not (self._told or self._over):
                self._say()

    def _say(self) -> None:
        self._client.publish_retained(self._client.topics.job, self._job)
