"""Ring allreduce: reduce-scatter, then allgather, along the view's order (Patarasuk and Yuan 2009; thesis §5.2).

The vector is cut in as many chunks as there are peers. Peer p begins with chunk p; each step, every peer passes on to
its successor what it has just got from its predecessor: for n - 1 steps with its own vector added, for n - 1 more as
it is. A chunk is a Reduce frame throughout, and it is final when all peers are among its contributors.

    frame k of a round, from the predecessor p - 1 | is chunk      | contributors
    -----------------------------------------------+---------------+-------------------------------
    k < n - 1                                      | p - 1 - k     | p - 1 - k, ..., p - 1
    k >= n - 1                                     | p - (k-(n-1)) | all

Every chunk begins at another peer, so the order of additions differs between chunks, but not between peers: all
commit the same bits. A link that fails stops the round for ever: until a caller's timeout.
"""

from __future__ import annotations

import numpy as np

from edgepeer.baselines.collective import Collective, weighted
from edgepeer.ids import PeerId
from edgepeer.protocol.events import FloatVector, FrameReceived
from edgepeer.protocol.headers import Shape
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.streams import as_bytes, digest_of
from edgepeer.topology.view import View
from edgepeer.wire.frames import Frame, Reduce, Result, pack_set, unpack_set

__all__ = ["Ring"]


class Ring(Collective):
    """One peer of the ring."""

    def __init__(self, me: PeerId, limits: Limits) -> None:
        super().__init__(me, limits)
        self.restart()

    # -- the shape -----------------------------------------------------------------------------------------

    def neighbours(self, view: View) -> tuple[PeerId, ...]:
        return tuple({self._beside(view, -1): None, self._beside(view, 1): None})

    def _beside(self, view: View, step: int) -> PeerId:
        return view.ids[(view.position(self.me) + step) % view.size]

    def _chunk(self, chunk: int, total: int) -> slice:
        n = self._in_view.size
        return slice(total * chunk // n, total * (chunk + 1) // n)

    def _expected(self, k: int) -> tuple[int, int]:
        """Chunk and contributors of the k-th frame of a round."""
        n, p = self._in_view.size, self.position
        if k >= n - 1:
            return (p - (k - (n - 1))) % n, self._in_view.everyone
        return (p - 1 - k) % n, sum(1 << (p - 1 - j) % n for j in range(k + 1))

    # -- a round -------------------------------------------------------------------------------------------

    def restart(self) -> None:
        self._shape: Shape | None = None
        self._mine: FloatVector | None = None  # own vector, weighted
        self._sums: FloatVector | None = None  # chunks as they come, then the result
        self._came: list[float] = []  # weights of the frames that have come
        self._done = 0  # how many of them have been worked on
        self._weight_sum = 0.0

    @property
    def begun(self) -> bool:
        return super().begun or bool(self._came)

    def missing(self) -> tuple[PeerId, ...]:
        return (self._beside(self.view, -1),) if self.view is not None and self.contributed else ()

    def begin(self, vector: FloatVector) -> None:
        shape = Shape.of(vector)
        if self._shape is not None and self._shape != shape:
            self._abort("mismatch", f"{self.me} brings {shape}, its predecessor {self._shape}")
            return
        self._shape = shape
        self._mine = weighted(vector, self._weight)
        if self._sums is None:
            self._sums = np.empty_like(vector)
        if self._in_view.size == 1:
            self._sums[:] = self._mine
            self._finish(self._sums, self._weight)
            return
        self._pass_on(self.position, self._mine, 1 << self.position, self._weight)
        self._work()

    def moved(self, old: FloatVector, new: FloatVector) -> None:
        if self._mine is old:
            self._mine = new

    def _misfit(self, frame: Reduce) -> str | None:
        shape = Shape(frame.total, frame.dtype)
        if self.too_large(shape):
            return f"{shape}, more than the {self._limits.max_vector_bytes} bytes allowed"
        return f"{shape} against {self._shape}" if self._shape is not None and self._shape != shape else None

    def sink(self, peer: PeerId, frame: Reduce | Result, payload_bytes: int) -> memoryview | None:
        if not isinstance(frame, Reduce) or not self._fits(peer, frame):
            return None
        shape = Shape(frame.total, frame.dtype)
        part = self._chunk(self._expected(len(self._came))[0], shape.total)
        if (frame.offset, payload_bytes) != (part.start, (part.stop - part.start) * shape.itemsize):
            return None
        if self._sums is None:
            self._sums = np.empty(shape.total, dtype=shape.dtype)
        self._shape = shape
        return as_bytes(self._sums[part])

    def _fits(self, peer: PeerId, frame: Reduce) -> bool:
        view = self._in_view
        awaited = self.current(frame) and peer == self._beside(view, -1) and len(self._came) < 2 * (view.size - 1)
        return awaited and self._misfit(frame) is None

    def on_frame(self, peer: PeerId, frame: Frame, event: FrameReceived) -> None:
        if not isinstance(frame, Reduce) or not self.current(frame) or peer != self._beside(self._in_view, -1):
            return
        if (misfit := self._misfit(frame)) is not None:
            self._abort("mismatch", f"{peer} brings {misfit} at {self.me}")
        elif not event.stored or unpack_set(frame.contributors) != self._expected(len(self._came))[1]:
            self._fail_link(peer, f"Reduce at {frame.offset} of {unpack_set(frame.contributors):#x} out of turn")
        else:
            self._came.append(frame.weight)
            self._work()

    def _work(self) -> None:
        """Add to, and pass on, what has come, in the order in which it has."""
        view, mine, sums = self._in_view, self._mine, self._sums
        if mine is None or sums is None:
            return
        while self._done < len(self._came):
            chunk, contributors = self._expected(self._done)
            weight = self._came[self._done]
            self._done += 1
            if contributors != view.everyone:
                part = self._chunk(chunk, sums.size)
                np.add(sums[part], mine[part], out=sums[part])
                contributors |= 1 << self.position
                weight += self._weight
            if chunk == 0 and contributors == view.everyone:
                self._weight_sum = weight  # of chunk 0, since it is the same bits everywhere
            if self._done < 2 * (view.size - 1):
                self._pass_on(chunk, sums, contributors, weight)
            else:
                self._finish(sums, self._weight_sum)
                return

    def _pass_on(self, chunk: int, source: FloatVector, contributors: int, weight: float) -> None:
        part = self._chunk(chunk, source.size)
        shape = Shape.of(source)
        frame = Reduce(
            epoch=self._in_view.stamp,
            round=self.committed + 1,
            offset=part.start,
            total=shape.total,
            dtype=shape.dtype,
            contributors=pack_set(contributors),
            weight=weight,
        )
        self.send(self._beside(self._in_view, 1), frame, source[part])

    def _finish(self, total: FloatVector, weight: float) -> None:
        everyone = self._in_view.everyone
        self.commit(total, contributors=everyone, weight=weight, exact=True, digest=digest_of(total))
