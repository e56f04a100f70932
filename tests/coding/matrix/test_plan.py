"""What a PolyDot code for a wish takes, gives and keeps of the digits, and what is refused."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgepeer.coding.matrix.decode import Guarantee, MatrixCode, Undecodable, decode
from edgepeer.coding.matrix.nodes import Kind, scales
from edgepeer.coding.matrix.plan import Direction, Plan, plan
from edgepeer.coding.matrix.polydot import PolyDot
from edgepeer.errors import ConfigError


def test_figure_8() -> None:
    """P = 180, m = n = 6: the tolerances (t_f, t_b) under both error models, at real points as published."""
    found = plan(6, 6, 180, kind="real", digits=-math.inf)
    assert (found.forward.threshold, found.backward.threshold) == (41, 66)
    assert (found.forward.errors, found.backward.errors) == (69, 57)
    assert (found.forward.generic_errors, found.backward.generic_errors) == (138, 113)
    mirrored = plan(6, 6, 180, kind="real", digits=-math.inf, substitution="v=u^m")
    assert (mirrored.forward.errors, mirrored.backward.errors) == (57, 69)


def test_four_blocks_at_twelve_nodes() -> None:
    """K = 4, P = 12: model 1 (3, 3), model 2 (6, 5)."""
    found = plan(2, 2, 12)
    assert (found.forward.errors, found.backward.errors) == (3, 3)
    assert (found.forward.generic_errors, found.backward.generic_errors) == (6, 5)
    assert found.code.group == 1


def test_twenty_blocks_at_38_nodes_in_pairs() -> None:
    """5 x 8 complex blocks, so each node stores 1/20 of W: forward 7 errors, backward 1."""
    found = plan(5, 8, 38)
    assert (found.code.kind, found.code.group) == ("pairs", 2)
    assert (found.forward.errors, found.backward.errors) == (7, 1)


def test_twenty_five_blocks_do_not_fit_on_forty_nodes() -> None:
    """At real points one direction has Q = 45, with either substitution; pairs store twice as much, and do."""
    with pytest.raises(ConfigError, match="the backward product needs 45; take 45 nodes"):
        plan(5, 5, 40, kind="real")
    with pytest.raises(ConfigError, match="the forward product needs 45"):
        plan(5, 5, 40, kind="real", substitution="v=u^m")
    assert plan(5, 5, 40, dtype=np.float32).code.group == 2


def test_losses_beyond_what_there_is_are_refused() -> None:
    plan(2, 2, 12, errors=3)
    with pytest.raises(ConfigError, match=r"backward product needs 6, and 8 more for adversarial k=4.*take 14 nodes"):
        plan(2, 2, 12, errors=4)
    plan(2, 2, 12, errors=5, guarantee="generic")
    with pytest.raises(ConfigError, match="take 13 nodes or fewer blocks"):
        plan(2, 2, 12, errors=6, guarantee="generic")
    plan(2, 2, 12, erasures=5, guarantee="generic")
    plan(2, 2, 12, erasures=6)
    with pytest.raises(ConfigError, match="at least 0"):
        plan(2, 2, 12, errors=-1)


def test_products_may_be_promised_different_things() -> None:
    """5 x 8 on 38 nodes in pairs: seven errors forward, but one backward."""
    found = plan(5, 8, 38, errors=(7, 1))
    assert (len(found.forward.loss.nodes), len(found.backward.loss.nodes)) == (7, 1)
    plan(5, 8, 38, errors=(6, 0), erasures=(2, 2))
    with pytest.raises(ConfigError, match="the backward product needs 36, and 4 more"):
        plan(5, 8, 38, errors=2)
    with pytest.raises(ConfigError, match="the forward product needs 24, and 16 more"):
        plan(5, 8, 38, errors=(8, 1))
    with pytest.raises(ConfigError, match=r"keeps 1.0 digits of the forward product at pairs"):
        plan(5, 8, 38, errors=(7, 1), dtype=np.float32)


def test_the_kind_of_points_follows_the_rule() -> None:
    assert plan(2, 2, 12, dtype=np.float32).code.kind == "real"
    assert plan(3, 3, 20, dtype=np.float32).code.kind == "pairs", "Q = 15 backward"
    assert plan(3, 3, 20).code.kind == "real"
    assert plan(4, 4, 40).code.kind == "pairs", "Q = 28 backward"


@pytest.mark.parametrize(("m", "lost"), [(4, 4), (5, 0)])
def test_real_points_with_too_few_digits_are_refused_in_float32(m: int, lost: int) -> None:
    with pytest.raises(ConfigError, match=r"keeps 0.\d digits of the backward product.*not 2; take float64, pairs"):
        plan(m, m, 48, dtype=np.float32, kind="real", erasures=lost)
    assert plan(m, m, 48, dtype=np.float32, erasures=lost).backward.digits > 4


def test_more_digits_than_there_are_are_refused() -> None:
    with pytest.raises(ConfigError, match="not 16; take pairs, fewer blocks or more nodes"):
        plan(2, 2, 12, erasures=4, digits=16)


# --- the digits are the ones that results have --------------------------------------------------------------------


def errors_of(found: Plan, lost: list[list[int]]) -> tuple[float, float]:
    """The largest relative errors, forward and backward, over these sets of lost nodes, at random numbers."""
    rng = np.random.default_rng(4)
    code = found.code
    height, width = 8 * code.m, 8 * code.n
    w, x = rng.standard_normal((height, width)), rng.standard_normal((width, 3))
    delta = rng.standard_normal((height, 3))
    w, x, delta = (each.astype(code.dtype).astype(np.float64) for each in (w, x, delta))
    weights = code.encode_weights(w)
    rows = code.received(weights @ code.encode_inputs(x)), code.received(code.encode_errors(delta) @ weights)
    forward = backward = 0.0
    for some in lost:
        s = code.outputs(decode(code.forward_code, rows[0], some).data, (height, 3))
        c = code.gradients(decode(code.backward_code, rows[1], some).data, (width, 3))
        forward = max(forward, float(np.linalg.norm(s - w @ x) / np.linalg.norm(w @ x)))
        backward = max(backward, float(np.linalg.norm(c - w.T @ delta) / np.linalg.norm(w.T @ delta)))
    return forward, backward


def worst_and_random(found: Plan, lost: int) -> list[list[int]]:
    rng = np.random.default_rng(9)
    worst = [list(direction.loss.nodes) for direction in (found.forward, found.backward)]
    return worst + [rng.choice(found.code.nodes, lost, replace=False).tolist() for _ in range(40)]


@pytest.mark.parametrize(
    ("m", "n", "nodes", "lost", "dtype", "kind", "forward", "backward"),
    [
        (2, 2, 40, 2, np.float32, "real", 9e-7, 6e-6),
        (2, 2, 12, 2, np.float32, "real", 9e-7, 6e-6),
        (2, 2, 40, 2, np.float64, "real", 2e-14, 2e-14),
        (2, 2, 12, 6, np.float32, "real", 4e-4, 1e-3),
        (3, 3, 40, 4, np.float32, "real", 6e-5, 1.5e-3),
        (4, 4, 40, 4, np.float64, "real", 2e-10, 1e-6),
        (3, 3, 40, 4, np.float32, "pairs", 2e-7, 2e-7),
        (4, 4, 40, 4, np.float32, "pairs", 5e-6, 3e-5),
        (5, 5, 40, 4, np.float32, "pairs", 2e-6, 2e-5),
        (5, 5, 40, 4, np.float64, "pairs", 1e-14, 2e-13),
        (5, 5, 40, 10, np.float64, "pairs", 1e-11, 2e-7),
    ],
)
def test_accuracy_with_the_worst_losses(
    m: int, n: int, nodes: int, lost: int, dtype: type[np.floating[Any]], kind: Kind, forward: float, backward: float
) -> None:
    """Below these figures, and what the plan says: within a digit."""
    found = plan(m, n, nodes, erasures=lost, dtype=dtype, kind=kind, digits=0)
    errors = errors_of(found, worst_and_random(found, lost))
    assert errors[0] < forward
    assert errors[1] < backward
    for error, direction in zip(errors, (found.forward, found.backward), strict=True):
        if direction.digits < -math.log10(np.finfo(dtype).eps) - 2:  # otherwise it is rounding in the product itself
            assert -math.log10(error) == pytest.approx(direction.digits, abs=1)


def test_integers_as_points_would_be_useless() -> None:
    """The usual 1, 2, ..., P: P = 12, m = n = 2, at the threshold, a float64 keeps fewer digits than here a float32."""
    z = np.arange(1, 13) / 12.0  # however they are scaled
    integers = np.linalg.cond(np.vander(z[:6], 6, increasing=True))
    ours = np.linalg.cond(plan(2, 2, 12).code.backward_code.generator[:6])
    assert integers > 1000 * ours


# --- what is promised is kept ---------------------------------------------------------------------------------------


def spoilt_products(found: Plan, rng: np.random.Generator, wrong: list[int], lost: list[int]) -> None:
    code = found.code
    height, width, batch = 3 * code.m, 3 * code.n, 8
    w, x = rng.standard_normal((height, width)), rng.standard_normal((width, batch))
    products = code.encode_weights(w) @ code.encode_inputs(x)
    products[wrong] += rng.standard_normal(products[wrong].shape)
    products[lost] = np.nan
    back = decode(code.forward_code, code.received(products), lost, guarantee="generic")
    assert back.wrong == tuple(sorted(wrong))
    assert np.allclose(code.outputs(back.data, (height, batch)), w @ x, rtol=0, atol=1e-8)


def most_promised(m: int, n: int, nodes: int) -> int:
    """The most generic errors for which three digits are left."""
    for errors in range(plan(m, n, nodes).forward.generic_errors, 0, -1):
        try:
            plan(m, n, nodes, errors=errors, guarantee="generic", digits=3)
        except ConfigError:
            continue
        return errors
    raise AssertionError("none")


@pytest.mark.parametrize(("m", "n", "nodes", "most"), [(2, 2, 12, 5), (3, 3, 17, 1), (3, 3, 22, 6), (4, 4, 30, 13)])
def test_generic_errors_up_to_the_promise_are_corrected(m: int, n: int, nodes: int, most: int) -> None:
    assert most_promised(m, n, nodes) == most
    rng = np.random.default_rng(nodes)
    found = plan(m, n, nodes, errors=most, guarantee="generic")
    for _ in range(5):
        order = rng.permutation(nodes).tolist()
        spoilt_products(found, rng, order[:most], [])
        spoilt_products(found, rng, order[: most // 2], order[most // 2 : most])
    with pytest.raises(Undecodable):
        spoilt_products(found, rng, list(range(found.forward.generic_errors + 1)), [])


@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("density", ["dense", "sparse", "mixed sizes"])
def test_four_blocks_at_twelve_nodes_correct_what_the_paper_says(density: str, forward: bool) -> None:
    """Every count of wrong nodes that is generic, thirty times; model 1's 3 among them. One more is declared."""
    rng = np.random.default_rng(12)
    code = plan(2, 2, 12).code
    weights = code.encode_weights(rng.standard_normal((40, 40)))
    numbers = rng.standard_normal((40, 3))
    products = weights @ code.encode_inputs(numbers) if forward else code.encode_errors(numbers) @ weights
    clean, of = code.received(products), code.forward_code if forward else code.backward_code
    right = decode(of, clean).data
    for count in range(7 if forward else 6):
        for _ in range(30):
            rows, wrong = clean.copy(), np.sort(rng.choice(12, count, replace=False))
            errors = rng.standard_normal((count, rows.shape[1]))
            if density == "sparse":
                errors *= rng.random(errors.shape) < 0.2
            if density == "mixed sizes":
                errors *= 10.0 ** rng.uniform(-3, 3, (count, 1))
            rows[wrong] += errors
            found = decode(of, rows, guarantee="generic")
            assert found.wrong == tuple(wrong)
            assert np.allclose(found.data, right, rtol=0, atol=1e-9)
    rows = clean.copy()
    rows[: 7 if forward else 6] += rng.standard_normal((7 if forward else 6, rows.shape[1]))
    with pytest.raises(Undecodable):
        decode(of, rows, guarantee="generic")


@pytest.mark.parametrize("guarantee", ["adversarial", "generic"])
def test_a_plan_s_promise_is_what_the_decoder_takes(guarantee: Guarantee) -> None:
    """All (k, e) that a plan accepts are decoded, and those it refuses are not. With r losses nothing is checked."""
    rng = np.random.default_rng(2)
    code: PolyDot = plan(2, 2, 10).code
    weights = code.encode_weights(rng.standard_normal((6, 6)))
    clean = code.encode_errors(rng.standard_normal((6, 5))) @ weights
    for errors in range(5):
        for erasures in range(6):
            products = clean.copy()
            products[:errors] += rng.standard_normal(products[:errors].shape)
            rows, lost = code.received(products), range(errors, errors + erasures)
            try:
                plan(2, 2, 10, errors=errors, erasures=erasures, guarantee=guarantee, digits=-math.inf)
            except ConfigError:
                if erasures == 4 and guarantee == "adversarial":
                    assert decode(code.backward_code, rows, lost).checks == 0
                    continue
                with pytest.raises(Undecodable):
                    decode(code.backward_code, rows, lost, guarantee=guarantee)
            else:
                assert decode(code.backward_code, rows, lost, guarantee=guarantee).wrong == tuple(range(errors))


def believed(code: MatrixCode, clean: NDArray[np.float64], rng: np.random.Generator) -> int:
    """How many of all equal and opposite errors at two nodes, one more than is corrected, pass as something else."""
    count = 0
    for a, b in combinations(range(code.nodes), 2):
        for sign in (1, -1):
            rows = clean.copy().reshape(code.nodes, code.group, -1)
            error = rng.standard_normal(rows[a].shape)
            rows[a] += error
            rows[b] += sign * error
            try:
                decode(code, rows.reshape(clean.shape))
            except Undecodable:
                continue
            count += 1
    return count


@pytest.mark.parametrize(("m", "n", "nodes", "kind"), [(2, 2, 7, "real"), (2, 2, 8, "real"), (3, 3, 10, "pairs")])
def test_equal_errors_at_two_nodes_are_declared(m: int, n: int, nodes: int, kind: Kind) -> None:
    """Two nodes more than needed correct one: two with equal errors must not pass as another."""
    rng = np.random.default_rng(nodes)
    code = plan(m, n, nodes, kind=kind).code
    of, products = code.forward_code, code.encode_weights(rng.standard_normal((12, 12)))
    chosen = of if of.redundancy == 2 else code.backward_code
    numbers = rng.standard_normal((12, 4))
    products = products @ code.encode_inputs(numbers) if chosen is of else code.encode_errors(numbers) @ products
    assert chosen.redundancy == 2
    assert believed(chosen, code.received(products), rng) == 0


def test_without_factors_they_are_believed() -> None:
    generator = plan(2, 2, 7).code.forward_code.generator / scales(7)[:, None]
    rng = np.random.default_rng(7)
    assert believed(MatrixCode(generator), generator @ rng.standard_normal((5, 40)), rng) > 0


def test_a_direction_says_what_it_takes() -> None:
    found: Direction = plan(2, 2, 12, erasures=2).forward
    assert (found.threshold, found.nodes, found.erasures) == (5, 5, 7)
    assert found.loss.exhaustive
    assert len(found.loss.nodes) == 2
