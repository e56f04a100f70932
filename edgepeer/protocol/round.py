"""One round at one peer, in one view: its stages, and all that decides how it ends.

    move        | from                | to       | when
    ------------+---------------------+----------+-----------------------------------------------------------------
    take part   | open, closed, held  | the same | the owner brings its vector, or begins to compute for a code
    close       | open, held          | closed,  | it is settled who contributes: in a plain round everybody, from
                |                     | held     | the start; in a coded one when the root says so, which may be late
    encode      | closed, held        | the same | the owner has encoded what it has computed
    hold        | open, closed        | held     | the whole result is here, and has the digest of its commit
    decide      | held                | decided  | it counts: enough peers hold it
    drop        | open, closed, held  | dropped  | it is over without a sum
    cut         | open, closed, held  | cut      | another view: a new `Round` goes on with what this one has

Vectors move in lanes, from the moment that they come. Where the view has one tree, that is lane 0, the whole vector.
Where it has several, the vector is divided into `parts` as soon as its length is known, each with a root of its own
that says what the sum of its range is; whoever has all of them has the result. All of these roots together are to the
decision what one root is: of one view, and one round, there is one sum, since each part of it takes what everybody
brings; and the coordinator, who alone may end the round otherwise, does so only while there is something left that it
has not given.

Every move is a method, and nothing else assigns a field; one that the table does not have raises `ProtocolBug`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import msgspec
import numpy as np

from edgepeer.errors import ProtocolBug
from edgepeer.ids import PeerId
from edgepeer.protocol.closing import Closed
from edgepeer.protocol.code import Recovery
from edgepeer.protocol.effects import Phases
from edgepeer.protocol.events import FloatVector
from edgepeer.protocol.headers import Shape
from edgepeer.protocol.inview import NOWHERE, Edges, InView
from edgepeer.protocol.lane import Lane, spans
from edgepeer.protocol.rates import Rates
from edgepeer.protocol.streams import NOTHING, Held, digest_of, digest_of_all
from edgepeer.topology.view import View
from edgepeer.wire.frames import Abort, Cause, Commit, Reduce, pack_set
from edgepeer.wire.precision import Precision

__all__ = ["MOVES", "Contribution", "Round", "Stage"]


class Stage(StrEnum):
    """How far a round has come at one peer."""

    OPEN = "open"
    CLOSED = "closed"
    HELD = "held"
    DECIDED = "decided"
    DROPPED = "dropped"
    CUT = "cut"


_GOING_ON: Final = (Stage.OPEN, Stage.CLOSED, Stage.HELD)

MOVES: Final[dict[str, dict[Stage, Stage]]] = {
    "take part": {stage: stage for stage in _GOING_ON},
    "close": {Stage.OPEN: Stage.CLOSED, Stage.HELD: Stage.HELD},
    "encode": {Stage.CLOSED: Stage.CLOSED, Stage.HELD: Stage.HELD},
    "hold": {Stage.OPEN: Stage.HELD, Stage.CLOSED: Stage.HELD},
    "decide": {Stage.HELD: Stage.DECIDED},
    "drop": dict.fromkeys(_GOING_ON, Stage.DROPPED),
    "cut": dict.fromkeys(_GOING_ON, Stage.CUT),
}
"""What may happen to a round in which stage, and to which it goes."""


@dataclass(slots=True)
class Contribution:
    """What this peer brings to a round, whatever views that takes. Written by its `Round`."""

    vector: FloatVector | None = None
    weight: float = 1.0
    precision: Precision = "float32"
    """What it travels as."""
    waits: bool = False
    """Whether this peer takes part, and so waits for the result ..."""
    in_chunks: bool = False
    """... with what a code makes of chunks, which is for one view only; else with a vector as it is."""
    abandoned: bool = False
    """Whether its owner does not wait any more, and computes nothing more."""
    since: float = 0.0
    """When this peer contributed."""
    lent: set[PeerId] = field(default_factory=set)
    """The parents of earlier views that the vector's memory may still be on its way to."""


class Round:
    """The round being worked on.

    Args:
        trees: this peer's place in those of the view.
        coded: whether the root has to say who contributes.
        before: the round before, in the same view, whose memory it takes over ...
        total: ... and what came of that.
    """

    __slots__ = (
        "_memory", "_rates", "abort_sent", "abort_wanted", "brings", "closed", "commit", "decided", "decided_in",
        "divided", "have_sent", "haves", "held", "held_at", "lane", "may_be_decided", "parts", "passed_up", "prior",
        "reduced_at", "shape", "stage", "total", "trees",
    )  # fmt: skip

    def __init__(
        self,
        trees: Sequence[Edges],
        rates: Rates,
        *,
        coded: bool,
        before: Round | None = None,
        total: FloatVector | None = None,
    ) -> None:
        self.stage = Stage.OPEN
        self.brings = Contribution()
        self.trees = trees
        self._rates = rates
        self._memory: dict[int, tuple[Lane, FloatVector | None]] = {}
        """Of the round before: its lanes, and partial sums that nobody reads any more."""
        if before is not None:
            own = before.brings.vector
            self._memory = {
                number: (lane, lane.reusable(total, own) if total is not None else None)
                for number, lane in before.parts.items()
            }
        lane, spare = self._memory.pop(0, (None, None))
        self.lane = Lane(trees[0], rates, before=lane, spare=spare)
        """Of the whole vector."""
        self.parts: dict[int, Lane] = {0: self.lane} if len(trees) == 1 else {}
        """What contributions move in: of several trees those whose ranges are not empty, and the first."""
        self.divided: Shape | None = None
        """The vectors whose ranges they are; None where there is one tree, or before it is known ..."""
        self.total: FloatVector | None = None
        """... and where the results lie next to each other."""
        self.shape: Shape | None = None
        """Of the sum, once it is known."""
        self.closed: Closed | None = None
        """Of a coded round: who contributes."""
        self.prior: Held | None = None
        """What was held here in an earlier view."""
        self.may_be_decided = False
        """Whether a root of an earlier view may have committed this round. It may if all that this peer had to send
        went up to it, or if this peer was not in that view, or if it has let that root do without it (closing.py); then
        nobody but that root can say that the round is dropped, and it goes on until it is complete, or handed over by
        somebody who has its result; or until all have said that they hold nothing, of a coded round, or of one of which
        no sum can come."""
        self.abort_wanted: tuple[Cause, str] | None = None
        self.commit: Commit | None = None
        """The root's, once it is here ..."""
        self.decided_in: View | None = None
        """... and the view whose positions it speaks of."""
        self.held: FloatVector | None = None
        """The whole result, once it is here, with the right digest."""
        self.reduced_at = self.held_at = 0.0
        self.decided = False
        """Whether the root has said that it counts."""
        self.haves: dict[PeerId, int] = {}
        """Children that hold it, and all below them that must; of a coded round, who holds it at and below them."""
        self.have_sent: int | None = None
        """What the last Have said."""
        self.passed_up = False
        self.abort_sent: bool | None = None
        """What the last Abort that asks has said of what is held from here down; None: there was none."""
        if not coded:
            self._move("close")

    def _move(self, move: str) -> None:
        to = MOVES[move].get(self.stage)
        if to is None:
            raise ProtocolBug(f"a round that is {self.stage.value} can't {move}")
        self.stage = to

    # -- what the owner does ---------------------------------------------------------------------------------

    def contribute(self, vector: FloatVector, weight: float, now: float, precision: Precision = "float32") -> None:
        """The owner's vector. It must not change until the round is over."""
        if self.brings.vector is not None:
            raise ProtocolBug("two contributions to one round")
        self._move("take part")
        self.brings.vector, self.brings.weight, self.brings.precision = vector, weight, precision
        self.brings.waits, self.brings.since = True, now

    def compute(self, now: float) -> None:
        """The owner takes part with what a code makes of its chunks."""
        self._move("take part")
        self.brings.waits, self.brings.in_chunks, self.brings.since = True, True, now

    def encode(self, vector: FloatVector, shape: Shape) -> None:
        """What the owner has encoded, for a sum of that shape."""
        self._move("encode")
        self.brings.vector, self.brings.weight, self.shape = vector, 1.0, shape

    def take_back(self) -> None:
        """Nothing that the owner has brought, and waits for no more, is to be given in the view that follows."""
        self.brings = Contribution()

    def abandon(self) -> list[PeerId]:
        """The owner does not wait any more, and its vector is about to change: go on with a copy. Returns what
        `call_in` does."""
        lent, own = self.call_in(), self.brings.vector
        self.brings.abandoned = True
        if own is not None:
            new = self.brings.vector = own.copy()
            for lane in self.parts.values():
                lane.moved(own, new)
        return lent

    def call_in(self) -> list[PeerId]:
        """Lend the owner's vector no more. Returns the parents that its memory may be on its way to: those of an
        earlier view may still work in that, and of several trees one of them may be the root that completes a sum
        there. What was abandoned is this peer's own, and nobody writes into it."""
        own = self.brings.vector
        if own is None or self.brings.abandoned:
            return []
        lent = list(dict.fromkeys((*self._lent_to(own), *sorted(self.brings.lent))))
        self.brings.lent.clear()
        return lent

    def _lent_to(self, own: FloatVector) -> list[PeerId]:
        """The parents in this view that memory of this peer's vector may be on its way to."""
        lent = [lane.edges.parent for lane in self.parts.values() if lane.lends(own)]
        return [parent for parent in lent if parent is not None]

    def misfit(self, shape: Shape, limit_bytes: int, *, any_shape: bool = False) -> str:
        """Why a vector of that shape has no place in this round; empty if it has."""
        if shape.bytes > limit_bytes:
            return f"{shape}, more than the {limit_bytes} bytes allowed"
        if any_shape or self.known_shape in (None, shape):
            return ""
        return f"{shape} against {self.known_shape}"

    @property
    def known_shape(self) -> Shape | None:
        """Of the sum, as far as anything has said it."""
        return self.shape or self.divided

    def learn_shape(self, shape: Shape) -> None:
        """Vectors of this shape are added up."""
        self.shape = shape
        self._divide(shape)

    def _divide(self, shape: Shape) -> None:
        """Have a lane for each range that is not empty."""
        if len(self.trees) == 1 or self.divided == shape:
            return
        self.divided, self.total, self.parts = shape, np.empty(shape.total, dtype=shape.dtype), {}
        for number, over in enumerate(spans(shape.total, len(self.trees), shape.block), start=1):
            if number == 1 or over.start < over.stop:
                before, spare = self._memory.get(number, (None, None))
                self.parts[number] = Lane(
                    self.trees[number - 1],
                    self._rates,
                    number=number,
                    over=over,
                    whole=shape.total,
                    into=self.total[over],
                    before=before,
                    spare=spare,
                )
        self._memory = {}

    def part(self, number: int, shape: Shape) -> Lane | None:
        """The lane that frames call so, of a round of vectors of that shape, in which contributions move."""
        if number and self.divided is None:
            self._divide(shape)
        return self.parts.get(number) if self.divided in (None, shape) else None

    def is_child(self, peer: PeerId, lane: int) -> bool:
        """Whether partial sums come from a neighbour in the lane that frames call so."""
        at = max(lane - 1, 0)
        return at < len(self.trees) and peer in self.trees[at].below

    # -- who contributes, and what comes of it -----------------------------------------------------------------

    def close(self, closed: Closed, columns: Mapping[PeerId, FloatVector]) -> None:
        """Of a coded round: the root has said who contributes. `columns`: of children whose vectors are to expand."""
        self._move("close")
        self.closed = closed
        self.lane.expect(closed.expected, columns)
        if closed.anew and self.prior is None:
            self.brings.vector, self.brings.weight, self.shape = NOTHING, 1.0, Shape.of(NOTHING)

    @property
    def anew(self) -> bool:
        """Whether only what is held from an earlier view can come of this round."""
        return self.closed is not None and self.closed.anew

    @property
    def begun(self) -> bool:
        """Whether anybody's contribution is here, or on its way."""
        if self.brings.waits or self.prior is not None or any(s.begun for s in self.lane.streams.values()):
            return True
        return any(s.begun for part in self.parts.values() for s in part.streams.values())

    def reduce(self, now: float, lanes: Iterable[Lane]) -> None:
        """Add up what can be in these, if it is settled who contributes, and this peer has what it is to bring."""
        own: FloatVector | None = self.brings.vector
        if self.stage is not Stage.CLOSED:
            return
        if self.closed is not None and not self.closed.expected & self.lane.edges.bit:
            own = None
        elif own is None:
            return
        if self.divided is not None and self.prior is not None:
            return  # who holds something from an earlier view adds nothing to any part
        for lane in lanes:
            part = own if own is None else lane.part(own)
            lane.reduce(part, self.brings.weight, self.shape, self.brings.precision)
        if self.reduced_at <= self.brings.since and all(lane.complete for lane in self.parts.values()):
            self.reduced_at = now

    @property
    def not_finite(self) -> str:
        """Where something is that can't be rounded, so that the round can't be completed; empty if nowhere."""
        if self.brings.precision == "float32":
            return ""
        for lane in self.parts.values():
            if (at := lane.not_finite) >= 0:
                own, first = self.brings.vector, lane.over.start if lane.over is not None else 0
                mine = own is not None and self.brings.weight and not np.isfinite(own[first + at])
                what = "brings a vector" if mine else "has a partial sum"
                return f"{what} that is not finite at element {first + at}, which {self.brings.precision} can't express"
        return ""

    @property
    def out(self) -> bool:
        """Whether this peer has given all that it has to give to parts with other roots, so that somebody may have the
        sum already."""
        return self.divided is not None and all(part.out for part in self.parts.values())

    @property
    def late(self) -> list[PeerId]:
        """The children, in any tree, whose partial sums are awaited and not complete: none, once the round's end is
        here, which may be that it is dropped before all have come."""
        if self.held is not None:
            return []
        held = {child for child, stream in self.lane.streams.items() if stream.held is not None}
        found = dict.fromkeys(child for lane in self.parts.values() for child in lane.late)
        return [child for child in found if child not in held]

    @property
    def missing(self) -> int:
        """Bit set of the positions below this peer, in any tree, that have not been heard of: none, once the round's
        end is here."""
        missing = 0
        for lane in self.parts.values() if self.held is None else ():
            missing |= lane.missing
        return missing

    @property
    def brought(self) -> Held | None:
        """What was held in an earlier view here or below, and takes the place of a sum; the newest of several.

        Not before all below have said what they bring: one of them may have something newer, and only that can count.
        """
        held = [] if self.prior is None else [self.prior]
        for stream in self.lane.streams.values():
            if stream.held is not None:
                held.append(stream.held)
        if not held or not self.heard_of_all:
            return None
        return max(held, key=lambda held: (held.commit.generation, held.commit.held_in))

    @property
    def clear(self) -> bool:
        """Whether all peers from here down have said what they bring, and hold nothing from an earlier view."""
        streams = self.lane.streams.items()
        return self.prior is None and all(each.held is None and self._has_spoken(child) for child, each in streams)

    @property
    def heard_of_all(self) -> bool:
        """Whether all peers below have said what they bring: they stand before this round, in this view."""
        return all(self._has_spoken(child) for child in self.lane.streams)

    def _has_spoken(self, child: PeerId) -> bool:
        """Whether all peers at and below a child of the first tree that are awaited have said what they bring."""
        stream, part = self.lane.streams[child], self.parts.get(1)
        if stream.begun or not stream.expected:
            return True
        return part is not None and part.streams[child].begun

    # -- how it ends -------------------------------------------------------------------------------------------

    def announce(self, commit: Commit, decided_in: View | None) -> None:
        """The root's commit is here, to a result that is on its way. `decided_in`: if that view is known here."""
        self.commit, self.decided_in = commit, decided_in

    def hold(self, total: FloatVector, now: float) -> None:
        """The whole result is here, and its commit has been announced."""
        if self.commit is None:
            raise ProtocolBug("a result without a commit")
        self._move("hold")
        total.flags.writeable = False
        self.held, self.held_at, self.decided = total, now, self.decided or self.commit.final

    def refuse(self) -> None:
        """What has come as a result is none."""
        _refuse(self.lane)
        self.commit, self.decided_in = None, None

    def refuse_part(self, part: Lane) -> None:
        """What has come as the sum of a range is none."""
        _refuse(part)

    @property
    def holds(self) -> Held | None:
        """What is held, in this view."""
        if self.held is None or self.commit is None or self.decided_in is None:
            return None
        return Held(self.held, self.commit, self.decided_in)

    def held_elsewhere(self, view: View) -> bool:
        """Whether what is held is from another view, or nothing in the place of a sum."""
        if self.held is None or self.commit is None:
            return False
        return self.decided_in is not view or self.commit.dropped is not None

    def final(self) -> None:
        """The root has said that it counts: what has come; and what is to come, where that comes by several trees: of a
        view and round there is nothing else to be decided. With one tree, frames keep their order."""
        if self.held is not None or len(self.trees) > 1:
            self.decided = True
        elif self.commit is not None and self.lane.result.complete:
            self.commit = msgspec.structs.replace(self.commit, final=True)  # it is here, though not to be held

    def decide(self) -> Held:
        """It counts."""
        held = self.holds
        if held is None:
            raise ProtocolBug("a round counts whose root is not known")
        self._move("decide" if held.commit.dropped is None else "drop")
        self.commit = msgspec.structs.replace(held.commit, final=True)
        return Held(held.total, self.commit, held.view)

    def phases(self, now: float) -> Phases:
        """Where its time has gone, if it is decided at `now`."""
        since = self.brings.since
        begun = max(self.reduced_at, since) or self.held_at  # neither: it was closed without this peer
        return Phases(
            waited_s=max(0.0, self.reduced_at - since) if self.brings.waits else 0.0,
            broadcast_s=max(0.0, self.held_at - begun),
            decided_s=now - self.held_at,
        )

    def drop(self) -> None:
        """It is over without a sum, or without this peer."""
        self._move("drop")

    def want_abort(self, cause: Cause, reason: str) -> bool:
        """The round can't be completed. Returns whether that is news. Where somebody has waited too long it may have to
        go on all the same; so any other cause is news after that."""
        news = self.abort_wanted is None or (self.abort_wanted[0] == "timeout" != cause)
        if news:
            self.abort_wanted, self.abort_sent = (cause, reason[:250]), None
        return news

    def asked_to_abort(self, peer: PeerId, frame: Abort) -> bool:
        """A child says so. Returns whether anything of it is news."""
        clear = frame.clear and self.lane.streams[peer].give_up()
        return self.want_abort(frame.cause, frame.reason) or clear

    def misfits(self, peer: PeerId, frame: Reduce, why: str, contributors: int) -> bool:
        """A child's partial sum does not fit, so no sum can come of the round. Returns whether anything of it is news.

        In the first tree it says all the same what one says that fits: all at and below the child have said what they
        bring, and hold nothing.
        """
        stream = self.lane.streams.get(peer) if frame.lane <= 1 else None
        clear = stream is not None and contributors == stream.expected and stream.give_up()
        return self.want_abort("mismatch", why) or clear

    def bear(self) -> None:
        """It has to go on all the same."""
        self.abort_wanted = None

    def sum_up(self, view: View, origin: frozenset[PeerId]) -> FloatVector:
        """At the root: announce its commit to what has been added up. `origin`: who was in when the round began."""
        commit = self._commit_to(self.lane, view, origin)
        self.announce(commit, view)
        if self.lane.partial is None:
            raise ProtocolBug("added up without a vector")
        return self.lane.partial

    def sum_up_parts(self, view: View, origin: frozenset[PeerId], lanes: Iterable[Lane]) -> None:
        """Say what the sum is of those of these ranges that this peer is the root of, and has added up."""
        for part in lanes:
            if part.number and part.edges.parent is None and part.commit is None and part.complete:
                part.announce(self._commit_to(part, view, origin))
                part.verify()

    def assemble(self, view: View) -> FloatVector | None:
        """The result, if all ranges of it are here, and the commit to it; None if they are not."""
        if self.divided is None or not all(part.verified for part in self.parts.values()):
            return None
        sums = [part.sum for part in self.parts.values()]
        first, total = self.parts[1].commit, self.total
        if first is None:
            raise ProtocolBug("the sum of a range without its commit")
        if total is None or not all(part is not None and np.may_share_memory(part, total) for part in sums):
            total = np.concatenate([part for part in sums if part is not None])  # some has been refused, and came again
        digest = digest_of_all(part.bytes_of_sum(first.precision) for part in self.parts.values())
        self.announce(msgspec.structs.replace(first, digest=digest), view)
        return total

    def _commit_to(self, lane: Lane, view: View, origin: frozenset[PeerId]) -> Commit:
        closed = self.closed
        if lane.partial is None or lane.contributors != (view.everyone if closed is None else closed.expected):
            raise ProtocolBug(f"the root has all children's data but only {lane.contributors:#x}")
        recovery = closed.recovery if closed is not None else None
        return Commit(
            decided_in=view.stamp,
            held_in=view.stamp,
            generation=view.generation,
            contributors=pack_set(lane.contributors),
            weight=lane.weight_sum,
            exact=origin <= set(view.names(lane.contributors)) if recovery is None else recovery.exact,
            digest=lane.digest,
            final=False,
            chunks=pack_set(_covered(recovery)) if recovery is not None else b"",
            error=recovery.error if recovery is not None else 0.0,
            precision=self.brings.precision,
        )

    def put_forward(self, brought: Held, view: View) -> FloatVector:
        """At the root: announce again, in this view, what was held in an earlier one."""
        commit = msgspec.structs.replace(brought.commit, held_in=view.stamp, generation=view.generation)
        self.announce(commit, brought.view)
        return brought.total

    def give_up(self, view: View, cause: Cause, reason: str) -> FloatVector:
        """At the root: announce that it ends without a sum, with an empty result, to be held and decided like any."""
        self.lane.forget_result()
        commit = Commit(
            decided_in=view.stamp,
            contributors=b"",
            weight=0.0,
            exact=False,
            digest=digest_of(NOTHING),
            final=False,
            held_in=view.stamp,
            generation=view.generation,
            dropped=cause,
            reason=reason,
        )
        self.announce(commit, view)
        return NOTHING

    # -- what has been said ------------------------------------------------------------------------------------

    def on_have(self, peer: PeerId, holding: int) -> None:
        """A child holds the result, and these at and below it."""
        stream = self.lane.streams.get(peer)
        self.haves[peer] = holding & stream.allowed if stream is not None else 0

    def say_have(self, holding: int) -> bool:
        """The parent is to hear who holds it. Returns whether that is news."""
        news = self.have_sent != holding
        self.have_sent = holding
        return news

    def say_abort(self, *, clear: bool) -> bool:
        """The parent is to hear that it can't be completed; `clear`: and that nobody from here down holds anything of
        it. Returns whether that is news."""
        news = self.abort_sent is None or (clear and not self.abort_sent)
        self.abort_sent = clear or bool(self.abort_sent)
        return news

    def pass_up(self) -> bool:
        """The parent is to get what is held from an earlier view. Returns whether that is news."""
        news, self.passed_up = not self.passed_up, True
        return news

    def resume(self, peer: PeerId, have: Sequence[int]) -> None:
        """A neighbour has of each lane, from 0, so many elements of what this peer sends: the rest is sent again, and
        all that was said."""
        for number, lane in {0: self.lane, **self.parts}.items():
            there = have[number] if number < len(have) else 0
            if peer in lane.streams:
                lane.told(peer, there or None)
            if peer == lane.edges.parent:
                lane.forget_sent(there or -1)
        if peer == self.lane.edges.parent:
            self.passed_up, self.abort_sent = False, None

    def forget_have(self) -> None:
        """Who holds the result has to be said again."""
        self.have_sent = None

    def have_of(self, peer: PeerId) -> tuple[int, ...]:
        """Of each lane, from 0, how many elements are here of what a neighbour sends; () if none."""
        have = [0] * (1 + max(self.parts, default=0))
        for number, lane in {0: self.lane, **self.parts}.items():
            prefix = lane.result if peer == lane.edges.parent else lane.streams.get(peer)
            have[number] = max(prefix.received, 0) if prefix is not None else 0
        return tuple(have) if any(have) else ()

    def owes(self, peer: PeerId) -> bool:
        """Whether something of a vector is still to go to a neighbour, in a round that this peer takes part in."""
        return self.brings.waits and any(
            not lane.all_sent if peer == lane.edges.parent else peer in lane.streams and not lane.all_told(peer)
            for lane in self.parts.values()
        )

    def let_go(self, peer: PeerId) -> bool:
        """Nothing more comes from a neighbour for now. Returns whether a result was to."""
        coming = [lane for lane in (self.lane, *self.parts.values()) if lane.let_go(peer)]
        return bool(coming)

    # -- other rounds ------------------------------------------------------------------------------------------

    def again(self, here: InView | None, rates: Rates, *, may_be_decided: bool, now: float) -> Round:
        """The same round, in another view or from its beginning: what this peer brings and holds is kept."""
        coded = here is not None and bool(here.view.slots)
        prior = self.holds or self.prior
        may_be_decided |= self.may_be_decided or self.lane.given or self.out or prior is not None
        self._move("cut")
        following = Round(here.trees if here is not None else (NOWHERE,), rates, coded=coded)
        if self.brings.vector is not None:
            self.brings.lent.update(self._lent_to(self.brings.vector))
        following.brings, following.prior, following.may_be_decided = self.brings, prior, may_be_decided
        following.abort_wanted = self.abort_wanted
        if self.brings.in_chunks or coded:
            self.brings.vector = None  # the owner will encode again, for this view
        elif self.brings.vector is not None:
            following.learn_shape(Shape.of(self.brings.vector, self.brings.precision))
        self.brings.since = following.reduced_at = following.held_at = now
        return following

    def next(self, total: FloatVector | None, *, coded: bool, rates: Rates, may_be_decided: bool = False) -> Round:
        """The round after this one, in the same view, which has ended with `total` or without a sum.

        A child begins it after it has seen this one's result, so its memory is not read any more.
        """
        following = Round(self.trees, rates, coded=coded, before=self, total=total)
        following.may_be_decided = may_be_decided
        return following

    def early(self, rates: Rates, *, may_be_decided: bool = False) -> Round:
        """The same before this one has ended, for what comes from those where it has: in memory of its own."""
        following = Round(self.trees, rates, coded=False)
        following.may_be_decided = may_be_decided
        return following


def _refuse(lane: Lane) -> None:
    lane.forget_result()
    if lane.result_from is not None:
        lane.let_go(lane.result_from)


def _covered(recovery: Recovery) -> int:
    """The chunks that are whole in the sum, as a bit set."""
    return sum(1 << chunk for chunk, whole in enumerate(abs(recovery.coverage - 1) < 1e-6) if whole)
