"""How often to save, and how long training takes in the end: the expected time with errors and checkpoints.

Dutta, Bai, Low, Grover, "CodeNet", Theorem 2 and Appendix D. A period is `I` iterations and one checkpoint. Each
iteration ends in one of three ways:

    p0   no error                             it took tau_f, go on
    p1   errors, all corrected                it took tau_b, go on
    p2   errors that can't be corrected       it took tau_b, back to the last checkpoint

With q = p0 + p1 and c = tau_f p0 + tau_b (1 - p0), the mean time of an iteration, let T_k be the time to get k
iterations past the checkpoint. Conditioned on how the last of them ends,

    E[T_k] = E[T_{k-1}] + c + p2 E[T_k],  T_0 = 0     so     E[T_k] = c (1/q + ... + 1/q^k) = c (q^-k - 1) / (1 - q),

    E[time of M iterations] = (M / I) (tau_cpt + c (q^-I - 1) / (1 - q)).

The paper prints a sum from 1/q^0 on, which is too small by the factor q: its base case drops p2 E[T_1]. The generalized
PolyDot paper takes the model over from there.

What depends on the code is p0, p1 and p2. Here they come from p, the chance that a node errs in one of the steps O1
(forward product), O2 (backward product) and O3 (update), independently of everything else. What is corrected is exact:
sums over binomial distributions, not the paper's bound that counts every two errors of an iteration as a loss. An error
in O3 is in the stored weights, and is seen by the first product that reads them: that product meets both steps' errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from edgepeer.errors import ConfigError

__all__ = [
    "Outcomes",
    "codenet_outcomes",
    "expected_period",
    "expected_time",
    "optimal_interval",
    "polydot_outcomes",
    "replication_outcomes",
    "step_time",
    "young_interval",
]


@dataclass(frozen=True, slots=True)
class Outcomes:
    """How an iteration ends: probabilities that add up to 1."""

    clean: float
    """p0: without an error."""
    corrected: float
    """p1: with errors, all of them corrected."""
    lost: float
    """p2: with errors that send everybody back to the last checkpoint."""

    def __post_init__(self) -> None:
        values = (self.clean, self.corrected, self.lost)
        if not all(0 <= value <= 1 for value in values) or not math.isclose(sum(values), 1, rel_tol=1e-12):
            raise ConfigError(f"the probabilities of an iteration's three outcomes must add up to 1: they are {values}")


def step_time(outcomes: Outcomes, clean: float, with_errors: float) -> float:
    """c = tau_f p0 + tau_b (1 - p0): the mean time of an iteration, whatever became of it, in the unit given.

    Args:
        clean: tau_f, an iteration's time without errors.
        with_errors: tau_b, the time of an iteration that corrects errors or goes back to the checkpoint.
    """
    return clean * outcomes.clean + with_errors * (1 - outcomes.clean)


def expected_period(interval: int, step: float, lost: float) -> float:
    """E[T_I] = c (q^-I - 1) / (1 - q): the time of `interval` iterations in a row, with all that are done again.

    Args:
        step: c, the mean time of an iteration; any unit, and the result has the same.
        lost: p2 = 1 - q, the chance that an iteration sends back to the checkpoint.

    Returns:
        Infinity if that is beyond a float's range, or if no iteration can succeed.

    Raises:
        ConfigError: the interval is below 1, the time not above 0, or the chance not between 0 and 1.
    """
    _check(interval, step, lost)
    if lost == 0:
        return interval * step
    if lost == 1:
        return math.inf
    try:
        return step * math.expm1(-interval * math.log1p(-lost)) / lost  # exact for the smallest p2
    except OverflowError:
        return math.inf


def expected_time(iterations: int, interval: int, checkpoint: float, step: float, lost: float) -> float:
    """(M / I) (tau_cpt + E[T_I]): the time of M iterations with a checkpoint after every `interval` (Theorem 2).

    Args:
        iterations: M.
        checkpoint: tau_cpt, the time to save; `step` and `lost` are those of `expected_period`.
    """
    return iterations / interval * (checkpoint + expected_period(interval, step, lost))


def optimal_interval(checkpoint: float, step: float, lost: float, longest: int) -> int:
    """The interval, 1 to `longest`, with which training takes the least time.

    (tau_cpt + E[T_I]) / I falls, then rises: E[T_I] is convex in I, so each interval's chord from (0, -tau_cpt) turns
    once. The smallest I whose successor is no better is found by bisection.

    Args:
        longest: the number of iterations, say: without errors there is nothing to save for.
    """
    _check(longest, step, lost)

    def better_later(interval: int) -> bool:
        now = expected_time(1, interval, checkpoint, step, lost)
        return math.isfinite(now) and expected_time(1, interval + 1, checkpoint, step, lost) < now

    low, high = 1, longest
    while low < high:
        middle = (low + high) // 2
        if better_later(middle):
            low = middle + 1
        else:
            high = middle
    return low


def young_interval(checkpoint: float, step: float, lost: float) -> float:
    """sqrt(2 tau_cpt / (c p2)), in iterations: Young 1974, "A first order approximation to the optimum checkpoint
    interval".

    What `optimal_interval` comes to while few periods meet a loss, I p2 << 1: then the period costs
    tau_cpt / I + c (1 + (I + 1) p2 / 2) an iteration. It needs no more than a count: p2 as losses per iteration so far,
    or c / p2 as the mean time between losses, of whatever cause.
    """
    _check(1, step, lost)
    return math.inf if lost == 0 else math.sqrt(2 * checkpoint / (step * lost))


def replication_outcomes(p: float, blocks: int, copies: int, layers: int) -> Outcomes:
    """Each of the blocks at `copies` nodes, which compare after O1 and O2, and go by the majority: (copies - 1) // 2
    wrong ones of a block are corrected. Two copies correct nothing: then p1 = 0, and p0 = (1 - p)^(6 blocks layers).

    Args:
        p: chance that a node errs in one step, independently.
        blocks: K; blocks * copies nodes in all.
        layers: each has the steps O1, O2 and O3.
    """
    correctable = (copies - 1) // 2
    block = [_more_than(correctable, [_any(p, 2)] * copies), _more_than(correctable, [p] * copies)]
    return _outcomes(p, 3 * blocks * copies * layers, block * (blocks * layers))


def codenet_outcomes(p: float, m: int, n: int, t: int, layers: int) -> Outcomes:
    """A grid of m x n nodes with 2t more rows and 2t more columns: up to t wrong lines a step are corrected.

    O1 is checked by rows (m + 2t, of n nodes each) and meets the errors of O1 and of the O3 before. O2 is checked by
    columns (n + 2t, of m nodes each); what O3 did to the 2t parity columns, O1 doesn't read, so O2 meets it. Several
    wrong nodes of a line count once (ibid., §IV).

    Args:
        p: chance that a node errs in a step it takes part in. All nodes are in O3, but (m + 2t) n in O1 and m (n + 2t)
            in O2: less than the 3 (mn + 2t (m + n)) chances a layer of the paper.
    """
    rows, columns = m + 2 * t, n + 2 * t
    forward = _more_than(t, [_any(p, 2 * n)] * rows)
    backward = _more_than(t, [_any(p, m)] * n + [_any(p, 2 * m)] * (2 * t))
    chances = rows * n + m * columns + m * n + 2 * t * (m + n)
    return _outcomes(p, chances * layers, [forward, backward] * layers)


def polydot_outcomes(p: float, nodes: int, forward: int, backward: int, layers: int) -> Outcomes:
    """Generalized PolyDot: `forward` wrong nodes are corrected after O1, which also meets the errors of the O3 before,
    and `backward` after O2 (Dutta et al., "A unified coded deep neural network training strategy", Remark 11).

    Args:
        p: chance that a node errs in one step, independently.
    """
    checks = [_more_than(forward, [_any(p, 2)] * nodes), _more_than(backward, [p] * nodes)]
    return _outcomes(p, 3 * nodes * layers, checks * layers)


def _any(p: float, chances: int) -> float:
    """1 - (1 - p)^chances."""
    if not 0 <= p <= 1:
        raise ConfigError(f"a node's chance of an error in a step must be between 0 and 1, not {p}")
    return 1.0 if p == 1 else -math.expm1(chances * math.log1p(-p))


def _more_than(most: int, wrong: Sequence[float]) -> float:
    """The chance that more than so many of independent events happen: their count's distribution, event by event.

    What goes beyond is added up, not taken from 1: a chance of 1e-30 keeps its digits.
    """
    counts, beyond = [1.0, *[0.0] * most], 0.0
    for p in wrong:
        beyond += counts[most] * p
        counts = [count * (1 - p) + before * p for before, count in zip([0.0, *counts], counts, strict=False)]
    return beyond


def _outcomes(p: float, chances: int, failing: Sequence[float]) -> Outcomes:
    """What an iteration comes to with so many chances of an error and checks that fail with these probabilities."""
    clean = 1.0 - _any(p, chances)
    lost = 1.0 if 1.0 in failing else -math.expm1(math.fsum(math.log1p(-chance) for chance in failing))
    lost = min(lost, 1 - clean)  # equal where nothing can be corrected, but for the last digit
    return Outcomes(clean, 1 - clean - lost, lost)


def _check(interval: int, step: float, lost: float) -> None:
    if interval < 1 or step <= 0 or not 0 <= lost <= 1:
        raise ConfigError(
            f"{interval} iterations of {step} s, each lost with probability {lost}: these must be at least 1, above 0, "
            "and between 0 and 1"
        )
