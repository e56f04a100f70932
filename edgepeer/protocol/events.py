"""What can happen to a peer. Frozen, and free of I/O objects; a payload is memory that the machine may read. What comes
with every frame is a struct: these are made faster than dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
from numpy.typing import NDArray

from edgepeer.ids import Lineage, PeerId
from edgepeer.protocol.code import Coding
from edgepeer.topology.view import Member, View
from edgepeer.wire.frames import Frame, Via
from edgepeer.wire.precision import Precision

__all__ = [
    "Abandoned", "Adopted", "ChunksDone", "CodeWanted", "Contribute", "ControlSynced", "DialFailed",
    "Encoded", "Event", "FloatVector", "FrameReceived", "Heard", "JoinWanted", "LeaveWanted", "LinkDown", "LinkUp",
    "PresenceGone", "PresenceSeen", "Relayed", "RunExpected", "RunWanted", "StateLost",
    "StateReady", "TimedOut", "Unacknowledged", "ViewSeen",
]  # fmt: skip

FloatVector: TypeAlias = NDArray[Any]
"""A one-dimensional, contiguous, little-endian float32 or float64 array."""


class FrameReceived(msgspec.Struct, frozen=True):
    """A frame has arrived completely; its payload lies where `Node.sink` said, or in `payload` if a document."""

    peer: PeerId
    frame: Frame
    payload: memoryview | bytes | None = None
    """A document's bytes; None for vectors (they lie in the sink) and for what was thrown away."""
    payload_bytes: int = 0
    stored: bool = True
    """False when there was no sink and the payload was thrown away."""
    seconds: float = 0.0
    """How long the payload took to arrive."""


@dataclass(frozen=True, slots=True)
class LinkUp:
    """A connection to `peer` stands, both ends have introduced themselves."""

    peer: PeerId
    incarnation: int
    dialled: bool = False
    """Whether it was this end that has connected."""


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The connection to `peer` is gone."""

    peer: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class DialFailed:
    """No address of `peer` answered."""

    peer: PeerId
    reason: str
    refused: bool = False
    """Whether there is a machine that says that nobody listens."""


class Heard(msgspec.Struct, frozen=True):
    """A part of a frame that is under way from `peer` has arrived."""

    peer: PeerId
    at: float
    """When, if that is before it is told."""


class Unacknowledged(msgspec.Struct, frozen=True):
    """The machine of `peer` has acknowledged nothing of what was sent to it."""

    peer: PeerId
    since: float
    """From when on."""
    within_s: float
    """How long an acknowledgement takes on this path at most, as far as its ends can tell."""


@dataclass(frozen=True, slots=True)
class Relayed:
    """The broker has brought a frame that was addressed to this peer."""

    frame: Via
    payload: memoryview | bytes


@dataclass(frozen=True, slots=True)
class PresenceSeen:
    """MQTT: a peer says that it is there."""

    member: Member


@dataclass(frozen=True, slots=True)
class PresenceGone:
    """MQTT: a peer's presence was cleared, by itself or by its last will."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class ViewSeen:
    """MQTT: the retained view."""

    view: View


@dataclass(frozen=True, slots=True)
class ControlSynced:
    """MQTT: connected, and everything retained has been seen."""


@dataclass(frozen=True, slots=True, eq=False)
class Contribute:
    """This peer's vector for the next round. It must not change until the round is over."""

    vector: FloatVector
    weight: float
    precision: Precision = "float32"
    """What it travels in; if not as it is, the vector is float32."""


@dataclass(frozen=True, slots=True)
class CodeWanted:
    """Rounds are coded from the next view on, or, with None, no more. Where they are coded otherwise, so is the next
    one, but not the one that has begun."""

    coding: Coding | None


@dataclass(frozen=True, slots=True)
class ChunksDone:
    """This peer takes part in that round, which is coded, and has computed so many chunks for each of its slots.

    To be said again in each view: it may own other slots there. Of no effect when the round, or the view, is over.
    """

    epoch: int
    """Stamp of the view that the slots are of."""
    round: int
    done: Mapping[int, int]
    code: str = ""
    """The name of the code that they are of."""


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """The answer to EncodeWanted. The vector must not change until the round is over, or asked for again."""

    epoch: int
    round: int
    vector: FloatVector


@dataclass(frozen=True, slots=True)
class TimedOut:
    """This peer has waited too long for its round and wants it aborted."""

    reason: str


@dataclass(frozen=True, slots=True)
class Abandoned:
    """Who contributed does not wait any more, and may change the vector. The round goes on all the same."""


@dataclass(frozen=True, slots=True)
class RunExpected:
    """The owner is to ask for a run, once it is ready, of at least so many peers: until then it wants none."""

    run: str
    peers: int


@dataclass(frozen=True, slots=True)
class RunWanted:
    """A job asks for a run; the coordinator starts it once `peers` are in. None: no job."""

    run: str | None
    peers: int = 1
    have: int = 0
    """The last round of it whose state the owner has in use, from a checkpoint; 0: none ..."""
    of: Lineage | None = None
    """... and its lineage, if that is known: that of the view that the round ended in."""
    slots: tuple[str, ...] = ()
    """Whose the slots of its code were in that view."""


@dataclass(frozen=True, slots=True, eq=False)
class StateReady:
    """The state that a `ProvideState` effect asked for, as of `round`."""

    peer: PeerId
    run: str
    round: int
    state: memoryview | bytes


@dataclass(frozen=True, slots=True)
class Adopted:
    """A received state is in use: this peer stands where the sender stood after `round`."""

    run: str
    round: int
    of: Lineage | None = None
    """What `StateReceived` said with it ..."""
    life: int | None = None
    """... and in which life of this peer, if that is known."""


@dataclass(frozen=True, slots=True)
class StateLost:
    """The owner is too far behind the rounds of the run that have ended without it: it needs a neighbour's state."""


@dataclass(frozen=True, slots=True)
class LeaveWanted:
    """This peer wants to leave, and will contribute no more."""


@dataclass(frozen=True, slots=True)
class JoinWanted:
    """This peer, having left, wants to be in again."""


Event: TypeAlias = (
    FrameReceived | Relayed | Heard | Unacknowledged | LinkUp | LinkDown | DialFailed | PresenceSeen | PresenceGone
    | ViewSeen | ControlSynced | Contribute | CodeWanted | ChunksDone | Encoded | Abandoned | TimedOut | RunExpected
    | RunWanted | StateReady | StateLost | Adopted | LeaveWanted | JoinWanted
)  # fmt: skip
