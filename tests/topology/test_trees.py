"""Tree functions against a tree that is built by hand, edge by edge."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepeer.topology import tree


class Plain:
    """Fills a tree level by level, the way one would draw it."""

    def __init__(self, fanout: int, size: int) -> None:
        self.above: dict[int, int | None] = {0: None} if size else {}
        self.below: dict[int, list[int]] = {position: [] for position in range(size)}
        queue = [0]
        following = 1
        while following < size:
            at = queue.pop(0)
            for _ in range(fanout):
                if following < size:
                    self.above[following] = at
                    self.below[at].append(following)
                    queue.append(following)
                    following += 1

    def path(self, position: int | None) -> tuple[int, ...]:
        return () if position is None else (position, *self.path(self.above[position]))

    def at_or_below(self, position: int) -> set[int]:
        return {position}.union(*(self.at_or_below(child) for child in self.below[position]))

    def brothers(self, position: int) -> tuple[int, ...]:
        above = self.above[position]
        return () if above is None else tuple(p for p in self.below[above] if p != position)


@given(fanout=st.integers(1, 6), size=st.integers(1, 60))
def test_against_the_plain_tree(fanout: int, size: int) -> None:
    plain = Plain(fanout, size)
    for position in range(size):
        above = plain.above[position]
        assert tree.parent(position, fanout) == above
        assert list(tree.children(position, fanout, size)) == plain.below[position]
        assert tree.path_to_root(position, fanout) == plain.path(position)
        assert tree.depth(position, fanout) == len(plain.path(position)) - 1
        assert tree.brothers(position, fanout, size) == plain.brothers(position)
        assert tree.uncles(position, fanout, size) == (() if above is None else plain.brothers(above))
        below = tree.subtree(position, fanout, size)
        assert set(below) == plain.at_or_below(position)
        assert len(below) == len(set(below))
        assert list(below) == sorted(below)  # breadth-first is ascending in such a tree
    assert tree.height(fanout, size) == max(len(plain.path(p)) - 1 for p in range(size))


@given(fanout=st.integers(1, 6), size=st.integers(1, 60))
def test_the_children_share_out_everybody_but_the_root(fanout: int, size: int) -> None:
    found = [child for position in range(size) for child in tree.children(position, fanout, size)]
    assert sorted(found) == list(range(1, size))
    parts = [set(tree.subtree(child, fanout, size)) for child in tree.children(0, fanout, size)]
    assert sum(map(len, parts)) == size - 1


@pytest.mark.parametrize(
    ("fanout", "size", "height"), [(2, 0, 0), (2, 1, 0), (2, 7, 2), (2, 8, 3), (1, 5, 4), (5, 6, 1)]
)
def test_heights(fanout: int, size: int, height: int) -> None:
    assert tree.height(fanout, size) == height
