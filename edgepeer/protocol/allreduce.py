"""Rounds: every peer's vector up the tree, their sum down again, held, and decided.

What a peer may do with the frames of a round, by the stage that it is in (round.py). A frame of another view or round,
or without the state of the run, is dropped; the round in question is committed + 1. Which round that is, and what
becomes of it when views and runs change: course.py.

    comes                     | open (coded rounds)    | closed                   | held
    --------------------------+------------------------+--------------------------+----------------------------------
    the owner's vector        | a mismatch, a promise  | added                    | kept: a round takes one
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
from typing import Protocol

from edgepeer.errors import ProtocolBug
from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.code import Coding
from edgepeer.protocol.course import Course
from edgepeer.protocol.deciding import enough_hold, holding_below, may_say_have
from edgepeer.protocol.events import FloatVector
from edgepeer.protocol.headers import Address, Shape
from edgepeer.protocol.inview import InView
from edgepeer.protocol.lane import Lane, piece
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.past import Decided, Dropped
from edgepeer.protocol.place import UNKNOWN
from edgepeer.protocol.round import Round
from edgepeer.protocol.streams import Held, Prefix
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

    def refuse(self, peer: PeerId, reason: str) -> None:
        """What a peer says of a round can't be."""

    def cut_off(self, peer: PeerId, reason: str) -> None:
        """Let a peer get no more of what was sent to it, whatever that went over."""

    def lend(self) -> None:
        """The owner takes part in another round: what goes up from now on lies in another vector than before."""

    def paths_in_use(self) -> tuple[str, ...]:
        """What the links to parent and children run over."""


class Allreduce:
    """What happens in the rounds of one peer.

    Args:
        course: which of them is in progress.
        limits: how long its vectors may be.
        around: what stands around.
    """

    def __init__(self, course: Course, limits: Limits, around: Around) -> None:
        self._course = course
        self._place = course.place
        self._rates = course.rates
        self._past = course.past
        self._closing = course.closing
        self._limits = limits
        self._around = around
        self._emit = around.emit

    # -- views, and neighbours in them ---------------------------------------------------------------------------

    def install(self, view: View, now: float) -> None:
        """Work in `view` from now on; the round in progress starts again."""
        course = self._course
        course.install(view, now)
        course.begin()
        brings = course.round.brings
        if view.slots and brings.waits and not brings.in_chunks:
            self._refuse_plain()
        self.go_on()

    def on_sync(self, peer: PeerId, committed: int, have: Sequence[int] = (), *, again: bool = False) -> None:
        """A neighbour stands in this view and run, after round `committed`: see `Course.on_sync`."""
        if self._place.here is not None:
            self._course.on_sync(peer, committed, have, again=again)
            self._closing.resend(peer)
            self.go_on()

    # -- contributions -----------------------------------------------------------------------------------------

    def contribute(self, vector: FloatVector, weight: float, now: float, precision: Precision = "float32") -> None:
        """This peer's vector for the next round."""
        rd, view = self._course.round, self._place.view
        if self._course.answer_owed():
            return
        self._around.lend()
        rd.contribute(vector, weight, now, precision)
        if view is not None and view.slots:
            self._refuse_plain()
        elif self._takes(shape := Shape.of(vector, precision)):
            rd.learn_shape(shape)
            self.go_on()

    def _refuse_plain(self) -> None:
        """The owner's vector has no place in coded rounds. It takes part all the same: the end of the round may wait
        for its promise (closing.py)."""
        rd = self._course.round
        self._want_abort("mismatch", f"{self._place.me} brings a plain vector, but rounds are coded here")
        if self._course.round is rd:  # else it is over by that
            self._closing.did({})
            self._after_news()

    def _takes(self, shape: Shape) -> bool:
        """Whether the owner's vector is like the others'; else nothing can come of the round."""
        of = self._course.round.known_shape
        if of is not None and of != shape:
            self._want_abort("mismatch", f"{self._place.me} brings {shape}, a peer below it {of}")
        return of is None or of == shape

    def abandon(self) -> None:
        """The owner does not wait, and the contribution's memory is about to change: go on with a copy."""
        self._close(self._course.round.abandon())

    def end_call(self) -> None:
        """The owner's call is about to end without its round, which others may go on with in the view that this peer
        has to leave: they are to have nothing of what the owner does with the memory next."""
        self._close(self._course.round.call_in())

    def _close(self, lent: Iterable[PeerId]) -> None:
        """Those to whom a contribution's memory may be on its way are to get no more of it."""
        for parent in lent:
            self._around.cut_off(parent, "a contribution was abandoned while it was being sent")

    def time_out(self, reason: str) -> None:
        """This peer gives up on the round."""
        if self._course.contributed:
            self._want_abort("timeout", reason)

    # -- coded rounds: who has computed what, and when the round is closed ---------------------------------------

    def use_code(self, coding: Coding | None) -> None:
        """The owner wants rounds to be coded, or not, in views whose members own slots."""
        if self._closing.use(coding):
            self.go_on()

    def did(self, epoch: int, round_: int, done: Mapping[int, int], now: float, code: str = "") -> None:
        """The owner takes part in a round, and has computed so many chunks for each of its slots, as that code says."""
        rd, view, closing = self._course.round, self._place.view, self._closing
        if view is None or (view.stamp, self._place.committed + 1) != (epoch, round_):
            return
        if not rd.brings.waits:
            if self._course.answer_owed():
                return
            self._around.lend()
            rd.compute(now)
        fits = closing.code is not None and closing.is_for(code)
        if view.slots:
            closing.did(done if fits else {})
        if not fits and closing.closed is None:  # else it is closed without this peer, whatever that computes
            why_not = closing.why_not if closing.code is None else "the round has another"
            self._want_abort("mismatch", f"{self._place.me} computes for a code, but {why_not}")
        self._after_news()

    def encoded(self, epoch: int, round_: int, vector: FloatVector) -> None:
        """What the owner was asked to encode. It must not change until the round is over."""
        rd, view, closing = self._course.round, self._place.view, self._closing
        if view is None or (view.stamp, self._place.committed + 1) != (epoch, round_):
            return
        if rd.closed is None or closing.closed is None or rd.brings.vector is not None:
            return  # or the code is another one by now
        narrow = closing.narrow(self._place.me)
        blocks = closing.code.blocks if narrow is not None and closing.code is not None else 1
        shape = Shape(vector.size * blocks, Shape.of(vector).dtype)
        if self._takes(shape):
            rd.encode(vector, shape)
            self.go_on()

    def on_progress(self, peer: PeerId, frame: Progress) -> None:
        """A child says how far it and those below it are."""
        self._course.throw_away(peer, frame)
        due = peer in self._course.round.lane.streams and not self._place.is_without(peer)
        if due and (wrong := self._closing.on_progress(peer, frame)):
            self._around.refuse(peer, wrong)
        self._after_news()

    def on_release(self, peer: PeerId, frame: Release) -> None:
        """The root has closed the round."""
        self._course.throw_away(peer, frame)
        if wrong := self._closing.on_release(peer, frame):
            self._around.refuse(peer, wrong)
        self._after_news()

    def look_again(self) -> None:
        """Time has passed: a coded round may be closed by its policy."""
        self._closing.judge()
        self._after_news()

    def next_deadline(self) -> float | None:
        """When a coded round may be closed by its policy."""
        return self._closing.next_deadline()

    def _after_news(self) -> None:
        rd, here, closing = self._course.round, self._place.here, self._closing
        if closing.wrong:
            rd.want_abort("mismatch", closing.wrong)
        if rd.abort_wanted is not None:
            self.go_on()  # what has been said may be what it takes
        closed = closing.closed
        if self._course.round is not rd or rd.closed is not None or closed is None or here is None:
            return
        rd.close(closed, closing.columns(rd.lane.streams))
        if not closed.anew and here.has(closed.expected):  # which it is not where it has not the code
            narrow = closing.narrow(self._place.me)
            self._emit(fx.EncodeWanted(here.epoch, self._place.committed + 1, closed.done, narrow))
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
        elif (here := self._at(peer, frame)) is not None:
            rd, dropped = self._course.round, frame.commit is not None and frame.commit.dropped is not None
            if self._misfit(rd, frame):
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

    def _at(self, peer: PeerId, frame: Result | Abort | Have | Decide) -> InView | None:
        """The view, if a frame is of the round in progress, and counts. What is of a later one is asked for again when
        that begins: also if the one before is over by the time when all of a frame is here that has begun to come."""
        self._course.throw_away(peer, frame)
        return self._place.of(peer, frame)

    def _lane_up(self, peer: PeerId, frame: Reduce) -> Lane | None:
        """What a child's segment moves in; None: it is of no round that is in progress, or does not fit into it."""
        rd, wide = self._course.of(peer, frame), _wide(frame)
        if rd is None or not rd.is_child(peer, frame.lane) or self._undue(rd, peer, frame):
            return None
        if self._closing.is_closed_for_another:
            return None
        return rd.part(frame.lane, wide) if not rd.misfit(wide, self._limits.max_vector_bytes) else None

    def _misfit(self, rd: Round, frame: Result) -> str:
        """Why a result can't be this round's; empty if it can. One that was decided in another view is of what others
        have brought: it need not be like this peer's vector."""
        commit = frame.commit
        elsewhere = commit is not None and (commit.dropped is not None or commit.decided_in != frame.epoch)
        return rd.misfit(Shape.said(frame), self._limits.max_vector_bytes, any_shape=elsewhere or rd.anew)

    def _undue(self, rd: Round, peer: PeerId, frame: Reduce) -> str:
        """Why such a thing can't come: of a coded round not before it is closed. Empty if it can."""
        view, due = self._place.view, 1 if frame.lane else rd.lane.streams[peer].blocks
        coded = view is not None and bool(view.slots)
        if coded and frame.precision != "float32":
            return f"Reduce in {frame.precision}, but sums of a code are put together of what was not rounded"
        if frame.blocks == due and (rd.closed is not None or not coded):
            return ""
        return f"Reduce for {frame.blocks} blocks, {due} are due if the round is closed"

    def on_reduce(self, peer: PeerId, frame: Reduce, payload_bytes: int, stored: bool, seconds: float) -> None:
        """A segment of a child's partial sum lies in its buffer (`stored`) or was of no use."""
        rd, wide = self._course.of(peer, frame), _wide(frame)
        if rd is None or not rd.is_child(peer, frame.lane) or self._closing.is_closed_for_another:
            return
        if undue := self._undue(rd, peer, frame):
            self._around.refuse(peer, undue)
            return
        misfit = rd.misfit(wide, self._limits.max_vector_bytes)
        lane = rd.part(frame.lane, wide) if not misfit else None
        contributors = unpack_set(frame.contributors)
        if lane is None:
            if misfit and rd.misfits(peer, frame, f"{peer} brings {misfit} at {self._place.me}", contributors):
                self.go_on()
            return
        stream = lane.streams[peer]
        if astray := _astray(lane, frame, payload_bytes):
            self._around.refuse(peer, f"Reduce {astray}")
        elif contributors != stream.expected or not contributors:
            due = f"Reduce for {contributors:#x}, due from its subtree is {stream.expected:#x}"
            self._around.refuse(peer, due)
        elif stored:
            self._course.note_said_again(peer)
            rd.learn_shape(wide)
            if wrong := lane.stored(peer, frame, contributors, payload_bytes, seconds, self._place.now):
                self._around.refuse(peer, f"Reduce at {frame.offset} {wrong}")
                return
            self._rates.told(peer, frame.rate_bytes_per_s)
            self.go_on(lane if rd is self._course.round else None)
        elif frame.offset > max(stream.received, 0) and not self._course.is_asked_again(peer):
            self._around.refuse(peer, f"Reduce at {frame.offset}, only {stream.received} elements came before")

    def on_result(self, peer: PeerId, frame: Result, payload_bytes: int, stored: bool, seconds: float) -> None:
        """A segment of a result lies in its buffer (`stored`) or was of no use."""
        rd = self._course.round
        told = self._past.told(peer) if frame.commit is not None else None
        if (here := self._at(peer, frame)) is None:
            return
        if frame.up:
            self._on_held(peer, frame, payload_bytes, stored, told)
            return
        if peer in here.at and rd.held is None and (misfit := self._misfit(rd, frame)):
            self._refuse(peer, f"is {misfit}")
            return
        lane = rd.lane if not frame.lane else rd.parts.get(frame.lane)
        if lane is None or lane.result_from != peer:
            if lane is rd.lane and len(here.trees) > 1 and peer in here.at:
                self._on_result_again(here, rd, frame)
            return
        if not stored:
            if astray := _astray(lane, frame, payload_bytes):
                self._refuse(peer, f"comes {astray}")
                return
            self._on_repeated(frame)
            return
        if wrong := lane.result.stored(frame.offset, Shape.said(frame).elements(payload_bytes)):
            self._refuse(peer, f"{wrong}, in a segment at {frame.offset}")
            return
        rate = self._rates.of(peer)
        rate.add(payload_bytes, seconds, self._place.now)
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
        # At once, though it may be held much later: by a peer that is frozen now, when the link it came over is gone.
        whole = not frame.lane and lane.result.complete
        if whole and rd.commit is not None and (wrong := what_is_wrong(lane.result, rd.commit, rd.decided_in)):
            rd.refuse()
            self._refuse(peer, wrong)
            return
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
        stream = self._course.round.lane.streams.get(peer)
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
        rd, commit, here = self._course.round, frame.commit, self._place.here
        if rd.held is None or rd.commit is None or commit is None or here is None:
            return
        if commit.digest == rd.commit.digest:
            if commit.final:
                rd.final()
            self._try_commit(here)

    def on_have(self, peer: PeerId, frame: Have) -> None:
        """A peer behind this one, on the shortest ways from the root, holds the result."""
        here = self._at(peer, frame)
        if here is not None and peer in here.behind:
            self._course.round.on_have(peer, unpack_set(frame.holding))
            self._try_commit(here)

    def on_decide(self, peer: PeerId, frame: Decide) -> None:
        """A neighbour has committed the round."""
        here = self._at(peer, frame)
        if here is not None and (peer == here.parent or (len(here.trees) > 1 and peer in here.at)):
            self._course.round.final()
            self._try_commit(here)

    def on_abort(self, peer: PeerId, frame: Abort) -> None:
        """From below: somebody can't complete the round. From above, or handed over: it is over."""
        here = self._at(peer, frame) if frame.over else None
        if here is not None and peer in here.at:
            self._course.round.drop()
            self._end(Dropped(frame.round, frame.cause, frame.reason), peer)
            self._look_at_early()
        rd = self._course.of(peer, frame) if not frame.over else None
        if rd is not None and peer in rd.lane.streams and rd.asked_to_abort(peer, frame):
            self.go_on()

    # -- going on ----------------------------------------------------------------------------------------------

    def go_on(self, only: Lane | None = None) -> None:
        """Do all that can be done now. `only`: nothing is news but in this lane."""
        rd, place, here = self._course.round, self._place, self._place.here
        if here is None or place.committed == UNKNOWN:
            return
        if place.frozen:
            self._try_commit(here)  # what is decided already still counts
            return
        if rd.prior is not None and here.view.slots:
            self._closing.holds()
        if rd.abort_wanted is not None and self._pass_abort(here, *rd.abort_wanted):
            if here.parent is not None:
                self._try_commit(here)  # what has come is held all the same; a root would put a sum forward
            return
        if rd.held is None and (brought := rd.brought) is not None:
            self._put_forward(here, brought)
        elif rd.held is None:
            lanes = (only,) if only is not None else tuple(rd.parts.values())
            rd.reduce(place.now, lanes)
            if (wrong := rd.not_finite) and rd.want_abort("nonfinite", f"{place.me} {wrong}"):
                self.go_on()
                return
            rd.sum_up_parts(here.view, self._course.origin, lanes)
            self._send_up(here, lanes)
        self._send_down(here, only)
        self._try_commit(here)

    def _try_commit(self, here: InView) -> None:
        """Hold the result, if all of it is here, and commit it, if it counts."""
        rd, frozen = self._course.round, self._place.frozen
        if rd.held is None:
            final = rd.decided or (rd.commit is not None and rd.commit.final)
            if frozen and not final:
                return  # this peer is not to hold anything new
            if rd.lane.result.complete and rd.commit is not None and rd.lane.result.buffer is not None:
                self._hold(here, rd.lane.result.buffer)
            elif (total := rd.assemble(here.view)) is not None:
                self._hold(here, total)
            elif frozen:
                return
            elif here.parent is None and (brought := rd.brought) is not None:
                self._hold(here, rd.put_forward(brought, here.view))
            elif here.parent is None and rd.lane.complete and not rd.anew:
                self._hold(here, rd.sum_up(here.view, self._course.origin))
            else:
                self._say_have(here)  # that of those behind this peer, if it is none of those who must
        if rd.held is not None and (rd.decided if frozen else self._is_decided(here)):
            self._commit(here)
            self._look_at_early()

    def _look_at_early(self) -> None:
        """A round has ended: what has been said of the next one by now is to be passed on."""
        if self._course.round.abort_wanted is not None:
            self.go_on()

    def _hold(self, here: InView, total: FloatVector) -> None:
        """The whole total is here, and is what its commit says."""
        self._course.round.hold(total, self._place.now)
        self._send_down(here)

    def _refuse(self, source: PeerId, wrong: str) -> None:
        self._around.refuse(source, f"result of round {self._place.committed + 1} {wrong}")

    def _is_decided(self, here: InView) -> bool:
        """Whether the round that is held counts. Says to the parent that it is held here when its turn has come."""
        rd = self._course.round
        if rd.decided:
            return True
        if here.parent is None:
            return enough_hold(here, rd)
        self._say_have(here)
        return False

    def _say_have(self, here: InView) -> None:
        rd = self._course.round
        if here.above is None or not may_say_have(here, rd) or not self._place.level(here.above):
            return
        holding = holding_below(here, rd) if rd.closed is not None else 0
        if rd.say_have(holding):
            have = Have(epoch=here.epoch, round=self._place.committed + 1, holding=pack_set(holding))
            self._emit(fx.Send(here.above, have))

    def _commit(self, here: InView) -> None:
        """The total that is held counts."""
        rd, number, now = self._course.round, self._place.committed + 1, self._place.now
        source = rd.lane.result_from
        if len(here.trees) > 1 and (rd.commit is None or not rd.commit.final):
            source = None  # who has sent the result need not know that it counts: it may be for this peer to say so
        counts = rd.decide()
        commit = counts.commit
        if commit.dropped is not None:
            # A sum shows that all have come to the view; that a round is dropped does not, but the root may know.
            heard_of_all = here.parent is None and (rd.heard_of_all or self._closing.free)
            proven = commit.held_in if heard_of_all else None
            self._end(Dropped(number, commit.dropped, commit.reason), source, proven)
            return
        self._end(Decided(number, counts.total, commit, counts.view), source, commit.held_in)
        self._emit(
            fx.RoundCommitted(
                run=self._place.run,
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

    def _end(self, ended: Decided | Dropped, source: PeerId | None, proven: int | None = None) -> None:
        """The round is over, and what this peer has brought is its owner's again. Who was left out of the view may
        still work in the one that some of that was sent in, hold a sum of it, and put that forward in a generation that
        it begins: it is to get no more."""
        rd, here = self._course.round, self._place.here
        lent = sorted(rd.call_in()) if rd.brings.waits and here is not None else []
        self._course.end(ended, source, proven)
        for parent in lent:
            if here is not None and parent not in here.view:
                self._around.cut_off(parent, f"{parent} is out of the view, and what it was sent is over")

    def _want_abort(self, cause: Cause, reason: str) -> None:
        if self._course.round.want_abort(cause, reason):
            self.go_on()

    def _pass_abort(self, here: InView, cause: Cause, reason: str) -> bool:
        """Do what can be done to end the round without a sum. True if it must not go on."""
        # With several trees: whoever finds that its part of a sum can't be rounded never gives it, so nobody will have
        # a sum in this view. That vectors do not fit may be garbage's word; where it is true, some of the coordinator's
        # own part is missing as well.
        rd, never = self._course.round, cause != "timeout"
        open_ = not rd.out or cause == "nonfinite"
        # Whoever can never contribute promises so what others do by contributing; see Round.may_be_decided.
        clear = never and not here.view.slots and rd.clear
        if here.parent is not None:
            if self._place.level(here.parent) and rd.say_abort(clear=clear):
                number = self._place.committed + 1
                frame = Abort(epoch=here.epoch, round=number, cause=cause, reason=reason, over=False, clear=clear)
                self._emit(fx.Send(here.parent, frame))
        elif rd.held is None and open_ and (not rd.may_be_decided or clear or self._closing.free):
            self._hold(here, rd.give_up(here.view, cause, reason))
        elif rd.held is not None or not (here.view.slots or (never and open_)):
            rd.bear()
        return never and rd.held is None and not rd.anew and rd.brought is None

    # -- what goes out -----------------------------------------------------------------------------------------

    def _address(self, here: InView) -> Address:
        return Address(here.epoch, self._place.committed + 1)

    def _send_up(self, here: InView, lanes: Iterable[Lane]) -> None:
        """To the parents what is added up of the sum."""
        rd = self._course.round
        for lane in lanes:
            parent = lane.edges.parent
            if parent is not None and lane.reduced > lane.sent_up and self._place.level(parent):
                if rd.shape is None:
                    raise ProtocolBug("reduced without a vector")
                for send in lane.up(self._address(here), self._rates, lane.shape_of(rd.shape)):
                    self._emit(send)

    def _put_forward(self, here: InView, brought: Held) -> None:
        """To the parent, in the place of a partial sum: what is held here or below from an earlier view."""
        if here.parent is not None and self._place.level(here.parent) and self._course.round.pass_up():
            self._send_whole(here, here.parent, brought, up=True)

    def _send_down(self, here: InView, only: Lane | None = None) -> None:
        """To every child what has come of the result so far. At the root, that is its own partial sum.

        What is put forward again, from another view, goes whole; so does nothing, in the place of a sum.
        """
        rd, lane = self._course.round, self._course.round.lane
        if rd.held_elsewhere(here.view) and (held := rd.holds) is not None:
            for child in lane.streams:
                news = child != lane.result_from and lane.sent_down.get(child) != held.total.size
                if news and self._place.level(child):
                    lane.told(child, held.total.size)
                    self._send_whole(here, child, held)
            return
        for part in (only,) if only is not None and only.number else rd.parts.values():
            commit = part.commit if part.number else rd.commit
            if not part.number and commit is not None and rd.decided_in is not here.view:
                continue  # of another view: whole, once it is held. A part without the commit would be of this one
            if part.streams:
                for send in part.down(self._address(here), self._rates, commit, self._place.level):
                    self._emit(send)

    def _send_whole(self, here: InView, peer: PeerId, held: Held, *, up: bool = False) -> None:
        if held.view is not here.view:
            self._emit(fx.Send(peer, ViewFrame(epoch=held.view.stamp), pack(held.view)))
        rate = self._rates.of(peer).bytes_per_s
        self._emit(piece(peer, held.total, held.commit, self._address(here), rate, up=up))


def _wide(frame: Reduce) -> Shape:
    """The sum that a segment is for."""
    return Shape(frame.total * frame.blocks, frame.dtype, frame.precision)


def _astray(lane: Lane, frame: Reduce | Result, payload_bytes: int) -> str:
    """Why a segment can't be one of that lane's range; empty if it can. Of the whole vector the codec has seen to it,
    which does not know where ranges end."""
    said = Shape.said(frame)
    size, end = lane.shape_of(said).total, frame.offset + said.elements(payload_bytes)
    if end <= size and (end == size or end % said.block == 0):
        return ""
    where = f"at {frame.offset} of lane {frame.lane}, which has {size} elements"
    return where if end > size else f"{where}, and ends within a block, at {end}"


def what_is_wrong(came: Prefix, commit: Commit, view: View | None) -> str:
    """Why a result that has come can't be what its commit says; empty if it can."""
    if came.shape is None or came.shape.precision != commit.precision:
        return f"is not in {commit.precision}, as its commit says"
    if came.digest != commit.digest:
        return "does not have the root's digest"
    if commit.dropped is not None and came.shape.total:
        return "is not empty, though the round is dropped"
    return "was decided in an unknown view" if view is None else ""
