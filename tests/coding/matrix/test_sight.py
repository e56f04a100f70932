"""A plan's promise against all that it promises: every single error, at every node, in both directions."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgepeer.coding.matrix.decode import Guarantee, MatrixCode, Undecodable, decode, visible
from edgepeer.coding.matrix.nodes import Kind, vandermonde
from edgepeer.coding.matrix.plan import Direction, Plan, plan
from edgepeer.coding.matrix.polydot import PolyDot
from edgepeer.coding.matrix.sight import least_sight
from edgepeer.errors import ConfigError

Floats = type[np.floating[Any]]
SUMMED, NUMBERS = 100, 24


@pytest.mark.parametrize(
    ("count", "kind", "threshold", "lost"),
    [(7, "real", 4, 0), (7, "real", 4, 2), (9, "real", 6, 1), (8, "pairs", 9, 2), (10, "pairs", 15, 1)],
)
def test_the_least_sight_is_the_least_of_all(count: int, kind: Kind, threshold: int, lost: int) -> None:
    """Against the checks themselves, made anew without each set of nodes."""
    code = MatrixCode(vandermonde(count, kind, threshold), 1 if kind == "real" else 2)
    found = least_sight(code, lost)
    assert found.exhaustive
    assert len(found.nodes) == lost
    assert found.visible == pytest.approx(
        min(visible(code, frozenset(some)) for some in combinations(range(count), lost)), rel=1e-9
    )
    assert found.checks == (count - lost) * code.group - threshold


@pytest.mark.parametrize(("kind", "threshold"), [("real", 11), ("pairs", 45)])
def test_of_many_sets_it_finds_less_than_random_ones_have(kind: Kind, threshold: int) -> None:
    code = MatrixCode(vandermonde(40, kind, threshold), 1 if kind == "real" else 2)
    found, rng = least_sight(code, 5), np.random.default_rng(6)
    assert not found.exhaustive
    drawn = [frozenset(rng.choice(40, 5, replace=False).tolist()) for _ in range(300)]
    assert found.visible < min(visible(code, some) for some in drawn)


def test_with_more_missing_less_is_seen() -> None:
    code = MatrixCode(vandermonde(12, "pairs", 11), 2)
    seen = [least_sight(code, lost).visible for lost in range(6)]
    assert seen == sorted(seen, reverse=True)
    assert seen[5] < seen[0] / 100


# --- what is promised ---------------------------------------------------------------------------------------------


def products(code: PolyDot, forward: bool, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Rows of random blocks, as nodes compute them, and the result that is right."""
    height, width, batch = 2 * code.m, 2 * code.n, NUMBERS // 2
    w, x, delta = (rng.standard_normal(shape) for shape in ((height, width), (width, batch), (height, batch)))
    w, x, delta = (each.astype(code.dtype) for each in (w, x, delta))
    weights = code.encode_weights(w)
    right = (w.astype(np.float64) @ x) if forward else (w.astype(np.float64).T @ delta)
    return code.received(weights @ code.encode_inputs(x) if forward else code.encode_errors(delta) @ weights), right


def patterns(found: Direction, nodes: int, errors: int, erasures: int) -> list[tuple[list[int], list[int]]]:
    """Wrong and lost nodes: as many as promised, where least is seen and at random. If that is one, each one."""
    if (errors, erasures) == (1, 0):
        return [([node], []) for node in range(nodes)]
    rng = np.random.default_rng(nodes)
    worst = list(found.sight.nodes) if found.sight and len(found.sight.nodes) == errors + erasures else []
    sets = [worst[::-1], worst] if worst else []
    sets += [rng.choice(nodes, errors + erasures, replace=False).tolist() for _ in range(4)]
    return [(each[:errors], each[errors:]) for each in sets]


def keep(found: Plan, errors: int, erasures: int, guarantee: Guarantee) -> int:
    """Everything that is promised comes out right, with rounding as before the first update and after the last."""
    code, count = found.code, 0
    for name, direction, of in (
        ("forward", found.forward, code.forward_code),
        ("backward", found.backward, code.backward_code),
    ):
        rng = np.random.default_rng(code.nodes)
        clean, right = products(code, name == "forward", rng)
        largest = np.abs(clean).max()
        for updates in (0, 2000):
            noise = code.noise(SUMMED, updates)
            drift = 0.3 * noise if updates else 0.0  # more than such products have
            for wrong, lost in patterns(direction, code.nodes, errors, erasures):
                rows = (clean + drift * largest * rng.standard_normal(clean.shape)).astype(code.dtype)
                rows = rows.reshape(code.nodes, code.group, -1)
                rows[wrong] = largest * rng.standard_normal(rows[wrong].shape)
                rows[lost] = np.nan
                back = decode(of, rows.reshape(clean.shape), lost, guarantee=guarantee, noise=noise)
                assert back.wrong == tuple(sorted(wrong)), (name, updates, wrong, lost)
                data = (code.outputs if name == "forward" else code.gradients)(back.data, right.shape)
                off = np.abs(data - right).max() / np.abs(right).max()
                assert off < max(1.0, 50 * drift / np.finfo(code.dtype).eps) * 10.0**-direction.digits * 10
                count += 1
    return count


def fewest(m: int, n: int) -> int:
    return max(m * n + n - 1, 2 * m * n - n)


BLOCKS = [
    *[(1, 1), (1, 3), (2, 1), (1, 5), (3, 6), (7, 3), (2, 2), (2, 4)],
    *[(3, 3), (4, 2), (2, 8), (4, 4), (5, 5), (8, 2), (5, 8)],
]
GRID = [
    (m, n, nodes)
    for m, n in BLOCKS
    for nodes in sorted({min(fewest(m, n) + 2, 40), min(fewest(m, n) + 4, 40), fewest(m, n) * 5 // 8 + 4})
]
SEVERAL = [(2, 2, 12), (2, 4, 20), (3, 3, 24), (4, 4, 32), (5, 5, 40), (2, 20, 40), (3, 12, 40)]


def kept_or_refused(m: int, n: int, nodes: int, dtype: Floats, errors: int, erasures: int, how: Guarantee) -> int:
    try:
        found = plan(m, n, nodes, dtype=dtype, errors=errors, erasures=erasures, guarantee=how, summed=SUMMED)
    except ConfigError as error:
        refused = str(error)
    else:
        return keep(found, errors, erasures, how)
    assert any(each in refused for each in ("nodes can't do", "keeps ", "too few digits to check"))
    assert "; take " in refused
    return 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_single_error_is_corrected_or_its_plan_is_refused(dtype: Floats) -> None:
    kept = [kept_or_refused(*each, dtype, 1, 0, "adversarial") for each in GRID]
    assert sum(map(bool, kept)) > len(GRID) / 3
    assert not all(kept), "some are refused, too"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("errors", "erasures", "how"),
    [(0, 3, "adversarial"), (1, 2, "adversarial"), (2, 0, "adversarial"), (3, 1, "adversarial"), (4, 1, "generic")],
)
def test_several_errors_and_losses_are_made_up_for_or_refused(
    dtype: Floats, errors: int, erasures: int, how: Guarantee
) -> None:
    kept = [kept_or_refused(*each, dtype, errors, erasures, how) for each in SEVERAL]
    assert any(kept)
    assert dtype == np.float32 or all(kept[1:5])


# --- what is refused ----------------------------------------------------------------------------------------------


def declared(code: PolyDot, updates: int) -> int:
    """At how many nodes a single error in a backward product can't be corrected."""
    rng, count = np.random.default_rng(1), 0
    clean, _ = products(code, False, rng)
    for node in range(code.nodes):
        rows = clean.copy().reshape(code.nodes, code.group, -1)
        rows[node] = np.abs(clean).max() * rng.standard_normal(rows[node].shape)
        try:
            back = decode(code.backward_code, rows.reshape(clean.shape), noise=code.noise(SUMMED, updates))
        except Undecodable:
            count += 1
        else:
            assert back.wrong == (node,)
    return count


@pytest.mark.parametrize(("m", "n", "nodes"), [(5, 8, 38), (4, 10, 38), (4, 10, 40), (2, 3, 11), (4, 4, 16)])
def test_what_single_precision_can_t_check_is_refused(m: int, n: int, nodes: int) -> None:
    """Enough equations for an error at any node, and digits only for one at some of them. In float64 for all."""
    with pytest.raises(ConfigError, match="too few digits to check the backward product") as refused:
        plan(m, n, nodes, dtype=np.float32, errors=1)
    assert "take float64, fewer blocks, more nodes or errors=0" in str(refused.value)
    assert plan(m, n, nodes, dtype=np.float32, errors=0).backward.errors >= 1, "by equations"
    kind = plan(m, n, nodes, dtype=np.float32).code.kind
    single, double = (PolyDot(m=m, n=n, nodes=nodes, kind=kind, dtype=np.dtype(each)) for each in ("f4", "f8"))
    assert declared(single, 2000) > 0
    assert declared(double, 2000) == 0
    assert plan(m, n, nodes, kind=kind, errors=1).backward.sees(double.noise(SUMMED, 2000)) < 0.01


def test_fewer_errors_are_offered_if_they_would_do() -> None:
    with pytest.raises(ConfigError, match=r"without 4 of 40 nodes .* or errors=1$"):
        plan(3, 12, 40, dtype=np.float32, errors=4)
    plan(3, 12, 40, dtype=np.float32, errors=1)


def test_a_plan_is_for_a_number_of_updates() -> None:
    plan(2, 2, 8, dtype=np.float32, errors=1)
    with pytest.raises(ConfigError, match="after 100000 updates"):
        plan(2, 2, 8, dtype=np.float32, errors=1, updates=100_000)
    plan(2, 2, 12, dtype=np.float32, errors=1, updates=100_000)
