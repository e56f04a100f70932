"""How a range of a round's vectors moves over a tree, in one view: partial sums up, the result down.

    from a child, front to back  | lies in its stream; is added as far as it has come of all children before it, in
                                 | position order, so the bits do not depend on arrival
    what is added up             | goes up, in segments
    from the parent, or whoever  | lies in the result; goes down as it comes; the last segment with the commit, and not
    hands the result over        | before there is one
    the root's own sum           | is the result

Nothing here knows of rounds, views or commits but what a frame has to say of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from edgepeer.errors import ProtocolBug
from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.events import FloatVector
from edgepeer.protocol.inview import Edges
from edgepeer.protocol.rates import Rates
from edgepeer.protocol.streams import Held, Prefix, Shape, Upstream, as_bytes
from edgepeer.wire.frames import Commit, Reduce, Result, pack_set

__all__ = ["Address", "Lane", "whole"]


class Address(msgspec.Struct, frozen=True):
    """What frames of a round are named by."""

    epoch: int
    round: int


class Lane:
    """One range of a round's vectors, at one peer.

    Args:
        edges: the tree that it moves over.
        rates: of the links with parent and children.
        over: the range of the vector, in elements; None: the whole.
        before: the lane of the round before in the same view, whose memory it takes over.
        spare: memory that nobody reads any more, for the sum.
    """

    __slots__ = (
        "contributors", "edges", "over", "partial", "reduced", "result", "result_from", "sent_down", "sent_up", "spare",
        "streams", "weight_sum",
    )  # fmt: skip

    def __init__(
        self,
        edges: Edges,
        rates: Rates,
        *,
        over: slice | None = None,
        before: Lane | None = None,
        spare: FloatVector | None = None,
    ) -> None:
        self.edges = edges
        self.over = over
        self.spare = spare
        self.streams: dict[PeerId, Upstream] = {
            child: before.streams[child].emptied() if before is not None else Upstream(allowed, rates.of(child))
            for child, allowed in edges.below.items()
        }
        """The children's, in position order."""
        self.partial: FloatVector | None = None
        """This peer's vector plus its children's, `reduced` elements of it."""
        self.reduced = -1
        self.contributors = 0
        self.weight_sum = 0.0
        self.sent_up = -1
        self.result = Prefix()
        """The root's sum, as it comes down ..."""
        self.result_from: PeerId | None = None
        """... and from whom."""
        self.sent_down: dict[PeerId, int] = {}

    # -- what comes ----------------------------------------------------------------------------------------

    @property
    def awaited(self) -> list[Upstream]:
        """The children whose subtrees contribute, in position order."""
        return [stream for stream in self.streams.values() if stream.expected]

    @property
    def late(self) -> list[PeerId]:
        """The children whose partial sums are awaited and not complete."""
        return [c for c, stream in self.streams.items() if stream.expected and not stream.complete and not stream.held]

    @property
    def missing(self) -> int:
        """Bit set of the positions below this peer that have not been heard of."""
        return sum(stream.expected for stream in self.streams.values() if not stream.begun)

    def expect(self, positions: int, columns: Mapping[PeerId, FloatVector]) -> None:
        """Only these contribute. `columns`: of children whose vectors are to expand, with which weights."""
        for child, stream in self.streams.items():
            stream.expect(stream.allowed & positions, columns.get(child))

    def stored(self, peer: PeerId, frame: Reduce, contributors: int, payload_bytes: int, seconds: float) -> None:
        """A segment of a child's partial sum lies in its stream."""
        stream = self.streams[peer]
        stream.contributors, stream.weight = contributors, frame.weight
        stream.stored(frame.offset, payload_bytes // (4 if frame.dtype == "<f4" else 8))
        stream.rate.add(payload_bytes, seconds)
        if stream.complete:
            stream.rate.close_round()

    def source(self, peer: PeerId, *, anew: bool) -> Prefix | None:
        """The result, if the peer may write to it: one at a time, or one would write to what another has completed.

        `anew`: it is another one than that which has begun to come.
        """
        if self.result_from not in (None, peer):
            return None
        self.result_from = peer
        if anew:
            self.forget_result()
        return self.result

    def forget_result(self) -> None:
        """What has come of the result is not it, or another one comes."""
        self.result = Prefix()

    def let_go(self, peer: PeerId) -> bool:
        """Nothing more comes from a neighbour for now. Returns whether the result was to."""
        if self.result_from != peer:
            return False
        self.result_from = None
        return True

    # -- the sum -------------------------------------------------------------------------------------------

    @property
    def complete(self) -> bool:
        """Whether all is added up."""
        return self.partial is not None and self.reduced == self.partial.size

    @property
    def all_sent(self) -> bool:
        """Whether the whole partial sum is on its way up."""
        return self.partial is not None and self.sent_up == self.partial.size

    def part(self, vector: FloatVector) -> FloatVector:
        """The lane's range of a vector."""
        return vector if self.over is None else vector[self.over]

    def reduce(self, own: FloatVector | None, weight: float, shape: Shape | None) -> None:
        """Add what has come of the children to this peer's part `own`, if it has one, in position order.

        A child is added as far as all before it have been, so that most of the work is done while the last one's data
        are still on their way; the sum is the same bits whenever it is done.

        Args:
            own: this peer's part, shape (n,) if it is as long as the sum.
            weight: of it.
            shape: of the sum's part; None: not known yet.
        """
        awaited = self.awaited
        if self.partial is None and not self._prepare(own, weight, awaited, shape):
            return
        assert self.partial is not None
        ready = self.partial.size
        step = max((stream.blocks for stream in awaited), default=1)
        for number, stream in enumerate(awaited):
            ready = min(ready, stream.received * stream.blocks)
            ready -= ready % step if ready > 0 else 0
            if ready > stream.added and stream.buffer is not None:
                start = max(stream.added, 0)
                part = slice(start, ready)
                out = self.partial[part]
                if number == 0 and own is not None and weight == 1 and stream.column is None:
                    np.add(own[part], stream.buffer[part], out=out)
                else:
                    if number == 0:
                        _weigh(own[part] if own is not None else None, weight, out)
                    _add(stream, start, ready, out)
                stream.added = ready
        if ready > self.reduced:
            if self.reduced < 0:
                self._count(own is not None, weight)
            self.reduced = ready

    def _prepare(self, own: FloatVector | None, weight: float, awaited: list[Upstream], shape: Shape | None) -> bool:
        """Have memory for the sum. False if it is not known yet how much."""
        if own is None:
            if shape is None or not awaited:
                return False
            self.partial = self._buffer(shape.total, np.dtype(shape.dtype))
        elif not awaited and self.edges.parent is not None and weight == 1:
            self.partial = own  # a leaf sends its vector as it is
        else:
            self.partial = self._buffer(own.size, own.dtype)
            if not awaited:
                _weigh(own, weight, self.partial)
        return True

    def _buffer(self, size: int, dtype: np.dtype[Any]) -> FloatVector:
        if self.spare is not None and self.spare.size == size and self.spare.dtype == dtype:
            return self.spare
        return np.empty(size, dtype)

    def _count(self, own: bool, weight: float) -> None:
        self.contributors, self.weight_sum = (self.edges.bit, weight) if own else (0, 0.0)
        for stream in self.awaited:
            if self.contributors & stream.contributors:
                raise ProtocolBug(f"a contribution would count twice: {stream.contributors:#x}")
            self.contributors |= stream.contributors
            self.weight_sum += stream.weight

    def moved(self, old: FloatVector, new: FloatVector) -> bool:
        """This peer's vector lies elsewhere now. Returns whether its old memory may be on its way to the parent."""
        if self.partial is None or (self.partial is not old and self.partial.base is not old):
            return False  # it is a sum already, and has memory of its own
        self.partial = self.part(new)
        return self.sent_up >= 0

    def reusable(self, total: FloatVector, own: FloatVector | None) -> FloatVector | None:
        """The memory that the next round may reduce in, now that this one has ended with `total`.

        The parent has added all that was sent from it, or there would be no total.
        """
        return self.partial if self.partial is not total and self.partial is not own else None

    # -- what goes -----------------------------------------------------------------------------------------

    def forget_sent(self, sent_up: int = -1) -> None:
        """The parent has to hear everything again, but for so many elements."""
        self.sent_up = sent_up

    def up(self, address: Address, rates: Rates, shape: Shape) -> Iterator[fx.Send]:
        """To the parent what is added up and not sent. `shape`: of the sum's part, which may be longer."""
        parent, partial = self.edges.parent, self.partial
        if parent is None or self.sent_up >= self.reduced:
            return
        if partial is None:
            raise ProtocolBug("reduced without a vector")
        mine = Shape.of(partial)
        contributors, rate = pack_set(self.contributors), rates.of(parent).bytes_per_s
        for start, end in rates.segments(parent, mine, self.sent_up, self.reduced):
            frame = Reduce(
                epoch=address.epoch,
                round=address.round,
                offset=start,
                total=mine.total,
                dtype=mine.dtype,
                contributors=contributors,
                weight=self.weight_sum,
                rate_bytes_per_s=rate,
                blocks=shape.total // mine.total if mine.total else 1,
            )
            self.sent_up = end
            yield fx.Send(parent, frame, as_bytes(partial[start:end]))

    def down(
        self, address: Address, rates: Rates, commit: Commit | None, level: Callable[[PeerId], bool]
    ) -> Iterator[fx.Send]:
        """To every child that is level what there is of the result."""
        root = self.edges.parent is None and self.result.received < 0
        source, ready = (self.partial, self.reduced) if root else (self.result.buffer, self.result.received)
        if source is None or ready < 0:
            return
        for child in self.streams:
            if level(child):
                yield from self.rest(child, source, ready, address, rates, commit)

    def rest(
        self, peer: PeerId, source: FloatVector, ready: int, address: Address, rates: Rates, commit: Commit | None
    ) -> Iterator[fx.Send]:
        """To a child what it has not been sent of the result, of which `ready` elements lie in `source`."""
        sent = self.sent_down.get(peer, -1)
        if sent >= ready:
            return
        shape, rate = Shape.of(source), rates.of(peer).bytes_per_s
        for start, end in rates.segments(peer, shape, sent, ready):
            last = end == shape.total
            if last and commit is None:
                return
            frame = Result(
                epoch=address.epoch,
                round=address.round,
                offset=start,
                total=shape.total,
                dtype=shape.dtype,
                commit=commit if last else None,
                rate_bytes_per_s=rate,
            )
            self.sent_down[peer] = end
            yield fx.Send(peer, frame, as_bytes(source[start:end]))

    def told(self, peer: PeerId, sent: int | None) -> None:
        """A child has so many elements of the result; None: nothing, as far as is known."""
        if sent is None:
            self.sent_down.pop(peer, None)
        else:
            self.sent_down[peer] = sent


def whole(peer: PeerId, held: Held, address: Address, rates: Rates, *, up: bool) -> fx.Send:
    """A result that is put forward again, at once."""
    shape = Shape.of(held.total)
    frame = Result(
        epoch=address.epoch,
        round=address.round,
        offset=0,
        total=shape.total,
        dtype=shape.dtype,
        commit=held.commit,
        up=up,
        rate_bytes_per_s=rates.of(peer).bytes_per_s,
    )
    return fx.Send(peer, frame, as_bytes(held.total))


def _add(stream: Upstream, start: int, end: int, out: FloatVector) -> None:
    if stream.buffer is None:
        raise ProtocolBug("nothing has come that could be added")
    if stream.column is None:
        np.add(out, stream.buffer[start:end], out=out)
        return
    rows, narrow = out.reshape(-1, stream.blocks), stream.buffer[start // stream.blocks : end // stream.blocks]
    for block, weight in enumerate(stream.column):
        rows[:, block] += narrow * narrow.dtype.type(weight)


def _weigh(own: FloatVector | None, weight: float, out: FloatVector) -> None:
    if own is None or weight == 0:
        out.fill(0)  # whatever the vector holds, NaN included, counts for nothing
    else:
        np.multiply(own, weight, out=out)
