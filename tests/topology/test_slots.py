"""Who computes for which worker of a code, from view to view."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepeer.ids import PeerId
from edgepeer.topology.view import Member, View, hand_on

B = PeerId("b")


def loads(slots: tuple[str, ...], peers: tuple[str, ...]) -> list[int]:
    count = Counter(slots)
    return [count[peer] for peer in peers]


def is_even(slots: tuple[str, ...], peers: tuple[str, ...]) -> bool:
    return max(loads(slots, peers)) - min(loads(slots, peers)) <= 1


def moved(before: tuple[str, ...], after: tuple[str, ...]) -> int:
    return sum(one != other for one, other in zip(before, after, strict=True))


def fewest_moves(slots: tuple[str, ...], peers: tuple[str, ...]) -> int:
    """The slow way: of all ways to own the slots evenly, the one that moves the fewest."""
    ways = itertools.product(peers, repeat=len(slots))
    return min(moved(slots, way) for way in ways if is_even(way, peers))


fleets = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4, unique=True).map(tuple)
owners = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6).map(tuple)


@given(owners, fleets)
def test_as_few_slots_as_possible_move(slots: tuple[str, ...], peers: tuple[str, ...]) -> None:
    following = hand_on(slots, peers)
    assert set(following) <= set(peers)
    assert is_even(following, peers)
    assert moved(slots, following) == fewest_moves(slots, peers)
    assert hand_on(following, peers) == following


def test_at_the_start_everybody_has_one() -> None:
    assert hand_on((), ("a", "b", "c")) == ("a", "b", "c")


@pytest.mark.parametrize(
    ("peers", "slots"),
    [("abd", "abad"), ("abcde", "abcd"), ("ad", "aadd"), ("x", "xxxx"), ("abdx", "abxd")],
)
def test_who_goes_hands_on_what_it_had(peers: str, slots: str) -> None:
    assert hand_on(tuple("abcd"), tuple(peers)) == tuple(slots)


# -- in views ------------------------------------------------------------------------------------------------


def members(names: str) -> tuple[Member, ...]:
    return tuple(Member(id=name, incarnation=1) for name in names)


def of(names: str, slots: str, *, run: str = "run") -> View:
    return View(epoch=1, members=members(names), run=run, slots=tuple(slots))


def test_a_run_stays_coded_whoever_makes_its_next_view() -> None:
    """Who takes over may not have been given the code yet."""
    assert of("abcd", "abcd").successor(first_round=5, without={B}, coded=False).slots == tuple("aacd")


def test_another_run_and_calls_without_one_begin_anew() -> None:
    assert of("abc", "aba").successor(first_round=1, run="next", coded=True).slots == tuple("abc")
    assert of("abc", "aba").successor(first_round=1, run="next", coded=False).slots == ()
    assert of("abc", "abc", run="").successor(first_round=3, without={B}, coded=True).slots == tuple("ac")
    assert of("abc", "abc", run="").successor(first_round=3, without={B}, coded=False).slots == ()


def test_a_run_that_goes_on_from_a_checkpoint_has_as_many_slots_as_it_had() -> None:
    """A code that was to be had of three may not be to be had of two."""
    before = of("ab", "", run="")
    assert before.successor(first_round=1, run="run", coded=True, slots=tuple("abc")).slots == tuple("aba")
    assert before.successor(first_round=1, run="run", coded=False, slots=tuple("abc")).slots == ()
    assert before.successor(first_round=1, coded=True, slots=tuple("abc")).slots == tuple("ab")
    assert of("ab", "bab").successor(first_round=9, coded=True, slots=tuple("abc")).slots == tuple("bab")


def test_views_with_other_owners_have_other_stamps() -> None:
    assert of("abc", "abc").stamp != of("abc", "acb").stamp
    assert of("abc", "aab").owned == {PeerId("a"): (0, 1), PeerId("b"): (2,)}


def test_a_slot_of_nobody() -> None:
    with pytest.raises(ValueError, match="belongs to nobody"):
        of("abc", "abx")
