"""Wrong numbers in split training: corrected, or all go back to a checkpoint, and never in silence."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, cycle, islice

import numpy as np
import pytest
from places import chances
from undivided import batches_for, distance, undivided

from edgepeer.errors import ConfigError, Undecodable, WireError
from edgepeer.training.split.cell import Cell
from edgepeer.training.split.codenet import CodeNet
from edgepeer.training.split.faults import ErrorInjector, Kind, PlannedError, SoftErrors
from edgepeer.training.split.fleet import LocalFleet
from edgepeer.training.split.named import parse_split
from edgepeer.training.split.network import Network, ProductStep
from edgepeer.training.split.phases import Mend, Over, Phase, Scrub, Work

DOUBLE = np.dtype(np.float64)
NET = Network(sizes=(6, 5, 4), activation="tanh", output="linear", learning_rate=0.1, dtype=DOUBLE)
BATCHES = batches_for(NET)
RIGHT = undivided(NET, BATCHES, 3)
KINDS: tuple[Kind, ...] = ("sparse", "garbage", "nan")


def run(name: str, faults: list[PlannedError], seed: int = 0) -> tuple[LocalFleet, ErrorInjector]:
    injector = ErrorInjector(faults=faults, seed=seed)
    fleet = LocalFleet(NET, parse_split(name, DOUBLE), BATCHES, iterations=3, injector=injector)
    fleet.train()
    return fleet, injector


@pytest.mark.parametrize(
    ("name", "nodes", "faults"),
    [("codenet:m=2,n=2", 12, 244), ("replicate:m=2,n=1", 6, 138), ("polydot:m=2,n=1", 5, 115)],
)
def test_a_single_fault_anywhere_is_corrected(name: str, nodes: int, faults: int) -> None:
    """At each node, in each step, in each place: one at a time, at one node after the other, with a scrub between. No
    restore, and the weights are the right ones.

    What can't be struck isn't there: activations after the last product, CodeNet's parity nodes' parts in products that
    they have no part in.
    """
    iterations = 2 * nodes + 1
    done, right = 0, undivided(NET, BATCHES, iterations)
    for number, (place, step) in enumerate(chances(NET)):
        kinds = islice(cycle(KINDS), number % 3, None)
        planned = [
            PlannedError(2 * node + 1, node, place, step, kind) for node, kind in zip(range(nodes), kinds, strict=False)
        ]
        injector = ErrorInjector(faults=planned, seed=number)
        fleet = LocalFleet(
            NET, parse_split(name, DOUBLE), BATCHES, iterations=iterations, injector=injector, scrub_every=2
        )
        fleet.train()
        assert distance(fleet, right) < 1e-12, (place, step, injector.record)
        assert fleet.counts.restored == 0, (place, step, injector.record)
        assert {each.fate for each in injector.record} <= {"found", "harmless"}, (place, step, injector.record)
        done += len(injector.record)
    assert done == faults


@pytest.mark.parametrize("name", ["replicate:m=2,n=1,copies=2", "polydot:m=2,n=1,errors=0,nodes=5"])
def test_without_redundancy_for_it_a_single_fault_is_restored(name: str) -> None:
    """Two copies, and PolyDot with one node to spare: wrong products are seen, and not located."""
    for node in range(4):
        for place, step in (("product", "forward 0"), ("product", "backward 1"), ("stored", "update 1")):
            fleet, injector = run(name, [PlannedError(1, node, place, step, "garbage")])  # type: ignore[arg-type]
            assert distance(fleet, RIGHT) < 1e-12
            assert fleet.counts.restored + fleet.counts.lines >= 1
            assert injector.record[0].fate != "unseen"


@pytest.mark.parametrize("name", ["abft:m=2,n=2", "replicate:m=2,n=1,copies=2"])
def test_an_error_of_the_last_update_is_restored_before_the_end(name: str) -> None:
    """The scrub that finds it is the last thing to be done."""
    fleet, injector = run(name, [PlannedError(2, 1, "stored", "update 1", "garbage")])
    assert fleet.counts.restored == 1
    assert injector.record[0].fate != "unseen"
    assert distance(fleet, RIGHT) < 1e-12


def test_checksums_correct_what_the_node_computes_and_see_what_it_stores() -> None:
    for node in range(4):
        for kind in KINDS:
            fleet, _ = run("abft:m=2,n=2", [PlannedError(1, node, "product", "forward 1", kind)])
            assert (fleet.recomputed, fleet.counts.restored) == (1, 0)
            assert distance(fleet, RIGHT) < 1e-12
            fleet, _ = run("abft:m=2,n=2", [PlannedError(1, node, "stored", "update 1", kind)])
            assert (fleet.recomputed, fleet.counts.restored) == (0, 1)
            assert distance(fleet, RIGHT) < 1e-12


@pytest.mark.parametrize("sizes", [(64, 512), (512, 64), (900, 900)])
def test_checksums_see_one_percent_wherever_they_are_admitted(sizes: tuple[int, int]) -> None:
    """Of wide blocks after millions of updates a tenth passed, and nobody was told that it would."""
    single, network = np.dtype(np.float32), Network(sizes=sizes)
    split = parse_split("abft:m=1,n=1", single)
    with pytest.raises(ConfigError, match="may look like rounding"):
        split.fit(network, 10_000_000)
    updates = 0
    for more in (1 << power for power in reversed(range(24))):
        with contextlib.suppress(ConfigError):
            split.fit(network, updates + more)
            updates += more
    assert updates > 1000
    rng = np.random.default_rng(0)
    block = split.store(0, network.shape(0), lambda row: network.weights(0, row))
    whole = {"forward": network.shape(0)[1], "backward": network.shape(0)[0]}
    for step in network.steps():
        operand = rng.standard_normal((whole[step.direction], 32)).astype(single)
        clean = split.product(0, step.direction, block, operand, updates, lambda *_: None)
        assert not split.caught

        def strike(place: str, numbers: np.ndarray, effect: object = None, /) -> None:  # type: ignore[type-arg]
            numbers[3, 5] += 0.01 * np.abs(numbers).max()

        found = split.product(0, step.direction, block, operand, updates, strike)
        assert split.caught == {0}
        np.testing.assert_array_equal(found, clean)
        split.caught.clear()


def test_without_protection_it_is_wrong_in_silence() -> None:
    fleet, injector = run("none:m=2,n=2", [PlannedError(1, 0, "stored", kind="garbage")])
    assert distance(fleet, RIGHT) > 0.1
    assert injector.record[0].fate == "unseen"
    assert fleet.counts.restored == 0


def lines(split: CodeNet, step: ProductStep, count: int) -> list[tuple[int, ...]]:
    """A node of each of so many lines, for all sets of them."""
    first = [split.members(line, step.direction)[0] for line in range(split.lines(step.direction))]
    return list(combinations(first, count))


@pytest.mark.parametrize("t", [1, 2])
@pytest.mark.parametrize("step", [ProductStep(0, "forward"), ProductStep(1, "backward")])
def test_t_wrong_lines_are_corrected_and_more_are_declared(t: int, step: ProductStep) -> None:
    """All sets of t + 1 of m + 2t lines, in products; and 20 of t."""
    name = f"codenet:m=2,n=2,t={t}"
    split = CodeNet(2, 2, t, DOUBLE)
    for nodes in lines(split, step, t)[:20]:
        fleet, _ = run(name, [PlannedError(1, node, "product", str(step)) for node in nodes])
        assert (fleet.counts.lines, fleet.counts.restored) == (t, 0)
        assert distance(fleet, RIGHT) < 1e-12
    for nodes in lines(split, step, t + 1)[:20]:
        fleet, injector = run(name, [PlannedError(1, node, "product", str(step)) for node in nodes])
        assert (fleet.counts.lines, fleet.counts.restored) == (0, 1)
        assert {each.fate for each in injector.record} == {"restored"}
        assert distance(fleet, RIGHT) < 1e-12


def test_wrong_nodes_of_one_line_count_once() -> None:
    split = CodeNet(2, 2, 1, DOUBLE)
    for line in range(4):
        faults = [PlannedError(1, node, "product", "forward 0") for node in split.members(line, "forward")]
        fleet, _ = run("codenet:m=2,n=2,t=1", faults)
        assert (fleet.counts.lines, fleet.counts.regenerated, fleet.counts.restored) == (1, 0, 0)
        assert distance(fleet, RIGHT) < 1e-12


def at_work(*peers: int) -> Callable[[int, Phase], tuple[int, ...]]:
    """These are missing in all steps."""
    return lambda iteration, phase: peers if isinstance(phase, Work) else ()


@pytest.mark.parametrize("name", ["codenet:m=2,n=2", "replicate:m=2,n=1", "polydot:m=2,n=1"])
def test_a_missing_node_costs_no_restore(name: str) -> None:
    split = parse_split(name, DOUBLE)
    for node in range(split.nodes):
        fleet = LocalFleet(NET, split, BATCHES, iterations=3, absent=at_work(node))
        counts = fleet.train()
        assert (counts.restored, counts.lines, counts.erased) == (0, 0, 12)
        assert distance(fleet, RIGHT) < 1e-12


def test_missing_and_wrong_nodes_share_the_redundancy() -> None:
    """2k + e <= 2t. With t=1 two missing lines are made up for, one missing and one wrong are declared."""
    places = CodeNet(2, 2, 1, DOUBLE).places
    absent = [node for node, place in enumerate(places) if place in ((0, 0), (2, 1))]
    fleet = LocalFleet(NET, parse_split("codenet:m=2,n=2,t=1", DOUBLE), BATCHES, iterations=3, absent=at_work(*absent))
    assert fleet.train().restored == 0
    assert distance(fleet, RIGHT) < 1e-12
    for t, restored in ((1, 1), (2, 0)):
        split = CodeNet(2, 2, t, DOUBLE)
        missing, wrong = (split.places.index(place) for place in ((1, 0), (3, 1)))
        injector = ErrorInjector(faults=[PlannedError(1, wrong, "product", "forward 0")])
        fleet = LocalFleet(NET, split, BATCHES, iterations=3, injector=injector, absent=at_work(missing))
        assert fleet.train().restored == restored
        assert distance(fleet, RIGHT) < 1e-12


@pytest.mark.parametrize("name", ["codenet:m=2,n=2", "replicate:m=2,n=2", "polydot:m=2,n=2", "polydot:m=2,n=2,nodes=9"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_new_machine_in_each_nodes_place(name: str, momentum: float) -> None:
    """It has nothing but what all have in common. Its blocks come from the others, right to 1e-13 of the largest."""
    network = replace(NET, momentum=momentum)
    fleet = LocalFleet(network, split := parse_split(name, DOUBLE), BATCHES, iterations=2 * split.nodes)
    for node in range(split.nodes):
        fleet.train(2 * node + 1)
        fleet.replace(node)
        fleet.train(2 * node + 2)
        while fleet.programs[0].phase not in (Work(0, "forward"), Over()):
            fleet.round()
        assert set(fleet.cells) == set(range(split.nodes))
        for k, whole in enumerate(undivided(network, BATCHES, 2 * node + 2)):
            right = split.store(node, whole.shape, lambda row, of=whole: of[row])  # type: ignore[misc]
            assert np.abs(fleet.cells[node].blocks[k] - right).max() < 1e-12 * np.abs(whole).max()
    assert fleet.train().restored == 0
    assert fleet.counts.regenerated == split.nodes * len(fleet.cells[0].blocks)
    assert distance(fleet, undivided(network, BATCHES, 2 * split.nodes)) < 1e-12


def test_a_spare_takes_over_from_who_is_gone() -> None:
    split = parse_split("codenet:m=2,n=2", DOUBLE)
    gone: list[int] = []
    fleet = LocalFleet(NET, split, BATCHES, iterations=9, spares=1, absent=lambda iteration, phase: gone)
    fleet.train(2)
    assert fleet.programs[12].node is None
    assert fleet.programs[12].held_bytes == 0
    gone.append(3)
    fleet.train(4)
    assert (fleet.programs[12].node, fleet.programs[3].node) == (3, None)
    erased = fleet.counts.erased
    fleet.train()
    assert (fleet.counts.erased, fleet.counts.restored) == (erased, 0)
    assert distance(fleet, undivided(NET, BATCHES, 9)) < 1e-12


def test_errors_of_who_has_lost_its_node_are_gone_with_its_blocks() -> None:
    """A spare takes over in the iteration in which the error was made, before anybody has seen it."""
    gone: list[int] = []
    split = parse_split("codenet:m=1,n=1,t=1", DOUBLE)
    injector = ErrorInjector(faults=[PlannedError(3, 2, "stored", kind="garbage")])
    fleet = LocalFleet(
        NET, split, BATCHES, iterations=6, spares=1, injector=injector, absent=lambda iteration, phase: gone
    )
    while fleet.programs[0].iteration < 4:
        gone[:] = [2] if (fleet.programs[0].iteration, str(fleet.programs[0].phase)) == (3, "backward 0") else []
        fleet.round()
    fleet.train()
    assert fleet.programs[2].node is None
    assert [each.fate for each in injector.record] == ["restored"]
    assert injector.struck.undetected == 0
    assert distance(fleet, undivided(NET, BATCHES, 6)) < 1e-12


def test_a_helper_that_drops_out_is_done_without() -> None:
    """Somebody's contribution to a regeneration is missing: all say so, and the next try leaves it out."""
    split = CodeNet(2, 2, 1, DOUBLE)
    helper = next(iter(split.recovery(0, {0})))
    tries = []

    def absent(iteration: int, phase: Phase) -> tuple[int, ...]:
        if isinstance(phase, Mend):
            tries.append(phase)
        return (helper,) if isinstance(phase, Mend) and not phase.without else ()

    fleet = LocalFleet(NET, split, BATCHES, iterations=3, absent=absent)
    fleet.train(1)
    fleet.replace(0)
    fleet.train()
    assert [phase.without for phase in tries] == [(), (helper,), (), (helper,)]
    assert distance(fleet, RIGHT) < 1e-12


def test_regeneration_needs_enough_others() -> None:
    split = CodeNet(2, 2, 1, DOUBLE)
    with pytest.raises(Undecodable, match=r"node 0's block can't be had"):
        split.recovery(0, set(range(1, 10)))


def test_more_new_machines_than_the_code_makes_up_for_begin_again() -> None:
    """All are there, nobody has what was learnt by the lost ones: from the beginning, whose weights follow from the
    seed."""
    fleet = LocalFleet(NET, CodeNet(2, 2, 1, DOUBLE), BATCHES, iterations=3, checkpoint_every=1)
    fleet.train(2)
    for peer in range(1, 10):
        fleet.replace(peer)
    counts = fleet.train()
    assert counts.restored == 1
    assert counts.computed > 3
    assert distance(fleet, RIGHT) < 1e-12


def test_who_is_missing_is_waited_for() -> None:
    """More are gone than the code makes up for: the run stands, and says why, until they are there again."""
    gone: list[int] = []
    fleet = LocalFleet(NET, CodeNet(2, 2, 1, DOUBLE), BATCHES, iterations=3, absent=lambda iteration, phase: gone)
    fleet.train(2)
    gone += [0, 4, 8]
    for _ in range(50):
        fleet.round()
    assert (fleet.programs[1].iteration, str(fleet.programs[1].phase)) == (2, "muster")
    assert fleet.programs[1].waiting.startswith("9 peers are there")
    gone.clear()
    assert fleet.train().restored == 1
    assert fleet.programs[1].waiting == ""
    assert distance(fleet, RIGHT) < 1e-12


@pytest.mark.parametrize("name", ["codenet:m=2,n=2", "replicate:m=2,n=2", "polydot:m=2,n=2,nodes=9"])
def test_latent_wrong_weights_are_found_by_a_scrub(name: str) -> None:
    """The first input is always 0, so its weights change no forward product. At each node: named, and put right."""
    split = parse_split(name, DOUBLE)
    for node in range(split.nodes):
        fleet = LocalFleet(NET, split, BATCHES, iterations=3, scrub_every=2)
        fleet.train(1)
        fleet.cells[node].blocks[0][0, 0] += 0.1
        while not isinstance(fleet.programs[0].phase, Scrub):
            fleet.round()
        seen = fleet.counts.lines
        fleet.train()
        assert seen or fleet.counts.scrubbed == 1
        assert distance(fleet, RIGHT) < 1e-12


def test_a_latent_error_is_not_seen_by_training_and_not_exported() -> None:
    """Parity rows have a part in forward products only: with a zero input nothing shows. The scrub at the end does."""
    fleet = LocalFleet(NET, split := CodeNet(2, 2, 1, DOUBLE), BATCHES, iterations=3)
    fleet.round()
    fleet.cells[split.places.index((2, 0))].blocks[0][0, 0] += 1
    fleet.train(3)
    assert (fleet.counts.lines, fleet.counts.regenerated) == (0, 0)
    counts = fleet.train()
    assert (counts.scrubbed, counts.regenerated, counts.restored, counts.checkpoints) == (1, 1, 0, 1)
    assert distance(fleet, RIGHT) < 1e-12


def spoil(fleet: LocalFleet, split: CodeNet, *places: tuple[int, int]) -> None:
    for place in places:
        fleet.cells[split.places.index(place)].blocks[0][0, 0] += 1


def test_scrubs_of_rows_and_columns_help_each_other() -> None:
    """Two wrong blocks in a column are beyond t=1 there, and each is alone in its row."""
    fleet = LocalFleet(NET, split := CodeNet(2, 2, 1, DOUBLE), BATCHES, iterations=3)
    fleet.train(3)
    spoil(fleet, split, (0, 0), (1, 0))
    assert fleet.train().scrubbed == 2
    assert fleet.counts.restored == 0
    assert distance(fleet, RIGHT) < 1e-12


def test_no_checkpoint_is_made_of_wrong_weights() -> None:
    """Two latent errors that nothing can correct: the scrub before the checkpoint sends all back, not into a loop."""
    fleet = LocalFleet(NET, split := CodeNet(2, 2, 1, DOUBLE), BATCHES, iterations=3, checkpoint_every=2)
    fleet.train(2)
    spoil(fleet, split, (2, 0), (3, 0))
    counts = fleet.train()
    assert (counts.restored, counts.checkpoints) == (1, 2)
    assert distance(fleet, RIGHT) < 1e-12


def test_patience_ends() -> None:
    injector = ErrorInjector(SoftErrors(1.0))
    fleet = LocalFleet(
        NET, parse_split("codenet:m=2,n=2", DOUBLE), BATCHES, iterations=3, injector=injector, patience=3
    )
    with pytest.raises(Undecodable, match="contradict"):
        fleet.train()
    assert fleet.counts.restored == 3


def test_who_is_the_odd_one_out_does_its_step_again() -> None:
    """One decodes something else: its next vector says so, counts as lost, and nothing is regenerated."""
    for place in ("decoded", "activation", "verdict"):
        fleet, injector = run("codenet:m=2,n=2", [PlannedError(1, 5, place, "forward 0")])  # type: ignore[arg-type]
        assert (fleet.counts.odd, fleet.counts.restored, fleet.counts.regenerated) == (1, 0, 0)
        assert injector.record[0].fate == "found"
        assert len({program.digest() for program in fleet.programs}) == 1


def test_where_nothing_is_checked_whatever_goes_wrong_passes_unseen() -> None:
    """So do all go on in step: no verdict is made that could be wrong."""
    everywhere = SoftErrors(p=0.1, steps=frozenset(("O1", "O2", "O3", "decoded", "activation", "verdict", "sum")))
    injector = ErrorInjector(everywhere, seed=1)
    fleet = LocalFleet(NET, parse_split("none:m=2,n=2", DOUBLE), BATCHES, iterations=3, injector=injector)
    fleet.train()
    places = {each.where.place for each in injector.record}
    assert "product" in places
    assert "verdict" not in places
    assert {each.fate for each in injector.record} == {"unseen"}
    assert len({program.phase for program in fleet.programs}) == 1


def test_who_can_not_mend_itself_is_given_what_all_have_in_common() -> None:
    """Not the step was wrong, but what it started from."""
    fleet = LocalFleet(NET, parse_split("codenet:m=2,n=2", DOUBLE), BATCHES, iterations=4)
    fleet.train(1)
    fleet.programs[5]._common.iteration += 1
    fleet.round()
    fleet.train()
    assert fleet.reseeded == 1
    assert fleet.counts.regenerated == NET.layers
    assert distance(fleet, undivided(NET, BATCHES, 4)) < 1e-12


def test_what_can_not_change_anything_is_harmless() -> None:
    """Five outputs in four rows of blocks of two: what the last ones hold is nothing but padding."""
    network = Network(sizes=(16, 5), output="linear", learning_rate=0.1, dtype=DOUBLE)
    batches, split = batches_for(network), parse_split("codenet:m=4,n=3", DOUBLE)
    right, harmless = undivided(network, batches, 3), 0
    for node in range(split.nodes):
        injector = ErrorInjector(faults=[PlannedError(1, node, "encoding", "forward 0", "garbage")])
        fleet = LocalFleet(network, split, batches, iterations=3, injector=injector)
        fleet.train()
        assert injector.struck.undetected == 0
        assert distance(fleet, right) < 1e-12
        harmless += injector.struck.harmless
    assert harmless > 0


def test_two_halves_that_disagree_are_declared() -> None:
    faults = [PlannedError(1, node, "decoded", "forward 0") for node in range(6)]
    fleet, _ = run("codenet:m=2,n=2", faults)
    assert fleet.counts.restored == 1
    assert distance(fleet, RIGHT) < 1e-12


@pytest.mark.parametrize("name", ["codenet:m=2,n=2", "polydot:m=2,n=1", "replicate:m=2,n=1"])
def test_damage_on_the_way_is_an_erasure_of_its_lines(name: str) -> None:
    """One line's partial sum is spoiled: found by its checksums, made up for, and no block is suspected. In all lines
    it is more than can be made up for."""
    split = parse_split(name, DOUBLE)
    for line in range(split.lines("forward")):
        fleet = LocalFleet(NET, split, BATCHES, iterations=3, absent=(spoiler := _Spoiler(line)))
        spoiler.fleet = fleet
        counts = fleet.train()
        assert (counts.damaged, counts.lines, counts.regenerated, counts.restored) == (1, 0, 0, 0)
        assert distance(fleet, RIGHT) < 1e-12
    fleet, injector = run(name, [PlannedError(1, 1, "sum", "forward 0", "garbage")])
    assert fleet.counts.restored == 1
    assert injector.record[0].fate == "restored"


def test_not_a_number_on_the_way_is_found_between_iterations_too() -> None:
    """Checksums say nothing of NaN. In a scrub it looks like wrong weights, in a regeneration it is done again."""
    fleet, injector = run("codenet:m=2,n=2", [PlannedError(3, 1, "sum", "scrub", "nan")])
    assert ([each.fate for each in injector.record], fleet.counts.restored) == (["found"], 0)
    assert distance(fleet, RIGHT) < 1e-12
    injector = ErrorInjector(faults=[PlannedError(2, 1, "sum", "regeneration 0 of 0", "nan")])
    fleet = LocalFleet(NET, CodeNet(2, 2, 1, DOUBLE), BATCHES, iterations=3, injector=injector)
    fleet.train(1)
    fleet.replace(0)
    fleet.train()
    assert ([each.fate for each in injector.record], fleet.counts.lines, fleet.counts.restored) == (["found"], 0, 0)
    assert distance(fleet, RIGHT) < 1e-12


def test_what_is_spoiled_in_a_line_that_is_left_out_does_no_harm() -> None:
    """Node 0 goes on from something else: its line does not count, and not a number that another puts there."""
    split = CodeNet(2, 2, 1, DOUBLE)
    places = [split.line(node, "forward") for node in range(split.nodes)]
    for seed in range(8):  # one of the four lines, at random
        faults = [PlannedError(1, 0, "decoded", "forward 0"), PlannedError(1, 5, "sum", "forward 1", "nan")]
        fleet, injector = run("codenet:m=2,n=2", faults, seed=seed)
        assert places[5] != places[0]
        assert {each.fate for each in injector.record} <= {"found", "restored"}
        assert distance(fleet, RIGHT) < 1e-12


def test_errors_in_what_is_given_up_are_gone() -> None:
    """A vector whose round had no sum; and all that a peer had before it took others' state."""
    network = replace(NET, l2=0.01)
    fleet = LocalFleet(network, CodeNet(2, 2, 1, DOUBLE), BATCHES, iterations=3)
    fleet.train(1)
    program, injector = fleet.programs[5], fleet.injector
    injector.soon("product", "garbage")
    spoiled, honest = program.contribute(), program.contribute()
    assert not np.array_equal(spoiled, honest)
    assert [each.fate for each in injector.record] == ["restored"]
    before = b""
    while program.iteration < 2:
        if str(program.phase) == "backward 0":
            injector.soon("stored", "nan")
            before = program.state()
        fleet.round()
    (stored,) = [each for each in injector.record if each.where.place == "stored"]
    for state in (before, fleet.programs[(stored.where.node + 1) % 12].state()):
        fleet.programs[stored.where.node].load_state(state)
    assert stored.fate == "restored"
    assert fleet.train().restored == 0
    assert distance(fleet, undivided(network, BATCHES, 3)) < 1e-12


def test_a_wrong_product_in_a_line_that_is_damaged_too_does_no_harm() -> None:
    """Nobody can tell what was wrong in it before. What is wrong where two of three copies are damaged is not seen, and
    that is known."""
    unchecked = 0
    for seed in range(20):
        faults = [PlannedError(1, 3, "product", "forward 0", "garbage"), PlannedError(1, 2, "sum", "forward 0")]
        fleet, injector = run("replicate:m=2,n=1", faults, seed=seed)
        if injector.struck.undetected:
            assert fleet.counts.unchecked == 1
            unchecked += 1
        else:
            assert distance(fleet, RIGHT) < 1e-12
    assert unchecked == 3


def test_a_step_that_uses_up_all_checks_is_counted() -> None:
    for name, lost, unchecked in (
        ("codenet:m=2,n=2", (0,), 0),
        ("codenet:m=2,n=2", (0, 5), 12),
        ("none:m=2,n=2", (), 0),  # there never are any: only what is missing is counted
    ):
        fleet = LocalFleet(NET, parse_split(name, DOUBLE), BATCHES, iterations=3, absent=at_work(*lost))
        fleet.train()
        assert fleet.counts.unchecked == unchecked


def test_who_was_not_looked_at_is_looked_at_before_a_checkpoint() -> None:
    """Its wrong verdict makes it the odd one out in the scrub, which so says nothing of its wrong weights."""
    for node in range(12):
        fleet, injector = run(
            "codenet:m=2,n=2",
            [PlannedError(2, node, "verdict", "backward 0"), PlannedError(2, node, "stored", "update 1")],
        )
        assert [each.fate for each in injector.record] == ["found", "found"]
        assert (fleet.counts.odd, fleet.counts.scrubbed, fleet.counts.checkpoints) == (1, 1, 1)
        right = CodeNet(2, 2, 1, DOUBLE).store(node, RIGHT[1].shape, RIGHT[1].__getitem__)
        assert np.abs(fleet.cells[node].blocks[1] - right).max() < 1e-12


def test_blocks_are_not_put_together_from_wrong_ones() -> None:
    """Node 1's velocity goes wrong, which no product reads, just when node 2's product was wrong, and node 0 does not
    help: copied from node 1, two would outvote the third."""
    network = replace(NET, momentum=0.9)
    faults = [PlannedError(1, 2, "product", "backward 0"), PlannedError(1, 1, "stored", "update 0")]
    fleet = LocalFleet(
        network,
        parse_split("replicate:m=1,n=1", DOUBLE),
        BATCHES,
        iterations=3,
        injector=ErrorInjector(faults=faults),
        absent=lambda iteration, phase: (0,) if isinstance(phase, Mend | Scrub) and iteration == 2 else (),
    )
    fleet.train()
    assert fleet.injector.struck.undetected == 0
    assert distance(fleet, undivided(network, BATCHES, 3)) < 1e-12


class _Spoiler:
    """Damages one line of what a peer sends, once."""

    def __init__(self, line: int) -> None:
        self.line, self.done = line, False
        self.fleet: LocalFleet

    def __call__(self, iteration: int, phase: Phase) -> tuple[int, ...]:
        if iteration == 1 and phase == Work(0, "forward") and not self.done:
            self.done = True
            inner = self.fleet.programs[0]
            numbers = inner._form().numbers
            honest = inner.contribute

            def spoiled() -> np.ndarray:  # type: ignore[type-arg]
                vector = honest()
                vector[self.line * numbers + 1] += 0.7
                inner.contribute = honest  # type: ignore[method-assign]
                return vector

            inner.contribute = spoiled  # type: ignore[method-assign]
        return ()


def test_checkpoints_are_of_one_node_and_checked() -> None:
    split = parse_split("polydot:m=2,n=2,nodes=9", DOUBLE)
    one, other = (Cell(NET, split, node) for node in (0, 1))
    state = one.pack()
    kept = one.blocks[0].copy()
    one.blocks[0] += 1
    one.iteration = 7
    one.unpack(state)
    assert (one.blocks[0] == kept).all()
    assert one.iteration == 0
    with pytest.raises(WireError, match="split polydot 0"):
        other.unpack(state)
    with pytest.raises(WireError, match="damaged"):
        one.unpack(state[:-20] + b"x" + state[-19:])


def test_all_errors_at_once_by_chance() -> None:
    """Error Model 2: any place, any node, 12 nodes, about 40 errors in 60 iterations; the end is the right one."""
    everything = frozenset(("O1", "O2", "O3", "encoding", "decoded", "activation", "verdict", "sum"))
    for seed, kind in enumerate(KINDS):
        injector = ErrorInjector(SoftErrors(2e-3, everything, kind), seed=seed)
        split = parse_split("codenet:m=2,n=2", DOUBLE)
        fleet = LocalFleet(NET, split, BATCHES, iterations=60, injector=injector, checkpoint_every=5)
        fleet.train()
        assert len(injector.record) > 20
        assert not [each for each in injector.record if each.fate == "unseen"]
        assert distance(fleet, undivided(NET, BATCHES, 60)) < 1e-12


def test_flips_of_bits_are_corrected_or_harmless() -> None:
    """What isn't seen is below the tolerance of float64: weights end within 1e-10."""
    injector = ErrorInjector(SoftErrors(5e-3, kind="flip"), seed=1)
    split = parse_split("codenet:m=2,n=2", DOUBLE)
    fleet = LocalFleet(NET, split, BATCHES, iterations=60, injector=injector, checkpoint_every=5)
    fleet.train()
    fates = [each.fate for each in injector.record]
    assert fates.count("found") > 10
    assert injector.struck.undetected == 0 < injector.struck.harmless
    assert distance(fleet, undivided(NET, BATCHES, 60)) < 1e-10
