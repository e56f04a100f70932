"""What follows a view is decided once: the table in succession.py, by transcript."""

from __future__ import annotations

from functools import partial
from itertools import combinations

import msgspec
import pytest
from ballots import OPEN, SEVEN, ballot, poll
from transcript import Machine, member, vector, view, without

from edgepeer.ids import Generation, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.succession import Standing, Succession
from edgepeer.topology.view import View
from edgepeer.wire import frames as fr
from edgepeer.wire.documents import pack

A, B, C, D = map(PeerId, "abcd")
FIVE = view(1, "abcde")


# -- what an acceptor answers ---------------------------------------------------------------------------------


def propose(
    machine: Machine,
    peer: str,
    candidate: str,
    led: str,
    proposal: View,
    *,
    number: int = 1,
    again: bool = False,
) -> list[str]:
    world = machine.node.view
    assert world is not None
    frame = fr.Propose(epoch=world.stamp, candidate=candidate, number=number, ballot=ballot(led), again=again)
    return machine.document(peer, frame, pack(proposal))


def vote(machine: Machine, peer: str, candidate: str, voter: str, *, number: int = 1, epoch: int = 1) -> list[str]:
    return machine.frame(peer, fr.Vote(epoch=epoch, candidate=candidate, number=number, voter=voter))


def member_d(*, orphan: bool) -> Machine:
    """A leaf with all its links; its parent is b, and c and e its backups."""
    d = Machine("d").join(SEVEN, up="bce")
    d.frame("b", fr.Ping(waiting=False, stamp=1.0, every=1.0, epoch=1, orphan=orphan))
    return d


def last(said: list[str]) -> str:
    """Its own answer: what it passes on comes before."""
    return said[-1].split(" <- ")[1]


def test_who_has_lost_the_way_to_the_head_promises_and_passes_the_poll_on() -> None:
    d = member_d(orphan=True)
    assert poll(d, "c", "c", "1c") == [
        "b <- poll 1 for c in 1 by ballot 1c", "e <- poll 1 for c in 1 by ballot 1c",
        "c <- vote 1 of d for c, promises 1c",
    ]  # fmt: skip
    assert d.node.parts.place.frozen


def test_so_does_who_has_lost_its_own_parent() -> None:
    d = member_d(orphan=False)
    d.hear(ev.LinkDown(B, "reset"))
    assert last(poll(d, "c", "c", "1c")) == "vote 1 of d for c, promises 1c"


def test_who_has_a_way_to_the_head_only_passes_the_poll_on() -> None:
    d = member_d(orphan=False)
    passed_on = ["b <- poll 1 for c in 1 by ballot 1c", "e <- poll 1 for c in 1 by ballot 1c"]
    assert poll(d, "c", "c", "1c") == passed_on
    assert not d.node.parts.place.frozen
    assert d.node.parts.succession.highest == 0  # nobody is bound to anything


def test_everybody_promises_the_head_what_it_asks_for() -> None:
    for orphan in (True, False):
        d = member_d(orphan=orphan)
        assert last(poll(d, "b", "a")) == "vote 1 of d for a"
        assert not d.node.parts.place.frozen
        assert last(poll(d, "b", "a", "1a", number=2)) == "vote 2 of d for a, promises 1a"


def test_who_is_bound_to_somebody_answers_all_and_follows_the_highest() -> None:
    d = member_d(orphan=True)
    poll(d, "c", "c", "1c")
    d.frame("b", fr.Ping(waiting=False, stamp=2.0, every=1.0, epoch=1))  # the way to the head is whole again
    assert last(poll(d, "c", "b", "1b")) == "vote 1 of d for b, promises 1c"
    assert last(poll(d, "c", "b", "2b", number=2)) == "vote 2 of d for b, promises 2b"
    assert last(poll(d, "c", "c", "2a", number=2)) == "vote 2 of d for c, promises 2b"  # c may not lead that one


def test_the_head_is_not_free_to_follow_another() -> None:
    a = Machine("a").join(SEVEN, up="bc")
    assert poll(a, "b", "c", "1c") == ["c <- poll 1 for c in 1 by ballot 1c"]


def test_a_question_is_passed_on_and_answered_once() -> None:
    d = member_d(orphan=True)
    poll(d, "c", "c")
    assert poll(d, "e", "c") == []
    assert poll(d, "c", "c") == []
    assert poll(d, "e", "c", number=2) == ["b <- poll 2 for c in 1", "c <- poll 2 for c in 1", "e <- vote 2 of d for c"]
    following = SEVEN.successor(first_round=1)
    assert last(propose(d, "c", "c", "1c", following, number=3)) == "vote 3 of d for c, promises 1c, accepts 1c"
    assert propose(d, "e", "c", "1c", following, number=3) == []


def test_a_candidate_does_not_answer_itself() -> None:
    d = member_d(orphan=True)
    assert poll(d, "c", "d", "1d") == []
    assert propose(d, "c", "d", "1d", SEVEN.successor(first_round=1)) == []


def test_strangers_get_no_answer() -> None:
    d = member_d(orphan=True)
    assert poll(d, "c", "x") == ["b <- poll 1 for x in 1", "e <- poll 1 for x in 1"]
    assert not any("vote" in line for line in propose(d, "c", "x", "0", SEVEN.successor(first_round=1), number=2))


def test_who_asks_about_an_older_view_is_told_the_newer() -> None:
    d = Machine("d").join(view(3, "abcdefg"), up="bce")
    assert poll(d, "c", "c", epoch=2) == ["c <- view 3"]
    frame = fr.Propose(epoch=2 << 32, candidate="c", number=1, ballot=0)
    assert d.document("b", frame, pack(view(3, "abc"))) == ["b <- view 3"]


def test_who_asks_again_about_an_older_view_is_told_again_after_a_while() -> None:
    """What was asked before it came may be on the way yet, many times, and the view is large."""
    d = Machine("d").join(view(3, "abcdefg"), up="bce")
    assert poll(d, "c", "c", epoch=2) == ["c <- view 3"]
    assert poll(d, "c", "c", number=2, epoch=2) == []
    assert poll(d, "b", "b", epoch=2) == ["b <- view 3"]
    d.until(2.9)
    assert poll(d, "c", "c", number=3, epoch=2) == []
    d.until(3.1)
    assert poll(d, "c", "c", number=4, epoch=2) == ["c <- view 3"]


def test_questions_about_a_view_that_is_not_here_bind_nobody() -> None:
    d = member_d(orphan=True)
    assert poll(d, "c", "c", "1c", epoch=2) == ["c <- view 1"]
    assert d.node.parts.succession.promised == 0
    assert poll(Machine("d"), "c", "c") == []


def test_a_vote_goes_back_the_way_that_the_question_has_come() -> None:
    d = member_d(orphan=True)
    poll(d, "c", "c", number=5)
    assert vote(d, "b", "c", "b", number=5) == ["c <- vote 5 of b for c"]
    assert vote(d, "b", "c", "b", number=6) == []  # never heard of
    assert vote(d, "b", "c", "b", number=5, epoch=9) == []


def test_questions_that_are_remembered_are_few() -> None:
    d = member_d(orphan=True)
    for number in range(1, 1000):
        poll(d, "c", "c", number=number)
    assert len(d.node.parts.succession.seen) <= 256


def test_a_proposal_is_accepted_in_no_lower_ballot_than_was_promised() -> None:
    d = member_d(orphan=True)
    one, other = without(SEVEN, "a", "b"), without(SEVEN, "a", "c")
    assert last(propose(d, "b", "a", "0", SEVEN.successor(first_round=1))) == "vote 1 of d for a, accepts 0"
    assert last(poll(d, "c", "c", "1c")) == "vote 1 of d for c, promises 1c, accepts 0"
    assert last(propose(d, "c", "b", "1b", one)) == "vote 1 of d for b, promises 1c, accepts 0"
    assert last(propose(d, "c", "c", "1c", other, number=2)) == "vote 2 of d for c, promises 1c, accepts 1c"
    assert d.node.parts.succession.accepted == (ballot("1c"), other)
    assert last(propose(d, "c", "b", "2b", one, number=3)) == "vote 3 of d for b, promises 2b, accepts 2b"


def test_a_promise_says_what_was_accepted_before_and_how_far_the_voter_stands() -> None:
    d = Machine("d").join(view(1, "abcdefg", run="r"), up="bce", committed=-1)
    d.hear(ev.StateReady(B, "r", 0, b""))
    d.node.parts.course.adopt(4)
    following = without(d.node.view or SEVEN, "g")
    propose(d, "b", "a", "0", following)
    poll(d, "c", "a", "1a", number=2)
    answer = next(e for e in d.effects if isinstance(e, fx.Send) and isinstance(e.frame, fr.Vote))
    assert isinstance(answer.frame, fr.Vote)
    assert (answer.frame.accepted, answer.frame.committed, answer.frame.holding) == (0, 4, False)
    assert answer.payload == pack(following)


@pytest.mark.parametrize("wrong", ["epoch", "later epoch", "generation", "ballot", "candidate"])
def test_a_document_that_does_not_follow_is_refused(wrong: str) -> None:
    d = member_d(orphan=True)
    following, led, candidate = SEVEN.successor(first_round=1), "1c", "c"
    match wrong:
        case "epoch":
            following = view(1, "abcd")
        case "later epoch":
            following = following.successor(first_round=1)
        case "generation":
            following = SEVEN.successor(first_round=1, generation=Generation(2))
        case "ballot":
            led = "1b"
        case "candidate":
            candidate = "x"
    assert not any("vote" in line for line in propose(d, "c", candidate, led, following))
    assert d.node.parts.succession.accepted is None
    assert not d.node.parts.place.frozen


@pytest.mark.parametrize("garbage", [b"", b"\xc1", pack(member("a"))])
def test_garbage_instead_of_a_view_costs_the_link(garbage: bytes) -> None:
    d = member_d(orphan=True)
    frame = fr.Propose(epoch=SEVEN.stamp, candidate="c", number=1, ballot=ballot("1c"))
    assert d.document("c", frame, garbage)[0].startswith("close c: bad view")
    assert d.node.parts.succession.accepted is None


def test_who_is_left_out_accepts_only_what_the_candidate_is_bound_to() -> None:
    """A candidate that is free to do otherwise hears that this peer is there."""
    d = member_d(orphan=False)
    following = without(SEVEN, "d")
    assert last(propose(d, "b", "a", "0", following)) == "vote 1 of d for a"
    assert last(propose(d, "b", "a", "0", following, number=2, again=True)) == "vote 2 of d for a, accepts 0"


def test_but_who_wants_to_leave_does_if_it_has_nothing_that_the_others_may_need() -> None:
    following = without(SEVEN, "d")
    d = member_d(orphan=False)
    d.hear(ev.LeaveWanted())
    d.contribute(1)
    d.result("b", vector(7), "abcdefg", final=False)
    assert d.node.parts.course.holding
    assert last(propose(d, "b", "a", "0", following)) == "vote 1 of d for a"
    later = SEVEN.successor(first_round=2, without={D})
    assert last(propose(d, "b", "a", "0", later, number=2)) == "vote 2 of d for a, accepts 0"


def test_a_ballot_is_promised_to_whom_it_belongs_only() -> None:
    """Else two could lead the same."""
    d = member_d(orphan=True)
    assert last(poll(d, "c", "c", "1d")) != "vote 1 of d for c, promises 1d"
    assert d.node.parts.succession.promised == 0


def test_what_is_held_of_a_round_keeps_in_whoever_is_left_out_for_another_run() -> None:
    """Its rounds are counted anew: that they begin later says nothing of the one that is held."""
    d = member_d(orphan=False)
    d.contribute(1)
    d.result("b", vector(7), "abcdefg", final=False)
    d.hear(ev.LeaveWanted())
    following = SEVEN.successor(first_round=5, without={D}, run="other")
    other = msgspec.structs.replace(following, first_round=5)
    assert last(propose(d, "b", "a", "0", other)) == "vote 1 of d for a"


def test_what_is_committed_is_handed_over_and_keeps_nobody_in() -> None:
    """Else three of four would wait for a dead head that proposed before the round ended everywhere."""
    d = member_d(orphan=False)
    d.contribute(1)
    d.result("b", vector(7), "abcdefg", final=False)
    d.decide("b")
    following = without(SEVEN, "d")
    assert d.node.allreduce.committed >= following.first_round
    assert last(propose(d, "b", "a", "0", following, again=True)) == "vote 1 of d for a, accepts 0"


def test_what_is_held_of_a_round_that_is_over_for_the_others_keeps_nobody_in() -> None:
    """Else two who are a quorum would wait for the head that proposed to do without one of them, and died."""
    d = member_d(orphan=False)
    d.contribute(1)
    d.result("b", vector(7), "abcdefg", final=False)
    assert d.node.parts.course.holding
    few = set(map(PeerId, "defg"))  # without these there is no quorum, and perhaps nobody else who holds it
    d.hear(ev.LeaveWanted())
    following = SEVEN.successor(first_round=1, without=few)
    assert last(propose(d, "b", "a", "0", following)) == "vote 1 of d for a"  # the round is still to come
    later = SEVEN.successor(first_round=2, without=few)
    assert last(propose(d, "b", "a", "0", later, number=2)) == "vote 2 of d for a, accepts 0"


def test_what_is_held_and_may_be_needed_is_for_a_candidate_that_is_bound_to_see() -> None:
    """Else two who hold the same would wait for ever, one of them accepted, and the other left out."""
    d = member_d(orphan=False)
    d.contribute(1)
    d.result("b", vector(7), "abcdefg", final=False)
    assert d.node.parts.course.held == (SEVEN.generation, SEVEN.stamp)
    following = SEVEN.successor(first_round=1, without=set(map(PeerId, "defg")))
    assert last(propose(d, "b", "a", "0", following, again=True)) == "vote 1 of d for a, accepts 0"


def test_where_a_quorum_stays_so_do_holders_and_nobody_else_is_needed() -> None:
    """Else a quorum would wait for one of them, who holds what all of them hold."""
    d = member_d(orphan=False)
    d.contribute(1)
    d.result("b", vector(7), "abcdefg", final=False)
    assert d.node.parts.course.holding
    following = SEVEN.successor(first_round=1, without=set(map(PeerId, "dfg")))
    assert last(propose(d, "b", "a", "0", following, again=True)) == "vote 1 of d for a, accepts 0"


def candidate_b(
    world: View,
    following: View,
    mine: Standing,
    theirs: Standing,
    *,
    stay: Standing | None = None,
    settled: bool = True,
) -> View | None:
    """What b finds to be chosen when all the others but the head have accepted what it is bound to. `stay`: where those
    of them stand who do, if not where the others do."""
    others = world.ids[2:]
    b = Succession(B, lambda effect: None)
    b.enter(world)
    b.ask(others, 0.0, 0.0, mine, lead=True)
    led = b.leading

    def vote(peer: PeerId, accepted: int) -> fr.Vote:
        at = stay if stay is not None and peer in following else theirs
        said = {"committed": at.committed, "holding": at.holding, "held": at.held}
        return fr.Vote(epoch=1, candidate="b", number=b.number, voter=peer, promised=led, accepted=accepted, **said)

    for peer in others:
        b.on_vote(vote(peer, 0), following, None)
    b.propose(None, others, 0.0, 0.0, mine)
    for peer in others:
        b.on_vote(vote(peer, led), None, None)
    return b.chosen(settled=settled)


@pytest.mark.parametrize("committed", [0, 1])
def test_who_holds_something_counts_only_if_one_who_stays_has_seen_its_end(committed: int) -> None:
    world = view(1, "abc")
    following = world.successor(first_round=2, without={A, C})
    chosen = candidate_b(world, following, Standing(committed), Standing(0, holding=True))
    assert chosen == (following if committed else None)


NOW, NEXT = Generation(), Generation(counter=2)


@pytest.mark.parametrize(
    ("mine", "theirs", "counts"),
    [
        ((NOW, 3), (NOW, 3), True),
        ((NOW, 4), (NOW, 3), True),  # of two the newer can count
        ((NEXT, 1), (NOW, 3), True),
        ((NOW, 3), (NOW, 4), False),
        ((NOW, 3), (NEXT, 1), False),
        (None, (NOW, 3), True),  # it has seen the end of that round, though its state is gone
        ((NOW, 3), None, False),
        (None, None, True),
    ],
)
def test_or_if_one_who_stays_holds_the_same_or_what_is_newer(
    mine: tuple[Generation, int] | None, theirs: tuple[Generation, int] | None, counts: bool
) -> None:
    world = view(1, "abc")
    following = world.successor(first_round=1, without={A, C})
    chosen = candidate_b(world, following, Standing(0, True, mine), Standing(0, True, theirs))
    assert chosen == (following if counts else None)
    for mine_at, theirs_at in ((0, 1), (1, 2)):  # of another round it says nothing
        assert candidate_b(world, following, Standing(mine_at, True, mine), Standing(theirs_at, True, theirs)) is None


LOST = Standing(6, holding=True)
"""Where one stands that has seen the end of round 7, and has its state no more."""


@pytest.mark.parametrize(
    ("mine", "theirs", "can"),
    [
        (LOST, Standing(7), False),  # the state of round 7 would go with them
        (Standing(7), Standing(7), True),
        (LOST, LOST, None),  # nobody has any
        (Standing(7), LOST, True),
        (LOST, Standing(6, holding=True, coming=7), False),  # they put it to use, or are being sent it
        (Standing(-1), Standing(-1, coming=7), False),
        (Standing(7), Standing(6, holding=True, coming=7), True),
        (Standing(6, holding=True, coming=7), Standing(7), False),  # it may not arrive where it stays
        (Standing(5), Standing(4, holding=True, coming=7), False),
        (LOST, Standing(0), False),  # the state that the run begins with is one, too
        (LOST, Standing(-1), None),
    ],
)
@pytest.mark.parametrize("gone", ["c", "cd"])
def test_who_goes_is_kept_while_its_state_would_go_with_it(
    mine: Standing, theirs: Standing, can: bool | None, gone: str
) -> None:
    """Where a quorum stays, and where none does. None: only where one stays, else somebody may be sending it still."""
    world = view(1, "bcd" if gone == "cd" else "bacd")
    staying = [peer for peer in world.ids if peer not in gone]
    b = Succession(B, lambda effect: None)
    b.enter(world)
    b.ask(world.ids[1:], 0.0, 0.0, mine, lead=False)
    for peer in world.ids[1:]:
        at = mine if peer in staying else theirs
        said = {"committed": at.committed, "holding": at.holding, "held": at.held, "coming": at.coming}
        b.on_vote(fr.Vote(epoch=1, candidate="b", number=b.number, voter=peer, **said), None, None)
    following = without(world, gone)
    assert b.keeps_quorum(following, settled=True) is (gone == "c")
    assert b.can_be_chosen(following, mine, settled=True, keep=frozenset(map(PeerId, gone)), since=0) is (
        gone == "c" if can is None else can
    )
    assert b.nobody_gives(mine, since=0) is (mine == LOST and theirs.may_give < 0)
    assert not b.nobody_gives(mine, since=b.number)  # they may have got one since
    assert b.can_be_chosen(following, mine, settled=True, keep=(), since=0)


@pytest.mark.parametrize("numbers", [(2, 1), (1, 2)])
def test_what_an_acceptor_says_with_its_acceptance_counts_whatever_comes_by_other_paths(
    numbers: tuple[int, int],
) -> None:
    """It may have refused before, when it held nothing, the same question or a later one."""
    world = view(1, "abc")
    b = Succession(B, lambda effect: None)
    b.enter(world)
    following = world.successor(first_round=1, without={A, C})
    for _ in range(2):
        b.propose(following, [A, C], 0.0, 0.0, Standing(0))
    vote = partial(fr.Vote, epoch=1, candidate="b", voter="c", promised=b.leading)
    refused, accepted = vote(number=numbers[0]), vote(number=numbers[1], accepted=b.leading, holding=True)
    b.on_vote(refused, None, None)
    b.on_vote(accepted, None, None)
    assert b.standings[C] == Standing(-1, holding=True)
    b.on_vote(refused, None, None)
    assert b.standings[C] == Standing(-1, holding=True)


def test_but_where_a_quorum_stays_whoever_accepts_counts() -> None:
    world, holding = view(1, "abc"), Standing(0, holding=True)
    following = without(world, "c")
    assert candidate_b(world, following, holding, holding) == following


@pytest.mark.parametrize(("names", "chosen"), [("c", True), ("cd", False)])
def test_until_a_view_is_settled_a_quorum_of_the_one_before_must_stay_too(names: str, chosen: bool) -> None:
    """Nine of ten once waited for a head: eight of them were to stay, and too few of the view before without the
    ninth."""
    mine, theirs = Standing(0), Standing(0, holding=True)
    following = without(OPEN, names)
    found = candidate_b(OPEN, following, mine, theirs, stay=mine, settled=False)
    assert found == (following if chosen else None)
    assert candidate_b(OPEN, following, mine, theirs, stay=mine, settled=True) == following


def test_who_keeps_a_quorum_keeps_holders_of_all_that_counts_in_the_views_before() -> None:
    """Whoever the holders were: of plain rounds the top of the tree, of coded ones any half with the root."""
    for members in ("abcd", "abc", "bcde", "edcb"):
        world = view(2, members, after=view(1, "abcde"))
        life = Succession(B, lambda effect: None)
        life.enter(world)
        for count in range(len(members)):
            for gone in combinations(members, count):
                following = without(world, "".join(gone))
                if not life.keeps_quorum(following, settled=False):
                    continue
                for order in ("abcde", members):
                    half = (len(order) + 1) // 2
                    assert all(set(held) & set(following.ids) for held in combinations(order, half) if order[0] in held)


def test_another_life_of_a_peer_is_not_kept() -> None:
    life = Succession(B, lambda effect: None)
    life.enter(view(1, "abc"))
    assert life.keeps_quorum(view(2, "ab"), settled=True)
    assert not life.keeps_quorum(view(2, "ab", a=2), settled=True)


def test_an_answer_that_was_overtaken_says_nothing_of_where_its_sender_stands() -> None:
    candidate = Succession(PeerId("b"), lambda effect: None)
    candidate.enter(view(1, "abc"))
    for number in (1, 2):
        candidate.ask([PeerId("c")], float(number), 0.0, Standing(0), lead=False)
    vote = partial(fr.Vote, epoch=1, candidate="b", voter="c", promised=0, accepted=-1)
    candidate.on_vote(vote(number=2, committed=3, holding=True), None, None)
    candidate.on_vote(vote(number=1, committed=2, holding=False), None, None)
    assert candidate.standings[PeerId("c")] == Standing(3, holding=True)


# -- frozen --------------------------------------------------------------------------------------------------


def frozen_child(*, holding: bool) -> Machine:
    """b under a and over d and e, who has promised the ballot of c."""
    b = Machine("b").join(FIVE, up="acde")
    b.contribute(1)
    for child in "de":
        b.reduce(child, vector(1), child)
    if holding:
        b.result("a", vector(5), "abcde", final=False)
    b.frame("a", fr.Ping(waiting=False, stamp=1.0, every=1.0, epoch=1, orphan=True))
    assert last(poll(b, "c", "c", "1c")) == "vote 1 of b for c, promises 1c"
    return b


def test_who_is_frozen_sends_no_reduce() -> None:
    b = Machine("b").join(FIVE, up="acde")
    b.contribute(1)
    b.reduce("d", vector(1), "d")
    b.frame("a", fr.Ping(waiting=False, stamp=1.0, every=1.0, epoch=1, orphan=True))
    poll(b, "c", "c", "1c")
    assert b.reduce("e", vector(1), "e") == []  # now all is here, and a must not have it


def test_nor_have_and_holds_nothing_new() -> None:
    b = frozen_child(holding=False)
    assert not any("have" in line for line in b.result("a", vector(5), "abcde", final=False))
    assert not b.node.parts.course.holding
    assert b.node.allreduce.committed == 0
    assert "round 1 = 5 of abcde" in b.decide("a")  # enough others hold it


def test_but_what_is_decided_counts() -> None:
    b = frozen_child(holding=True)
    assert b.node.parts.course.holding
    assert "round 1 = 5 of abcde" in b.decide("a")


def test_also_if_it_comes_as_a_whole_and_decided() -> None:
    b = frozen_child(holding=False)
    assert "round 1 = 5 of abcde" in b.result("a", vector(5), "abcde", final=True)


def test_a_head_that_is_frozen_decides_nothing_any_more() -> None:
    a = Machine("a").join(view(1, "abc"), up="bc")
    a.contribute(1)
    a.reduce("b", vector(1), "b")
    a.reduce("c", vector(1), "c")
    a.frame("b", fr.Suspect(epoch=1, peer="c", reason="gone"))
    a.votes("b")  # it is there, so a view without c is proposed, and a has accepted it itself
    assert a.node.parts.place.frozen
    assert not any("round 1" in line for line in a.have("b"))
    assert "view 2 ab" in a.agree("b")


def test_the_next_view_ends_it() -> None:
    b = frozen_child(holding=False)
    b.learn(view(2, "cbde"))
    assert not b.node.parts.place.frozen
    assert b.node.parts.succession.promised == 0
