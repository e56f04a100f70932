"""How the last rounds ended: kept for neighbours that missed it, and told to them.

    a neighbour of this view and run     | is told
    -------------------------------------+--------------------------------------------------------------------
    stands just before a kept round      | that round's result and commit, or its abort; then the next kept one
    stands anywhere else                 | nothing

A commit may be handed over to a peer that was not in the view that decided it. That view goes ahead of it,
so that the contributors keep their names.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.events import FloatVector
from edgepeer.protocol.inview import InView
from edgepeer.protocol.lane import Address, piece, spans
from edgepeer.protocol.streams import digest_of
from edgepeer.topology.view import View
from edgepeer.wire.documents import pack
from edgepeer.wire.frames import Abort, Cause, Commit, Decide, ViewFrame
from edgepeer.wire.precision import block_of

__all__ = ["Decided", "Dropped", "Past"]

_OWED_LIMIT: Final = 16


@dataclass(frozen=True, slots=True, eq=False)
class Decided:
    """A round that ended with a sum."""

    round: int
    total: FloatVector
    commit: Commit
    view: View
    """The view in which the root decided."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A round that ended without one."""

    round: int
    cause: Cause
    reason: str


class Past:
    """The rounds that are over at one peer."""

    def __init__(self, kept: int, emit: Callable[[fx.Effect], None]) -> None:
        self._emit = emit
        self._kept: deque[Decided | Dropped] = deque(maxlen=kept)
        self._owed: deque[Dropped] = deque()
        self._told: dict[PeerId, View] = {}

    def clear(self) -> None:
        """Another run, or another place in it."""
        self._kept.clear()
        self._owed.clear()
        self._told.clear()

    def keep(self, ended: Decided | Dropped) -> None:
        self._kept.append(ended)

    def first(self, committed: int) -> int:
        """The first of the rounds until `committed` that can be handed over; the one after it if none can."""
        return self._kept[0].round if self._kept and self._kept[-1].round == committed else committed + 1

    # -- rounds that ended before this peer had contributed ------------------------------------------------------

    def owe(self, ended: Dropped) -> bool:
        """This peer's next contribution belongs to that round. False if too many are waiting already."""
        if len(self._owed) == _OWED_LIMIT:
            self._owed.clear()
            return False
        self._owed.append(ended)
        return True

    @property
    def owes(self) -> int:
        """How many such rounds there are."""
        return len(self._owed)

    def owed(self) -> Dropped | None:
        """The round that the contribution which is made now belongs to, if it is over already."""
        return self._owed.popleft() if self._owed else None

    # -- handing over --------------------------------------------------------------------------------------

    def hand_over(self, peer: PeerId, at: int, here: InView, rate_bytes_per_s: float, have: Sequence[int] = ()) -> int:
        """Tell a neighbour that stands after round `at` of what it missed. Returns where it will stand then.

        `have`: of each lane, how many elements it has of the next round's result, as it is put forward in this view.
        """
        view, after = here.view, at
        for ended in self._kept:
            if ended.round != at + 1:
                continue
            at = ended.round
            if isinstance(ended, Dropped):
                frame = Abort(epoch=view.stamp, round=ended.round, cause=ended.cause, reason=ended.reason, over=True)
                self._emit(fx.Send(peer, frame))
                continue
            start, has_begun = 0, ended.view is view and ended.round == after + 1
            if has_begun and len(here.trees) > 1:
                self.hand_over_parts(peer, ended, here, rate_bytes_per_s, have)
                continue
            if ended.view is not view:
                self._emit(fx.Send(peer, ViewFrame(epoch=ended.view.stamp), pack(ended.view)))
            elif has_begun and have:
                start = min(have[0], ended.total.size)
            if start and start == ended.total.size:
                self._emit(fx.Send(peer, Decide(epoch=view.stamp, round=ended.round)))
                continue
            address = Address(view.stamp, ended.round)
            self._emit(piece(peer, ended.total, ended.commit, address, rate_bytes_per_s, start=start))
        return at

    def hand_over_parts(
        self, peer: PeerId, ended: Decided, here: InView, rate_bytes_per_s: float, have: Sequence[int]
    ) -> None:
        """Of a round of this view, in which several trees have had the neighbour's contribution: what this peer is to
        send to it of the result, and that it counts. The rest it gets from its other parents, or has."""
        address = Address(here.epoch, ended.round)
        precision = ended.commit.precision
        spread = spans(ended.total.size, len(here.trees), block_of(precision))
        for number, (edges, over) in enumerate(zip(here.trees, spread, strict=True), start=1):
            part, start = ended.total[over], have[number] if number < len(have) else 0
            if peer not in edges.below or (number > 1 and not part.size) or (start and start >= part.size):
                continue
            commit = msgspec.structs.replace(ended.commit, digest=digest_of(part, precision))
            self._emit(piece(peer, ended.total, commit, address, rate_bytes_per_s, lane=number, over=over, start=start))
        self._emit(fx.Send(peer, Decide(epoch=here.epoch, round=ended.round)))

    def learn(self, peer: PeerId, view: View) -> None:
        """A neighbour tells of an older view: the Result that follows was decided there."""
        self._told[peer] = view

    def forget(self, peer: PeerId) -> None:
        """A neighbour's link is gone."""
        self._told.pop(peer, None)

    def told(self, peer: PeerId) -> View | None:
        """The older view that the neighbour's Result that is here now was decided in; None if in the present one."""
        return self._told.pop(peer, None)
