"""Accounts: what happened, told so that people can compare it. tests/scenarios has more of them."""

from __future__ import annotations

from dataclasses import replace

from edgepeer.simulation.account import Account
from edgepeer.simulation.schedule import Fault, Schedule
from edgepeer.simulation.story import Story

CALM = Schedule(peers=3, rounds=4, compute_s=0.3)


def told(schedule: Schedule) -> list[str]:
    account = Account()
    Story(schedule, account=account).tell()
    return str(account).splitlines()


def test_a_calm_fleet_has_a_short_account() -> None:
    assert told(replace(CALM, run="none")) == [
        "p0 p1 p2 start",
        "    view 1 by p0 within 1 s: p0 p1 p2",
        "    rounds 1-4 summed over view 1",
        "p0 p1 p2 have come to round 4 in one view",
    ]


def test_a_death_divides_an_account_and_a_new_life_is_told() -> None:
    lines = told(replace(CALM, rounds=20, faults=(Fault(1.0, "power", ("p1",), 6.0),)))
    assert "1..6        power p1" in lines
    assert "6           end of power p1" in lines
    died, back = lines.index("1..6        power p1"), lines.index("6           end of power p1")
    assert "    view 2 by p0 within 5 s: p0 p2" in lines[died:back]
    assert "    p0: p1 is gone: nothing heard on any path for 3 s" in lines[died:back]
    assert any(line.startswith("    view 3 by p0 ") and line.endswith(": p0 p2 p1; anew p1") for line in lines[back:])
    assert "    p1 took a state over" in lines[back:]
    assert lines[-1] == "p0 p1 p2 have come to round 20 in one view"


def test_a_fault_that_meets_nobody_is_told_as_such() -> None:
    lines = told(replace(CALM, faults=(Fault(0.5, "kill", ("p2",)), Fault(4.0, "leave", ("p2",)))))
    assert lines[lines.index("4           leave p2") + 1].strip() == "meets nobody"


def test_rounds_that_are_given_up_and_ends_without_a_majority_are_told() -> None:
    slow = replace(CALM, run="none", compute_s=2.0, faults=(Fault(2.0, "timeout", ("p2",)),))
    assert "    round 1 given up: timed out at p2" in told(slow)
    assert told(replace(CALM, faults=(Fault(0.5, "power", ("p1",)), Fault(0.5, "power", ("p2",)))))[-1] == (
        "too few are left to go on"
    )


def test_a_way_around_a_cut_is_told() -> None:
    lines = told(replace(CALM, rounds=10, faults=(Fault(1.0, "cut", ("p0", "p1"), 5.0),)))
    assert "    p0 and p1 reach each other over a neighbour" in lines
    assert not any(" is out: " in line for line in lines)
