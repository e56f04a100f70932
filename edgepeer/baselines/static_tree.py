"""The fault-tolerant tree of the thesis (Padrão 2020, chapter 6), message for message, with its static timeout.

A peer has links to its parent and children (main), and to brothers and uncles and those whose uncle it is (backup,
§6.1). Data go over main links, metadata over backup links. A *backup* of a node is its brother or its uncle.

    the thesis' message (§6.2, §6.3)    | here                             | what follows at the receiver
    ------------------------------------+----------------------------------+-------------------------------------------
    data_reduce(g), own or forwarded    | Reduce of a child's subtree      | add; meta_reduce_received(child) to that
                                        |                                  | child's backups (Algorithm 1, 10-14)
    meta_reduce_sent(target)            | Meta reduce_sent                 | unless confirmed: start a timer (17-19)
    meta_reduce_received(sender)        | Meta reduce_received             | confirmed (15-16)
    - the timer ends, not confirmed     |                                  | meta_reduce_request (2-5)
    meta_reduce_request()               | Meta reduce_request              | data_reduce_request to who asks (20-21)
    data_reduce_request(target, g)      | Reduce of another one's subtree  | data_reduce(g) to the target (22-23)
    data_bcast(g)                       | Result                           | the first time: metadata to own backups,
                                        |                                  | data to the children, metadata to theirs
                                        |                                  | (Algorithm 2, 5-12)
    meta_bcast_received()               | Meta bcast_received              | that node has it (13-14)
    meta_bcast_sent(k)                  | Meta bcast_sent                  | unless k has it: start a timer (15-17)
    - the timer ends, k has not got it  |                                  | data_bcast(g) to k (1-4)

So the backups find out, one timeout after a node has sent, and a cut link costs a timeout on the way up and one on
the way down; in every round, for nothing is learned from one for the next.

What the thesis leaves open is decided so:

- Data messages are whole vectors, as in the pseudocode, and not cut in segments.
- Data say whose they are by their contributors: the first of them is the node that added them up. Who gets them twice
  takes the first (Algorithm 1, 11); two backups may well forward the same.
- A timer about k ends at a backup that has no result itself (both children of one parent cut off, say): it sends the
  result as soon as it comes (§6.3 assumes that it is there).
- Metadata of a round may come before its receiver has ended the round before: they count for their round. A backup's
  timers for a broadcast outlive its own round.
- Timers run once, and no message is repeated (§6.2 has one request).
- "The brother" and "the uncle" of a binary tree are all brothers and all uncles in a wider one; a node without either
  has no backup, and its link is not tolerated (§6.4: two cut links at the root stop everything).
- Nodes don't fail (§6). Links do, and TCP keeps what it can't deliver: a link that has been silent for two rounds and
  four timeouts, though in each round something is due on it, is closed and dialled anew, so that no queue grows and
  a healed link is used again. Nothing else depends on it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from edgepeer.baselines.collective import Collective, weighted
from edgepeer.baselines.static_record import RESULT, Record, Sum
from edgepeer.ids import PeerId
from edgepeer.protocol.events import FloatVector, FrameReceived
from edgepeer.protocol.headers import Shape
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.links import Role
from edgepeer.protocol.streams import as_bytes, digest_of
from edgepeer.topology import tree
from edgepeer.topology.view import View
from edgepeer.wire.frames import Commit, Frame, Meta, MetaWhat, Reduce, Result, pack_set, unpack_set

__all__ = ["StaticTree"]

_SILENT_ROUNDS: Final = 2
_SILENT_TIMEOUTS: Final = 4


class StaticTree(Collective):
    """One node. `timeout_s`: t of the thesis' pseudocode."""

    def __init__(self, me: PeerId, limits: Limits, timeout_s: float) -> None:
        super().__init__(me, limits)
        self._timeout_s = timeout_s
        self._records: dict[int, Record] = {}
        self._timers: list[tuple[float, int, str, int]] = []  # due, round, "reduce" or "bcast", about whom
        self._spares: list[FloatVector] = []  # buffers of children's data that nobody reads any more
        self._heard: dict[PeerId, tuple[int, float]] = {}  # the round at which, and when, a link was last not silent

    # -- the shape (§6.1) ----------------------------------------------------------------------------------

    def neighbours(self, view: View) -> tuple[PeerId, ...]:
        self._look_around(view)
        around = {*self._up, *self._children, *self._brothers, *self._uncles, *self._nephews}
        return tuple(view.ids[position] for position in sorted(around))

    def _look_around(self, view: View) -> None:
        at, fanout, size = view.position(self.me), view.fanout, view.size
        parent = tree.parent(at, fanout)
        self._up = (parent,) if parent is not None else ()
        self._children = tuple(tree.children(at, fanout, size))
        self._brothers = tree.brothers(at, fanout, size)
        self._uncles = tree.uncles(at, fanout, size)
        self._nephews = tuple(n for brother in self._brothers for n in tree.children(brother, fanout, size))

    def role(self, peer: PeerId) -> Role:
        position = self._in_view.position(peer)
        return "parent" if position in self._up else "child" if position in self._children else "backup"

    def install(self, view: View) -> None:
        self._look_around(view)
        self._records.clear()
        self._timers.clear()
        self._spares.clear()
        self._heard = dict.fromkeys(self.neighbours(view), (view.first_round, self._now))
        super().install(view)

    def _below(self, position: int) -> int:
        view = self._in_view
        return sum(1 << p for p in tree.subtree(position, view.fanout, view.size))

    def _is_parent(self, of: int, peer: PeerId) -> bool:
        view = self._in_view
        return tree.parent(of, view.fanout) == view.position(peer)

    # -- rounds --------------------------------------------------------------------------------------------

    def _record(self, number: int) -> Record | None:
        """Of the last round, the present one, and the next, which others may have begun."""
        if not self.committed <= number <= self.committed + 2:
            return None
        return self._records.setdefault(number, Record())

    def restart(self) -> None:
        """The last round's result is still needed for others; what was before is not."""
        for number in [number for number in self._records if number < self.committed]:
            del self._records[number]
        if (last := self._records.get(self.committed)) is not None:
            last.sums.clear()
            last.arriving.clear()
            last.mine = None
        self._timers = [timer for timer in self._timers if timer[1] >= self.committed]

    @property
    def begun(self) -> bool:
        return super().begun or any(record.sums for record in self._records.values())

    def begin(self, vector: FloatVector) -> None:
        self._reduce()

    def moved(self, old: FloatVector, new: FloatVector) -> None:
        record = self._records.get(self.committed + 1)
        if record is not None and record.mine is not None and record.mine.vector is old:
            record.mine.vector = new

    def missing(self) -> tuple[PeerId, ...]:
        if self.view is None or not self.contributed:
            return ()
        sums = record.sums if (record := self._record(self.committed + 1)) is not None else {}
        late = sum(self._below(child) for child in self._children if child not in sums)
        return self.view.names(late) or tuple(self.view.ids[p] for p in self._up)

    # -- frames --------------------------------------------------------------------------------------------

    def sink(self, peer: PeerId, frame: Reduce | Result, payload_bytes: int) -> memoryview | None:
        shape, record = Shape(frame.total, frame.dtype), self._record(frame.round)
        if record is None or frame.round <= self.committed or frame.offset or payload_bytes != shape.bytes:
            return None
        if self.too_large(shape) or (self._own is not None and self.current(frame) and Shape.of(self._own) != shape):
            return None
        origin = RESULT if isinstance(frame, Result) else _origin(frame)
        if origin in record.sums or origin not in (RESULT, *self._children, *self._brothers, *self._nephews):
            return None
        buffer = next((spare for spare in self._spares if Shape.of(spare) == shape), None)
        if buffer is not None and origin in self._children:
            self._spares = [spare for spare in self._spares if spare is not buffer]
        else:
            buffer = np.empty(shape.total, dtype=shape.dtype)
        record.arriving[origin, peer] = buffer
        return as_bytes(buffer)

    def on_frame(self, peer: PeerId, frame: Frame, event: FrameReceived) -> None:
        self._heard[peer] = self.committed + 1, self._now
        if isinstance(frame, Reduce) and frame.epoch == self._in_view.stamp:
            self._on_data_reduce(peer, frame, event.stored)
        elif isinstance(frame, Result) and self.current(frame) and event.stored:
            self._on_data_bcast(peer, frame)
        elif isinstance(frame, Meta) and frame.epoch == self._in_view.stamp:
            record = self._record(frame.round)
            if record is not None and frame.about < self._in_view.size:
                self._on_meta(peer, frame, record)

    def _on_meta(self, peer: PeerId, frame: Meta, record: Record) -> None:
        sender, about = self._in_view.position(peer), frame.about
        match frame.what:
            case "reduce_sent" if sender in (*self._brothers, *self._nephews):  # Algorithm 1, 17
                if frame.round > self.committed and sender not in record.reduce_received:
                    self._timers.append((self._now + self._timeout_s, frame.round, "reduce", sender))
            case "reduce_received" if self._is_parent(about, peer):  # 15
                record.reduce_received.add(about)
            case "reduce_request" if sender in (*self._brothers, *self._uncles):  # 20
                if record.mine is not None:
                    self._send_sum(peer, frame.round, record.mine)
            case "bcast_received":  # Algorithm 2, 13
                record.bcast_received.add(sender)
            case "bcast_sent" if self._is_parent(about, peer) and about in (*self._brothers, *self._nephews):  # 15
                if about not in record.bcast_received:
                    self._timers.append((self._now + self._timeout_s, frame.round, "bcast", about))

    # -- reduce (Algorithm 1) ------------------------------------------------------------------------------

    def _on_data_reduce(self, peer: PeerId, frame: Reduce, stored: bool) -> None:
        view, record, origin = self._in_view, self._record(frame.round), _origin(frame)
        if record is None or frame.round <= self.committed:
            return
        shape = Shape(frame.total, frame.dtype)
        if self._own is not None and self.current(frame) and Shape.of(self._own) != shape:
            self._abort("mismatch", f"{peer} brings {shape} at {self.me}, which has {Shape.of(self._own)}")
            return
        if not stored or origin >= view.size or unpack_set(frame.contributors) != self._below(origin):
            return
        buffer = record.arriving.pop((origin, peer), None)
        if buffer is None or origin in record.sums:
            return
        brought = Sum(buffer, self._below(origin), frame.weight)
        if origin in (*self._brothers, *self._nephews):  # a data_reduce_request: 22
            target = tree.parent(origin, view.fanout)
            if target is not None:
                self._send_sum(view.ids[target], frame.round, brought)
        elif origin in self._children:  # 10
            record.sums[origin] = brought
            if view.ids[origin] != peer:
                record.via[origin] = peer
            self._tell(self._brothers, frame.round, "reduce_received", origin)
            self._tell(self._children, frame.round, "reduce_received", origin, but=origin)
            self._reduce()

    def _reduce(self) -> None:
        """Received from all children: 6."""
        number, own = self.committed + 1, self._own
        record = self._record(number)
        if own is None or record is None or record.mine is not None or record.sums.keys() != set(self._children):
            return
        wrong = next((s for s in record.sums.values() if Shape.of(s.vector) != Shape.of(own)), None)
        if wrong is not None:
            self._abort("mismatch", f"{self.me} brings {Shape.of(own)}, a peer below it {Shape.of(wrong.vector)}")
            return
        record.mine = self._add([record.sums[child] for child in self._children], own)
        for parent in self._up:
            self._send_sum(self._in_view.ids[parent], number, record.mine)
            self._tell(self._uncles, number, "reduce_sent", parent)
            self._tell(self._brothers, number, "reduce_sent", parent)
        if not self._up:
            commit = Commit(
                decided_in=self._in_view.stamp,
                contributors=pack_set(record.mine.contributors),
                weight=record.mine.weight,
                exact=True,
                digest=digest_of(record.mine.vector),
            )
            self._broadcast(record, record.mine.vector, commit)

    def _add(self, brought: list[Sum], own: FloatVector) -> Sum:
        """Own vector first, then the children's in position order."""
        if not brought and self._up and self._weight == 1:
            total = own  # a leaf sends its vector as it is
        else:
            total = np.empty_like(own)
            if brought and self._weight == 1:
                np.add(own, brought[0].vector, out=total)
            else:
                weighted(own, self._weight, total)
            for number, other in enumerate(brought):
                if number or self._weight != 1:
                    np.add(total, other.vector, out=total)
        contributors = 1 << self.position | sum(other.contributors for other in brought)
        return Sum(total, contributors, sum((other.weight for other in brought), self._weight))

    def _send_sum(self, peer: PeerId, number: int, what: Sum) -> None:
        shape = Shape.of(what.vector)
        frame = Reduce(
            epoch=self._in_view.stamp,
            round=number,
            offset=0,
            total=shape.total,
            dtype=shape.dtype,
            contributors=pack_set(what.contributors),
            weight=what.weight,
        )
        self.send(peer, frame, what.vector)

    # -- broadcast (Algorithm 2) ---------------------------------------------------------------------------

    def _on_data_bcast(self, peer: PeerId, frame: Result) -> None:
        record = self._record(frame.round)
        if record is None or frame.commit is None or self._in_view.position(peer) not in (
            *self._up, *self._brothers, *self._uncles,
        ):  # fmt: skip
            return
        total = record.arriving.pop((RESULT, peer), None)
        if total is None or record.total is not None:
            return
        if digest_of(total) != frame.commit.digest:
            self._fail_link(peer, f"result of round {frame.round} does not have the root's digest")
            return
        if self._in_view.position(peer) not in self._up:
            record.via |= dict.fromkeys(self._up, peer)
        self._broadcast(record, total, frame.commit)

    def _broadcast(self, record: Record, total: FloatVector, commit: Commit) -> None:
        """The result is here for the first time: 6-12."""
        number, ids = self.committed + 1, self._in_view.ids
        record.total, record.commit = total, commit
        self._tell(self._brothers, number, "bcast_received", 0)
        self._tell(self._uncles, number, "bcast_received", 0)
        for child in self._children:
            self._send_result(ids[child], number, record)
            self._tell(self._children, number, "bcast_sent", child, but=child)
            self._tell(self._brothers, number, "bcast_sent", child)
        for late in sorted(record.owed - record.bcast_received):
            self._send_result(ids[late], number, record)
        self._spares = [brought.vector for brought in record.sums.values()]
        self.commit(
            total,
            contributors=unpack_set(commit.contributors),
            weight=commit.weight,
            exact=commit.exact,
            digest=commit.digest,
            paths=tuple(self._path(record, position) for position in (*self._up, *self._children)),
        )
        self._close_silent()

    def _path(self, record: Record, position: int) -> str:
        return f"via {record.via[position]}" if position in record.via else "direct"

    def _send_result(self, peer: PeerId, number: int, record: Record) -> None:
        if record.total is None:
            return
        shape = Shape.of(record.total)
        frame = Result(
            epoch=self._in_view.stamp,
            round=number,
            offset=0,
            total=shape.total,
            dtype=shape.dtype,
            commit=record.commit,
        )
        self.send(peer, frame, record.total)

    # -- metadata and time ---------------------------------------------------------------------------------

    def _tell(self, positions: tuple[int, ...], number: int, what: MetaWhat, about: int, but: int = -1) -> None:
        view = self._in_view
        for position in positions:
            if position != but:
                self.send(view.ids[position], Meta(epoch=view.stamp, round=number, what=what, about=about))

    @property
    def deadline(self) -> float:
        return min((due for due, *_ in self._timers), default=float("inf"))

    def tick(self) -> None:
        due = [timer for timer in self._timers if timer[0] <= self._now]
        self._timers = [timer for timer in self._timers if timer[0] > self._now]
        for _, number, what, about in due:
            record = self._record(number)
            if record is None:
                continue
            if what == "reduce":
                if number > self.committed and about not in record.reduce_received:  # Algorithm 1, 4-5
                    self._tell((about,), number, "reduce_request", 0)
            elif about not in record.bcast_received:  # Algorithm 2, 3-4
                if record.total is None:
                    record.owed.add(about)
                self._send_result(self._in_view.ids[about], number, record)

    def _close_silent(self) -> None:
        """Dial links anew on which something is due in every round, and nothing has come for some."""
        ids = self._in_view.ids
        for position in sorted({*self._up, *self._children, *self._brothers, *self._nephews}):
            peer = ids[position]
            number, at = self._heard[peer]
            silent_s = self._now - at
            if self.committed >= number + _SILENT_ROUNDS and silent_s > _SILENT_TIMEOUTS * self._timeout_s:
                self._heard[peer] = self.committed + 1, self._now
                self._fail_link(peer, f"silent for {silent_s:.1f} s of rounds")


def _origin(frame: Reduce) -> int:
    """The node that has added up what a Reduce brings: the first of its contributors."""
    contributors = unpack_set(frame.contributors)
    return (contributors & -contributors).bit_length() - 1
