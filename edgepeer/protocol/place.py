"""Where a peer stands: its view, its run, its last round, and where its neighbours stand."""

from __future__ import annotations

from typing import Final

from edgepeer.errors import ProtocolBug
from edgepeer.ids import Generation, PeerId
from edgepeer.topology.view import View
from edgepeer.wire.frames import Abort, Decide, Have, Progress, Reduce, Release, Result, Sync

__all__ = ["HOPING", "UNKNOWN", "Place"]

UNKNOWN: Final = -1
"""Stands for the last round of a peer that waits for the state of the run."""
HOPING: Final = -2
"""The same, of a peer below which somebody may have the state."""


class Place:
    """Shared by the parts of one peer's allreduce."""

    def __init__(self, me: PeerId) -> None:
        self.me = me
        self.view: View | None = None
        self.parent: PeerId | None = None
        self.children: tuple[PeerId, ...] = ()
        self.run = ""
        self.committed = 0
        """The last round that is over here; UNKNOWN while the state of the run is still to come."""
        self.now = 0.0
        """The time of what is being handled."""
        self.proven = 0
        """The newest epoch in which a round was committed here: all its members worked in it."""
        self.promised = False
        """Whether this life has promised not to help to decide rounds of the view any more (succession.py)."""
        self.waking = False
        """Whether this process was stopped, and may not know of all that has happened meanwhile (waking.py)."""
        self.restored: Generation | None = None
        """The state is from a checkpoint of that generation, and no round has been over since."""
        self.loading = False
        """Whether the state has come and is being put to use."""
        self.at: dict[PeerId, int] = {}
        """Neighbours in this view and run: the last round that is over there."""

    def enter(self, view: View) -> None:
        self.view, self.promised = view, False
        self.parent, self.children = view.parent(self.me), view.children(self.me)
        self.at.clear()

    def leave(self) -> None:
        self.view = self.parent = None
        self.promised = False
        self.children = ()
        self.run, self.committed, self.restored = "", 0, None
        self.at.clear()

    @property
    def frozen(self) -> bool:
        """Whether to take part in nothing that could help to decide a round."""
        return self.promised or self.waking

    @property
    def neighbours(self) -> tuple[PeerId, ...]:
        """Parent (if any), then children."""
        return (*((self.parent,) if self.parent is not None else ()), *self.children)

    @property
    def epoch(self) -> int:
        """What frames name the view by."""
        if self.view is None:
            raise ProtocolBug("no view")
        return self.view.stamp

    @property
    def standing(self) -> int:
        """What neighbours are told: the last round that is over here; UNKNOWN or HOPING without the state."""
        if self.committed != UNKNOWN:
            return self.committed
        hope = self.loading or any(self.at.get(child) != UNKNOWN for child in self.children)
        return HOPING if hope else UNKNOWN

    def sync(self, standing: int, kept: int = 0, have: int = 0) -> Sync:
        """What tells neighbours where this peer stands. `kept`: the first round whose end it can still tell. `have`:
        how much is here of what that neighbour sends in the round in progress."""
        view = self.view
        generation, epoch = (view.generation, view.stamp) if view is not None else (None, 0)
        return Sync(
            epoch=epoch,
            run=self.run,
            committed=standing,
            generation=generation,
            restored=self.restored,
            kept=kept,
            have=have,
        )

    def current(self, frame: Reduce | Result | Abort | Have | Decide | Progress | Release) -> bool:
        """Whether a frame is of this view, and of the round that comes next here."""
        return self.view is not None and frame.epoch == self.view.stamp and frame.round == self.committed + 1 > 0

    def level(self, peer: PeerId) -> bool:
        """Whether the same round comes next at a neighbour."""
        return self.at.get(peer) == self.committed
