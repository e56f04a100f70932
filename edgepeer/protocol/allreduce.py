"""Rounds: every peer's vector up the tree, their sum down again, and the root's commit.

What a peer may do with the frames of a round, by what it has (the round in question is committed + 1):

    has                          | child's Reduce        | Result with its Commit   | own contribution
    -----------------------------+-----------------------+--------------------------+---------------------
    nothing yet                  | store                 | store; commit (handed    | start reducing
                                 |                       | over after a new view)   |
    own contribution             | store, add, pass up   | store, pass down; commit | refused: one a round
    an abort owed for the round  | -                     | -                        | answered at once
    no state of the run yet      | dropped               | dropped                  | kept until there is
    another round, another epoch | dropped               | dropped                  | -

An Abort from a child is passed up; from the parent, or handed over by a neighbour that is ahead, it ends the round.

A parent adds its own vector and its children's in position order, element ranges as they become complete in
all of them, so the bits do not depend on arrival. Segments go up and down while later ones still come up;
nobody applies anything before the Commit. A round that a new view cuts short starts again under the new
epoch with the contributions kept. Since a round needs the contribution of every member, and whoever has
committed it does not contribute again but hands its result to its neighbours, no round can be committed twice
with different bits by members of one view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Literal

import xxhash

from edgepeer.errors import ProtocolBug
from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.events import FloatVector
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.past import Decided, Dropped, Past
from edgepeer.protocol.rates import Rates
from edgepeer.protocol.round import Round
from edgepeer.protocol.streams import Prefix, Shape, Upstream, as_bytes
from edgepeer.topology import tree
from edgepeer.topology.view import View
from edgepeer.wire.frames import Abort, Cause, Commit, Reduce, Result, Sync, pack_set, unpack_set

__all__ = ["HOPING", "UNKNOWN", "Allreduce"]

UNKNOWN: Final = -1
"""Stands for the last round of a peer that waits for the state of the run."""
HOPING: Final = -2
"""The same, of a peer below which somebody may have the state."""


class Allreduce:
    """The rounds of one peer."""

    def __init__(
        self,
        me: PeerId,
        limits: Limits,
        emit: Callable[[fx.Effect], None],
        fail_link: Callable[[PeerId, str], None],
    ) -> None:
        self._me = me
        self._limits = limits
        self._emit = emit
        self._fail_link = fail_link
        self._view: View | None = None
        self._parent: PeerId | None = None
        self._bit = 0
        self.run = ""
        self.committed = 0
        """The last round that is over here; UNKNOWN while the state of the run is still to come."""
        self._loading = False
        self._at: dict[PeerId, int] = {}  # neighbours in this view and run: the last round that is over there
        self._round = Round()
        self._origin: frozenset[PeerId] = frozenset()  # who was in when the round began
        self._past = Past(limits.kept_results, emit)
        self._rates = Rates(limits)

    # -- views and neighbours ----------------------------------------------------------------------------

    def install(self, view: View) -> None:
        """Work in `view` from now on; the round in progress starts again."""
        self._view = view
        self._parent = view.parent(self._me)
        self._bit = 1 << view.position(self._me)
        self._rates.keep(view.neighbours(self._me), 2 * tree.height(view.fanout, view.size))
        self._at.clear()
        self._round.spare = None
        if view.run != self.run:
            self._end_run("run", "another run has begun")
            self.run = view.run
            self.committed = UNKNOWN if view.run else view.first_round - 1
        elif not view.run and self.committed < view.first_round - 1 and not self._round.begun:
            self.committed = view.first_round - 1
        if not self._round.begun:
            self._origin = frozenset(view.ids)
        self._restart()
        self._begin()
        self._advance()

    def leave(self, reason: str) -> None:
        """In no view any more."""
        self._view = None
        self._parent = None
        self._at.clear()
        self._end_run("left", reason)
        self.run = ""
        self.committed = 0

    def _end_run(self, cause: Literal["left", "run"], reason: str) -> None:
        if self._round.own is not None:
            self._emit(fx.RoundAborted(self.run, self.committed + 1, cause, reason, mine=True))
        self._round = Round()
        self._past.clear()
        self._loading = False

    def _restart(self) -> None:
        view = self._view
        streams = {}
        if view is not None:
            for child in view.children(self._me):
                below = tree.subtree(view.position(child), view.fanout, view.size)
                streams[child] = Upstream(sum(1 << p for p in below), self._rates.of(child))
        self._round.restart(streams)

    def on_sync(self, peer: PeerId, committed: int) -> None:
        """A neighbour stands in this view and run, after round `committed`; all that it lacks is sent again."""
        if self._at.get(peer) != committed:
            self._round.sent_down.pop(peer, None)
            if peer == self._parent:
                self._round.sent_up = -1
            self._at[peer] = committed
            if committed >= 0 and self.committed >= 0:
                self._hand_over(peer)
                if committed > self.committed + 1 and not self.run:
                    self._fall_behind(committed - 1)
        if self._begin() and self._view is not None:
            self._emit(fx.ViewInstalled(self._view))
        self._advance()

    def _begin(self) -> bool:
        """Where nobody has the state of the run, it begins with the root's own."""
        if self.run and self.committed == UNKNOWN and self._parent is None and self.standing == UNKNOWN:
            self.committed = 0
            return True
        return False

    def on_lost(self, peer: PeerId) -> None:
        """A neighbour's link is gone."""
        self._at.pop(peer, None)
        self._past.forget(peer)
        if self._round.result_from == peer:
            self._round.result_from = None

    def learn(self, peer: PeerId, view: View) -> None:
        """A neighbour tells of an older view: what it hands over next was decided there."""
        if peer in self._at:
            self._past.learn(peer, view)

    def adopt(self, committed: int) -> None:
        """The state after round `committed` is in use here."""
        self._loading = False
        if committed > self.committed:
            self._skip(committed)

    def forget(self) -> None:
        """The state of the run is being replaced by a neighbour's: until it is in use, there is none."""
        self._skip(UNKNOWN)
        self._loading = True

    def _skip(self, committed: int) -> None:
        if self._round.own is not None:
            reason = "the run went on without this peer"
            self._emit(fx.RoundAborted(self.run, self.committed + 1, "run", reason, mine=True))
        self._round = Round()
        self._past.clear()
        self.committed = committed
        if self._view is not None:
            self._origin = frozenset(self._view.ids)
        self._restart()

    def _fall_behind(self, committed: int) -> None:
        self._skip(committed)
        self._emit(fx.Behind(committed))

    # -- what is asked from outside ------------------------------------------------------------------------

    @property
    def standing(self) -> int:
        """What neighbours are told: the last round that is over here; UNKNOWN or HOPING without the state."""
        if self.committed != UNKNOWN:
            return self.committed
        below = any(self._at.get(child) != UNKNOWN for child in self._round.streams)
        return HOPING if self._loading or below else UNKNOWN

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

    def laggards(self, now: float) -> Iterator[PeerId]:
        """Children that have kept the round waiting for longer than the limit."""
        if self._round.own is not None and now - self._round.since > self._limits.stall_s:
            for child, stream in self._round.streams.items():
                if not stream.complete:
                    yield child

    def missing(self) -> tuple[PeerId, ...]:
        """Whom the round waits for, as far as this peer can tell."""
        if self._view is None or self._round.own is None:
            return ()
        missing = 0
        for stream in self._round.streams.values():
            missing |= stream.allowed & ~stream.contributors
        return self._view.names(missing) or ((self._parent,) if self._parent is not None else ())

    # -- contributions -----------------------------------------------------------------------------------------

    def contribute(self, vector: FloatVector, weight: float, now: float) -> None:
        """This peer's vector for the next round."""
        if (past := self._past.owed()) is not None:
            self._emit(fx.RoundAborted(self.run, past.round, past.cause, past.reason, mine=True))
            return
        rd = self._round
        if rd.own is not None:
            raise ProtocolBug(f"two contributions to round {self.committed + 1}")
        rd.own, rd.weight, rd.since = vector, weight, now
        shape = Shape.of(vector)
        if rd.shape is not None and rd.shape != shape:
            self._want_abort("mismatch", f"{self._me} brings {shape}, a peer below it {rd.shape}")
            return
        rd.shape = shape
        self._advance()

    def time_out(self, reason: str) -> None:
        """This peer gives up on the round."""
        if self._round.own is not None:
            self._want_abort("timeout", reason)

    # -- frames ------------------------------------------------------------------------------------------

    def _current(self, frame: Reduce | Result | Abort) -> bool:
        return self._view is not None and frame.epoch == self._view.epoch and frame.round == self.committed + 1 > 0

    def sink(self, peer: PeerId, frame: Reduce | Result, payload_bytes: int) -> memoryview | None:
        """Where the payload of a frame that is about to arrive belongs; None if nowhere."""
        rd = self._round
        shape = Shape(frame.total, frame.dtype)
        if not self._current(frame) or self._misfit(shape) is not None:
            return None
        prefix: Prefix | None
        if isinstance(frame, Reduce):
            prefix = rd.streams.get(peer)
        else:
            # One source at a time: nobody writes to a result that another source has completed.
            prefix = rd.result if peer in self._at and rd.result_from in (None, peer) else None
            rd.result_from = peer if prefix is not None else rd.result_from
        return prefix.room(shape, frame.offset, payload_bytes // shape.itemsize) if prefix is not None else None

    def _misfit(self, shape: Shape) -> str | None:
        if shape.bytes > self._limits.max_vector_bytes:
            return f"{shape} is more than the {self._limits.max_vector_bytes} bytes allowed here"
        mine = self._round.shape
        return f"{shape} against {mine} at {self._me}" if mine is not None and mine != shape else None

    def on_reduce(self, peer: PeerId, frame: Reduce, payload_bytes: int, stored: bool, seconds: float) -> None:
        """A segment of a child's partial aggregate lies in its buffer (`stored`) or was of no use."""
        stream = self._round.streams.get(peer)
        if stream is None or not self._current(frame):
            return
        shape = Shape(frame.total, frame.dtype)
        if (misfit := self._misfit(shape)) is not None:
            self._want_abort("mismatch", f"{peer} brings {misfit}")
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
        rd = self._round
        if not stored or not self._current(frame) or rd.result_from != peer:
            return
        shape = Shape(frame.total, frame.dtype)
        rd.result.stored(frame.offset, payload_bytes // shape.itemsize)
        rate = self._rates.of(peer)
        rate.add(payload_bytes, seconds)
        self._rates.told(peer, frame.rate_bytes_per_s)
        if frame.commit is not None:
            rate.close_round()
            rd.commit = frame.commit
            rd.handed_over = frame.commit.decided_in != frame.epoch or self._past.was_told(peer)
        self._pass_down()
        self._try_commit()

    def on_abort(self, peer: PeerId, frame: Abort) -> None:
        """From below: somebody can't complete the round. From above: it is over."""
        if not self._current(frame):
            return
        if peer in self._round.streams:
            self._want_abort(frame.cause, frame.reason)
        elif peer in self._at:
            self._at[peer] = frame.round
            self._end(Dropped(frame.round, frame.cause, frame.reason), peer)

    # -- reduce ------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Do all that can be done now."""
        rd = self._round
        if self._view is None or self.committed == UNKNOWN:
            return
        if rd.abort_wanted is not None:
            self._pass_abort(*rd.abort_wanted)
            return
        if rd.own is not None:
            rd.reduce(self._bit, root=self._parent is None)
            if self._parent is not None:
                self._pass_up(rd, self._parent)
        self._pass_down()
        self._try_commit()

    def _pass_up(self, rd: Round, parent: PeerId) -> None:
        if rd.sent_up >= rd.reduced or self._at.get(parent) != self.committed:
            return
        if rd.shape is None or rd.partial is None:
            raise ProtocolBug("reduced without a vector")
        rate = self._rates.of(parent).bytes_per_s
        contributors = pack_set(rd.contributors)
        for start, end in self._rates.segments(parent, rd.shape, rd.sent_up, rd.reduced):
            frame = Reduce(
                epoch=self._epoch,
                round=self.committed + 1,
                offset=start,
                total=rd.shape.total,
                dtype=rd.shape.dtype,
                contributors=contributors,
                weight=rd.weight_sum,
                rate_bytes_per_s=rate,
            )
            self._emit(fx.Send(parent, frame, as_bytes(rd.partial[start:end])))
            rd.sent_up = end

    # -- broadcast -----------------------------------------------------------------------------------------

    @property
    def _epoch(self) -> int:
        if self._view is None:
            raise ProtocolBug("no view")
        return self._view.epoch

    def _pass_down(self) -> None:
        """To every child what has come of the result so far. At the root, that is its own partial aggregate."""
        rd = self._round
        root = self._parent is None and rd.result.received < 0
        source, ready = (rd.partial, rd.reduced) if root else (rd.result.buffer, rd.result.received)
        if source is None or ready < 0:
            return
        for child in rd.streams:
            if self._at.get(child) == self.committed:
                self._send_result(rd, child, source, ready)

    def _send_result(self, rd: Round, peer: PeerId, source: FloatVector, ready: int) -> None:
        """Send what is ready and not sent; the last segment goes with the commit, and not before there is one.

        A commit of another view is for `Past` to hand on, with that view.
        """
        sent = rd.sent_down.get(peer, -1)
        if sent >= ready:
            return
        shape = Shape.of(source)
        for start, end in self._rates.segments(peer, shape, sent, ready):
            last = end == shape.total
            if last and (rd.commit is None or rd.handed_over):
                return
            frame = Result(
                epoch=self._epoch,
                round=self.committed + 1,
                offset=start,
                total=shape.total,
                dtype=shape.dtype,
                commit=rd.commit if last else None,
                rate_bytes_per_s=self._rates.of(peer).bytes_per_s,
            )
            self._emit(fx.Send(peer, frame, as_bytes(source[start:end])))
            rd.sent_down[peer] = end

    def _tell(self, rd: Round, peer: PeerId, ended: Decided | Dropped) -> None:
        """Let a neighbour know how the round in progress has ended."""
        if isinstance(ended, Decided) and ended.view is self._view:
            self._send_result(rd, peer, ended.total, ended.total.size)
            self._at[peer] = ended.round
        else:
            self._hand_over(peer)

    def _hand_over(self, peer: PeerId) -> None:
        """Give a neighbour that missed it the outcome of past rounds."""
        if self._view is not None:
            rate = self._rates.of(peer).bytes_per_s
            self._at[peer] = self._past.hand_over(peer, self._at[peer], self._view, rate)

    # -- the end of a round ------------------------------------------------------------------------------

    def _try_commit(self) -> None:
        rd, view = self._round, self._view
        if view is None:
            return
        if rd.result.complete and rd.commit is not None and rd.result.buffer is not None:
            self._commit(rd, rd.commit, rd.result.buffer, rd.result_from)
        elif self._parent is None and rd.reduced_all and rd.partial is not None:
            if rd.contributors != view.everyone:
                raise ProtocolBug(f"the root has all children's data but only {rd.contributors:#x}")
            rd.commit = Commit(
                decided_in=view.epoch,
                contributors=pack_set(rd.contributors),
                weight=rd.weight_sum,
                exact=self._origin <= set(view.names(rd.contributors)),
                digest=_digest(rd.partial),
            )
            self._commit(rd, rd.commit, rd.partial, None)

    def _commit(self, rd: Round, commit: Commit, total: FloatVector, source: PeerId | None) -> None:
        """Accept the total that `source` has sent; None: that this peer, as the root, has reduced."""
        view, number = self._view, self.committed + 1
        if view is None:
            raise ProtocolBug("a commit without a view")
        decided_in: View | None = view
        if source is not None:
            decided_in = self._past.decided_in(source, commit, view)
            wrong = "does not have the root's digest" if _digest(total) != commit.digest else ""
            if decided_in is None or wrong:
                rd.result, rd.commit, rd.result_from = Prefix(), None, None
                self._fail_link(source, f"result of round {number} {wrong or 'was decided in an unknown view'}")
                return
            self._at[source] = number
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

    def _pass_abort(self, cause: Cause, reason: str) -> None:
        if self._parent is None:
            self._end(Dropped(self.committed + 1, cause, reason), None)
        elif self._at.get(self._parent) == self.committed:
            self._emit(
                fx.Send(
                    self._parent,
                    Abort(epoch=self._epoch, round=self.committed + 1, cause=cause, reason=reason),
                )
            )

    def _end(self, ended: Decided | Dropped, source: PeerId | None) -> None:
        """The round is over, says `source`: go to the next, and tell the neighbours that don't know it of us."""
        rd = self._round
        self._past.keep(ended)
        for peer, at in self._at.items():
            if at == self.committed:
                self._tell(rd, peer, ended)
            elif peer != source:  # it is ahead and has waited for us, or waits for the state
                self._emit(fx.Send(peer, Sync(epoch=self._epoch, run=self.run, committed=ended.round)))
        self.committed = ended.round
        spare = rd.reusable(ended.total) if isinstance(ended, Decided) else None
        if isinstance(ended, Dropped):
            mine = rd.own is not None
            self._emit(fx.RoundAborted(self.run, ended.round, ended.cause, ended.reason, mine=mine))
            if not mine and not self._past.owe(ended):
                self._emit(fx.Behind(ended.round))
        self._round = Round(spare)
        if self._view is not None:
            self._origin = frozenset(self._view.ids)
        streams = {}
        for child, old in rd.streams.items():
            streams[child] = Upstream(old.allowed, old.rate)
            # The child begins the next round after it has seen this one's result, so nobody reads this any more.
            streams[child].buffer = old.buffer
        self._round.restart(streams)


def _digest(total: FloatVector) -> bytes:
    return xxhash.xxh3_128_digest(as_bytes(total))
