"""When a round counts: once a quorum's worth of peers holds its result.

The root's sum counts for nobody, the root included, before the first `View.holders` members hold all of it. Any
quorum that goes on without the others has one of these in it; so what one peer has committed can't be lost by the
others. The holders are the top of the tree: their word is there while the leaves
still receive.

    a peer                                | does
    --------------------------------------+--------------------------------------------------------------
    must hold, and all below it that must | says Have to its parent; the root: the round is decided
    hears Decide from its parent          | commits, and passes it on
    gets a result that is decided already | commits
    holds, and a new view comes           | does not contribute there, but sends up what it holds; of several the
                                          | newest goes on up
    holds a coded round's result          | says Have with the set of all that hold it at and below it; the root: enough
    root, and some of it has come up      | once all have contributed or sent something up: puts the newest forward
                                          | again, in the place of a sum

That is a consensus in the manner of Paxos or Viewstamped Replication, one for each round, with views for ballots: to
contribute to a view is to promise that nothing older is held, and the root may propose a sum if all have promised. Of
coded rounds, Progress is the promise (coded.py).
"""

from __future__ import annotations

from collections.abc import Callable

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.place import Place
from edgepeer.protocol.round import Round
from edgepeer.topology.view import View
from edgepeer.wire.frames import Have, pack_set

__all__ = ["Deciding"]


class Deciding:
    """Counts holders in one view."""

    def __init__(self, place: Place, emit: Callable[[fx.Effect], None]) -> None:
        self._place = place
        self._emit = emit
        self._must = False
        self._awaited: frozenset[PeerId] = frozenset()

    def enter(self, view: View) -> None:
        """Another view."""
        self._must = view.position(self._place.me) < view.holders
        self._awaited = frozenset(c for c in view.children(self._place.me) if view.position(c) < view.holders)

    def decided(self, rd: Round) -> bool:
        """Whether the round that is held counts. Says so to the parent when its turn has come."""
        if rd.decided:
            return True
        if rd.closed is not None:
            return self._enough_hold(rd)
        if not self._must or not self._awaited <= rd.haves.keys():
            return False
        place, parent = self._place, self._place.parent
        if parent is None:
            return True
        if rd.have_sent is None and place.level(parent):
            rd.have_sent = 0
            self._emit(fx.Send(parent, Have(epoch=place.epoch, round=place.committed + 1)))
        return False

    def _enough_hold(self, rd: Round) -> bool:
        """Of a coded round, which is not to wait for certain peers: as many as `View.holders`, the root among them.

        Such a set has a member in every quorum: it meets all majorities, and a half that is a quorum has the root.
        """
        place, view = self._place, self._place.view
        if view is None:
            return False
        holding = 1 << view.position(place.me)
        for below in rd.haves.values():
            holding |= below
        if place.parent is None:
            return holding.bit_count() >= view.holders
        if rd.have_sent != holding and place.level(place.parent):
            rd.have_sent = holding
            have = Have(epoch=place.epoch, round=place.committed + 1, holding=pack_set(holding))
            self._emit(fx.Send(place.parent, have))
        return False
