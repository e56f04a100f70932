"""Random faults, in many schedules: every sum is right, every round ends, and there is one view in the end.

Each mix draws its own kinds of faults, and each part of one its own schedules, the same in every run: so they can run
side by side. What fails is shown as text that can be put into tests/scenarios. HYPOTHESIS_PROFILE=search looks for
more, and `edgepeer simulate soak` for longer.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Final

import pytest
from fleet_stories import drawn, told

from edgepeer.errors import ProtocolBug
from edgepeer.ids import PeerId
from edgepeer.simulation.drawing import DRAWN, OWNERS, Random, draw_burst, draw_schedule
from edgepeer.simulation.schedule import KINDS, Fault, Schedule
from edgepeer.simulation.story import Story, there
from edgepeer.simulation.ways import BROKER

MIXES: Final[dict[str, dict[str, Any]]] = {
    "whatever": {},
    "small": {"peers": (2, 7), "most_faults": 3},
    "links": {"kinds": ("cut", "oneway", "reset", "broker")},
    "deaths": {"kinds": ("kill", "power", "restart", "join", "cut")},
    "slow": {"kinds": ("slow", "freeze", "leave", "timeout", "kill")},
    "apart": {"kinds": ("isolate", "partition", "oneway", "power", "sleep"), "peers": (3, 9)},
    "broker": {"kinds": ("broker", "join", "kill", "restart", "isolate")},
    "runs": {"kinds": ("run", "cancel", "kill", "restart", "join", "leave", "isolate", "freeze")},
    "owners": {"kinds": (*OWNERS, *OWNERS, "run", "cancel", "leave", "kill", "restart", "isolate")},
}
PARTS: Final = 3
EACH: Final = 5
"""Times mixes times parts: 135 schedules, for what breaks often. Soaks draw others, for as long as one likes."""
CODED: Final = 2
"""Times mixes times parts that many more, of coded rounds: 54."""
SPLIT: Final = 1
"""And of split runs: 27."""
BURSTS: Final = 20
"""Times parts, of those to which much happens at once: 60."""


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("mix", MIXES)
def test_whatever_happens(mix: str, part: int) -> None:
    for schedule in drawn(EACH, mix, part, **MIXES[mix]):
        told(schedule)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("mix", MIXES)
def test_whatever_happens_to_coded_rounds(mix: str, part: int) -> None:
    """A round that is called exact is the plain sum over all chunks; nothing else changes: the ledger looks."""
    for schedule in drawn(CODED, mix, part, coded=True, **MIXES[mix]):
        told(schedule)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("mix", MIXES)
def test_whatever_happens_to_split_runs(mix: str, part: int) -> None:
    """With soft errors beside all else, the weights are those of undivided training."""
    how = {"peers": (3, 9), **MIXES[mix]}
    for schedule in drawn(SPLIT, mix, part, split=True, within_s=12.0, **how):
        told(schedule)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_happens_at_once(part: int) -> None:
    """Faults of a second's distance to small fleets."""
    for seed in range(BURSTS):
        told(draw_burst(Random(BURSTS * part + seed)))


def test_coded_rounds_are_exact_and_approximate_and_without_stragglers() -> None:
    """What is drawn covers what codes are for."""
    met = {"exact with few": False, "approximate": False}
    for seed in range(25):
        story = told(draw_schedule(Random(seed), coded=True, kinds=("slow",), peers=(4, 9)))
        outcomes = [outcome for peer in story.world.alive for outcome in peer.outcomes]
        met["exact with few"] |= any(outcome.exact and len(outcome.contributors) < 4 for outcome in outcomes)
        met["approximate"] |= any(not outcome.exact and outcome.error > 0 for outcome in outcomes)
        if all(met.values()):
            return
    pytest.fail(str(met))


@pytest.mark.parametrize("kind", [*DRAWN, *OWNERS])
def test_each_kind_of_fault_happens(kind: str) -> None:
    """A fault that never fires proves nothing. Whichever schedules it takes, of the first eight."""
    meant = ("kill", "power") if kind == "restart" else (kind,)
    happened = (sum(each in meant for each in told_from(seed, kind).happened) for seed in range(8))
    assert any(so_far >= 4 for so_far in accumulate(happened))


def told_from(seed: int, kind: str) -> Story:
    return told(draw_schedule(Random(seed), kinds=(kind,), peers=(5, 7)))


def test_most_schedules_leave_a_majority_that_must_go_on() -> None:
    ended_well = (told_from(seed, "kill").ended_well for seed in range(30))
    assert any(so_far >= 20 for so_far in accumulate(ended_well))


def test_every_kind_of_fault_can_be_drawn() -> None:
    assert {*DRAWN, *OWNERS, "flip"} == {*KINDS, "restart"}  # soft errors are drawn where there is a split
    assert {kind for mix in MIXES.values() for kind in mix.get("kinds", ())} == {*DRAWN, *OWNERS}


# -- the checks themselves ---------------------------------------------------------------------------------------


def broken_by_hand(schedule: Schedule, at: float, do: str) -> str:
    """What is said where p2 is treated so for good, and the schedule does not know."""
    story = Story(schedule)
    world = story.world
    p2 = world.peers["p2"]  # type: ignore[index]
    hand = {
        "pause": p2.pause,
        "freeze": lambda: world.freeze(p2),
        "deafen": lambda: [world.cut(each, p2.id) for each in (*world.peers, BROKER)],
        "forge": lambda: p2.digests.update({1: bytes(16)}),
    }
    world.clock.after(at, hand[do])
    with pytest.raises(ProtocolBug) as caught:
        story.tell()
    return str(caught.value)


def test_a_round_that_does_not_end_is_noticed() -> None:
    assert "did not end at p" in broken_by_hand(Schedule(peers=3, rounds=100), 2.0, "pause")


def test_a_pause_is_noticed_while_something_is_wrong_if_enough_are_there() -> None:
    schedule = Schedule(peers=4, rounds=100, faults=(Fault(1.0, "isolate", ("p3",), 200.0),))
    assert broken_by_hand(schedule, 8.0, "pause").startswith("no round ended for ")


def test_nobody_is_said_to_pause_who_computes_what_it_began_while_it_was_slow() -> None:
    frozen, slow = Fault(13.0, "freeze", ("p0",), 52.0), Fault(14.0, "slow", ("p1",), 54.0, "x30")
    faults = (frozen, slow, Fault(19.0, "join", ("a4",)))
    story = Story(Schedule(peers=2, rounds=20, compute_s=0.5, run="none", faults=faults))
    story.tell()
    assert story.ended_well


def who_is_there(frozen: str, *cuts: tuple[str, str], broker: bool = True) -> set[str]:
    """Of four in one view."""
    world = Story(Schedule(peers=4)).world
    assert world.run_until(world.settled, 60.0)
    view = world.alive[0].node.view
    assert view is not None
    world.freeze(world.living[PeerId(frozen)])
    for one, other in cuts:
        world.cut(PeerId(one), PeerId(other))
    if not broker:
        world.broker.go_down(forget=False)
    return {*there(world, view)}


def test_who_is_there_attends_and_reaches_the_others_directly_or_through_the_broker() -> None:
    assert who_is_there("p3") == {"p0", "p1", "p2"}
    assert who_is_there("p0", ("p1", "p2")) == {"p1", "p2", "p3"}
    assert who_is_there("p0", ("p1", "p2"), broker=False) == {"p1", "p3"}
    assert who_is_there("p0", ("p1", "p2"), ("p2", BROKER)) == {"p1", "p3"}


@pytest.mark.parametrize("fault", ["freeze", "deafen"])
def test_a_fleet_that_does_not_come_together_again_is_noticed(fault: str) -> None:
    schedule = Schedule(peers=3, faults=(Fault(6.0, "reset", ("p0", "p1")),))
    assert broken_by_hand(schedule, 1.0, fault).startswith("no common view")


def test_a_history_that_differs_is_noticed() -> None:
    assert "after other rounds than" in broken_by_hand(Schedule(peers=3, rounds=12), 4.0, "forge")
