"""Whole fleets choose what follows their view: whoever dies, is cut off, or is back."""

from __future__ import annotations

import pytest
from company import Company
from states import OVER_S
from transcript import VIEWS, Machine, letter_to, member, vector, view, without

from edgepeer.ids import Generation, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.succession import Standing
from edgepeer.topology.view import View
from edgepeer.wire import frames as fr
from edgepeer.wire.documents import pack

SEVEN = view(1, "abcdefg")


def training(world: View, rounds: int = 3) -> Company:
    company = Company(world)
    company.until(1.0)
    for _ in range(rounds):
        contribute(company)
        company.until(company.now + 0.2)
    assert company["a"].node.allreduce.committed == rounds
    return company


def contribute(company: Company) -> None:
    """Each brings its own bit."""
    for position, (name, machine) in enumerate(company.machines.items()):
        if machine.node.view is not None and not machine.node.allreduce.contributed:
            company.hear(name, ev.Contribute(vector(1 << position), 1.0))


def commits(company: Company, since: float) -> dict[str, list[tuple[int, float]]]:
    """By peer: which rounds it has committed, and the sums."""
    found: dict[str, list[tuple[int, float]]] = {}
    for _, name, effect in company.effects(fx.RoundCommitted, since=since):
        assert isinstance(effect, fx.RoundCommitted)
        found.setdefault(name, []).append((effect.round, float(effect.sum[0])))
    return found


@pytest.mark.parametrize("dead", ["a", "b", "d", "ab", "ac", "bc", "bd", "abc"])
def test_whoever_dies_the_others_go_on_without_them(dead: str) -> None:
    company = training(SEVEN)
    for name in dead:
        company.kill(name)
    began = company.now
    contribute(company)
    company.until(began + 9.0)
    living = [name for name in SEVEN.ids if name not in dead]
    views = {company[name].node.view for name in living}
    assert len(views) == 1
    assert sorted(views.pop().ids) == living  # type: ignore[union-attr]
    total = sum(1 << "abcdefg".index(name) for name in living)
    assert commits(company, began) == {name: [(4, float(total))] for name in living}


@pytest.mark.parametrize(
    ("world", "side", "goes_on"),
    [
        (SEVEN, "abc", "defg"),
        (SEVEN, "bde", "acfg"),
        (SEVEN, "abde", "abde"),
        (SEVEN, "a", "bcdefg"),
        (view(1, "abcd"), "ab", "ab"),
        (view(1, "abcd"), "bc", "ad"),
        (view(1, "ab"), "a", "a"),
        (view(1, "abcdefg", quorum=5), "abcd", ""),
        (view(1, "abcdefg", quorum=5), "ab", "cdefg"),
    ],
)
def test_of_two_sides_of_a_partition_only_the_one_with_a_quorum_goes_on(world: View, side: str, goes_on: str) -> None:
    company = training(world)
    company.broker = False
    company.sever(*[one + other for one in side for other in world.ids if other not in side])
    began = company.now
    contribute(company)
    company.until(began + 12.0)
    assert sorted(commits(company, began)) == sorted(goes_on)
    assert len({tuple(rounds) for rounds in commits(company, began).values()}) <= 1
    waiting = [name for name in world.ids if name not in goes_on]
    assert any("too few" in company[name].node.parts.membership.waits for name in waiting)


def test_a_peer_that_has_lost_only_its_own_way_does_not_take_over() -> None:
    company = training(SEVEN)
    company.broker = False
    company.sever("ab", "bc", "cd", "ce", "bf", "bg")  # b reaches its children, and they nobody else they know
    company.until(company.now + 10.0)
    assert company["b"].node.view is None
    for name in "acdefg":
        following = company[name].node.view
        assert following is not None
        assert (following.epoch, following.first_round, "".join(following.ids)) == (2, 4, "agcdef")


def until_it_says(company: Company, name: str, kind: type[fx.Effect], frame: type[fr.Frame] | None = None) -> None:
    """Let time pass until somebody has just said something."""
    seen, latest = len(company.said), company.now + 10.0
    while company.now < latest:
        company.until(company.now + 1e-4)
        for _, who, effect in company.said[seen:]:
            if who == name and isinstance(effect, kind) and (frame is None or isinstance(effect.frame, frame)):  # type: ignore[attr-defined]
                return
        seen = len(company.said)
    raise AssertionError("it says nothing of the kind")


def cut_off(company: Company, names: str) -> None:
    company.sever(*[one + other for one in names for other in company.machines if other != one])


def together(company: Company, names: str) -> None:
    """All of these work in one view of just them, and end a round there."""
    views = {company[name].node.view for name in names}
    assert len(views) == 1
    assert sorted(views.pop().ids) == sorted(names)  # type: ignore[union-attr]
    began, before = company.now, company[names[0]].node.allreduce.committed
    contribute(company)
    company.until(began + 1.0)
    total = float(sum(1 << list(company.machines).index(PeerId(name)) for name in names))
    assert commits(company, began) == {name: [(before + 1, total)] for name in names}


@pytest.mark.parametrize("accepted", ["b", "bc"])
def test_what_a_dead_head_has_proposed_keeps_nobody_out_who_is_back(accepted: str) -> None:
    """Three are cut off from a head, which has proposed to do without them when it dies. That would be a view in which
    it is needed for ever: those three stay of seven are too few for what follows an unsettled view."""
    company = training(SEVEN)
    company.broker = False
    cut_off(company, "efg")
    until_it_says(company, "a", fx.Send, fr.Propose)
    cut_off(company, "".join({*"bcd"} - {*accepted}))
    company.until(company.now + 2.5e-3)
    company.kill("a")
    for name in "bcdefg":
        assert (company[name].node.parts.succession.accepted is not None) == (name in accepted)
    company.mend()
    company.until(company.now + 10.0)
    together(company, "bcdefg")


def test_nor_what_only_they_hold() -> None:
    """b and c hold a round that none but the head, now dead, has committed. It has proposed to do without them, and one
    of the two others has accepted."""
    company = training(view(1, "abcde"))
    company.broker = False
    began = company.now
    contribute(company)
    until_it_says(company, "a", fx.Send, fr.Result)
    company.sever("bd", "be")
    until_it_says(company, "a", fx.RoundCommitted)
    cut_off(company, "bc")
    until_it_says(company, "a", fx.Send, fr.Propose)
    cut_off(company, "e")
    company.until(company.now + 1.5e-3)
    company.kill("a")
    d, proposal = company["d"].node.parts, without(view(1, "abcde"), "bc")
    assert d.succession.accepted is not None
    assert d.succession.accepted[1].ids == proposal.ids
    assert [name for name in "bcde" if company[name].node.parts.course.holding] == ["b", "c"]
    company.mend()
    company.until(company.now + 10.0)
    assert commits(company, began) == {name: [(4, 31.0)] for name in "abcde"}
    together(company, "bcde")


@pytest.mark.parametrize("who", ["bc", "cde"])
def test_who_wanted_to_leave_and_wants_to_stay_is_not_asked_to_go(who: str) -> None:
    """It accepts no view without it any more. A coordinator that knew for good who had wanted to leave proposed the
    same in every view, in vain where these are a majority: the fleet had another view every three seconds. One that was
    not told at once did so once."""
    company = training(view(1, "abc" if who == "bc" else "abcde"))
    for name in who:
        company.hear(name, ev.LeaveWanted())
    for name in who:
        company.hear(name, ev.JoinWanted())
    company.until(company.now + 10.0)
    began = company.now
    for _ in range(20):
        contribute(company)
        company.until(company.now + 0.5)
    views = {machine.node.view for machine in company.machines.values()}
    assert [view.epoch for view in views if view is not None] == [1]
    assert [len(rounds) for rounds in commits(company, began).values()] == [20] * len(company.machines)


def left_alone(names: str) -> Company:
    """All wanted to leave, and want to stay now; but the head has told them to go, and is dead. Those next to it have
    accepted a view of the head alone."""
    company = training(view(1, names))
    for name in names:
        company.hear(name, ev.LeaveWanted())
    until_it_says(company, names[0], fx.Send, fr.Propose)
    company.until(company.now + 1.5e-3)
    company.kill(names[0])
    for name in names[1:]:
        accepted = company[name].node.parts.succession.accepted
        assert accepted is None or accepted[1].ids == (names[0],)
        assert (accepted is not None) == (name in "bc")
        company.hear(name, ev.JoinWanted())
    return company


def test_who_is_bound_to_a_view_without_it_of_which_nobody_answers_comes_back_as_another_life() -> None:
    """The head may have gone on alone before it died: nothing else can follow. And nobody can say what it knew."""
    company = left_alone("abc")
    began = company.now
    company.until(began + 5.0)
    assert company.effects(fx.Removed, since=began) == []
    company.until(began + 20.0)
    assert {name for _, name, _ in company.effects(fx.Removed, since=began)} == {"b", "c"}
    assert [company[name].node.me.incarnation for name in "bc"] == [2, 2]


def test_that_counts_from_when_it_is_alone_again() -> None:
    """It was so once, long before, for a moment."""
    a = PeerId("a")
    b = Machine("b").join(view(3, "abcde"), up="a")
    b.frame("a", fr.Propose(epoch=3, candidate="a", number=1, ballot=0, again=True), pack(without(VIEWS[3], "bcd")))
    ping = fr.Ping(stamp=1.0, echo=0.0, held=0.0, every=1.0, waiting=False, epoch=3)
    assert b.hear(ev.LinkDown(a, "reset")) == []
    while b.node.parts.succession.asked == 0:
        b.until(b.now + 0.05)
    b.level("a")
    while b.now < 60.0:
        b.frame("a", ping)
        b.until(b.now + 0.5)
    b.hear(ev.LinkDown(a, "reset"))
    b.until(70.0)
    assert b.node.view is not None
    b.until(80.0)
    assert b.node.view is None


def test_if_it_is_known_to_have_ended_the_others_go_on_in_a_new_generation() -> None:
    """With what they have: they need not wait."""
    company = left_alone("abcd")
    began = company.now
    for name in "bcd":
        company.hear(name, ev.PresenceSeen(member("a", 2)))
        company.hear(name, letter_to(name, "a", fr.Here(incarnation=2, echo=company.now)))
    company.until(began + 6.0)
    assert {name for _, name, _ in company.effects(fx.Removed, since=began)} == set()
    together(company, "bcd")
    assert company["b"].node.view is not None
    assert company["b"].node.view.generation.counter == 2


def test_a_view_that_even_all_of_it_can_not_follow_is_over() -> None:
    """It takes somebody to settle it who is in it no more. a, whose owner has lost the state, would wait for ever."""
    one = view(1, "ab", run="r")
    a = Machine("a").join(one)
    two = view(2, "a", run="r", first_round=2, after=view(1, "bac", run="r"))
    a.learn(two)
    a.hear(ev.StateLost())
    a.until(OVER_S)
    assert a.node.view is not None
    assert a.node.view.generation.counter == 2


LOST = Standing(4, holding=True)
"""Has seen the end of round 5, and its state is gone."""


@pytest.mark.parametrize(
    ("mine", "its", "covered"),
    [
        (Standing(5), LOST, True),
        (Standing(4, holding=True, held=(Generation(), 1)), LOST, True),
        (Standing(6), LOST, False),
        (LOST, Standing(5), True),
        (LOST, Standing(4), False),
        (LOST, Standing(4, holding=True, held=(Generation(), 1)), False),
        (Standing(5), Standing(4, holding=True, held=(Generation(), 1)), False),
    ],
)
def test_who_has_seen_the_end_of_a_round_can_speak_of_it_though_its_state_is_gone(
    mine: Standing, its: Standing, covered: bool
) -> None:
    assert mine.is_covered_by([its]) == covered
