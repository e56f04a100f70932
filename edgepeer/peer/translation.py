"""What MQTT says, in the protocol's words."""

from __future__ import annotations

from edgepeer.fabric import events as seen
from edgepeer.protocol import events as ev
from edgepeer.topology.view import Member

__all__ = ["as_protocol"]


def as_protocol(event: seen.FabricEvent) -> ev.Event | None:
    """The event that the protocol machine should hear; None if it has no use for it."""
    match event:
        case seen.PresenceSeen(presence):
            member = Member(id=presence.id, incarnation=presence.incarnation, addresses=presence.addresses)
            return ev.PresenceSeen(member)
        case seen.PresenceGone(peer):
            return ev.PresenceGone(peer)
        case seen.ViewSeen(view):
            return ev.ViewSeen(view)
        case seen.Synced():
            return ev.ControlSynced()
        case seen.Disconnected():
            return ev.ControlLost()
    return None
