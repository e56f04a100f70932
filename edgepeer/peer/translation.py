"""What MQTT says, in the protocol's words."""

from __future__ import annotations

import msgspec

from edgepeer.errors import WireError
from edgepeer.fabric import events as seen
from edgepeer.protocol import events as ev
from edgepeer.topology.view import Member
from edgepeer.wire.codec import PRELUDE, decode_header, decode_prelude, encode
from edgepeer.wire.frames import Frame, Via

__all__ = ["as_message", "as_protocol"]


def as_message(frame: Frame, payload: memoryview | bytes | None) -> bytes:
    """A frame and its payload as one message."""
    return encode(frame, len(payload)) + bytes(payload) if payload is not None else encode(frame)


def as_protocol(event: seen.FabricEvent) -> ev.Event | None:
    """The event that the protocol machine should hear; None if it has no use for it.

    Raises:
        WireError: a message that is no frame, or not one that the broker may carry.
    """
    match event:
        case seen.PresenceSeen(presence):
            return ev.PresenceSeen(
                Member(
                    id=presence.id,
                    incarnation=presence.incarnation,
                    addresses=presence.addresses,
                    key=presence.key or msgspec.UNSET,
                    machine=presence.machine or msgspec.UNSET,
                )
            )
        case seen.PresenceGone(peer):
            return ev.PresenceGone(peer)
        case seen.ViewSeen(view):
            return ev.ViewSeen(view)
        case seen.Synced():
            return ev.ControlSynced()
        case seen.RelaySeen(payload):
            return _relayed(payload)
    return None


def _relayed(message: bytes) -> ev.Relayed:
    if len(message) < PRELUDE.size:
        raise WireError(f"relayed message of {len(message)} bytes")
    kind, header_bytes, payload_bytes = decode_prelude(message)
    start = PRELUDE.size + header_bytes
    if kind is not Via or len(message) != start + payload_bytes:
        raise WireError(f"relayed {kind.__name__} of {len(message)} bytes")
    frame = decode_header(kind, message[PRELUDE.size : start], payload_bytes)
    assert isinstance(frame, Via)
    return ev.Relayed(frame, memoryview(message)[start:])
