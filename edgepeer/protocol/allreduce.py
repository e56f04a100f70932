"""Rounds: every peer's vector up the tree, their sum down again, and the root's commit.

What a peer may do with the frames of a round, by what it has (the round in question is committed + 1):

    has                          | child's Reduce        | Result with its Commit   | own contribution
    -----------------------------+-----------------------+--------------------------+---------------------
    nothing yet                  | store                 | store; commit (handed    | start reducing
                                 |                       | over after a new view)   |
    own contribution             | store, add, pass up   | store, pass down; commit | refused: one a round
    a coded round, not closed    | costs the link        | as above                 | kept by the owner
    an abort owed for the round  | -                     | -                        | answered at once
    no state of the run yet      | dropped               | dropped                  | kept until the run begins,
                                 |                       |                          | aborted by a state
    another round, another epoch | dropped               | dropped                  | -

An Abort that asks is passed up; one that says that the round is over ends it, whichever neighbour it is from.
The root decides, but not against what an earlier root may have committed: see `Round.may_be_decided`.

A parent adds its own vector and its children's in position order, element ranges as they become complete in
all of them, so the bits do not depend on arrival. Segments go up and down while later ones still come up;
nobody applies anything before it is decided (deciding.py). A round that a new view cuts short starts again under
the new epoch with the contributions kept. Since a round needs the contribution of every member, and whoever has
committed it does not contribute again but hands its result to its neighbours, no round can be committed twice
with different bits by members of one view. Of a coded round, what stands here of a contribution is said of what is
encoded once the root has closed it, and only those contribute who have something to bring (coded_rounds.py).
"""

from __future__ import annotations

from typing import Literal

from edgepeer.errors import ProtocolBug
from edgepeer.ids import Generation, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.coded_rounds import CodedRounds
from edgepeer.protocol.ending import what_is_wrong
from edgepeer.protocol.events import FloatVector
from edgepeer.protocol.past import Dropped
from edgepeer.protocol.place import UNKNOWN
from edgepeer.protocol.round import Round
from edgepeer.protocol.streams import Held, Prefix, Shape, Upstream
from edgepeer.topology import tree
from edgepeer.topology.view import View
from edgepeer.wire.frames import Abort, Reduce, Result, unpack_set

__all__ = ["Allreduce"]


class Allreduce(CodedRounds):
    """The rounds of one peer."""

    # -- views and neighbours ----------------------------------------------------------------------------

    def install(self, view: View, now: float) -> None:
        """Work in `view` from now on; the round in progress starts again."""
        place, rd, joining = self.place, self._round, self.place.view is None
        rd.may_be_decided |= self._coded.spoke
        self._coded.spoke = False
        place.enter(view)
        self._coded.enter(view)
        self._deciding.enter(view)
        self._rates.keep(view.neighbours(place.me), 2 * tree.height(view.fanout, view.size))
        rd.spare, rd.since = None, now
        if view.run != place.run:
            self._drop_round("run", "another run has begun")
            place.run = view.run
            run, number, generation = self._own_state
            mine = bool(view.run) and run == view.run
            place.committed = (number if mine else UNKNOWN) if view.run else view.first_round - 1
            place.restored = generation if mine else None
        elif joining:
            place.committed = view.first_round - 1
        self._round.may_be_decided |= joining and view.first_round > 1
        if not self._round.begun:
            self._origin = frozenset(view.ids)
        self._restart()
        self._begin()
        self._advance()

    def leave(self, reason: str, *, anew: bool = False) -> None:
        """In no view any more. `anew`: since another generation has begun."""
        self._drop_round("anew" if anew else "left", reason)
        self.place.leave()
        self._coded.enter(None)

    def _drop_round(self, cause: Literal["left", "anew", "run"], reason: str) -> None:
        if self._round.mine:
            self._emit(fx.RoundAborted(self.run, self.committed + 1, cause, reason, mine=True))
        self._round = Round()
        self._coded.begin()
        self._past.clear()
        self.place.loading = False

    def _restart(self) -> None:
        view = self.place.view
        streams = {}
        if view is not None:
            for child in self.place.children:
                below = tree.subtree(view.position(child), view.fanout, view.size)
                streams[child] = Upstream(sum(1 << p for p in below), self._rates.of(child))
        rd, coded = self._round, view is not None and bool(view.slots)
        rd.restart(streams)
        if rd.in_chunks or coded:
            rd.own = rd.shape = None  # the owner will encode again, for this view
        if coded and rd.mine and not rd.in_chunks:
            self._want_abort("mismatch", f"{self.place.me} brings a plain vector, but rounds are coded here")

    def have_of(self, peer: PeerId) -> int:
        """How many elements are here of what a neighbour sends in this round: a child up, the parent down."""
        prefix = self._round.streams.get(peer) if peer != self.place.parent else self._round.result
        return max(prefix.received, 0) if prefix is not None else 0

    def on_sync(self, peer: PeerId, committed: int, have: int = 0) -> None:
        """A neighbour stands in this view and run, after round `committed`; all that it lacks is sent again.

        `have`: what it has of this peer's part of the round that comes next there; of one view that is the same bits.
        """
        place = self.place
        if place.at.get(peer) != committed:
            self._round.sent_down.pop(peer, None)
            if have and committed == place.committed and peer in place.children:
                self._round.sent_down[peer] = have
            if peer == place.parent:
                self._round.forget_sent()
                if have and committed == place.committed:
                    self._round.sent_up = have
            place.at[peer] = committed
            if committed >= 0 and place.committed >= 0:
                self._send.hand_over(peer, have if peer in place.children else 0)
                if committed > place.committed + 1 and not place.run:
                    self.fall_behind(committed - 1)
        if self._begin() and place.view is not None:
            self._emit(fx.ViewInstalled(place.view))  # so that the application looks again
        self._coded.resend(peer)
        self._advance()

    def _begin(self) -> bool:
        """Where nobody has the state of the run, it begins with the root's own."""
        place = self.place
        if not place.run or place.parent is not None or place.committed != UNKNOWN or place.standing != UNKNOWN:
            return False
        place.committed = 0
        return True

    def on_lost(self, peer: PeerId) -> bool:
        """A neighbour's link is gone. Returns whether the round's result was to come over it."""
        self.place.at.pop(peer, None)
        self._past.forget(peer)
        interrupted = self._round.result_from == peer
        if interrupted:
            self._round.result_from = None
        return interrupted

    def learn(self, peer: PeerId, view: View) -> None:
        """A neighbour tells of an older view: what it hands over next was decided there."""
        if peer in self.place.at:
            self._past.learn(peer, view)

    def own_state(self, run: str, committed: int, generation: Generation | None) -> None:
        """The owner has the state of a run after round `committed`, from an earlier life in that generation."""
        self._own_state = run, committed, generation
        if run == self.run and self.committed == UNKNOWN and not self.place.loading:
            self.adopt(committed)
            self.place.restored = generation

    def give_up_restored(self) -> None:
        """What is from a checkpoint here has been given up by others: be without a state until theirs is here."""
        self._own_state = "", 0, None
        self.forget()
        self.place.loading = False

    def adopt(self, committed: int) -> None:
        """The state after round `committed` is in use here."""
        self.place.loading = False
        if committed > self.committed:
            self._skip(committed)

    def forget(self) -> None:
        """The state of the run is being replaced by a neighbour's: until it is in use, there is none."""
        self._skip(UNKNOWN)
        self.place.loading = True

    def fall_behind(self, committed: int) -> None:
        """Rounds were decided without this peer, and nobody can tell how."""
        self._skip(committed)
        self._emit(fx.Behind(committed))

    def _skip(self, committed: int) -> None:
        self._drop_round("run", "the run went on without this peer")
        self._round.may_be_decided = True
        self.place.committed, self.place.restored = committed, None
        if self.place.view is not None:
            self._origin = frozenset(self.place.view.ids)
        self._restart()

    # -- what is asked from outside ------------------------------------------------------------------------

    def rate_from(self, peer: PeerId) -> float:
        """How fast this peer receives from a neighbour, in bytes/s; 0 while unknown."""
        return self._rates.of(peer).bytes_per_s if peer in self.place.neighbours else 0.0

    @property
    def receiving(self) -> bool:
        """Whether a neighbour has begun to send the round's result."""
        return self._round.result_from is not None

    @property
    def idle(self) -> bool:
        """Whether the next round has not begun here."""
        return not self._round.begun and not self._coded.begun

    @property
    def contributed(self) -> bool:
        return self._round.mine

    @property
    def needed(self) -> bool:
        """Whether the round in progress may need this peer: for what it brings, or for what it holds."""
        rd, closed = self._round, self._coded.closed
        if rd.held is not None or rd.prior is not None:
            return True
        if not rd.in_chunks:
            return rd.mine
        if closed is not None:
            return self._is_in(closed.expected)
        return self._coded.takes_part and not rd.abandoned

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

    def _is_in(self, positions: int) -> bool:
        view = self.place.view
        return view is not None and bool(positions >> view.position(self.place.me) & 1)

    @property
    def waiting(self) -> bool:
        """Whether the round waits for this peer's children, and not for itself."""
        rd, closed = self._round, self._coded.closed
        if self._coded.code is not None and closed is None:
            return self._coded.waiting
        return bool(rd.late) and (rd.own is not None or (closed is not None and not self._is_in(closed.expected)))

    def laggards(self, now: float) -> list[PeerId]:
        """Children that have kept the round waiting for longer than the limit."""
        rd, stall_s = self._round, self._limits.stall_s
        if self._coded.code is None:
            return rd.late if self.contributed and now - rd.since > stall_s else []
        if self._coded.closed is None:
            return self._coded.stalled(now, stall_s)
        return rd.late if now - self._coded.closed_at > stall_s else []

    def missing(self) -> tuple[PeerId, ...]:
        """Whom the round waits for, as far as this peer can tell."""
        view, parent = self.place.view, self.place.parent
        if view is None or not self.contributed:
            return ()
        late = self._round.missing
        if self._coded.code is not None and self._coded.closed is None:
            late = sum(self._coded.missing(child) for child in self.place.children)
        return view.names(late) or ((parent,) if parent is not None else ())

    # -- contributions -----------------------------------------------------------------------------------------

    def contribute(self, vector: FloatVector, weight: float, now: float) -> None:
        """This peer's vector for the next round."""
        rd = self._round
        if (past := self._past.owed()) is not None:
            self._emit(fx.RoundAborted(self.run, past.round, past.cause, past.reason, mine=True))
            return
        if rd.own is not None:
            raise ProtocolBug(f"two contributions to round {self.committed + 1}")
        rd.own, rd.weight, rd.since, rd.mine = vector, weight, now, True
        if self.place.view is not None and self.place.view.slots:
            self._want_abort("mismatch", f"{self.place.me} brings a plain vector, but rounds are coded here")
            return
        shape = Shape.of(vector)
        if rd.shape is not None and rd.shape != shape:
            self._want_abort("mismatch", f"{self.place.me} brings {shape}, a peer below it {rd.shape}")
            return
        rd.shape = shape
        self._advance()

    def abandon(self) -> None:
        """The owner does not wait, and the contribution's memory is about to change: go on with a copy."""
        self._round.abandoned = True
        if self._round.let_go() and self.place.parent is not None:
            self._fail_link(self.place.parent, "a contribution was abandoned while it was being sent", True)

    def time_out(self, reason: str) -> None:
        """This peer gives up on the round."""
        if self.contributed:
            self._want_abort("timeout", reason)

    # -- frames ------------------------------------------------------------------------------------------

    def sink(self, peer: PeerId, frame: Reduce | Result, payload_bytes: int) -> memoryview | None:
        """Where the payload of a frame that is about to arrive belongs; None if nowhere."""
        rd, shape = self._round, Shape(frame.total, frame.dtype)
        wide = Shape(frame.total * frame.blocks, frame.dtype) if isinstance(frame, Reduce) else shape
        dropped = isinstance(frame, Result) and frame.commit is not None and frame.commit.dropped is not None
        free = isinstance(frame, Result) and (dropped or rd.anew)
        misfit = rd.misfit(wide, self._limits.max_vector_bytes, any_shape=free)
        if not self.place.current(frame) or misfit is not None:
            return None
        prefix: Prefix | None
        if isinstance(frame, Reduce):
            stream = rd.streams.get(peer)
            prefix = stream if stream is not None and self._due(stream, frame) else None
        elif frame.up:
            prefix = rd.streams[peer].held_total if peer in rd.streams else None
        else:
            prefix = rd.source(peer, peer in self.place.at, anew=dropped)
        return prefix.room(shape, frame.offset, payload_bytes // shape.itemsize) if prefix is not None else None

    def on_reduce(self, peer: PeerId, frame: Reduce, payload_bytes: int, stored: bool, seconds: float) -> None:
        """A segment of a child's partial aggregate lies in its buffer (`stored`) or was of no use."""
        stream = self._round.streams.get(peer)
        if stream is None or not self.place.current(frame):
            return
        if not self._due(stream, frame):
            self._fail_link(peer, f"Reduce for {frame.blocks} blocks, {stream.blocks} are due if the round is closed")
            return
        shape, wide = Shape(frame.total, frame.dtype), Shape(frame.total * frame.blocks, frame.dtype)
        if (misfit := self._round.misfit(wide, self._limits.max_vector_bytes)) is not None:
            self._want_abort("mismatch", f"{peer} brings {misfit} at {self.place.me}")
            return
        contributors = unpack_set(frame.contributors)
        if contributors != stream.expected or not contributors:
            self._fail_link(peer, f"Reduce for {contributors:#x}, due from its subtree is {stream.expected:#x}")
        elif stored:
            self._round.shape = wide
            stream.contributors, stream.weight = contributors, frame.weight
            stream.stored(frame.offset, payload_bytes // shape.itemsize)
            stream.rate.add(payload_bytes, seconds)
            self._rates.told(peer, frame.rate_bytes_per_s)
            if stream.complete:
                stream.rate.close_round()
            self._advance()
        elif frame.offset > max(stream.received, 0):
            self._fail_link(peer, f"Reduce at {frame.offset}, only {stream.received} elements came before")

    def _due(self, stream: Upstream, frame: Reduce) -> bool:
        """Whether such a thing can come: of a coded round not before it is closed."""
        view, closed = self.place.view, self._round.closed
        return frame.blocks == stream.blocks and (closed is not None or view is None or not view.slots)

    def on_result(self, peer: PeerId, frame: Result, payload_bytes: int, stored: bool, seconds: float) -> None:
        """A segment of the root's sum lies in the result buffer (`stored`) or was of no use."""
        rd, view = self._round, self.place.view
        told = self._past.told(peer) if frame.commit is not None else None
        if view is None or not self.place.current(frame):
            return
        if frame.up:
            self._on_held(peer, frame, payload_bytes, stored, told)
            return
        if rd.result_from != peer:
            return
        if not stored:
            self._on_repeated(frame)
            return
        shape = Shape(frame.total, frame.dtype)
        rd.result.stored(frame.offset, payload_bytes // shape.itemsize)
        rate = self._rates.of(peer)
        rate.add(payload_bytes, seconds)
        self._rates.told(peer, frame.rate_bytes_per_s)
        if frame.commit is not None:
            rate.close_round()
            rd.commit = frame.commit
            rd.decided_in = next((v for v in (told, view) if v and v.stamp == frame.commit.decided_in), None)
        self._send.down(self._round)
        self._try_commit()

    def _on_held(self, peer: PeerId, frame: Result, payload_bytes: int, stored: bool, told: View | None) -> None:
        """What is held below from an earlier view."""
        stream, shape = self._round.streams.get(peer), Shape(frame.total, frame.dtype)
        if not stored or stream is None:
            return
        stream.held_total.stored(frame.offset, payload_bytes // shape.itemsize)
        total = stream.held_total.buffer
        if frame.commit is None or not stream.held_total.complete or total is None:
            return
        decided_in = told if told is not None and told.stamp == frame.commit.decided_in else None
        if (wrong := what_is_wrong(total, frame.commit, decided_in)) or decided_in is None:
            stream.held_total = Prefix()
            self._refuse(peer, wrong)
            return
        total.flags.writeable = False
        stream.held = Held(total, frame.commit, decided_in)
        self._advance()

    def _on_repeated(self, frame: Result) -> None:
        """After a reconnect the end of a result that is held already: it may say that it counts now."""
        rd, commit = self._round, frame.commit
        if rd.held is not None and rd.commit is not None and commit is not None and commit.digest == rd.commit.digest:
            rd.decided |= commit.final
            self._try_commit()

    def on_abort(self, peer: PeerId, frame: Abort) -> None:
        """From below: somebody can't complete the round. From above, or handed over: it is over."""
        if not self.place.current(frame) or peer not in self.place.at:
            return
        if frame.over:
            self.place.at[peer] = frame.round
            self._end(Dropped(frame.round, frame.cause, frame.reason), peer)
        elif peer in self._round.streams:
            self._want_abort(frame.cause, frame.reason)
