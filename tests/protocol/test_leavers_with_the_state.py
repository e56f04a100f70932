"""Who wants to leave and has the only state of a run, or has seen the most of it: none of them is kept for good."""

from __future__ import annotations

import pytest
from company import Company
from transcript import view

from edgepeer.ids import Generation, Lineage, PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev

LONG_S = 120.0


def begun(names: str) -> Company:
    """All take part in a run, and have the state that it begins with; no round is over."""
    company = Company(view(1, names, run="r"))
    company.until(1.0)
    for _ in range(4):
        for _, name, asked in company.effects(fx.ProvideState):
            if company[name].node.parts.place.committed == 0:
                company.hear(name, ev.StateReady(asked.peer, "r", 0, b"x"))
        company.until(company.now + 0.1)
        for name in names:
            if company[name].node.parts.place.loading:
                company.hear(name, ev.Adopted("r", 0))
        company.until(company.now + 2.0)
    assert all(company[name].node.allreduce.has_state for name in names)
    assert company["a"].node.parts.membership.settled
    gives_up(company)
    return company


def gives_up(company: Company) -> None:
    """The head's owner quits, and wants the run again: it is to be given the state of another."""
    company.hear("a", ev.RunWanted(None))
    company.hear("a", ev.RunWanted("r"))
    company.until(company.now + 0.05)


def leave(company: Company, names: str) -> None:
    for name in names:
        company.hear(name, ev.LeaveWanted())


def removed(company: Company) -> set[str]:
    return {name for _, name, _ in company.effects(fx.Removed)}


@pytest.mark.parametrize("head_wants", [False, True])
@pytest.mark.parametrize("checkpoints", [False, True])
def test_the_run_is_over(head_wants: bool, checkpoints: bool) -> None:
    if checkpoints:
        of = Lineage(Generation(1, 3, 11), 2)
        company = Company(view(1, "abc", run="r"))
        for name in "abc":
            company.hear(name, ev.RunWanted("r", 1, have=7, of=of))
        company.until(10.0)
        assert [company[name].node.allreduce.committed for name in "abc"] == [7, 7, 7]
        gives_up(company)
    else:
        company = begun("abc")
    for name in "abc":
        company.hear(name, ev.RunWanted(None))
    leave(company, "bc")
    company.until(company.now + 3.0)
    if head_wants:
        company.hear("a", ev.RunWanted("r"))
    company.until(company.now + LONG_S)
    assert removed(company) == {"b", "c"}


def test_nobody_who_stays_wants_it() -> None:
    """They take part themselves, so the run is not over."""
    company = begun("abc")
    company.hear("a", ev.RunWanted(None))
    leave(company, "bc")
    company.until(company.now + LONG_S)
    assert removed(company) == {"b", "c"}


def test_the_head_wants_it_and_their_owners_take_their_time() -> None:
    company = begun("abc")
    leave(company, "bc")
    company.until(company.now + 45.0)
    assert removed(company) == set()
    for _, name, asked in company.effects(fx.ProvideState)[-2:]:
        company.hear(name, ev.StateReady(asked.peer, "r", 0, b"x"))
    company.until(company.now + 0.5)
    company.hear("a", ev.Adopted("r", 0))
    company.until(company.now + LONG_S)
    assert removed(company) == {"b", "c"}
    assert company["a"].node.allreduce.has_state


@pytest.mark.parametrize("all_quit", [False, True])
def test_another_is_dead(all_quit: bool) -> None:
    """It is done without first, which takes none of the leavers away. Until then nobody knows how the run stands."""
    company = begun("abcde")
    for name in "abcde" if all_quit else "a":
        company.hear(name, ev.RunWanted(None))
    company.kill("e")
    company.until(company.now + 1.0)
    leave(company, "bcd")
    company.until(company.now + LONG_S)
    assert removed(company) >= set("bcd")
    assert company["a"].node.view is not None
    assert company["a"].node.view.ids == ("a",)


def test_who_is_lost_is_so_once_however_long_it_takes_to_go_on_without_it() -> None:
    company = begun("abcde")
    company.hear("a", ev.RunWanted(None))
    company.kill("e")
    company.until(company.now + 1.5)
    leave(company, "bcd")
    while company["a"].node.view.epoch == 1:
        company.until(company.now + 0.1)
    pause, _ = company["a"].node.parts.membership._penalties[PeerId("e")]
    assert pause == 0.0


def test_the_head_wants_it_and_their_owners_never_answer() -> None:
    company = begun("abc")
    leave(company, "bc")
    company.until(company.now + 2 * LONG_S)
    assert removed(company) == {"b", "c"}
    assert company["a"].node.allreduce.has_state
