"""What peers publish about themselves: presence, per-round telemetry, and a report per job; and how they are asked.

Every field is bounded, so that a document that was accepted can be kept.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from edgepeer.readable import readable
from edgepeer.wire.precision import Precision

__all__ = [
    "MAX_ADDRESSES",
    "MAX_ADDRESS_CHARS",
    "MAX_ERROR_CHARS",
    "MAX_LINKS",
    "MAX_RECORDS",
    "Announcement",
    "Answer",
    "Ask",
    "JobOver",
    "LinkEntry",
    "LinkReport",
    "PeerReport",
    "Presence",
    "RoundRecord",
    "SoftError",
    "Telemetry",
]

MAX_ADDRESSES = 16
MAX_ADDRESS_CHARS = 128
MAX_ERROR_CHARS = 500
MAX_RECORDS = 1024
MAX_LINKS = 128
_MAX_CONTRIBUTORS = 4096

_Id = Annotated[str, msgspec.Meta(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*\Z")]
_Address = Annotated[str, msgspec.Meta(max_length=MAX_ADDRESS_CHARS)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Seconds = Annotated[float, msgspec.Meta(ge=0)]
_Path = Annotated[str, msgspec.Meta(max_length=272)]
"""Four names, for a link that goes through so many."""
_Generation = Annotated[str, msgspec.Meta(max_length=24, pattern=r"^([0-9]{1,10}-[0-9a-f]{8})?\Z")]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


@readable
class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """A peer says that it is here. Its last will takes this back."""

    id: _Id
    incarnation: _Count
    """Which life of the peer this is."""
    addresses: Annotated[tuple[_Address, ...], msgspec.Meta(max_length=MAX_ADDRESSES)]
    """Where it listens, as host:port, best first, when that life began: they tell it from others ..."""
    moved_to: Annotated[tuple[_Address, ...], msgspec.Meta(max_length=MAX_ADDRESSES)] = ()
    """... and by now, if its machine has got others since."""
    version: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """Of edgepeer, for a human to read."""
    started: _Seconds = 0.0
    """Unix time, in seconds, by the peer's own clock."""
    met: _Seconds = 0.0
    """When another life of the same id has started that lives beside this one, and later; 0: there is none."""
    serial: _Count = 0
    """In a fleet: grows with all that a device ever says of itself, so that none of it can be said again by others."""
    key: Annotated[bytes, msgspec.Meta(max_length=32)] = b""
    """In a fleet: what others seal with what is for this life alone."""
    machine: Annotated[str, msgspec.Meta(max_length=32)] = ""
    """See `Member.machine`."""

    @property
    def places(self) -> tuple[str, ...]:
        """Where it listens by now, as host:port, best first."""
        return self.moved_to or self.addresses


@readable
class Announcement(msgspec.Struct, frozen=True, kw_only=True):
    """In a fleet: what the fabric's job is, in place of the job itself. Unlike an empty topic it can be signed."""

    at: Annotated[float, msgspec.Meta(ge=0, lt=2**40)]
    """Unix time, by the clock of who announces it, but later than all that was announced before."""
    job: bytes = b""
    """The job; empty: there is none any more."""


@readable
class JobOver(msgspec.Struct, frozen=True, kw_only=True):
    """In the place of the fabric's job: that one is over, and nothing is said of any other. So who says it because a
    broker still keeps an old job takes back no newer one, of which it has not heard yet."""

    over: _Id


@readable
class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A client asks all others what they keep: of brokers that don't say it themselves, and to see who is alive."""

    client: _Id
    nonce: Annotated[bytes, msgspec.Meta(max_length=16)] = b""
    """To be repeated in the answers: those to an earlier question don't show that anybody lives now."""


@readable
class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One document that a client keeps, to one that has asked."""

    topic: Annotated[str, msgspec.Meta(max_length=256)]
    """Where the document belongs."""
    payload: Annotated[bytes, msgspec.Meta(min_length=1)]
    """As its author has said it, signature and all."""
    nonce: Annotated[bytes, msgspec.Meta(max_length=16)] = b""
    """Of the question."""


@readable
class RoundRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How one training round went, as its coordinator saw it."""

    round: _Count
    epoch: _Count
    """Of the view that the round ran under."""
    seconds: _Seconds
    """From the end of the round before to the end of this one."""
    allreduce_seconds: _Seconds
    compute_seconds: _Seconds
    contributors: Annotated[tuple[_Id, ...], msgspec.Meta(max_length=_MAX_CONTRIBUTORS)]
    exact: bool
    """Whether every member of the view contributed; of a coded round, whether the sum is exact."""
    loss: float
    """Mean training loss; not finite when the training diverged. Of a round of no samples it is that of one before."""
    accuracy: _Share | None = None
    """On held-out data, in the rounds that were evaluated."""
    paths: Annotated[tuple[_Path, ...], msgspec.Meta(max_length=_MAX_CONTRIBUTORS)] = ()
    """What this peer's links ran over, each once: "direct", "via x", "via x+y", "relay"."""
    waited_seconds: _Seconds = 0.0
    """From this peer's contribution until all of its children's had come."""
    broadcast_seconds: _Seconds = 0.0
    """From then until the whole result was here ..."""
    decided_seconds: _Seconds = 0.0
    """... and until it was decided."""
    samples: _Seconds = 0.0
    """How many samples the sum is of; of an approximate one as many as it amounts to."""
    chunks: _Count = 0
    """Of a coded round: in how many chunks the data are; 0: it was not coded."""
    covered: _Count = 0
    """How many of them are whole in the sum, each exactly once."""
    error: _Seconds = 0.0
    """The sum's expected squared error, in squared gradients of one chunk; 0 if it is exact."""
    mae: float | None = None
    """As `accuracy`, where numbers are learned: the mean absolute error ..."""
    rmse: float | None = None
    """... and the root of the mean squared one."""
    generation: _Generation = ""
    """In which the round has ended."""
    precision: Precision = "float32"
    """What partial sums and result were rounded to on their way."""
    computed: _Count = 0
    """Of a split job, whose rounds are iterations, and whose following numbers are of all peers since it began:
    iterations, those that were done again included ..."""
    corrected: _Count = 0
    """... wrong lines that were corrected ..."""
    damaged: _Count = 0
    """... lines that were damaged on their way, and made up for ..."""
    erased: _Count = 0
    """... contributions that were missing, and made up for ..."""
    unchecked: _Count = 0
    """... steps that nobody could check, for too much was missing ..."""
    odd: _Count = 0
    """... peers that were found to go on from something else, and did their step again ..."""
    regenerated: _Count = 0
    """... blocks that were put together again from others' ..."""
    scrubbed: _Count = 0
    """... blocks that a look at all weights has found wrong ..."""
    restored: _Count = 0
    """... times that all went back to a checkpoint ..."""
    checkpoints: _Count = 0
    """... and checkpoints."""


@readable
class SoftError(msgspec.Struct, frozen=True, kw_only=True):
    """A wrong number that a peer has made on purpose, for a trial of split training."""

    round: _Count
    node: _Count
    """Which of the split's nodes the peer was."""
    step: _Path
    """In which it happened: "forward 0", "backward 1", "update 0"."""
    place: _Path
    kind: _Path


class LinkEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One link of a peer."""

    peer: _Id
    """The other end."""
    role: Literal["parent", "child", "lane", "backup"]
    """What the other end is to this peer."""
    up: bool
    path: _Path = ""
    """"direct", "via x", "via x+y", "relay", or empty."""
    rtt_s: _Seconds | None = None
    """Smoothed round-trip time; None while unknown."""


@readable
class LinkReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a peer's links are. Only as good as its presence: nobody takes it back for a peer that vanishes."""

    peer: _Id
    links: Annotated[tuple[LinkEntry, ...], msgspec.Meta(max_length=MAX_LINKS)]
    waits: Annotated[str, msgspec.Meta(max_length=MAX_ERROR_CHARS)] = ""
    """Why the fleet can't go on, as far as this peer knows; empty if nothing is in its way."""
    shape: Annotated[str, msgspec.Meta(max_length=MAX_ERROR_CHARS)] = ""
    """Why the trees are as they are, by the head of the view."""


@readable
class Telemetry(msgspec.Struct, frozen=True, kw_only=True):
    """A batch of rounds."""

    job: _Id
    peer: _Id
    """Who sends it: the coordinator of these rounds."""
    records: Annotated[tuple[RoundRecord, ...], msgspec.Meta(max_length=MAX_RECORDS)]


@readable
class PeerReport(msgspec.Struct, frozen=True, kw_only=True):
    """Where one peer stands in one job."""

    job: _Id
    peer: _Id
    state: Literal["starting", "running", "done", "failed"]
    error: Annotated[str, msgspec.Meta(max_length=MAX_ERROR_CHARS)] = ""
    """Why it failed, or waits, in one line."""
    round: _Count = 0
    """The last round that was applied."""
    digest: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """Of the parameters after that round, hexadecimal."""
    parameters: _Count = 0
    """How many the model has."""
    samples: _Count = 0
    """How many went through the model to compute gradients: with a code, more than count."""
    bytes_sent: _Count = 0
    bytes_received: _Count = 0
    frames_rejected: _Count = 0
    accuracy: _Share | None = None
    loss: float | None = None
    coordinator: bool = False
    mae: float | None = None
    rmse: float | None = None
    diverged: _Count = 0
    """The first round whose loss was not finite; 0: there was none."""
    generation: _Generation = ""
    """That the peer was in when it said so."""
    held_bytes: _Count = 0
    """Of a split job: what this peer stores of the model and its optimizer, in bytes ..."""
    cell: Annotated[int, msgspec.Meta(ge=-1, le=2**31)] = -1
    """... which node of the split it is, with all of its blocks; -1: none ..."""
    injected: _Count = 0
    """... how many soft errors it was told to make, and has made ..."""
    found: _Count = 0
    """... of these, those that were found ..."""
    restored: _Count = 0
    """... those before which training went back ..."""
    undetected: _Count = 0
    """... those that nobody has found, though they are large enough to ..."""
    harmless: _Count = 0
    """... and those that are lost in rounding."""
