"""Rounds: every peer's vector up the tree, their sum down again, held, and decided.

What a peer may do with the frames of a round, by the stage that it is in (round.py). A frame of another view or round,
or without the state of the run, is dropped; the round in question is committed + 1.

    comes                     | open (coded rounds)    | closed                   | held
    --------------------------+------------------------+--------------------------+----------------------------------
    the owner's vector        | refused: a mismatch    | added                    | kept: a round takes one
    Progress, chunks computed | counted; the root may  | counted for nobody       | counted for nobody
                              | close the round        |                          |
    Release                   | closes it              | -                        | closes it, for who counts holders
    child's Reduce            | costs the link         | stored, added, passed up | stored
    child's Result, going up  | stored: put forward again, in the place of a sum, once all below have spoken
    Result with its Commit    | stored, passed down; held once whole              | it may say that it counts
    Have                      | counted                | counted                  | counted: the root decides
    Decide                    | -                      | -                        | commits
    Abort that asks           | passed up              | passed up                | passed up
    Abort: it is over         | dropped                | dropped                  | dropped

    stands there              | so
    --------------------------+--------------------------------------------------------------------------------------
    an abort owed for a round | the owner's next contribution is answered at once
    no state of the run yet   | the owner's contribution is kept until the run begins, and aborted by a state
    a new view                | the round starts again with the contributions kept, and what is held goes up in the
                              | place of a sum; of a coded one, peers say anew what they have computed

A parent adds its own vector and its children's in position order, element ranges as they become complete in all of
them (lane.py). Segments go up and down while later ones still come up; nobody applies anything before it is decided
(deciding.py). Since a round needs the contribution of every member, and whoever has committed it does not contribute
again but hands its result to its neighbours, no round can be committed twice with different bits by members of one
view. Of a coded round, what stands here of a contribution is said of what is encoded once the root has closed it, and
only those contribute who have something to bring (closing.py). The root decides, but not against what an earlier root
may have committed: see `Round.may_be_decided`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Protocol

from edgepeer.errors import ProtocolBug
from edgepeer.ids import Generation, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.closing import Closing
from edgepeer.protocol.code import Coding
from edgepeer.protocol.deciding import enough_hold, holding_below, may_say_have
from edgepeer.protocol.events import FloatVector
from edgepeer.protocol.inview import NOWHERE, InView
from edgepeer.protocol.lane import Address, Lane, piece
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.past import Decided, Dropped, Past
from edgepeer.protocol.place import UNKNOWN, Place
from edgepeer.protocol.rates import Rates
from edgepeer.protocol.round import Round
from edgepeer.protocol.streams import Held, Prefix, Shape
from edgepeer.topology.view import View
from edgepeer.wire.documents import pack
from edgepeer.wire.frames import (
    Abort,
    Cause,
    Commit,
    Decide,
    Have,
    Progress,
    Reduce,
    Release,
    Result,
    ViewFrame,
    pack_set,
    unpack_set,
)
from edgepeer.wire.precision import Precision

__all__ = ["Allreduce", "Around", "what_is_wrong"]


class Around(Protocol):
    """What rounds need of the peer around them."""

    def emit(self, effect: fx.Effect) -> None:
        """Want something done."""

    def fail_link(self, peer: PeerId, reason: str, *, abrupt: bool = False) -> None:
        """Close the link to a peer. `abrupt`: without sending what is queued."""

    def paths_in_use(self) -> tuple[str, ...]:
        """What the links to parent and children run over."""


class Allreduce:
    """The rounds of one peer."""

    def __init__(self, place: Place, limits: Limits, around: Around) -> None:
        self.place = place
        self._limits = limits
        self._around = around
        self._emit = emit = around.emit
        self._rates = Rates(limits)
        self._past = Past(limits.kept_results, place, self._rates, emit)
        self._closing = Closing(place, emit)
        self._round = Round((NOWHERE,), self._rates, coded=False)
        self._early: Round | None = None
        """What has come of the round after this one, from those where this one is over."""
        self._origin: frozenset[PeerId] = frozenset()  # who was in when the round began
        self._own_state: tuple[str, int, Generation | None] = "", 0, None
        """Of which run the owner has the state after which round, from a checkpoint of which generation."""

    # -- where this peer stands ----------------------------------------------------------------------------------

    @property
    def run(self) -> str:
        """The run that is worked on; empty for plain allreduces."""
        return self.place.run

    @property
    def committed(self) -> int:
        """The last round that is over here; UNKNOWN while the state of the run is still to come."""
        return self.place.committed

    @property
    def kept(self) -> int:
        """The first round whose end can still be told here; 0 without the state of the run."""
        return self._past.first(self.committed) if self.committed >= 0 else 0

    def rate_from(self, peer: PeerId) -> float:
        """How fast this peer receives from a neighbour, in bytes/s; 0 while unknown."""
        here = self.place.here
        return self._rates.of(peer).bytes_per_s if here is not None and peer in here.neighbours else 0.0

    @property
    def receiving(self) -> bool:
        """Whether a neighbour has begun to send the round's result."""
        rd = self._round
        return any(lane.result_from is not None for lane in (rd.lane, *rd.parts.values()))

    @property
    def idle(self) -> bool:
        """Whether the next round has not begun here."""
        return not self._round.begun and not self._closing.begun

    @property
    def contributed(self) -> bool:
        """Whether the owner waits for the round."""
        return self._round.brings.waits

    @property
    def owed(self) -> int:
        """How many rounds were dropped before the owner had brought anything to them, and are still to be answered."""
        return self._past.owes

    @property
    def needed(self) -> bool:
        """Whether the round in progress may need this peer: for what it brings, or for what it holds."""
        rd, closed, here = self._round, self._closing.closed, self.place.here
        if self.holding:
            return True
        if not rd.brings.in_chunks:
            return rd.brings.waits
        if closed is not None:
            return here is not None and here.has(closed.expected)
        return self._closing.takes_part and not rd.brings.abandoned

    @property
    def holding(self) -> bool:
        """Whether a result is here that may count already, somewhere."""
        return self._round.held is not None or self._round.prior is not None

    @property
    def level(self) -> int:
        """The last round that is over here, if there is nothing left to decide of the views before; else -1."""
        view, committed = self.place.view, self.place.committed
        settled = view is not None and committed >= view.first_round - 1 and not self.holding
        return committed if settled else -1

    @property
    def waiting(self) -> bool:
        """Whether the round waits for this peer's children, and not for itself."""
        rd, closed, here = self._round, self._closing.closed, self.place.here
        if self._closing.code is not None and closed is None:
            return self._closing.waiting
        spoken = rd.brings.vector is not None or (
            closed is not None and here is not None and not here.has(closed.expected)
        )
        return spoken and bool(rd.late)

    def laggards(self, now: float) -> list[PeerId]:
        """Children that have kept the round waiting for longer than the limit."""
        rd, stall_s = self._round, self._limits.stall_s
        if self._closing.code is None:
            return rd.late if self.contributed and now - rd.brings.since > stall_s else []
        if self._closing.closed is None:
            return self._closing.stalled(now, stall_s)
        return rd.late if now - self._closing.closed_at > stall_s else []

    def missing(self) -> tuple[PeerId, ...]:
        """Whom the round waits for, as far as this peer can tell."""
        here = self.place.here
        if here is None or not self.contributed:
            return ()
        late = self._round.missing
        if self._closing.code is not None and self._closing.closed is None:
            late = sum(self._closing.missing(child) for child in here.children)
        return here.view.names(late) or ((here.parent,) if here.parent is not None else ())

    def owes(self, peer: PeerId) -> bool:
        """Whether a neighbour waits for something of the round from here."""
        rd, here = self._round, self.place.here
        if here is None:
            return False
        word = rd.held is not None and (peer in here.behind or (peer == here.above and rd.have_sent is None))
        return word or rd.owes(peer)

    def have_of(self, peer: PeerId) -> tuple[int, ...]:
        """Of each lane, how many elements are here of what a neighbour sends in this round."""
        return self._round.have_of(peer)

    def progress(self, now: float) -> dict[str, object]:
        """How far the round in progress is, for people to read."""
        rd, lane, closed, here = self._round, self._round.lane, self._closing.closed, self.place.here
        return {
            "run": self.run,
            "committed": self.committed,
            "loading": self.place.loading,
            "at": dict(sorted(here.at.items())) if here is not None else {},
            "stage": rd.stage.value,
            "mine": rd.brings.waits,
            "since": now - rd.brings.since if rd.brings.waits else None,
            "up": {
                peer: {"of": stream.expected, "received": stream.received, "held": stream.held is not None}
                for peer, stream in lane.streams.items()
            },
            "reduced": lane.reduced,
            "sent_up": lane.sent_up,
            "down": lane.result.received,
            "from": lane.result_from,
            "sent_down": dict(sorted(lane.sent_down.items())),
            "parts": {
                number: {
                    "parent": part.edges.parent,
                    "up": {peer: stream.received for peer, stream in part.streams.items()},
                    "reduced": part.reduced,
                    "sent_up": part.sent_up,
                    "down": part.result.received,
                    "verified": part.verified,
                }
                for number, part in rd.parts.items()
                if number
            },
            "held": rd.held is not None,
            "prior": rd.prior.commit.held_in if rd.prior is not None else None,
            "decided": rd.decided,
            "haves": sorted(rd.haves),
            "have_sent": rd.have_sent,
            "abort": rd.abort_wanted,
            "closed": closed.done if closed is not None else None,
        }

    # -- views -----------------------------------------------------------------------------------------------

    def install(self, view: View, now: float) -> None:
        """Work in `view` from now on; the round in progress starts again."""
        place, before = self.place, self.place.here
        may_be_decided = before is not None and before.spoke
        here = place.here = InView(view, place.me)
        self._closing.enter()
        self._rates.keep(here.neighbours, 2 * view.height)
        if view.run != place.run:
            self._drop_round("run", "another run has begun")
            may_be_decided = False
            place.run = view.run
            run, number, generation = self._own_state
            mine = bool(view.run) and run == view.run
            place.committed = (number if mine else UNKNOWN) if view.run else view.first_round - 1
            place.restored = generation if mine else None
        elif before is None:
            place.committed = view.first_round - 1
        may_be_decided |= before is None and (view.epoch > 1 or view.first_round > 1)  # what was before, others know
        if not self._round.begun:
            self._origin = frozenset(view.ids)
        self._restart(now, may_be_decided=may_be_decided)
        self._begin()
        self.go_on()

    def leave(self, reason: str, *, anew: bool = False) -> None:
        """In no view any more. `anew`: since another generation has begun."""
        place = self.place
        self._drop_round("anew" if anew else "left", reason)
        place.here = None
        place.run, place.committed, place.restored = "", 0, None
        self._closing.enter()

    def _drop_round(self, cause: Literal["left", "anew", "run"], reason: str) -> None:
        if self._round.brings.waits:
            self._emit(fx.RoundAborted(self.run, self.place.committed + 1, cause, reason, mine=True))
        self._round.drop()
        self._round, self._early = Round((NOWHERE,), self._rates, coded=False), None
        self._closing.begin()
        self._past.clear()
        self.place.loading = False

    def _restart(self, now: float, *, may_be_decided: bool) -> None:
        """Begin the round again, with what is kept of it."""
        here = self.place.here
        plain = self._round.brings.waits and not self._round.brings.in_chunks
        self._round = self._round.again(here, self._rates, may_be_decided=may_be_decided, now=now)
        self._early = None
        if here is not None and here.view.slots and plain:
            self._want_abort("mismatch", f"{self.place.me} brings a plain vector, but rounds are coded here")

    def learn(self, peer: PeerId, view: View) -> None:
        """A neighbour tells of an older view: what it hands over next was decided there."""
        if self.place.here is not None and peer in self.place.here.at:
            self._past.learn(peer, view)

    # -- neighbours, and the state of the run --------------------------------------------------------------------

    def on_sync(self, peer: PeerId, committed: int, have: Sequence[int] = ()) -> None:
        """A neighbour stands in this view and run, after round `committed`; all that it lacks is sent again.

        `have`: what it has of what this peer sends in the round that comes next there, of each lane; of one view that
        is the same bits.
        """
        place, here = self.place, self.place.here
        if here is None:
            return
        # With several trees, what it has thrown away may be of a round that it was not in yet.
        if here.at.get(peer) != committed or len(here.trees) > 1:
            self._round.resume(peer, have if committed == place.committed else ())
            if peer == here.above:
                self._round.forget_have()
            here.at[peer] = committed
            if committed >= 0 and place.committed >= 0:
                here.at[peer] = self._past.hand_over(here, peer, have)
                if committed > place.committed + 1 and not place.run:
                    self.fall_behind(committed - 1)
        if self._begin():
            self._emit(fx.ViewInstalled(here.view))  # so that the application looks again
        self._closing.resend(peer)
        self.go_on()

    def _begin(self) -> bool:
        """Where nobody has the state of the run, it begins with the root's own."""
        place, here = self.place, self.place.here
        nobody = place.committed == UNKNOWN and place.standing == UNKNOWN
        if not place.run or here is None or here.parent is not None or not nobody:
            return False
        place.committed = 0
        return True

    def on_lost(self, peer: PeerId) -> bool:
        """A neighbour's link is gone. Returns whether the round's result was to come over it."""
        if self.place.here is not None:
            self.place.here.at.pop(peer, None)
        self._past.forget(peer)
        return self._round.let_go(peer)

    def own_state(self, run: str, committed: int, generation: Generation | None) -> None:
        """The owner has the state of a run after round `committed`, from an earlier life in that generation."""
        self._own_state = run, committed, generation
        if run == self.run and self.committed == UNKNOWN and not self.place.loading:
            self.adopt(committed)
            self.place.restored = generation

    def give_up_restored(self) -> None:
        """What is from a checkpoint here has been given up by others: be without a state until theirs is here."""
        self._own_state = "", 0, None
        self.forget(loading=False)

    def adopt(self, committed: int) -> None:
        """The state after round `committed` is in use here."""
        self.place.loading = False
        if committed > self.committed:
            self._skip(committed)

    def forget(self, *, loading: bool = True) -> None:
        """There is no state of the run here: a neighbour's, which is `loading`, replaces it, or is to."""
        self._skip(UNKNOWN)
        self.place.loading = loading

    def fall_behind(self, committed: int) -> None:
        """Rounds were decided without this peer, and nobody can tell how."""
        self._skip(committed)
        self._emit(fx.Behind(committed))

    def _skip(self, committed: int) -> None:
        self._drop_round("run", "the run went on without this peer")
        self.place.committed, self.place.restored = committed, None
        if self.place.view is not None:
            self._origin = frozenset(self.place.view.ids)
        self._restart(self.place.now, may_be_decided=True)

    # -- contributions -----------------------------------------------------------------------------------------

    def contribute(self, vector: FloatVector, weight: float, now: float, precision: Precision = "float32") -> None:
        """This peer's vector for the next round."""
        rd, view = self._round, self.place.view
        if self._owed():
            return
        rd.contribute(vector, weight, now, precision)
        if view is not None and view.slots:
            self._want_abort("mismatch", f"{self.place.me} brings a plain vector, but rounds are coded here")
        elif self._takes(shape := Shape.of(vector, precision)):
            rd.learn_shape(shape)
            self.go_on()

    def _owed(self) -> bool:
        """Whether what is brought now belongs to a round that was dropped: then it is answered."""
        past = self._past.owed()
        if past is not None:
            self._emit(fx.RoundAborted(self.run, past.round, past.cause, past.reason, mine=True))
        return past is not None

    def _takes(self, shape: Shape) -> bool:
        """Whether the owner's vector is like the others'; else nothing can come of the round."""
        of = self._round.known_shape
        if of is not None and of != shape:
            self._want_abort("mismatch", f"{self.place.me} brings {shape}, a peer below it {of}")
        return of is None or of == shape

    def abandon(self) -> None:
        """The owner does not wait, and the contribution's memory is about to change: go on with a copy."""
        for parent in self._round.abandon():
            self._around.fail_link(parent, "a contribution was abandoned while it was being sent", abrupt=True)

    def time_out(self, reason: str) -> None:
        """This peer gives up on the round."""
        if self.contributed:
            self._want_abort("timeout", reason)

    # -- coded rounds: who has computed what, and when the round is closed ---------------------------------------

    def use_code(self, coding: Coding | None) -> None:
        """The owner wants rounds to be coded, or not, in views whose members own slots."""
        if self._closing.use(coding):
            self.go_on()

    def did(self, epoch: int, round_: int, done: Mapping[int, int], now: float) -> None:
        """The owner takes part in a round, and has computed so many chunks for each of its slots."""
        rd, view, closing = self._round, self.place.view, self._closing
        if view is None or (view.stamp, self.place.committed + 1) != (epoch, round_):
            return
        if not rd.brings.waits:
            if self._owed():
                return
            rd.compute(now)
        if view.slots:
            closing.did(done if closing.code is not None else {})
        if closing.code is None:
            self._want_abort("mismatch", f"{self.place.me} computes for a code, but {closing.why_not}")
        self._after_news()

    def encoded(self, epoch: int, round_: int, vector: FloatVector) -> None:
        """What the owner was asked to encode. It must not change until the round is over."""
        rd, view, closing = self._round, self.place.view, self._closing
        if view is None or (view.stamp, self.place.committed + 1) != (epoch, round_):
            return
        if rd.closed is None or closing.closed is None or rd.brings.vector is not None:
            return  # or the code is another one by now
        narrow = closing.narrow(self.place.me)
        blocks = closing.code.blocks if narrow is not None and closing.code is not None else 1
        shape = Shape(vector.size * blocks, Shape.of(vector).dtype)
        if self._takes(shape):
            rd.encode(vector, shape)
            self.go_on()

    def on_progress(self, peer: PeerId, frame: Progress) -> None:
        """A child says how far it and those below it are."""
        if peer in self._round.lane.streams and (wrong := self._closing.on_progress(peer, frame)):
            self._around.fail_link(peer, wrong)
        self._after_news()

    def on_release(self, peer: PeerId, frame: Release) -> None:
        """The root has closed the round."""
        if wrong := self._closing.on_release(peer, frame):
            self._around.fail_link(peer, wrong)
        self._after_news()

    def look_again(self) -> None:
        """Time has passed: a coded round may be closed by its policy."""
        self._closing.judge()
        self._after_news()

    def next_deadline(self) -> float | None:
        """When a coded round may be closed by its policy."""
        return self._closing.next_deadline()

    def _after_news(self) -> None:
        rd, here, closing = self._round, self.place.here, self._closing
        if closing.wrong:
            self._want_abort("mismatch", closing.wrong)
        elif rd.abort_wanted is not None:
            self.go_on()  # what has been said may be what it takes
        closed = closing.closed
        if self._round is not rd or rd.closed is not None or closed is None or here is None:
            return
        rd.close(closed, closing.columns(rd.lane.streams))
        if not closed.anew and here.has(closed.expected):
            narrow = closing.narrow(self.place.me)
            self._emit(fx.EncodeWanted(here.epoch, self.place.committed + 1, closed.done, narrow))
        self.go_on()

    # -- frames ------------------------------------------------------------------------------------------------

    def sink(self, peer: PeerId, frame: Reduce | Result, payload_bytes: int) -> memoryview | None:
        """Where the payload of a frame that is about to arrive belongs; None if nowhere."""
        of = shape = Shape.said(frame)
        prefix: Prefix | None = None
        if isinstance(frame, Reduce):
            lane = self._lane_up(peer, frame)
            if lane is not None:
                prefix, of = lane.streams[peer], lane.shape_of(shape)
        elif (here := self.place.at(frame)) is not None:
            rd, dropped = self._round, frame.commit is not None and frame.commit.dropped is not None
            if rd.misfit(shape, self._limits.max_vector_bytes, any_shape=dropped or rd.anew):
                return None
            if frame.up:
                prefix = rd.lane.streams[peer].held_total if peer in rd.lane.streams else None
            elif not frame.lane:
                prefix = rd.lane.source(peer, anew=dropped and rd.held is None) if peer in here.at else None
                prefix = prefix if rd.held is None else None  # what comes again may say that it counts, and no more
            elif rd.held is None and rd.shape is not None and (lane := rd.part(frame.lane, shape)) is not None:
                own = peer == lane.edges.parent and not lane.verified
                prefix, of = lane.source(peer, anew=False) if own else None, lane.shape_of(shape)
        return prefix.room(of, frame.offset, shape.elements(payload_bytes)) if prefix is not None else None

    def _begun_by(self, peer: PeerId, frame: Reduce | Abort) -> Round | None:
        """The round that a frame from below is of: the one in progress, or the next, if that has begun there.

        With several trees, Decide may come to a child in one of them before it comes here. It has contributed to the
        next round then; nobody has to this one who has not seen the end of the one before.
        """
        if self.place.at(frame) is not None:
            return self._round
        here, committed = self.place.here, self.place.committed
        if here is None or len(here.trees) == 1 or peer not in here.at or committed < 0:
            return None
        if (frame.epoch, frame.round) != (here.epoch, committed + 2):
            return None
        if self._early is None:
            self._early = self._round.early(self._rates)
        return self._early

    def _lane_up(self, peer: PeerId, frame: Reduce) -> Lane | None:
        """What a child's segment moves in; None: it is of no round that is in progress, or does not fit into it."""
        rd, wide = self._begun_by(peer, frame), _wide(frame)
        if rd is None or not rd.is_child(peer, frame.lane) or self._undue(rd, peer, frame):
            return None
        return rd.part(frame.lane, wide) if not rd.misfit(wide, self._limits.max_vector_bytes) else None

    def _undue(self, rd: Round, peer: PeerId, frame: Reduce) -> str:
        """Why such a thing can't come: of a coded round not before it is closed. Empty if it can."""
        view, due = self.place.view, 1 if frame.lane else rd.lane.streams[peer].blocks
        if frame.blocks == due and (rd.closed is not None or view is None or not view.slots):
            return ""
        return f"Reduce for {frame.blocks} blocks, {due} are due if the round is closed"

    def on_reduce(self, peer: PeerId, frame: Reduce, payload_bytes: int, stored: bool, seconds: float) -> None:
        """A segment of a child's partial sum lies in its buffer (`stored`) or was of no use."""
        rd, wide = self._begun_by(peer, frame), _wide(frame)
        if rd is None or not rd.is_child(peer, frame.lane):
            return
        if undue := self._undue(rd, peer, frame):
            self._around.fail_link(peer, undue)
            return
        misfit = rd.misfit(wide, self._limits.max_vector_bytes)
        lane = rd.part(frame.lane, wide) if not misfit else None
        if lane is None:
            if misfit and rd.want_abort("mismatch", f"{peer} brings {misfit} at {self.place.me}"):
                self.go_on()
            return
        stream, size = lane.streams[peer], lane.shape_of(Shape(frame.total, frame.dtype)).total
        contributors = unpack_set(frame.contributors)
        if frame.offset + payload_bytes // wide.itemsize > size:
            self._around.fail_link(peer, f"Reduce at {frame.offset} of lane {frame.lane}, which has {size} elements")
        elif contributors != stream.expected or not contributors:
            due = f"Reduce for {contributors:#x}, due from its subtree is {stream.expected:#x}"
            self._around.fail_link(peer, due)
        elif stored:
            rd.learn_shape(wide)
            if wrong := lane.stored(peer, frame, contributors, payload_bytes, seconds):
                self._around.fail_link(peer, f"Reduce at {frame.offset} {wrong}")
                return
            self._rates.told(peer, frame.rate_bytes_per_s)
            self.go_on(lane if rd is self._round else None)
        elif frame.offset > max(stream.received, 0):
            self._around.fail_link(peer, f"Reduce at {frame.offset}, only {stream.received} elements came before")

    def on_result(self, peer: PeerId, frame: Result, payload_bytes: int, stored: bool, seconds: float) -> None:
        """A segment of a result lies in its buffer (`stored`) or was of no use."""
        rd = self._round
        told = self._past.told(peer) if frame.commit is not None else None
        if (here := self.place.at(frame)) is None:
            return
        if frame.up:
            self._on_held(peer, frame, payload_bytes, stored, told)
            return
        lane = rd.lane if not frame.lane else rd.parts.get(frame.lane)
        if lane is None or lane.result_from != peer:
            if lane is rd.lane and len(here.trees) > 1 and peer in here.at:
                self._on_result_again(here, rd, frame)
            return
        if not stored:
            self._on_repeated(frame)
            return
        if wrong := lane.result.stored(frame.offset, Shape.said(frame).elements(payload_bytes)):
            self._refuse(peer, f"{wrong}, in a segment at {frame.offset}")
            return
        rate = self._rates.of(peer)
        rate.add(payload_bytes, seconds)
        self._rates.told(peer, frame.rate_bytes_per_s)
        if frame.lane and (frame.commit is not None) != lane.result.complete:
            rd.refuse_part(lane)
            self._refuse(peer, f"has the commit of lane {frame.lane} elsewhere than at its end")
            return
        if frame.commit is not None:
            rate.close_round()
            if frame.lane:
                self._on_part(here, rd, lane, frame.commit, peer)
            else:
                known = (view for view in (told, here.view) if view and view.stamp == frame.commit.decided_in)
                rd.announce(frame.commit, next(known, None))
        self._send_down(here, lane)
        self._try_commit(here)

    def _on_result_again(self, here: InView, rd: Round, frame: Result) -> None:
        """A result comes whole from one neighbour, while another has sent it, or does: it may say that it counts. With
        several trees, the other one need not come to know that first."""
        if frame.commit is None or not frame.commit.final:
            return
        if rd.held is None or (rd.commit is not None and rd.commit.digest == frame.commit.digest):
            rd.final()
            self._try_commit(here)

    def _on_part(self, here: InView, rd: Round, part: Lane, commit: Commit, source: PeerId) -> None:
        """All of the sum of a range has come, and what its root says of it."""
        decided_in = here.view if commit.decided_in == here.epoch and commit.dropped is None else None
        if part.result.buffer is None or (wrong := what_is_wrong(part.result, commit, decided_in)):
            rd.refuse_part(part)
            self._refuse(source, wrong or "is not here")
            return
        part.announce(commit)
        part.verify()
        if commit.final:
            rd.final()

    def _on_held(self, peer: PeerId, frame: Result, payload_bytes: int, stored: bool, told: View | None) -> None:
        """What is held below from an earlier view."""
        stream = self._round.lane.streams.get(peer)
        if not stored or stream is None:
            return
        if wrong := stream.held_total.stored(frame.offset, Shape.said(frame).elements(payload_bytes)):
            self._refuse(peer, f"{wrong}, in a segment at {frame.offset}")
            return
        total = stream.held_total.buffer
        if frame.commit is None or not stream.held_total.complete or total is None:
            return
        decided_in = told if told is not None and told.stamp == frame.commit.decided_in else None
        if (wrong := what_is_wrong(stream.held_total, frame.commit, decided_in)) or decided_in is None:
            stream.refuse_held()
            self._refuse(peer, wrong)
            return
        stream.take_held(Held(total, frame.commit, decided_in))
        self.go_on()

    def _on_repeated(self, frame: Result) -> None:
        """After a reconnect the end of a result that is held already: it may say that it counts now."""
        rd, commit, here = self._round, frame.commit, self.place.here
        if rd.held is None or rd.commit is None or commit is None or here is None:
            return
        if commit.digest == rd.commit.digest:
            if commit.final:
                rd.final()
            self._try_commit(here)

    def on_have(self, peer: PeerId, frame: Have) -> None:
        """A peer behind this one, on the shortest ways from the root, holds the result."""
        if (here := self.place.at(frame)) is not None and peer in here.behind:
            self._round.on_have(peer, unpack_set(frame.holding))
            if not self.place.frozen and self._round.held is None:
                self._say_have(here)
            self._try_commit(here)

    def on_decide(self, peer: PeerId, frame: Decide) -> None:
        """A neighbour has committed the round."""
        here = self.place.at(frame)
        if here is not None and (peer == here.parent or (len(here.trees) > 1 and peer in here.at)):
            self._round.final()
            self._try_commit(here)

    def on_abort(self, peer: PeerId, frame: Abort) -> None:
        """From below: somebody can't complete the round. From above, or handed over: it is over."""
        here = self.place.at(frame)
        if frame.over and here is not None and peer in here.at:
            here.at[peer] = frame.round
            self._round.drop()
            self._end(here, Dropped(frame.round, frame.cause, frame.reason), peer)
            self._look_at_early()
        rd = self._begun_by(peer, frame) if not frame.over else None
        if rd is not None and peer in rd.lane.streams and rd.want_abort(frame.cause, frame.reason):
            self.go_on()

    # -- going on ----------------------------------------------------------------------------------------------

    def go_on(self, only: Lane | None = None) -> None:
        """Do all that can be done now. `only`: nothing is news but in this lane."""
        rd, place, here = self._round, self.place, self.place.here
        if here is None or place.committed == UNKNOWN:
            return
        if place.frozen:
            self._try_commit(here)  # what is decided already still counts
            return
        if rd.prior is not None and here.view.slots:
            self._closing.holds()
        if rd.abort_wanted is not None and self._pass_abort(here, *rd.abort_wanted):
            return
        if rd.held is None and (brought := rd.brought) is not None:
            self._put_forward(here, brought)
        elif rd.held is None:
            lanes = (only,) if only is not None else tuple(rd.parts.values())
            rd.reduce(place.now, lanes)
            if (wrong := rd.not_finite) and rd.want_abort("nonfinite", f"{place.me} {wrong}"):
                self.go_on()
                return
            rd.sum_up_parts(here.view, self._origin, lanes)
            self._send_up(here, lanes)
        self._send_down(here, only)
        self._try_commit(here)

    def _try_commit(self, here: InView) -> None:
        """Hold the result, if all of it is here, and commit it, if it counts."""
        rd, frozen = self._round, self.place.frozen
        if rd.held is None:
            final = rd.decided or (rd.commit is not None and rd.commit.final)
            if frozen and not final:
                return  # this peer is not to hold anything new
            if rd.lane.result.complete and rd.commit is not None and rd.lane.result.buffer is not None:
                self._hold(here, rd.lane.result.buffer, rd.lane.result_from)
            elif (total := rd.assemble(here.view)) is not None:
                self._hold(here, total, None)
            elif frozen:
                return
            elif here.parent is None and (brought := rd.brought) is not None:
                self._hold(here, rd.put_forward(brought, here.view), None)
            elif here.parent is None and rd.lane.complete and not rd.anew:
                self._hold(here, rd.sum_up(here.view, self._origin), None)
        if rd.held is not None and (rd.decided if frozen else self._is_decided(here)):
            self._commit(here)
            self._look_at_early()

    def _look_at_early(self) -> None:
        """A round has ended: what has been said of the next one by now is to be passed on."""
        if self._round.abort_wanted is not None:
            self.go_on()

    def _hold(self, here: InView, total: FloatVector, source: PeerId | None) -> None:
        """The whole total is here: `source` has sent it; None: this peer, as the root, has reduced it."""
        rd = self._round
        came = rd.lane.result
        if source is not None and rd.commit is not None and (wrong := what_is_wrong(came, rd.commit, rd.decided_in)):
            rd.refuse()
            self._refuse(source, wrong)
            return
        rd.hold(total, self.place.now)
        self._send_down(here)

    def _refuse(self, source: PeerId, wrong: str) -> None:
        self._around.fail_link(source, f"result of round {self.place.committed + 1} {wrong}")

    def _is_decided(self, here: InView) -> bool:
        """Whether the round that is held counts. Says to the parent that it is held here when its turn has come."""
        rd = self._round
        if rd.decided:
            return True
        if here.parent is None:
            return enough_hold(here, rd)
        self._say_have(here)
        return False

    def _say_have(self, here: InView) -> None:
        rd = self._round
        if here.above is None or not may_say_have(here, rd) or not self.place.level(here.above):
            return
        holding = holding_below(here, rd) if rd.closed is not None else 0
        if rd.say_have(holding):
            have = Have(epoch=here.epoch, round=self.place.committed + 1, holding=pack_set(holding))
            self._emit(fx.Send(here.above, have))

    def _commit(self, here: InView) -> None:
        """The total that is held counts."""
        rd, number, source, now = self._round, self.place.committed + 1, self._round.lane.result_from, self.place.now
        if len(here.trees) > 1 and (rd.commit is None or not rd.commit.final):
            source = None  # who has sent the result need not know that it counts: it may be for this peer to say so
        counts = rd.decide()
        commit = counts.commit
        if source is not None:
            here.at[source] = number
        self.place.proven = commit.held_in
        if commit.dropped is not None:
            self._end(here, Dropped(number, commit.dropped, commit.reason), source)
            return
        self._end(here, Decided(number, counts.total, commit, counts.view), source)
        self._emit(
            fx.RoundCommitted(
                run=self.run,
                round=number,
                generation=commit.generation,
                epoch=counts.view.epoch,
                sum=counts.total,
                weight=commit.weight,
                contributors=counts.view.names(unpack_set(commit.contributors)),
                exact=commit.exact,
                digest=commit.digest,
                mine=rd.brings.waits,
                chunks=unpack_set(commit.chunks),
                error=commit.error,
                paths=self._around.paths_in_use(),
                phases=rd.phases(now),
                precision=commit.precision,
            )
        )

    def _want_abort(self, cause: Cause, reason: str) -> None:
        if self._round.want_abort(cause, reason):
            self.go_on()

    def _pass_abort(self, here: InView, cause: Cause, reason: str) -> bool:
        """Do what can be done to end the round without a sum. True if it must not go on."""
        # With several trees: whoever finds that its part of a sum can't be rounded never gives it, so nobody will have
        # a sum in this view. That vectors do not fit may be garbage's word; where it is true, some of the coordinator's
        # own part is missing as well.
        rd, never = self._round, cause != "timeout"
        open_ = not rd.out or cause == "nonfinite"
        if here.parent is not None:
            if self.place.level(here.parent) and rd.say_abort():
                number = self.place.committed + 1
                frame = Abort(epoch=here.epoch, round=number, cause=cause, reason=reason, over=False)
                self._emit(fx.Send(here.parent, frame))
        elif rd.held is None and open_ and (not rd.may_be_decided or self._closing.free):
            self._hold(here, rd.give_up(here.view, cause, reason), None)
        elif rd.held is not None or not here.view.slots:
            rd.bear()
        return never and rd.held is None and not rd.anew

    def _end(self, here: InView, ended: Decided | Dropped, source: PeerId | None) -> None:
        """The round is over, says `source`: tell the others, and go to the next."""
        rd, waits = self._round, self._round.brings.waits
        self._past.keep(ended)
        self._past.tell_end(here, rd, ended, source)
        for peer, at in here.at.items():
            if at == self.committed:
                here.at[peer] = ended.round
        self.place.committed, self.place.restored = ended.round, None
        self._own_state = "", 0, None  # it is of the past
        if isinstance(ended, Dropped):
            self._emit(fx.RoundAborted(self.run, ended.round, ended.cause, ended.reason, mine=waits))
            if not waits and not self._past.owe(ended):
                self._emit(fx.Behind(ended.round))
        total = ended.total if isinstance(ended, Decided) else None
        self._round = self._early or rd.next(total, coded=bool(here.view.slots), rates=self._rates)
        self._early = None
        self._closing.begin(took_part=waits)
        self._origin = frozenset(here.view.ids)

    # -- what goes out -----------------------------------------------------------------------------------------

    def _address(self, here: InView) -> Address:
        return Address(here.epoch, self.place.committed + 1)

    def _send_up(self, here: InView, lanes: Iterable[Lane]) -> None:
        """To the parents what is added up of the sum."""
        rd = self._round
        for lane in lanes:
            parent = lane.edges.parent
            if parent is not None and lane.reduced > lane.sent_up and self.place.level(parent):
                if rd.shape is None:
                    raise ProtocolBug("reduced without a vector")
                for send in lane.up(self._address(here), self._rates, lane.shape_of(rd.shape)):
                    self._emit(send)

    def _put_forward(self, here: InView, brought: Held) -> None:
        """To the parent, in the place of a partial sum: what is held here or below from an earlier view."""
        if here.parent is not None and self.place.level(here.parent) and self._round.pass_up():
            self._send_whole(here, here.parent, brought, up=True)

    def _send_down(self, here: InView, only: Lane | None = None) -> None:
        """To every child what has come of the result so far. At the root, that is its own partial sum.

        What is put forward again, from another view, goes whole; so does nothing, in the place of a sum.
        """
        rd, lane = self._round, self._round.lane
        if rd.held_elsewhere(here.view) and (held := rd.holds) is not None:
            for child in lane.streams:
                news = child != lane.result_from and lane.sent_down.get(child) != held.total.size
                if news and self.place.level(child):
                    lane.told(child, held.total.size)
                    self._send_whole(here, child, held)
            return
        for part in (only,) if only is not None and only.number else rd.parts.values():
            if part.streams:
                # A commit of another view is for `Past` to hand on, with that view.
                commit = part.commit if part.number else rd.commit if rd.decided_in is here.view else None
                for send in part.down(self._address(here), self._rates, commit, self.place.level):
                    self._emit(send)

    def _send_whole(self, here: InView, peer: PeerId, held: Held, *, up: bool = False) -> None:
        if held.view is not here.view:
            self._emit(fx.Send(peer, ViewFrame(epoch=held.view.stamp), pack(held.view)))
        rate = self._rates.of(peer).bytes_per_s
        self._emit(piece(peer, held.total, held.commit, self._address(here), rate, up=up))


def _wide(frame: Reduce) -> Shape:
    """The sum that a segment is for."""
    return Shape(frame.total * frame.blocks, frame.dtype, frame.precision)


def what_is_wrong(came: Prefix, commit: Commit, view: View | None) -> str:
    """Why a result that has come can't be what its commit says; empty if it can."""
    if came.shape is None or came.shape.precision != commit.precision:
        return f"is not in {commit.precision}, as its commit says"
    if came.digest != commit.digest:
        return "does not have the root's digest"
    if commit.dropped is not None and came.shape.total:
        return "is not empty, though the round is dropped"
    return "was decided in an unknown view" if view is None else ""
