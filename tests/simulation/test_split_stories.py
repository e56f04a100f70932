"""Split runs in virtual time: the weights come out as those of undivided training, or somebody notices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from fleet_stories import told

from edgepeer.errors import ProtocolBug
from edgepeer.ids import PeerId
from edgepeer.simulation.drawing import SPLITS, Random, draw_schedule
from edgepeer.simulation.schedule import Fault, Schedule
from edgepeer.simulation.split_app import SplitApp, split_of
from edgepeer.simulation.story import Story
from edgepeer.training.split.faults import Injected, Where

SMALL = Schedule(peers=6, rounds=4, compute_s=0.05, split="codenet:m=1,n=1,t=1")


def programs(story: Story) -> list[SplitApp]:
    return [peer.split for peer in story.world.alive if peer.split is not None]


@pytest.mark.parametrize("split", SPLITS)
def test_without_faults_all_splits_come_to_the_weights_of_undivided_training(split: str) -> None:
    story = told(replace(SMALL, split=split, peers=split_of(split).nodes + 1))
    assert story.ended_well
    assert sorted(app.program.node for app in programs(story) if app.program.node is not None) == list(
        range(split_of(split).nodes)
    )
    counts = programs(story)[0].program.counts
    assert (counts.computed, counts.checkpoints, counts.restored, counts.regenerated) == (4, 2, 0, 0)
    assert {app.program.evaluation is not None or app.program.iteration for app in programs(story)} == {4}


def test_soft_errors_of_each_kind_and_place_are_confirmed_when_they_happen() -> None:
    happened: Counter[str] = Counter()
    for number, place in enumerate(("stored", "product", "encoding", "decoded", "activation", "verdict", "sum")):
        kind = ("sparse", "garbage", "flip", "nan")[number % 4]
        fault = Fault(0.3, "flip", (f"p{number % 5}",), extra=f"kind={kind},place={place}")
        story = told(replace(SMALL, seed=number, faults=(fault,)))
        assert story.ended_well
        happened.update(story.happened)
    assert happened == {"flip": 7}


def test_a_spare_makes_no_error_until_it_is_a_node() -> None:
    flip = Fault(0.5, "flip", ("p5",))
    assert told(replace(SMALL, faults=(flip,))).happened == []
    story = told(replace(SMALL, rounds=8, faults=(flip, Fault(1.0, "kill", ("p2",)))))
    assert story.happened == ["kill", "flip"]
    assert {app.peer: app.program.node for app in programs(story)}["p5"] == 2  # type: ignore[index]


def test_errors_by_chance_are_confirmed_too() -> None:
    story = told(replace(SMALL, rounds=12, soft_errors="p=0.02,kind=garbage"))
    assert story.ended_well
    assert Counter(story.happened)["soft_errors"] == sum(len(app.injector.record) for app in programs(story)) > 5


def test_all_die_and_begin_again() -> None:
    """One after the other, the last before the first is back: nobody has anything, and the weights are the same."""
    faults = tuple(Fault(2.0 + number / 10, "kill", (f"p{number}",), 4.0) for number in range(5))
    story = told(replace(SMALL, peers=5, rounds=12, compute_s=0.2, faults=faults))
    assert story.ended_well
    assert {app.program.counts.computed for app in programs(story)} == {12}


def test_too_few_wait_and_that_is_no_fault_of_theirs() -> None:
    dead = tuple(Fault(1.0 + number, "kill", (f"p{number}",)) for number in (1, 3))
    story = told(replace(SMALL, peers=7, rounds=20, split="none:m=2,n=3", faults=dead[:1]))
    assert story.ended_well
    story = told(replace(SMALL, peers=7, rounds=20, split="none:m=2,n=3", faults=dead))
    assert not story.ended_well
    assert all("5 peers are there" in app.program.waiting for app in programs(story))


def test_most_of_what_is_drawn_ends_well_and_has_errors_in_it() -> None:
    stories = [told(draw_schedule(Random(seed), peers=(5, 8), within_s=6.0, split=True)) for seed in range(17)]
    assert sum(story.ended_well for story in stories) >= 12
    happened = Counter(kind for story in stories for kind in story.happened)
    assert min(happened["flip"], happened["soft_errors"]) >= 5
    counts = [app.program.counts for story in stories for app in programs(story)[:1]]
    assert sum(each.lines for each in counts) > 0 < sum(each.regenerated for each in counts)
    assert sum(each.erased for each in counts) > 0 < sum(each.restored for each in counts)


# -- the checks themselves ---------------------------------------------------------------------------------------


def spoil_weights(app: SplitApp) -> None:
    assert app.program.cell is not None
    app.program.cell.blocks[1][0, 0] += 1e-6


def spoil_counts(app: SplitApp) -> None:
    app.program.counts.lines += 1


def make_unseen(app: SplitApp) -> None:
    app.injector.record.append(Injected(Where(1, 0, "forward 0", "product"), "nan", np.inf))


def use_uncounted(app: SplitApp) -> None:
    app.injector.record.append(Injected(Where(1, 0, "forward 0", "product"), "nan", np.inf, "unchecked"))


@pytest.mark.parametrize(
    ("do", "said"),
    [
        (spoil_weights, "store 1 of node 2 is off by"),
        (spoil_counts, "living peers of a split run have not the same in common"),
        (make_unseen, r"Injected\(.*product.* at p2 was not seen"),
        (use_uncounted, r"Injected\(.*product.* at p2 was not seen"),
    ],
)
def test_what_is_wrong_in_the_end_is_noticed(do: Callable[[SplitApp], None], said: str) -> None:
    story = Story(replace(SMALL, rounds=2, faults=(Fault(12.0, "reset", ("p0", "p1")),)))
    story.world.clock.after(10.0, lambda: do(next(app for app in programs(story) if app.peer == "p2")))
    with pytest.raises(ProtocolBug, match=said):
        story.tell()


def test_a_sum_of_another_life_is_a_sum_and_no_other_is() -> None:
    story = told(replace(SMALL, peers=6, rounds=8, compute_s=0.2, faults=(Fault(1.0, "kill", ("p2",), 1.3),)))
    assert story.world.task.split is not None
    lives = story.world.task.split.lives[PeerId("p2")]
    assert len(lives) == 2
    app = lives[1]
    number = max(app.brought)
    app.brought[number][0][0] += 1
    outcome = next(each for each in story.world.alive[0].outcomes if each.round == number)
    story.world.ledger._ends.clear()
    with pytest.raises(ProtocolBug, match=f"round {number} is not the sum over"):
        story.world.ledger.committed(story.world.alive[0].id, outcome)


def test_wrong_verdicts_of_several_in_one_step_are_no_fault_of_the_check() -> None:
    """If most name the same node wrongly they are believed; one alone never is."""
    story = Story(replace(SMALL, rounds=2, faults=(Fault(12.0, "reset", ("p0", "p1")),)))

    def agree() -> None:
        for node, app in enumerate(programs(story)[:2]):
            app.injector.record.append(Injected(Where(1, node, "forward 0", "verdict"), "sparse", np.inf))

    story.world.clock.after(10.0, agree)
    story.tell()
    assert story.ended_well
