"""What a fabric says of itself at one moment: peers, view, current job and its reports."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Final

from edgepeer.errors import WireError
from edgepeer.fabric.documents import LinkReport, PeerReport, Presence
from edgepeer.fabric.events import (
    Answered,
    FabricEvent,
    JobSeen,
    LinksSeen,
    PresenceGone,
    PresenceSeen,
    ReportSeen,
    ViewSeen,
)
from edgepeer.topology.view import View
from edgepeer.training.job import Job, is_job_id
from edgepeer.wire.documents import unpack

__all__ = ["Picture", "saver_id"]

_SAVER: Final = re.compile(r"saver-[0-9a-f]{12}\Z")


def saver_id() -> str:
    """A name for who joins a fleet to take its model: by that the others know it."""
    return f"saver-{secrets.token_hex(6)}"


class Picture:
    """Put together from a client's events; complete after its Synced."""

    def __init__(self) -> None:
        self.peers: dict[str, Presence] = {}
        self.silent: dict[str, Presence] = {}
        """Peers that are announced, and did not answer when they were asked."""
        self._answered: set[str] = set()
        self.view: View | None = None
        self.job: Job | None = None
        self.told = False
        """Whether anything was said of the fabric's job, be it that there is none."""
        self.over = ""
        """Which job is said to be over, where there is none."""
        self.unreadable = ""
        """Why the fabric's job can't be read; empty if there is none, or it can."""
        self.reports: dict[tuple[str, str], PeerReport] = {}
        """By job and peer."""
        self.links: dict[str, LinkReport] = {}
        """How a peer's links are; of one that is not there any more it says nothing."""
        self.refused: Mapping[str, int] = {}
        """Documents that do not count: topic and reason, and how many of each."""

    def take(self, event: FabricEvent) -> None:
        """Add what an event tells."""
        match event:
            case PresenceSeen(presence):
                self.peers[presence.id] = presence
            case PresenceGone(peer_id):
                self.peers.pop(peer_id, None)
            case Answered(peer_id):
                self._answered.add(peer_id)
            case ViewSeen(view):
                self.view = view
            case ReportSeen(said):
                self.reports[said.job, said.peer] = said
            case LinksSeen(report):
                self.links[report.peer] = report
            case JobSeen(payload, over):
                self.told, self.job, self.over, self.unreadable = True, None, over, ""
                if payload is not None:
                    try:
                        self.job = unpack(payload, Job)
                    except WireError as error:
                        self.unreadable = str(error)

    @property
    def unheard(self) -> frozenset[str]:
        """Peers that are announced and have not answered: a broker may not know that they are dead."""
        return frozenset(self.peers) - self._answered

    def doubt(self) -> None:
        """All have been asked, and had time enough: who has not answered is not there."""
        for peer in sorted(self.unheard):
            self.silent[peer] = self.peers.pop(peer)

    @property
    def deserted(self) -> bool:
        """Whether the view is one of peers who are all gone."""
        return self.view is not None and self.peers.keys().isdisjoint(self.view.ids)

    def reports_of(self, job: str) -> dict[str, PeerReport]:
        """The reports of one job by peer, sorted."""
        return {peer: report for (of, peer), report in sorted(self.reports.items()) if of == job}

    @property
    def has_job(self) -> bool:
        """Whether there is one, be it one that can't be read."""
        return self.job is not None or bool(self.unreadable)

    @property
    def run(self) -> str:
        """What the peers of the view are at, though nothing is said of any job: the broker may have lost its memory a
        moment ago. Empty: nothing, as far as can be told. (Where something is said, that counts: the view goes on to
        name a run that is over, and peers who find that an old job is said say at once which one is not.)"""
        named = "" if self.told or self.view is None or self.deserted else self.view.run
        return named if is_job_id(named) else ""  # of a program's run nobody says anything here

    @property
    def is_done(self) -> bool:
        """Whether a peer has done the job that the fabric has."""
        return self.job is not None and any(report.state == "done" for report in self.reports_of(self.job.id).values())

    @property
    def busy(self) -> str:
        """Why another job must not start now, in words; empty if it may."""
        if self.unreadable:
            return f"the fabric has a job that this build can't read ({self.unreadable})"
        if self.run:
            return f"its peers are at job {self.run}, and the broker has yet to hear more of that"
        if self.job is None:
            return ""
        if any(map(_SAVER.match, self.peers)):
            return f"the model of job {self.job.id} is being fetched"
        reports = self.reports_of(self.job.id)
        working = [peer for peer in reports if reports[peer].state in ("starting", "running") and peer in self.peers]
        if reports and not working:
            unfit = {peer for peer in reports if reports[peer].state == "failed"}
            if reports.keys() != unfit or len(unfit) >= self.job.wait_for or self.peers.keys() <= unfit:
                return ""  # whoever took part is through, or gone
        doing = f"{len(working)} peers work on it" if working else f"it waits for {self.job.wait_for} peers"
        return f"job {self.job.id} is not done yet ({doing})"
