"""Runs of which everybody has only the state of an earlier round than one has seen the end of: when they are over."""

from __future__ import annotations

import pytest
from company import Company
from states import OVER_S, RUN, at_seven, state
from transcript import Machine, view

from edgepeer.ids import Generation, Lineage, PeerId
from edgepeer.protocol import events as ev
from edgepeer.protocol.limits import Limits
from edgepeer.wire import frames as fr

TWO = view(1, "ab", run="r")
ANEW_S = Limits().anew_s


def says(machine: Machine, peer: str, stands: int | tuple[int, int] | None, *, epoch: int) -> None:
    machine.frame(peer, fr.Ping(waiting=False, stamp=1.0, every=1.0, epoch=epoch, stands=stands))


def pings(machine: Machine, peer: str, stands: int | tuple[int, int] | None, *, seconds: float) -> list[str]:
    """That peer says so for so long. What the machine does."""
    said, until = [], machine.now + seconds
    while machine.now < until:
        says(machine, peer, stands, epoch=machine.node.view.epoch if machine.node.view else 0)
        said += machine.until(machine.now + 0.5)
    return said


def head_without() -> Machine:
    """The head, which has seen the end of round 7, and whose owner has lost the state; b has one of before."""
    a = Machine("a")
    a.hear(ev.RunWanted("r", 2, have=7, of=TWO.lineage))
    a.learn(TWO)
    a.node.parts.place.restored = None  # rounds have been over since
    a.level("b", 5)
    a.hear(ev.StateLost())
    return a


def test_it_is_waited_for_a_while_for_who_could_tell() -> None:
    a = head_without()
    assert not any("view 2" in line for line in pings(a, "b", 5, seconds=ANEW_S))
    assert any("view 2" in line for line in pings(a, "b", 5, seconds=OVER_S - ANEW_S))


def test_not_where_somebody_below_has_it() -> None:
    assert not any("view 2" in line for line in pings(head_without(), "b", 7, seconds=3 * ANEW_S))


def test_nor_where_one_below_is_getting_the_end_of_a_round_or_a_state() -> None:
    assert not any("view 2" in line for line in pings(head_without(), "b", None, seconds=3 * ANEW_S))


def test_who_is_getting_a_state_does_not_say_where_it_stands() -> None:
    d = Machine("d").join(RUN)
    d.level("b", committed=7)
    assert d.node.parts.vitals._stands() == (-1, -1)
    state(d, "b", b"sev", number=7, total=5)
    assert d.node.parts.vitals._stands() is None
    state(d, "b", b"en", number=7, offset=3, total=5)
    assert d.node.parts.vitals._stands() == (7, 7)


def test_nor_does_who_is_getting_the_end_of_a_round() -> None:
    b = at_seven("b", RUN)
    for name in "de":
        b.level(name, 7)
        says(b, name, 7, epoch=RUN.epoch)
    assert b.node.parts.vitals._stands() == (7, 7)
    b.node.parts.course.round.lane.result_from = PeerId("a")
    assert b.node.parts.vitals._stands() is None
    b.sync("a", -2)  # what it was sending comes no more
    assert b.node.parts.vitals._stands() == (7, 7)


@pytest.mark.parametrize("packs_s", [0.5, 12.0])
def test_what_has_been_given_up_for_a_checkpoint_that_counts_more_is_not_waited_for(packs_s: float) -> None:
    """a and b go on from checkpoints of one generation, after 7 and 5. a's owner quits and wants the run again: nothing
    is over in this generation, so b's counts, however long its owner takes to hand it over."""
    company, before = Company(TWO), Lineage(Generation(1, 1, 1), 1)
    for name in "ab":
        company.hear(name, ev.RunWanted(None))
    company.hear("a", ev.RunWanted("r", 2, 7, before))
    company.hear("b", ev.RunWanted("r", 2, 5, before))
    company.until(2.5)
    company.hear("a", ev.RunWanted(None))
    company.hear("a", ev.RunWanted("r", 2))
    company.until(company.now + packs_s)
    company.hear("b", ev.StateReady(PeerId("a"), "r", 5, b"five"))
    company.until(company.now + 0.5)
    company.hear("a", ev.Adopted("r", 5, before))
    company.until(company.now + 2 * ANEW_S)
    assert {company[name].node.view.beginning for name in "ab"} == {("r", 1)}
    assert {company[name].node.allreduce.committed for name in "ab"} == {5}


def test_a_process_that_was_stopped_has_not_waited_meanwhile() -> None:
    a = head_without()
    pings(a, "b", 5, seconds=2.0)
    a.now += 2 * ANEW_S
    assert not any("view 2" in line for line in pings(a, "b", 5, seconds=ANEW_S / 2))
