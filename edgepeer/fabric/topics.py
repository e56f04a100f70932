"""The names of a fabric on MQTT, built and read in this one place.

    edgepeer/v1/<fabric>/peer/<id>            Presence, retained; cleared by the last will and on leaving
    edgepeer/v1/<fabric>/view                 View, retained
    edgepeer/v1/<fabric>/job                  the fabric's current job, retained; empty: none
    edgepeer/v1/<fabric>/report/<job>/<id>    PeerReport, retained
    edgepeer/v1/<fabric>/links/<id>           LinkReport, retained; cleared on leaving
    edgepeer/v1/<fabric>/telemetry/<id>       Telemetry, not retained
    edgepeer/v1/<fabric>/relay/<id>           to that peer: frames that found no other way, never retained
    edgepeer/v1/<fabric>/ask                  Ask: who keeps what? Not retained
    edgepeer/v1/<fabric>/answer/<client>      Answer: to that client, what another keeps; not retained
    edgepeer/v1/<fabric>/marker/<client>      a client's note to itself, not retained
    edgepeer/v1/<fabric>/marker/<client>/kept/note  the same, retained for a moment: does the broker give it back?
    edgepeer/v1/<fabric>/evicted              of a fleet: who is out, as its authority has signed it, retained

Reading is strict: a topic that this module would not have built is nobody's, and read as None.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from edgepeer.errors import ConfigError
from edgepeer.ids import PeerId, check_fabric, check_peer_id

__all__ = ["Group", "Topic", "Topics"]

_ROOT: Final = "edgepeer/v1"


class Group(enum.Flag):
    """What a client may want to hear of."""

    PEERS = enum.auto()
    VIEW = enum.auto()
    JOB = enum.auto()
    REPORTS = enum.auto()
    TELEMETRY = enum.auto()
    LINKS = enum.auto()
    RELAY = enum.auto()
    """What other peers send to this one through the broker."""
    ASK = enum.auto()
    ANSWERS = enum.auto()
    """What other clients say to this one of what they keep."""
    EVICTED = enum.auto()
    """Who is out of the fleet."""
    KEPT = PEERS | VIEW | JOB | REPORTS | LINKS
    """What brokers are asked to retain."""
    EVERYTHING = KEPT | TELEMETRY
    """All that is there for everybody."""
    NOTHING = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Topic:
    """What a topic stands for."""

    group: Group
    peer: PeerId | None = None
    """Whose document it is; None where a fabric has only one."""
    job: str | None = None
    """Which job is reported on; None elsewhere."""


class Topics:
    """The topics of one fabric.

    Raises:
        ConfigError: from the constructor and every builder, for a name that no topic may hold.
    """

    def __init__(self, fabric: str) -> None:
        self.fabric: Final = check_fabric(fabric)
        self.root: Final = f"{_ROOT}/{self.fabric}/"

    @property
    def view(self) -> str:
        return f"{self.root}view"

    @property
    def job(self) -> str:
        return f"{self.root}job"

    @property
    def ask(self) -> str:
        return f"{self.root}ask"

    @property
    def evicted(self) -> str:
        return f"{self.root}evicted"

    def presence(self, peer: str) -> str:
        return f"{self.root}peer/{check_peer_id(peer)}"

    def report(self, job: str, peer: str) -> str:
        return f"{self.root}report/{_check_job(job)}/{check_peer_id(peer)}"

    def links(self, peer: str) -> str:
        return f"{self.root}links/{check_peer_id(peer)}"

    def telemetry(self, peer: str) -> str:
        return f"{self.root}telemetry/{check_peer_id(peer)}"

    def relay(self, peer: str) -> str:
        return f"{self.root}relay/{check_peer_id(peer)}"

    def answer(self, client: str) -> str:
        return f"{self.root}answer/{check_peer_id(client)}"

    def marker(self, client: str) -> str:
        return f"{self.root}marker/{check_peer_id(client)}"

    def filters(self, groups: Group, client: str) -> list[str]:
        """The MQTT subscriptions that cover these groups for a client of that name."""
        patterns = {
            Group.PEERS: f"{self.root}peer/+",
            Group.VIEW: self.view,
            Group.JOB: self.job,
            Group.REPORTS: f"{self.root}report/+/+",
            Group.TELEMETRY: f"{self.root}telemetry/+",
            Group.LINKS: f"{self.root}links/+",
            Group.RELAY: self.relay(client),
            Group.ASK: self.ask,
            Group.ANSWERS: self.answer(client),
            Group.EVICTED: self.evicted,
        }
        return [pattern for group, pattern in patterns.items() if group in groups]

    def parse(self, topic: str) -> Topic | None:
        """What the topic stands for in this fabric; None for a marker, another fabric's topic, or garbage."""
        if not topic.startswith(self.root):
            return None
        try:
            match topic.removeprefix(self.root).split("/"):
                case ["peer", peer]:
                    return Topic(group=Group.PEERS, peer=check_peer_id(peer))
                case ["view"]:
                    return Topic(group=Group.VIEW)
                case ["job"]:
                    return Topic(group=Group.JOB)
                case ["report", job, peer]:
                    return Topic(group=Group.REPORTS, job=_check_job(job), peer=check_peer_id(peer))
                case ["telemetry", peer]:
                    return Topic(group=Group.TELEMETRY, peer=check_peer_id(peer))
                case ["links", peer]:
                    return Topic(group=Group.LINKS, peer=check_peer_id(peer))
                case ["relay", peer]:
                    return Topic(group=Group.RELAY, peer=check_peer_id(peer))
                case ["evicted"]:
                    return Topic(group=Group.EVICTED)
                case ["ask"]:
                    return Topic(group=Group.ASK)
                case ["answer", client]:
                    return Topic(group=Group.ANSWERS, peer=check_peer_id(client))
        except ConfigError:
            return None
        return None


def _check_job(text: str) -> str:
    try:
        return check_peer_id(text)  # the same rule: both must fit a topic level and a file name
    except ConfigError:
        raise ConfigError(f"job id {text!r}: allowed are 1 to 63 letters, digits, '.', '_' and '-'") from None
