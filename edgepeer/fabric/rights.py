"""Who may write and read what on a fleet's broker, by the role in the certificate that the connection has shown.

A second line of defence: nothing that is written by others counts (gate.py). So the embedded broker asks `may_write`
and `may_read`, and mosquitto, which knows no roles, gets patterns that say as much as patterns can.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from edgepeer.fabric.topics import Group, Topics
from edgepeer.trust.names import Holder, Role

__all__ = ["may_connect", "may_read", "may_write", "patterns"]

_OWN: Final = Group.PEERS | Group.LINKS | Group.TELEMETRY | Group.REPORTS
_LEFT: Final = Group.PEERS | Group.LINKS | Group.REPORTS
_ALL: Final = Group.ASK | Group.ANSWERS | Group.EVICTED
_WRITES: Final = {
    # A peer puts the job, which an operator has signed, back in its place.
    Role.PEER: _OWN | _ALL | Group.VIEW | Group.JOB | Group.RELAY,
    # An operator clears the reports of earlier jobs, and what is left of the evicted.
    Role.OPERATOR: _ALL | Group.JOB | _LEFT,
    Role.VIEWER: _ALL,
}


def may_connect(holder: Holder) -> bool:
    """Whether such a certificate is a client's."""
    return holder.role in _WRITES


def may_write(holder: Holder, topics: Topics, name: str) -> bool:
    """Whether whoever has shown that certificate may write there, by a will, too."""
    if name.startswith(f"{topics.root}marker/"):
        return "+" not in name and "#" not in name
    topic = topics.parse(name)
    if topic is None or topic.group not in _WRITES.get(holder.role, Group.NOTHING):
        return False
    return holder.role is not Role.PEER or topic.group not in _OWN or topic.peer == holder.id


def may_read(holder: Holder, topics: Topics, name: str) -> bool:
    """Whether whoever has shown that certificate may hear what is said there, or subscribe to that."""
    if not name.startswith(topics.root):
        return False
    if not name.startswith(f"{topics.root}relay/"):
        return True
    return holder.role is Role.PEER and name == f"{topics.root}relay/{holder.id}"


def patterns(fabric: str, operators: Iterable[str] = ()) -> list[str]:
    """As much of it as mosquitto's acl_file can say: to it a peer's name is its id, and others' are no peer's.
    Operators it is told by their ids."""
    root = Topics(fabric).root
    own = ["peer/%u", "links/%u", "telemetry/%u", "report/+/%u"]
    everybody = ["view", "job", "evicted", "ask", "relay/+", "answer/+", "marker/#"]
    heard = ["peer/+", "view", "job", "report/+/+", "links/+", "telemetry/+", "evicted", "ask", "relay/%u", "answer/+"]
    left = ["peer/+", "links/+", "report/+/+"]
    return [
        *(f"pattern write {root}{name}" for name in [*own, *everybody]),
        *(f"pattern read {root}{name}" for name in [*heard, "marker/#"]),
        *(line for name in operators for line in (f"user @{name}", *(f"topic write {root}{each}" for each in left))),
    ]
