"""How a range of a round's vectors, or all of them, moves over a tree in one view: partial sums up, the result down.

    from a child, front to back  | lies in its stream; is added as far as it has come of all children before it, in
                                 | position order, so the bits do not depend on arrival
    what is added up             | is encoded, if it is to be rounded, and goes up, in segments
    from the parent, or whoever  | lies in the result; goes down as it comes; the last segment with the commit, and not
    hands the result over        | before there is one
    the root's own sum           | is the result; if it is to be rounded, what is decoded of it

Lane 0 is the whole vector, over the first tree. Where a view has several trees, the vector is divided into lanes 1, 2
and so on, each over a tree of its own (`spans`), and nobody contributes to lane 0: by it goes what somebody has whole.

Nothing here knows of rounds, views or commits but what a frame has to say of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from edgepeer.errors import ProtocolBug
from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.encoded import Encoded
from edgepeer.protocol.events import FloatVector
from edgepeer.protocol.headers import Address, Shape
from edgepeer.protocol.inview import Edges
from edgepeer.protocol.rates import Rates
from edgepeer.protocol.streams import Prefix, Upstream, as_bytes, bytes_of, digest_of
from edgepeer.wire.encoding import first_not_finite
from edgepeer.wire.frames import Commit, Reduce, Result, pack_set
from edgepeer.wire.precision import Precision

__all__ = ["Lane", "piece", "spans"]

_ALIGNED: Final = 16
"""Ranges of long vectors begin at multiples of this, which is a cache line of float32."""


def spans(total: int, lanes: int, block: int = 1) -> list[slice]:
    """The ranges of a vector of `total` elements that move over so many trees, of about the same length; some are empty
    if there are fewer blocks of so many elements than trees: these are not cut, so that what parts are encoded to is
    what the whole is."""
    step = max(block, _ALIGNED if total >= 4 * _ALIGNED * lanes else 1)
    cuts = [total * lane // lanes // step * step for lane in range(lanes)]
    return [slice(start, end) for start, end in zip(cuts, [*cuts[1:], total], strict=True)]


class Lane:
    """One range of a round's vectors, at one peer.

    Args:
        edges: the tree that it moves over.
        rates: of the links with parent and children.
        number: what frames call it.
        over: the range of the vector, in elements; None: the whole.
        whole: of how many elements the vector is, if this is a range of it.
        into: where the result is to lie.
        before: the lane of the round before in the same view, whose memory it takes over.
        spare: memory that nobody reads any more, for the sum.
    """

    __slots__ = (
        "commit", "contributors", "edges", "encoded", "given", "into", "not_finite", "number", "over", "partial",
        "reduced", "result", "result_from", "sent_any", "sent_down", "sent_up", "spare", "streams", "verified",
        "weight_sum", "whole",
    )  # fmt: skip

    def __init__(
        self,
        edges: Edges,
        rates: Rates,
        *,
        number: int = 0,
        over: slice | None = None,
        whole: int = 0,
        into: FloatVector | None = None,
        before: Lane | None = None,
        spare: FloatVector | None = None,
    ) -> None:
        self.edges = edges
        self.number = number
        self.over = over
        self.whole = whole
        self.into = into
        self.spare = spare
        self.streams: dict[PeerId, Upstream] = {
            child: before.streams[child].emptied() if before is not None else Upstream(allowed, rates.of(child))
            for child, allowed in edges.below.items()
        }
        """The children's, in position order."""
        self.partial: FloatVector | None = None
        """This peer's vector plus its children's, `reduced` elements of it."""
        self.encoded: Encoded | None = None
        """The same as it travels, if it is to be rounded. At the root `partial` is what is decoded of it."""
        self.not_finite = -1
        """The first element of it that can't be encoded, and ends it; -1: none."""
        self.reduced = -1
        self.contributors = 0
        self.weight_sum = 0.0
        self.sent_up = -1
        """How much of that is on its way to the parent, as far as this peer can tell ..."""
        self.sent_any = False
        """... whether any of it ever was: what has to be sent again may still be on its way all the same ..."""
        self.given = False
        """... and whether all of it ever was: that may have come all the same."""
        self.result = Prefix(buffer=into)
        """The root's sum, as it comes down ..."""
        self.result_from: PeerId | None = None
        """... and from whom."""
        self.commit: Commit | None = None
        """Of a range: what its root says of the sum ..."""
        self.verified = False
        """... and whether all of the sum is here, and is what that says."""
        self.sent_down: dict[PeerId, int] = {}

    # -- what comes ----------------------------------------------------------------------------------------

    @property
    def awaited(self) -> list[Upstream]:
        """The children whose subtrees contribute, in position order."""
        return [stream for stream in self.streams.values() if stream.expected]

    @property
    def _below(self) -> list[PeerId]:
        """Whom what goes up comes from."""
        return [child for child, stream in self.streams.items() if stream.expected]

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

    def stored(
        self, peer: PeerId, frame: Reduce, contributors: int, payload_bytes: int, seconds: float, now: float
    ) -> str:
        """A segment of a child's partial sum lies in its stream. Returns why it is none; empty if it is."""
        stream = self.streams[peer]
        if wrong := stream.stored(frame.offset, Shape.said(frame).elements(payload_bytes)):
            return wrong
        stream.contributors, stream.weight = contributors, frame.weight
        stream.rate.add(payload_bytes, seconds, now)
        if stream.complete:
            stream.rate.close_round()
        return ""

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
        """What has come of the result is not it, or another one comes: elsewhere, as this may be on its way down."""
        self.result, self.commit, self.verified = Prefix(), None, False

    def announce(self, commit: Commit) -> None:
        """What the root of the range says of its sum."""
        self.commit = commit

    def verify(self) -> None:
        """All of the sum is here, and is what the commit says."""
        self.verified = True

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
        """Whether the whole partial sum is on its way up, and need not be sent again."""
        return self.partial is not None and self.sent_up == self.partial.size

    @property
    def out(self) -> bool:
        """Whether all that this peer has to give for the sum is given, so that somebody may have all of it."""
        return self.complete if self.edges.parent is None else self.given

    @property
    def sum(self) -> FloatVector | None:
        """The whole sum of the range; None while it is not here, or not known to be right."""
        if not self.verified:
            return None
        return self.partial if self.edges.parent is None else self.result.buffer

    def shape_of(self, shape: Shape) -> Shape:
        """Of the lane's range of a vector of that shape."""
        return shape if self.over is None else Shape(self.over.stop - self.over.start, shape.dtype, shape.precision)

    def part(self, vector: FloatVector) -> FloatVector:
        """The lane's range of a vector."""
        return vector if self.over is None else vector[self.over]

    @np.errstate(all="ignore")  # what comes of such numbers is the application's, or ends the round
    def reduce(
        self, own: FloatVector | None, weight: float, shape: Shape | None, precision: Precision = "float32"
    ) -> None:
        """Add what has come of the children to this peer's part `own`, if it has one, in position order.

        A child is added as far as all before it have been, so that most of the work is done while the last one's data
        are still on their way; the sum is the same bits whenever it is done.

        Args:
            own: this peer's part, shape (n,) if it is as long as the sum.
            weight: of it.
            shape: of the sum's part; None: not known yet.
            precision: what it travels as.
        """
        if self.not_finite >= 0:
            return
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
            if precision == "float32" or self._encode(precision, max(self.reduced, 0), ready):
                self.reduced = ready

    def _encode(self, precision: Precision, start: int, end: int) -> bool:
        """Round what has been added up; at the root, where that is the result, to what all will have."""
        assert self.partial is not None
        if self.encoded is None:
            self.encoded = Encoded(precision, self.partial.size)
        if not self.encoded.encode(self.partial, start, end):
            self.not_finite = start + first_not_finite(self.partial[start:end])
            return False
        if self.edges.parent is None and (wrong := self.encoded.decode(start, end, self.partial)):
            raise ProtocolBug(f"what was encoded {wrong}")
        return True

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
        if self.edges.parent is None and self.into is not None:
            return self.into  # the root's sum is the result
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

    def lends(self, own: FloatVector) -> bool:
        """Whether memory of this peer's vector may be on its way to the parent."""
        if self.partial is None or not np.may_share_memory(self.partial, own):
            return False  # it is a sum already, and has memory of its own
        return self.sent_any and self.encoded is None

    def moved(self, old: FloatVector, new: FloatVector) -> None:
        """This peer's vector lies elsewhere now."""
        if self.partial is not None and np.may_share_memory(self.partial, old):
            self.partial = self.part(new)

    def reusable(self, total: FloatVector, own: FloatVector | None) -> FloatVector | None:
        """The memory that the next round may reduce in, now that this one has ended with `total`.

        The parent has added all that was sent from it, or there would be no total.
        """
        taken = [vector for vector in (total, own) if vector is not None]
        if (
            self.partial is None
            or not self.partial.size
            or any(np.may_share_memory(self.partial, vector) for vector in taken)
        ):
            return None
        return self.partial

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
        mine = Shape.of(partial) if self.encoded is None else Shape.of(partial, self.encoded.precision)
        contributors, rate = pack_set(self.contributors), rates.of(parent).bytes_per_s
        for start, end in rates.segments(parent, mine, self.sent_up, self.reduced, self._below):
            frame = Reduce(
                epoch=address.epoch,
                round=address.round,
                offset=start,
                total=mine.total if self.over is None else self.whole,
                dtype=mine.dtype,
                contributors=contributors,
                weight=self.weight_sum,
                rate_bytes_per_s=rate,
                blocks=shape.total // mine.total if mine.total else 1,
                lane=self.number,
                precision=mine.precision,
            )
            self.sent_up, self.sent_any, self.given = end, True, self.given or end == mine.total
            payload = as_bytes(partial[start:end]) if self.encoded is None else self.encoded.part(start, end)
            yield fx.Send(parent, frame, payload)

    def down(
        self, address: Address, rates: Rates, commit: Commit | None, level: Callable[[PeerId], bool]
    ) -> Iterator[fx.Send]:
        """To every child that is level what there is of the result."""
        root = self.edges.parent is None and self.result.received < 0
        source, ready = (self.partial, self.reduced) if root else (self.result.buffer, self.result.received)
        if source is None or ready < 0:
            return
        encoded = self.encoded if root else self.result.encoded
        precision = "float32" if encoded is None else encoded.precision
        for child in self.streams:
            if level(child):
                yield from self.rest(child, source, ready, address, rates, commit, precision)

    def rest(
        self,
        peer: PeerId,
        source: FloatVector,
        ready: int,
        address: Address,
        rates: Rates,
        commit: Commit | None,
        precision: Precision = "float32",
    ) -> Iterator[fx.Send]:
        """To a child what it has not been sent of the result, of which `ready` elements lie in `source`. `precision`:
        what it travels as."""
        sent = self.sent_down.get(peer, -1)
        if sent >= ready:
            return
        shape, rate = Shape.of(source, precision), rates.of(peer).bytes_per_s
        above = self.result_from
        sources = self._below if self.edges.parent is None else () if above is None else (above,)
        for start, end in rates.segments(peer, shape, sent, ready, sources):
            last = end == shape.total
            if last and commit is None:
                return
            frame = Result(
                epoch=address.epoch,
                round=address.round,
                offset=start,
                total=shape.total if self.over is None else self.whole,
                dtype=shape.dtype,
                commit=commit if last else None,
                rate_bytes_per_s=rate,
                lane=self.number,
                precision=precision,
            )
            self.sent_down[peer] = end
            yield fx.Send(peer, frame, self._payload(source, start, end, precision))

    def _payload(self, source: FloatVector, start: int, end: int, precision: Precision) -> memoryview:
        """What a range of the result travels as: what it has come as, or has been encoded to here, if that is here."""
        if precision != "float32":
            for vector, encoded in ((self.partial, self.encoded), (self.result.buffer, self.result.encoded)):
                if encoded is None or vector is None or not encoded.is_like(precision, source.size):
                    continue
                if vector is source or np.may_share_memory(vector, source):
                    return encoded.part(start, end)
        return bytes_of(source[start:end], precision)

    def bytes_of_sum(self, precision: Precision) -> memoryview:
        """What the whole sum of the range travels as."""
        if (total := self.sum) is None:
            raise ProtocolBug("no sum yet")
        return self._payload(total, 0, total.size, precision)

    @property
    def digest(self) -> bytes:
        """At the root, which has added up all: of the sum, as it travels."""
        if self.partial is None:
            raise ProtocolBug("nothing is added up")
        return digest_of(self.partial) if self.encoded is None else self.encoded.digest()

    def all_told(self, peer: PeerId) -> bool:
        """Whether the whole result is on its way to a child."""
        size = self.partial.size if self.partial is not None else None
        return size is not None and self.sent_down.get(peer) == size

    def told(self, peer: PeerId, sent: int | None) -> None:
        """A child has so many elements of the result; None: nothing, as far as is known."""
        if sent is None:
            self.sent_down.pop(peer, None)
        else:
            self.sent_down[peer] = sent


def piece(
    peer: PeerId,
    total: FloatVector,
    commit: Commit,
    address: Address,
    rate_bytes_per_s: float,
    *,
    lane: int = 0,
    over: slice | None = None,
    start: int = 0,
    up: bool = False,
) -> fx.Send:
    """Of a result that this peer has whole: all of it, or of one lane's range, from `start` on, at once.

    Args:
        commit: of what is sent.
        over: the lane's range.
        up: whether it goes up, in the place of a partial sum.
    """
    part = total if over is None else total[over]
    shape = Shape.of(total, commit.precision)
    start -= start % shape.block
    frame = Result(
        epoch=address.epoch,
        round=address.round,
        offset=start,
        total=shape.total,
        dtype=shape.dtype,
        commit=commit,
        up=up,
        rate_bytes_per_s=rate_bytes_per_s,
        lane=lane,
        precision=shape.precision,
    )
    return fx.Send(peer, frame, bytes_of(part[start:], shape.precision))


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
