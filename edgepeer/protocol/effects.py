"""What a peer wants done, in the order in which it wants it. A Send is a struct: these are made faster than
dataclasses, and most effects are Sends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from edgepeer.ids import Generation, Lineage, PeerId
from edgepeer.protocol.events import FloatVector
from edgepeer.topology.view import Member, View
from edgepeer.wire.frames import Cause, Frame, Via
from edgepeer.wire.precision import Precision

__all__ = [
    "Behind", "ClearPresence", "CloseLink", "Dial", "Effect", "EncodeWanted", "Note", "Phases", "ProvideState",
    "PublishPresence", "PublishView", "Relay", "Removed", "RoundAborted", "RoundCommitted", "Send",
    "StateReceived", "ViewInstalled",
]  # fmt: skip


class Send(msgspec.Struct, frozen=True, eq=False):
    """Send a frame over the link to `peer`, in order. The payload's memory stays as it is until it is out."""

    peer: PeerId
    frame: Frame
    payload: memoryview | bytes | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Relay:
    """Send a frame to `peer` through the broker: in order, and lost while there is none."""

    peer: PeerId
    frame: Via
    payload: memoryview | bytes | None = None


@dataclass(frozen=True, slots=True)
class Phases:
    """Where a round's time went at one peer, in seconds."""

    waited_s: float = 0.0
    """From this peer's contribution until all of its children's had come."""
    broadcast_s: float = 0.0
    """From then until the whole result was here ..."""
    decided_s: float = 0.0
    """... and until it was decided."""


@dataclass(frozen=True, slots=True)
class Dial:
    """Connect to a peer: LinkUp or DialFailed follows."""

    member: Member


@dataclass(frozen=True, slots=True)
class CloseLink:
    """Close the link to a peer: LinkDown does not follow."""

    peer: PeerId
    reason: str
    abrupt: bool = False
    """Without sending what is queued: its memory is about to change."""


@dataclass(frozen=True, slots=True)
class PublishView:
    """Coordinator: put the view on MQTT, retained; None: this peer no longer speaks for the fleet."""

    view: View | None


@dataclass(frozen=True, slots=True)
class PublishPresence:
    """Say again on MQTT that this peer is there."""


@dataclass(frozen=True, slots=True)
class ClearPresence:
    """Coordinator: nobody answers for what MQTT retains of this peer: take it back."""

    member: Member


@dataclass(frozen=True, slots=True)
class ViewInstalled:
    """This peer now works in `view`. Said again where a run begins with this peer's own state."""

    view: View


@dataclass(frozen=True, slots=True)
class Removed:
    """This peer is in no view any more."""

    reason: str
    wanted: bool
    """Whether it had asked to leave."""
    anew: bool = False
    """Whether another generation has begun: what this peer has committed since may be given up."""


@dataclass(frozen=True, slots=True, eq=False)
class RoundCommitted:
    """A round is decided; every peer that commits it sees the same."""

    run: str
    round: int
    generation: Generation
    """Of one generation, a round ends in one way only; what was done in an earlier one may be given up."""
    epoch: int
    """Epoch of the view in which the root decided."""
    sum: FloatVector
    """Weighted sum over the contributors, read-only."""
    weight: float
    contributors: tuple[PeerId, ...]
    exact: bool
    digest: bytes
    mine: bool
    """Whether this peer had contributed, and so waits for it. Else its program has still to take the outcome, in the
    place of what it would have brought: the state that was given to it is that of before."""
    paths: tuple[str, ...] = ()
    """What this peer's links to parent and children ran over when it ended: "direct", "via x", "via x+y", "relay"."""
    phases: Phases = Phases()
    chunks: int = 0
    """Of a coded round: bit set of the chunks whose gradients are in the sum, each exactly once."""
    error: float = 0.0
    """Of a coded round: expected squared error of the sum, in units of one chunk's squared gradient norm."""
    precision: Precision = "float32"
    """What partial sums and result were rounded to on their way."""


@dataclass(frozen=True, slots=True)
class EncodeWanted:
    """A coded round is closed: answer with Encoded, at once. This peer has something to bring.

    Its vector is expand(what slot j has, column j), summed over its slots; or just the first of these, if `narrow`.
    """

    epoch: int
    """Stamp of the view."""
    round: int
    done: tuple[int, ...]
    """What counts as computed, of each slot; of this peer's, no more than it has said."""
    narrow: int | None
    """This slot's vector only, as it is: its parent expands it."""


@dataclass(frozen=True, slots=True)
class RoundAborted:
    """A round is over without a result."""

    run: str
    round: int
    cause: Cause | Literal["left", "anew", "run"]
    """Vectors did not fit together; somebody waited too long; what was to be rounded is not finite; this peer left the
    view, or another generation has begun without it; the run went on or ended."""
    reason: str
    mine: bool
    """Whether this peer had contributed, and so waits for it."""


@dataclass(frozen=True, slots=True)
class ProvideState:
    """A neighbour needs the state of the run after `round`: answer with StateReady."""

    peer: PeerId
    run: str
    round: int


@dataclass(frozen=True, slots=True, eq=False)
class StateReceived:
    """A neighbour's state after `round`: load it and answer with Adopted, and what is said here."""

    run: str
    round: int
    state: memoryview
    of: Lineage | None = None
    """The generation of the checkpoint that it is from, as long as no round has shown that others have the same."""
    life: int = 0
    """In which life of this peer it has come: to another one it means nothing."""


@dataclass(frozen=True, slots=True)
class Behind:
    """Rounds up to `committed` were decided without this peer (no state to load: plain allreduce)."""

    committed: int


@dataclass(frozen=True, slots=True)
class Note:
    """Something worth a log line."""

    level: str
    """"debug", "info" or "warning"."""
    text: str
    often: bool = False
    """Whether it may come again and again, as of a link that is made anew each time: to be written down seldom."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A neighbour has sent over its link what it had no business to, and that is closed."""

    peer: PeerId
    reason: str


Effect: TypeAlias = (
    Send | Relay | Dial | CloseLink | PublishView | PublishPresence | ClearPresence | ViewInstalled | Removed
    | RoundCommitted | EncodeWanted | RoundAborted | ProvideState | StateReceived | Behind | Note | Refused
)  # fmt: skip
