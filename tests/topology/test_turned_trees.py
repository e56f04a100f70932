"""The trees of a view with several lanes, against their definition: the first one, turned; and leaves of them all."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepeer.ids import PeerId
from edgepeer.topology import tree
from edgepeer.topology.view import Form, Member, View


def view(size: int, lanes: int, fanout: int, *, coded: bool = False, leaves: int = 0) -> View:
    ids = [f"p{at}" for at in range(size)]
    members = tuple(Member(id=name, incarnation=1) for name in ids)
    slots = tuple(ids) if coded else ()
    return View(epoch=1, members=members, fanout=fanout, lanes=lanes, slots=slots, leaves=min(leaves, size - 1))


FLAT = st.builds(view, size=st.integers(1, 33), lanes=st.integers(1, 16), fanout=st.integers(1, 4))
SHAPES = FLAT | st.builds(
    view, size=st.integers(1, 33), lanes=st.integers(1, 16), fanout=st.integers(1, 4), leaves=st.integers(0, 32)
)


@given(FLAT)
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
def test_each_is_a_tree(of: View) -> None:
    for lane in range(of.trees):
        deepest = 0
        for peer in of.ids:
            path = [peer]
            while (above := of.parent(path[-1], lane)) is not None:
                assert path[-1] in of.children(above, lane)
                path.append(above)
            deepest = max(deepest, len(path) - 1)
            below = [p for child in of.children(peer, lane) for p in of.names(of.below(child, lane))]
            assert sorted((peer, *below)) == sorted(of.names(of.below(peer, lane)))
        assert deepest == of.height


@given(SHAPES)
def test_the_last_are_leaves_of_all(of: View) -> None:
    core, last = of.ids[: of.size - of.leaves], of.ids[of.size - of.leaves :]
    hung: Counter[PeerId] = Counter()
    for lane in range(of.trees):
        assert not any(of.children(peer, lane) for peer in last)
        hosts = [of.parent(peer, lane) for peer in last]
        assert set(hosts) <= set(core)
        hung.update(peer for peer in hosts if peer is not None)
        # without them it is the tree of the others, and who has others below it there has none of these
        plain = view(len(core), of.trees, of.fanout)
        for peer in core:
            inside = tuple(child for child in of.children(peer, lane) if child in core)
            assert inside == plain.children(peer, lane)
            assert not inside or inside == of.children(peer, lane)
    each = [Counter(of.parent(peer, lane) for peer in last) for lane in range(of.trees)]
    assert all(max(count.values()) - min(count.values()) <= 1 for count in each if count)


@given(SHAPES)
def test_the_first_half_is_the_top_of_the_first_tree(of: View) -> None:
    holders = set(of.ids[: of.holders])
    assert all(of.parent(peer) in holders for peer in holders if peer != of.coordinator)


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


def test_coded_rounds_have_one_tree_and_nobody_is_a_leaf_of_all() -> None:
    assert view(7, 4, 2, coded=True).trees == 1
    assert view(3, 4, 2).trees == 3
    assert view(7, 4, 2, coded=True, leaves=5).children(PeerId("p1")) == ("p3", "p4")


def test_views_with_other_trees_are_told_apart() -> None:
    shapes = [view(7, lanes, 2, leaves=leaves) for lanes in (1, 2, 3, 4) for leaves in (0, 1, 2)]
    assert len({each.stamp for each in shapes}) == len(shapes)
    assert PeerId("p0") in view(1, 4, 2)


def test_somebody_is_no_leaf() -> None:
    with pytest.raises(ValueError, match="nobody in the view is no leaf"):
        View(epoch=1, members=(Member(id="a", incarnation=1),), leaves=1)


@given(of=SHAPES, data=st.data())
def test_who_is_a_leaf_of_all_comes_to_be_inside_only_if_no_other_is_left(of: View, data: st.DataObject) -> None:
    gone = data.draw(st.sets(st.sampled_from(of.ids), max_size=of.size - 1))
    joined = [Member(id=f"q{n}", incarnation=1) for n in range(data.draw(st.integers(0, 2)))]
    following = of.successor(first_round=1, without=gone, joined=joined)
    core, last = set(of.ids[: of.size - of.leaves]), set(of.ids[of.size - of.leaves :])
    if core - gone and last - gone:
        assert set(following.ids[: following.size - following.leaves]) == core - gone
        assert following.leaves == len(last - gone) + len(joined)
    else:
        assert following.leaves == 0
    assert (following.fanout, following.lanes, following.why) == (of.fanout, of.lanes, of.why)


@given(of=SHAPES, data=st.data())
def test_the_form_of_the_next_view(of: View, data: st.DataObject) -> None:
    order = tuple(data.draw(st.permutations(of.ids)))
    leaves = data.draw(st.integers(0, of.size - 1))
    form = Form(order=order, fanout=3, lanes=2, leaves=leaves, why="it is faster")
    following = of.successor(first_round=4, form=form)
    assert (following.ids, following.fanout, following.lanes, following.leaves, following.why) == (
        order, 3, 2, leaves, "it is faster",
    )  # fmt: skip
    assert set(following.members) == set(of.members)
    assert following.epoch == of.epoch + 1


def test_why_a_view_is_as_it_is_is_said_as_long_as_it_has_the_same_members() -> None:
    """It tells how long a round of these takes."""
    members = tuple(Member(id=name, incarnation=1) for name in "abcdef")
    of = View(epoch=1, members=members, leaves=1, why="leaves only f: 0.28 s a round")
    again = of.successor(first_round=2, without={PeerId("b")}, joined=[Member(id="b", incarnation=2)])
    assert (again.member(PeerId("b")).incarnation, again.why) == (2, of.why)
    assert of.successor(first_round=2, run="r").why == of.why
    assert of.successor(first_round=2, without={PeerId("b")}).why == ""
    assert of.successor(first_round=2, joined=[Member(id="q", incarnation=1)]).why == ""


@given(of=SHAPES, data=st.data())
def test_what_two_have_in_common(of: View, data: st.DataObject) -> None:
    one, other = (data.draw(st.integers(0, of.size - 1)) for _ in range(2))
    plan = of.plan
    found = sum(other in (plan.parent(one, lane), *plan.children(one, lane)) for lane in range(plan.count))
    assert plan.common(one, other) == plan.common(other, one) == found
