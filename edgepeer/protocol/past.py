"""How the last rounds ended: told to the neighbours at once, and kept for those that missed it.

    when a round ends here, a neighbour    | is told
    ---------------------------------------+------------------------------------------------------------------
    has been sent the whole sum            | that it counts
    has been sent a part of it             | the rest, with the commit
    works on the round, and none of these  | what it would be handed over: see below
    is ahead, or waits for the state       | where this peer stands now, unless the end is from there
    has several trees with this peer       | the rest of each range that it is to get from here; that it counts, if
                                           | it stands behind this peer on the shortest ways from the root

    a neighbour of this view and run       | is handed over
    ---------------------------------------+------------------------------------------------------------------
    stands just before a kept round        | that round's result and commit, or its abort; then the next kept one
    stands anywhere else                   | nothing

A commit may be handed over to a peer that was not in the view that decided it. That view goes ahead of it,
so that the contributors keep their names.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from edgepeer.ids import Lineage, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.events import FloatVector
from edgepeer.protocol.headers import Address
from edgepeer.protocol.inview import InView
from edgepeer.protocol.lane import Lane, piece, spans
from edgepeer.protocol.place import Place
from edgepeer.protocol.rates import Rates
from edgepeer.protocol.round import Round
from edgepeer.protocol.streams import digest_of
from edgepeer.topology.view import View
from edgepeer.wire.documents import pack
from edgepeer.wire.frames import Abort, Cause, Commit, Decide, Sync, ViewFrame
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
    """The rounds that are over at one peer.

    Args:
        kept: how many of them.
        place: where the peer stands, to be told to others.
        rates: of the links to its neighbours.
        emit: takes what is to be sent.
    """

    def __init__(self, kept: int, place: Place, rates: Rates, emit: Callable[[fx.Effect], None]) -> None:
        self._place = place
        self._rates = rates
        self._emit = emit
        self._kept: deque[Decided | Dropped] = deque(maxlen=kept)
        self._restored: deque[Lineage | None] = deque(maxlen=kept)
        """Of which checkpoint the state was that each of them was gone on from; None: of none."""
        self._owed: deque[Dropped] = deque()
        self._told: dict[PeerId, View] = {}

    def clear(self) -> None:
        """Another run, or another place in it."""
        self._kept.clear()
        self._restored.clear()
        self._owed.clear()
        self._told.clear()

    def keep(self, ended: Decided | Dropped) -> None:
        self._kept.append(ended)
        self._restored.append(self._place.restored)

    def first(self, committed: int) -> int:
        """The first of the rounds until `committed` that can be handed over; the one after it if none can."""
        return self._kept[0].round if self._kept and self._kept[-1].round == committed else committed + 1

    def sync(self, standing: int, have: tuple[int, ...] = ()) -> Sync:
        """What tells neighbours where this peer stands, and what it can tell of how it has come there."""
        kept = self.first(standing) if standing >= 0 else 0
        restored = self._restored[0] if 0 < kept <= standing else self._place.restored
        return self._place.sync(standing, kept, have, restored)

    # -- rounds that ended before this peer had contributed ------------------------------------------------------

    def owe(self, ended: Dropped) -> bool:
        """This peer's next contribution belongs to that round. False if too many are waiting already."""
        if len(self._owed) == _OWED_LIMIT:
            self._owed.clear()
            return False
        self._owed.append(ended)
        return True

    def forgive(self) -> None:
        """This peer's owner has been told that it has missed all rounds until now."""
        self._owed.clear()

    @property
    def owes(self) -> int:
        """How many such rounds there are."""
        return len(self._owed)

    def owed(self) -> Dropped | None:
        """The round that the contribution which is made now belongs to, if it is over already."""
        return self._owed.popleft() if self._owed else None

    # -- a round that has just ended ---------------------------------------------------------------------------

    def tell_end(self, here: InView, rd: Round, ended: Decided | Dropped, source: PeerId | None) -> None:
        """To all neighbours but the one it is from: the round in progress, `rd`, is over. Who has worked on it as well
        stands after it then."""
        for peer, at in here.at.items():
            if at == ended.round - 1:
                self._tell_level(here, rd, ended, peer)
            elif peer != source:  # it is ahead and has waited for us, or waits for the state
                self._emit(fx.Send(peer, self.sync(ended.round)))

    def _tell_level(self, here: InView, rd: Round, ended: Decided | Dropped, peer: PeerId) -> None:
        if isinstance(ended, Dropped):
            self.hand_over(here, peer)
        elif len(here.trees) > 1:
            self._tell_parts(here, rd, ended, peer)
        elif rd.lane.sent_down.get(peer) == ended.total.size:
            self._emit(fx.Send(peer, Decide(epoch=here.epoch, round=ended.round)))
        elif ended.view is here.view:
            self._send_rest(here, rd.lane, ended.total, ended, ended.commit, peer)
        else:
            self.hand_over(here, peer)

    def _tell_parts(self, here: InView, rd: Round, ended: Decided, peer: PeerId) -> None:
        """Where there are several trees: the rest of what this peer is to send to a neighbour of the result; and that
        it counts, if it is for this peer to say so. Each gets all parts from its parents, and one word.

        What was decided in an earlier view goes whole, over the first tree, away from where it has come from: that may
        be below, and then those above may know nothing of it."""
        if ended.view is here.view:
            if rd.divided is None or any(part.commit is None for part in rd.parts.values()):
                self._hand_over_parts(here, ended, peer, ())
                return
            for part in rd.parts.values():
                if peer in part.streams and part.commit is not None:
                    self._send_rest(here, part, part.part(ended.total), ended, part.commit, peer)
        elif peer != rd.lane.result_from and (
            peer == here.parent or (peer in rd.lane.streams and rd.lane.sent_down.get(peer) != ended.total.size)
        ):
            self.hand_over(here, peer)
            return
        if peer in here.behind:
            self._emit(fx.Send(peer, Decide(epoch=here.epoch, round=ended.round)))

    def _send_rest(
        self, here: InView, lane: Lane, source: FloatVector, ended: Decided, commit: Commit, peer: PeerId
    ) -> None:
        address = Address(here.epoch, ended.round)
        for send in lane.rest(peer, source, source.size, address, self._rates, commit, commit.precision):
            self._emit(send)

    # -- handing over --------------------------------------------------------------------------------------

    def hand_over(self, here: InView, peer: PeerId, have: Sequence[int] = ()) -> int:
        """Tell a neighbour of what it missed, as far as that is kept. Returns after which round it will stand then.

        `have`: of each lane, how many elements it has of the next round's result, as it is put forward in this view.
        """
        view = here.view
        after = at = here.at[peer]
        if len(here.trees) == 1 and peer == here.parent:
            have = ()
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
                self._hand_over_parts(here, ended, peer, have)
                continue
            if ended.view is not view:
                self._emit(fx.Send(peer, ViewFrame(epoch=ended.view.stamp), pack(ended.view)))
            elif has_begun and have:
                start = min(have[0], ended.total.size)
            if start and start == ended.total.size:
                self._emit(fx.Send(peer, Decide(epoch=view.stamp, round=ended.round)))
                continue
            address, rate = Address(view.stamp, ended.round), self._rates.of(peer).bytes_per_s
            self._emit(piece(peer, ended.total, ended.commit, address, rate, start=start))
        return at

    def _hand_over_parts(self, here: InView, ended: Decided, peer: PeerId, have: Sequence[int]) -> None:
        """Of a round of this view, in which several trees have had the neighbour's contribution: what this peer is to
        send to it of the result, and that it counts. The rest it gets from its other parents, or has."""
        address, rate = Address(here.epoch, ended.round), self._rates.of(peer).bytes_per_s
        precision = ended.commit.precision
        spread = spans(ended.total.size, len(here.trees), block_of(precision))
        for number, (edges, over) in enumerate(zip(here.trees, spread, strict=True), start=1):
            part, start = ended.total[over], have[number] if number < len(have) else 0
            if peer not in edges.below or (number > 1 and not part.size) or (start and start >= part.size):
                continue
            commit = msgspec.structs.replace(ended.commit, digest=digest_of(part, precision))
            self._emit(piece(peer, ended.total, commit, address, rate, lane=number, over=over, start=start))
        self._emit(fx.Send(peer, Decide(epoch=here.epoch, round=ended.round)))

    # -- what neighbours hand over -------------------------------------------------------------------------------

    def learn(self, peer: PeerId, view: View) -> None:
        """A neighbour tells of an older view: the Result that follows was decided there."""
        self._told[peer] = view

    def forget(self, peer: PeerId) -> None:
        """A neighbour's link is gone."""
        self._told.pop(peer, None)

    def told(self, peer: PeerId) -> View | None:
        """The older view that the neighbour's Result that is here now was decided in; None if in the present one."""
        return self._told.pop(peer, None)
