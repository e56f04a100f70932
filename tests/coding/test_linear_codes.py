"""Codes of whole workers: every set of stragglers within the bound is decoded, and what isn't is said so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from magnification import magnified
from numpy.typing import NDArray
from partial_stragglers_model import sum_of

from edgepeer.coding.assignment import Assignment
from edgepeer.coding.cyclic import CyclicCode
from edgepeer.coding.first import FirstCode
from edgepeer.coding.fractional import FractionalCode
from edgepeer.coding.linear import LinearCode
from edgepeer.coding.regular import RegularCode
from edgepeer.coding.uncoded import UncodedCode
from edgepeer.errors import ConfigError

CODES = (CyclicCode, FractionalCode)


def without(workers: int, missing: Sequence[int]) -> NDArray[np.bool_]:
    there = np.ones(workers, np.bool_)
    there[list(missing)] = False
    return there


def done_by(code: LinearCode, there: NDArray[np.bool_]) -> tuple[int, ...]:
    """Those who are there have computed all, the others all but one."""
    return tuple(
        int(load) if ok else max(int(load) - 1, 0) for load, ok in zip(code.assignment.loads, there, strict=True)
    )


def relative_error(code: LinearCode, there: NDArray[np.bool_], dtype: type[np.floating[Any]], seed: int = 0) -> float:
    drawn = np.random.default_rng(seed).standard_normal((code.chunks, 32))
    gradients: NDArray[Any] = drawn.astype(dtype)
    wanted = gradients.astype(np.float64).sum(axis=0)
    got = sum_of(code, gradients, done_by(code, there))
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))


def straggler_sets(workers: int, s: int, draws: int) -> Iterator[tuple[int, ...]]:
    """Random ones, and neighbours."""
    rng = np.random.default_rng(workers + s)
    for draw in range(draws):
        if draw % 3:
            yield tuple(rng.choice(workers, s, replace=False).tolist())
        else:
            yield tuple((int(rng.integers(workers)) + k) % workers for k in range(s))


@pytest.mark.parametrize("kind", CODES)
@pytest.mark.parametrize("workers", range(2, 11))
def test_every_set_of_stragglers_is_decoded(kind: type[CyclicCode | FractionalCode], workers: int) -> None:
    for s in range(1, workers):
        code = kind("x", workers, s)
        for missing in range(s + 1):
            for stragglers in combinations(range(workers), missing):
                there = without(workers, stragglers)
                found = code.decoding(there)
                vector = found.vector
                assert found.exact
                assert not vector[~there].any()
                assert np.abs(code.coefficients @ vector - 1).max() < 1e-9


@pytest.mark.parametrize("kind", CODES)
@pytest.mark.parametrize(("workers", "s"), [(12, 1), (12, 3), (15, 5), (50, 3), (199, 2), (200, 1), (200, 3)])
def test_sums_keep_their_digits(kind: type[CyclicCode | FractionalCode], workers: int, s: int) -> None:
    code = kind("x", workers, s)
    for stragglers in straggler_sets(workers, s, 30):
        there = without(workers, stragglers)
        assert relative_error(code, there, np.float64) < 1e-10
        assert relative_error(code, there, np.float32) < 1e-5


@pytest.mark.parametrize("workers", [200, 201])
def test_many_stragglers_of_many_workers_still_have_all_digits_of_float64(workers: int) -> None:
    code = CyclicCode("x", workers, 7)
    for stragglers in straggler_sets(workers, 7, 20):
        assert relative_error(code, without(workers, stragglers), np.float64) < 1e-10


def test_a_sum_that_has_lost_its_digits_is_not_called_exact() -> None:
    """One worker more is waited for instead."""
    code = CyclicCode("x", 40, 8)
    stragglers = (1, 2, 6, 15, 16, 17, 19, 28)
    there = without(40, stragglers)
    error = relative_error(code, there, np.float32)
    assert error > 0.01
    recovery = code.recovery(done_by(code, there))
    assert not recovery.exact
    assert recovery.error > error**2
    there = without(40, stragglers[1:])
    assert code.decoding(there).exact
    assert relative_error(code, there, np.float32) < 0.005


def test_the_drawn_code_of_the_paper_loses_more() -> None:
    """Why H is not drawn from the normal distribution."""
    workers, s, worst = 12, 4, []
    for seed in range(5):
        null = np.random.default_rng(seed).standard_normal((s, workers))
        null[:, -1] = -null[:, :-1].sum(axis=1)
        coefficients = np.zeros((workers, workers))
        for worker in range(workers):
            chunks = (worker + np.arange(s + 1)) % workers
            coefficients[chunks[0], worker] = 1
            coefficients[chunks[1:], worker] = -np.linalg.solve(null[:, chunks[1:]], null[:, chunks[0]])
        code = LinearCode("drawn", CyclicCode("x", workers, s).assignment, coefficients)
        worst.append(max(relative_error(code, without(workers, x), np.float32) for x in straggler_sets(workers, s, 60)))
    ours = CyclicCode("x", workers, s)
    best = max(relative_error(ours, without(workers, x), np.float32) for x in straggler_sets(workers, s, 60))
    assert best < 1e-5 < float(np.median(worst))


def test_too_many_stragglers() -> None:
    code = CyclicCode("cyclic:s=2", 8, 2)
    there = without(8, (0, 3, 4))
    found = code.decoding(there)
    assert not found.exact
    assert found.residual > 1e-3
    recovery = code.recovery(done_by(code, there))
    assert not recovery.exact
    assert recovery.error == pytest.approx(((recovery.coverage - 1) ** 2).sum())


@pytest.mark.parametrize("make", [lambda: CyclicCode("x", 9, 2), lambda: RegularCode("x", 10, 4)])
def test_decoding_is_the_nearest_and_then_the_shortest(make: type[LinearCode]) -> None:
    code: LinearCode = make()  # type: ignore[call-arg]
    rng = np.random.default_rng(0)
    for _ in range(20):
        there = rng.random(code.workers) < 0.7
        found = code.decoding(there)
        coefficients = np.where(there, code.coefficients, 0.0)
        oracle = np.linalg.pinv(coefficients) @ np.ones(code.chunks)
        np.testing.assert_allclose(found.vector, oracle, atol=1e-9)
        assert found.residual == pytest.approx(((coefficients @ oracle - 1) ** 2).sum(), abs=1e-12)


@pytest.mark.parametrize("workers", range(3, 9))
@pytest.mark.parametrize("s", [1, 2, 3])
def test_no_sum_is_of_next_to_nothing(workers: int, s: int) -> None:
    """What coefficients of both signs leave of a worker's chunks may be nothing but rounding. A mean over that, of
    chunks of which one has a sample less than others, would be of any size."""
    if s >= workers:
        pytest.skip("not so many stragglers")
    code = CyclicCode("x", workers, s)
    samples = np.where(np.arange(workers) % 2, 32.0, 31.0)
    gradients = np.stack([samples * np.where(np.arange(workers) % 3, 0.9, 1.1), samples], axis=1)
    for missing in range(workers):
        for stragglers in combinations(range(workers), missing):
            done = done_by(code, without(workers, stragglers))
            total, weight = sum_of(code, gradients, done)
            if weight:
                assert 0.5 < total / weight < 1.5
            else:
                assert total == 0
                assert not code.recovery(done).exact
                assert code.recovery(done).error == code.chunks


@pytest.mark.parametrize("code", [CyclicCode("x", 7, 2), RegularCode("x", 8, 3), FractionalCode("x", 7, 2)])
def test_the_sum_is_what_coverage_says(code: LinearCode) -> None:
    gradients = np.random.default_rng(1).standard_normal((code.chunks, 10))
    for missing in range(code.workers + 1):
        for stragglers in combinations(range(code.workers), missing):
            done = done_by(code, without(code.workers, stragglers))
            np.testing.assert_allclose(
                sum_of(code, gradients, done), code.recovery(done).coverage @ gradients, atol=1e-7
            )


def test_only_complete_workers_count() -> None:
    code = CyclicCode("x", 4, 1)
    assert code.brings((2, 1, 2, 0)) == (True, False, True, False)
    assert code.encoding(1, (2, 1, 2, 2)).tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize(("workers", "s"), [(6, 1), (7, 1), (7, 2), (11, 3), (5, 4), (3, 2)])
def test_fractional_groups(workers: int, s: int) -> None:
    code = FractionalCode("x", workers, s)
    assert len(code.groups) == workers // (s + 1)
    assert sorted(sum(code.groups, ())) == list(range(workers))
    assert min(map(len, code.groups)) >= s + 1
    assert set(code.assignment.loads.tolist()) == {s + 1}
    for group in code.groups:
        assert len({frozenset(code.assignment.orders[worker]) for worker in group}) == 1
    whole = tuple(code.assignment.loads.tolist())
    assert sum(code.brings(whole)) == len(code.groups), "one of each group is enough"
    alone = without(workers, code.groups[0])
    assert code.decoding(alone).residual == s + 1


def test_fractional_survives_more_than_it_promises() -> None:
    code = FractionalCode("x", 12, 2)
    assert code.decoding(without(12, [w for w in range(12) if w not in {group[-1] for group in code.groups}])).exact


@pytest.mark.parametrize("kind", CODES)
@pytest.mark.parametrize("s", [0, 4])
def test_bounds(kind: type[CyclicCode | FractionalCode], s: int) -> None:
    with pytest.raises(ConfigError, match="must be 1 to 3, not"):
        kind("x", 4, s)


def test_coefficients_magnify_little() -> None:
    assert magnified(FractionalCode("x", 6, 1), (0, *(2,) * 5)) == 1
    assert magnified(CyclicCode("x", 6, 1), (0, *(2,) * 5)) == pytest.approx(1)
    assert 2 < magnified(CyclicCode("x", 7, 1), (0, *(2,) * 6)) < 100
    assert 1 < magnified(RegularCode("x", 8, 3), (0, 0, *(3,) * 6)) < 100
    assert magnified(CyclicCode("x", 6, 1), (0,) * 6) == 0


def test_regular_is_exact_with_all_and_approximate_without() -> None:
    code = RegularCode("x", 30, 6)
    everybody = code.decoding(without(30, ()))
    assert everybody.exact
    np.testing.assert_allclose(everybody.vector, 1 / 6, atol=1e-12)
    errors = [code.decoding(without(30, range(k))).residual for k in (1, 4, 8, 15)]
    assert errors == sorted(errors)
    assert errors[1] < 2, "four workers' chunks are with others, too"


def test_uncoded() -> None:
    code = UncodedCode("none", 3)
    assert code.recovery((1, 1, 1)).exact
    recovery = code.recovery((1, 0, 1))
    assert (recovery.exact, recovery.error, recovery.coverage.tolist()) == (False, 1.0, [1, 0, 1])
    assert code.brings((1, 0, 1)) == (True, False, True)


def test_first() -> None:
    code = FirstCode("first:s=2", 5, 2)
    assert [code.recovery((1,) * k + (0,) * (5 - k)).enough for k in range(6)] == [
        False,
        False,
        False,
        True,
        True,
        True,
    ]
    assert [code.recovery((1,) * k + (0,) * (5 - k)).exact for k in range(6)] == [False] * 5 + [True]
    assert code.recovery((1, 1, 1, 0, 0)).error == 2
    with pytest.raises(ConfigError, match="must be 0 to 4, not 5"):
        FirstCode("first:s=5", 5, 5)


def test_coefficients_of_another_assignment() -> None:
    with pytest.raises(ConfigError, match="not of this assignment"):
        LinearCode("x", Assignment(2, ((0,), (1,))), np.ones((2, 2)))


@pytest.mark.parametrize(("workers", "s"), [(57, 15), (100, 20)])
def test_when_all_is_computed_nobody_is_waited_for(workers: int, s: int) -> None:
    """Of these not even all make a sum that rounding leaves exact: a round that waits for one never ended."""
    code = CyclicCode("x", workers, s)
    whole = code.recovery(code.loads)
    assert (whole.exact, whole.enough) == (False, True)
    assert whole.coverage.min() > 0.1
    assert not code.recovery((*code.loads[:-1], 0)).enough
    assert CyclicCode("x", 9, 2).recovery((3,) * 9).exact
