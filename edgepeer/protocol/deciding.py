"""When a round counts: once a quorum's worth of peers holds its result.

The root's sum counts for nobody, the root included, before the first `View.holders` members hold all of it. Any
quorum that goes on without the others has one of these in it; so what one peer has committed can't be lost by the
others. Have and Decide go by the shortest ways between root and peers, over the links of all trees (`View.shortest`).
Of one tree that is the tree; the holders are its top: their word is there while the leaves still receive.

    a peer                                | does
    --------------------------------------+--------------------------------------------------------------
    must hold, and all behind it that must| says Have to whoever is next on the way to the root; the root: the round is
                                          | decided
    hears Decide                          | commits what it holds, or comes to hold, and passes it on
    gets a result that is decided already | commits
    holds, and a new view comes           | does not contribute there, but sends up what it holds; of several the
                                          | newest goes on up
    holds a coded round's result          | says Have with the set of all that hold it at and below it; the root: enough
    root, and some of it has come up      | once all have contributed or sent something up: puts the newest forward
                                          | again, in the place of a sum

That is a consensus in the manner of Paxos or Viewstamped Replication, one for each round, with views for ballots: to
contribute to a view is to promise that nothing older is held, and the root may propose a sum if all have promised. Of
coded rounds, Progress is the promise (closing.py). Where a view has several trees, the sum is proposed by their roots
together: round.py says why that is one proposal.
"""

from __future__ import annotations

from edgepeer.ids import PeerId
from edgepeer.protocol.inview import InView
from edgepeer.protocol.round import Round

__all__ = ["enough_hold", "holding_below", "may_say_have", "unsure"]


def enough_hold(here: InView, rd: Round) -> bool:
    """At the root, which holds it: whether so many hold the round as must.

    Of a coded round that is closed, which is not to wait for certain peers, that is the root's to know: as many as
    `View.holders`, the root among them. Such a set has a member in every quorum: it meets all majorities, and a half
    that is a quorum has the root.
    """
    if rd.closed is not None:
        return holding_below(here, rd).bit_count() >= here.view.holders
    return here.awaited <= rd.haves.keys()


def may_say_have(here: InView, rd: Round) -> bool:
    """Whether this peer and all behind it that must hold the round do, if any must."""
    if rd.closed is not None:
        return rd.held is not None
    if not here.awaited <= rd.haves.keys():
        return False
    return rd.held is not None if here.must_hold else bool(here.awaited)


def unsure(here: InView, rd: Round) -> tuple[PeerId, ...]:
    """Who has not said to this peer, which holds the round, that it does too, though the round waits for that."""
    if rd.held is None or rd.decided:
        return ()
    if rd.closed is None:
        return tuple(peer for peer in here.view.ids if peer in here.awaited - rd.haves.keys())
    if here.parent is not None or enough_hold(here, rd):
        return ()
    return here.view.names(here.view.everyone & ~holding_below(here, rd))


def holding_below(here: InView, rd: Round) -> int:
    """Of a coded round that is closed: who holds it at and below this peer, as a bit set of positions."""
    holding = here.trees[0].bit
    for below in rd.haves.values():
        holding |= below
    return holding
