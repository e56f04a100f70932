"""Soaks: the same seed gives the same schedules, and what breaks comes out small."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from edgepeer.errors import ProtocolBug
from edgepeer.simulation import soak as module
from edgepeer.simulation.account import Account
from edgepeer.simulation.drawing import OWNERS, SOFT_ERRORS, Random, draw_owners, draw_schedule, draw_story
from edgepeer.simulation.schedule import KINDS, Fault, Schedule, names
from edgepeer.simulation.shrinking import shrink
from edgepeer.simulation.soak import Looked, Tally, broken, drawn_from, look, smallest, soak
from edgepeer.simulation.story import Story
from edgepeer.simulation.ways import BROKER
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


def test_a_soak_goes_through_no_more_than_its_limit_in_whatever_order() -> None:
    def backwards(do: Callable[[int], Looked], seeds: Iterator[int]) -> Iterator[Looked]:
        return map(do, sorted(seeds, reverse=True))

    tallies = []
    for over in (map, backwards):
        go_on, seen = for_schedules(1000)
        assert soak(go_on, seed=40, peers=4, limit=5, over=over) is None
        tallies += seen
    assert tallies[0].schedules == 5
    assert (tallies[0].rounds, tallies[0].faults) == (tallies[1].rounds, tallies[1].faults)


def test_stories_hold_what_is_hard_on_a_fleet() -> None:
    """What a soak is to meet: each is drawn again and again, and can be written down and read."""
    drawn = [draw_story(Random(seed), peers=21) for seed in range(600)]
    assert all(Schedule.parse(str(each)) == replace(each, faults=tuple(each.faults)) for each in drawn)
    assert {fault.kind for each in drawn for fault in each.faults} == {*KINDS}
    assert max(each.peers for each in drawn) == 21
    assert {(each.code != "none", each.run) for each in drawn} == {
        (c, r) for c in (True, False) for r in ("run", "none")
    }
    assert 20 <= sum(each.split != "none" for each in drawn) <= 100
    assert sum(each.checkpoint > 0 for each in drawn) >= 100
    assert {each.soft_errors for each in drawn} == {*SOFT_ERRORS}
    for meets in (anew_while_apart, isolated_again, several_candidates, joins_apart):
        assert sum(map(meets, drawn)) >= 20, meets.__name__


def test_what_owners_do_comes_beside_what_a_seed_draws_without_it() -> None:
    """So that what earlier soaks have come to says something of the same seeds still."""
    drawn = [draw_story(Random(seed), peers=21) for seed in range(300)]
    with_owners = [each for each in drawn if any(fault.kind in OWNERS for fault in each.faults)]
    assert 15 <= len(with_owners) <= 40
    for each in drawn:
        if each not in with_owners:
            more = draw_owners(Random(each.seed), each)
            assert Schedule.parse(str(more)) == more
            assert replace(more, faults=tuple(f for f in more.faults if f.kind not in OWNERS)) == each


def test_owners_change_their_minds_in_each_schedule_of_their_mix() -> None:
    for seed in range(100):
        drawn = drawn_from(seed, 21, "owners")
        assert drawn.run != "none"
        assert drawn.peers <= 7
        assert any(fault.kind in OWNERS for fault in drawn.faults)
        assert Schedule.parse(str(drawn)) == drawn


@pytest.mark.parametrize("seed", [2, 5])
def test_fleets_that_choose_their_trees_do_so_under_faults(seed: int) -> None:
    drawn, told = drawn_from(seed, 5, "shapes"), list[Story]()
    assert Schedule.parse(str(drawn)) == drawn
    assert drawn.faults

    def make(schedule: Schedule, account: Account | None = None) -> Story:
        told.append(Story(schedule, account=account))
        return told[-1]

    assert broken(drawn, make=make) is None
    assert all(peer.node.view is not None and peer.node.view.why for peer in told[0].world.alive)


def anew_while_apart(schedule: Schedule) -> bool:
    apart = [fault for fault in schedule.faults if fault.kind == "partition"]
    anew = [fault for fault in schedule.faults if fault.kind in ("kill", "power") and fault.until is not None]
    return any(a.at <= b.at and b.end <= a.end for a in apart for b in anew)


def isolated_again(schedule: Schedule) -> bool:
    times = Counter(fault.who for fault in schedule.faults if fault.kind == "isolate")
    return max(times.values(), default=0) > 1


def several_candidates(schedule: Schedule) -> bool:
    """Without the root, while two others are cut from each other."""
    root = names(schedule.peers)[0]
    gone = [f for f in schedule.faults if f.kind in ("isolate", "kill", "power", "freeze") and f.who == (root,)]
    cuts = [f for f in schedule.faults if f.kind in ("cut", "oneway") and not {root, BROKER} & {*f.who}]
    return any(0 <= cut.at - each.at <= 0.5 for each in gone for cut in cuts)


def joins_apart(schedule: Schedule) -> bool:
    joins = [fault for fault in schedule.faults if fault.kind == "join"]
    apart = [fault for fault in schedule.faults if fault.kind in ("partition", "isolate")]
    return any(a.at <= b.at <= a.end for a in apart for b in joins)


def test_what_the_protocol_raises_by_mistake_breaks_a_schedule_like_anything_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def tell(_: Story) -> World:
        raise KeyError("p9")

    monkeypatch.setattr(module.Story, "tell", tell)
    looked = look(3, peers=4)
    assert looked.complaint is not None
    assert looked.complaint.startswith("KeyError in tell, line ")
    assert looked.complaint.endswith(": 'p9'")
    assert (looked.seed, looked.tally.schedules) == (3, 1)


def test_circles_are_seldom_looked_for_while_a_schedule_happens_and_as_before_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thousand peers hear of each other a million times, and none of that is ever rubbish."""
    before, meanwhile = gc.get_threshold(), []

    def tell(_: Story) -> World:
        meanwhile.append(gc.get_threshold())
        raise KeyError("p9")

    monkeypatch.setattr(module.Story, "tell", tell)
    look(3, peers=4)
    assert meanwhile == [(100_000, 20, 100)]
    assert gc.get_threshold() == before


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
    looked = soak(go_on, seed=0, peers=5)
    assert looked is not None
    assert looked.seed + 1 == seen[0].schedules < 200
    found = drawn_from(looked.seed, 5)
    assert broken(found) == looked.complaint == "broke\nof a reset"
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
