"""Owners that have no state of their run: who gives them one, when the run is over, and how it begins anew."""

from __future__ import annotations

import pytest
from company import Company
from states import OVER_S, RUN, at_seven, put_to_use, state
from transcript import Machine, vector, view

from edgepeer.ids import Generation, Lineage, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.limits import Limits
from edgepeer.protocol.over import NOBODY
from edgepeer.protocol.place import HOPING
from edgepeer.wire import frames as fr
from edgepeer.wire.documents import pack

A, D = PeerId("a"), PeerId("d")


def test_a_state_whose_owner_has_given_the_run_up_has_to_come_again() -> None:
    """It was put to use by who does not say so any more."""
    b = Machine("b").join(RUN)
    b.level("a", committed=7)
    state(b, "a", b"state", number=7)
    b.hear(ev.RunWanted(None))
    assert not b.node.parts.place.loading
    assert not any("state of r?" in line for line in b.until(30.0))
    b.level("a", committed=7)
    assert any("state of r?" in line for line in (*b.hear(ev.RunWanted("r")), *b.until(b.now + 6.0)))


def test_whose_owner_gives_the_run_up_while_it_puts_the_first_state_to_use_knows_that_it_has_begun() -> None:
    """If nobody else has that state, the head does not begin with its own, of the same number: the run is over."""
    d = Machine("d").join(view(1, "abcde", run="r"))
    d.level("b", committed=0)
    assert "b <- sync 1 r after -2" in state(d, "b", b"state", number=0)
    assert d.hear(ev.RunWanted(None)) == []
    assert d.node.parts.place.standing == HOPING
    assert d.node.parts.vitals._stands() == (NOBODY, 0)


def test_a_checkpoint_of_a_run_that_was_given_up_is_none_of_who_wants_it_again() -> None:
    """Its owner has it in use no more; or it would say so."""
    b = Machine("b")
    b.hear(ev.RunWanted("r", 1, have=7))
    b.hear(ev.RunWanted(None))
    b.hear(ev.RunWanted("r"))
    b.learn(RUN)
    assert b.node.allreduce.committed == -1


def test_who_wants_a_run_again_that_its_owner_has_given_up_is_given_a_neighbours_state() -> None:
    """There was no view between. It would stand where its owner, which has come back without a state, never is."""
    b = at_seven("b", RUN)
    b.level("d", 7)
    b.hear(ev.RunWanted(None))
    assert b.hear(ev.RunWanted("r")) == ["a <- sync 3 r after -2", "d <- sync 3 r after -2", "a <- state of r?"]
    assert state(b, "a", b"seven", number=7) == ["state of r after 7: seven"]
    put_to_use(b)
    assert b.node.allreduce.committed == 7
    assert b.hear(ev.RunWanted("r", 2)) == []


def quitter() -> Machine:
    """One that has brought a vector, and whose owner has quit since."""
    b = at_seven("b", RUN)
    for name in "de":
        b.level(name, 7)
        b.reduce(name, vector(1), name, number=8)
    b.contribute(1)
    b.hear(ev.Abandoned())
    b.hear(ev.RunWanted(None))
    return b


def quitting() -> Machine:
    """The same, and it wants the run again: it keeps what it has."""
    b = quitter()
    assert b.hear(ev.RunWanted("r")) == []
    return b


def test_an_owner_without_a_state_takes_a_neighbours_for_whoever_has_asked_for_it() -> None:
    """a waits for the state, and the round for a. b, which has no state to give, gives no other vector for all that."""
    b = quitting()
    b.sync("a", -2)
    assert b.frame("a", fr.StateRequest(run="r")) == ["d <- state of r?"]
    assert state(b, "d", b"seven", number=7) == ["state of r after 7: seven"]
    assert put_to_use(b) == ["provide a with r after 7"]
    assert b.node.allreduce.committed == 7
    assert b.node.allreduce.contributed


def test_but_not_where_nobody_asks() -> None:
    """The round ends soon, and then it is given the next."""
    b = quitting()
    assert not any("state of r?" in line for line in b.until(0.5))
    assert "round 8 = 4 of abde" in b.result("a", vector(4), "abde", number=8)
    b.sync("a", 8)
    assert "a <- sync 3 r after -2" in b.said


def test_an_owner_that_has_taken_one_so_and_does_not_go_on_from_it_is_given_the_next() -> None:
    """It had cancelled the call of the round, and was not told of its end."""
    b = quitting()
    b.sync("a", -2)
    b.frame("a", fr.StateRequest(run="r"))
    state(b, "d", b"seven", number=7)
    put_to_use(b)
    b.hear(ev.StateReady(A, "r", 7, b"seven"))
    b.sync("a", 7)
    b.result("a", vector(4), "abde", number=8)
    b.sync("a", 8)
    b.until(b.now + 1.0)
    assert b.node.allreduce.committed == -1
    assert state(b, "a", b"eight", number=8) == ["state of r after 8: eight"]


def test_an_owner_that_comes_back_with_the_checkpoint_of_where_its_peer_stands_goes_on_from_it() -> None:
    b = at_seven("b", RUN)
    b.level("d", 7)
    b.hear(ev.RunWanted(None))
    b.hear(ev.RunWanted("r", 3, have=7, of=RUN.lineage))
    b.contribute(1)
    b.level("e", 7)
    b.reduce("d", vector(1), "d", number=8)
    assert b.reduce("e", vector(1), "e", number=8) == ["a <- reduce 8 [0:] 3 of 11010"]
    assert b.node.allreduce.committed == 7


@pytest.mark.parametrize(
    ("have", "of"),
    [
        pytest.param(6, RUN.lineage, id="an earlier round"),
        pytest.param(7, Lineage(Generation(9, 9, 9), 1), id="another generation"),
        pytest.param(7, Lineage(RUN.generation, 0), id="an earlier beginning of the run"),
    ],
)
def test_but_not_with_another_one(have: int, of: Lineage) -> None:
    """It is given its neighbours'."""
    b = at_seven("b", RUN)
    b.level("d", 7)
    b.hear(ev.RunWanted(None))
    said = b.hear(ev.RunWanted("r", 3, have=have, of=of))
    assert "a <- state of r?" in said


def test_nor_is_it_told_of_a_round_that_it_had_brought_something_to_before_it_gave_the_run_up() -> None:
    """Its program can't go on from the checkpoint once that round is over: it is given the state after it."""
    b = quitter()
    b.hear(ev.RunWanted("r", 3, have=7, of=RUN.lineage))
    assert b.node.allreduce.has_state
    b.result("a", vector(4), "abde", number=8)
    b.sync("a", 8)
    assert not b.node.allreduce.has_state
    assert state(b, "a", b"eight", number=8) == ["state of r after 8: eight"]


def test_nor_is_one_given_up_while_the_next_view_is_being_decided() -> None:
    """Others are let go since b has all that they have."""
    b = at_seven("b", RUN)
    b.level("d", 7)
    b.frame("a", fr.Propose(epoch=3, candidate="a", number=1, ballot=0), pack(view(4, "ab", run="r", first_round=8)))
    b.hear(ev.StateLost())
    assert b.node.allreduce.committed == 7


def test_one_that_comes_too_late_for_that_is_no_hindrance() -> None:
    """The round has ended while the owner put it to use."""
    b = quitting()
    b.sync("a", -2)
    b.frame("a", fr.StateRequest(run="r"))
    state(b, "d", b"seven", number=7)
    came = next(effect for effect in b.effects if isinstance(effect, fx.StateReceived))
    b.sync("a", 7)
    b.result("a", vector(4), "abde", number=8)
    b.sync("a", 8)
    b.hear(ev.Adopted(came.run, came.round, came.of, came.life))
    assert any("state of r?" in line for line in (*b.said, *b.until(b.now + 1.0)))
    assert b.node.allreduce.committed == -1


def after_one_round() -> Company:
    """Two who have the state of a run after its first round, which came from a."""
    company = Company(view(1, "ab", run="r"))
    company.until(0.5)
    company.hear("a", ev.StateReady(PeerId("b"), "r", 0, b"first"))
    company.until(1.0)
    company.hear("b", ev.Adopted("r", 0))
    for name in "ab":
        company.hear(name, ev.Contribute(vector(1), 1.0))
    company.until(2.0)
    return company


def test_who_quits_again_while_it_has_no_state_is_still_without() -> None:
    """Else nobody would say that the run is over, where all have given it up."""
    company = after_one_round()
    for run in (None, "r", None, "r"):
        company.hear("b", ev.RunWanted(run))
        company.until(company.now + 0.5)
    assert company["b"].node.allreduce.committed == -1
    for run in (None, "r"):
        company.hear("a", ev.RunWanted(run))
    company.until(company.now + OVER_S)
    assert [company[name].node.view.beginning for name in "ab"] == [("r", 2), ("r", 2)]


@pytest.mark.parametrize("lost", ["ab", "ba"])
def test_nor_is_one_that_all_have_lost_waited_for(lost: str) -> None:
    """Whatever has become of it at each: there is nobody who could give it."""
    company = after_one_round()
    company.hear(lost[0], ev.StateLost())
    company.until(2.5)
    for run in (None, "r"):
        company.hear(lost[1], ev.RunWanted(run))
    company.until(company.now + OVER_S)
    assert [company[name].node.view.beginning for name in "ab"] == [("r", 2), ("r", 2)]
    assert company["a"].node.allreduce.committed == 0


def test_a_run_is_not_over_while_a_newcomer_puts_its_state_to_use() -> None:
    """Who has given it has lost it since."""
    company = Company(view(1, "ab", run="r"))
    company.until(0.5)
    company.hear("a", ev.StateReady(PeerId("b"), "r", 0, b"first"))
    company.until(0.6)
    company.hear("a", ev.StateLost())
    company.until(2.0)
    assert [company[name].node.view.beginning for name in "ab"] == [("r", 1), ("r", 1)]
    company.hear("b", ev.Adopted("r", 0))
    company.until(3.0)
    assert [company[name].node.allreduce.committed for name in "ab"] == [-1, 0]


def test_nor_while_an_owner_takes_one_of_where_its_peer_stands() -> None:
    b = quitting()
    b.sync("a", -2)
    b.frame("a", fr.StateRequest(run="r"))
    state(b, "d", b"seven", number=7)
    ping = fr.Ping(stamp=1.0, echo=0.0, held=0.0, every=9.0, waiting=False, epoch=RUN.epoch, stands=(-2, 7))

    def is_over() -> bool:
        until = b.now + 2.0 * Limits().heartbeat_s + 1.0
        while b.now < until:
            for name in "de":
                b.frame(name, ping)
            b.until(b.now + 0.5)
        return b.node.parts.vitals.over

    assert not is_over()
    b.hear(ev.RunWanted(None))
    assert is_over()


@pytest.mark.parametrize("later_s", [0.0, 10.0])
@pytest.mark.parametrize("contributed", [False, True])
def test_where_all_have_given_it_up_and_want_it_again_it_begins_anew(contributed: bool, later_s: float) -> None:
    """At once, or long after. Nobody has a state of it any more, and the view need have had no reason to change."""
    company = after_one_round()
    assert [company[name].node.allreduce.committed for name in "ab"] == [1, 1]
    if contributed:
        company.hear("a", ev.Contribute(vector(1), 1.0))
    for run in (None, "r"):
        for name in "ab":
            company.hear(name, ev.RunWanted(run))
        company.until(company.now + later_s)
    company.until(company.now + OVER_S)
    assert [company[name].node.view.beginning for name in "ab"] == [("r", 2), ("r", 2)]
    assert company["a"].node.allreduce.committed == 0


def test_and_where_others_have_none_but_wait_for_it() -> None:
    company = Company(view(1, "ab", run="r"))
    company.until(1.0)
    assert [company[name].node.allreduce.committed for name in "ab"] == [0, -1]
    for run in (None, "r"):
        company.hear("a", ev.RunWanted(run))
    company.until(company.now + OVER_S)
    assert [company[name].node.view.beginning for name in "ab"] == [("r", 2), ("r", 2)]


@pytest.mark.parametrize("other", ["", "s"])
def test_a_run_that_has_begun_anew_has_none_of_the_rounds_of_before(other: str) -> None:
    """b has heard nothing of the view between, in which the run was over. It would stand after round 7 for ever, and
    the others before the first, for which they need what it brings."""
    b = at_seven("b", RUN)
    b.contribute(1)
    b.hear(ev.RunWanted(None))
    b.hear(ev.RunWanted("r"))
    anew = RUN.successor(first_round=8, run=other).successor(first_round=8, run="r")
    assert "a <- sync 5 r after -2" in b.learn(anew)
    assert b.node.allreduce.committed == -1
    b.level("a", committed=0)
    assert state(b, "a", b"anew", number=0) == ["state of r after 0: anew"]


@pytest.mark.parametrize("other", ["", "s"])
def test_nor_the_state_of_before_whose_owner_says_too_late_that_it_is_in_use(other: str) -> None:
    """It wants the run all the time. b would stand after round 7, say so, and hand that state on."""
    b = Machine("b").join(RUN)
    b.level("a", committed=7)
    assert state(b, "a", b"seven", number=7) == ["state of r after 7: seven"]
    came = next(effect for effect in b.effects if isinstance(effect, fx.StateReceived))
    b.learn(RUN.successor(first_round=8, run=other).successor(first_round=8, run="r"))
    b.hear(ev.Adopted(came.run, came.round, came.of, came.life))
    assert b.node.allreduce.committed == -1


@pytest.mark.parametrize("asked", [False, True])
def test_nor_does_a_state_that_was_asked_for_before_go_to_anybody(asked: bool) -> None:
    """It is packed too late. `asked`: it is wanted again by then, and of round 7 it can't be."""
    b = at_seven("b", RUN)
    b.level("d", committed=-1)
    assert b.frame("d", fr.StateRequest(run="r")) == ["provide d with r after 7"]
    b.learn(RUN.successor(first_round=8, run="s").successor(first_round=8, run="r"))
    b.level("a", committed=0)
    state(b, "a", b"anew", number=0)
    put_to_use(b)
    b.level("d", committed=-1)
    if asked:
        assert b.frame("d", fr.StateRequest(run="r")) == ["provide d with r after 0"]
    assert b.hear(ev.StateReady(D, "r", 7, b"seven")) == []


def test_a_run_does_not_begin_again_where_rounds_of_it_are_over() -> None:
    """b gives its state up for a's, which has the same, and is lost before it has given it: there is none any more, but
    the first round of this generation has had its end."""
    one = view(1, "ba", run="r")
    b = Machine("b").join(one)
    b.level("a", committed=-1)
    b.sync("a", 0)
    b.contribute(1)
    assert b.reduce("a", vector(1), "a")[-1] == "round 1 = 2 of ba"
    b.sync("a", 1)
    b.hear(ev.StateLost())
    b.hear(ev.LinkDown(A, "reset"))
    two = view(2, "b", run="r", first_round=2, after=one)
    b.learn(two)
    assert b.node.allreduce.committed == -1
    assert b.contribute(100) == []
    anew = Generation.after(two.generation, [("b", 1)])
    assert "round 1 = 100 of b" in b.learn(two.successor(first_round=2, generation=anew))


def test_but_once_that_is_over_since_nobody_has_it() -> None:
    one = view(1, "ba", run="r")
    b = Machine("b").join(one)
    b.level("a", committed=-1)
    b.sync("a", 0)
    b.contribute(1)
    b.reduce("a", vector(1), "a")
    b.sync("a", 1)
    b.hear(ev.StateLost())
    b.hear(ev.LinkDown(A, "reset"))
    b.learn(view(2, "b", run="r", first_round=2, after=one))
    b.until(OVER_S)
    assert b.node.view is not None
    assert (b.node.view.epoch, b.node.view.beginning) == (4, ("r", 2))
    assert b.contribute(100)[-1] == "round 1 = 100 of b"
