"""Where a peer stands: its view, its run, its last round."""

from __future__ import annotations

from typing import Final

from edgepeer.ids import Lineage, PeerId
from edgepeer.protocol.inview import InView
from edgepeer.protocol.membership import Membership
from edgepeer.protocol.succession import Succession
from edgepeer.topology.view import View
from edgepeer.wire.frames import Abort, Decide, Have, Progress, Reduce, Release, Result, Sync

__all__ = ["HOPING", "UNKNOWN", "Place"]

UNKNOWN: Final = -1
"""Stands for the last round of a peer that waits for the state of the run."""
HOPING: Final = -2
"""The same, of a peer below which somebody may have the state; or which has had it."""


class Place:
    """Written by one peer's `Course`, but for `now` and `waking`; read by all its parts."""

    def __init__(self, membership: Membership, succession: Succession, now: float) -> None:
        self.me = membership.id
        self._membership = membership
        self._succession = succession
        self.here: InView | None = None
        """None: in no view."""
        self.run = ""
        self.committed = 0
        """The last round that is over here; UNKNOWN while the state of the run is still to come."""
        self.now = now
        """The time of what is being handled."""
        self.proven = 0
        """The newest epoch in which a round has ended here so that all its members must have worked in it."""
        self.waking = False
        """Whether this process was stopped, and may not know of all that has happened meanwhile (waking.py)."""
        self.restored: Lineage | None = None
        """The state is from a checkpoint of that lineage, another than the view's, and no round has been over since."""
        self.carried = False
        """This peer has had what stands here in an earlier generation, with which this one goes on, and no round has
        been over since. Who is given that state in this generation is not known to have one of before."""
        self.loading = False
        """Whether the state has come and is being put to use."""
        self.taking: int | None = None
        """After which round the state is that the owner is putting to use while this peer stands there itself."""
        self.missing = False
        """Whether the owner has given the run up, or lost its state, since it had the one that stands here: it has
        none, and is to be given another's."""
        self.over = UNKNOWN
        """While there is no state here, or one from a checkpoint again: the last round that was over before it was
        given up, 0 if that was the state that the run began with; or that of the state that is being put to use.
        UNKNOWN: there was none. So the run has begun, and does not begin again with another state of the same number;
        nor is an older state one that this peer may go on with, or its vote the word of one who has seen nothing."""

    def pass_time(self, now: float) -> None:
        """It is so late."""
        self.now = now

    @property
    def view(self) -> View | None:
        return self.here.view if self.here is not None else None

    @property
    def frozen(self) -> bool:
        """Whether to take part in nothing that could help to decide a round."""
        return self.waking or self._succession.frozen

    @property
    def earlier(self) -> bool:
        """Whether what stands here is known to be from before this generation, so that nothing is over in it."""
        return self.carried or self.restored is not None

    @property
    def standing(self) -> int:
        """What neighbours are told: the last round that is over here; UNKNOWN or HOPING without the state."""
        if self.committed != UNKNOWN:
            return self.committed
        here = self.here
        hope = here is not None and any(here.at.get(child) != UNKNOWN for child in here.children)
        return HOPING if hope or self.loading or self.over != UNKNOWN else UNKNOWN

    def sync(self, standing: int, kept: int, have: tuple[int, ...], restored: Lineage | None) -> Sync:
        """What tells neighbours where this peer stands. `kept`: the first round whose end it can still tell. `have`:
        of each lane, how much is here of what that neighbour sends in the round in progress. `restored`: of which
        checkpoint the state before the first kept round is."""
        view = self.view
        generation, epoch = (view.generation, view.stamp) if view is not None else (None, 0)
        life = self._membership.me.incarnation if view is None else 0  # a view says it of its members
        return Sync(
            epoch=epoch,
            run=self.run,
            committed=standing,
            generation=generation,
            restored=restored,
            kept=kept,
            have=have,
            life=life,
        )

    def at(self, frame: Reduce | Result | Abort | Have | Decide | Progress | Release) -> InView | None:
        """The view, if a frame is of it and of the round that comes next here."""
        here = self.here
        if here is None or frame.epoch != here.view.stamp or frame.round != self.committed + 1 or frame.round <= 0:
            return None
        return here

    def of(self, peer: PeerId, frame: Reduce | Result | Abort | Have | Decide) -> InView | None:
        """The same, if the neighbour that has sent it had the state that is here. What is about to be over at it may be
        under way for as long as it takes to get another state from somebody else."""
        return self.at(frame) if not self.is_without(peer) else None

    def is_without(self, peer: PeerId) -> bool:
        """Whether a neighbour is known to have no state, or to give its own up: what it brings all the same it has sent
        beside another one than is here. (In which round others are is not always known here before they bring more.)"""
        return self.here is not None and self.here.at.get(peer, 0) < 0

    def level(self, peer: PeerId) -> bool:
        """Whether the same round comes next at a neighbour."""
        return self.here is not None and self.here.at.get(peer) == self.committed
