"""Wrong numbers in split training: corrected, or all go back to a checkpoint, and never in silence."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from undivided import batches_for, distance, undivided

from edgepeer.errors import Undecodable, WireError
from edgepeer.training.split.cell import Cell
from edgepeer.training.split.codenet import CodeNet
from edgepeer.training.split.faults import Fault, Injector, Kind, Place, SoftErrors
from edgepeer.training.split.fleet import Fleet
from edgepeer.training.split.named import parse_split
from edgepeer.training.split.network import Network, Step

DOUBLE = np.dtype(np.float64)
NET = Network(sizes=(6, 5, 4), activation="tanh", output="linear", learning_rate=0.1, dtype=DOUBLE)
BATCHES = batches_for(NET)
RIGHT = undivided(NET, BATCHES, 3)
KINDS: tuple[Kind, ...] = ("sparse", "garbage", "nan")


def chances() -> list[tuple[Place, str]]:
    """Every place in every step."""
    in_steps: tuple[Place, ...] = ("product", "encoding", "decoded", "activation", "verdict")
    in_updates: tuple[Place, ...] = ("stored", "encoding")
    return [
        *((place, str(step)) for step in NET.steps() for place in in_steps),
        *((place, f"update {layer}") for layer in range(NET.layers) for place in in_updates),
    ]


def run(name: str, faults: list[Fault], seed: int = 0) -> tuple[Fleet, Injector]:
    injector = Injector(faults=faults, seed=seed)
    fleet = Fleet(NET, parse_split(name, DOUBLE), injector=injector)
    fleet.train(BATCHES, 3)
    return fleet, injector


@pytest.mark.parametrize(
    ("name", "nodes", "faults"),
    [("codenet:m=2,n=2", 12, 244), ("replicate:m=2,n=1", 6, 138), ("polydot:m=2,n=1", 5, 115)],
)
def test_a_single_fault_anywhere_is_corrected(name: str, nodes: int, faults: int) -> None:
    """At each node, in each step, in each place. No restore, and the weights are the right ones.

    What can't be struck isn't there: activations after the last product, CodeNet's parity nodes' parts in products that
    they have no part in.
    """
    done = 0
    for place, step in chances():
        for node in range(nodes):
            fleet, injector = run(name, [Fault(1, node, place, step, KINDS[done % 3])], seed=done)
            assert distance(fleet, RIGHT) < 1e-12, (place, step, node)
            assert fleet.report.restored == 0, (place, step, node)
            done += len(injector.record)
    assert done == faults


@pytest.mark.parametrize("name", ["replicate:m=2,n=1,copies=2", "polydot:m=2,n=1,errors=0,nodes=5"])
def test_without_redundancy_for_it_a_single_fault_is_restored(name: str) -> None:
    """Two copies, and PolyDot with one node to spare: wrong products are seen, and not located."""
    for node in range(4):
        for place, step in (("product", "forward 0"), ("product", "backward 1"), ("stored", "update 1")):
            fleet, injector = run(name, [Fault(1, node, place, step, "garbage")])  # type: ignore[arg-type]
            assert distance(fleet, RIGHT) < 1e-12
            assert fleet.report.restored + fleet.report.lines >= 1
            assert injector.record[0].fate != "unseen"


def test_checksums_correct_what_the_node_computes_and_see_what_it_stores() -> None:
    for node in range(4):
        for kind in KINDS:
            fleet, _ = run("abft:m=2,n=2", [Fault(1, node, "product", "forward 1", kind)])
            assert (fleet.report.recomputed, fleet.report.restored) == (1, 0)
            assert distance(fleet, RIGHT) < 1e-12
            fleet, _ = run("abft:m=2,n=2", [Fault(1, node, "stored", "update 1", kind)])
            assert (fleet.report.recomputed, fleet.report.restored) == (0, 1)
            assert distance(fleet, RIGHT) < 1e-12


def test_without_protection_it_is_wrong_in_silence() -> None:
    fleet, injector = run("none:m=2,n=2", [Fault(1, 0, "stored", kind="garbage")])
    assert distance(fleet, RIGHT) > 0.1
    assert injector.record[0].fate == "unseen"
    assert fleet.report.restored == 0


def lines(split: CodeNet, step: Step, count: int) -> list[tuple[int, ...]]:
    """A node of each of so many lines, for all sets of them."""
    first = [split.members(line, step.direction)[0] for line in range(split.lines(step.direction))]
    return list(combinations(first, count))


@pytest.mark.parametrize("t", [1, 2])
@pytest.mark.parametrize("step", [Step(0, "forward"), Step(1, "backward")])
def test_t_wrong_lines_are_corrected_and_more_are_declared(t: int, step: Step) -> None:
    """All sets of t + 1 of m + 2t lines, in products; and 20 of t."""
    name = f"codenet:m=2,n=2,t={t}"
    split = CodeNet(2, 2, t, DOUBLE)
    for nodes in lines(split, step, t)[:20]:
        fleet, _ = run(name, [Fault(1, node, "product", str(step)) for node in nodes])
        assert (fleet.report.lines, fleet.report.restored) == (t, 0)
        assert distance(fleet, RIGHT) < 1e-12
    for nodes in lines(split, step, t + 1)[:20]:
        fleet, injector = run(name, [Fault(1, node, "product", str(step)) for node in nodes])
        assert (fleet.report.lines, fleet.report.restored) == (0, 1)
        assert {each.fate for each in injector.record} == {"restored"}
        assert distance(fleet, RIGHT) < 1e-12


def test_wrong_nodes_of_one_line_count_once() -> None:
    split = CodeNet(2, 2, 1, DOUBLE)
    for line in range(4):
        faults = [Fault(1, node, "product", "forward 0") for node in split.members(line, "forward")]
        fleet, _ = run("codenet:m=2,n=2,t=1", faults)
        assert (fleet.report.lines, fleet.report.regenerated, fleet.report.restored) == (1, 2, 0)
        assert distance(fleet, RIGHT) < 1e-12


@pytest.mark.parametrize("name", ["codenet:m=2,n=2", "replicate:m=2,n=1", "polydot:m=2,n=1"])
def test_a_missing_node_costs_no_restore(name: str) -> None:
    split = parse_split(name, DOUBLE)
    for node in range(split.nodes):
        fleet = Fleet(NET, split, absent=lambda iteration, step, gone=node: (gone,))  # type: ignore[misc]
        report = fleet.train(BATCHES, 3)
        assert (report.restored, report.lines, report.erased) == (0, 0, 12)
        assert distance(fleet, RIGHT) < 1e-12


def test_missing_and_wrong_nodes_share_the_redundancy() -> None:
    """2k + e <= 2t. With t=1 two missing lines are made up for, one missing and one wrong are declared."""
    absent = [node for node, place in enumerate(CodeNet(2, 2, 1, DOUBLE).places) if place in ((0, 0), (2, 1))]
    fleet = Fleet(NET, parse_split("codenet:m=2,n=2,t=1", DOUBLE), absent=lambda iteration, step: absent)
    assert fleet.train(BATCHES, 3).restored == 0
    assert distance(fleet, RIGHT) < 1e-12
    for t, restored in ((1, 1), (2, 0)):
        split = CodeNet(2, 2, t, DOUBLE)
        missing, wrong = (split.places.index(place) for place in ((1, 0), (3, 1)))
        injector = Injector(faults=[Fault(1, wrong, "product", "forward 0")])
        fleet = Fleet(NET, split, injector=injector, absent=lambda iteration, step, gone=missing: (gone,))  # type: ignore[misc]
        assert fleet.train(BATCHES, 3).restored == restored
        assert distance(fleet, RIGHT) < 1e-12


@pytest.mark.parametrize("name", ["codenet:m=2,n=2", "replicate:m=2,n=2", "polydot:m=2,n=2", "polydot:m=2,n=2,nodes=9"])
def test_a_regenerated_cell_is_right_to_rounding(name: str) -> None:
    """A new machine in each node's place, without weights of its own: 1e-13 of the largest, and training goes on."""
    fleet = Fleet(NET, split := parse_split(name, DOUBLE))
    for node in range(split.nodes):
        if node < 3:
            fleet.iterate(*BATCHES(node))
        before = [block.copy() for block in fleet.cells[node].blocks]
        fleet.replace(node)
        for old, new in zip(before, fleet.cells[node].blocks, strict=True):
            assert np.abs(old - new).max() <= 1e-13 * np.abs(old).max()
    fleet.train(BATCHES, 3)
    assert distance(fleet, RIGHT) < 1e-12


def test_a_helper_that_drops_out_is_done_without() -> None:
    """Somebody's contribution to a regeneration is missing: all say so, and the next try leaves it out."""
    split = CodeNet(2, 2, 1, DOUBLE)
    cells = [Cell(NET, split, node) for node in range(split.nodes)]
    right = cells[0].blocks[0].copy()
    cells[0].blocks[0][:] = 0
    helper = next(iter(split.recovery(0, {0})))
    total = sum(cell.give(0, [0]) for cell in cells if cell.node != helper)
    assert {cell.take(0, [0], total, [helper]) for cell in cells} == {(helper,)}
    assert not cells[0].blocks[0].any()
    total = sum(cell.give(0, [0], [helper]) for cell in cells if cell.node != helper)
    assert {cell.take(0, [0], total, [helper], [helper]) for cell in cells} == {()}
    assert np.abs(cells[0].blocks[0] - right).max() < 1e-14


def test_regeneration_needs_enough_others() -> None:
    split = CodeNet(2, 2, 1, DOUBLE)
    with pytest.raises(Undecodable, match=r"node 0's block can't be had"):
        split.recovery(0, set(range(1, 10)))


@pytest.mark.parametrize("name", ["codenet:m=2,n=2", "replicate:m=2,n=2", "polydot:m=2,n=2,nodes=9"])
def test_latent_wrong_weights_are_found_by_a_scrub(name: str) -> None:
    """The first input is always 0, so its weights change no forward product. At each node: named, and put right."""
    fleet = Fleet(NET, split := parse_split(name, DOUBLE))
    fleet.train(BATCHES, 2)
    for node in range(split.nodes):
        block = fleet.cells[node].blocks[0]
        right = block.copy()
        block[0, 0] += 0.1
        before = fleet.report.scrubbed
        fleet.scrub()
        assert fleet.report.scrubbed == before + 1
        assert np.abs(block - right).max() < 1e-13


def test_a_latent_error_is_not_seen_by_training_and_not_exported() -> None:
    """Parity rows have a part in forward products only: with a zero input nothing shows. The scrub at the end does."""
    fleet = Fleet(NET, split := CodeNet(2, 2, 1, DOUBLE))
    fleet.cells[split.places.index((2, 0))].blocks[0][0, 0] += 1
    for iteration in range(3):
        fleet.iterate(*BATCHES(iteration))
    assert (fleet.report.lines, fleet.report.regenerated) == (0, 0)
    report = fleet.train(BATCHES, 3)
    assert (report.scrubbed, report.regenerated, report.restored) == (1, 1, 0)
    assert distance(fleet, RIGHT) < 1e-12


def test_scrubs_of_rows_and_columns_help_each_other() -> None:
    """Two wrong blocks in a column are beyond t=1 there, and each is alone in its row. A whole wrong row and column
    are more than can be named."""
    fleet = Fleet(NET, split := CodeNet(2, 2, 1, DOUBLE))
    for place in ((0, 0), (1, 0)):
        fleet.cells[split.places.index(place)].blocks[0][0, 0] += 1
    fleet.scrub()
    assert fleet.report.scrubbed == 2
    assert distance(fleet, undivided(NET, BATCHES, 0)) < 1e-12
    for place in ((2, 0), (3, 0)):
        fleet.cells[split.places.index(place)].blocks[0][0, 0] += 1
    with pytest.raises(Undecodable):
        fleet.scrub()


def test_no_checkpoint_is_made_of_wrong_weights() -> None:
    """Two latent errors that nothing can correct: the scrub before the checkpoint sends all back, not into a loop."""
    fleet = Fleet(NET, split := CodeNet(2, 2, 1, DOUBLE), checkpoint_every=2)
    for iteration in range(2):
        fleet.iterate(*BATCHES(iteration))
    for place in ((2, 0), (3, 0)):
        fleet.cells[split.places.index(place)].blocks[0][0, 0] += 1
    report = fleet.train(BATCHES, 3)
    assert (report.restored, report.checkpoints) == (1, 1)
    assert distance(fleet, RIGHT) < 1e-12


def test_patience_ends() -> None:
    fleet = Fleet(NET, parse_split("none:m=2,n=2", DOUBLE), absent=lambda iteration, step: (0,), patience=3)
    with pytest.raises(Undecodable, match="missing nodes"):
        fleet.train(BATCHES, 3)
    assert fleet.report.restored == 3


def test_who_is_the_odd_one_out_does_its_step_again() -> None:
    """One cell decodes something else: its next vector says so, counts as lost, and nothing is regenerated."""
    for place in ("decoded", "activation", "verdict"):
        fleet, injector = run("codenet:m=2,n=2", [Fault(1, 5, place, "forward 0")])  # type: ignore[arg-type]
        assert (fleet.report.odd, fleet.report.restored, fleet.report.regenerated) == (1, 0, 0)
        assert injector.record[0].fate == "found"
        assert len({cell.state for cell in fleet.cells}) == 1


def test_two_halves_that_disagree_are_declared() -> None:
    faults = [Fault(1, node, "decoded", "forward 0") for node in range(6)]
    fleet, _ = run("codenet:m=2,n=2", faults)
    assert fleet.report.restored == 1
    assert distance(fleet, RIGHT) < 1e-12


def test_checkpoints_are_of_one_node_and_checked() -> None:
    split = parse_split("polydot:m=2,n=2,nodes=9", np.dtype(np.float64))
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
    everything = frozenset(("O1", "O2", "O3", "encoding", "decoded", "activation", "verdict"))
    for seed, kind in enumerate(KINDS):
        injector = Injector(SoftErrors(2e-3, everything, kind), seed=seed)
        fleet = Fleet(NET, parse_split("codenet:m=2,n=2", DOUBLE), injector=injector, checkpoint_every=5)
        fleet.train(BATCHES, 60)
        assert len(injector.record) > 20
        assert distance(fleet, undivided(NET, BATCHES, 60)) < 1e-12


def test_flips_of_bits_are_corrected_or_harmless() -> None:
    """What isn't seen is below the tolerance of float64: weights end within 1e-10."""
    injector = Injector(SoftErrors(5e-3, kind="flip"), seed=1)
    fleet = Fleet(NET, parse_split("codenet:m=2,n=2", DOUBLE), injector=injector, checkpoint_every=5)
    fleet.train(BATCHES, 60)
    fates = [each.fate for each in injector.record]
    assert fates.count("found") > 10
    assert distance(fleet, undivided(NET, BATCHES, 60)) < 1e-10
