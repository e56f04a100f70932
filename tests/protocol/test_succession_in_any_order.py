"""What follows a view is decided once, whatever becomes of messages: councils of lives, and all that may happen."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import combinations, product

import msgspec
import pytest
from council import Council, Message
from hypothesis import given
from hypothesis import strategies as st
from transcript import view

from edgepeer.ids import PeerId
from edgepeer.topology.view import View
from edgepeer.wire.frames import Poll, Propose, Vote

A, B, C, D, E = map(PeerId, "abcde")
FIVE = view(1, "abcde")
OPEN = view(2, "abcde", after=view(1, "abcdefg"))
"""What was decided in the view before, with f and g, may be known to none but its holders."""


# -- all there is: every order, every loss, every repetition -------------------------------------------------


def wish(of: View, ballot: int) -> View:
    """What whoever wants that view wants in a ballot: in each something else."""
    return msgspec.structs.replace(of, run=f"{of.run}{ballot}")


def everything(start: Council, wanted: dict[str, View]) -> Iterator[Council]:
    """All states that a council can come to, whatever arrives when, and how often."""
    numbers: dict[Message, int] = {}

    def numbered(post: list[Message]) -> set[int]:
        return {numbers.setdefault(message, len(numbers)) for message in post}

    todo, seen = [(start, frozenset(numbered(start.post)))], set()
    while todo:
        council, sent = todo.pop()
        if (state := (council.state, sent)) in seen:
            continue
        seen.add(state)
        yield council
        messages = list(numbers)
        for move in (*(messages[n] for n in sent), *(name for name in wanted if council.may_propose(name))):
            if isinstance(move, Message):
                other = council.fork(move.target)
                other.deliver(move)
            else:
                other = council.fork(move)
                other.propose(move, wanted[move])
            todo.append((other, sent | numbered(other.post)))


@pytest.mark.parametrize(
    ("names", "candidates"),
    [
        ("abc", "ab"),
        pytest.param("abc", "bc", marks=pytest.mark.slow),
        pytest.param("abcd", "ab", marks=pytest.mark.slow),
    ],
)
def test_in_every_order_of_all_messages_one_view_follows_at_most(names: str, candidates: str) -> None:
    """Each candidate wants another view, and leads one ballot: the head the lowest, the others one of their own."""
    world = view(1, names)
    council = Council(world, passing=False)
    for name in set(candidates) - {"a"}:
        council.ask(name, lead=True)
    wanted = {name: world.successor(first_round=1, coordinator=PeerId(name), run=name) for name in candidates}
    winners = set()
    for count, reached in enumerate(everything(council, wanted)):
        reached.check()
        winners |= {following.run for following in reached.chosen.values()}
        assert count < 100_000
    assert winners == set(candidates)  # each can win


def some(names: str) -> Iterator[str]:
    """All that can be chosen of these."""
    for count in range(len(names) + 1):
        yield from map("".join, combinations(names, count))


@pytest.mark.parametrize("names", ["abc", "abcd", "abcde", "abcdef"])
def test_whoever_has_accepted_and_whoever_promises_one_view_follows_at_most(names: str) -> None:
    """The head's proposal reaches some before b asks for promises, and the others after some have given them."""
    world = view(1, names)
    happened = Counter[str]()
    for accepted in some(names[1:]):
        for promised in some(names.replace("b", "")):
            council = Council(world, passing=False)
            council.propose("a", world.successor(first_round=1, run="a"))
            for message in [each for each in council.post if each.target in accepted]:
                council.deliver(message)
            council.ask("b", lead=True)
            for message in [each for each in council.post if isinstance(each.frame, Poll) and each.target in promised]:
                council.deliver(message)
            for message in [each for each in council.post if isinstance(each.frame, Vote) and each.target == "b"]:
                council.deliver(message)
            if council.may_propose("b"):
                council.propose("b", world.successor(first_round=1, run="b", coordinator=B))
                led = council["b"]._campaign
                happened["free" if led is not None and not led.again else "bound"] += 1
                happened["free, though some have accepted"] += led is not None and not led.again and bool(accepted)
            council.run()
            council.check()
    assert min(happened.values()) > 0, happened


def arrive(council: Council, at: str, *kinds: type, of: str = "") -> None:
    """What is under way to these arrives, of these kinds, and of that candidate if it is said."""
    for message in council.post.copy():
        if message.target in at and isinstance(message.frame, kinds) and of in ("", message.frame.candidate):
            council.deliver(message)


@pytest.mark.parametrize("names", ["abc", "abcd", pytest.param("abcde", marks=pytest.mark.slow)])
def test_who_was_overtaken_is_not_bound_to_what_others_have_accepted_of_it(names: str) -> None:
    """The head's proposal reaches some, then b leads, and what it proposes reaches some; and the head leads once more,
    and wants something else: to that, some follow it."""
    world, happened = view(1, names), Counter[str]()
    first, third = (world.successor(first_round=1, run=run) for run in ("first", "third"))
    second = world.successor(first_round=1, run="second", coordinator=B)
    others = names.replace("b", "")
    for accepted, promised, followed, back in product(some(names[1:]), some(others), some(others), some(names[1:])):
        council = Council(world, passing=False)
        council.propose("a", first)
        arrive(council, accepted, Propose)
        council.ask("b", lead=True)
        arrive(council, promised, Poll)
        arrive(council, "b", Vote, of="b")
        if council.may_propose("b"):
            council.propose("b", second)
        arrive(council, followed, Propose, of="b")
        arrive(council, "a", Poll)  # so it hears of the higher ballot
        council.ask("a", lead=True)
        arrive(council, back, Poll, of="a")
        arrive(council, "a", Vote, of="a")
        if council.may_propose("a"):
            council.propose("a", third)
            led = council["a"]._campaign
            assert led is not None
            assert led.proposal is not None
            happened[led.proposal.run] += 1
        council.check()
        council.run()
        council.check()
        happened["concluded"] += bool(council.chosen)
    assert happened.keys() == {"first", "second", "third", "concluded"}, happened


def test_nor_to_what_it_has_accepted_itself_before_it_was_free() -> None:
    """b proposes to a alone, and dies. Three others follow a, so nothing was chosen before; but e overtakes it, and
    dies as well. Of what b wanted two of three would be dead."""
    world = view(1, "abcde")
    council = Council(world, passing=False)
    council.ask("b", lead=True)
    arrive(council, "ae", Poll, of="b")
    arrive(council, "b", Vote, of="b")
    council.propose("b", world.successor(first_round=1, without={C, D}, coordinator=B, run="b"))
    arrive(council, "a", Propose, of="b")
    council.dead.add(B)
    council.post.clear()
    council.ask("a", lead=True)
    arrive(council, "cde", Poll, of="a")
    arrive(council, "a", Vote, of="a")
    council.propose("a", world.successor(first_round=1, without={B}, run="a"))
    council.post.clear()
    council["e"].hear_of(council["a"].leading)
    while council["e"].leading <= council["a"].leading:
        council.ask("e", lead=True)
    arrive(council, "a", Poll, of="e")
    council.dead.add(E)
    council.post.clear()
    council.ask("a", lead=True)
    arrive(council, "cd", Poll, of="a")
    arrive(council, "a", Vote, of="a")
    assert council["a"].bound is None
    council.propose("a", world.successor(first_round=1, without={B, E}, run="again"))
    council.run()
    council.check()
    assert {view.run for view in council.chosen.values()} == {"again"}


# -- whatever is lost, late or doubled ------------------------------------------------------------------------


def tell(council: Council, wanted: dict[str, View], choices: list[int]) -> Counter[str]:
    """Let each number make something happen. Returns what has."""
    happened = Counter[str]()
    names = list(council.view.ids)
    for choice in choices:
        what, which = choice % 16, choice // 16
        name = names[which % len(names)]
        if what < 11:
            if council.post:
                at = which % len(council.post)
                message = council.post[at] if what == 10 else council.post.pop(at)
                council.deliver(message)
                happened["doubled" if what == 10 else "delivered"] += 1
        elif what < 13:
            head = name == council.view.coordinator
            council.ask(name, lead=not head or council[name].highest > 0)
            happened["asked"] += 1
        elif what < 15:
            if council.may_propose(name):
                before, wanted_now = council[name].promised, wish(wanted[name], max(council[name].leading, 0))
                council.propose(name, wanted_now)
                happened["proposed"] += 1
                led = council[name]._campaign
                happened["higher"] += before > 0
                happened["again"] += led is not None and led.proposal is not wanted_now
                accepted = led is not None and any(ballot >= 0 for ballot, _ in led.promises.values())
                happened["free"] += led is not None and led.proposal is wanted_now and accepted
        elif len(council.dead) < (len(names) - 1) // 2 and which % 5 == 0:
            council.dead.add(PeerId(name))
            happened["died"] += 1
        else:
            del council.post[which % (len(council.post) + 1) :]
            happened["lost"] += 1
        council.check()
    happened["chosen"] = bool(council.decisions())
    return happened


def drawn(size: int, leaver: int, pairs: list[tuple[int, int]], open_: bool) -> tuple[Council, dict[str, View]]:
    """A council of so many, who are connected as a tree and by these pairs besides, and what each of them wants."""
    names = "abcde"[:size]
    world = view(1, names, after=view(9, names + "z") if open_ else None)
    links = {peer: set(world.neighbours(peer)) for peer in world.ids}
    for one, other in pairs:
        here, there = world.ids[one % size], world.ids[other % size]
        if here != there:
            links[here].add(there)
            links[there].add(here)
    leavers = frozenset(names[leaver]) if leaver < size else frozenset()
    wanted = {
        name: world.successor(
            first_round=1,
            run=name,
            without=set(leavers) - {name},
            coordinator=PeerId(name),
            settled=not open_,
        )
        for name in names
    }
    unsettled = frozenset(names[1::2]) if open_ else frozenset()
    return Council(world, links=links, leavers=leavers, unsettled=unsettled), wanted


councils = st.builds(
    drawn, st.integers(3, 5), st.integers(0, 9), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=4),
    st.booleans(),
)  # fmt: skip


@given(councils, st.lists(st.integers(0, 16 * 60), min_size=20, max_size=250))
def test_whatever_becomes_of_messages_one_view_follows_at_most(
    drawn: tuple[Council, dict[str, View]], choices: list[int]
) -> None:
    council, wanted = drawn
    tell(council, wanted, choices)
    stands = [life.promised for life in council.lives.values()]
    # When all who are left can talk to each other, somebody is soon followed by a quorum, whoever it is.
    council.links = {peer: set(council.view.ids) - {peer} for peer in council.view.ids}
    for _ in range(40):
        council.run()
        if council.decisions() and council.chosen:
            break
        for name in council.view.ids:
            head = name == council.view.coordinator
            council.ask(name, lead=not head or council[name].highest > 0)
            council.run()
            if council.may_propose(name):
                council.propose(name, wish(wanted[name], max(council[name].leading, 0)))
        council.check()
    assert len(council.decisions()) == 1
    council.check()
    assert all(life.promised >= before for life, before in zip(council.lives.values(), stands, strict=True))


def test_such_stories_are_full_of_events_and_one_view_follows_at_most() -> None:
    """Proposals in higher ballots, and such as others had accepted before; lives that die; and decisions."""
    happened = Counter[str]()
    for seed in range(700):
        dice = random.Random(seed)
        pairs = [(dice.randrange(5), dice.randrange(5)) for _ in range(3)]
        council, wanted = drawn(3 + seed % 3, dice.randrange(10), pairs, bool(seed % 2))
        happened += tell(council, wanted, [dice.randrange(16 * 60) for _ in range(200)])
    least = {"delivered": 30000, "doubled": 3000, "lost": 3000, "died": 500, "higher": 500, "again": 100, "chosen": 300}
    least["free"] = 10
    assert {what: count for what, count in least.items() if happened[what] < count} == {}, happened
