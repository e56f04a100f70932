"""A whole fleet that starts again: from the newest iteration of which its peers have kept enough."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
import pytest
from undivided import batches_for, undivided

from edgepeer.errors import WireError
from edgepeer.training.split.assembly import assembled
from edgepeer.training.split.named import parse_split
from edgepeer.training.split.network import Network
from edgepeer.training.split.program import Ended, Program

NETWORK = Network(sizes=(6, 8, 4), learning_rate=0.1)
BATCHES = batches_for(NETWORK)
NAMES = ("a", "b", "c", "d")
SPLIT = "replicate:m=2,n=1,copies=2"  # a and c have the same blocks, b and d the others
Kept = dict[str, list[tuple[int, bytes]]]


def fleet(kept: Kept, iterations: int, names: Sequence[str] = NAMES) -> list[Program]:
    split = parse_split(SPLIT, NETWORK.dtype)
    return [
        Program(
            name, NETWORK, split, BATCHES, iterations=iterations, checkpoint_every=10, scrub_every=10,
            saved=kept.get(name, []),
        )
        for name in names
    ]  # fmt: skip


def round_of(programs: list[Program]) -> list[Ended | None]:
    total = reduce(np.add, [program.contribute() for program in programs])
    ended = [program.settle(total, [program.me for program in programs]) for program in programs]
    assert len({program.digest() for program in programs}) == 1
    return ended


def former_life() -> Kept:
    """What each has kept of 30 iterations: after 30, 20 and 10, the newest first."""
    kept: Kept = {name: [] for name in NAMES}
    programs = fleet({}, 30)
    seen = {0}
    while not programs[0].done:
        round_of(programs)
        for program in programs:
            assert program.saved is None or program.saved[1] <= 30
        if programs[0].saved is not None and programs[0].saved[1] not in seen:
            seen.add(programs[0].saved[1])
            for program in programs:
                assert program.saved is not None
                node, _, state = program.saved
                kept[program.me].insert(0, (node, state))
    assert seen == {0, 10, 20, 30}
    return kept


@pytest.mark.parametrize(
    ("lost", "start"),
    [
        ({}, 30),
        ({"a": 1}, 30),
        ({"a": 1, "b": 1}, 30),
        ({"a": 1, "c": 1}, 20),
        ({"a": 2, "c": 1}, 20),
        ({"a": 2, "c": 2, "b": 1}, 10),
        ({"a": 3}, 30),
        ({"a": 3, "c": 2}, 10),
        ({"a": 3, "c": 3}, 0),
        ({"a": 3, "b": 3, "c": 3, "d": 3}, 0),
    ],
)
def test_the_newest_of_which_there_is_enough(lost: dict[str, int], start: int) -> None:
    """`lost`: how many of its newest checkpoints a peer had not written when all stopped."""
    kept = {name: all_of_it[lost.get(name, 0) :] for name, all_of_it in former_life().items()}
    programs = fleet(kept, 40)
    ended: list[Ended] = []
    first = None
    while not programs[0].done:
        said = round_of(programs)[0]
        if first is None and str(programs[0].phase) != "muster":
            first = programs[0].iteration
        if said is not None:
            ended.append(said)
    assert first == start
    assert [each.iteration for each in ended] == list(range(start + 1, 41))
    assert all(np.isfinite(each.loss) for each in ended)
    split = programs[0].split
    for layer, wanted in enumerate(undivided(NETWORK, BATCHES, 40)):
        cells = [program.cell for program in programs]
        stored = {cell.node: cell.blocks[layer] for cell in cells if cell is not None}
        assert np.abs(assembled(split, NETWORK.shape(layer), stored) - wanted).max() < 1e-5 * np.abs(wanted).max()


def test_who_may_have_what_is_needed_is_waited_for() -> None:
    """Peers whose blocks nobody else has are missing; when one of them comes, all go on."""
    kept = former_life()
    programs = fleet({"a": kept["a"], "c": kept["c"]}, 40, ("a", "c"))
    for _ in range(3):
        round_of(programs)
        assert str(programs[0].phase) == "muster"
        assert "2 peers are there" in programs[0].waiting
    (late,) = fleet(kept, 40, ("b",))
    late.load_state(programs[0].state())
    programs.append(late)
    round_of(programs)
    assert programs[0].iteration == 30
    assert programs[0].waiting == ""
    assert late.node is not None


def test_who_was_away_and_has_missed_nothing_keeps_its_blocks() -> None:
    """Without redundancy they could come from nobody else."""
    programs = fleet({}, 10)
    for _ in range(5):
        round_of(programs)
    one, other = programs[:2]
    cell = one.cell
    one.load_state(other.state())
    assert one.cell is cell is not None
    round_of(programs)
    one.load_state(other.state())
    assert one.cell is cell


def test_who_comes_back_after_the_end_has_its_blocks_from_its_own_checkpoint() -> None:
    """No round is left in which others could put them together again."""
    programs = fleet({}, 20)
    kept: Kept = {name: [] for name in NAMES}
    while not programs[0].done:
        round_of(programs)
        for program in programs:
            if program.saved is not None and program.saved[1] > len(kept[program.me]) * 10:
                kept[program.me].insert(0, (program.saved[0], program.saved[2]))
    one, other = programs[:2]
    (late,) = fleet({}, 20, (one.me,))
    late.load_state(other.state())
    assert late.done
    assert late.saved is None
    newest, before = kept[one.me]
    damaged = newest[1][:-3] + b"bad"
    for node, state in (kept[other.me][0], (newest[0], damaged), before, (newest[0], kept[other.me][0][1])):
        with pytest.raises(WireError):
            late.regain(node, state)
    assert late.saved is None
    late.regain(*newest)
    assert late.saved == one.saved
    assert late.cell is not None
    assert one.cell is not None
    assert all(map(np.array_equal, late.cell.blocks, one.cell.blocks))
    assert not late.cell.lacking


def test_before_the_end_who_comes_again_gets_its_blocks_from_the_others() -> None:
    kept = former_life()
    programs = fleet({}, 31)
    while programs[0].iteration < 30:
        round_of(programs)
    (late,) = fleet({}, 31, (NAMES[0],))
    late.load_state(programs[1].state())
    with pytest.raises(WireError):
        late.regain(*kept[late.me][0])
