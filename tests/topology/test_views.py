"""Views: their order, and how one follows another."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepeer.errors import WireError
from edgepeer.ids import Generation, PeerId
from edgepeer.topology import tree
from edgepeer.topology.view import MAX_EPOCH, MAX_FANOUT, MAX_GUARDS, MAX_MEMBERS, Life, Member, View, enough
from edgepeer.wire import codec
from edgepeer.wire.documents import pack, unpack
from edgepeer.wire.frames import ViewFrame

names = st.lists(st.sampled_from("abcdefghijklmnop"), min_size=1, max_size=12, unique=True)


def of(order: list[str] | str, *, epoch: int = 3, fanout: int = 2, life: int = 1, counter: int = 1) -> View:
    members = tuple(Member(id=name, incarnation=life) for name in order)
    return View(generation=Generation(counter), epoch=epoch, members=members, fanout=fanout)


generations = st.builds(Generation, st.integers(1, 3), st.integers(1, 3), st.integers(0, 3))
views = st.builds(of, names, epoch=st.integers(1, 3), life=st.integers(1, 2), counter=st.integers(1, 2))


def links(view: View) -> set[frozenset[str]]:
    return {frozenset((peer, above)) for peer in view.ids if (above := view.parent(peer)) is not None}


# -- which of two views is the newer -----------------------------------------------------------------------


@given(views, views)
def test_the_later_generation_then_the_later_epoch_counts_and_nothing_else(one: View, other: View) -> None:
    """Of one generation and epoch there is one view: there is nothing to compare by size or by names."""
    assert not one.precedes(one)
    places = [(view.generation.counter, view.epoch) for view in (one, other)]
    assert one.precedes(other) == (places[0] < places[1])
    assert (one.place == other.place) == (places[0] == places[1])


@given(generations, generations)
def test_of_two_generations_one_is_the_later(one: Generation, other: Generation) -> None:
    """First the counter counts, then the number of founders; two of the same are told apart by their lives."""
    fields = [(each.counter, each.founders, each.nonce) for each in (one, other)]
    assert (one < other) == (fields[0] < fields[1])
    assert (one == other) == (fields[0] == fields[1])
    assert View(generation=one, epoch=9, members=of("ab").members).precedes(
        View(generation=other, epoch=1, members=of("ab").members)
    ) == (one < other)


def test_a_generation_is_later_than_those_that_its_founders_knew_of_and_has_a_name_of_its_own() -> None:
    lives = [("a", 1), ("b", 1)]
    first = Generation.after(None, lives)
    assert (first.counter, first.founders) == (1, 2)
    assert Generation.after(None, lives) == first  # who makes it twice has made the same
    others = {Generation.after(None, [("a", 2), ("b", 1)]), Generation.after(None, lives[:1])}
    assert first not in others
    assert len(others) == 2
    after = Generation.after(first, lives[:1])
    assert first < after  # however few begin it
    assert (after.counter, after.founders) == (2, 1)
    newest = Generation(2**31 - 1, 7, 5)
    last = Generation.after(newest, lives)
    assert last.counter == 2**31 - 1  # a bound, which nobody gets to by counting
    assert last != newest


@given(views, views)
def test_frames_name_a_view_by_its_stamp(one: View, other: View) -> None:
    again = of(list(one.ids), epoch=one.epoch, life=one.members[0].incarnation, counter=one.generation.counter)
    assert one.stamp == again.stamp
    same = (one.generation, one.epoch, one.members) == (other.generation, other.epoch, other.members)
    assert (one.stamp == other.stamp) == same
    assert one.stamp >> 32 == one.epoch
    assert one.epoch >= other.epoch or one.stamp < other.stamp


def test_views_for_another_run_or_round_have_another_stamp() -> None:
    view = of("ab")
    others = [view.successor(first_round=number, run=run) for run in ("", "r", "s") for number in (1, 2)]
    assert len({other.stamp for other in others}) == 6


def test_plain_rounds_go_on_after_a_run_with_a_number_that_none_has_had() -> None:
    """The round that came next may have been decided, and be known to none but its holders."""
    plain = of("ab").successor(first_round=7)
    run = plain.successor(first_round=9, run="r")
    assert (run.first_round, run.plain_round) == (1, 10)
    other = run.successor(first_round=5).successor(first_round=6, run="s")
    assert (other.first_round, other.plain_round) == (1, 11)
    after = other.successor(first_round=3, run="")
    assert (after.run, after.first_round, after.plain_round) == ("", 11, 1)


def test_no_two_beginnings_of_a_run_are_alike() -> None:
    run = of("ab").successor(first_round=7, run="r")
    between = [run.successor(first_round=3, run=other) for other in ("", "s")]
    assert run.successor(first_round=3).beginning == run.beginning
    assert all(view.successor(first_round=1, run="r").beginning != run.beginning for view in between)


def test_the_largest_stamp_fits_a_frame() -> None:
    members = tuple(Member(id=f"p{n}", incarnation=1) for n in range(MAX_MEMBERS))
    frame = ViewFrame(epoch=View(epoch=MAX_EPOCH, members=members).stamp)
    kind, header_bytes, _ = codec.decode_prelude(encoded := codec.encode(frame))
    assert codec.decode_header(kind, encoded[-header_bytes:], 0) == frame


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


def quorate(size: int, quorum: int = 0) -> View:
    members = tuple(Member(id=f"p{n}", incarnation=1) for n in range(size))
    return View(epoch=1, members=members, quorum=quorum)


@pytest.mark.parametrize("size", range(1, 8))
@pytest.mark.parametrize("least", [0, 2, 4, 9])
def test_what_is_enough(size: int, least: int) -> None:
    """More than half, or half with the head; at least so many. Any two share a member, and each meets the holders."""
    view = quorate(size, least)
    holders = frozenset(view.ids[: view.holders])
    quorums = []
    for part in parts(view.ids):
        half = 2 * len(part) > size or (2 * len(part) == size and view.coordinator in part)
        expected = half and len(part) >= min(least, size)
        assert enough(view.ids, part, least) == view.may_go_on(part, settled=True) == expected
        assert view.may_go_on(part, settled=False) == expected  # nothing precedes it
        quorums += [part] if expected else []
    assert frozenset(view.ids) in quorums
    for one, other in itertools.combinations_with_replacement(quorums, 2):
        assert one & other
    assert all(quorum & holders for quorum in quorums)
    if not least:
        assert any(quorum <= holders | {view.ids[-1]} for quorum in quorums)


@pytest.mark.parametrize("size", range(1, 8))
def test_any_half_that_holds_a_coded_result_with_the_root_meets_every_quorum(size: int) -> None:
    view = quorate(size)
    quorums = [part for part in parts(view.ids) if view.may_go_on(part, settled=True)]
    for part in parts(view.ids):
        if len(part) >= view.holders and view.coordinator in part:
            assert all(part & quorum for quorum in quorums)


def test_whoever_has_ended_counts_against_a_quorum_for_ever() -> None:
    """Who is dead for good has promised what it has promised: one of five with four dead is not a quorum."""
    view = of("abcde")
    assert not view.may_go_on({PeerId("a"), PeerId("b")}, settled=True)
    assert not of("ab").may_go_on({PeerId("b")}, settled=True)


def test_strangers_do_not_count() -> None:
    assert not of("abc").may_go_on({PeerId("a"), PeerId("x"), PeerId("y")}, settled=True)


def test_the_quorum_goes_from_view_to_view() -> None:
    assert quorate(5, 4).successor(first_round=1, without={PeerId("p1")}).quorum == 4


# -- views that are not settled ----------------------------------------------------------------------------


def chain(start: View, *steps: tuple[str, str]) -> View:
    """What comes of leaving out and letting in, nothing of it settled: ("de", "f") is without d and e, and with f."""
    view = start
    for gone, come in steps:
        without = {PeerId(name) for name in gone}
        joined = [Member(id=name, incarnation=view.epoch) for name in come]
        view = view.successor(first_round=1, without=without, joined=joined, settled=False)
    return view


def test_a_view_keeps_those_before_it_for_guards_until_it_is_settled() -> None:
    first = of("abc")
    second = first.successor(first_round=1, without={PeerId("c")}, settled=True)
    assert second.guards == (first.guard,)  # of the first nothing was open, but results of it may be
    news = [Member(id=name, incarnation=1) for name in "xy"]
    third = second.successor(first_round=1, joined=news, settled=False)
    assert third.guards == (first.guard,)  # who is a quorum of that is one of the second as well
    assert third.successor(first_round=1, settled=False).guards == (first.guard, third.guard)
    assert third.successor(first_round=1, settled=True).guards == (third.guard,)
    anew = third.successor(first_round=1, settled=False, generation=Generation(2))
    assert (anew.guards, anew.epoch, anew.generation) == ((), 1, Generation(2))
    assert third.leads_to(anew)
    assert third.leads_to(anew.successor(first_round=2))
    assert not second.leads_to(anew)
    assert second.leads_to(third)
    assert not anew.leads_to(of("abc"))
    assert first.guard.lives == (Life("a", 1), Life("b", 1), Life("c", 1))
    assert quorate(3, 2).guard.quorum == 2


STEPS = [[("c", "")], [("de", "")], [("e", ""), ("d", "")], [("", "xyz")], [("c", "c")], [("de", "xy"), ("x", "")]]


@pytest.mark.parametrize("steps", STEPS)
def test_until_then_each_quorum_has_a_holder_of_every_view_before(steps: list[tuple[str, str]]) -> None:
    view = chain(of("abcde"), *steps)
    both = [part for part in parts(view.ids) if view.may_go_on(part, settled=False)]
    assert both
    for part in both:
        assert view.may_go_on(part, settled=True)  # more is asked, never less
        assert enough(view.ids, part)
        lives = {(peer, view.member(peer).incarnation) for peer in part}
        for guard in view.guards:
            ids = [PeerId(life.id) for life in guard.lives]
            same = {life.id for life in guard.lives if (life.id, life.incarnation) in lives}
            assert enough(ids, same)
            assert same & set(ids[: (len(ids) + 1) // 2])


@given(st.lists(st.tuples(st.sets(st.sampled_from("abcdexyz")), st.sets(st.sampled_from("wxyz")), st.booleans())))
def test_what_is_no_guard_asks_for_nothing_that_guards_do_not_ask_for(
    steps: list[tuple[set[str], set[str], bool]],
) -> None:
    """Also where members come, and others are lost, and one who is not at the head comes to be."""
    view = of("abcde", life=0)
    before: list[View] = []
    for gone, come, head in steps:
        staying = [peer for peer in view.ids if peer not in gone]
        if staying:
            before.append(view)
            joined = [Member(id=name, incarnation=view.epoch) for name in sorted(come - set(staying))]
            leaving, first = set(map(PeerId, gone)), staying[-1] if head else None
            view = view.successor(first_round=1, without=leaving, joined=joined, coordinator=first, settled=False)
    everything = msgspec.structs.replace(view, guards=tuple(each.guard for each in before))
    for part in parts(view.ids):
        assert view.may_go_on(part, settled=False) == everything.may_go_on(part, settled=False)


def test_however_many_are_lost_one_after_the_other_the_first_view_is_guard_enough() -> None:
    view = first = View(epoch=1, members=tuple(Member(id=f"p{at}", incarnation=1) for at in range(200)))
    for at in range(1, 2 + MAX_GUARDS):
        view = view.successor(first_round=1, without={PeerId(f"p{at}")}, settled=False)
        assert view.guards == (first.guard,)


def test_who_has_been_left_out_is_known_by_its_life() -> None:
    view = chain(of("abc"), ("c", ""), ("", "x"))
    left_out = [Member(id=name, incarnation=life) for name, life in (("a", 1), ("c", 1), ("c", 2), ("y", 1))]
    assert [view.has_left_out(member) for member in left_out] == [False, True, False, False]


def test_another_life_is_no_witness_of_what_the_first_has_seen() -> None:
    view = chain(of("abc"), ("bc", "bc"))
    assert view.member(PeerId("b")).incarnation == 3
    assert view.may_go_on(view.ids, settled=True)
    assert not view.may_go_on(view.ids, settled=False)


def test_where_too_few_are_left_of_a_guard_only_being_settled_helps() -> None:
    view = chain(of("abcde"), ("de", ""), ("c", ""))
    assert not view.may_go_on(view.ids, settled=False)
    assert view.may_go_on({PeerId("a")}, settled=True)


def test_step_by_step_a_minority_does_not_become_the_whole() -> None:
    view = chain(of("abcde"), ("de", ""))
    assert view.may_go_on({PeerId("a"), PeerId("c")}, settled=True)
    assert not view.may_go_on({PeerId("a"), PeerId("c")}, settled=False)
    assert view.may_go_on(view.ids, settled=False)


def test_a_guards_own_quorum_counts() -> None:
    view = quorate(5, 4).successor(first_round=1, without={PeerId("p4")}, settled=False)
    assert view.may_go_on(view.ids, settled=False)
    assert not view.successor(first_round=1, without={PeerId("p3")}, settled=False).may_go_on(view.ids, settled=False)


@given(names, st.integers(1, 4))
def test_backups_by_name(order: list[str], fanout: int) -> None:
    view = of(order, fanout=fanout)
    for peer in view.ids:
        found = view.backups(peer)
        assert tuple(view.position(other) for other in found) == tree.Trees(view.size, fanout).backups(
            view.position(peer)
        )
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
        {"epoch": MAX_EPOCH + 1},
        {"generation": [0, 1, 1]},
        {"generation": [1 << 31, 1, 1]},
        {"generation": [1, 0, 1]},
        {"generation": [1, 4097, 1]},
        {"generation": [1, 1, 1 << 32]},
        {"guards": [[[["a", 1]], 0]] * (MAX_GUARDS + 1)},
        {"guards": [[[], 0]]},
        {"guards": [[[["a", 1]] * (MAX_MEMBERS + 1), 0]]},
        {"guards": [[[["a/b", 1]], 0]]},
        {"guards": [[[["a", -1]], 0]]},
        {"guards": [[[["a", 1]], -1]]},
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
