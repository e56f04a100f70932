"""The tree over positions 0..n-1 with fan-out k: position i has parent (i-1)//k; and several such trees at once.

The words are the thesis' (Padrão 2020, §6.1): a *brother* shares the parent, an *uncle* is the parent's
brother. Every function is O(k) or O(depth) and knows nothing of peers, only of positions.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Trees", "brothers", "children", "depth", "height", "parent", "path_to_root", "subtree", "uncles"]


def parent(position: int, fanout: int) -> int | None:
    """The parent's position, None for the root."""
    return (position - 1) // fanout if position > 0 else None


def children(position: int, fanout: int, size: int) -> range:
    """The children's positions in ascending order; empty for a leaf."""
    first = position * fanout + 1
    return range(min(first, size), min(first + fanout, size))


def brothers(position: int, fanout: int, size: int) -> tuple[int, ...]:
    """The other children of the same parent, ascending."""
    above = parent(position, fanout)
    if above is None:
        return ()
    return tuple(p for p in children(above, fanout, size) if p != position)


def uncles(position: int, fanout: int, size: int) -> tuple[int, ...]:
    """The brothers of the parent, ascending; empty for the root and its children."""
    above = parent(position, fanout)
    return brothers(above, fanout, size) if above is not None else ()


def depth(position: int, fanout: int) -> int:
    """How many links lie between this position and the root."""
    return len(path_to_root(position, fanout)) - 1


def height(fanout: int, size: int) -> int:
    """The depth of the deepest position of a tree of `size` peers; 0 for one peer."""
    return depth(size - 1, fanout) if size > 0 else 0


def path_to_root(position: int, fanout: int) -> tuple[int, ...]:
    """The positions from this one (included) up to the root (included)."""
    path = [position]
    while (above := parent(path[-1], fanout)) is not None:
        path.append(above)
    return tuple(path)


def subtree(position: int, fanout: int, size: int) -> tuple[int, ...]:
    """All positions at or below this one, in breadth-first order."""
    found = [position]
    for at in found:
        found.extend(children(at, fanout, size))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Trees:
    """Trees over the same positions, number 0 as above and each other one turned, so that who is inside of some is a
    leaf of others; but for the last positions, if any, which are leaves of all.

    The first `core` positions form the trees: where position i stands in number 0, there stands in number l position
    (i + l*core//count) mod core. The others hang below the leaves of each, evenly, in the order of places: so each has
    another parent in each tree, and no parent much more to do than the others.
    """

    size: int
    fanout: int
    lanes: int = 1
    """How many trees are wanted; there are no more than positions that can be inside."""
    leaves: int = 0
    """How many positions, the last ones, are leaves of all trees; at least one is not."""

    @property
    def core(self) -> int:
        return max(self.size - self.leaves, 1)

    @property
    def count(self) -> int:
        return min(self.lanes, self.core)

    @property
    def inner(self) -> int:
        """How many places of a tree have others of the core below them: the first ones."""
        return (self.core + self.fanout - 2) // self.fanout

    @property
    def height(self) -> int:
        """The depth of the deepest position."""
        if self.core == self.size:
            return height(self.fanout, self.size)
        hosts = min(self.core - self.inner, self.size - self.core)
        return max(height(self.fanout, self.core), depth(self.inner + hosts - 1, self.fanout) + 1)

    def _turn(self, lane: int) -> int:
        return lane * self.core // self.count

    def place(self, position: int, lane: int = 0) -> int:
        """Where a position stands in a tree, as a position of tree number 0 ..."""
        return (position - self._turn(lane)) % self.core if lane and position < self.core else position

    def at(self, place: int, lane: int = 0) -> int:
        """... and who stands at a place."""
        return (place + self._turn(lane)) % self.core if lane and place < self.core else place

    def _above(self, place: int) -> int | None:
        if place < self.core:
            return parent(place, self.fanout)
        return self.inner + (place - self.core) % (self.core - self.inner)

    def _below(self, place: int) -> range:
        if place < self.inner:
            return children(place, self.fanout, self.core)
        if place < self.core:
            return range(self.core + place - self.inner, self.size, self.core - self.inner)
        return range(0)

    def parent(self, position: int, lane: int = 0) -> int | None:
        """The parent's position, None for the root."""
        above = self._above(self.place(position, lane))
        return None if above is None else self.at(above, lane)

    def children(self, position: int, lane: int = 0) -> tuple[int, ...]:
        """The children's positions in the order of their places; empty for a leaf."""
        return tuple(self.at(place, lane) for place in self._below(self.place(position, lane)))

    def common(self, one: int, other: int) -> int:
        """In how many of the trees two positions are parent and child."""
        lanes = range(self.count)
        return sum(self.parent(one, lane) == other or self.parent(other, lane) == one for lane in lanes)

    def subtree(self, position: int, lane: int = 0) -> tuple[int, ...]:
        """All positions at or below this one, in breadth-first order."""
        found = [self.place(position, lane)]
        for place in found:
            found.extend(self._below(place))
        return tuple(self.at(place, lane) for place in found)

    def backups(self, position: int, lane: int = 0) -> tuple[int, ...]:
        """The positions to have a backup link with, by place: brothers, uncles, and whose uncle this one is.

        With more than three children to a parent, only the next to the left and to the right among brothers count, in
        a ring; so the number of links stays small, and whoever is a backup of another has that one as its own.
        """
        place = self.place(position, lane)
        found = set(self._beside(place))
        above = self._above(place)
        if above is not None:
            found.update(self._beside(above))
        for brother in self._beside(place):
            found.update(self._below(brother))
        return tuple(self.at(other, lane) for other in sorted(found))

    def _beside(self, place: int) -> set[int]:
        """The brothers to the left and to the right, in a ring."""
        above = self._above(place)
        if above is None:
            return set()
        ring = self._below(above)
        at = ring.index(place)
        return {ring[(at - 1) % len(ring)], ring[(at + 1) % len(ring)]} - {place}
