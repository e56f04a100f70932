"""An asynchronous parameter server (thesis §4.1): position 0 answers each peer as it comes, and waits for nobody.

The answer to a peer is the sum over all contributions that have come since the last answer to that peer, its own
included. So over its answers every contribution reaches every peer exactly once, but in portions that differ from
peer to peer: *peers do not commit equal bits*, and their round numbers count their own contributions only.

What an outcome says, since the rule that a number is a sum over a stated set holds here only in this sense:

- `contributors`: whose contributions are in it; a fast peer may be in it with several of its rounds, a slow one not.
- `weight`: the sum of the weights of all of these contributions, several of one peer included.
- `exact`: never. `digest`: of this peer's own bits.

All vectors of a run must have one size and type. The server adds in the order of arrival. An answer that comes after
its addressee's timeout is lost to it.
"""

from __future__ import annotations

import numpy as np

from edgepeer.baselines.collective import Collective, weighted
from edgepeer.errors import ProtocolBug
from edgepeer.ids import PeerId
from edgepeer.protocol.events import FloatVector, FrameReceived
from edgepeer.protocol.headers import Shape
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.streams import as_bytes, digest_of
from edgepeer.topology.view import View
from edgepeer.wire.frames import Abort, Commit, Frame, Reduce, Result, pack_set, unpack_set

__all__ = ["AsyncServer"]


class _Due:
    """What the next answer to a peer will be."""

    __slots__ = ("contributors", "round", "sum", "weight")

    def __init__(self, round_: int) -> None:
        self.round = round_
        """The last one that was answered."""
        self.sum: FloatVector | None = None
        self.contributors = 0
        self.weight = 0.0

    def add(self, position: int, vector: FloatVector, weight: float) -> None:
        if self.sum is None:
            self.sum = vector.copy()
        else:
            np.add(self.sum, vector, out=self.sum)
        self.contributors |= 1 << position
        self.weight += weight


class AsyncServer(Collective):
    """One peer: the server if it stands at position 0, else one of those that it serves."""

    _together = False

    def __init__(self, me: PeerId, limits: Limits) -> None:
        super().__init__(me, limits)
        self._due: dict[PeerId, _Due] = {}
        self._arriving: dict[PeerId, FloatVector] = {}
        self._answer: FloatVector | None = None
        self._shape: Shape | None = None

    # -- the shape -----------------------------------------------------------------------------------------

    def neighbours(self, view: View) -> tuple[PeerId, ...]:
        return view.ids[1:] if self.me == view.coordinator else (view.coordinator,)

    @property
    def _serves(self) -> bool:
        return self._in_view.coordinator == self.me

    def install(self, view: View) -> None:
        self._due = {peer: _Due(view.first_round - 1) for peer in view.ids} if self.me == view.coordinator else {}
        self._arriving.clear()
        self._shape = None
        super().install(view)

    def restart(self) -> None:
        self._answer = None

    @property
    def begun(self) -> bool:
        return super().begun or self._shape is not None

    def missing(self) -> tuple[PeerId, ...]:
        return (self.view.coordinator,) if self.view is not None and self.contributed else ()

    # -- contributions -------------------------------------------------------------------------------------

    def begin(self, vector: FloatVector) -> None:
        if self._serves:
            if self._shape not in (None, shape := Shape.of(vector)):
                self._abort("mismatch", f"{self.me} brings {shape}, the run has {self._shape}")
                return
            self._take(self.me, vector, self._weight)
            total, commit = self._give(self.me, self.committed + 1)
            self._finish(total, commit)
            return
        shape, mine = Shape.of(vector), weighted(vector, self._weight)
        frame = Reduce(
            epoch=self._in_view.stamp,
            round=self.committed + 1,
            offset=0,
            total=shape.total,
            dtype=shape.dtype,
            contributors=pack_set(1 << self.position),
            weight=self._weight,
        )
        self.send(self._in_view.coordinator, frame, mine)

    def _take(self, peer: PeerId, vector: FloatVector, weight: float) -> None:
        """The server has a contribution: it is due to everybody."""
        self._shape = Shape.of(vector)
        mine = weighted(vector, weight) if peer == self.me else vector
        for due in self._due.values():
            due.add(self._in_view.position(peer), mine, weight)

    def _give(self, peer: PeerId, number: int) -> tuple[FloatVector, Commit]:
        """What is due to a peer, which is now told."""
        due, self._due[peer] = self._due[peer], _Due(number)
        if due.sum is None:
            raise ProtocolBug("an answer without the contribution that it answers")
        commit = Commit(
            decided_in=self._in_view.stamp,
            contributors=pack_set(due.contributors),
            weight=due.weight,
            exact=False,
            digest=digest_of(due.sum),
        )
        return due.sum, commit

    # -- frames --------------------------------------------------------------------------------------------

    def sink(self, peer: PeerId, frame: Reduce | Result, payload_bytes: int) -> memoryview | None:
        shape = Shape(frame.total, frame.dtype)
        if frame.offset or payload_bytes != shape.bytes or self.too_large(shape):
            return None
        if isinstance(frame, Reduce):
            if not self._awaited(peer, frame) or self._shape not in (None, shape):
                return None
            buffer = self._arriving.get(peer)
            if buffer is None or Shape.of(buffer) != shape:
                buffer = self._arriving[peer] = np.empty(shape.total, dtype=shape.dtype)
            return as_bytes(buffer)
        if not self.current(frame) or peer != self._in_view.coordinator:
            return None
        self._answer = np.empty(shape.total, dtype=shape.dtype)
        return as_bytes(self._answer)

    def _awaited(self, peer: PeerId, frame: Reduce) -> bool:
        return peer in self._due and peer != self.me and frame.round > self._due[peer].round

    def on_frame(self, peer: PeerId, frame: Frame, event: FrameReceived) -> None:
        if isinstance(frame, Reduce) and frame.epoch == self._in_view.stamp and self._awaited(peer, frame):
            self._on_contribution(peer, frame, event.stored)
        elif isinstance(frame, Result) and self.current(frame) and frame.commit is not None and event.stored:
            if self._answer is None:
                raise ProtocolBug("an answer is stored, but nowhere")
            self._on_answer(peer, self._answer, frame.commit)

    def _on_contribution(self, peer: PeerId, frame: Reduce, stored: bool) -> None:
        shape = Shape(frame.total, frame.dtype)
        if not stored:
            reason = f"{peer} brings {shape}, the run has {self._shape or 'none as large'}"
            epoch = self._in_view.stamp
            self._due[peer].round = frame.round
            self.send(peer, Abort(epoch=epoch, round=frame.round, cause="mismatch", reason=reason, over=True))
            return
        self._take(peer, self._arriving[peer], frame.weight)
        total, commit = self._give(peer, frame.round)
        result = Result(
            epoch=self._in_view.stamp,
            round=frame.round,
            offset=0,
            total=shape.total,
            dtype=shape.dtype,
            commit=commit,
        )
        self.send(peer, result, total)

    def _on_answer(self, peer: PeerId, total: FloatVector, commit: Commit) -> None:
        if digest_of(total) != commit.digest:
            self._fail_link(peer, f"answer to round {self.committed + 1} does not have the server's digest")
        else:
            self._finish(total, commit)

    def _finish(self, total: FloatVector, commit: Commit) -> None:
        self.commit(
            total,
            contributors=unpack_set(commit.contributors),
            weight=commit.weight,
            exact=False,
            digest=commit.digest,
        )
