"""The tree over positions 0..n-1 with fan-out k: position i has parent (i-1)//k.

The words are the thesis' (Padrão 2020, §6.1): a *brother* shares the parent, an *uncle* is the parent's
brother. Every function is O(k) or O(depth) and knows nothing of peers, only of positions.
"""

from __future__ import annotations

__all__ = ["backups", "brothers", "children", "depth", "height", "parent", "path_to_root", "subtree", "uncles"]


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


def backups(position: int, fanout: int, size: int) -> tuple[int, ...]:
    """The positions to have a backup link with, ascending: brothers, uncles, and whose uncle this one is.

    With more than three children to a parent, only the next to the left and to the right among brothers count, in
    a ring; so the number of links stays small, and whoever is a backup of another has that one as its own.
    """
    found = set(_beside(position, fanout, size))
    above = parent(position, fanout)
    if above is not None:
        found.update(_beside(above, fanout, size))
    for brother in _beside(position, fanout, size):
        found.update(children(brother, fanout, size))
    return tuple(sorted(found))


def _beside(position: int, fanout: int, size: int) -> set[int]:
    """The brothers to the left and to the right, in a ring."""
    above = parent(position, fanout)
    if above is None:
        return set()
    ring = children(above, fanout, size)
    at = position - ring.start
    return {ring[(at - 1) % len(ring)], ring[(at + 1) % len(ring)]} - {position}


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
