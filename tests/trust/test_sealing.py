"""What one life seals for another that others carry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepeer.errors import TrustError
from edgepeer.trust import sealing
from edgepeer.trust.sealing import OVERHEAD_BYTES, Correspondence, Window


def pair(fabric: str = "lab") -> tuple[Correspondence, Correspondence]:
    """Those of a and b, who know each other."""
    a, b = Correspondence(fabric, "a"), Correspondence(fabric, "b")
    a.learn("b", 1, b.key)
    b.learn("a", 1, a.key)
    return a, b


def test_what_is_sealed_for_a_peer_it_can_open() -> None:
    a, b = pair()
    for text in (b"", b"hello", bytes(300_000)):
        sealed = a.seal("b", text, b"about")
        assert len(sealed) == len(text) + OVERHEAD_BYTES
        assert b.open("a", sealed, b"about") == text
        assert a.open("b", b.seal("a", text, b""), b"") == text


def test_nothing_that_was_changed_opens() -> None:
    a, b = pair()
    sealed = a.seal("b", b"hello", b"about")
    for at in range(len(sealed)):
        changed = bytearray(sealed)
        changed[at] ^= 1
        with pytest.raises(TrustError):
            b.open("a", changed, b"about")
    for cut in range(len(sealed)):
        with pytest.raises(TrustError):
            b.open("a", sealed[:cut], b"about")
    with pytest.raises(TrustError, match="changed on the way"):
        b.open("a", sealed, b"otherwise")
    assert b.open("a", sealed, b"about") == b"hello"  # and nothing of that is held against the right one


def test_nothing_opens_twice() -> None:
    a, b = pair()
    sealed = a.seal("b", b"hello", b"")
    b.open("a", sealed, b"")
    with pytest.raises(TrustError, match="has come before"):
        b.open("a", sealed, b"")


def test_what_is_in_another_order_opens_once_each_unless_it_is_far_behind() -> None:
    a, b = pair()
    letters = [a.seal("b", b"%d" % number, b"") for number in range(2000)]
    assert b.open("a", letters[1023], b"") == b"1023"
    assert b.open("a", letters[0], b"") == b"0"
    assert b.open("a", letters[1024], b"") == b"1024"
    for number in (0, 1023, 1024):
        with pytest.raises(TrustError, match="has come before"):
            b.open("a", letters[number], b"")
    assert b.open("a", letters[1999], b"") == b"1999"
    with pytest.raises(TrustError, match="far too late"):
        b.open("a", letters[900], b"")
    assert b.open("a", letters[1000], b"") == b"1000"


def test_nothing_opens_where_it_comes_from_or_at_anybody_elses() -> None:
    a, b = pair()
    c = Correspondence("lab", "c")
    sealed = a.seal("b", b"hello", b"")
    for one in (a, b):
        c.learn("a", 1, a.key)
        one.learn("c", 1, c.key)
    with pytest.raises(TrustError, match="not sealed by b"):
        a.open("b", sealed, b"")
    with pytest.raises(TrustError, match="not sealed by a"):
        c.open("a", sealed, b"")
    with pytest.raises(TrustError, match="not sealed by c"):
        b.open("c", sealed, b"")


def test_what_a_life_seals_for_itself_opens_there_once_and_nowhere_else() -> None:
    a, b = pair()
    sealed = a.seal("a", b"hello", b"about")
    with pytest.raises(TrustError, match="not sealed by a"):
        b.open("a", sealed, b"about")
    assert a.open("a", sealed, b"about") == b"hello"
    with pytest.raises(TrustError, match="has come before"):
        a.open("a", sealed, b"about")
    anew = Correspondence("lab", "a")
    with pytest.raises(TrustError, match="not sealed by a"):
        anew.open("a", a.seal("a", b"hello", b""), b"")


def test_nor_in_another_fabric_with_the_same_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = pair()
    other, _ = pair("barn")
    other._private, other._others = b._private, {}
    other._me, other.key = "b", b.key  # type: ignore[misc]
    other.learn("a", 1, a.key)
    with pytest.raises(TrustError, match="not sealed by a"):
        other.open("a", a.seal("b", b"hello", b""), b"")


def test_a_later_life_has_another_key_and_an_earlier_one_does_not_come_back() -> None:
    a, b = pair()
    early = a.seal("b", b"early", b"")
    anew = Correspondence("lab", "b")
    anew.learn("a", 1, a.key)
    a.learn("b", 2, anew.key)
    a.learn("b", 1, b.key, hearsay=True)
    a.learn("b", 2, b.key, hearsay=True)
    assert anew.open("a", a.seal("b", b"late", b""), b"") == b"late"
    with pytest.raises(TrustError):
        anew.open("a", early, b"")
    with pytest.raises(TrustError, match="as it lives now"):
        a.open("b", b.seal("a", b"of the dead", b""), b"")


def test_who_counts_its_lives_anew_is_believed_about_its_own_key() -> None:
    a, b = pair()
    a.learn("b", 9, b.key)
    anew = Correspondence("lab", "b")
    anew.learn("a", 1, a.key)
    a.learn("b", 2, anew.key, hearsay=True)
    with pytest.raises(TrustError):
        anew.open("a", a.seal("b", b"x", b""), b"")
    a.learn("b", 2, anew.key)
    assert anew.open("a", a.seal("b", b"y", b""), b"") == b"y"


def test_who_joins_again_in_the_same_process_goes_on() -> None:
    a, b = pair()
    first = a.seal("b", b"first", b"")
    b.open("a", first, b"")
    b.learn("a", 7, a.key)
    with pytest.raises(TrustError, match="has come before"):
        b.open("a", first, b"")
    assert b.open("a", a.seal("b", b"second", b""), b"") == b"second"


def test_of_who_was_evicted_nothing_opens_until_it_has_come_anew() -> None:
    a, b = pair()
    sealed = b.seal("a", b"x", b"")
    a.forget("b")
    a.learn("b", 1, b.key, hearsay=True)
    with pytest.raises(TrustError):
        a.open("b", sealed, b"")
    with pytest.raises(TrustError):
        a.seal("b", b"x", b"")
    a.learn("b", 2, b.key)
    assert a.open("b", sealed, b"") == b"x"


def test_a_key_that_is_learned_again_goes_on_where_it_was() -> None:
    """No nonce comes twice with one key, and nothing opens twice, whatever was said of other lives meanwhile."""
    a, b = pair()
    first = a.seal("b", b"the same", b"")
    b.open("a", first, b"")
    for one, other, its in ((a, "b", b.key), (b, "a", a.key)):
        one.learn(other, 2, Correspondence("lab", other).key)
        one.learn(other, 3, its)
        one.forget(other)
        one.learn(other, 4, its)
    assert a.seal("b", b"the same", b"") != first
    with pytest.raises(TrustError, match="has come before"):
        b.open("a", first, b"")


@pytest.mark.parametrize("key", [b"", b"short", bytes(31), bytes(33)])
def test_what_is_no_key_is_not_learned(key: bytes) -> None:
    a = Correspondence("lab", "a")
    a.learn("b", 1, key)
    with pytest.raises(TrustError, match="no key of b is known"):
        a.seal("b", b"hello", b"")


def test_a_key_that_makes_the_same_with_every_other_is_none() -> None:
    a = Correspondence("lab", "a")
    a.learn("b", 1, bytes(32))
    with pytest.raises(TrustError, match="is none"):
        a.seal("b", b"hello", b"")
    with pytest.raises(TrustError, match="is none"):
        a.open("b", bytes(40), b"")


def test_numbers_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "_LAST", 2)
    a, b = pair()
    letters = [a.seal("b", b"x", b"") for _ in range(3)]
    with pytest.raises(TrustError, match="no number is left"):
        a.seal("b", b"x", b"")
    assert [b.open("a", each, b"") for each in letters] == [b"x"] * 3
    with pytest.raises(TrustError, match="far too late"):
        b.open("a", b"\xff" * 40, b"")


def test_keys_of_many_peers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "_OTHERS", 3)
    a, b = pair()
    for number in range(10):
        a.learn(f"p{number}", 1, b.key)
    assert len(a._others) == 3
    # Whoever tells of them, whether they are heard themselves or not, and whoever of them is evicted.
    for number in range(20):
        key = Correspondence("lab", "b").key
        a.learn(f"p{number}", 2, key, hearsay=number % 2 == 0)
        a.forget(f"p{number - 1}")
        a.forget(f"unknown{number}")
    assert len(a._others) == 3
    assert len(a._windows) == 6


@given(st.lists(st.integers(0, 3000), max_size=300))
def test_the_window_is_a_set_of_what_has_come(numbers: list[int]) -> None:
    window, came = Window(), set[int]()
    for number in numbers:
        fresh = number not in came and number > max(came, default=-1) - 1024
        assert window.fresh(number) == fresh
        if fresh:
            window.came(number)
            came.add(number)
