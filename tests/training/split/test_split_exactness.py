"""Divided training is training: the same weights as in whole matrices, and no node has one."""

from __future__ import annotations

import numpy as np
import pytest
from undivided import batches_for, distance, undivided

from edgepeer.training.split.cell import Cell
from edgepeer.training.split.faults import Injector, SoftErrors
from edgepeer.training.split.fleet import Fleet
from edgepeer.training.split.named import parse_split
from edgepeer.training.split.network import Network, Step
from edgepeer.training.split.strategy import parts_of

DOUBLE, SINGLE = np.dtype(np.float64), np.dtype(np.float32)
SPLITS = (
    "none:m=3,n=2",
    "codenet:m=3,n=2,t=1",
    "codenet:m=2,n=2,t=2",
    "replicate:m=3,n=2,copies=2",
    "replicate:m=2,n=2,copies=3",
    "abft:m=3,n=2",
    "polydot:m=2,n=2,nodes=12",
    "polydot:m=2,n=2,d=2,nodes=14",
    "polydot:m=1,n=3",
    "polydot:m=3,n=1",
)


def network(dtype: np.dtype, **more: object) -> Network:  # type: ignore[type-arg]
    return Network(sizes=(11, 13, 9, 7), activation="tanh", learning_rate=0.1, dtype=dtype, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(DOUBLE, 1e-12), (SINGLE, 1e-5)])
def test_clean_training_is_undivided_training(name: str, dtype: np.dtype, tolerance: float) -> None:  # type: ignore[type-arg]
    """20 iterations, sizes that aren't multiples of m and n. Real PolyDot in float32: 1e-4."""
    net = network(dtype, l2=0.01)
    batches = batches_for(net)
    fleet = Fleet(net, parse_split(name, dtype))
    report = fleet.train(batches, 20)
    limit = 1e-4 if dtype == SINGLE and "polydot" in name else tolerance
    assert distance(fleet, undivided(net, batches, 20)) < limit
    assert (report.lines, report.odd, report.restored, report.scrubbed, report.computed) == (0, 0, 0, 0, 20)


@pytest.mark.parametrize("name", ["codenet:m=3,n=2,t=1", "replicate:m=2,n=2,copies=3", "polydot:m=2,n=2,nodes=12"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(DOUBLE, 1e-12), (SINGLE, 1e-5)])
@pytest.mark.parametrize("kind", ["sparse", "garbage", "nan"])
def test_corrected_training_is_undivided_training(
    name: str,
    dtype: np.dtype,  # type: ignore[type-arg]
    tolerance: float,
    kind: str,
) -> None:
    net = network(dtype)
    batches = batches_for(net)
    injector = Injector(SoftErrors(5e-3, kind=kind), seed=2)  # type: ignore[arg-type]
    fleet = Fleet(net, parse_split(name, dtype), injector=injector, checkpoint_every=5)
    report = fleet.train(batches, 20)
    assert len(injector.record) >= 4
    assert not [each for each in injector.record if each.fate == "unseen"]
    assert report.lines > 0
    assert distance(fleet, undivided(net, batches, 20)) < tolerance * (10 if "polydot" in name else 1)


def test_l2_is_what_it_says() -> None:
    """Without a gradient (learning from what comes out, linear), weights shrink by 1 - eta lambda an iteration."""
    net = Network(sizes=(3, 2), activation="linear", output="linear", dtype=DOUBLE, l2=0.5, learning_rate=0.2)
    start = undivided(net, batches_for(net), 0)[0]
    fleet = Fleet(net, parse_split("codenet:m=1,n=1", DOUBLE))
    x = np.zeros((2, 3))
    fleet.train(lambda iteration: (x, np.zeros((2, 2))), 3)
    assert np.allclose(fleet.weights(0), start * 0.9**3, rtol=1e-13, atol=0)


def test_parity_after_2000_iterations_of_float32() -> None:
    """What parity nodes have and what they should have differ by at most 1e-5 of the largest weight."""
    net = Network(sizes=(5, 6, 4), activation="tanh", learning_rate=0.1, dtype=SINGLE)
    fleet = Fleet(net, split := parse_split("codenet:m=2,n=2,t=1", SINGLE))
    fleet.train(batches_for(net), 2000)
    for layer in range(2):
        whole = fleet.weights(layer)
        for node, cell in enumerate(fleet.cells):
            right = split.store(node, whole.shape, lambda row, of=whole: of[row])  # type: ignore[misc]
            assert np.abs(cell.blocks[layer] - right).max() < 1e-5 * np.abs(whole).max()


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("codenet:m=2,n=2,t=1", 12),
        ("codenet:m=5,n=4,t=1", 38),
        ("replicate:m=5,n=4,copies=2", 40),
        ("none:m=5,n=4", 20),
        ("abft:m=5,n=4", 20),
        ("polydot:m=2,n=2,d=1", 8),
    ],
)
def test_how_many_nodes(name: str, nodes: int) -> None:
    assert parse_split(name, DOUBLE).nodes == nodes


@pytest.mark.parametrize("name", SPLITS)
def test_no_node_has_a_whole_matrix(name: str) -> None:
    """Of each layer a node has one block's worth of numbers (checksums: and its border)."""
    net = Network(sizes=(12, 18, 12), dtype=DOUBLE)
    split = parse_split(name, DOUBLE)
    for node in range(split.nodes):
        cell = Cell(net, split, node)
        cell.begin(*batches_for(net, 1)(0))
        for layer in range(2):
            rows, columns = net.shape(layer)
            h, w = -(-rows // split.m), -(-columns // split.n)
            border = h + w + 1 if "abft" in name else 0
            assert parts_of(cell.blocks[layer]).size == h * w + border
        held = [each for value in vars(cell).values() for each in (value if isinstance(value, list) else [value])]
        arrays = [each for each in held if isinstance(each, np.ndarray)]
        assert len(arrays) >= 3
        assert max(each.size for each in arrays) < 13 * 12
        assert split.stored_bytes(net) == sum(block.nbytes for block in cell.blocks)
        assert cell.contribute(Step(0, "forward")).size < 19 * 12


def test_who_decodes_makes_no_difference() -> None:
    """Every cell reads every sum, or one does for all: the same bits."""
    net = network(SINGLE)
    batches = batches_for(net)
    fleets = [Fleet(net, parse_split("codenet:m=3,n=2", SINGLE), each_reads=each) for each in (True, False)]
    for fleet in fleets:
        fleet.train(batches, 5)
    for one, other in zip(*(fleet.cells for fleet in fleets), strict=True):
        assert all((a == b).all() for a, b in zip(one.blocks, other.blocks, strict=True))


def test_all_cells_agree_on_what_was_decoded() -> None:
    net = network(SINGLE)
    fleet = Fleet(net, parse_split("polydot:m=2,n=2,nodes=12", SINGLE))
    fleet.train(batches_for(net), 3)
    assert len({cell.state for cell in fleet.cells}) == 1
    assert len({cell.loss for cell in fleet.cells}) == 1


def test_pairs_on_the_unit_circle() -> None:
    """Complex blocks; float32 as exact as CodeNet, 1e-5."""
    net = network(SINGLE)
    split = parse_split("polydot:m=3,n=3,nodes=16", SINGLE)
    assert split.block_dtype == np.complex64
    injector = Injector(SoftErrors(1e-3), seed=3)
    fleet = Fleet(net, split, injector=injector)
    batches = batches_for(net)
    fleet.train(batches, 10)
    assert [each.fate for each in injector.record].count("found") == len(injector.record) > 0
    assert distance(fleet, undivided(net, batches, 10)) < 1e-5
