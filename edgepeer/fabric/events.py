"""What a fabric client tells its owner."""

from __future__ import annotations

from dataclasses import dataclass

from edgepeer.fabric.documents import LinkReport, PeerReport, Presence, Telemetry
from edgepeer.ids import PeerId
from edgepeer.topology.view import View

__all__ = [
    "Answered",
    "Connected",
    "Disconnected",
    "Evicted",
    "FabricEvent",
    "JobSeen",
    "JobSpoiled",
    "LinksSeen",
    "PresenceGone",
    "PresenceSeen",
    "RelaySeen",
    "ReportSeen",
    "Synced",
    "TelemetrySeen",
    "ViewSeen",
]


@dataclass(frozen=True, slots=True)
class Connected:
    """The broker let us in. Everything it retains follows, then Synced."""


@dataclass(frozen=True, slots=True)
class Synced:
    """All that the broker retained when we connected has been told.

    A peer seen in an earlier connection and not since Connected has left, or hasn't come back yet itself:
    a broker that lost its memory is filled again by the peers' own reconnects.
    """


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection is gone; the client is trying again."""

    reason: str


@dataclass(frozen=True, slots=True)
class PresenceSeen:
    """A peer is there, the client's own included, or says something new of itself."""

    presence: Presence


@dataclass(frozen=True, slots=True)
class PresenceGone:
    """A peer left, or its last will was sent. Never told of the client's own presence."""

    peer_id: PeerId


@dataclass(frozen=True, slots=True)
class Evicted:
    """A peer is not of the fleet any more: nothing that it says counts. PresenceGone follows."""

    peer_id: PeerId


@dataclass(frozen=True, slots=True)
class ViewSeen:
    view: View


@dataclass(frozen=True, slots=True)
class JobSeen:
    """The fabric's current job, still packed; None: there is none."""

    payload: bytes | None
    over: str = ""
    """Which one is over, if there is none, and that was said; empty: whichever there was."""


@dataclass(frozen=True, slots=True)
class JobSpoiled:
    """Where the fabric's job should be is something that is no document, and was rejected."""


@dataclass(frozen=True, slots=True)
class ReportSeen:
    report: PeerReport


@dataclass(frozen=True, slots=True)
class TelemetrySeen:
    telemetry: Telemetry


@dataclass(frozen=True, slots=True)
class LinksSeen:
    report: LinkReport


@dataclass(frozen=True, slots=True)
class Answered:
    """We have asked, and that peer's presence was said just now: somebody stands behind it."""

    peer_id: PeerId


@dataclass(frozen=True, slots=True)
class RelaySeen:
    """Another peer, which the payload must name, sent this through the broker: anybody could have."""

    payload: bytes


FabricEvent = (
    Connected
    | Synced
    | Disconnected
    | PresenceSeen
    | PresenceGone
    | Evicted
    | ViewSeen
    | JobSeen
    | JobSpoiled
    | ReportSeen
    | TelemetrySeen
    | LinksSeen
    | Answered
    | RelaySeen
)
