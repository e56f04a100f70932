"""From an MQTT message to an event: whatever comes in is checked here, once.

Anybody who can reach the broker can write on a fabric's topics. A document that is too large, isn't valid, or
speaks for somebody else than its topic names raises WireError and goes no further.
"""

from __future__ import annotations

from typing import Final

from edgepeer.errors import WireError
from edgepeer.fabric.documents import Answer, Ask, JobOver, LinkReport, PeerReport, Presence, Telemetry
from edgepeer.fabric.envelope import MARGIN_BYTES
from edgepeer.fabric.events import (
    FabricEvent,
    JobSeen,
    LinksSeen,
    PresenceGone,
    PresenceSeen,
    RelaySeen,
    ReportSeen,
    TelemetrySeen,
    ViewSeen,
)
from edgepeer.fabric.relay import RELAY_LIMIT_BYTES
from edgepeer.fabric.topics import Group, Topic, Topics
from edgepeer.topology.view import View
from edgepeer.wire.documents import DOCUMENT_LIMIT_BYTES, check_envelope, unpack

__all__ = ["JOB_LIMIT_BYTES", "LIMIT_BYTES", "read", "read_answer", "read_ask", "read_job"]

LIMIT_BYTES: Final = {
    Group.PEERS: 8 << 10,
    Group.VIEW: DOCUMENT_LIMIT_BYTES,
    Group.JOB: DOCUMENT_LIMIT_BYTES,
    Group.REPORTS: 8 << 10,
    Group.TELEMETRY: 1 << 20,
    Group.LINKS: 64 << 10,
    Group.RELAY: RELAY_LIMIT_BYTES,
    Group.ASK: 1 << 10,
    Group.ANSWERS: DOCUMENT_LIMIT_BYTES + (8 << 10),
    Group.EVICTED: 1 << 20,
}
"""The longest document of each group, in bytes."""
JOB_LIMIT_BYTES: Final = LIMIT_BYTES[Group.JOB] + MARGIN_BYTES
"""The same of what is said of the fabric's job, signed or not."""


def read(topic: Topic, payload: bytes) -> FabricEvent | None:
    """The event in a message of the groups that are for owners.

    None where something was cleared, or nothing relayed, which changes nothing.

    Raises:
        WireError: the document must not be used.
    """
    limit = LIMIT_BYTES[topic.group]
    if len(payload) > limit:
        raise WireError(f"{len(payload)} bytes, over the limit of {limit}")
    match topic.group:
        case Group.PEERS:
            assert topic.peer is not None
            if not payload:
                return PresenceGone(topic.peer)
            presence = unpack(payload, Presence, limit=limit)
            _check_author(topic, presence.id, topic.job)
            return PresenceSeen(presence)
        case Group.VIEW:
            return ViewSeen(unpack(payload, View, limit=limit)) if payload else None
        case Group.JOB:
            return read_job(payload)
        case Group.REPORTS:
            if not payload:
                return None
            report = unpack(payload, PeerReport, limit=limit)
            _check_author(topic, report.peer, report.job)
            return ReportSeen(report)
        case Group.LINKS:
            if not payload:
                return None
            links = unpack(payload, LinkReport, limit=limit)
            _check_author(topic, links.peer, topic.job)
            return LinksSeen(links)
        case Group.RELAY:
            return RelaySeen(payload) if payload else None
        case _:
            telemetry = unpack(payload, Telemetry, limit=limit)
            _check_author(topic, telemetry.peer, topic.job)
            return TelemetrySeen(telemetry)


def read_job(payload: bytes) -> JobSeen:
    """What is said of the fabric's job. Its owner knows what a job is.

    Raises:
        WireError: the document must not be used.
    """
    if not payload:
        return JobSeen(None)
    check_envelope(payload, "Job", limit=LIMIT_BYTES[Group.JOB])
    try:
        return JobSeen(None, over=unpack(payload, JobOver).over)
    except WireError:
        return JobSeen(payload)


def read_ask(payload: bytes) -> Ask:
    """Who asks.

    Raises:
        WireError: the document must not be used.
    """
    return unpack(payload, Ask, limit=LIMIT_BYTES[Group.ASK])


def read_answer(topics: Topics, payload: bytes) -> tuple[Topic, Answer]:
    """What somebody else keeps: on which topic, which document.

    Raises:
        WireError: the document must not be used.
    """
    answer = unpack(payload, Answer, limit=LIMIT_BYTES[Group.ANSWERS])
    topic = topics.parse(answer.topic)
    if topic is None or topic.group not in Group.KEPT:
        raise WireError("answer about something that nobody keeps")
    return topic, answer


def _check_author(topic: Topic, peer: str, job: str | None) -> None:
    if (peer, job) != (topic.peer, topic.job):
        raise WireError(f"document of peer {peer!r}, job {job!r} on another's topic")
