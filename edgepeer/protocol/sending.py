"""What a round sends: partial aggregates up, the result down, and how it has ended to whoever needs to know.

the neighbour                  | hears
-------------------------------+----------------------------------------------------------------------
parent, at the same round      | Reduce, segment by segment, as far as all children have come
child, at the same round       | Result, segment by segment; the last one with the commit
any, once the round is over    | Decide, or the rest of the result, or what `Past` hands over, if it
                               | stands before the round's end; a Sync if it is ahead of us, or waits for
                               | the state
"""

from __future__ import annotations

from collections.abc import Callable

from edgepeer.errors import ProtocolBug
from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.events import FloatVector
from edgepeer.protocol.past import Decided, Dropped, Past
from edgepeer.protocol.place import Place
from edgepeer.protocol.rates import Rates
from edgepeer.protocol.round import Round
from edgepeer.protocol.streams import Held, Shape, as_bytes
from edgepeer.wire.documents import pack
from edgepeer.wire.frames import Abort, Cause, Decide, Reduce, Result, ViewFrame, pack_set

__all__ = ["Sending"]


class Sending:
    """The outgoing half of one peer's rounds."""

    def __init__(self, place: Place, past: Past, rates: Rates, emit: Callable[[fx.Effect], None]) -> None:
        self._place = place
        self._past = past
        self._rates = rates
        self._emit = emit

    def up(self, rd: Round) -> None:
        """To the parent what of the partial aggregate is ready and not sent."""
        place, parent = self._place, self._place.parent
        if parent is None or rd.sent_up >= rd.reduced or not place.level(parent):
            return
        if rd.shape is None or rd.partial is None:
            raise ProtocolBug("reduced without a vector")
        rate = self._rates.of(parent).bytes_per_s
        contributors = pack_set(rd.contributors)
        shape = Shape.of(rd.partial)
        for start, end in self._rates.segments(parent, shape, rd.sent_up, rd.reduced):
            frame = Reduce(
                epoch=place.epoch,
                round=place.committed + 1,
                offset=start,
                total=shape.total,
                dtype=shape.dtype,
                contributors=contributors,
                weight=rd.weight_sum,
                rate_bytes_per_s=rate,
                blocks=rd.shape.total // shape.total if shape.total else 1,
            )
            self._emit(fx.Send(parent, frame, as_bytes(rd.partial[start:end])))
            rd.sent_up = end

    def down(self, rd: Round) -> None:
        """To every child what has come of the result so far. At the root, that is its own partial aggregate.

        What is put forward again, from another view, goes whole; so does nothing, in the place of a sum.
        """
        if rd.held_elsewhere(self._place.view) and (held := rd.holds) is not None:
            for child in rd.streams:
                news = child != rd.result_from and rd.sent_down.get(child) != held.total.size
                if news and self._place.level(child):
                    rd.sent_down[child] = held.total.size
                    self._whole(child, held)
            return
        root = self._place.parent is None and rd.result.received < 0
        source, ready = (rd.partial, rd.reduced) if root else (rd.result.buffer, rd.result.received)
        if source is None or ready < 0:
            return
        for child in rd.streams:
            if self._place.level(child):
                self._result(rd, child, source, ready)

    def held(self, rd: Round, brought: Held) -> None:
        """To the parent, in the place of a partial aggregate: what is held here or below from an earlier view."""
        parent = self._place.parent
        if parent is not None and self._place.level(parent) and not rd.passed_up:
            rd.passed_up = True
            self._whole(parent, brought, up=True)

    def _whole(self, peer: PeerId, held: Held, *, up: bool = False) -> None:
        if held.view is not self._place.view:
            self._emit(fx.Send(peer, ViewFrame(epoch=held.view.stamp), pack(held.view)))
        shape = Shape.of(held.total)
        frame = Result(
            epoch=self._place.epoch,
            round=self._place.committed + 1,
            offset=0,
            total=shape.total,
            dtype=shape.dtype,
            commit=held.commit,
            up=up,
            rate_bytes_per_s=self._rates.of(peer).bytes_per_s,
        )
        self._emit(fx.Send(peer, frame, as_bytes(held.total)))

    def _result(self, rd: Round, peer: PeerId, source: FloatVector, ready: int) -> None:
        """The last segment goes with the commit, and not before there is one.

        A commit of another view is for `Past` to hand on, with that view.
        """
        sent = rd.sent_down.get(peer, -1)
        if sent >= ready:
            return
        shape = Shape.of(source)
        for start, end in self._rates.segments(peer, shape, sent, ready):
            last = end == shape.total
            if last and (rd.commit is None or rd.decided_in is not self._place.view):
                return
            frame = Result(
                epoch=self._place.epoch,
                round=self._place.committed + 1,
                offset=start,
                total=shape.total,
                dtype=shape.dtype,
                commit=rd.commit if last else None,
                rate_bytes_per_s=self._rates.of(peer).bytes_per_s,
            )
            self._emit(fx.Send(peer, frame, as_bytes(source[start:end])))
            rd.sent_down[peer] = end

    def ended(self, rd: Round, ended: Decided | Dropped, source: PeerId | None) -> None:
        """To all neighbours but the one it is from: the round in progress is over."""
        place = self._place
        for peer, at in place.at.items():
            if at == place.committed:
                if isinstance(ended, Decided) and rd.sent_down.get(peer) == ended.total.size:
                    self._emit(fx.Send(peer, Decide(epoch=place.epoch, round=ended.round)))
                    place.at[peer] = ended.round
                elif isinstance(ended, Decided) and ended.view is place.view:
                    self._result(rd, peer, ended.total, ended.total.size)
                    place.at[peer] = ended.round
                else:
                    self.hand_over(peer)
            elif peer != source:  # it is ahead and has waited for us, or waits for the state
                self._emit(fx.Send(peer, place.sync(ended.round, self._past.first(ended.round))))

    def hand_over(self, peer: PeerId, have: int = 0) -> None:
        """Give a neighbour that missed it the outcome of past rounds. `have`: what it has of the first one's result."""
        view, at = self._place.view, self._place.at
        if view is not None:
            at[peer] = self._past.hand_over(peer, at[peer], view, self._rates.of(peer).bytes_per_s, have)

    def abort(self, rd: Round, cause: Cause, reason: str) -> None:
        """To the parent: the round can't be completed."""
        place, parent = self._place, self._place.parent
        if parent is not None and place.level(parent) and not rd.abort_sent:
            rd.abort_sent = True
            frame = Abort(epoch=place.epoch, round=place.committed + 1, cause=cause, reason=reason, over=False)
            self._emit(fx.Send(parent, frame))
