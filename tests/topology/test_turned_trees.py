"""The trees of a view with several lanes, against their definition: the first one, turned."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgepeer.ids import PeerId
from edgepeer.topology import tree
from edgepeer.topology.view import Member, View


def view(size: int, lanes: int, fanout: int, *, coded: bool = False) -> View:
    ids = [f"p{at}" for at in range(size)]
    members = tuple(Member(id=name, incarnation=1) for name in ids)
    return View(epoch=1, members=members, fanout=fanout, lanes=lanes, slots=tuple(ids) if coded else ())


SHAPES = st.builds(view, size=st.integers(1, 33), lanes=st.integers(1, 16), fanout=st.integers(1, 4))


@given(SHAPES)
def test_each_is_the_first_one_turned(of: View) -> None:
    for lane in range(of.trees):
        first = lane * of.size // of.trees
        order = of.ids[first:] + of.ids[:first]
        for place, peer in enumerate(order):
            above = tree.parent(place, of.fanout)
            assert of.parent(peer, lane) == (None if above is None else order[above])
            assert of.children(peer, lane) == tuple(order[p] for p in tree.children(place, of.fanout, of.size))
            assert set(of.names(of.below(peer, lane))) == {order[p] for p in tree.subtree(place, of.fanout, of.size)}


@given(SHAPES)
def test_roots_are_spread(of: View) -> None:
    roots = [next(p for p in of.ids if of.parent(p, lane) is None) for lane in range(of.trees)]
    assert roots[0] == of.coordinator
    assert len(set(roots)) == of.trees


@given(SHAPES)
def test_neighbours_and_backups_know_each_other(of: View) -> None:
    for peer in of.ids:
        around, backups = of.neighbours(peer), of.backups(peer)
        assert not set(around) & set(backups)
        assert peer not in (*around, *backups)
        assert all(peer in of.neighbours(other) for other in around)
        assert all(peer in of.backups(other) for other in backups)


@given(SHAPES)
def test_the_shortest_ways_reach_everybody_over_links_that_there_are(of: View) -> None:
    met = [of.coordinator]
    for peer in met:
        above, below = of.shortest(peer)
        assert above is None if peer == of.coordinator else above in of.neighbours(peer)
        assert all(of.shortest(other)[0] == peer for other in below)
        met.extend(below)
    assert sorted(met) == sorted(of.ids)


@given(size=st.integers(1, 33), fanout=st.integers(1, 4))
def test_with_one_tree_these_are_parent_and_children(size: int, fanout: int) -> None:
    of = view(size, 1, fanout)
    for peer in of.ids:
        above, below = of.parent(peer), of.children(peer)
        assert of.shortest(peer) == (above, below)
        assert of.neighbours(peer) == (*((above,) if above is not None else ()), *below)


def test_half_of_all_are_inside_of_each_tree_and_nobody_of_all() -> None:
    of = view(15, 4, 2)
    inside = {peer: sum(bool(of.children(peer, lane)) for lane in range(4)) for peer in of.ids}
    assert set(inside.values()) <= {1, 2, 3}
    assert sum(inside.values()) == 28


def test_coded_rounds_have_one_tree() -> None:
    assert view(7, 4, 2, coded=True).trees == 1
    assert view(3, 4, 2).trees == 3


def test_views_with_other_trees_are_told_apart() -> None:
    assert len({view(7, lanes, 2).stamp for lanes in (1, 2, 3, 4)}) == 4
    assert PeerId("p0") in view(1, 4, 2)
