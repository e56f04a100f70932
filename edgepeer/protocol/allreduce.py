"""Rounds: every peer's vector up the tree, their sum down again, and the root's commit.

What a peer may do with the frames of a round, by what it has (the round in question is committed + 1):

    has                          | child's Reduce        | Result with its Commit   | own contribution
    -----------------------------+-----------------------+--------------------------+---------------------
    nothing yet                  | store                 | store; commit (handed    | start reducing
                                 |                       | over after a new view)   |
    own contribution             | store, add, pass up   | store, pass down; commit | refused: one a round
    an abort owed for the round  | -                     | -                        | answered at once
    no state of the run yet      | dropped               | dropped                  | kept until the run begins,
                                 |                       |                          | aborted by a state
    another round, another epoch | dropped               | dropped                  | -

An Abort that asks is passed up; one that says that the round is over ends it, whichever neighbour it is from.
The root decides, but not against what an earlier root may have committed: see `Round.may_be_decided`.

A parent adds its own vector and its children's in position order, element ranges as they become complete in
all of them, so the bits do not depend on arrival. Segments go up and down while later ones still come up;
nobody applies anything before the Commit. A round that a new view cuts short starts again under the new
epoch with the contributions kept. Since a round needs the contribution of every member, and whoever has
committed it does not contribute again but hands its result to its neighbours, no round can be committed twice
with different bits by members of one view.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from edgepeer.errors import ProtocolBug
from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.events import FloatVector
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.past import Decided, Dropped, Past
from edgepeer.protocol.place import UNKNOWN, Place
from edgepeer.protocol.rates import Rates
from edgepeer.protocol.round import Round
from edgepeer.protocol.sending import Sending
from edgepeer.protocol.streams import Prefix, Shape, Upstream, digest_of
from edgepeer.topology import tree
from edgepeer.topology.view import View
from edgepeer.wire.frames import Abort, Cause, Commit, Reduce, Result, unpack_set

__all__ = ["Allreduce"]


class Allreduce:
    """The rounds of one peer."""

    def __init__(
        self,
        me: PeerId,
        limits: Limits,
        emit: Callable[[fx.Effect], None],
        fail_link: Callable[..., None],
    ) -> None:
        self._limits = limits
        self._emit = emit
        self._fail_link = fail_link
        self.place = Place(me)
        self._round = Round()
        self._origin: frozenset[PeerId] = frozenset()  # who was in when the round began
        self._past = Past(limits.kept_results, emit)
        self._rates = Rates(limits)
        self._send = Sending(self.place, self._past, self._rates, emit)
        self.own_state: dict[str, int] = {}  # of which run the owner has the state after which round

    # -- views and neighbours ----------------------------------------------------------------------------

    def install(self, view: View, now: float) -> None:
        """Work in `view` from now on; the round in progress starts again."""
        place, rd, joining = self.place, self._round, self.place.view is None
        place.enter(view)
        self._rates.keep(view.neighbours(place.me), 2 * tree.height(view.fanout, view.size))
        rd.spare, rd.since = None, now
        if view.run != place.run:
            self._drop_round("run", "another run has begun")
            place.run = view.run
            place.committed = self.own_state.get(view.run, UNKNOWN) if view.run else view.first_round - 1
        elif joining:
            place.committed = view.first_round - 1
        self._round.may_be_decided |= joining and view.first_round > 1
        if not self._round.begun:
            self._origin = frozenset(view.ids)
        self._restart()
        self._begin()
        self._advance()

    def leave(self, reason: str) -> None:
        """In no view any more."""
        self._drop_round("left", reason)
        self.place.leave()

    def _drop_round(self, cause: Literal["left", "run"], reason: str) -> None:
        if self._round.own is not None:
            self._emit(fx.RoundAborted(self.run, self.committed + 1, cause, reason, mine=True))
        self._round = Round()
        self._past.clear()
        self.place.loading = False

    def _restart(self) -> None:
        view = self.place.view
        streams = {}
        if view is not None:
            for child in self.place.children:
                below = tree.subtree(view.position(child), view.fanout, view.size)
                streams[child] = Upstream(sum(1 << p for p in below), self._rates.of(child))
        self._round.restart(streams)

    def on_sync(self, peer: PeerId, committed: int) -> None:
        """A neighbour stands in this view and run, after round `committed`; all that it lacks is sent again."""
        place = self.place
        if place.at.get(peer) != committed:
            self._round.sent_down.pop(peer, None)
            if peer == place.parent:
                self._round.sent_up, self._round.abort_sent = -1, False
            place.at[peer] = committed
            if committed >= 0 and place.committed >= 0:
                self._send.hand_over(peer)
                if committed > place.committed + 1 and not place.run:
                    self.fall_behind(committed - 1)
        if self._begin() and place.view is not None:
            self._emit(fx.ViewInstalled(place.view))  # so that the application looks again
        self._advance()

    def _begin(self) -> bool:
        """Where nobody has the state of the run, it begins with the root's own."""
        place = self.place
        if not place.run or place.parent is not None or place.committed != UNKNOWN or place.standing != UNKNOWN:
            return False
        place.committed = 0
        return True

    def on_lost(self, peer: PeerId) -> None:
        """A neighbour's link is gone."""
        self.place.at.pop(peer, None)
        self._past.forget(peer)
        if self._round.result_from == peer:
            self._round.result_from = None

    def learn(self, peer: PeerId, view: View) -> None:
        """A neighbour tells of an older view: what it hands over next was decided there."""
        if peer in self.place.at:
            self._past.learn(peer, view)

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
        self.place.committed = committed
        if self.place.view is not None:
            self._origin = frozenset(self.place.view.ids)
        self._restart()

    # -- what is asked from outside ------------------------------------------------------------------------

    @property
    def run(self) -> str:
        """The run that is worked on; empty for plain allreduces."""
        return self.place.run

    @property
    def committed(self) -> int:
        """The last round that is over here; UNKNOWN while the state of the run is still to come."""
        return self.place.committed

    @property
    def receiving(self) -> bool:
        """Whether a neighbour has begun to send the round's result."""
        return self._round.result_from is not None

    @property
    def idle(self) -> bool:
        """Whether the next round has not begun here."""
        return not self._round.begun

    @property
    def contributed(self) -> bool:
        return self._round.own is not None

    @property
    def waiting(self) -> bool:
        """Whether the round waits for this peer's children, and not for itself."""
        return self._round.waits_for_children

    def laggards(self, now: float) -> list[PeerId]:
        """Children that have kept the round waiting for longer than the limit."""
        return self._round.late if self.contributed and now - self._round.since > self._limits.stall_s else []

    def missing(self) -> tuple[PeerId, ...]:
        """Whom the round waits for, as far as this peer can tell."""
        view, parent = self.place.view, self.place.parent
        if view is None or not self.contributed:
            return ()
        return view.names(self._round.missing) or ((parent,) if parent is not None else ())

    # -- contributions -----------------------------------------------------------------------------------------

    def contribute(self, vector: FloatVector, weight: float, now: float) -> None:
        """This peer's vector for the next round."""
        rd = self._round
        if (past := self._past.owed()) is not None:
            self._emit(fx.RoundAborted(self.run, past.round, past.cause, past.reason, mine=True))
            return
        if rd.own is not None:
            raise ProtocolBug(f"two contributions to round {self.committed + 1}")
        rd.own, rd.weight, rd.since = vector, weight, now
        shape = Shape.of(vector)
        if rd.shape is not None and rd.shape != shape:
            self._want_abort("mismatch", f"{self.place.me} brings {shape}, a peer below it {rd.shape}")
            return
        rd.shape = shape
        self._advance()

    def abandon(self) -> None:
        """The contribution's memory is about to change: go on with a copy."""
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
        if not self.place.current(frame) or rd.misfit(shape, self._limits.max_vector_bytes) is not None:
            return None
        prefix = rd.streams.get(peer) if isinstance(frame, Reduce) else rd.source(peer, peer in self.place.at)
        return prefix.room(shape, frame.offset, payload_bytes // shape.itemsize) if prefix is not None else None

    def on_reduce(self, peer: PeerId, frame: Reduce, payload_bytes: int, stored: bool, seconds: float) -> None:
        """A segment of a child's partial aggregate lies in its buffer (`stored`) or was of no use."""
        stream = self._round.streams.get(peer)
        if stream is None or not self.place.current(frame):
            return
        shape = Shape(frame.total, frame.dtype)
        if (misfit := self._round.misfit(shape, self._limits.max_vector_bytes)) is not None:
            self._want_abort("mismatch", f"{peer} brings {misfit} at {self.place.me}")
            return
        contributors = unpack_set(frame.contributors)
        if contributors & ~stream.allowed or not contributors:
            self._fail_link(peer, f"Reduce for {contributors:#x}, its subtree is {stream.allowed:#x}")
        elif stream.received >= 0 and contributors != stream.contributors:
            self._fail_link(peer, "Reduce changes its contributors within a round")
        elif stored:
            self._round.shape = shape
            stream.contributors, stream.weight = contributors, frame.weight
            stream.stored(frame.offset, payload_bytes // shape.itemsize)
            stream.rate.add(payload_bytes, seconds)
            self._rates.told(peer, frame.rate_bytes_per_s)
            if stream.complete:
                stream.rate.close_round()
            self._advance()
        elif frame.offset > max(stream.received, 0):
            self._fail_link(peer, f"Reduce at {frame.offset}, only {stream.received} elements came before")

    def on_result(self, peer: PeerId, frame: Result, payload_bytes: int, stored: bool, seconds: float) -> None:
        """A segment of the root's sum lies in the result buffer (`stored`) or was of no use."""
        rd, view = self._round, self.place.view
        told = self._past.told(peer)
        if view is None or not stored or not self.place.current(frame) or rd.result_from != peer:
            return
        shape = Shape(frame.total, frame.dtype)
        rd.result.stored(frame.offset, payload_bytes // shape.itemsize)
        rate = self._rates.of(peer)
        rate.add(payload_bytes, seconds)
        self._rates.told(peer, frame.rate_bytes_per_s)
        if frame.commit is not None:
            rate.close_round()
            decided_in = told or view
            rd.commit = frame.commit
            rd.decided_in = decided_in if decided_in.epoch == frame.commit.decided_in else None
        self._send.down(self._round)
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

    # -- going on ------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Do all that can be done now."""
        rd, place = self._round, self.place
        if place.view is None or place.committed == UNKNOWN:
            return
        if rd.abort_wanted is not None and self._pass_abort(rd, *rd.abort_wanted):
            return
        if rd.own is not None:
            rd.reduce(1 << place.view.position(place.me), root=place.parent is None)
            self._send.up(rd)
        self._send.down(self._round)
        self._try_commit()

    # -- the end of a round ------------------------------------------------------------------------------

    def _try_commit(self) -> None:
        rd, view = self._round, self.place.view
        if view is None:
            return
        if rd.result.complete and rd.commit is not None and rd.result.buffer is not None:
            self._commit(rd, rd.commit, rd.result.buffer, rd.result_from)
        elif self.place.parent is None and rd.reduced_all and rd.partial is not None:
            self._commit(rd, rd.decide(view, rd.partial, self._origin), rd.partial, None)

    def _commit(self, rd: Round, commit: Commit, total: FloatVector, source: PeerId | None) -> None:
        """Accept the total that `source` has sent; None: that this peer, as the root, has reduced."""
        number, decided_in = self.committed + 1, rd.decided_in
        wrong = "was decided in an unknown view" if decided_in is None else ""
        if source is not None:
            if digest_of(total) != commit.digest:
                wrong = "does not have the root's digest"
            if wrong:
                rd.result, rd.commit, rd.result_from = Prefix(), None, None
                self._fail_link(source, f"result of round {number} {wrong}")
                return
            self.place.at[source] = number
        if decided_in is None:
            raise ProtocolBug("the root decides in its own view")
        total.flags.writeable = False
        mine = rd.own is not None
        self._end(Decided(number, total, commit, decided_in), source)
        self._emit(
            fx.RoundCommitted(
                run=self.run,
                round=number,
                epoch=commit.decided_in,
                sum=total,
                weight=commit.weight,
                contributors=decided_in.names(unpack_set(commit.contributors)),
                exact=commit.exact,
                digest=commit.digest,
                mine=mine,
            )
        )

    def _want_abort(self, cause: Cause, reason: str) -> None:
        if self._round.abort_wanted is None:
            self._round.abort_wanted = (cause, reason[:250])
            self._advance()

    def _pass_abort(self, rd: Round, cause: Cause, reason: str) -> bool:
        """Do what can be done to end the round without a sum. True if nothing else is to be done."""
        if self.place.parent is not None:
            self._send.abort(rd, cause, reason)
        elif cause == "mismatch" or not rd.may_be_decided:
            self._end(Dropped(self.committed + 1, cause, reason), None)
            return True
        else:
            rd.abort_wanted = None
        return cause == "mismatch"

    def _end(self, ended: Decided | Dropped, source: PeerId | None) -> None:
        """The round is over, says `source`: tell the others, and go to the next."""
        rd, view = self._round, self.place.view
        self._past.keep(ended)
        self._send.ended(rd, ended, source)
        self.place.committed = ended.round
        spare = rd.reusable(ended.total) if isinstance(ended, Decided) else None
        if isinstance(ended, Dropped):
            mine = rd.own is not None
            self._emit(fx.RoundAborted(self.run, ended.round, ended.cause, ended.reason, mine=mine))
            if not mine and not self._past.owe(ended):
                self._emit(fx.Behind(ended.round))
        self._round = Round(spare)
        if view is not None:
            self._origin = frozenset(view.ids)
        # A child begins the next round after it has seen this one's result, so its buffer is not read any more.
        self._round.restart({child: old.emptied() for child, old in rd.streams.items()})
