"""One round at one peer: what has come, what has been added up, what has been sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgepeer.errors import ProtocolBug
from edgepeer.ids import PeerId
from edgepeer.protocol.code import Recovery
from edgepeer.protocol.coded import Closed
from edgepeer.protocol.events import FloatVector
from edgepeer.protocol.streams import NOTHING, Held, Prefix, Shape, Upstream, digest_of
from edgepeer.topology.view import View
from edgepeer.wire.frames import Cause, Commit, pack_set

__all__ = ["Round"]


class Round:
    """The round being worked on, in one view."""

    __slots__ = (
        "abandoned", "abort_sent", "abort_wanted", "closed", "commit", "contributors", "decided", "decided_in",
        "have_sent", "haves", "held", "held_at", "in_chunks", "may_be_decided", "mine", "own", "partial", "passed_up",
        "prior", "reduced", "reduced_at", "result", "result_from", "sent_down", "sent_up", "shape", "since", "spare",
        "streams", "weight", "weight_sum",
    )  # fmt: skip

    def __init__(self, spare: FloatVector | None = None) -> None:
        self.own: FloatVector | None = None
        self.mine = False
        """Whether this peer takes part, and so waits for the result."""
        self.in_chunks = False
        """Whether with what a code makes of chunks, which is for one view only; else with a vector as it is."""
        self.abandoned = False
        """Whether its owner does not wait any more, and computes nothing more."""
        self.weight = 1.0
        self.since = 0.0
        """When this peer contributed."""
        self.abort_wanted: tuple[Cause, str] | None = None
        self.may_be_decided = False
        """Whether a root of an earlier view may have committed this round. It may if all that this peer had to send
        went up to it, or if this peer was not in that view, or if it has let that root do without it (coded.py); then
        nobody but that root can say that the round is dropped, and it goes on until it is complete, or handed over by
        somebody who has its result. Of a coded round, until all have said that they hold nothing."""
        self.prior: Held | None = None
        """What was held here in an earlier view."""
        self.held: FloatVector | None = None
        self.commit: Commit | None = None
        self.decided_in: View | None = None
        self.partial: FloatVector | None = None
        """This peer's vector plus its children's, `reduced` elements of it."""
        self.sent_up = -1
        self.spare = spare
        """A buffer of an earlier round that nobody reads any more."""
        self.restart({})

    def restart(self, streams: dict[PeerId, Upstream]) -> None:
        """Forget everything but the own contribution, and what is held. `streams`: the children, in position order."""
        self.prior = self.holds or self.prior
        self.may_be_decided |= self.all_sent or self.prior is not None
        self.streams = streams
        self.shape: Shape | None = Shape.of(self.own) if self.own is not None else None
        self.closed: Closed | None = None
        """Of a coded round: who contributes."""
        self.partial = None
        self.reduced = -1
        self.contributors = 0
        self.weight_sum = 0.0
        self.result = Prefix()
        """The root's sum, as it comes down."""
        self.result_from: PeerId | None = None
        self.commit = None
        """The root's, once it is here."""
        self.decided_in = None
        """The view whose positions it speaks of."""
        self.held = None
        """The whole result, once it is here, with the right digest."""
        self.reduced_at = self.held_at = self.since
        self.decided = False
        self.haves: dict[PeerId, int] = {}
        """Children that hold it, and all below them that must; of a coded round, who holds it at and below them."""
        self.sent_down: dict[PeerId, int] = {}
        self.forget_sent()

    def forget_sent(self) -> None:
        """The parent has to hear everything again."""
        self.sent_up = -1
        self.passed_up = self.abort_sent = False
        self.have_sent: int | None = None
        """What the last Have said."""

    @property
    def holds(self) -> Held | None:
        """What is held, in this view."""
        if self.held is None or self.commit is None or self.decided_in is None:
            return None
        return Held(self.held, self.commit, self.decided_in)

    def held_elsewhere(self, view: View | None) -> bool:
        """Whether what is held is from another view, or nothing in the place of a sum."""
        if self.held is None or self.commit is None or self.decided_in is None:
            return False
        return self.decided_in is not view or self.commit.dropped is not None

    @property
    def brought(self) -> Held | None:
        """What was held in an earlier view here or below, and takes the place of a sum; the newest of several.

        Not before all below have said what they bring: one of them may have something newer, and only that can count.
        """
        held = [stream.held for stream in self.streams.values() if stream.held is not None]
        if self.prior is not None:
            held.append(self.prior)
        if not held or not all(stream.begun for stream in self.awaited):
            return None
        return max(held, key=lambda held: (held.commit.generation, held.commit.held_in))

    @property
    def all_sent(self) -> bool:
        """Whether the whole partial aggregate is on its way up."""
        return self.partial is not None and self.sent_up == self.partial.size

    @property
    def anew(self) -> bool:
        """Whether only what is held from an earlier view can come of this round."""
        return self.closed is not None and self.closed.anew

    @property
    def awaited(self) -> list[Upstream]:
        """The children whose subtrees contribute, in position order."""
        return [stream for stream in self.streams.values() if stream.expected]

    def close(self, closed: Closed, columns: Mapping[PeerId, FloatVector]) -> None:
        """Of a coded round: the root has said who contributes. `columns`: of children whose vectors are to expand."""
        self.closed = closed
        for child, stream in self.streams.items():
            stream.expected = stream.allowed & closed.expected
            stream.column = columns.get(child)

    def let_go(self) -> bool:
        """Go on with a copy of the own contribution. Returns whether its memory may be on its way to the parent."""
        own = self.own
        if own is None:
            return False
        self.own = own.copy()
        if self.partial is not own:
            return False
        self.partial = self.own
        return self.sent_up >= 0

    def decide(self, view: View, total: FloatVector, origin: frozenset[PeerId]) -> Commit:
        """The root's commit to `total`. `origin`: who was in when the round began."""
        closed = self.closed
        if self.contributors != (view.everyone if closed is None else closed.expected):
            raise ProtocolBug(f"the root has all children's data but only {self.contributors:#x}")
        recovery = closed.recovery if closed is not None else None
        self.decided_in = view
        self.commit = Commit(
            decided_in=view.stamp,
            held_in=view.stamp,
            generation=view.generation,
            contributors=pack_set(self.contributors),
            weight=self.weight_sum,
            exact=origin <= set(view.names(self.contributors)) if recovery is None else recovery.exact,
            digest=digest_of(total),
            final=False,
            chunks=pack_set(_covered(recovery)) if recovery is not None else b"",
            error=recovery.error if recovery is not None else 0.0,
        )
        return self.commit

    def drop(self, view: View, cause: Cause, reason: str) -> Commit:
        """The root's commit to end the round without a sum: an empty one, to be held and decided like any other."""
        self.decided_in = view
        self.result = Prefix()
        self.commit = Commit(
            decided_in=view.stamp,
            contributors=b"",
            weight=0.0,
            exact=False,
            digest=digest_of(NOTHING),
            final=False,
            held_in=view.stamp,
            generation=view.generation,
            dropped=cause,
            reason=reason,
        )
        return self.commit

    @property
    def begun(self) -> bool:
        """Whether anybody's contribution is here, or on its way."""
        return self.mine or self.prior is not None or any(s.begun for s in self.streams.values())

    @property
    def late(self) -> list[PeerId]:
        """The children whose partial aggregates are awaited and not complete."""
        return [c for c, stream in self.streams.items() if stream.expected and not stream.complete and not stream.held]

    @property
    def missing(self) -> int:
        """Bit set of the positions below this peer that have not been heard of."""
        return sum(stream.expected for stream in self.streams.values() if not stream.begun)

    def source(self, peer: PeerId, known: bool, anew: bool) -> Prefix | None:
        """The result, if the peer may write to it: one at a time, or one would write to what another has completed.

        `anew`: it is another one than that which has begun to come.
        """
        if not known or self.result_from not in (None, peer):
            return None
        self.result_from = peer
        if anew and self.held is None:
            self.result = Prefix()
        return self.result

    def misfit(self, shape: Shape, limit_bytes: int, *, any_shape: bool = False) -> str | None:
        """Why a vector of that shape has no place in this round; None if it has."""
        if shape.bytes > limit_bytes:
            return f"{shape}, more than the {limit_bytes} bytes allowed"
        if any_shape or self.shape is None or self.shape == shape:
            return None
        return f"{shape} against {self.shape}"

    @property
    def reduced_all(self) -> bool:
        return self.partial is not None and self.reduced == self.partial.size

    def reduce(self, bit: int, *, root: bool) -> None:
        """Add what has come of the children to this peer's own vector, in position order.

        A child is added as far as all before it have been, so that most of the work is done while the last
        one's data are still on their way; the sum is the same bits whenever it is done.
        """
        own, awaited = self.own, self.awaited
        if self.closed is not None and not self.closed.expected & bit:
            own = None
        elif own is None:
            return
        if self.partial is None and not self._prepare(own, awaited, root):
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
                if number == 0 and own is not None and self.weight == 1 and stream.column is None:
                    np.add(own[part], stream.buffer[part], out=out)
                else:
                    if number == 0:
                        self._weigh(own[part] if own is not None else None, out)
                    self._add(stream, start, ready, out)
                stream.added = ready
        if ready > self.reduced:
            if self.reduced < 0:
                self._count(bit if own is not None else 0)
            self.reduced = ready

    def _prepare(self, own: FloatVector | None, awaited: list[Upstream], root: bool) -> bool:
        """Have memory for the sum. False if it is not known yet how much."""
        if own is None:
            if self.shape is None or not awaited:
                return False
            self.partial = self._buffer(self.shape.total, np.dtype(self.shape.dtype))
        elif not awaited and not root and self.weight == 1:
            self.partial = own  # a leaf sends its vector as it is
        else:
            self.partial = self._buffer(own.size, own.dtype)
            if not awaited:
                self._weigh(own, self.partial)
        return True

    @staticmethod
    def _add(stream: Upstream, start: int, end: int, out: FloatVector) -> None:
        if stream.buffer is None:
            raise ProtocolBug("nothing has come that could be added")
        if stream.column is None:
            np.add(out, stream.buffer[start:end], out=out)
            return
        rows, narrow = out.reshape(-1, stream.blocks), stream.buffer[start // stream.blocks : end // stream.blocks]
        for block, weight in enumerate(stream.column):
            rows[:, block] += narrow * narrow.dtype.type(weight)

    def _weigh(self, own: FloatVector | None, out: FloatVector) -> None:
        if own is None or self.weight == 0:
            out.fill(0)  # whatever the vector holds, NaN included, counts for nothing
        else:
            np.multiply(own, self.weight, out=out)

    def _count(self, bit: int) -> None:
        self.contributors, self.weight_sum = bit, self.weight if bit else 0.0
        for stream in self.awaited:
            if self.contributors & stream.contributors:
                raise ProtocolBug(f"a contribution would count twice: {stream.contributors:#x}")
            self.contributors |= stream.contributors
            self.weight_sum += stream.weight

    def _buffer(self, size: int, dtype: np.dtype[Any]) -> FloatVector:
        if self.spare is not None and self.spare.size == size and self.spare.dtype == dtype:
            return self.spare
        return np.empty(size, dtype)

    def reusable(self, total: FloatVector) -> FloatVector | None:
        """The buffer that the next round may reduce in, now that this one has ended with `total`.

        The parent has added all that was sent from it, or there would be no total.
        """
        return self.partial if self.partial is not total and self.partial is not self.own else None


def _covered(recovery: Recovery) -> int:
    """The chunks that are whole in the sum, as a bit set."""
    return sum(1 << chunk for chunk, whole in enumerate(abs(recovery.coverage - 1) < 1e-6) if whole)
