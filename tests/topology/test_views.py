"""Views: their order, and how one follows another."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepeer.errors import WireError
from edgepeer.ids import PeerId
from edgepeer.topology import tree
from edgepeer.topology.view import MAX_FANOUT, MAX_MEMBERS, Member, View
from edgepeer.wire.documents import pack, unpack

names = st.lists(st.sampled_from("abcdefghijklmnop"), min_size=1, max_size=12, unique=True)


def of(order: list[str] | str, *, epoch: int = 3, fanout: int = 2, life: int = 1) -> View:
    return View(epoch=epoch, members=tuple(Member(id=name, incarnation=life) for name in order), fanout=fanout)


views = st.builds(of, names, epoch=st.integers(1, 3), life=st.integers(1, 2))


def links(view: View) -> set[frozenset[str]]:
    return {frozenset((peer, above)) for peer in view.ids if (above := view.parent(peer)) is not None}


# -- which of two views is the newer -----------------------------------------------------------------------


@given(views, views)
def test_of_two_different_views_exactly_one_precedes(one: View, other: View) -> None:
    assert not one.precedes(one)
    if one.epoch != other.epoch or one.members != other.members:
        assert one.precedes(other) != other.precedes(one)


@given(views, views, views)
def test_precedes_is_transitive(one: View, two: View, three: View) -> None:
    for a, b, c in itertools.permutations((one, two, three)):
        if a.precedes(b) and b.precedes(c):
            assert a.precedes(c)


def test_what_decides() -> None:
    assert of("ab", epoch=1).precedes(of("z", epoch=2))
    assert of("a").precedes(of("yz"))  # the larger fleet
    assert of("bc").precedes(of("ac")) != of("ac").precedes(of("bc"))  # whichever, but all peers agree


@given(views, views)
def test_frames_name_a_view_by_its_stamp(one: View, other: View) -> None:
    assert one.stamp == of(list(one.ids), epoch=one.epoch, life=one.members[0].incarnation).stamp
    assert (one.stamp == other.stamp) == (one.epoch == other.epoch and one.members == other.members)
    assert one.stamp < 2**53
    assert one.stamp >> 33 == one.epoch
    assert one.epoch >= other.epoch or one.stamp < other.stamp


def test_views_for_another_run_or_round_have_another_stamp() -> None:
    view = of("ab")
    others = [view.successor(first_round=number, run=run) for run in ("", "r", "s") for number in (1, 2)]
    assert len({other.stamp for other in others}) == 6


def test_the_largest_stamp_fits_a_frame() -> None:
    members = tuple(Member(id=f"p{n}", incarnation=1) for n in range(MAX_MEMBERS))
    assert View(epoch=(1 << 20) - 1, members=members).stamp < 2**53


# -- the next view -----------------------------------------------------------------------------------------


@given(order=names, data=st.data(), fanout=st.integers(1, 4))
def test_successor(order: list[str], data: st.DataObject, fanout: int) -> None:
    view = of(order, fanout=fanout)
    gone = data.draw(st.sets(st.sampled_from(order), max_size=len(order) - 1))
    staying = [name for name in order if name not in gone]
    joined = [Member(id=name, incarnation=2) for name in data.draw(st.sets(st.sampled_from("uvwxyz")))]
    head = data.draw(st.none() | st.sampled_from(staying))
    following = view.successor(
        first_round=7,
        without={PeerId(name) for name in gone},
        joined=joined,
        coordinator=PeerId(head) if head is not None else None,
    )
    assert following.epoch == view.epoch + 1
    assert view.precedes(following)
    assert following.first_round == 7
    assert (following.fanout, following.run) == (fanout, "")
    assert set(following.ids) == set(staying) | {member.id for member in joined}
    assert {m for m in following.members if m.id in staying} == {m for m in view.members if m.id in staying}
    if head is not None:
        assert following.coordinator == head
    elif order[0] not in gone:
        assert following.coordinator == order[0]
    # Few links change: what is new is where somebody took the place of somebody who left, and where joiners are.
    moved = len(gone) + (head is not None)
    assert len(links(following) - links(view)) <= (2 * moved) * (fanout + 1) + len(joined)


@given(order=names, joined=st.sets(st.sampled_from("uvwxyz")))
def test_joiners_go_to_the_end_and_move_nobody(order: list[str], joined: set[str]) -> None:
    view = of(order)
    following = view.successor(first_round=1, joined=[Member(id=name, incarnation=1) for name in sorted(joined)])
    assert following.ids[: len(order)] == view.ids
    assert links(view) <= links(following)


def test_a_peer_that_comes_back_in_a_new_life_replaces_its_old_one() -> None:
    view = of("abcd")
    following = view.successor(first_round=1, without={PeerId("b")}, joined=[Member(id="b", incarnation=2)])
    assert following.ids == ("a", "d", "c", "b")
    assert following.member(PeerId("b")).incarnation == 2


def test_who_is_in_already_does_not_join_again() -> None:
    assert (
        of("ab").successor(first_round=1, joined=[Member(id="b", incarnation=9)]).member(PeerId("b")).incarnation == 1
    )


@given(names, st.integers(1, 4))
def test_positions_names_and_neighbours_agree(order: list[str], fanout: int) -> None:
    view = of(order, fanout=fanout)
    for position, name in enumerate(order):
        peer = PeerId(name)
        assert view.position(peer) == position
        assert peer in view
        around = {other for pair in links(view) if peer in pair for other in pair} - {peer}
        assert set(view.neighbours(peer)) == around
    assert view.names(view.everyone) == view.ids
    assert view.names(0b101) == tuple(view.ids[:1] + view.ids[2:3])
    with pytest.raises(KeyError):
        view.position(PeerId("stranger"))


# -- quorum ------------------------------------------------------------------------------------------------


def parts(ids: tuple[PeerId, ...]) -> list[frozenset[PeerId]]:
    return [frozenset(part) for n in range(len(ids) + 1) for part in itertools.combinations(ids, n)]


def quorate(size: int, quorum: int) -> View:
    members = tuple(Member(id=f"p{n}", incarnation=1) for n in range(size))
    return View(epoch=1, members=members, quorum=quorum)


@pytest.mark.parametrize("size", range(1, 10))
def test_of_two_disjoint_parts_only_one_may_go_on(size: int) -> None:
    view = quorate(size, 0)
    sides = {part: view.has_quorum(part) for part in parts(view.ids)}
    everyone = frozenset(view.ids)
    for part, may in sides.items():
        # it is enough to look at the largest of the disjoint parts, since a larger part never loses its quorum
        assert not (may and sides[everyone - part])
        assert all(sides[part | {peer}] or not may for peer in everyone)
        assert may == (2 * len(part) > size or (2 * len(part) == size and view.coordinator in part))


@pytest.mark.parametrize("size", range(1, 8))
def test_also_if_some_are_known_to_be_dead(size: int) -> None:
    """Both sides need not know of the same deaths, but nobody on either side is dead."""
    view = quorate(size, 0)
    everyone = frozenset(view.ids)
    for one in parts(view.ids):
        for other in parts(tuple(sorted(everyone - one))):
            rest = everyone - one - other
            known = parts(tuple(sorted(rest)))
            ones = any(view.has_quorum(one, dead) for dead in known)
            assert not (ones and any(view.has_quorum(other, dead) for dead in known))


@pytest.mark.parametrize("size", range(1, 10))
@pytest.mark.parametrize("quorum", range(10))
def test_every_quorum_has_one_of_those_who_must_hold_a_result(size: int, quorum: int) -> None:
    view = quorate(size, quorum)
    holders = frozenset(view.ids[: view.holders])
    assert 1 <= view.holders <= size
    assert view.has_quorum(holders)
    for part in parts(view.ids):
        assert part & holders or not view.has_quorum(part)


@pytest.mark.parametrize("size", range(1, 10))
@pytest.mark.parametrize("quorum", range(1, 11))
def test_a_configured_quorum_is_a_number_of_members(size: int, quorum: int) -> None:
    view = quorate(size, quorum)
    for part in parts(view.ids):
        assert view.has_quorum(part) == (len(part) >= min(quorum, size))


def test_whoever_is_known_to_be_dead_is_not_waited_for() -> None:
    view = of("abcde")
    assert not view.has_quorum({PeerId("d"), PeerId("e")})
    assert view.has_quorum({PeerId("d"), PeerId("e")}, dead={PeerId("a"), PeerId("b")})
    assert not view.has_quorum({PeerId("d")}, dead={PeerId("a"), PeerId("b")})
    assert not of("ab").has_quorum({PeerId("b")})
    assert of("ab").has_quorum({PeerId("b")}, dead={PeerId("a")})
    three = View(epoch=1, members=of("abcd").members, quorum=3)
    assert not three.has_quorum({PeerId("c"), PeerId("d")}, dead={PeerId("a")})
    assert three.has_quorum({PeerId("c"), PeerId("d")}, dead={PeerId("a"), PeerId("b")})


def test_strangers_do_not_count() -> None:
    assert not of("abc").has_quorum({PeerId("a"), PeerId("x"), PeerId("y")})


def test_the_quorum_goes_from_view_to_view() -> None:
    assert quorate(5, 4).successor(first_round=1, without={PeerId("p1")}).quorum == 4


@given(names, st.integers(1, 4))
def test_backups_by_name(order: list[str], fanout: int) -> None:
    view = of(order, fanout=fanout)
    for peer in view.ids:
        found = view.backups(peer)
        assert tuple(view.position(other) for other in found) == tree.backups(view.position(peer), fanout, view.size)
        assert not set(found) & {peer, *view.neighbours(peer)}


# -- bounds ------------------------------------------------------------------------------------------------


@given(views)
def test_round_trip(view: View) -> None:
    assert unpack(pack(view), View) == view


@pytest.mark.parametrize(
    "fields",
    [
        {"epoch": 0},
        {"epoch": -1},
        {"epoch": 1 << 20},
        {"members": []},
        {"members": [{"id": f"p{n}", "incarnation": 1} for n in range(MAX_MEMBERS + 1)]},
        {"members": [{"id": "a", "incarnation": 1}, {"id": "a", "incarnation": 2}]},
        {"members": [{"id": "", "incarnation": 1}]},
        {"members": [{"id": "a/b", "incarnation": 1}]},
        {"members": [{"id": "a\n", "incarnation": 1}]},
        {"members": [{"id": "x" * 64, "incarnation": 1}]},
        {"members": [{"id": "a", "incarnation": -1}]},
        {"members": [{"id": "a", "incarnation": 1, "addresses": ["x" * 129]}]},
        {"members": [{"id": "a", "incarnation": 1, "addresses": ["x"] * 17}]},
        {"fanout": 0},
        {"fanout": MAX_FANOUT + 1},
        {"run": "x" * 64},
        {"first_round": 0},
        {"quorum": -1},
        {"quorum": MAX_MEMBERS + 1},
    ],
)
def test_views_that_are_none(fields: dict[str, object]) -> None:
    import msgpack

    good = {"v": 1, "epoch": 1, "members": [{"id": "a", "incarnation": 1}]}
    unpack(msgpack.packb(good), View)
    with pytest.raises(WireError):
        unpack(msgpack.packb(good | fields), View)


def test_the_largest_view_fits_its_limit() -> None:
    members = tuple(Member(id=f"{n:063}", incarnation=1 << 40, addresses=("x" * 128,) * 4) for n in range(MAX_MEMBERS))
    assert unpack(pack(View(epoch=1, members=members)), View).size == MAX_MEMBERS
