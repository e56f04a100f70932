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

from collections.abc import Mapping
from typing import Literal, Protocol

from edgepeer.errors import ProtocolBug
from edgepeer.ids import Generation, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.closing import Closing
from edgepeer.protocol.code import Coding
from edgepeer.protocol.deciding import enough_hold, holding_below
from edgepeer.protocol.events import FloatVector
from edgepeer.protocol.inview import NOWHERE, InView
from edgepeer.protocol.lane import Address, whole
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.past import Decided, Dropped, Past
from edgepeer.protocol.place import UNKNOWN, Place
from edgepeer.protocol.rates import Rates
from edgepeer.protocol.round import Round
from edgepeer.protocol.streams import Held, Prefix, Shape, Upstream, digest_of
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
        self._past = Past(limits.kept_results, emit)
        self._closing = Closing(place, emit)
        self._round = Round(NOWHERE, self._rates, coded=False)
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
        return self._round.lane.result_from is not None

    @property
    def idle(self) -> bool:
        """Whether the next round has not begun here."""
        return not self._round.begun and not self._closing.begun

    @property
    def contributed(self) -> bool:
        """Whether the owner waits for the round."""
        return self._round.brings.waits

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
        return spoken and bool(rd.lane.late)

    def laggards(self, now: float) -> list[PeerId]:
        """Children that have kept the round waiting for longer than the limit."""
        rd, stall_s = self._round, self._limits.stall_s
        if self._closing.code is None:
            return rd.lane.late if self.contributed and now - rd.brings.since > stall_s else []
        if self._closing.closed is None:
            return self._closing.stalled(now, stall_s)
        return rd.lane.late if now - self._closing.closed_at > stall_s else []

    def missing(self) -> tuple[PeerId, ...]:
        """Whom the round waits for, as far as this peer can tell."""
        here = self.place.here
        if here is None or not self.contributed:
            return ()
        late = self._round.lane.missing
        if self._closing.code is not None and self._closing.closed is None:
            late = sum(self._closing.missing(child) for child in here.children)
        return here.view.names(late) or ((here.parent,) if here.parent is not None else ())

    def have_of(self, peer: PeerId) -> int:
        """How many elements are here of what a neighbour sends in this round: a child up, the parent down."""
        lane = self._round.lane
        prefix = lane.result if peer == lane.edges.parent else lane.streams.get(peer)
        return max(prefix.received, 0) if prefix is not None else 0

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
        self._round = Round(NOWHERE, self._rates, coded=False)
        self._closing.begin()
        self._past.clear()
        self.place.loading = False

    def _restart(self, now: float, *, may_be_decided: bool) -> None:
        """Begin the round again, with what is kept of it."""
        here = self.place.here
        plain = self._round.brings.waits and not self._round.brings.in_chunks
        self._round = self._round.again(here, self._rates, may_be_decided=may_be_decided, now=now)
        if here is not None and here.view.slots and plain:
            self._want_abort("mismatch", f"{self.place.me} brings a plain vector, but rounds are coded here")

    def learn(self, peer: PeerId, view: View) -> None:
        """A neighbour tells of an older view: what it hands over next was decided there."""
        if self.place.here is not None and peer in self.place.here.at:
            self._past.learn(peer, view)

    # -- neighbours, and the state of the run --------------------------------------------------------------------

    def on_sync(self, peer: PeerId, committed: int, have: int = 0) -> None:
        """A neighbour stands in this view and run, after round `committed`; all that it lacks is sent again.

        `have`: what it has of this peer's part of the round that comes next there; of one view that is the same bits.
        """
        place, here = self.place, self.place.here
        if here is None:
            return
        if here.at.get(peer) != committed:
            has_some = bool(have) and committed == place.committed
            self._round.lane.told(peer, have if has_some and peer in here.children else None)
            if peer == here.parent:
                self._round.forget_sent(have if has_some else -1)
            here.at[peer] = committed
            if committed >= 0 and place.committed >= 0:
                self._hand_over(here, peer, have if peer in here.children else 0)
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
        return self._round.lane.let_go(peer)

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

    def contribute(self, vector: FloatVector, weight: float, now: float) -> None:
        """This peer's vector for the next round."""
        rd, view = self._round, self.place.view
        if self._owed():
            return
        rd.contribute(vector, weight, now)
        if view is not None and view.slots:
            self._want_abort("mismatch", f"{self.place.me} brings a plain vector, but rounds are coded here")
        elif self._takes(Shape.of(vector)):
            rd.learn_shape(Shape.of(vector))
            self.go_on()

    def _owed(self) -> bool:
        """Whether what is brought now belongs to a round that was dropped: then it is answered."""
        past = self._past.owed()
        if past is not None:
            self._emit(fx.RoundAborted(self.run, past.round, past.cause, past.reason, mine=True))
        return past is not None

    def _takes(self, shape: Shape) -> bool:
        """Whether the owner's vector is like the others'; else nothing can come of the round."""
        of = self._round.shape
        if of is not None and of != shape:
            self._want_abort("mismatch", f"{self.place.me} brings {shape}, a peer below it {of}")
        return of is None or of == shape

    def abandon(self) -> None:
        """The owner does not wait, and the contribution's memory is about to change: go on with a copy."""
        parent = self._round.lane.edges.parent
        if self._round.abandon() and parent is not None:
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
        rd, here, shape = self._round, self.place.at(frame), Shape(frame.total, frame.dtype)
        if here is None:
            return None
        prefix: Prefix | None
        if isinstance(frame, Reduce):
            wide = Shape(frame.total * frame.blocks, frame.dtype)
            stream = rd.lane.streams.get(peer)
            fits = not rd.misfit(wide, self._limits.max_vector_bytes)
            prefix = stream if fits and stream is not None and self._due(stream, frame) else None
        else:
            dropped = frame.commit is not None and frame.commit.dropped is not None
            if rd.misfit(shape, self._limits.max_vector_bytes, any_shape=dropped or rd.anew):
                return None
            if frame.up:
                prefix = rd.lane.streams[peer].held_total if peer in rd.lane.streams else None
            else:
                prefix = rd.lane.source(peer, anew=dropped and rd.held is None) if peer in here.at else None
                prefix = prefix if rd.held is None else None  # what comes again may say that it counts, and no more
        return prefix.room(shape, frame.offset, payload_bytes // shape.itemsize) if prefix is not None else None

    def _due(self, stream: Upstream, frame: Reduce) -> bool:
        """Whether such a thing can come: of a coded round not before it is closed."""
        view, closed = self.place.view, self._round.closed
        return frame.blocks == stream.blocks and (closed is not None or view is None or not view.slots)

    def on_reduce(self, peer: PeerId, frame: Reduce, payload_bytes: int, stored: bool, seconds: float) -> None:
        """A segment of a child's partial sum lies in its buffer (`stored`) or was of no use."""
        rd, stream = self._round, self._round.lane.streams.get(peer)
        if stream is None or self.place.at(frame) is None:
            return
        if not self._due(stream, frame):
            due = f"Reduce for {frame.blocks} blocks, {stream.blocks} are due if the round is closed"
            self._around.fail_link(peer, due)
            return
        wide = Shape(frame.total * frame.blocks, frame.dtype)
        if misfit := rd.misfit(wide, self._limits.max_vector_bytes):
            self._want_abort("mismatch", f"{peer} brings {misfit} at {self.place.me}")
            return
        contributors = unpack_set(frame.contributors)
        if contributors != stream.expected or not contributors:
            due = f"Reduce for {contributors:#x}, due from its subtree is {stream.expected:#x}"
            self._around.fail_link(peer, due)
        elif stored:
            rd.learn_shape(wide)
            rd.lane.stored(peer, frame, contributors, payload_bytes, seconds)
            self._rates.told(peer, frame.rate_bytes_per_s)
            self.go_on()
        elif frame.offset > max(stream.received, 0):
            self._around.fail_link(peer, f"Reduce at {frame.offset}, only {stream.received} elements came before")

    def on_result(self, peer: PeerId, frame: Result, payload_bytes: int, stored: bool, seconds: float) -> None:
        """A segment of a result lies in its buffer (`stored`) or was of no use."""
        rd, lane = self._round, self._round.lane
        told = self._past.told(peer) if frame.commit is not None else None
        if (here := self.place.at(frame)) is None:
            return
        if frame.up:
            self._on_held(peer, frame, payload_bytes, stored, told)
            return
        if lane.result_from != peer:
            return
        if not stored:
            self._on_repeated(frame)
            return
        lane.result.stored(frame.offset, payload_bytes // Shape(frame.total, frame.dtype).itemsize)
        rate = self._rates.of(peer)
        rate.add(payload_bytes, seconds)
        self._rates.told(peer, frame.rate_bytes_per_s)
        if frame.commit is not None:
            rate.close_round()
            known = (view for view in (told, here.view) if view and view.stamp == frame.commit.decided_in)
            rd.announce(frame.commit, next(known, None))
        self._send_down(here)
        self._try_commit(here)

    def _on_held(self, peer: PeerId, frame: Result, payload_bytes: int, stored: bool, told: View | None) -> None:
        """What is held below from an earlier view."""
        stream, shape = self._round.lane.streams.get(peer), Shape(frame.total, frame.dtype)
        if not stored or stream is None:
            return
        stream.held_total.stored(frame.offset, payload_bytes // shape.itemsize)
        total = stream.held_total.buffer
        if frame.commit is None or not stream.held_total.complete or total is None:
            return
        decided_in = told if told is not None and told.stamp == frame.commit.decided_in else None
        if (wrong := what_is_wrong(total, frame.commit, decided_in)) or decided_in is None:
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
        """A child holds the result."""
        if (here := self.place.at(frame)) is not None and peer in self._round.lane.streams:
            self._round.on_have(peer, unpack_set(frame.holding))
            self._try_commit(here)

    def on_decide(self, peer: PeerId, frame: Decide) -> None:
        """The parent has committed the round."""
        if (here := self.place.at(frame)) is not None and peer == here.parent:
            self._round.final()
            self._try_commit(here)

    def on_abort(self, peer: PeerId, frame: Abort) -> None:
        """From below: somebody can't complete the round. From above, or handed over: it is over."""
        here = self.place.at(frame)
        if here is None or peer not in here.at:
            return
        if frame.over:
            here.at[peer] = frame.round
            self._round.drop()
            self._end(here, Dropped(frame.round, frame.cause, frame.reason), peer)
        elif peer in self._round.lane.streams:
            self._want_abort(frame.cause, frame.reason)

    # -- going on ----------------------------------------------------------------------------------------------

    def go_on(self) -> None:
        """Do all that can be done now."""
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
            rd.reduce(place.now)
            self._send_up(here)
        self._send_down(here)
        self._try_commit(here)

    def _try_commit(self, here: InView) -> None:
        """Hold the result, if all of it is here, and commit it, if it counts."""
        rd, frozen = self._round, self.place.frozen
        if rd.held is None:
            if rd.lane.result.complete and rd.commit is not None and rd.lane.result.buffer is not None:
                if frozen and not rd.commit.final:
                    return  # this peer is not to hold anything new
                self._hold(here, rd.lane.result.buffer, rd.lane.result_from)
            elif frozen:
                return
            elif here.parent is None and (brought := rd.brought) is not None:
                self._hold(here, rd.put_forward(brought, here.view), None)
            elif here.parent is None and rd.lane.complete and not rd.anew:
                self._hold(here, rd.sum_up(here.view, self._origin), None)
        if rd.held is not None and (rd.decided if frozen else self._is_decided(here)):
            self._commit(here)

    def _hold(self, here: InView, total: FloatVector, source: PeerId | None) -> None:
        """The whole total is here: `source` has sent it; None: this peer, as the root, has reduced it."""
        rd = self._round
        if source is not None and rd.commit is not None and (wrong := what_is_wrong(total, rd.commit, rd.decided_in)):
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
        enough = enough_hold(here, rd)
        if here.parent is None:
            return enough
        if (enough or rd.closed is not None) and self.place.level(here.parent):
            holding = holding_below(here, rd) if rd.closed is not None else 0
            if rd.say_have(holding):
                have = Have(epoch=here.epoch, round=self.place.committed + 1, holding=pack_set(holding))
                self._emit(fx.Send(here.parent, have))
        return False

    def _commit(self, here: InView) -> None:
        """The total that is held counts."""
        rd, number, source, now = self._round, self.place.committed + 1, self._round.lane.result_from, self.place.now
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
            )
        )

    def _want_abort(self, cause: Cause, reason: str) -> None:
        if self._round.want_abort(cause, reason):
            self.go_on()

    def _pass_abort(self, here: InView, cause: Cause, reason: str) -> bool:
        """Do what can be done to end the round without a sum. True if it must not go on."""
        rd = self._round
        if here.parent is not None:
            if self.place.level(here.parent) and rd.say_abort():
                number = self.place.committed + 1
                frame = Abort(epoch=here.epoch, round=number, cause=cause, reason=reason, over=False)
                self._emit(fx.Send(here.parent, frame))
        elif rd.held is None and (not rd.may_be_decided or self._closing.free):
            self._hold(here, rd.give_up(here.view, cause, reason), None)
        elif rd.held is not None or not here.view.slots:
            rd.bear()
        return cause == "mismatch" and rd.held is None and not rd.anew

    def _end(self, here: InView, ended: Decided | Dropped, source: PeerId | None) -> None:
        """The round is over, says `source`: tell the others, and go to the next."""
        rd, waits = self._round, self._round.brings.waits
        self._past.keep(ended)
        self._tell_end(here, ended, source)
        self.place.committed, self.place.restored = ended.round, None
        self._own_state = "", 0, None  # it is of the past
        if isinstance(ended, Dropped):
            self._emit(fx.RoundAborted(self.run, ended.round, ended.cause, ended.reason, mine=waits))
            if not waits and not self._past.owe(ended):
                self._emit(fx.Behind(ended.round))
        total = ended.total if isinstance(ended, Decided) else None
        self._round = rd.next(total, coded=bool(here.view.slots), rates=self._rates)
        self._closing.begin(took_part=waits)
        self._origin = frozenset(here.view.ids)

    # -- what goes out -----------------------------------------------------------------------------------------

    def _address(self, here: InView) -> Address:
        return Address(here.epoch, self.place.committed + 1)

    def _send_up(self, here: InView) -> None:
        """To the parent what is added up of the sum."""
        rd = self._round
        if here.parent is not None and rd.lane.reduced > rd.lane.sent_up and self.place.level(here.parent):
            if rd.shape is None:
                raise ProtocolBug("reduced without a vector")
            for send in rd.lane.up(self._address(here), self._rates, rd.shape):
                self._emit(send)

    def _put_forward(self, here: InView, brought: Held) -> None:
        """To the parent, in the place of a partial sum: what is held here or below from an earlier view."""
        if here.parent is not None and self.place.level(here.parent) and self._round.pass_up():
            self._send_whole(here, here.parent, brought, up=True)

    def _send_down(self, here: InView) -> None:
        """To every child what has come of the result so far. At the root, that is its own partial sum.

        What is put forward again, from another view, goes whole; so does nothing, in the place of a sum.
        """
        rd, lane = self._round, self._round.lane
        if not lane.streams:
            return
        if rd.held_elsewhere(here.view) and (held := rd.holds) is not None:
            for child in lane.streams:
                news = child != lane.result_from and lane.sent_down.get(child) != held.total.size
                if news and self.place.level(child):
                    lane.told(child, held.total.size)
                    self._send_whole(here, child, held)
            return
        # A commit of another view is for `Past` to hand on, with that view.
        commit = rd.commit if rd.decided_in is here.view else None
        for send in lane.down(self._address(here), self._rates, commit, self.place.level):
            self._emit(send)

    def _send_whole(self, here: InView, peer: PeerId, held: Held, *, up: bool = False) -> None:
        if held.view is not here.view:
            self._emit(fx.Send(peer, ViewFrame(epoch=held.view.stamp), pack(held.view)))
        self._emit(whole(peer, held, self._address(here), self._rates, up=up))

    def _tell_end(self, here: InView, ended: Decided | Dropped, source: PeerId | None) -> None:
        """To all neighbours but the one it is from: the round in progress is over."""
        lane = self._round.lane
        for peer, at in here.at.items():
            if at == self.committed:
                if isinstance(ended, Decided) and lane.sent_down.get(peer) == ended.total.size:
                    self._emit(fx.Send(peer, Decide(epoch=here.epoch, round=ended.round)))
                    here.at[peer] = ended.round
                elif isinstance(ended, Decided) and ended.view is here.view:
                    size, address = ended.total.size, self._address(here)
                    for send in lane.rest(peer, ended.total, size, address, self._rates, ended.commit):
                        self._emit(send)
                    here.at[peer] = ended.round
                else:
                    self._hand_over(here, peer)
            elif peer != source:  # it is ahead and has waited for us, or waits for the state
                self._emit(fx.Send(peer, self.place.sync(ended.round, self._past.first(ended.round))))

    def _hand_over(self, here: InView, peer: PeerId, have: int = 0) -> None:
        """Give a neighbour that missed it the outcome of past rounds. `have`: what it has of the first one's result."""
        rate = self._rates.of(peer).bytes_per_s
        here.at[peer] = self._past.hand_over(peer, here.at[peer], here.view, rate, have)


def what_is_wrong(total: FloatVector, commit: Commit, view: View | None) -> str:
    """Why a result that has come can't be what its commit says; empty if it can."""
    if digest_of(total) != commit.digest:
        return "does not have the root's digest"
    if commit.dropped is not None and total.size:
        return "is not empty, though the round is dropped"
    return "was decided in an unknown view" if view is None else ""
