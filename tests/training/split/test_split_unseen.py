"""Wrong numbers in split training where so much is missing that nothing shows them: counted, undone by going back."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import combinations

import numpy as np
import pytest
from places import chances
from undivided import batches_for, distance, undivided

from edgepeer.errors import Undecodable
from edgepeer.training.split.faults import ErrorInjector, PlannedError
from edgepeer.training.split.fleet import LocalFleet
from edgepeer.training.split.named import parse_split
from edgepeer.training.split.network import Network
from edgepeer.training.split.phases import Mend, Phase, Scrub

DOUBLE = np.dtype(np.float64)
NET = Network(sizes=(6, 5, 4), activation="tanh", output="linear", learning_rate=0.1, dtype=DOUBLE)
BATCHES = batches_for(NET)
RIGHT = undivided(NET, BATCHES, 3)
RIGHT_OF_FOUR = undivided(NET, BATCHES, 4)


def three_times(faults: list[PlannedError], absent: Callable[[int, Phase], Collection[int]]) -> LocalFleet:
    """Three iterations of a network that all have whole."""
    injector = ErrorInjector(faults=faults)
    split = parse_split("replicate:m=1,n=1", DOUBLE)
    return LocalFleet(NET, split, BATCHES, iterations=3, injector=injector, absent=absent)


def test_who_is_alone_has_nobody_to_differ_from() -> None:
    """What it has made of a step is believed if no other is there when digests meet. That is counted, and its error
    stays one that nobody has seen, though another one of the same node is corrected later."""
    faults = [
        PlannedError(1, 1, "decoded", "forward 0", "garbage"),
        PlannedError(2, 1, "product", "forward 1", "garbage"),
    ]
    fleet = three_times(faults, lambda iteration, phase: (0, 2) if (iteration, str(phase)) == (1, "forward 1") else ())
    fleet.train()
    assert distance(fleet, RIGHT) > 1e-3
    assert [each.fate for each in fleet.injector.record] == ["unchecked", "found"]
    assert (fleet.injector.struck.found, fleet.injector.struck.undetected) == (1, 1)
    assert fleet.counts.unchecked > 0


def test_a_scrub_without_a_check_is_counted() -> None:
    """Node 0 is new, node 2 away when all are to look at what node 0 is given: so that is node 1's wrong weights."""
    fleet = three_times(
        [PlannedError(1, 1, "stored", "update 0", "garbage")],
        lambda iteration, phase: (2,) if iteration == 2 and isinstance(phase, Mend | Scrub) else (),
    )
    fleet.train(1)
    fleet.replace(0)
    while not isinstance(fleet.programs[1].phase, Scrub):
        fleet.round()
    counts = fleet.programs[1].counts
    assert counts.unchecked == 0  # two copies have agreed in each step
    fleet.round()
    assert counts.unchecked == 1
    assert [each.fate for each in fleet.injector.record] == ["unchecked"]
    fleet.train()
    assert distance(fleet, RIGHT) > 1e-3
    assert fleet.injector.struck.undetected == 1  # though node 2's right blocks were outvoted, and node 1 not


def test_from_a_checkpoint_that_nobody_could_look_at_it_goes_back_further() -> None:
    """Node 0 is gone for good. Node 3 is away when node 4, the last of its column, stores a wrong number, and when
    the checkpoint of 4 is made."""

    def absent(iteration: int, phase: Phase) -> tuple[int, ...]:
        return (0, 3) if iteration in (3, 4) and fleet.counts.checkpoints < 2 else (0,) if iteration else ()

    fleet = LocalFleet(
        NET,
        parse_split("codenet:m=1,n=1,t=1", DOUBLE),
        BATCHES,
        iterations=8,
        checkpoint_every=2,
        injector=ErrorInjector(faults=[PlannedError(3, 4, "stored", "update 0", "garbage")]),
        absent=absent,
    )
    fleet.train(3)
    kept = fleet.programs[4]
    assert kept.checked
    assert kept.saved is not None
    assert kept.saved[1] == 2
    while fleet.counts.checkpoints < 2:
        fleet.round()
    assert not kept.checked
    assert kept.saved[1] == 4
    fleet.train()
    assert fleet.counts.restored == 1
    assert [each.fate for each in fleet.injector.record] == ["restored"]
    assert distance(fleet, undivided(NET, BATCHES, 8)) < 1e-12


def test_checkpoints_that_nobody_could_look_at_do_not_renew_patience() -> None:
    """Else all would go from one that was looked at to one that was not, and back, for ever."""
    fleet = LocalFleet(
        NET,
        parse_split("codenet:m=1,n=1,t=1", DOUBLE),
        BATCHES,
        iterations=8,
        checkpoint_every=2,
        patience=5,
        injector=ErrorInjector(faults=[PlannedError(3, 4, "stored", "update 0", "garbage")] * 40),
        absent=lambda iteration, phase: (
            (0, 3) if iteration == 3 or (iteration == 4 and isinstance(phase, Scrub)) else (0,) if iteration else ()
        ),
    )
    with pytest.raises(Undecodable, match="went back to iteration 4 5 times"):
        fleet.train()
    assert fleet.counts.checkpoints > 5


def test_an_error_that_nobody_saw_is_undone_by_going_back() -> None:
    faults = [
        PlannedError(1, 1, "decoded", "forward 0", "garbage"),
        *(PlannedError(2, node, "product", "forward 0", "garbage") for node in (0, 1)),
    ]
    fleet = three_times(
        faults,
        lambda iteration, phase: (
            (0, 2) if (iteration, str(phase)) == (1, "forward 1") and not fleet.counts.unchecked else ()
        ),
    )
    fleet.train()
    assert fleet.counts.restored == 1 <= fleet.counts.unchecked
    assert [each.fate for each in fleet.injector.record] == ["restored"] * 3
    assert distance(fleet, RIGHT) < 1e-12


@pytest.mark.parametrize("name", ["replicate:m=1,n=1", "codenet:m=1,n=1", "polydot:m=2,n=1", "codenet:m=2,n=1"])
def test_wrong_weights_are_never_without_a_word(name: str) -> None:
    """Whoever errs and is away, and whoever is new: where the weights come out wrong, an error is said to be
    undetected, and that only where there was a round that nobody could check."""
    wrong = unchecked = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        split = parse_split(name, DOUBLE)
        away: dict[tuple[int, str], list[int]] = {}
        names = [str(step) for step in NET.steps()] + ["scrub", "regeneration"]
        for _ in range(rng.integers(4)):
            some = rng.permutation(split.nodes)[: rng.integers(1, split.nodes)]
            away[int(rng.integers(4)), str(rng.choice(names))] = some.tolist()
        places = chances(NET)
        faults = []
        for _ in range(rng.integers(1, 4)):
            place, step = places[rng.integers(len(places))]
            faults.append(PlannedError(int(rng.integers(4)), int(rng.integers(split.nodes)), place, step, "garbage"))
        fleet = LocalFleet(
            NET,
            split,
            BATCHES,
            iterations=4,
            scrub_every=2,
            checkpoint_every=2,
            injector=ErrorInjector(faults=faults, seed=seed),
            # once: if all go back, they are there
            absent=lambda iteration, phase, away=away: away.pop((iteration, str(phase).partition(" 0 of")[0]), ()),  # type: ignore[misc]
        )
        fleet.train(1)
        if rng.random() < 0.5:
            new = int(rng.integers(1, split.nodes))
            fleet.replace(new)
            fleet.injector.given_up(new)
        fleet.train()
        off = not distance(fleet, RIGHT_OF_FOUR) < 1e-9
        unseen = fleet.injector.struck.undetected > 0
        assert unseen or not off, (seed, fleet.counts, fleet.injector.record)
        assert not unseen or fleet.counts.unchecked, (seed, fleet.counts, fleet.injector.record)
        wrong += off
        unchecked += fleet.counts.unchecked > 0
    assert wrong < unchecked < 30


@pytest.mark.parametrize(
    "name", ["replicate:m=1,n=1", "replicate:m=2,n=1,copies=2", "codenet:m=1,n=1", "codenet:m=2,n=1", "polydot:m=2,n=1"]
)
def test_whether_a_scrub_sees_is_what_happens(name: str) -> None:
    """Against putting an error into each block that is left."""
    split = parse_split(name, DOUBLE)
    rng = np.random.default_rng(1)

    def noticed(lost: tuple[int, ...], node: int) -> bool:
        probes = np.zeros((split.nodes, 3), np.result_type(split.block_dtype, np.float64))
        probes[node] = rng.standard_normal(3)
        try:
            return bool(split.inspect(probes, (4, 4), lost, 0))
        except Undecodable:
            return True

    told = [0, 0]
    for count in range(split.nodes):
        for lost in combinations(range(split.nodes), count):
            try:
                split.inspect(
                    np.zeros((split.nodes, 3), np.result_type(split.block_dtype, np.float64)), (4, 4), lost, 0
                )
            except Undecodable:
                continue  # too much is missing to look at anything: all go back
            sees = split.inspects(frozenset(lost))
            assert sees == all(noticed(lost, node) for node in range(split.nodes) if node not in lost), lost
            told[sees] += 1
    assert min(told) > 0
