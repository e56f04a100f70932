"""Divided training is training: the same weights as in whole matrices, and no node has one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from undivided import batches_for, distance, undivided

from edgepeer.training.split.faults import ErrorInjector, SoftErrors
from edgepeer.training.split.fleet import LocalFleet
from edgepeer.training.split.named import parse_split
from edgepeer.training.split.network import Network
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
    fleet = LocalFleet(net, parse_split(name, dtype), batches, iterations=20)
    report = fleet.train()
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
    injector = ErrorInjector(SoftErrors(5e-3, kind=kind), seed=2)  # type: ignore[arg-type]
    fleet = LocalFleet(net, parse_split(name, dtype), batches, iterations=20, injector=injector, checkpoint_every=5)
    report = fleet.train()
    assert len(injector.record) >= 4
    assert not [each for each in injector.record if each.fate == "unseen"]
    assert report.lines > 0
    assert distance(fleet, undivided(net, batches, 20)) < tolerance * (10 if "polydot" in name else 1)


def test_l2_is_what_it_says() -> None:
    """Without a gradient (learning from what comes out, linear), weights shrink by 1 - eta lambda an iteration."""
    net = Network(sizes=(3, 2), activation="linear", output="linear", dtype=DOUBLE, l2=0.5, learning_rate=0.2)
    start = undivided(net, batches_for(net), 0)[0]
    zeros = np.zeros((2, 3)), np.zeros((2, 2))
    fleet = LocalFleet(net, parse_split("codenet:m=1,n=1", DOUBLE), lambda iteration: zeros, iterations=3)
    fleet.train()
    assert np.allclose(fleet.weights(0), start * 0.9**3, rtol=1e-13, atol=0)


def test_parity_after_2000_iterations_of_float32() -> None:
    """What parity nodes have and what they should have differ by at most 1e-5 of the largest weight."""
    net = Network(sizes=(5, 6, 4), activation="tanh", learning_rate=0.1, dtype=SINGLE)
    fleet = LocalFleet(net, split := parse_split("codenet:m=2,n=1,t=1", SINGLE), batches_for(net), iterations=2000)
    fleet.train()
    for layer in range(2):
        whole = fleet.weights(layer)
        for node, cell in fleet.cells.items():
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
    """Of each layer a peer has one block's worth of numbers (checksums: and its border). Of all arrays that its program
    can reach, none is as large as a matrix, at any time of two iterations."""
    net = Network(sizes=(40, 60, 40), dtype=DOUBLE)
    split = parse_split(name, DOUBLE)
    fleet = LocalFleet(net, split, batches_for(net, 1), iterations=2, checkpoint_every=1)
    largest = 0
    while not fleet.programs[0].done:
        fleet.round()
        for program in fleet.programs:
            largest = max(largest, *(array.size for array in arrays_in(vars(program), net, split)))
    assert 40 < largest < 60 * 41
    for cell in fleet.cells.values():
        for layer in range(2):
            h, w = split.block_shape(net.shape(layer))
            border = h + w + 1 if "abft" in name else 0
            assert parts_of(cell.blocks[layer]).size == h * w + border
        assert split.stored_bytes(net) == cell.held_bytes


def arrays_in(what: Any, *but: object, seen: set[int] | None = None) -> Iterator[Any]:
    """All that can be reached, except through some objects."""
    seen = set() if seen is None else seen
    if id(what) in seen or any(what is each for each in but) or callable(what):
        return
    seen.add(id(what))
    if isinstance(what, np.ndarray):
        yield what if what.base is None else what.base if isinstance(what.base, np.ndarray) else what
        return
    if isinstance(what, dict):
        inner = list(what.values())
    elif isinstance(what, list | tuple | set | deque):
        inner = list(what)
    else:
        names = [
            *getattr(what, "__dict__", ()),
            *getattr(what, "__slots__", ()),
            *getattr(what, "__struct_fields__", ()),
        ]
        inner = [getattr(what, each) for each in names]
    for each in inner:
        yield from arrays_in(each, *but, seen=seen)


def test_who_decodes_makes_no_difference() -> None:
    """Every cell reads every sum, or one does for all: the same bits."""
    net = network(SINGLE)
    batches = batches_for(net)
    split = parse_split("codenet:m=3,n=2", SINGLE)
    one, other = (LocalFleet(net, split, batches, iterations=5, each_reads=each) for each in (True, False))
    one.train()
    other.train()
    for node in range(split.nodes):
        pairs = zip(one.cells[node].blocks, other.cells[node].blocks, strict=True)
        assert all((a == b).all() for a, b in pairs)


def test_all_cells_agree_on_what_was_decoded() -> None:
    net = network(SINGLE)
    fleet = LocalFleet(net, parse_split("polydot:m=2,n=2,nodes=12", SINGLE), batches_for(net), iterations=3)
    fleet.train()
    assert len({program.digest() for program in fleet.programs}) == 1
    assert len({program.loss for program in fleet.programs}) == 1


def test_pairs_on_the_unit_circle() -> None:
    """Complex blocks; float32 as exact as CodeNet, 1e-5."""
    net = network(SINGLE)
    split = parse_split("polydot:m=3,n=3,nodes=16", SINGLE)
    assert split.block_dtype == np.complex64
    injector = ErrorInjector(SoftErrors(1e-3), seed=3)
    batches = batches_for(net)
    fleet = LocalFleet(net, split, batches, iterations=10, injector=injector)
    fleet.train()
    assert [each.fate for each in injector.record].count("found") == len(injector.record) > 0
    assert distance(fleet, undivided(net, batches, 10)) < 1e-5
