"""What lives as long as a view does at one peer: made when the view is installed, gone with it, never reset."""

from __future__ import annotations

from dataclasses import dataclass

from edgepeer.ids import PeerId
from edgepeer.topology.view import View

__all__ = ["NOWHERE", "Edges", "InView"]


@dataclass(frozen=True, slots=True)
class Edges:
    """One peer's place in a tree."""

    parent: PeerId | None
    below: dict[PeerId, int]
    """The children, in position order, and of each the positions at and below it, as a bit set."""
    bit: int
    """This peer's own position, as a bit set; 0: it is in no tree."""


NOWHERE = Edges(None, {}, 0)
"""Of who is in no view."""


class InView:
    """Where this peer stands in its view, and what it knows of the neighbours there."""

    __slots__ = (
        "above", "at", "awaited", "behind", "children", "must_hold", "neighbours", "parent", "spoke", "trees", "view",
    )  # fmt: skip

    def __init__(self, view: View, me: PeerId) -> None:
        self.view = view
        self.parent = view.parent(me)
        self.children = view.children(me)
        self.neighbours = view.neighbours(me)
        """Parent (if any), then children; then those of the other trees."""
        self.trees = tuple(
            Edges(
                view.parent(me, lane),
                {child: view.below(child, lane) for child in view.children(me, lane)},
                1 << view.position(me),
            )
            for lane in range(view.trees)
        )
        """This peer's place in the trees that vectors move over. The coordinator is at the root of the first."""
        self.above, self.behind = view.shortest(me)
        """Whom this peer tells that a result is held, and who tell it: one tree for the decision, over all links."""
        self.must_hold = view.position(me) < view.holders
        """Whether this peer is among those that must hold a plain round's result before it counts ..."""
        self.awaited = frozenset(peer for peer in self.behind if view.held_behind(peer))
        """... and behind whom any of these are."""
        self.at: dict[PeerId, int] = {}
        """Neighbours that work in the same run: the last round that is over there."""
        self.spoke = False
        """Whether this peer has promised anything here (closing.py): then the root may close rounds without it."""

    @property
    def epoch(self) -> int:
        """What frames name the view by."""
        return self.view.stamp

    def has(self, positions: int) -> bool:
        """Whether this peer is in a bit set of positions."""
        return bool(positions & self.trees[0].bit)
