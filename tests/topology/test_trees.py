"""Tree functions against a tree that is built by hand, edge by edge."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepeer.topology import tree


def backups(position: int, fanout: int, size: int) -> tuple[int, ...]:
    return tree.Trees(size, fanout).backups(position)


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


# -- backup links ------------------------------------------------------------------------------------------


def related(position: int, fanout: int, size: int) -> set[int]:
    """Brothers, uncles and nephews, all of them."""
    plain = Plain(fanout, size)
    above = plain.above[position]
    uncles = plain.brothers(above) if above is not None else ()
    nephews = [child for brother in plain.brothers(position) for child in plain.below[brother]]
    return {*plain.brothers(position), *uncles, *nephews}


@pytest.mark.parametrize("fanout", [1, 2, 3])
@pytest.mark.parametrize("size", range(1, 41))
def test_with_up_to_three_children_all_brothers_and_uncles_are_backups(fanout: int, size: int) -> None:
    for position in range(size):
        assert backups(position, fanout, size) == tuple(sorted(related(position, fanout, size)))


@given(fanout=st.integers(1, 9), size=st.integers(1, 120))
def test_backups_are_mutual_few_and_no_neighbours(fanout: int, size: int) -> None:
    for position in range(size):
        found = backups(position, fanout, size)
        assert list(found) == sorted(set(found))
        assert set(found) <= related(position, fanout, size)
        assert not {position, tree.parent(position, fanout), *tree.children(position, fanout, size)} & set(found)
        assert all(position in backups(other, fanout, size) for other in found)
        # two beside it, two beside its parent, and the children of the first two
        assert len(found) <= 4 + 2 * fanout


@given(fanout=st.integers(2, 9), size=st.integers(1, 120))
def test_whoever_has_a_brother_has_somebody_beside_it(fanout: int, size: int) -> None:
    for position in range(size):
        found = set(backups(position, fanout, size))
        if tree.brothers(position, fanout, size):
            assert found & set(tree.brothers(position, fanout, size))
        if tree.uncles(position, fanout, size):
            assert found & set(tree.uncles(position, fanout, size))


@given(fanout=st.integers(2, 6), size=st.integers(4, 120))
def test_a_cut_between_child_and_parent_has_a_way_around(fanout: int, size: int) -> None:
    """Some backup of the child is a neighbour or a backup of the parent; except where the parent has one child only."""
    for position in range(1, size):
        above = tree.parent(position, fanout)
        assert above is not None
        ends = {*backups(above, fanout, size), *tree.children(above, fanout, size)}
        if (higher := tree.parent(above, fanout)) is not None:
            ends.add(higher)
        assert set(backups(position, fanout, size)) & ends or size == 2


@pytest.mark.parametrize("fanout", [2, 3, 4, 8])
def test_the_number_of_backup_links_grows_with_the_peers_and_not_faster(fanout: int) -> None:
    for size in (10, 100, 1000):
        links = sum(len(backups(position, fanout, size)) for position in range(size)) / 2
        assert links <= size * (2 + fanout) + math.log2(size)
