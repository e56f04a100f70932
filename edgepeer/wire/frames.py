"""Frames: what one peer says to another over a data link. Fields are checked against these types and bounds once, by
codec.py; trailing fields of a newer peer are ignored."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from edgepeer.ids import Generation, Lineage
from edgepeer.wire.precision import Precision

__all__ = [
    "PART",
    "Abort",
    "Bye",
    "Call",
    "Cause",
    "Commit",
    "Decide",
    "Dtype",
    "Frame",
    "Have",
    "Hello",
    "Here",
    "Knock",
    "Leave",
    "Measured",
    "Meta",
    "MetaWhat",
    "NoWay",
    "OfLink",
    "Ping",
    "Poll",
    "Progress",
    "Propose",
    "Reduce",
    "Release",
    "Result",
    "State",
    "StateRequest",
    "Suspect",
    "Sync",
    "Via",
    "ViewFrame",
    "Vote",
    "pack_set",
    "pack_stands",
    "unpack_set",
    "unpack_stands",
]

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Stamp = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Stands = Annotated[int, msgspec.Meta(ge=-2, le=2**53)]
_Both = Annotated[tuple[_Stands, ...], msgspec.Meta(min_length=2, max_length=2)]
"""Beside an integer with bounds, msgspec takes a tuple of a fixed length for something else, and crashes."""
_Ballot = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Text = Annotated[str, msgspec.Meta(max_length=256)]
_Peer = Annotated[str, msgspec.Meta(min_length=1, max_length=63)]
_Set = Annotated[bytes, msgspec.Meta(max_length=512)]
_Done = Annotated[bytes, msgspec.Meta(max_length=4096)]
_Rate = Annotated[float, msgspec.Meta(ge=0)]
_Lane = Annotated[int, msgspec.Meta(ge=0, le=16)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=2**53)]
PART: Final = "/"
"""No run has it in its name."""
Dtype: TypeAlias = Literal["<f4", "<f8"]
Cause: TypeAlias = Literal["mismatch", "timeout", "nonfinite"]
MetaWhat: TypeAlias = Literal["reduce_sent", "reduce_received", "reduce_request", "bcast_sent", "bcast_received"]


class _Header(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Base of all frames: the struct is the header."""


class Hello(_Header, frozen=True):
    """The first frame on a connection, from both ends: who is speaking."""

    fabric: _Peer
    peer: _Peer
    incarnation: _Count
    protocol: _Peer = "ft-tree"
    """What its rounds run by."""
    wanted: Annotated[str, msgspec.Meta(max_length=63)] = ""
    """Whom the sender has dialled; empty: it was dialled itself."""


class Sync(_Header, frozen=True):
    """Where the sender stands. Sent when a link comes up and whenever any of it changes off the beat."""

    epoch: _Stamp
    """Stamp of the sender's view, 0 when it has none. In all frames, `epoch` is a view's stamp."""
    run: _Text
    committed: Annotated[int, msgspec.Meta(ge=-2, le=2**53)]
    """The last round of the run that is over at the sender; -1 while it waits for the state of the run and knows
    nobody below it who has it; -2 while it waits and somebody below may have it."""
    generation: Generation | None = None
    """Of the sender's view."""
    restored: Lineage | None = None
    """Of the checkpoint that the sender's state is from, until a round has ended; as long as it can hand over the first
    round that has ended since, of the one that it went on from with that."""
    kept: _Count = 0
    """The first round whose end the sender can still hand over, the next one if it can't even the last: it may have
    joined after that. 0: it does not say."""
    have: Annotated[tuple[_Count, ...], msgspec.Meta(max_length=17)] = ()
    """Of each lane, from 0, the elements of what the addressee sends in the round after `committed`, in this view, that
    have come already: of its partial aggregate to a parent, of the result to a child. The rest will do."""
    life: _Count = 0
    """Of a sender in no view: in which life it wants to be let in. That of its Hello may be over."""
    again: bool = False
    """Whether what the addressee has sent of the round after `committed`, or some of it, was thrown away: it came while
    the round before was not over here. So it is to be sent again."""

    @property
    def since(self) -> int:
        """The last round whose end is not handed over: `restored` is of the state after that."""
        return self.kept - 1 if self.kept else self.committed

    def checkpoint(self, number: int) -> Lineage | None:
        """Of which checkpoint the state is that the sender has, or had, after that round; None: of none, or unknown."""
        return self.restored if number == self.since else None


class ViewFrame(_Header, frozen=True):
    """A view that has been decided, as a document in the payload."""

    epoch: _Stamp


class Ping(_Header, frozen=True):
    """I am alive."""

    waiting: bool
    """Whether the sender's round waits for its children: then a parent must not blame the sender."""
    stamp: _Seconds = 0.0
    """The sender's clock ..."""
    echo: _Seconds = 0.0
    """... the addressee's, as it was in the last Ping that has come from there; 0: none ..."""
    held: _Seconds = 0.0
    """... and how long ago that was. So each Ping measures a round trip, and none can be taken for another."""
    every: _Seconds = 0.0
    """Until the next Ping, nothing is ever sent for no longer than this; 0: nothing is promised."""
    epoch: _Stamp = 0
    """The view that the following fields speak of."""
    reaches: _Set = b""
    """Positions of the members that the sender has a connection with: for these it can carry frames on."""
    orphan: bool = False
    """Whether the sender's way up to the coordinator is broken."""
    level: Annotated[int, msgspec.Meta(ge=-1, le=2**53)] = -1
    """The round after which the sender and all below it stand in the view, none of them holding a result that may
    count; -1 if they don't."""
    settled: bool = False
    """Whether the sender knows that nothing of the views before can be lost any more."""
    ballot: _Ballot = 0
    """The highest ballot for the view's successor that the sender has promised, or heard of from below."""
    stands: _Stands | _Both | None = None
    """Of the view's run: the last round whose state the sender has, or somebody below it, and takes part (-1: none of
    those who take part; -2: nobody does). If any of them knows the end of a later one, the last of these with it. None:
    that is not known of all of them."""


class Reduce(_Header, frozen=True):
    """A segment of a partial aggregate on its way up. Payload: its elements."""

    epoch: _Stamp
    round: _Count
    offset: _Count
    """Index of the segment's first element."""
    total: _Count
    """Number of elements of the whole vector."""
    dtype: Dtype
    contributors: _Set
    """Whose contributions are summed in it: bit set of positions in the view of `epoch`."""
    weight: Annotated[float, msgspec.Meta(ge=0)]
    """Sum of the contributors' weights."""
    rate_bytes_per_s: _Rate = 0.0
    """How fast the sender receives from the addressee (0: unknown): the addressee sizes its segments by it."""
    blocks: Annotated[int, msgspec.Meta(ge=1, le=255)] = 1
    """Of a coded round: the vector is so many times shorter than the sum, and the receiver expands it."""
    lane: _Lane = 0
    """Of which lane: then `offset` counts from the first element of its range."""
    precision: Precision = "float32"
    """What the payload's elements are encoded in. `dtype` is of what they are decoded to."""


class Commit(_Header, frozen=True):
    """What a round's sum stands for, by the root. Rides on the last Result."""

    decided_in: _Stamp
    """Stamp of the view whose root added it up; `contributors` are positions in that view."""
    contributors: _Set
    weight: Annotated[float, msgspec.Meta(ge=0)]
    """Sum of the contributors' weights."""
    exact: bool
    """Whether nobody who was in the view when the round began at its root is missing."""
    digest: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    """xxh3_128 of the whole result's bytes, as they travel."""
    final: bool = True
    """Whether the round is decided. Else it is when a Decide follows."""
    held_in: _Stamp = 0
    """Stamp of the newest view whose root put it forward: of two sums for one round, only the newer can count."""
    dropped: Cause | None = None
    """Why the round is to end without a sum. The result is empty then."""
    reason: _Text = ""
    chunks: _Set = b""
    """Of a coded round: bit set of the chunks whose gradients are in the sum, each exactly once."""
    error: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Of a coded round: expected squared error of the sum, in units of one chunk's squared gradient norm."""
    generation: Generation = Generation()
    """Of the view `held_in`: the generation that the round is of."""
    precision: Precision = "float32"
    """What all have rounded to. The sum is exactly that of what was encoded."""


class Result(_Header, frozen=True):
    """A segment of the root's sum on its way down. Payload: its elements. Not to be applied before it is decided.

    Up, it is what is held from an earlier view.
    """

    epoch: _Stamp
    round: _Count
    offset: _Count
    total: _Count
    dtype: Dtype
    commit: Commit | None = None
    """With the last segment, and only with that."""
    up: bool = False
    """Whether it is held below, and goes up in the place of a partial aggregate."""
    rate_bytes_per_s: _Rate = 0.0
    """How fast the sender receives from the addressee (0: unknown): the addressee sizes its segments by it."""
    lane: _Lane = 0
    """Of which lane: then `offset` counts from the first element of its range, and `commit` is of that range alone; 0:
    of the whole vector."""
    precision: Precision = "float32"
    """As in Reduce."""


class Abort(_Header, frozen=True):
    """This round can't be completed; or, from whoever knows, it is over without a result."""

    epoch: _Stamp
    round: _Count
    cause: Cause
    reason: _Text
    over: bool
    """Whether the root has decided; else the sender asks it to."""
    clear: bool = False
    """Of who asks: whether all peers from it down have said that they hold nothing of it from an earlier view."""


class Suspect(_Header, frozen=True):
    """To the coordinator, hop by hop: a neighbour of the sender is gone."""

    epoch: _Stamp
    peer: _Peer
    reason: _Text


class Leave(_Header, frozen=True):
    """To the coordinator, hop by hop: the peer wants to leave."""

    peer: _Peer
    incarnation: _Count
    until: Annotated[int, msgspec.Meta(ge=-1, le=2**53)]
    """The last round that needs it, for what it has contributed to it or holds of it: it is kept in until that is over,
    and no longer."""
    stays: bool = False
    """Whether it wants to leave no more."""


class OfLink(msgspec.Struct, frozen=True, array_like=True):
    """What one peer has measured of its link with another."""

    position: Annotated[int, msgspec.Meta(ge=0, lt=4096)]
    """Of the other, in the view."""
    rate_bytes_per_s: Annotated[float, msgspec.Meta(ge=0, le=1e13)] = 0.0
    """How fast the peer has received from it, at best; 0: unknown."""
    trip_s: Annotated[float, msgspec.Meta(ge=0, le=60)] = 0.0
    """The shortest round trip of late; 0: unknown."""
    reach: Annotated[int, msgspec.Meta(ge=-1, le=1)] = 0
    """1: the peer has connected to it; -1: it has tried to, and nothing answered; 0: neither."""
    around: bool = False
    """The connection is broken and could not be made again, and what they exchange goes a way around."""


class Measured(_Header, frozen=True):
    """To the coordinator, hop by hop: what a peer has measured of its network. It only ever changes the trees."""

    epoch: _Stamp
    peer: _Peer
    rate_bytes_per_s: Annotated[float, msgspec.Meta(ge=0, le=1e13)]
    """How fast it has received from all its neighbours together, at best; 0: unknown."""
    links: Annotated[tuple[OfLink, ...], msgspec.Meta(max_length=128)] = ()


class StateRequest(_Header, frozen=True):
    """Send me the state of the run as of your last committed round."""

    run: _Text
    """With PART in it: what the addressee alone has, by that name. Who asks for it need be in no view."""
    round: _Count = 0
    """Of the state that is on its way ..."""
    received: _Count = 0
    """... this much has come, and the rest is to follow; 0: nothing has been sent yet."""


class State(_Header, frozen=True):
    """A piece of the state. Payload: its bytes."""

    run: _Text
    round: _Count
    offset: _Count
    total: Annotated[int, msgspec.Meta(ge=0, le=2**40)]
    """Of the whole state, which may be empty."""


class Bye(_Header, frozen=True):
    """The sender closes the connection, and why."""

    reason: _Text


class Have(_Header, frozen=True):
    """To whoever is next on the shortest way to the root: the sender, and those behind it that must, hold the whole
    result and its Commit."""

    epoch: _Stamp
    round: _Count
    holding: _Set = b""
    """Of a coded round, which does not wait for everybody: the positions, at and below the sender, that hold it."""


class Decide(_Header, frozen=True):
    """From a neighbour that has committed it: enough peers hold the round's result, so it counts."""

    epoch: _Stamp
    round: _Count


class Progress(_Header, frozen=True):
    """To the parent: how far the sender and those below it are with what they compute for a coded round."""

    epoch: _Stamp
    round: _Count
    code: _Text
    """The code's name: all must use the same."""
    began: _Set
    """Positions of the peers that speak in it. Each says that it takes part in this round of this view, and in no
    older view's any more."""
    holding: bool
    """Whether one of them holds the round's result from an earlier view."""
    done: _Done
    """For each slot of the code: 0 where nobody speaks for it, else 1 + how many of its chunks are computed."""


class Release(_Header, frozen=True):
    """From the parent: the root closes a coded round. What is computed counts as it says, and no further."""

    epoch: _Stamp
    round: _Count
    done: _Done
    """As in Progress, of all slots. From it alone all peers find the coefficients of the code."""
    anew: bool = False
    """A result is held from an earlier view: who holds none contributes an empty vector, so that it comes up and is put
    forward again."""
    code: _Text = ""
    """The code's name; empty: an older peer's, or the round is closed without one."""


class Knock(_Header, frozen=True):
    """Opens a tunnel, or agrees to one: only ever inside of a Via."""

    incarnation: _Count
    """The sender's."""
    answer: bool
    """Whether this agrees to the other end's Knock of the same number."""
    stamp: _Seconds = 0.0
    """The sender's clock, as in a Ping ..."""
    lost: _Seconds = 0.0
    """... and what it was when the sender lost its path; 0: not said. Where the addressee has had later news over the
    path that it uses, the Knock is out of date."""
    sync: Sync | None = None
    """Where the sender stands, so that what it lacks comes with the answer, and not a way there and back later. An
    answer says it where the Knock has: both ends know then."""
    hops: Annotated[int, msgspec.Meta(ge=1, le=255)] = 1
    """Through how many neighbours at once the sender would have the tunnel go, at most."""


class Via(_Header, frozen=True):
    """A frame that another peer, or the broker, carries on. Payload: the frame's."""

    source: _Peer
    target: _Peer
    tunnel: _Count
    """Number of the tunnel, by its opener."""
    serial: _Count
    """How many frames the source has sent through it before; if one is lost, so is the tunnel."""
    kind: Annotated[int, msgspec.Meta(ge=1, le=255)]
    header: Annotated[bytes, msgspec.Meta(max_length=4096)]
    """Kind and header of the frame."""
    hops: Annotated[int, msgspec.Meta(ge=1, le=255)] = 1
    """Through how many neighbours by turns its source sends by now: what has not come when later ones have come by so
    many is lost."""


class NoWay(_Header, frozen=True):
    """To the source of a Via: the sender can't carry it on; inside of a Via: the target has no such tunnel."""

    target: _Peer
    tunnel: _Count


class Poll(_Header, frozen=True):
    """From peer to peer through all links: who is there, and who follows the candidate?"""

    epoch: _Stamp
    """The view whose successor is to be decided."""
    candidate: _Peer
    number: _Count
    """Counts what a candidate sends from peer to peer."""
    ballot: _Ballot = 0
    """Votes are promises not to take part in a lower one; 0 asks for no promise."""
    known: _Set = b""
    """Bit set of the positions of those whose promise the candidate has: they need not say again what they have
    accepted."""


class Propose(_Header, frozen=True):
    """From peer to peer through all links: the view that the candidate wants to follow. A document in the payload."""

    epoch: _Stamp
    candidate: _Peer
    number: _Count
    ballot: _Ballot
    again: bool = False
    """Whether it had been accepted in an earlier ballot, so that the candidate is bound to it."""


class Vote(_Header, frozen=True):
    """The answer to a Poll or a Propose, back the way that it came."""

    epoch: _Stamp
    candidate: _Peer
    number: _Count
    voter: _Peer
    promised: _Ballot = 0
    """The voter takes part in no lower ballot."""
    accepted: Annotated[int, msgspec.Meta(ge=-1, le=2**53)] = -1
    """The ballot of the proposal that it has accepted last, -1: of none. In the answer to a Poll, the payload is that
    view as a document."""
    committed: Annotated[int, msgspec.Meta(ge=-1, le=2**53)] = -1
    """The last round that is over at the voter; -1 while it waits for the state of the run."""
    holding: bool = False
    """Whether it holds a result that may count."""
    held: tuple[Generation, _Stamp] | None = None
    """Of which view: the newest whose root put it forward."""
    coming: Annotated[int, msgspec.Meta(ge=-1, le=2**53)] = -1
    """After which round the state is that comes to the voter, or is being put to use there; -1: none is."""


class Call(_Header, frozen=True):
    """Through the broker, to one peer: are you there? It tells as much of the caller as a Here of who answers."""

    incarnation: _Count
    generation: Generation | None = None
    """Of the sender's view, None while it is in none ..."""
    epoch: _Stamp = 0
    """... and its stamp."""
    known: Generation | None = None
    """The newest generation that it has heard of."""
    view: bool = False
    """Whether it wants to be sent the addressee's view."""
    stamp: _Seconds = 0.0
    """The sender's clock."""


class Here(_Header, frozen=True):
    """Through the broker, to one peer: I am, in this life. The answer to a Call."""

    incarnation: _Count
    generation: Generation | None = None
    epoch: _Stamp = 0
    known: Generation | None = None
    aside: bool = False
    """Whether it wants to be in no view now."""
    echo: _Seconds = 0.0
    """The stamp of the Call."""


class Meta(_Header, frozen=True):
    """Of the protocol ft-tree-static: a metadata message of the thesis (Padrão 2020, §6.2 and §6.3)."""

    epoch: _Stamp
    round: _Count
    what: MetaWhat
    about: _Count
    """Position of its argument (target, sender or k); 0 where it has none."""


Frame: TypeAlias = (
    Hello | Sync | ViewFrame | Ping | Reduce | Result | Abort | Suspect | Leave
    | StateRequest | State | Bye | Have | Decide | Knock | Via | NoWay | Poll | Vote | Meta
    | Progress | Release | Propose | Call | Here | Measured
)  # fmt: skip


def pack_stands(stands: tuple[int, int] | None) -> int | tuple[int, int] | None:
    """Of which round there is a state, and of which somebody has seen the end, as `Ping.stands`."""
    return stands[0] if stands is not None and stands[0] >= stands[1] else stands


def unpack_stands(data: int | tuple[int, ...] | None) -> tuple[int, int] | None:
    """What `pack_stands` packed; where there is a state of as late a round as anybody has seen, that twice."""
    if data is None:
        return None
    have, seen = (data, data) if isinstance(data, int) else data
    return have, seen


def pack_set(positions: int) -> bytes:
    """A bit set of positions as bytes."""
    return positions.to_bytes((positions.bit_length() + 7) // 8, "little")


def unpack_set(data: bytes) -> int:
    """The bit set that `pack_set` packed."""
    return int.from_bytes(data, "little")
