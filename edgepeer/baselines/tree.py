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

from edgepeer.baselines.collective import Collective
from edgepeer.ids import PeerId
from edgepeer.protocol.events import FloatVector, FrameReceived
from edgepeer.protocol.headers import Address, Shape
from edgepeer.protocol.inview import NOWHERE, Edges
from edgepeer.protocol.lane import Lane
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.links import Role
from edgepeer.protocol.rates import Rates
from edgepeer.protocol.streams import Prefix, digest_of
from edgepeer.topology import tree
from edgepeer.topology.view import View
from edgepeer.wire.frames import Commit, Frame, Reduce, Result, pack_set, unpack_set

__all__ = ["Star", "Tree"]


class Tree(Collective):
    """The view's tree."""

    def __init__(self, me: PeerId, limits: Limits) -> None:
        super().__init__(me, limits)
        self._rates = Rates(limits)
        self._edges = NOWHERE
        self._lane = Lane(NOWHERE, self._rates)
        self._reuse = False
        self._spare: FloatVector | None = None  # an earlier partial sum that nobody reads any more
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
        return "parent" if peer == self._edges.parent else "child"

    def install(self, view: View) -> None:
        self._edges = Edges(self.parent(view), self.children(view), 1 << view.position(self.me))
        self._rates.keep(self.neighbours(view), self.hops(view))
        self._lane, self._reuse = Lane(self._edges, self._rates), False
        super().install(view)

    # -- a round -------------------------------------------------------------------------------------------

    def restart(self) -> None:
        # After a commit nothing of the round is under way to these buffers any more. After an abort it may be.
        before = self._lane if self._reuse else None
        self._lane = Lane(self._edges, self._rates, before=before, spare=self._spare)
        self._spare = None
        self._reuse = False
        self._shape: Shape | None = None
        self._commit: Commit | None = None

    @property
    def begun(self) -> bool:
        return super().begun or any(stream.received >= 0 for stream in self._lane.streams.values())

    def missing(self) -> tuple[PeerId, ...]:
        if self.view is None or not self.contributed:
            return ()
        parent = self._edges.parent
        return self.view.names(self._lane.missing) or ((parent,) if parent is not None else ())

    def begin(self, vector: FloatVector) -> None:
        shape = Shape.of(vector)
        if self._shape is not None and self._shape != shape:
            self._abort("mismatch", f"{self.me} brings {shape}, a peer below it {self._shape}")
            return
        self._shape = shape
        self._advance()

    def moved(self, old: FloatVector, new: FloatVector) -> None:
        self._lane.moved(old, new)

    # -- frames --------------------------------------------------------------------------------------------

    def _misfit(self, frame: Reduce | Result) -> str | None:
        shape = Shape(frame.total, frame.dtype)
        if self.too_large(shape):
            return f"{shape}, more than the {self._limits.max_vector_bytes} bytes allowed"
        return f"{shape} against {self._shape}" if self._shape is not None and self._shape != shape else None

    def sink(self, peer: PeerId, frame: Reduce | Result, payload_bytes: int) -> memoryview | None:
        if not self.current(frame) or self._misfit(frame) is not None:
            return None
        prefix: Prefix | None
        if isinstance(frame, Reduce):
            prefix = self._lane.streams.get(peer)
        else:
            prefix = self._lane.source(peer, anew=False) if peer == self._edges.parent else None
        shape = Shape(frame.total, frame.dtype)
        return prefix.room(shape, frame.offset, payload_bytes // shape.itemsize) if prefix is not None else None

    def on_frame(self, peer: PeerId, frame: Frame, event: FrameReceived) -> None:
        if isinstance(frame, Reduce) and self.current(frame):
            self._on_reduce(peer, frame, event)
        elif isinstance(frame, Result) and self.current(frame) and event.stored and peer == self._edges.parent:
            self._on_result(peer, frame, event)

    def _on_reduce(self, peer: PeerId, frame: Reduce, event: FrameReceived) -> None:
        stream, contributors = self._lane.streams.get(peer), unpack_set(frame.contributors)
        if stream is None:
            return
        if (misfit := self._misfit(frame)) is not None:
            self._abort("mismatch", f"{peer} brings {misfit} at {self.me}")
        elif contributors != stream.allowed:
            self._fail_link(peer, f"Reduce for {contributors:#x}, not all of its subtree")
        elif event.stored:
            self._shape = Shape(frame.total, frame.dtype)
            self._lane.stored(peer, frame, contributors, event.payload_bytes, event.seconds, self._now)
            self._rates.told(peer, frame.rate_bytes_per_s)
            self._advance()

    def _on_result(self, peer: PeerId, frame: Result, event: FrameReceived) -> None:
        result, rate = self._lane.result, self._rates.of(peer)
        result.stored(frame.offset, event.payload_bytes // Shape(frame.total, frame.dtype).itemsize)
        rate.add(event.payload_bytes, event.seconds, self._now)
        self._rates.told(peer, frame.rate_bytes_per_s)
        if frame.commit is not None:
            rate.close_round()
            self._commit = frame.commit
        self._down()
        if result.complete and self._commit is not None and result.buffer is not None:
            self._finish(peer, result.buffer, self._commit)

    def _finish(self, peer: PeerId, total: FloatVector, commit: Commit) -> None:
        if digest_of(total) != commit.digest:
            self._fail_link(peer, f"result of round {self.committed + 1} does not have the root's digest")
            return
        self._over(total, commit)

    def _over(self, total: FloatVector, commit: Commit) -> None:
        self._reuse, self._spare = True, self._lane.reusable(total, self._own)
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
        own, shape, lane = self._own, self._shape, self._lane
        if own is None or shape is None:
            return
        lane.reduce(own, self._weight, shape)
        for send in lane.up(self._address, self._rates, shape):
            self.send_on(send)
        if self._edges.parent is not None or lane.partial is None:
            return
        if lane.complete:
            self._commit = Commit(
                decided_in=self._in_view.stamp,
                contributors=pack_set(lane.contributors),
                weight=lane.weight_sum,
                exact=True,
                digest=digest_of(lane.partial),
            )
        self._down()
        if self._commit is not None:
            self._over(lane.partial, self._commit)

    @property
    def _address(self) -> Address:
        return Address(self._in_view.stamp, self.committed + 1)

    def _down(self) -> None:
        """To every child what there is of the result."""
        for send in self._lane.down(self._address, self._rates, self._commit, lambda peer: True):
            self.send_on(send)


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
