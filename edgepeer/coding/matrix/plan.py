"""A PolyDot code for a wish: what it takes and gives in each direction, or why it can't be had.

P nodes bring P g equations (g = 1 at real points, 2 at pairs) for Q coefficients. ceil(Q / g) nodes are enough, so with
r = P - ceil(Q / g) more than that, k wrong nodes and e missing ones are corrected if

    2k + e <= r        whatever the errors are ("adversarial": Error Model 1)
    k + e <= r - 1     if errors are unrelated, as random ones are ("generic": Error Model 2, ibid., Theorem 3)

**Digits.** What a node sends is off by its rounding error, relative to its size: a node's product is a sum of
terms_q |z|^2q products of blocks, where the result has terms_w. Decoding without the k + e nodes makes that larger, by
`amplification` (`nodes.worst_loss`), which is computed for the worst set of them. The digits that remain are

    -log10(amplification * eps).

**Sight.** The decoder gives no answer that it couldn't check: the rows that remain must see an error of 1 % in each of
them (`decode`). Without the k + e nodes their checks see errors from

    tolerance / visible

of the largest number on, with the tolerance of rounding (`tolerance`) and `visible` for the worst set (`sight`). Where
that is more than 1 %, some single errors are found and can't be corrected, though there are equations enough: 5 x 8
blocks on 38 nodes have two to spare backward, and a wrong node there leaves two checks that see nothing below 78 % in
float32. What is hidden from checks that see 1 % is about as much in the result. Tolerances grow with the updates that
stored weights have had, so a plan is for a number of them.

A wish for more digits than there are is refused, or for more sight. So is one for more losses than P allows: forward
and backward products have different Q, and the larger one counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edgepeer.coding.matrix.decode import SEEN, Guarantee, MatrixCode
from edgepeer.coding.matrix.nodes import Kind, WorstLoss, evaluation_points, kind_for, scales, vandermonde, worst_loss
from edgepeer.coding.matrix.polydot import PolyDot, Product, Substitution
from edgepeer.coding.matrix.sight import Sight, least_sight
from edgepeer.errors import ConfigError

__all__ = ["Direction", "Plan", "plan", "row_sizes"]

_FINER: Final = float(np.finfo(np.float64).eps / np.finfo(np.float32).eps)
"""The noise of float64, over that of float32."""


@dataclass(frozen=True, slots=True)
class Direction:
    """What forward or backward products can stand."""

    threshold: int
    """Q: coefficients, so equations that are needed."""
    nodes: int
    """ceil(Q / g): nodes that are needed."""
    erasures: int
    """r: missing nodes that are made up for, if no other is wrong."""
    errors: int
    """Wrong nodes that are corrected, whatever their errors: r // 2."""
    generic_errors: int
    """Wrong nodes that are corrected, if their errors are unrelated: r - 1."""
    loss: WorstLoss
    """What the promised losses cost at worst."""
    digits: float
    """Of the result, then; decimal."""
    sight: Sight | None
    """What the checks see then, at worst; None where nothing could be corrected, so that nothing is checked."""

    def sees(self, noise: float) -> float:
        """From which size on errors are seen then, as a part of the largest number of the products; 0 without checks.
        Above 0.01 some of the promised errors can't be corrected.

        Args:
            noise: `PolyDot.noise`.
        """
        return self.sight.sees(noise) if self.sight else 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """A code, and what it promises."""

    code: PolyDot
    forward: Direction
    backward: Direction


def plan(
    m: int,
    n: int,
    nodes: int,
    *,
    d1: int = 1,
    d2: int = 1,
    dtype: np.dtype[Any] | type[np.floating[Any]] = np.float64,
    errors: int | tuple[int, int] = 0,
    erasures: int | tuple[int, int] = 0,
    guarantee: Guarantee = "adversarial",
    substitution: Substitution = "u=v^n",
    kind: Kind | None = None,
    digits: float = 2.0,
    summed: int = 1000,
    updates: int = 2000,
) -> Plan:
    """The code for W in m x n blocks at so many nodes, for so many wrong and missing ones in each product.

    Args:
        m, n, nodes, d1, d2, substitution: of `PolyDot`.
        dtype: float32 or float64.
        errors, erasures: k and e, at once, in each product; or of the forward and of the backward product. Forward
            products meet the errors of updates as well.
        kind: where the nodes evaluate; None: real points or pairs by the rule of `nodes.kind_for`.
        digits: decimal digits that results must have with the worst k + e nodes gone. Two, by default: an error of 1 %
            is less than what a mini-batch's gradient is uncertain by. With 0 or less nothing is refused for digits,
            neither of results nor of checks.
        summed, updates: how many numbers a node's product sums over, and how often stored weights are updated, at most
            (`PolyDot.noise`). With more the promised errors may be more than can be told from rounding.

    Raises:
        ConfigError: the wish can't be had; says why, and what could be.
    """
    kept = np.dtype(dtype)
    wrong = errors if isinstance(errors, tuple) else (errors, errors)
    missing = erasures if isinstance(erasures, tuple) else (erasures, erasures)
    if min(wrong + missing) < 0:
        raise ConfigError(f"{errors} errors and {erasures} erasures can't be promised: each must be at least 0")
    trial = PolyDot(m=m, n=n, nodes=nodes, d1=d1, d2=d2, substitution=substitution, dtype=kept)
    chosen = kind_for(max(trial.forward.threshold, trial.backward.threshold), kept) if kind is None else kind
    code = PolyDot(m=m, n=n, nodes=nodes, d1=d1, d2=d2, substitution=substitution, kind=chosen, dtype=kept)
    wishes = [
        _Wish("forward", code.forward, wrong[0], missing[0], guarantee),
        _Wish("backward", code.backward, wrong[1], missing[1], guarantee),
    ]
    most = max(wishes, key=lambda wish: wish.nodes(code.group))
    if nodes < (needed := most.nodes(code.group)):
        raise ConfigError(
            f"{nodes} nodes can't do m={m}, n={n}: the {most.name} product needs {needed - most.more}"
            + (f", and {most.more} more for {guarantee} k={most.errors}, e={most.erasures}" if most.more else "")
            + f"; take {needed} nodes or fewer blocks"
        )
    noise = code.noise(summed, updates)
    forward, backward = (_direction(code, wish) for wish in wishes)
    worse, wish = min(zip((forward, backward), wishes, strict=True), key=lambda pair: pair[0].digits)
    if worse.digits < digits:
        raise ConfigError(
            f"{kept} keeps {max(0.0, worse.digits):.1f} digits of the {wish.name} product at {chosen} points of m={m}, "
            f"n={n} without {wish.errors + wish.erasures} of {nodes} nodes, not {digits:g}; take {_cure(chosen, kept)}"
        )
    blind, wish = max(zip((forward, backward), wishes, strict=True), key=lambda pair: pair[0].sees(noise))
    if digits > 0 and blind.sees(noise) > SEEN:
        raise ConfigError(_unseen(code, wish, blind, noise, updates))
    return Plan(code, forward, backward)


def row_sizes(code: PolyDot, product: Product) -> NDArray[np.float64]:
    """How large a node's product is at random weights and inputs, where a wanted coefficient has size 1, by row.

    The squares of sizes add up: s_p^2 sum over q of terms_q |z_p|^2q, over terms_w; half of it in each part of a pair.
    Shape (P * group,).
    """
    radius = np.abs(evaluation_points(code.nodes, code.kind))
    squares = (radius[:, None] ** (2 * np.arange(product.threshold))) @ product.terms / code.group
    sizes = scales(code.nodes) * np.sqrt(squares / product.terms[product.wanted.flat[0]])
    return np.repeat(sizes, code.group)


@dataclass(frozen=True, slots=True)
class _Wish:
    """What one of the products is to stand."""

    name: str
    product: Product
    errors: int
    erasures: int
    guarantee: Guarantee

    @property
    def more(self) -> int:
        """Nodes beyond those that determine the result."""
        if self.guarantee == "adversarial":
            return 2 * self.errors + self.erasures
        return self.errors + self.erasures + 1

    def nodes(self, group: int) -> int:
        """All that are needed, each with so many equations."""
        return -(-self.product.threshold // group) + self.more


def _direction(code: PolyDot, wish: _Wish) -> Direction:
    product = wish.product
    needed = -(-product.threshold // code.group)
    spare = code.nodes - needed
    matrix = vandermonde(code.nodes, code.kind, product.threshold)
    sizes = row_sizes(code, product)
    loss = worst_loss(matrix, code.group, product.wanted.ravel(), sizes, wish.errors + wish.erasures)
    digits = -math.log10(loss.amplification * float(np.finfo(code.dtype).eps))
    sight = _sight(MatrixCode(matrix, code.group), wish.errors, wish.erasures)
    return Direction(product.threshold, needed, spare, spare // 2, max(0, spare - 1), loss, digits, sight)


def _sight(code: MatrixCode, errors: int, erasures: int) -> Sight | None:
    """Without so many nodes; or, if no errors are promised, without as many as leave two to spare: then the decoder
    still corrects an error, and checks its answer."""
    lost = errors + erasures if errors else min(erasures, code.redundancy - 2)
    return least_sight(code, lost) if lost >= 0 else None


def _unseen(code: PolyDot, wish: _Wish, found: Direction, noise: float, updates: int) -> str:
    """Why the wish can't be had, and what could be."""
    assert found.sight is not None
    lost, of = len(found.sight.nodes), code.forward_code if wish.name == "forward" else code.backward_code
    cures = ["fewer blocks", "more nodes"]
    if code.dtype == np.float32 and found.sees(noise * _FINER) <= SEEN:
        cures.insert(0, "float64")
    for errors in reversed(range(wish.errors)):
        sight = _sight(of, errors, wish.erasures)
        if sight is None or sight.sees(noise) <= SEEN:
            cures.append(f"errors={errors}")
            break
    without = f"without {lost} of {code.nodes} nodes " if lost else ""
    return (
        f"{code.dtype} has too few digits to check the {wish.name} product of m={code.m}, n={code.n}: {without}errors "
        f"below {found.sees(noise):.1%} of the largest number may look like rounding after {updates} updates, and "
        f"{SEEN:.0%} must not; take {_either(cures)}"
    )


def _cure(kind: Kind, dtype: np.dtype[Any]) -> str:
    cures = ["fewer blocks", "more nodes"]
    if kind == "real":
        cures.insert(0, "pairs")
    if dtype == np.float32:
        cures.insert(0, "float64")
    return _either(cures)


def _either(cures: list[str]) -> str:
    return ", ".join(cures[:-1]) + " or " + cures[-1]
