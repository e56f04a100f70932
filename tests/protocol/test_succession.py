"""What follows a view is decided once: the table in succession.py, by transcript."""

from __future__ import annotations

from functools import partial
from itertools import combinations

import msgspec
import pytest
from transcript import Machine, describe_ballot, letter_to, member, vector, view, when, without

from edgepeer.ids import Generation, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.succession import Standing, Succession
from edgepeer.topology.view import MAX_GUARDS, MAX_MEMBERS, Guard, Life, View
from edgepeer.wire import frames as fr
from edgepeer.wire.documents import pack, unpack

A, B, C, D = map(PeerId, "abcd")
FIVE = view(1, "abcde")
OPEN = view(2, "abcde", after=view(1, "abcdefg"))
"""What was decided in the view before, with f and g, may be known to none but its holders."""


def ballot(text: str) -> int:
    """The number of a ballot: "2c" is the second that a member at position 2 can lead."""
    return 0 if text == "0" else int(text[0]) * MAX_MEMBERS + "abcdefghij".index(text[1])


# -- what an acceptor answers ---------------------------------------------------------------------------------

SEVEN = view(1, "abcdefg")


def poll(machine: Machine, peer: str, candidate: str, led: str = "0", *, number: int = 1, epoch: int = 1) -> list[str]:
    return machine.frame(peer, fr.Poll(epoch=epoch, candidate=candidate, number=number, ballot=ballot(led)))


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
    assert d.document("c", frame, pack(view(3, "abc"))) == ["c <- view 3"]


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


def candidate_b(world: View, following: View, mine: Standing, theirs: Standing, *, settled: bool = True) -> View | None:
    """What b finds to be chosen when all the others but the head have accepted what it is bound to."""
    others = world.ids[2:]
    b = Succession(B, lambda effect: None)
    b.enter(world)
    b.ask(others, 0.0, 0.0, mine, lead=True)
    said = {"committed": theirs.committed, "holding": theirs.holding, "held": theirs.held}
    vote = partial(fr.Vote, epoch=1, candidate="b", **said)
    led = b.leading
    for peer in others:
        b.on_vote(vote(voter=peer, number=b.number, promised=led, accepted=0), following, None)
    b.propose(None, others, 0.0, 0.0, mine)
    for peer in others:
        b.on_vote(vote(voter=peer, number=b.number, promised=led, accepted=led), None, None)
    return b.chosen(settled=settled)


@pytest.mark.parametrize("committed", [0, 1])
def test_who_holds_something_counts_only_if_one_who_stays_has_seen_its_end(committed: int) -> None:
    world = view(1, "abc")
    following = world.successor(first_round=2, without={A, C})
    chosen = candidate_b(world, following, Standing(committed, holding=not committed), Standing(0, holding=True))
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
        (None, (NOW, 3), False),  # nobody knows of which view
        ((NOW, 3), None, False),
        (None, None, False),
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
    holding = Standing(0, holding=True)
    following = without(OPEN, names)
    found = candidate_b(OPEN, following, holding, holding, settled=False)
    assert found == (following if chosen else None)
    assert candidate_b(OPEN, following, holding, holding, settled=True) == following


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


# -- the candidate ---------------------------------------------------------------------------------------------


def keep(machine: Machine) -> None:
    """All who are connected go on living."""
    for peer, _ in machine.node.parts.links.connected():
        epoch = machine.node.view.epoch if machine.node.view is not None else 0
        machine.frame(str(peer), fr.Ping(waiting=False, epoch=epoch, orphan=True))


def orphan(world: View = SEVEN) -> Machine:
    """b, whose parent a is lost for good, with links to everybody else that it wants."""
    b = Machine("b", limits=Limits(silence_s=2.0)).join(world)
    assert b.node.view is not None
    for peer in {*b.node.view.neighbours(B), *b.node.view.backups(B)} - {"a"}:
        b.hear(ev.LinkUp(peer, b.node.view.member(peer).incarnation))
    b.until(1.0)
    keep(b)
    b.until(2.0)
    return b


def installed(said: list[str]) -> list[str]:
    return [line for line in said if line.startswith("view")]


def test_it_takes_the_promises_of_a_quorum_and_then_their_acceptance() -> None:
    b = orphan()
    assert b.node.parts.succession.promised == 0  # nobody has said yet that it would follow
    assert not any("propose" in line for line in b.votes("cd"))
    assert b.node.parts.succession.promised == ballot("1b")
    assert b.node.parts.membership.waits == "3 of 7 peers are in reach, too few to go on without the others"
    said = b.votes("e")
    assert "c <- propose 2 for b by ballot 1b: 2 bgcdef" in said
    assert installed(said) == []
    assert installed(b.votes("cd")) == []
    assert installed(b.votes("f")) == ["view 2 bgcdef"]
    assert b.node.parts.membership.coordinator


def test_the_promise_of_the_same_life_counts_once_and_that_of_a_stranger_not_at_all() -> None:
    b = orphan()
    assert not any("propose" in line for line in b.votes("cccdxyz"))
    b = orphan()
    b.votes("cde")
    assert installed(b.votes("cccdxyz")) == []


def test_promises_of_another_ballot_and_of_polls_never_held_do_not_count() -> None:
    b = orphan()
    for voter in "cde":
        frame = fr.Vote(epoch=1, candidate="b", number=99, voter=voter, promised=ballot("1b"))
        assert b.frame("c", frame) == []
    assert not any("propose" in line for line in b.votes("cde", promised=0))
    assert b.node.parts.succession.promised == 0


def test_a_promise_without_the_view_that_it_speaks_of_does_not_count() -> None:
    b = orphan()
    assert not any("propose" in line for line in b.votes("cde", accepted=0))


def test_a_promise_with_a_view_that_does_not_follow_does_not_count() -> None:
    b = orphan()
    assert not any("propose" in line for line in b.votes("cde", accepted=0, proposal=SEVEN))


def test_the_round_that_comes_next_is_what_those_who_speak_say() -> None:
    b = orphan()
    b.votes("c", committed=3)
    b.votes("de")
    said = [each for each in b.effects if isinstance(each, fx.Send) and isinstance(each.frame, fr.Propose)]
    assert {unpack(bytes(each.payload or b""), View).first_round for each in said} == {4}


def proposed(said: list[str]) -> list[str]:
    """The members of what is proposed to c."""
    return [line.rpartition(" ")[2] for line in said if "c <- propose" in line]


def test_what_was_accepted_in_the_highest_ballot_is_proposed_again() -> None:
    """It may have been chosen; so what the candidate itself wants does not matter."""
    b = orphan()
    older, newer = without(SEVEN, "g"), without(SEVEN, "a", "c")
    b.votes("c", accepted=ballot("0"), proposal=older)
    b.votes("d", accepted=ballot("0") + 2, proposal=newer)
    assert proposed(b.votes("e")) == []  # three are still to speak, and what they say may show that it was not
    keep(b)
    assert set(proposed(b.until(b.now + 1.0))) == {"cbgdef"}
    assert installed(b.votes("cde")) == ["view 2 cbgdef"]
    assert not b.node.parts.membership.coordinator


@pytest.mark.parametrize(
    ("world", "accepted", "others", "binds"),
    [
        (SEVEN, "c", "defg", False),
        (SEVEN, "c", "def", False),  # with a and g, who have not spoken, it can't have been four
        (SEVEN, "cd", "efg", False),
        (SEVEN, "cd", "ef", True),
        (SEVEN, "cde", "fg", True),
        (view(1, "abcd"), "c", "d", True),  # half with the head
        (view(1, "abcde", quorum=4), "cd", "e", False),
        (OPEN, "cd", "e", True),  # of which some may know that it is settled
    ],
)
def test_what_no_quorum_can_have_accepted_binds_nobody(world: View, accepted: str, others: str, binds: bool) -> None:
    b = orphan(world)
    theirs = without(world, others[-1], "a")
    said = []
    for voter in accepted:
        said += b.votes(voter, accepted=ballot("0"), proposal=theirs)
    for voter in others:
        said += b.votes(voter)
    wanted = "".join(without(world, "a", "b").ids)
    assert proposed(said) == ([] if binds else [wanted])
    keep(b)
    assert set(proposed(said + b.until(b.now + 1.0))) == {"".join(theirs.ids) if binds else wanted}


def test_who_leads_no_more_is_not_made_to_by_an_answer_that_comes_late() -> None:
    """On slow paths there would always be one, and several who had reason to once would outbid each other for ever."""
    b = orphan()
    b.votes("c")
    assert b.node.parts.succession.leading == b.node.parts.succession.promised == ballot("1b")
    asked = b.asked
    b.hear(ev.LinkUp(A, 1))  # the way to the head is whole again, and it has heard of b's ballot
    poll(b, "a", "a", "2a", number=9)
    assert (b.node.parts.succession.leading, b.node.parts.succession.promised) == (-1, ballot("2a"))
    assert isinstance(asked, fr.Poll)
    b.now += 1.0
    b.frame("c", fr.Vote(epoch=1, candidate="b", number=asked.number, voter="d", promised=asked.ballot))
    assert b.node.parts.succession.leading == -1
    assert not any("poll" in line for line in b.said)


def test_when_all_have_promised_there_is_nothing_to_wait_for() -> None:
    world = view(1, "abc")
    b = Succession(B, lambda effect: None)
    b.enter(world)
    b.ask([A, C], 0.0, 0.0, Standing(0), lead=True)
    vote = partial(fr.Vote, epoch=1, candidate="b", number=b.number, promised=b.leading)
    b.on_vote(vote(voter="c", accepted=0), without(world, "b"), None)
    assert (b.bound, b.patient) == (without(world, "b"), True)
    b.on_vote(vote(voter="a", accepted=0), without(world, "b"), None)
    assert (b.bound, b.patient) == (without(world, "b"), False)


def test_a_candidate_that_was_overtaken_takes_a_higher_ballot() -> None:
    b = orphan()
    b.votes("c")
    b.votes("d", promised=ballot("2d"))
    keep(b)
    said = [line for line in b.until(b.now + 0.3) if "c <- poll" in line]
    assert said[0].endswith("by ballot 3b")  # it stands before d in the order
    assert installed(b.agree("cdef")) == ["view 2 bgcdef"]


def test_who_stands_behind_another_candidate_lets_it_have_its_turns() -> None:
    d = Machine("d", limits=Limits(silence_s=2.0)).join(view(1, "abcd"), up="c")
    d.frame("c", fr.Ping(waiting=False, epoch=1, orphan=True))
    ballots = []
    while d.now < 12.0:
        keep(d)
        d.until(d.now + 0.25)
        if isinstance(d.asked, fr.Poll) and d.asked.ballot and (not ballots or ballots[-1][1] != d.asked.ballot):
            ballots.append((d.now, d.asked.ballot))
        if len(ballots) == 1:
            d.votes("c", promised=ballot("2c"))
    (first, one), (second, other) = ballots
    assert [describe_ballot(each) for each in (one, other)] == ["1d", "3d"]
    assert second - first >= 8 * 0.25


def test_a_head_that_hears_that_somebody_is_bound_to_another_leads_a_higher_ballot() -> None:
    a = Machine("a").join(view(1, "abc"), up="bc")
    assert "b <- poll 1 for a in 1 by ballot 2a" in a.frame("b", fr.Ping(waiting=False, epoch=1, ballot=ballot("1c")))
    assert installed(a.agree("b")) == ["view 2 abc"]  # with the same members, who are not frozen there


def test_old_answers_do_not_say_who_is_there() -> None:
    a = Machine("a").join(view(1, "abcde"), up="bc")
    a.frame("c", fr.Suspect(epoch=1, peer="e", reason="gone"))
    a.votes("b", promised=0)
    assert a.node.parts.succession.there == {A, B}
    for _ in range(5):
        keep(a)
        a.frame("c", fr.Suspect(epoch=1, peer="e", reason="gone"))
        a.until(a.now + 0.5)
    assert a.node.parts.succession.there == {A}


def test_it_asks_again_and_again_until_its_parent_is_back() -> None:
    b = orphan()
    polls = [line for line in b.until(2.9) if "c <- poll" in line]
    assert [line.split("<- ")[1].split()[1] for line in polls] == ["2", "3", "4"][: len(polls)]
    assert len(polls) >= 3
    b.level("a")
    keep(b)
    assert not any("poll" in line for line in b.until(3.5))


def test_where_the_tree_has_fallen_apart_it_connects_with_more_members() -> None:
    """f and g are no backups of d; without b, c and a, nobody else could tell it of them."""
    d = Machine("d", limits=Limits(silence_s=2.0)).join(SEVEN)
    said = d.until(3.9)
    assert when(said, "dial b") < 0.3
    assert when(said, "dial f") > 3.0  # its turn is two half seconds after its parent was lost
    assert {line.split(": dial ")[1] for line in said if ": dial " in line} == set("abcefg")
    d.learn(view(2, "abcdefg"))
    assert {state.peer for state in d.node.link_states()} == set("bce")  # not wanted any more


def test_promises_for_an_earlier_view_are_void() -> None:
    b = orphan()
    b.votes("cd")
    b.learn(view(2, "abcdefg"))
    assert b.node.parts.succession.there == {B}
    assert not b.node.parts.succession.leads(settled=True)


# -- joint quorums -----------------------------------------------------------------------------------------------


def test_until_a_view_is_settled_it_takes_a_quorum_of_the_one_before_too() -> None:
    b = orphan(OPEN)
    assert not any("propose" in line for line in b.votes("cd"))  # three of five, but three of seven
    assert "c <- propose 2 for b by ballot 1b: 3 becd" in b.votes("e")
    assert installed(b.votes("cd")) == []
    assert installed(b.votes("e")) == ["view 3 becd"]
    assert [len(guard.lives) for guard in (b.node.view or OPEN).guards] == [7]  # a quorum of it is one of five as well


def test_when_it_is_settled_its_own_quorum_is_enough() -> None:
    b = Machine("b", limits=Limits(silence_s=2.0)).join(OPEN, up="a")
    b.frame("a", fr.Ping(waiting=False, epoch=2, settled=True))
    for peer in "cde":
        b.hear(ev.LinkUp(PeerId(peer), 1))
    b.hear(ev.LinkDown(A, "reset"))
    while b.now < 2.5:
        keep(b)
        b.until(b.now + 0.5)
    assert installed(b.agree("cd")) == ["view 3 becd"]
    assert [len(guard.lives) for guard in (b.node.view or OPEN).guards] == [5]


@pytest.mark.parametrize("world", [view(1, "abcd"), view(1, "abcde", quorum=4)])
def test_half_without_the_head_or_less_than_is_configured_is_not_enough(world: View) -> None:
    b = orphan(world)
    enough = "cd" if world.size == 4 else "cde"
    assert not any("propose" in line for line in b.votes(enough[:-1]))
    assert len(installed(b.agree(enough))) == 1


@pytest.mark.parametrize(
    ("quorum", "lost", "goes_on"),
    [(0, "de", True), (0, "cde", False), (4, "d", True), (4, "de", False), (2, "de", True)],
)
def test_a_configured_quorum_is_what_counts_if_it_is_more(quorum: int, lost: str, goes_on: bool) -> None:
    rest = "".join(sorted(set("bcde") - set(lost)))
    a = Machine("a").join(view(1, "abcde", quorum=quorum), up="bc")
    for peer in lost:
        a.frame("b", fr.Suspect(epoch=1, peer=peer, reason="gone"))
    assert bool(installed(a.agree(rest))) == goes_on
    assert bool(a.node.parts.membership.waits) != goes_on


def test_half_with_the_head_may_go_on() -> None:
    a = Machine("a").join(view(1, "ab"), up="b")
    a.until(1.0)
    assert 3.0 <= when(a.until(5.0), "view 2 a") < 3.3


def test_there_is_room_for_so_many_views_that_are_not_settled_and_no_more() -> None:
    """What does not fit a document is not proposed: all links would be lost by it."""
    guards = tuple(Guard((Life("a", 1),), asked_for) for asked_for in range(MAX_GUARDS))
    world = msgspec.structs.replace(view(1, "abcdefghi"), guards=guards)
    a = Machine("a").join(world, up="bc")
    a.frame("c", fr.Suspect(epoch=world.epoch, peer="g", reason="gone"))
    assert not any("propose" in line for line in a.agree("bcdefhi"))
    assert a.node.parts.membership.waits == "some peers have not heard of the last views yet"
    a.frame("b", fr.Ping(waiting=False, epoch=world.epoch, level=0))
    a.frame("c", fr.Ping(waiting=False, epoch=world.epoch, level=0))
    assert a.node.parts.membership.settled
    a.frame("c", fr.Suspect(epoch=world.epoch, peer="g", reason="gone"))
    assert len(installed(a.until(a.now + 0.3) + a.agree("bcdefhi"))) == 1


@pytest.mark.parametrize("settled", [False, True])
def test_half_of_that_room_is_kept_for_views_without_the_lost(settled: bool) -> None:
    """A view with a dead member in it is never settled: where there is no room to do without it, all stand still."""
    guards = tuple(Guard((Life("a", 1),), asked_for) for asked_for in range(MAX_GUARDS // 2))
    world = msgspec.structs.replace(view(1, "abc"), guards=guards)
    a = Machine("a").join(world, up="bc")
    a.others = "bc"
    if settled:
        for name in "bc":
            a.frame(name, fr.Ping(waiting=False, epoch=world.epoch, level=0))
    for name in "de":
        a.hear(ev.PresenceSeen(member(name)))
        here = fr.Here(incarnation=1, generation=None, epoch=0, echo=a.now)
        a.hear(letter_to("a", name, here))
    said = a.until(1.0)
    assert any(line.endswith("view 2 abcde") for line in said) == settled
    if not settled:
        a.others = "b"
        said = a.frame("b", fr.Suspect(epoch=world.epoch, peer="c", reason="gone"))
        assert any(line.endswith("view 2 ab") for line in said + a.until(a.now + 1.0))


def test_however_many_are_lost_one_after_the_other_there_is_room() -> None:
    """As where a large fleet loses its power device by device, and no view is settled before the next is gone."""
    guards = tuple(Guard((Life("a", 1),), asked_for) for asked_for in range(MAX_GUARDS - 1))
    world = msgspec.structs.replace(view(1, "abcdefghi"), guards=guards)
    a = Machine("a").join(world, up="bc")
    for epoch, (lost, others) in enumerate([("i", "bcdefgh"), ("h", "bcdefg"), ("g", "bcdef"), ("f", "bcde")], start=1):
        a.others = others
        for child in "bc":
            a.frame(child, fr.Ping(waiting=False, epoch=epoch))
        a.frame("b", fr.Suspect(epoch=epoch, peer=lost, reason="gone"))
        a.until(a.now + 0.3)
        assert (a.node.view or world).ids == ("a", *others), a.node.waits


def test_nobody_is_let_in_in_the_life_that_was_left_out_while_that_may_count() -> None:
    """Its identity was lost, and counts anew: it has seen nothing of what its name has."""
    world = view(2, "abc", after=view(1, "abcd"))
    a = Machine("a").join(world, up="bc")
    a.others = "bc"

    def comes(name: str, life: int) -> list[str]:
        a.hear(ev.PresenceSeen(member(name, life)))
        a.hear(letter_to("a", name, fr.Here(incarnation=life, generation=None, epoch=0, echo=a.now)))
        return installed([line.split(": ")[1] for line in a.until(a.now + 1.0)])

    assert comes("d", 1) == []
    assert comes("e", 1) == ["view 3 abce"]
    assert comes("d", 2) == ["view 4 abced"]


def test_views_of_the_same_members_do_not_fill_it() -> None:
    world = view(1, "abc")
    for _ in range(20):
        world = world.successor(first_round=1, settled=False)
    assert world.guards == (view(1, "abc").guard,)


def test_who_answers_is_there_however_long_it_takes() -> None:
    """Where answers come after more questions than count, all would answer for ever, and nobody be there."""
    said: list[fx.Effect] = []
    a = Succession(A, said.append)
    a.enter(view(1, "abc"))

    def hear(voter: PeerId, number: int) -> None:
        vote = fr.Vote(epoch=1, candidate=A, number=number, voter=voter, promised=0, accepted=-1, committed=0)
        a.on_vote(vote, None, None)

    for number in range(1, 21):
        a.ask([B, C], number, 0.25, Standing(0), lead=False)
        if number > 6:
            hear(B, number - 6)
    assert a.there == {A, B}
    assert a.answered_since(14) == {A}
    for number in range(21, 25):
        a.ask([B, C], number, 0.25, Standing(0), lead=False)
    hear(B, 14)  # it is no news
    assert a.there == {A}


def test_who_answered_before_a_pause_may_be_dead_since() -> None:
    said: list[fx.Effect] = []
    a = Succession(A, said.append)
    a.enter(view(1, "abc"))

    def ask(now: float) -> None:
        a.ask([B, C], now, 0.25, Standing(0), lead=False, silence_s=3.0)

    def hear(voter: PeerId, number: int) -> None:
        vote = fr.Vote(epoch=1, candidate=A, number=number, voter=voter, promised=0, accepted=-1, committed=0)
        a.on_vote(vote, None, None)

    ask(1.0)
    hear(B, 1)
    hear(C, 1)
    ask(3.9)
    assert (a.there, a.asked) == ({A, B, C}, 2)
    ask(6.9)
    assert (a.there, a.asked) == ({A}, 1)
    assert a.answered_since(a.begun) == {A}
    hear(C, 2)  # it took long, and has come just now
    assert a.there == {A, C}
