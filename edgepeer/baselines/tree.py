"""A tree allreduce without any tolerance; and a synchronous parameter server, which is a tree of height one.

The same tree, segments, buffers, order of additions and frames as ft-tree, and nothing that ft-tree has them for: no
heartbeats, no acknowledgements, no other way. What ft-tree's tolerance costs is measured against this.

    has                | child's Reduce        | Result with its Commit
    -------------------+-----------------------+----------------------------------
    nothing yet        | store                 | -
    own contribution   | store, add, pass up   | store, pass down; commit
    another round      | dropped               | dropped

A link that fails stops the round for ever: until a caller's timeout.
"""

from __future__ import annotations

import numpy as np

from edgepeer.baselines.collective import Collective, weighted
from edgepeer.ids import PeerId
from edgepeer.protocol.events import FloatVector, FrameReceived
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.links import Role
from edgepeer.protocol.rates import Rates
from edgepeer.protocol.streams import Prefix, Shape, Upstream, digest_of
from edgepeer.topology import tree
from edgepeer.topology.view import View
from edgepeer.wire.frames import Commit, Frame, Reduce, Result, pack_set, unpack_set

__all__ = ["Star", "Tree"]


class Tree(Collective):
    """The view's tree."""

    def __init__(self, me: PeerId, limits: Limits) -> None:
        super().__init__(me, limits)
        self._rates = Rates(limits)
        self._streams: dict[PeerId, Upstream] = {}  # the children's partial sums, in position order
        self._partial: FloatVector | None = None  # own vector plus the children's, `_reduced` elements of it
        self._spare: FloatVector | None = None  # an earlier partial sum that nobody reads any more
        self._reuse = False
        self._parent: PeerId | None = None
        self.restart()

    # -- the shape -----------------------------------------------------------------------------------------

    def parent(self, view: View) -> PeerId | None:
        """To whom the sum goes; None at the root."""
        return view.parent(self.me)

    def children(self, view: View) -> dict[PeerId, int]:
        """Who sends sums, in position order, and of which positions."""
        below = {child: tree.subtree(view.position(child), view.fanout, view.size) for child in view.children(self.me)}
        return {child: sum(1 << position for position in positions) for child, positions in below.items()}

    def hops(self, view: View) -> int:
        """Links from the deepest leaf up to the root and down again."""
        return 2 * tree.height(view.fanout, view.size)

    def neighbours(self, view: View) -> tuple[PeerId, ...]:
        parent = self.parent(view)
        return (*((parent,) if parent is not None else ()), *self.children(view))

    def role(self, peer: PeerId) -> Role:
        return "parent" if peer == self._parent else "child"

    def install(self, view: View) -> None:
        self._parent = self.parent(view)
        self._rates.keep(self.neighbours(view), self.hops(view))
        self._streams = {child: Upstream(below, self._rates.of(child)) for child, below in self.children(view).items()}
        self._reuse = False
        super().install(view)

    # -- a round -------------------------------------------------------------------------------------------

    def restart(self) -> None:
        # After a commit nothing of the round is under way to these buffers any more. After an abort it may be.
        self._streams = {
            child: old.emptied() if self._reuse else Upstream(old.allowed, old.rate)
            for child, old in self._streams.items()
        }
        self._spare = self._partial if self._reuse else None
        self._reuse = False
        self._partial = None
        self._shape: Shape | None = None
        self._reduced = self._sent_up = -1
        self._sent_down: dict[PeerId, int] = {}
        self._contributors, self._weight_sum = 0, 0.0
        self._result = Prefix()
        self._commit: Commit | None = None

    @property
    def begun(self) -> bool:
        return super().begun or any(stream.received >= 0 for stream in self._streams.values())

    def missing(self) -> tuple[PeerId, ...]:
        if self.view is None or not self.contributed:
            return ()
        late = sum(stream.allowed for stream in self._streams.values() if stream.received < 0)
        return self.view.names(late) or ((self._parent,) if self._parent is not None else ())

    def begin(self, vector: FloatVector) -> None:
        shape = Shape.of(vector)
        if self._shape is not None and self._shape != shape:
            self._abort("mismatch", f"{self.me} brings {shape}, a peer below it {self._shape}")
            return
        self._shape = shape
        if not self._streams and self._parent is not None and self._weight == 1:
            self._partial = vector  # a leaf sends its vector as it is
        else:
            spare = self._spare
            fits = spare is not None and (spare.size, spare.dtype) == (vector.size, vector.dtype)
            self._partial = spare if fits else np.empty_like(vector)
            if not self._streams:
                weighted(vector, self._weight, self._partial)
        self._advance()

    def moved(self, old: FloatVector, new: FloatVector) -> None:
        if self._partial is old:
            self._partial = new

    # -- frames --------------------------------------------------------------------------------------------

    def _misfit(self, frame: Reduce | Result) -> str | None:
        shape = Shape(frame.total, frame.dtype)
        if self.too_large(shape):
            return f"{shape}, more than the {self._limits.max_vector_bytes} bytes allowed"
        return f"{shape} against {self._shape}" if self._shape is not None and self._shape != shape else None

    def sink(self, peer: PeerId, frame: Reduce | Result, payload_bytes: int) -> memoryview | None:
        prefix = (
            self._streams.get(peer) if isinstance(frame, Reduce) else self._result if peer == self._parent else None
        )
        if prefix is None or not self.current(frame) or self._misfit(frame) is not None:
            return None
        shape = Shape(frame.total, frame.dtype)
        return prefix.room(shape, frame.offset, payload_bytes // shape.itemsize)

    def on_frame(self, peer: PeerId, frame: Frame, event: FrameReceived) -> None:
        if isinstance(frame, Reduce) and self.current(frame):
            self._on_reduce(peer, frame, event)
        elif isinstance(frame, Result) and self.current(frame) and event.stored and peer == self._parent:
            self._on_result(peer, frame, event)

    def _on_reduce(self, peer: PeerId, frame: Reduce, event: FrameReceived) -> None:
        stream = self._streams.get(peer)
        if stream is None:
            return
        if (misfit := self._misfit(frame)) is not None:
            self._abort("mismatch", f"{peer} brings {misfit} at {self.me}")
        elif unpack_set(frame.contributors) != stream.allowed:
            self._fail_link(peer, f"Reduce for {unpack_set(frame.contributors):#x}, not all of its subtree")
        elif event.stored:
            self._shape = Shape(frame.total, frame.dtype)
            stream.weight = frame.weight
            stream.stored(frame.offset, event.payload_bytes // self._shape.itemsize)
            stream.rate.add(event.payload_bytes, event.seconds)
            self._rates.told(peer, frame.rate_bytes_per_s)
            if stream.complete:
                stream.rate.close_round()
            self._advance()

    def _on_result(self, peer: PeerId, frame: Result, event: FrameReceived) -> None:
        shape = Shape(frame.total, frame.dtype)
        self._result.stored(frame.offset, event.payload_bytes // shape.itemsize)
        rate = self._rates.of(peer)
        rate.add(event.payload_bytes, event.seconds)
        self._rates.told(peer, frame.rate_bytes_per_s)
        if frame.commit is not None:
            rate.close_round()
            self._commit = frame.commit
        self._down(self._result.buffer, self._result.received)
        if self._result.complete and self._commit is not None and self._result.buffer is not None:
            self._finish(peer, self._result.buffer, self._commit)

    def _finish(self, peer: PeerId, total: FloatVector, commit: Commit) -> None:
        if digest_of(total) != commit.digest:
            self._fail_link(peer, f"result of round {self.committed + 1} does not have the root's digest")
            return
        self._reuse = True
        if self._partial is self._own:
            self._partial = None  # that memory is the owner's
        self.commit(
            total,
            contributors=unpack_set(commit.contributors),
            weight=commit.weight,
            exact=commit.exact,
            digest=commit.digest,
        )

    # -- going on ------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Add up and send what can be."""
        own, partial = self._own, self._partial
        if own is None or partial is None:
            return
        self._add(own, partial)
        if self._parent is not None:
            self._up(self._parent, partial)
            return
        if self._reduced == partial.size:
            commit = self._commit = Commit(
                decided_in=self._in_view.stamp,
                contributors=pack_set(self._contributors),
                weight=self._weight_sum,
                exact=True,
                digest=digest_of(partial),
            )
            self._down(partial, self._reduced)
            self._reuse, self._partial = True, None  # the buffer is the owner's now
            self.commit(
                partial,
                contributors=self._contributors,
                weight=self._weight_sum,
                exact=True,
                digest=commit.digest,
            )
        else:
            self._down(partial, self._reduced)

    def _add(self, own: FloatVector, partial: FloatVector) -> None:
        """Own vector first, then the children's in position order, as far as all of them have come."""
        ready = own.size
        for number, stream in enumerate(self._streams.values()):
            ready = min(ready, stream.received)
            if ready > stream.added and stream.buffer is not None:
                part = slice(max(stream.added, 0), ready)
                if number == 0 and self._weight == 1:
                    np.add(own[part], stream.buffer[part], out=partial[part])
                else:
                    if number == 0:
                        weighted(own[part], self._weight, partial[part])
                    np.add(partial[part], stream.buffer[part], out=partial[part])
                stream.added = ready
        if ready > self._reduced:
            self._contributors = 1 << self.position | sum(stream.allowed for stream in self._streams.values())
            self._weight_sum = sum((stream.weight for stream in self._streams.values()), self._weight)
            self._reduced = ready

    def _up(self, parent: PeerId, partial: FloatVector) -> None:
        shape = Shape.of(partial)
        for start, end in self._rates.segments(parent, shape, self._sent_up, self._reduced):
            frame = Reduce(
                epoch=self._in_view.stamp,
                round=self.committed + 1,
                offset=start,
                total=shape.total,
                dtype=shape.dtype,
                contributors=pack_set(self._contributors),
                weight=self._weight_sum,
                rate_bytes_per_s=self._rates.of(parent).bytes_per_s,
            )
            self.send(parent, frame, partial[start:end])
            self._sent_up = end

    def _down(self, source: FloatVector | None, ready: int) -> None:
        """To every child what there is of the result; the last segment goes with the commit."""
        if source is None or ready < 0:
            return
        shape = Shape.of(source)
        for child in self._streams:
            for start, end in self._rates.segments(child, shape, self._sent_down.get(child, -1), ready):
                last = end == shape.total
                if last and self._commit is None:
                    break
                frame = Result(
                    epoch=self._in_view.stamp,
                    round=self.committed + 1,
                    offset=start,
                    total=shape.total,
                    dtype=shape.dtype,
                    commit=self._commit if last else None,
                    rate_bytes_per_s=self._rates.of(child).bytes_per_s,
                )
                self.send(child, frame, source[start:end])
                self._sent_down[child] = end


class Star(Tree):
    """A synchronous parameter server: position 0 has all others as its children, whatever the view's fan-out."""

    def parent(self, view: View) -> PeerId | None:
        return None if self.me == view.coordinator else view.coordinator

    def children(self, view: View) -> dict[PeerId, int]:
        if self.me != view.coordinator:
            return {}
        return {peer: 1 << position for position, peer in enumerate(view.ids) if position > 0}

    def hops(self, view: View) -> int:
        return 2
