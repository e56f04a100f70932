"""Evaluation points: the rule, their order and factors, and what losing some of them costs."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from edgepeer.coding.matrix.nodes import (
    Kind,
    evaluation_points,
    group_of,
    kind_for,
    scales,
    vandermonde,
    worst_loss,
)
from edgepeer.errors import ConfigError


def test_the_rule() -> None:
    assert [kind_for(q, np.dtype(np.float32)) for q in (1, 11, 12)] == ["real", "real", "pairs"]
    assert [kind_for(q, np.dtype(np.float64)) for q in (1, 19, 20)] == ["real", "real", "pairs"]
    with pytest.raises(ConfigError, match="float32 and float64 can"):
        kind_for(3, np.dtype(np.float16))


@pytest.mark.parametrize("count", [1, 2, 3, 12, 37, 40, 180])
def test_points_are_chebyshev_s_and_half_of_the_roots_of_minus_one(count: int) -> None:
    real, pairs = evaluation_points(count, "real"), evaluation_points(count, "pairs")
    assert np.sort(real) == pytest.approx(np.sort(np.cos(np.pi * (np.arange(count) + 0.5) / count)), abs=1e-15)
    assert np.abs(pairs ** (2 * count) + 1).max() < 1e-12
    assert pairs.imag.min() > 0, "none is real or its own conjugate: two equations each"


@pytest.mark.parametrize("count", [5, 12, 40, 61])
def test_nodes_in_a_row_are_far_from_each_other_on_the_curve(count: int) -> None:
    angles = np.angle(evaluation_points(count, "pairs")) / (np.pi / count)
    for run in range(2, max(3, count // 8)):
        for start in range(count - run):
            between = np.diff(np.sort(angles[start : start + run]))
            assert between.min() > 1.5, "none are neighbours"


def test_factors_are_near_one() -> None:
    found = scales(1000)
    assert found.min() >= 2**-0.25
    assert found.max() <= 2**0.25
    assert len(np.unique(found.round(9))) == 1000


def equal_errors_look_like_a_third(generator: NDArray[np.float64]) -> float:
    """The sine of the least angle between h_a + h_b or h_a - h_b and another h_c, over all of them."""
    checks = np.linalg.qr(generator, mode="complete").Q[:, generator.shape[1] :]
    least = 1.0
    for a, b in combinations(range(len(checks)), 2):
        others = np.delete(checks, [a, b], axis=0)
        others /= np.linalg.norm(others, axis=1, keepdims=True)
        for both in (checks[a] + checks[b], checks[a] - checks[b]):
            cosines = others @ both / np.linalg.norm(both)
            least = min(least, float(np.sqrt(max(0.0, 1 - (cosines**2).max()))))
    return least


@pytest.mark.parametrize("count", [5, 7, 9, 12])
def test_equal_errors_at_two_nodes_do_not_look_like_one_at_a_third(count: int) -> None:
    """With two nodes more than needed, at real points; without factors they can."""
    with_factors = vandermonde(count, "real", count - 2)
    assert equal_errors_look_like_a_third(with_factors) > 2e-4
    if count % 2:
        assert equal_errors_look_like_a_third(with_factors / scales(count)[:, None]) < 1e-7


def test_without_losses_pairs_are_orthogonal_at_every_size() -> None:
    generator = vandermonde(40, "pairs", 80) / np.repeat(scales(40), 2)[:, None]
    assert generator.T @ generator == pytest.approx(40 * np.eye(80), abs=1e-11)
    assert np.linalg.cond(vandermonde(180, "pairs", 300)) < 1.42, "the price of the factors: sqrt 2 at most"


def test_the_condition_of_chebyshev_s_points_grows_as_the_rule_assumes() -> None:
    sizes = np.arange(5, 20)
    conditions = [np.linalg.cond(vandermonde(q, "real", q)) for q in sizes]
    slope = np.polyfit(sizes, np.log(conditions), 1)[0]
    assert slope == pytest.approx(math.log(1 + math.sqrt(2)), rel=0.1)


def brute_force(generator: NDArray[np.float64], group: int, wanted: NDArray[np.int64], lost: int) -> float:
    nodes, worst = len(generator) // group, 0.0
    for left in combinations(range(nodes), nodes - lost):
        rows = (np.array(left)[:, None] * group + np.arange(group)).ravel()
        worst = max(worst, np.linalg.norm(np.linalg.pinv(generator[rows])[wanted], axis=1).max())
    return worst


@pytest.mark.parametrize(
    ("count", "kind", "threshold", "lost"),
    [(7, "real", 4, 3), (9, "real", 5, 2), (9, "real", 5, 0), (8, "pairs", 9, 3), (8, "pairs", 15, 0)],
)
def test_the_worst_loss_is_the_worst_of_all(count: int, kind: Kind, threshold: int, lost: int) -> None:
    generator, wanted = vandermonde(count, kind, threshold), np.array([1, 3])
    found = worst_loss(generator, group_of(kind), wanted, np.ones(len(generator)), lost)
    assert found.exhaustive
    assert len(found.nodes) == lost
    assert found.amplification == pytest.approx(brute_force(generator, group_of(kind), wanted, lost), rel=1e-6)


@pytest.mark.parametrize(("kind", "threshold"), [("real", 11), ("pairs", 45)])
def test_with_too_many_sets_to_try_it_finds_worse_than_random_ones(kind: Kind, threshold: int) -> None:
    generator, wanted, rng = (
        vandermonde(40, kind, threshold),
        np.arange(threshold // 2, threshold),
        np.random.default_rng(5),
    )
    sizes = np.ones(len(generator))
    found = worst_loss(generator, group_of(kind), wanted, sizes, 6)
    assert not found.exhaustive
    rng = np.random.default_rng(5)
    for _ in range(200):
        lost = rng.choice(40, 6, replace=False)
        rows = np.repeat(~np.isin(np.arange(40), lost), group_of(kind))
        assert np.linalg.norm(np.linalg.pinv(generator[rows])[wanted], axis=1).max() <= found.amplification


def test_more_losses_than_there_are_nodes_to_spare() -> None:
    generator = vandermonde(6, "pairs", 9)
    assert worst_loss(generator, 2, np.array([0]), np.ones(12), 2).amplification == math.inf
    assert worst_loss(generator, 2, np.array([0]), np.ones(12), 1).amplification < 10


def test_ten_of_forty_lost_in_a_row_cost_little_in_this_order() -> None:
    """K = 25 at pairs, forward and backward: neighbours in number are not neighbours on the circle."""
    for threshold, factor in ((29, 100), (45, 1e4)):
        generator = vandermonde(40, "pairs", threshold)
        curve = np.argsort(np.angle(evaluation_points(40, "pairs")))

        def condition(lost: NDArray[np.int64], of: NDArray[np.float64] = generator) -> float:
            return float(np.linalg.cond(of[np.repeat(~np.isin(np.arange(40), lost), 2)]))

        in_order = max(condition(np.arange(start, start + 10)) for start in range(31))
        on_curve = max(condition(curve[start : start + 10]) for start in range(31))
        assert in_order * factor < on_curve
