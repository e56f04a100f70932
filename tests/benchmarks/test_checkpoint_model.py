"""The expected time with errors and checkpoints: Theorem 2 of CodeNet, corrected, and what the paper measured."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from checkpoint_model import (
    Outcomes,
    codenet_outcomes,
    expected_period,
    expected_time,
    optimal_interval,
    polydot_outcomes,
    replication_outcomes,
    step_time,
    young_interval,
)

from edgepeer.errors import ConfigError

P = 3e-4
"""A node's chance of an error in a step, in the experiment of CodeNet, §III-D: 3 layers on 5 x 4 blocks."""
CODENET = codenet_outcomes(P, 5, 4, 1, 3)
TWICE = replication_outcomes(P, 20, 2, 3)
THRICE = replication_outcomes(P, 20, 3, 3)


def simulated_period(interval: int, outcomes: Outcomes, clean: float, with_errors: float, runs: int) -> float:
    """The chain of Appendix D, walked by many at once: their mean time from one checkpoint to the next."""
    rng = np.random.default_rng(interval)
    at, total = np.zeros(runs, np.int64), 0.0
    while at.size:
        drawn = rng.random(at.size)
        total += float(np.where(drawn < outcomes.clean, clean, with_errors).sum())
        at = np.where(drawn < outcomes.clean + outcomes.corrected, at + 1, 0)
        at = at[at < interval]
    return total / runs


@pytest.mark.parametrize(
    ("interval", "outcomes"),
    [(1, Outcomes(0.6, 0.2, 0.2)), (5, Outcomes(0.7, 0.2, 0.1)), (20, Outcomes(0.9, 0.0, 0.1))],
)
def test_the_expected_period_is_the_mean_of_simulated_ones(interval: int, outcomes: Outcomes) -> None:
    step = step_time(outcomes, 1, 10)
    expected = expected_period(interval, step, outcomes.lost)
    found = simulated_period(interval, outcomes, 1, 10, 100_000)
    assert found == pytest.approx(expected, rel=0.01)
    printed = expected * (1 - outcomes.lost)
    assert abs(found - printed) > 0.05 * expected, "the paper's sum starts one term too early"


def test_an_interval_of_one_by_hand() -> None:
    """c / q: each attempt takes c, and one in 1 / q succeeds."""
    assert expected_period(1, 4.6, 0.2) == pytest.approx(5.75)
    assert expected_time(100, 1, 2.0, 4.6, 0.2) == pytest.approx(775)


def test_without_losses_and_with_nothing_but_losses() -> None:
    assert expected_period(7, 2.0, 0.0) == 14
    assert expected_period(7, 2.0, 1e-18) == pytest.approx(14, rel=1e-15)
    assert expected_period(7, 2.0, 1.0) == math.inf
    assert expected_period(10**6, 2.0, 0.5) == math.inf, "beyond a float, but not an error"
    assert optimal_interval(75, 1, 0.0, 2000) == 2000
    assert optimal_interval(75, 1, 1.0, 2000) == 1
    assert young_interval(75, 1, 0.0) == math.inf


def test_table_1_of_replication_is_explained_by_two_numbers() -> None:
    """360 chances of an error an iteration. The time is linear in tau_cpt and c: these two are fitted, relatively."""
    intervals, seconds = (10, 20, 30), np.array([18453.0, 14140.0, 19238.0])
    rows = [[2000 / i, expected_time(2000, i, 0.0, 1.0, TWICE.lost)] for i in intervals]
    fitted = np.linalg.lstsq(np.array(rows) / seconds[:, None], np.ones(3))[0]
    assert fitted[0] == pytest.approx(75.3, abs=0.3)
    assert fitted[1] == pytest.approx(0.89, abs=0.005)
    assert np.array(rows) @ fitted == pytest.approx(seconds, rel=0.004)
    assert np.array(rows) @ fitted == pytest.approx([18435, 14189, 19220], rel=1e-3)


def test_table_1_of_codenet_is_mostly_its_ten_checkpoints() -> None:
    """2322 s with I = 200: 753 s of checkpoints, and 0.74 s a step."""
    assert 2000 / 200 * 75.3 == 753
    step = (2322 - 753) / expected_time(2000, 200, 0.0, 1.0, CODENET.lost)
    assert step == pytest.approx(0.743, abs=0.001)


def test_chances_of_the_paper_s_experiment() -> None:
    assert TWICE.clean == pytest.approx((1 - P) ** 360)
    assert TWICE.corrected == pytest.approx(0, abs=1e-15)
    assert CODENET.lost == pytest.approx(5.3e-4, abs=0.05e-4)
    chances = 3 * 38 * 3
    bound = 1 - (1 - P) ** chances - chances * P * (1 - P) ** (chances - 1)
    assert bound == pytest.approx(4.9e-3, abs=0.1e-3), "what the paper's bound comes to"


def best_time(outcomes: Outcomes, checkpoint: float, step: float) -> float:
    interval = optimal_interval(checkpoint, step, outcomes.lost, 2000)
    return expected_time(2000, interval, checkpoint, step, outcomes.lost)


@pytest.mark.parametrize(("checkpoint", "ratio"), [(75, 7.1), (10, 3.2), (1, 1.8), (0.1, 1.45)])
def test_what_codenet_gains_depends_on_the_price_of_a_checkpoint(checkpoint: float, ratio: float) -> None:
    """Over replication, both at their best intervals, with the fitted times of a step."""
    assert best_time(TWICE, checkpoint, 0.89) / best_time(CODENET, checkpoint, 0.74) == pytest.approx(ratio, rel=0.03)


def test_three_copies_are_as_fast_as_codenet_where_checkpoints_are_cheap() -> None:
    assert best_time(CODENET, 1, 0.74) / best_time(THRICE, 1, 0.74) == pytest.approx(1.02, abs=0.01)
    assert best_time(CODENET, 0.1, 0.74) / best_time(THRICE, 0.1, 0.74) == pytest.approx(1.01, abs=0.01)


@pytest.mark.parametrize(("errors", "ratio"), [(0.1, 2.1), (1, 1.80), (2, 2.36), (5, 5.8), (10, 11.0)])
def test_figure_3_with_the_corrected_formula(errors: float, ratio: float) -> None:
    """Poisson errors, one of them corrected, tau_cpt = tau_b = 1000, tau_f = 1: the ratio diverges."""
    clean, one = math.exp(-errors), errors * math.exp(-errors)
    times = []
    for outcomes in (Outcomes(clean, 0, 1 - clean), Outcomes(clean, one, 1 - clean - one)):
        step = step_time(outcomes, 1, 1000)
        interval = optimal_interval(1000, step, outcomes.lost, 10_000)
        times.append(expected_time(1, interval, 1000, step, outcomes.lost))
    assert times[0] / times[1] == pytest.approx(ratio, rel=0.02)


@pytest.mark.parametrize("errors", [2, 5, 10])
def test_figure_3_would_not_diverge_with_the_printed_formula(errors: float) -> None:
    """The printed sum is the right one times q. With I = 1 it costs c, whatever is lost: so from 2 errors an iteration
    on that is best for both schemes, and they are equal."""
    clean, one = math.exp(-errors), errors * math.exp(-errors)
    times = []
    for lost in (1 - clean, 1 - clean - one):
        step = clean + 1000 * (1 - clean)
        printed = [(1000 + (1 - lost) * expected_period(i, step, lost)) / i for i in range(1, 200)]
        assert printed[0] == pytest.approx(1000 + step)
        times.append(min(printed))
    assert times[0] / times[1] == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("lost", [0.0, 1e-6, 1e-3, 0.1, 0.9])
@pytest.mark.parametrize("checkpoint", [0.0, 0.3, 20.0, 500.0])
def test_the_optimal_interval_is_the_best_of_all(checkpoint: float, lost: float) -> None:
    times = [expected_time(1, interval, checkpoint, 1.5, lost) for interval in range(1, 401)]
    best = optimal_interval(checkpoint, 1.5, lost, 400)
    assert times[best - 1] == pytest.approx(min(times), rel=1e-12)


def test_young_s_interval_is_the_best_while_losses_are_rare() -> None:
    young = young_interval(20, 1.5, 1e-5)
    assert young == pytest.approx(1633, abs=1)
    assert optimal_interval(20, 1.5, 1e-5, 10**6) == pytest.approx(young, rel=0.01)


def patterns(chances: int, p: float) -> tuple[np.ndarray, np.ndarray]:
    """All that can happen, shape (2^chances, chances), and how probable each is."""
    happens = (np.arange(2**chances)[:, None] >> np.arange(chances) & 1).astype(bool)
    return happens, np.prod(np.where(happens, p, 1 - p), axis=1)


def assert_outcomes(found: Outcomes, happens: np.ndarray, probable: np.ndarray, lost: np.ndarray) -> None:
    clean = ~happens.any(axis=1)
    assert found.clean == pytest.approx(probable[clean].sum(), rel=1e-12)
    assert found.lost == pytest.approx(probable[lost].sum(), rel=1e-12)
    assert found.corrected == pytest.approx(probable[~clean & ~lost].sum(), rel=1e-9)


def test_polydot_s_chances_against_all_patterns() -> None:
    nodes, layers = 3, 2
    happens, probable = patterns(3 * nodes * layers, 0.07)
    steps = happens.reshape(-1, layers, 3, nodes)
    forward, backward = (steps[:, :, 0] | steps[:, :, 2]).sum(-1), steps[:, :, 1].sum(-1)
    lost = ((forward > 2) | (backward > 1)).any(axis=1)
    assert_outcomes(polydot_outcomes(0.07, nodes, 2, 1, layers), happens, probable, lost)


def test_replication_s_chances_against_all_patterns() -> None:
    happens, probable = patterns(3 * 2 * 3, 0.07)
    steps = happens.reshape(-1, 3, 2, 3)  # steps, blocks, copies
    lost = ((steps[:, 0] | steps[:, 2]).sum(-1) > 1) | (steps[:, 1].sum(-1) > 1)
    assert_outcomes(replication_outcomes(0.07, 2, 3, 1), happens, probable, lost.any(axis=1))


def test_codenet_s_chances_against_all_patterns() -> None:
    """m = 2, n = 1, t = 1: the cells of a 4 x 3 grid without those that are parity both ways."""
    m, n, t, p = 2, 1, 1, 0.07
    cells = [(i, j) for i, j in itertools.product(range(m + 2 * t), range(n + 2 * t)) if i < m or j < n]
    chances = (
        [("O1", c) for c in cells if c[1] < n] + [("O2", c) for c in cells if c[0] < m] + [("O3", c) for c in cells]
    )
    happens, probable = patterns(len(chances), p)

    def bad(seen: list[tuple[str, tuple[int, int]]]) -> np.ndarray:
        return happens[:, [chances.index(each) for each in seen]].any(axis=1)

    rows = sum(bad([(s, (i, j)) for s in ("O1", "O3") for j in range(n)]).astype(int) for i in range(m + 2 * t))
    columns = sum(
        bad([(s, (i, j)) for s in ("O2", "O3") for i in range(m) if s == "O2" or j >= n]).astype(int)
        for j in range(n + 2 * t)
    )
    assert_outcomes(codenet_outcomes(p, m, n, t, 1), happens, probable, (rows > t) | (columns > t))


def test_the_smallest_chances_keep_their_digits() -> None:
    """Two of three copies, in one of 2 x 20 x 3 votes, one with twice the chances."""
    found = replication_outcomes(1e-15, 20, 3, 3)
    assert found.lost == pytest.approx(60 * 3 * (4 + 1) * 1e-30, rel=1e-9)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="add up to 1"):
        Outcomes(0.5, 0.5, 0.5)
    with pytest.raises(ConfigError, match="at least 1"):
        expected_period(0, 1.0, 0.1)
    with pytest.raises(ConfigError, match="between 0 and 1, not 2"):
        polydot_outcomes(2.0, 12, 3, 3, 2)
