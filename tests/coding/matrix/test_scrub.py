"""Scrubbing finds stored weights that are wrong, also those that training's own products don't read."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgepeer.coding.matrix.decode import Guarantee, decode, discrepancy
from edgepeer.coding.matrix.mds import mds_code
from edgepeer.coding.matrix.nodes import Kind
from edgepeer.coding.matrix.polydot import PolyDot
from edgepeer.coding.matrix.scrub import PROBES, probe
from edgepeer.errors import Undecodable

Array = NDArray[Any]


def scrub(blocks: NDArray[Any], check: Callable[[NDArray[Any]], Collection[int]], seed: int) -> tuple[int, ...]:
    """The nodes whose stored blocks are wrong, ascending, with all blocks at hand."""
    return tuple(sorted(check(probe(blocks, seed))))


def checker(
    code: PolyDot, updates: int = 0, guarantee: Guarantee = "adversarial"
) -> Callable[[Array], Collection[int]]:
    """The decoder of the weights' code."""

    def check(products: Array) -> Collection[int]:
        noise = code.weight_noise(updates)
        return decode(code.weight_code, code.received(products), guarantee=guarantee, noise=noise).wrong

    return check


def stored(size: int, kind: Kind = "real", nodes: int = 12) -> tuple[PolyDot, Array]:
    """A float32 matrix in 2 x 2 blocks, at twelve nodes."""
    code = PolyDot(m=2, n=2, nodes=nodes, kind=kind, dtype=np.dtype(np.float32))
    return code, code.encode_weights(np.random.default_rng(size).standard_normal((size, size)) / size**0.5)


def flip(block: Array, bit: int, at: int) -> None:
    """One bit of one float32 of a block."""
    block.view(np.float32).reshape(-1).view(np.uint32)[at] ^= np.uint32(1 << bit)


def found(size: int, bits: range, updates: int, kind: Kind = "real", runs: int = 40) -> float:
    """The part of flips of these bits, anywhere, that a scrub finds. It must name the node, and no other."""
    code, blocks = stored(size, kind)
    check, rng, hits = checker(code, updates), np.random.default_rng(size), 0
    for run in range(runs):
        node, at = int(rng.integers(12)), int(rng.integers(blocks[0].view(np.float32).size))
        bit = int(rng.choice(bits))
        flip(blocks[node], bit, at)
        named = scrub(blocks, check, run)
        assert named in ((), (node,))
        hits += bool(named)
        flip(blocks[node], bit, at)
    return hits / runs


@pytest.mark.parametrize("kind", ["real", "pairs"])
def test_flips_of_sign_and_exponent_are_found(kind: Kind) -> None:
    assert found(200, range(23, 32), 0, kind) == 1
    assert found(200, range(23, 32), 2000, kind) >= 0.95


@pytest.mark.parametrize(("updates", "bit", "least"), [(0, 20, 0.95), (0, 17, 0.8), (2000, 20, 0.85), (2000, 22, 0.95)])
def test_flips_in_the_mantissa(updates: int, bit: int, least: float) -> None:
    assert found(200, range(bit, bit + 1), updates) >= least


@pytest.mark.parametrize(("updates", "bits", "least"), [(0, range(20, 32), 0.95), (2000, range(23, 32), 0.95)])
def test_flips_in_blocks_of_five_hundred(updates: int, bits: range, least: float) -> None:
    assert found(1000, bits, updates, runs=20) >= least


def test_what_stays_unseen_is_small() -> None:
    """The lowest ten bits: less than a thousandth of a weight."""
    assert found(200, range(10), 2000) == 0


def test_no_false_alarms() -> None:
    code, blocks = stored(200)
    rows = [discrepancy(code.weight_code, probe(blocks, seed), noise=code.weight_noise()) for seed in range(100)]
    assert max(rows) < 0.15, "of the tolerance"


def test_after_training_there_are_no_false_alarms_either() -> None:
    code, blocks = stored(40)
    rng = np.random.default_rng(1)
    for _ in range(1000):
        code.update(blocks, rng.standard_normal((40, 4)), rng.standard_normal((40, 4)), 1e-3, 0.999)
    assert discrepancy(code.weight_code, probe(blocks, 3), noise=code.weight_noise(1000)) < 0.15


def test_what_zero_inputs_hide_is_found() -> None:
    """A weight that meets a zero: training's own product is right, to the last bit."""
    code, blocks = stored(60)
    x = np.random.default_rng(2).standard_normal((60, 4))
    x[7], x[37] = 0, 0  # column 7 of both blocks
    inputs = code.encode_inputs(x)
    assert not inputs[:, 7].any()
    clean = blocks @ inputs
    blocks[5, 3, 7] = 1e6
    assert np.array_equal(blocks @ inputs, clean)
    assert scrub(blocks, checker(code), 0) == (5,)


def test_latent_errors_at_several_nodes_and_more_than_that() -> None:
    """Q = 4 of 12: four wrong nodes whatever their errors, seven if these are unrelated; more are declared."""
    code, blocks = stored(60)
    rng = np.random.default_rng(3)
    for count, guarantee in ((4, "adversarial"), (7, "generic")):
        spoilt = blocks.copy()
        for node in range(count):
            spoilt[node, rng.integers(30), rng.integers(30)] = rng.uniform(1, 2)
        assert scrub(spoilt, checker(code, guarantee=guarantee), 0) == tuple(range(count))
    spoilt = blocks + rng.standard_normal(blocks.shape).astype(np.float32)
    with pytest.raises(Undecodable):
        scrub(spoilt, checker(code, guarantee="generic"), 0)


def test_opposite_errors_in_a_row_do_not_cancel() -> None:
    code, blocks = stored(60)
    blocks[2, 4, 5] += 0.25
    blocks[2, 4, 9] -= 0.25
    for seed in range(50):
        assert scrub(blocks, checker(code), seed) == (2,)


def test_not_a_number_is_found() -> None:
    code, blocks = stored(60)
    blocks[8, 0, 0] = np.nan
    blocks[9, 0, 0] = np.inf
    with np.errstate(invalid="ignore"):
        assert scrub(blocks, checker(code), 0) == (8, 9)


@pytest.mark.parametrize("kind", ["real", "pairs"])
def test_each_node_computes_its_own_part(kind: Kind) -> None:
    _, blocks = stored(60, kind)
    whole = probe(blocks, 7)
    assert whole.shape == (12, PROBES * (30 + 30))
    assert whole.dtype == (np.float64 if kind == "real" else np.complex128)
    assert np.array_equal(probe(blocks[4:5], 7)[0], whole[4])
    assert not np.allclose(probe(blocks, 8), whole), "another seed, other vectors"


def test_columns_of_an_mds_coded_grid() -> None:
    """The blocks of any linear code: here five of rows, at nine nodes."""
    rng = np.random.default_rng(6)
    code = mds_code(9, 5)
    blocks = np.tensordot(code.generator, rng.standard_normal((5, 20, 30)), 1).astype(np.float32)
    blocks[1, 2, 3] += 1.0
    blocks[6, 5, 5] = -3.0

    def check(products: Array) -> Collection[int]:
        return decode(code, products, noise=1e-7).wrong

    assert scrub(blocks, check, 0) == (1, 6)
