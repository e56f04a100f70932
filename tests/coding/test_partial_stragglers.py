"""Partial stragglers: the paper's example equation by equation, exact and approximate sums."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from magnification import magnified
from numpy.typing import NDArray
from partial_stragglers_model import gaussian_columns, sum_of

from edgepeer.coding.assignment import Assignment, cyclic_assignment
from edgepeer.coding.graphs import adjacency_assignment, expander
from edgepeer.coding.ordering import optimal_order
from edgepeer.coding.partial import PartialCode
from edgepeer.coding.spread import colours, moment_curve, spread_columns
from edgepeer.errors import ConfigError

FIGURE = Assignment(5, ((0, 1, 2, 3, 4), (0, 1), (2, 3, 4), (1, 2), (0, 3, 4)))
"""Fig. 1(b), as far as its worker 3 can be known: it has failed, and shows no chunk."""


def matrix_of(code: PartialCode, done: tuple[int, ...]) -> NDArray[np.float64]:
    """B, shape (workers, chunks, blocks), put together of what each worker finds for itself."""
    out = np.zeros((code.workers, code.chunks, code.blocks))
    for worker, order in enumerate(code.assignment.orders):
        out[worker, list(order)] = code.encoding(worker, done)
    return out


def shortest(code: PartialCode, done: tuple[int, ...]) -> NDArray[np.float64]:
    """B by eq. (5) literally: each column the shortest least squares solution, one at a time."""
    out = np.zeros((code.workers, code.chunks, code.blocks))
    computed = code.assignment.computed(done)
    for chunk, block in product(range(code.chunks), range(code.blocks)):
        those = np.flatnonzero(computed[chunk])
        if len(those):
            unit = np.eye(code.blocks)[block]
            out[those, chunk, block] = np.linalg.lstsq(code.columns[:, those], unit, rcond=1e-10)[0]
    return out


def relative_error(code: PartialCode, done: tuple[int, ...], dtype: Any, seed: int = 0) -> float:
    rng = np.random.default_rng(seed)
    gradients: NDArray[Any] = rng.standard_normal((code.chunks, 24 * code.blocks)).astype(dtype)
    wanted = gradients.astype(np.float64).sum(axis=0)
    return float(np.linalg.norm(sum_of(code, gradients, done) - wanted) / np.linalg.norm(wanted))


def at_release(code: PartialCode, seed: int, failed: int = 0) -> tuple[int, ...]:
    """What is computed when the sum can first be had, with exponential times and some workers failed."""
    rng = np.random.default_rng(seed)
    times = rng.exponential(size=(code.workers, int(code.assignment.loads.max()))).cumsum(axis=1)
    times[rng.choice(code.workers, failed, replace=False)] = np.inf
    for now in np.sort(times[np.isfinite(times)]):
        done = tuple((times <= now).sum(axis=1).tolist())
        if code.recovery(done).exact:
            return done
    raise AssertionError("too many failed")


# -- the paper's example, §II-B --------------------------------------------------------------------------------


@pytest.fixture(params=["spread", "gaussian"])
def figure(request: pytest.FixtureRequest) -> PartialCode:
    columns = gaussian_columns(5, 2, 7) if request.param == "gaussian" else None
    return PartialCode("figure", FIGURE, 2, columns)


def test_equation_8(figure: PartialCode) -> None:
    """psi = [5 2 0 2 3]: which coefficients there are."""
    found = matrix_of(figure, (5, 2, 0, 2, 3))
    a, b, c, d = (1, 1, 1, 1, 1), (1, 1, 0, 0, 0), (0, 1, 1, 0, 0), (1, 0, 0, 1, 1)
    np.testing.assert_array_equal((found != 0).any(axis=2), np.array([a, b, (0,) * 5, c, d]) > 0)
    assert figure.recovery((5, 2, 0, 2, 3)).exact


def test_equations_9_and_10(figure: PartialCode) -> None:
    """a1, b1, d1: the shortest solution for chunk 1; the same for whoever solves it."""
    psi = (5, 2, 0, 2, 3)
    found, r = matrix_of(figure, psi), figure.columns
    those = [0, 1, 4]
    first = found[those, 0, 0]
    np.testing.assert_allclose(r[:, those] @ first, [1, 0], atol=1e-12)
    np.testing.assert_allclose(first, np.linalg.pinv(r[:, those]) @ [1, 0], atol=1e-12)
    null = np.linalg.svd(r[:, those])[2][-1]
    assert abs(first @ null) < 1e-12, "nothing of it is in the null space, so none is shorter"
    np.testing.assert_allclose(found, shortest(figure, psi), atol=1e-12)
    for chunk in range(5):  # min || [I I I] - R [B(1) B(4) B(5)] || is zero, and for the other workers' chunks, too
        np.testing.assert_allclose(r @ found[:, chunk, :], np.eye(2), atol=1e-12)


def test_the_server_recovers_both_blocks(figure: PartialCode) -> None:
    """sum over chunks of g[k] = sum over workers of r[k, j] g_j, k = 0, 1."""
    psi, rng = (5, 2, 0, 2, 3), np.random.default_rng(0)
    gradients = rng.standard_normal((5, 6))
    blocks = gradients.reshape(5, 3, 2)
    sent = np.einsum("jik,ink->jn", matrix_of(figure, psi), blocks)  # eq. (2)
    for k in range(2):
        np.testing.assert_allclose(figure.columns[k] @ sent, blocks[:, :, k].sum(axis=0), atol=1e-12)
    np.testing.assert_allclose(sum_of(figure, gradients, psi), gradients.sum(axis=0), atol=1e-12)


def test_equation_11(figure: PartialCode) -> None:
    """psi = [4 2 0 2 3]: chunk 5 is there once, and d9' is what one column can do."""
    psi = (4, 2, 0, 2, 3)
    found, r = matrix_of(figure, psi), figure.columns[:, 4]
    assert not found[0, 4].any()
    assert found[4, 4, 0] == pytest.approx(r[0] / (r @ r))
    np.testing.assert_allclose(found, shortest(figure, psi), atol=1e-12)
    recovery = figure.recovery(psi)
    assert (recovery.exact, recovery.error, recovery.coverage.tolist()) == (False, 0.5, [1, 1, 1, 1, 0.5])


def projections(code: PartialCode, done: Sequence[int]) -> NDArray[np.float64]:
    """By chunk, X pinv(X), shape (chunks, blocks, blocks): the identity if it is whole. Row r of a chunk's G enters the
    sum as projections[i] @ G[r]."""
    systems = np.where(code.assignment.computed(done)[:, None, :], code.columns, 0.0)
    return np.asarray(systems @ np.linalg.pinv(systems, rcond=1e-9))


# -- any code ----------------------------------------------------------------------------------------------------


@st.composite
def codes(draw: st.DrawFn) -> PartialCode:
    workers = draw(st.integers(1, 8))
    chunks = draw(st.integers(1, 8))
    blocks = draw(st.integers(1, min(4, workers)))
    drawn: dict[int, list[int]] = {worker: [] for worker in range(workers)}
    for chunk in range(chunks):
        for worker in draw(st.sets(st.integers(0, workers - 1), min_size=blocks)):
            drawn[worker].append(chunk)
    orders = tuple(tuple(draw(st.permutations(order))) for order in drawn.values())
    return PartialCode("x", Assignment(chunks, orders), blocks)


@given(codes(), st.data())
def test_all_find_the_shortest_solution_and_the_sum_is_what_is_stated(code: PartialCode, data: st.DataObject) -> None:
    done = tuple(data.draw(st.integers(0, len(order))) for order in code.assignment.orders)
    copies = code.assignment.computed(done).sum(axis=1)
    assert code.copies(done).tolist() == copies.tolist()
    np.testing.assert_allclose(matrix_of(code, done), shortest(code, done), atol=1e-8)
    recovery = code.recovery(done)
    missing = sum(max(0, code.blocks - int(count)) for count in copies)
    assert recovery.exact == (missing == 0)
    assert recovery.error == pytest.approx(missing / code.blocks)
    np.testing.assert_allclose(recovery.coverage, np.minimum(copies / code.blocks, 1))

    gradients = np.random.default_rng(0).standard_normal((code.chunks, 3 * code.blocks))
    rows = gradients.reshape(code.chunks, 3, code.blocks)
    wanted = np.einsum("ikl,inl->nk", projections(code, done), rows).reshape(-1)
    np.testing.assert_allclose(sum_of(code, gradients, done), wanted, atol=1e-8)
    if recovery.exact:
        np.testing.assert_allclose(wanted, gradients.sum(axis=0), atol=1e-8)
        assert recovery.error == 0
    off = projections(code, done) - np.eye(code.blocks)
    assert (off**2).sum() == pytest.approx(missing, abs=1e-8), "the paper's error, for any R"
    assert code.brings(done) == tuple(count > 0 for count in done)


@given(codes(), st.data())
def test_a_worker_needs_nothing_but_its_own_chunks(code: PartialCode, data: st.DataObject) -> None:
    """What the others have computed of other chunks makes no difference to its coefficients."""
    done = [data.draw(st.integers(0, len(order))) for order in code.assignment.orders]
    worker = data.draw(st.integers(0, code.workers - 1))
    mine = set(code.assignment.orders[worker][: done[worker]])
    other = list(done)
    for j, order in enumerate(code.assignment.orders):
        while other[j] < len(order) and order[other[j]] not in mine and j != worker:
            other[j] += 1
    np.testing.assert_allclose(code.encoding(worker, other), code.encoding(worker, done), atol=1e-12)


def test_the_error_of_random_gradients_is_the_stated_one() -> None:
    """Recovery.error: the mean squared error over directions, in units of one chunk's squared gradient norm."""
    code, rng = PartialCode("x", cyclic_assignment(6, 3), 3), np.random.default_rng(0)
    for done in ((1, 1, 1, 1, 1, 1), (3, 0, 2, 0, 1, 1), (2, 2, 2, 2, 2, 2)):
        errors = []
        for _ in range(400):
            gradients = rng.standard_normal((6, 30))
            gradients /= np.linalg.norm(gradients, axis=1, keepdims=True)
            errors.append(((sum_of(code, gradients, done) - gradients.sum(axis=0)) ** 2).sum())
        stated = code.recovery(done).error
        assert np.mean(errors) == pytest.approx(stated, abs=5 * np.std(errors) / 20)


@pytest.mark.parametrize(("workers", "load", "blocks"), [(4, 2, 1), (4, 3, 2), (5, 4, 3), (3, 3, 3)])
def test_every_state_of_small_fleets(workers: int, load: int, blocks: int) -> None:
    code = PartialCode("x", cyclic_assignment(workers, load), blocks)
    gradients = np.random.default_rng(0).standard_normal((workers, 4 * blocks))
    for done in product(range(load + 1), repeat=workers):
        if code.recovery(done).exact:
            np.testing.assert_allclose(sum_of(code, gradients, done), gradients.sum(axis=0), atol=1e-12)


def test_any_failures_that_leave_enough_copies() -> None:
    """With d copies of each chunk, any d - blocks workers may fail."""
    code = PartialCode("x", cyclic_assignment(7, 4), 2)
    for first in range(7):
        for second in range(7):
            done = tuple(0 if worker in (first, second) else 4 for worker in range(7))
            assert code.recovery(done).exact
            assert relative_error(code, done, np.float64) < 1e-12


# -- one block: Remark 1 -------------------------------------------------------------------------------------------


def test_one_block_is_weighted_partial_sums() -> None:
    code = PartialCode("x", cyclic_assignment(4, 3), 1)
    done = (3, 1, 0, 2)  # chunks 0 1 2 | 1 | - | 3 0
    assert code.encoding(0, done).tolist() == [[0.5], [0.5], [1.0]]
    assert code.encoding(1, done).tolist() == [[0.5], [0.0], [0.0]]
    assert code.encoding(3, done)[:, 0] == pytest.approx([1.0, 0.5, 0.0])
    assert all(code.column(worker, done).tolist() == [1.0] for worker in range(4))
    assert code.brings(done) == (True, True, False, True)
    partly = code.recovery((1, 0, 0, 1))
    assert (partly.error, partly.coverage.tolist()) == (2.0, [1, 0, 0, 1])


# -- digits and time ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", range(1, 9))
@pytest.mark.parametrize("workers", [12, 200])
def test_cyclic_assignments_keep_their_digits(workers: int, blocks: int) -> None:
    for load in {blocks, min(blocks + 2, workers), min(blocks + 4, workers)}:
        code = PartialCode("x", cyclic_assignment(workers, load), blocks)
        for seed in range(3):
            done = at_release(code, seed, failed=min(load - blocks, 2))
            assert relative_error(code, done, np.float64) < 1e-10
            assert relative_error(code, done, np.float32) < 1e-5
            assert magnified(code, done) < 100


@pytest.mark.parametrize(
    ("workers", "degree", "blocks"), [(12, 4, 2), (30, 6, 3), (200, 8, 1), (200, 8, 2), (200, 8, 3)]
)
def test_graph_assignments_keep_their_digits(workers: int, degree: int, blocks: int) -> None:
    code = PartialCode("x", optimal_order(adjacency_assignment(expander(workers, degree))), blocks)
    for seed in range(5):
        done = at_release(code, seed, failed=degree - blocks if workers == 200 else 0)
        assert relative_error(code, done, np.float64) < 1e-10
        assert relative_error(code, done, np.float32) < 1e-5


def test_many_blocks_on_graphs_keep_the_digits_of_float64() -> None:
    code = PartialCode("x", optimal_order(adjacency_assignment(expander(200, 10))), 8)
    for seed in range(5):
        done = at_release(code, seed)
        assert relative_error(code, done, np.float64) < 1e-10
        assert relative_error(code, done, np.float32) < 1e-3


# -- R -------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 8), st.data())
@settings(max_examples=50)
def test_points_of_the_moment_curve_are_independent(dimension: int, data: st.DataObject) -> None:
    steps = data.draw(st.sets(st.integers(0, 39), min_size=dimension, max_size=dimension))
    points = moment_curve(dimension, 2 * np.pi * np.array(sorted(steps)) / 40)
    np.testing.assert_allclose(np.linalg.norm(points, axis=0), 1)
    expected = np.prod([2 * abs(np.sin(np.pi * (a - b) / 40)) for a in steps for b in steps if a < b])
    ratio = abs(np.linalg.det(points)) / expected  # of Vandermonde's kind: the same constant for all points
    reference = moment_curve(dimension, 2 * np.pi * np.arange(dimension) / 40)
    wanted = np.prod([2 * abs(np.sin(np.pi * (a - b) / 40)) for a in range(dimension) for b in range(a)])
    assert ratio == pytest.approx(abs(np.linalg.det(reference)) / wanted, rel=1e-3)


@pytest.mark.parametrize(
    "assignment",
    [FIGURE, cyclic_assignment(13, 4), adjacency_assignment(expander(40, 5))],
    ids=["fig", "cyclic", "graph"],
)
def test_workers_with_a_common_chunk_differ_in_colour(assignment: Assignment) -> None:
    of = colours(assignment)
    for row in assignment.ordering:
        those = [of[worker] for worker in np.flatnonzero(row)]
        assert len(set(those)) == len(those)


def test_as_many_colours_as_copies_where_that_divides() -> None:
    assert max(colours(cyclic_assignment(12, 4))) == 3
    columns = spread_columns(cyclic_assignment(12, 4), 4)
    np.testing.assert_allclose(columns[:, :4].T @ columns[:, :4], np.eye(4), atol=1e-12)


def test_random_columns_lose_more() -> None:
    """Why R is not drawn: eight blocks, eight copies of each of 200 chunks."""
    assignment = optimal_order(adjacency_assignment(expander(200, 8)))
    done = (8,) * 200
    ours = magnified(PartialCode("x", assignment, 8), done)
    drawn = [magnified(PartialCode("x", assignment, 8, gaussian_columns(200, 8, seed)), done) for seed in range(5)]
    assert ours < float(np.median(drawn))


# -- what is refused ---------------------------------------------------------------------------------------------


def test_more_blocks_than_copies() -> None:
    with pytest.raises(ConfigError, match=r"l must be 1 to 2, not 3: .* chunk 0 is with 2"):
        PartialCode("x", cyclic_assignment(5, 2), 3)


def test_columns_of_another_shape() -> None:
    with pytest.raises(ConfigError, match=r"R has shape \(2, 4\), must have \(2, 5\)"):
        PartialCode("x", cyclic_assignment(5, 2), 2, gaussian_columns(4, 2, 0))
