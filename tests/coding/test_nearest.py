"""What is made of fewer workers than a code can do without: an average of chunks' gradients, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from edgepeer.coding.cyclic import CyclicCode
from edgepeer.coding.linear import LinearCode
from edgepeer.coding.nearest import nearest
from edgepeer.coding.regular import RegularCode

Array = NDArray[np.float64]


def subsets(count: int, fewest: int = 0) -> Iterator[list[int]]:
    return map(list, chain.from_iterable(combinations(range(count), k) for k in range(fewest, count + 1)))


def there(workers: int, those: list[int]) -> NDArray[np.bool_]:
    out = np.zeros(workers, np.bool_)
    out[those] = True
    return out


def projected(matrix: Array, zero: list[int]) -> Array:
    """What of all ones lies among the A r that are 0 in these chunks."""
    space = np.linalg.svd(matrix)[0][:, : np.linalg.matrix_rank(matrix)]
    if zero:
        _, sizes, rows = np.linalg.svd(space[zero])
        space = space @ rows[np.count_nonzero(sizes > 1e-9) :].T
    return np.asarray(space @ space.sum(axis=0))


def best(matrix: Array) -> Array:
    """Of all sets of chunks that may be held at 0, what is nearest, with none below 0."""
    found = [projected(matrix, zero) for zero in subsets(len(matrix))]
    return min((each for each in found if each.min() > -1e-9), key=lambda each: ((each - 1) ** 2).sum())


@pytest.mark.parametrize(("workers", "s"), [(3, 1), (4, 2), (5, 3), (6, 2), (6, 4), (7, 3)])
def test_nothing_that_is_not_below_zero_is_nearer(workers: int, s: int) -> None:
    coefficients, negative = CyclicCode("x", workers, s).coefficients, 0
    for those in subsets(workers, 1):
        matrix = coefficients[:, those]
        short = np.linalg.pinv(matrix).sum(axis=1)
        found = nearest(matrix, np.ones(workers))
        if (matrix @ short).min() > -1e-9:
            np.testing.assert_allclose(found, short, atol=1e-9)
        else:
            negative += 1
            np.testing.assert_allclose(matrix @ found, best(matrix), atol=1e-9)
    assert negative or s == 1, "there are sets to be tried"


CODES: list[LinearCode] = [CyclicCode("x", workers, s) for workers in range(3, 11) for s in range(1, min(5, workers))]
CODES += [RegularCode("x", 9, 4), RegularCode("x", 10, 3)]


@pytest.mark.parametrize("code", CODES, ids=lambda code: f"{type(code).__name__}-{code.workers}-{code.loads[0]}")
def test_a_mean_lies_between_those_of_the_chunks(code: LinearCode) -> None:
    """Of whatever batches; by least squares alone it was off by any number of times the longest gradient."""
    rng = np.random.default_rng(code.workers)
    gradients = rng.standard_normal((code.chunks, 5))
    samples = rng.choice([0.0, 1.0, 2.0, 64.0], (code.chunks, 5))
    for those in subsets(code.workers):
        found = code.decoding(there(code.workers, those))
        assert found.coverage.min() > -1e-8
        covered = code.coefficients @ found.vector
        np.testing.assert_allclose(covered, found.coverage, atol=1e-8)
        if covered.any():
            assert covered @ covered > 0.43
            weights = covered @ samples
            means = (covered[:, None] * samples * gradients).sum(axis=0) / np.where(weights > 1e-6, weights, np.inf)
            assert (means <= np.maximum(gradients.max(axis=0), 0) + 1e-6).all()
            assert (means >= np.minimum(gradients.min(axis=0), 0) - 1e-6).all()
            if not found.exact:
                assert found.residual == pytest.approx(code.chunks - covered @ covered, abs=1e-6)
        else:
            assert found.residual == code.chunks


@pytest.mark.parametrize("workers", range(3, 11))
def test_short_weights_are_no_sign_of_a_good_sum(workers: int) -> None:
    """Why the weights' length is not what a sum is judged by: those with the worst signs are short."""
    for s in range(2, min(5, workers)):
        code = CyclicCode("x", workers, s)
        exact, worst = 0.0, 0.0
        for those in subsets(workers, 1):
            short = np.linalg.pinv(code.coefficients[:, those]).sum(axis=1)
            covered = code.coefficients[:, those] @ short
            if np.abs(covered - 1).max() < 1e-9:
                exact = max(exact, float(np.linalg.norm(short)))
            elif covered.min() < -0.1:
                worst = max(worst, float(np.linalg.norm(short)))
        assert worst < exact


class ElsewhereRounded(LinearCode):
    """The same code at a machine that adds up in another order."""

    def _nearest(self, there: NDArray[np.bool_], rank: float) -> Array:
        out, turned = np.zeros(self.workers), np.flatnonzero(there)[::-1]
        out[turned] = nearest(self.coefficients[::-1, turned], np.ones(self.chunks), rank=rank)
        return out


@pytest.mark.parametrize(("workers", "s"), [(20, 6), (40, 8), (100, 5), (100, 16), (100, 20)])
def test_machines_that_round_otherwise_make_one_sum(workers: int, s: int) -> None:
    """Each solves for its own weight. Of `cyclic` with many missing, those of two machines had nothing in common."""
    code, rng = CyclicCode("x", workers, s), np.random.default_rng(0)
    other = ElsewhereRounded("x", code.assignment, code.coefficients)
    samples = rng.standard_normal((code.chunks, 50))
    for _ in range(20):
        those = there(workers, rng.permutation(workers)[: rng.integers(workers - s - s // 2, workers + 1)].tolist())
        found, theirs = code.decoding(those), other.decoding(those)
        assert found.exact == theirs.exact
        assert found.vector.any() == theirs.vector.any()
        if those.sum() >= workers - s:
            assert found.vector.any()
        ours = rng.random(workers) < 0.5
        mixed = np.where(ours, found.vector, theirs.vector)
        np.testing.assert_allclose(code.coefficients @ mixed, found.coverage, atol=0.001)
        parts = (code.coefficients * mixed).astype(np.float32)
        total = (parts.T @ samples.astype(np.float32)).sum(axis=0)
        wanted = found.coverage @ samples
        assert np.linalg.norm(total - wanted) <= 0.03 * np.linalg.norm(wanted)
