"""A PolyDot code for a wish: what it takes and gives in each direction, or why it can't be had.

P nodes bring P g equations (g = 1 at real points, 2 at pairs) for Q coefficients. ceil(Q / g) nodes are enough, so with
r = P - ceil(Q / g) more than that, k wrong nodes and e missing ones are corrected if

    2k + e <= r        whatever the errors are ("adversarial": Error Model 1)
    k + e <= r - 1     if errors are unrelated, as random ones are ("generic": Error Model 2, ibid., Theorem 3)

**Digits.** What a node sends is off by its rounding error, relative to its size: a node's product is a sum of
terms_q |z|^2q products of blocks, where the result has terms_w. Decoding without the k + e nodes makes that larger, by
`amplification` (`nodes.worst_loss`), which is computed for the worst set of them. The digits that remain are

    -log10(amplification * eps).

A wish for more digits than there are is refused. So is one for more losses than P allows: forward and backward products
have different Q, and the larger one counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeer.coding.matrix.decode import Guarantee
from edgepeer.coding.matrix.nodes import Kind, WorstLoss, evaluation_points, kind_for, scales, vandermonde, worst_loss
from edgepeer.coding.matrix.polydot import PolyDot, Product, Substitution
from edgepeer.errors import ConfigError

__all__ = ["Direction", "Plan", "plan", "row_sizes"]


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


@dataclass(frozen=True, slots=True)
class Plan:
    """A code, and what it promises."""

    code: PolyDot
    storage: float
    """Numbers that a node stores, over those of W: g / (m n)."""
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
) -> Plan:
    """The code for W in m x n blocks at so many nodes, for so many wrong and missing ones in each product.

    Args:
        m, n, nodes, d1, d2, substitution: of `PolyDot`.
        dtype: float32 or float64.
        errors, erasures: k and e, at once, in each product; or of the forward and of the backward product. Forward
            products meet the errors of updates as well.
        kind: where the nodes evaluate; None: real points or pairs by the rule of `nodes.kind_for`.
        digits: decimal digits that results must have with the worst k + e nodes gone. Two, by default: an error of 1 %
            is less than what a mini-batch's gradient is uncertain by.

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
    forward, backward = (_direction(code, wish) for wish in wishes)
    worse, wish = min(zip((forward, backward), wishes, strict=True), key=lambda pair: pair[0].digits)
    if worse.digits < digits:
        raise ConfigError(
            f"{kept} keeps {max(0.0, worse.digits):.1f} digits of the {wish.name} product at {chosen} points of m={m}, "
            f"n={n} without {wish.errors + wish.erasures} of {nodes} nodes, not {digits:g}; take {_cure(chosen, kept)}"
        )
    return Plan(code, code.group / (m * n), forward, backward)


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
    return Direction(product.threshold, needed, spare, spare // 2, max(0, spare - 1), loss, digits)


def _cure(kind: Kind, dtype: np.dtype[Any]) -> str:
    cures = ["fewer blocks", "more nodes"]
    if kind == "real":
        cures.insert(0, "pairs")
    if dtype == np.float32:
        cures.insert(0, "float64")
    return ", ".join(cures[:-1]) + " or " + cures[-1]
