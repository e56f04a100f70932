"""Soaks: the same seed gives the same schedules, and what breaks comes out small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from edgepeer.errors import ProtocolBug
from edgepeer.simulation import soak as module
from edgepeer.simulation.drawing import Random, draw_schedule
from edgepeer.simulation.schedule import Fault, Schedule
from edgepeer.simulation.shrinking import shrink
from edgepeer.simulation.soak import Tally, broken, smallest, soak
from edgepeer.simulation.story import Story
from edgepeer.simulation.world import World


def for_schedules(limit: int) -> tuple[Callable[[Tally], bool], list[Tally]]:
    """What lets a soak go on for so many schedules, and where the last tally is put."""
    seen: list[Tally] = []

    def go_on(tally: Tally) -> bool:
        seen[:] = [tally]
        return tally.schedules < limit

    return go_on, seen


def test_a_soak_counts_what_it_has_done_and_repeats_it() -> None:
    tallies = []
    for _ in range(2):
        go_on, seen = for_schedules(6)
        assert soak(go_on, seed=3, peers=5) is None
        tallies += seen
    assert tallies[0] == tallies[1]
    (tally, _) = tallies
    assert tally.schedules == 6
    assert tally.rounds > 0
    assert tally.virtual_s > 60
    assert sum(tally.faults.values()) > 0


def test_another_seed_draws_other_schedules() -> None:
    drawn = {draw_schedule(Random(seed)) for seed in range(50)}
    assert len(drawn) == 50
    assert draw_schedule(Random(1)) == draw_schedule(Random(1))


@pytest.fixture
def _fragile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fleets of three and more do not survive a reset."""
    real = Story.tell

    def tell(self: Story) -> World:
        world = real(self)
        if self.schedule.peers >= 3 and any(fault.kind == "reset" for fault in self.schedule.faults):
            raise ProtocolBug("broke\nof a reset")
        return world

    monkeypatch.setattr(Story, "tell", tell)


@pytest.mark.usefixtures("_fragile")
def test_a_soak_stops_at_what_breaks_and_makes_it_smaller() -> None:
    go_on, seen = for_schedules(200)
    found = soak(go_on, seed=0, peers=5)
    assert found is not None
    assert seen[0].schedules < 200
    assert broken(found) == "broke\nof a reset"
    small = smallest(found, tries=120)
    assert small.peers <= 5
    assert [fault.kind for fault in small.faults] == ["reset"]
    assert replace(small, comment="", peers=3, faults=()) == Schedule(peers=3)
    assert small.comment == "broke of a reset"
    assert Schedule.parse(str(small)) == small


def test_shrinking_keeps_what_matters_and_no_more() -> None:
    faults = (
        Fault(0.53, "kill", ("p1",)),
        Fault(1.27, "cut", ("p0", "p2"), 8.91),
        Fault(2.5, "oneway", ("p4", "p3"), 3.0),
    )
    schedule = Schedule(peers=9, seed=7, rounds=40, jitter_s=0.1, faults=faults)

    def breaks(each: Schedule) -> bool:
        return each.peers >= 4 and any(f.kind == "cut" and f.end - f.at >= 1.5 for f in each.faults)

    small = shrink(schedule, breaks)
    (cut,) = small.faults
    assert (small, cut.at, cut.who) == (Schedule(peers=4, faults=(cut,)), 1.0, ("p0", "p2"))
    assert 1.5 <= cut.end - cut.at < 3.5


def test_shrinking_stops_after_so_many_tries() -> None:
    tried: list[Schedule] = []

    def breaks(each: Schedule) -> bool:
        tried.append(each)
        return False

    schedule = draw_schedule(Random(1))
    assert shrink(schedule, breaks, tries=3) == schedule
    assert len(tried) == 3


def test_a_tally_is_kept_of_what_breaks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def tell(_: Story) -> World:
        raise ProtocolBug("no")

    monkeypatch.setattr(module.Story, "tell", tell)
    tally = Tally()
    assert broken(Schedule(peers=1), tally) == "no"
    assert (tally.schedules, tally.unfinished) == (1, 1)
