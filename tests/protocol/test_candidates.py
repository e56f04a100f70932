"""Who leads what is decided after a view, and the quorums that takes: the table in succession.py, by transcript."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest
from ballots import OPEN, SEVEN, ballot, poll
from transcript import Machine, describe_ballot, letter_to, member, view, when, without

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.succession import Standing, Succession
from edgepeer.topology.view import MAX_GUARDS, MAX_MEMBERS, Guard, Life, View
from edgepeer.wire import frames as fr
from edgepeer.wire.documents import pack, unpack

A, B, C = map(PeerId, "abc")

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


def asks(candidate: Succession, said: list[fx.Effect], turns: range, *, lead: bool = False) -> list[int]:
    """In which of its turns it asks."""
    taken = []
    for turn in turns:
        said.clear()
        candidate.ask([B, C], turn, 0.25, Standing(0), lead=lead)
        taken += [turn] if said else []
    return taken


def answer(candidate: Succession, number: int, **fields: int) -> None:
    given = {"promised": 0, "accepted": -1, "committed": 0, **fields}
    candidate.on_vote(fr.Vote(epoch=1, candidate=A, number=number, voter=B, **given), None, None)


def test_where_answers_take_long_it_asks_more_seldom() -> None:
    """Or the paths fill with what nobody has answered yet, and get slower still."""
    said: list[fx.Effect] = []
    a = Succession(A, said.append)
    a.enter(view(1, "abc"))
    assert asks(a, said, range(1, 17)) == [*range(1, 17)]
    answer(a, 4)  # 12 turns late: as many as three questions that count
    assert asks(a, said, range(17, 26)) == [19, 22, 25]
    assert a.there == {A}  # nothing has come for long
    answer(a, 25)
    assert asks(a, said, range(26, 29)) == [26, 27, 28]
    assert asks(a, said, range(29, 101)) == [*range(29, 101)]
    answer(a, 29)  # 71 turns late
    assert asks(a, said, range(101, 125)) == [108, *range(116, 125)]  # and then that counts no more


def test_who_answers_seldom_asked_questions_is_there() -> None:
    said: list[fx.Effect] = []
    a = Succession(A, said.append)
    a.enter(view(1, "abc"))
    asked: list[int] = []
    for turn in range(1, 200):
        asked += asks(a, said, range(turn, turn + 1))
        if turn - 40 in asked:
            answer(a, turn - 40)
        assert turn <= 41 or a.there == {A, B}
    assert asked[-3:] == [177, 185, 193]


def test_a_view_that_is_proposed_in_vain_is_sent_more_and_more_seldom() -> None:
    said: list[fx.Effect] = []
    a = Succession(A, said.append)
    world = view(1, "abc")
    a.enter(world)
    a.propose(without(world, "c"), [B, C], 1, 0.25, Standing(0))
    assert asks(a, said, range(2, 10)) == [2, 4, 8]


def test_who_gives_way_does_so_again_for_one_that_goes_on() -> None:
    said: list[fx.Effect] = []
    c = Succession(C, said.append)
    c.enter(view(1, "abc"))

    def turns(first: int, many: int) -> list[int]:
        for turn in range(first, first + many):
            c.ask([B], turn, 0.25, Standing(0), lead=True)
            if c.leading > c.highest:
                return [turn]
        return []

    c.hear_of(ballot("1b"))
    assert turns(1, 8) == []
    c.hear_of(ballot("2b"))  # it was at work
    assert turns(9, 8) == []
    assert turns(17, 8) == [17]
    assert c.leading == ballot("3c")
    for overtaken in range(4, 8):  # but not for ever
        c.hear_of(ballot(f"{overtaken}b"))
        assert turns(100 * overtaken, 8) == []
    c.hear_of(ballot("8b"))
    assert turns(900, 8) == [900]
    c.hear_of(c.leading + MAX_MEMBERS - 1)
    assert asks(c, said, range(1000, 1008), lead=True) == [*range(1000, 1008)]


def test_who_gives_way_on_slow_paths_asks_very_seldom() -> None:
    said: list[fx.Effect] = []
    c = Succession(C, said.append)
    c.enter(view(1, "abc"))
    asks(c, said, range(1, 11))
    vote = fr.Vote(epoch=1, candidate=C, number=1, voter=B, promised=ballot("1b"), accepted=-1, committed=0)
    c.on_vote(vote, None, None)  # nine turns late
    assert asks(c, said, range(11, 20), lead=True) == [18]


def test_what_was_accepted_is_said_with_a_promise_only_and_until_the_candidate_knows() -> None:
    """It is large, and on slow paths there are many questions."""
    said: list[fx.Effect] = []
    c = Succession(C, said.append)
    world = view(1, "abc")
    c.enter(world)
    proposal = without(world, "a")
    frame = fr.Propose(epoch=1, candidate="b", number=1, ballot=ballot("1b"))
    c.on_propose(B, frame, proposal, pack(proposal), [], Standing(0), fits=True)

    def says(number: int, led: str, known: str = "") -> tuple[int, bool]:
        said.clear()
        bits = fr.pack_set(sum(1 << world.position(PeerId(p)) for p in known))
        poll = fr.Poll(
            epoch=1, candidate=led[-1], number=number, ballot=ballot(led) if led[0] != "0" else 0, known=bits
        )
        c.on_poll(PeerId(led[-1]), poll, [], Standing(0), free=True)
        (sent,) = said
        assert isinstance(sent, fx.Send)
        assert isinstance(sent.frame, fr.Vote)
        return sent.frame.accepted, sent.payload is not None

    accepted = ballot("1b")
    assert says(2, "0b") == (accepted, False)
    assert says(3, "2b") == (accepted, True)
    assert says(4, "2b", "b") == (accepted, True)
    assert says(5, "2b", "bc") == (accepted, False)
    assert says(6, "1b") == (accepted, False)  # it refuses
    assert says(7, "3a") == (accepted, True)


@pytest.mark.parametrize("late", [0, 1, 5, 20, 40])
@pytest.mark.parametrize("gives_way", [False, True])
def test_who_answers_is_there_however_seldom_it_is_asked(late: int, gives_way: bool) -> None:
    said: list[fx.Effect] = []
    c = Succession(C, said.append)
    c.enter(view(1, "abc"))
    asked: list[int] = []
    for turn in range(1, 200):
        if gives_way:
            c.hear_of((turn // 6 + 1) * MAX_MEMBERS + 1)  # b is at work, and far from done
        asked += asks(c, said, range(turn, turn + 1), lead=gives_way)
        if turn - late in asked:
            number = turn - late
            vote = fr.Vote(epoch=1, candidate=C, number=number, voter=B, promised=c.highest, accepted=-1, committed=0)
            c.on_vote(vote, None, None)
        assert turn <= late + 1 or B in c.there
