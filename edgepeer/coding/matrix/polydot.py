"""Generalized PolyDot codes: products with a matrix stored in coded blocks, from whichever nodes answer rightly.

Dutta, Bai, Jeong, Low, Grover, "A unified coded deep neural network training strategy based on generalized PolyDot
codes", Theorems 1 and 2, §VII and §IX, with misprints corrected. W is cut into m x n blocks; node p has one block's
worth of numbers, the value of a polynomial in u and v. X is cut into n x d1 blocks, Delta' into d2 x m:

    weights     W~ = sum W_ij u^i v^j                 stored
    forward     X~ = sum X_jk v^(n-1-j) w^k           S = W X is in W~ X~:       S_ik at u^i v^(n-1) w^k
    backward    D~ = sum Delta'_ki w^k u^(m-1-i)      C' = Delta' W in D~ W~:    C'_kj at w^k u^(m-1) v^j
    update      W~ += (sum Delta_i u^i) (sum X_j v^j)'     other encodings: W + Delta X' is coded as W was

With u, v and w powers of one z, node p's product is the value at z_p of a polynomial of Q coefficients. Some are
blocks of the result; what else there is falls together ("garbage alignment"). A substitution must keep it off those:

    substitution                      Q forward                 Q backward
    u = v^n,       w = v^mn           mn d1 + n - 1             mn (d2 + 1) - n
    v = u^m,       w = u^mn           mn (d1 + 1) - m           mn d2 + m - 1
    u = v^(2n-1),  w = v^(m(2n-1))    m (2n - 1) d1             m (2n - 1) (d2 + 1) - 3n + 2

The last keeps all powers apart in the forward product: PolyDot codes. Also special cases: n = 1 is Polynomial codes,
m = d1 = 1 MatDot codes. A vector is a matrix with one column: d = 1.

Stored weights carry the node's factor s_p (`nodes`), and so do its products. Sizes that aren't multiples of m, n and d
are filled up with zeros; what is decoded is cut to size again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgepeer.coding.matrix.decode import MatrixCode
from edgepeer.coding.matrix.nodes import Kind, evaluation_points, group_of, scales, vandermonde
from edgepeer.coding.matrix.tolerance import relative_noise
from edgepeer.errors import ConfigError

__all__ = [
    "PolyDot",
    "Product",
    "Substitution",
    "backward_product",
    "forward_product",
    "thresholds",
]

Substitution = Literal["u=v^n", "v=u^m", "polydot"]

_Coded = NDArray[Any]
"""Of the code's dtype at real points, of the complex one of the same precision at pairs."""


def _powers(m: int, n: int, substitution: Substitution) -> tuple[int, int, int]:
    """Which powers of z are u, v and w."""
    if substitution == "u=v^n":
        return n, 1, m * n
    if substitution == "v=u^m":
        return 1, m, m * n
    return 2 * n - 1, 1, m * (2 * n - 1)


@dataclass(frozen=True, eq=False)
class Product:
    """What the nodes' products are values of: a polynomial in z, and where in it the result is."""

    threshold: int
    """Q: its coefficients, the degree and one. So many equations determine it."""
    wanted: NDArray[np.int64]
    """The power of z whose coefficient is this block of the result: shape (m, d1) of S, (d2, n) of C'."""
    terms: NDArray[np.int64]
    """How many products of blocks fall on each power, shape (Q,): n or m on the wanted ones, 0 where there is a gap."""


def forward_product(m: int, n: int, d: int, substitution: Substitution = "u=v^n") -> Product:
    """W~ X~ with X in n x d blocks: exponents, threshold and what falls where."""
    u, v, w = _powers(m, n, substitution)
    i, j, other, k = np.ogrid[:m, :n, :n, :d]
    wanted = u * np.arange(m)[:, None] + v * (n - 1) + w * np.arange(d)
    return _product(u * i + v * (n - 1 + j - other) + w * k, wanted)


def backward_product(m: int, n: int, d: int, substitution: Substitution = "u=v^n") -> Product:
    """D~ W~ with Delta' in d x m blocks, as `forward_product`."""
    u, v, w = _powers(m, n, substitution)
    k, other, i, j = np.ogrid[:d, :m, :m, :n]
    wanted = w * np.arange(d)[:, None] + u * (m - 1) + v * np.arange(n)
    return _product(w * k + u * (m - 1 + i - other) + v * j, wanted)


def thresholds(m: int, n: int, d: int, substitution: Substitution = "u=v^n") -> tuple[int, int]:
    """Q of both products, forward and backward, without making them."""
    u, v, w = _powers(m, n, substitution)
    return u * (m - 1) + 2 * v * (n - 1) + w * (d - 1) + 1, 2 * u * (m - 1) + v * (n - 1) + w * (d - 1) + 1


def _product(exponents: NDArray[np.int64], wanted: NDArray[np.int64]) -> Product:
    terms = np.bincount(exponents.ravel())
    return Product(len(terms), wanted, terms)


@dataclass(frozen=True, kw_only=True)
class PolyDot:
    """One code: encodings, products, and what to hand to the decoder. `plan` chooses a good one.

    Arrays for several nodes have them in front; `only` names the nodes, None is all of them. A node encodes for itself
    with `only=[p]`.

    Args:
        m, n: W is in m x n blocks.
        nodes: P.
        d1, d2: X is in n x d1 blocks, Delta' in d2 x m.
        kind: what the nodes evaluate at (`nodes.Kind`); at pairs a node stores and computes complex numbers.
        dtype: float32 or float64, of weights, inputs and products.

    Raises:
        ConfigError: a number of blocks or nodes is below 1, or the dtype is another.
    """

    m: int
    n: int
    nodes: int
    d1: int = 1
    d2: int = 1
    substitution: Substitution = "u=v^n"
    kind: Kind = "real"
    dtype: np.dtype[Any] = np.dtype(np.float64)  # noqa: RUF009 - immutable

    def __post_init__(self) -> None:
        if min(self.m, self.n, self.nodes, self.d1, self.d2) < 1:
            raise ConfigError("m, n, d1, d2 and the number of nodes of a PolyDot code must be at least 1")
        if self.dtype not in (np.float32, np.float64):
            raise ConfigError(f"numbers of type {self.dtype} can't be coded: float32 and float64 can")

    @property
    def group(self) -> int:
        """Equations that a node brings: 1 at real points, 2 at pairs."""
        return group_of(self.kind)

    @cached_property
    def forward(self) -> Product:
        """What W~ X~ is a value of."""
        return forward_product(self.m, self.n, self.d1, self.substitution)

    @cached_property
    def backward(self) -> Product:
        """What D~ W~ is a value of."""
        return backward_product(self.m, self.n, self.d2, self.substitution)

    @cached_property
    def weight_code(self) -> MatrixCode:
        """The nodes' stored weights, as rows of `received`, are generator @ coefficients, which are blocks of W: what
        `scrub` needs."""
        return MatrixCode(vandermonde(self.nodes, self.kind, self._weight_threshold), self.group)

    @cached_property
    def forward_code(self) -> MatrixCode:
        """The nodes' forward products, as rows of `received`, are generator @ coefficients; shape (P * group, Q)."""
        return MatrixCode(vandermonde(self.nodes, self.kind, self.forward.threshold), self.group)

    @cached_property
    def backward_code(self) -> MatrixCode:
        """The same of the backward products."""
        return MatrixCode(vandermonde(self.nodes, self.kind, self.backward.threshold), self.group)

    def noise(self, summed: int, updates: int = 0) -> float:
        """For the decoder: rounding noise of a number of a product (`tolerance.relative_noise`).

        Args:
            summed: what a node's products sum over: N/n forward, M/m backward. A complex term is two.
            updates: how often the stored weights have been updated. Coding them was a sum of m n terms, and what they
                are multiplied by is one of n d1 or m d2.
        """
        encoded = self.m * self.n + max(self.n * self.d1, self.m * self.d2)
        return relative_noise(self.group * summed + encoded, self.dtype, updates)

    def weight_noise(self, updates: int = 0) -> float:
        """The same of the stored weights, after so many updates, where products with them are more exact (`scrub`)."""
        return relative_noise(self.m * self.n, self.dtype, updates)

    def encode_weights(self, w: NDArray[Any], only: Sequence[int] | None = None) -> _Coded:
        """s sum W_ij u^i v^j, of w of shape (M, N): shape (P, M/m, N/n), sizes rounded up."""
        u, v, _ = self._points(only)
        coefficients = self._scales(only)[:, None] * _outer(u, np.arange(self.m), v, np.arange(self.n))
        return self._encode(coefficients, w, self.m, self.n)

    def encode_inputs(self, x: NDArray[Any], only: Sequence[int] | None = None) -> _Coded:
        """sum X_jk v^(n-1-j) w^k, of x of shape (N, B): shape (P, N/n, B/d1), sizes rounded up."""
        _, v, w = self._points(only)
        return self._encode(_outer(v, np.arange(self.n)[::-1], w, np.arange(self.d1)), x, self.n, self.d1)

    def encode_errors(self, delta: NDArray[Any], only: Sequence[int] | None = None) -> _Coded:
        """sum Delta'_ki w^k u^(m-1-i), of delta of shape (M, B): shape (P, B/d2, M/m), sizes rounded up."""
        u, _, w = self._points(only)
        return self._encode(_outer(w, np.arange(self.d2), u, np.arange(self.m)[::-1]), delta.T, self.d2, self.m)

    def update(
        self,
        weights: _Coded,
        delta: NDArray[Any],
        x: NDArray[Any],
        step: float,
        decay: float = 1.0,
        only: Sequence[int] | None = None,
    ) -> None:
        """W <- decay W + step Delta X', done to the coded weights where they are, without communication.

        Args:
            weights: of these nodes, shape (P, M/m, N/n); changed.
            delta, x: shapes (M, B) and (N, B).
            step: eta / B, say.
            decay: 1 - eta lambda.
        """
        u, v, _ = self._points(only)
        left = self._encode(self._scales(only)[:, None] * u[:, None] ** np.arange(self.m), delta, self.m, 1)
        right = self._encode(v[:, None] ** np.arange(self.n), x, self.n, 1)
        if decay != 1:
            weights *= self.dtype.type(decay)
        weights += (self.dtype.type(step) * left) @ right.transpose(0, 2, 1)

    def received(self, products: _Coded) -> NDArray[Any]:
        """The decoder's rows, shape (P * group, numbers), of all nodes' products, shape (P, rows, columns).

        Forward products are `weights @ inputs`, backward ones `errors @ weights`. Of a missing node's, anything.
        """
        flat = products.reshape(self.nodes, -1)
        parts = np.stack([flat.real, flat.imag], axis=1) if self.kind == "pairs" else flat
        return np.asarray(parts.reshape(self.nodes * self.group, -1))

    def outputs(self, data: NDArray[Any], shape: tuple[int, int]) -> NDArray[Any]:
        """S = W X, of this shape (M, B), from the coefficients that were decoded of the forward products."""
        return _assemble(data, self.forward.wanted, shape)

    def gradients(self, data: NDArray[Any], shape: tuple[int, int]) -> NDArray[Any]:
        """C = W' Delta, of this shape (N, B), from the coefficients that were decoded of the backward products."""
        return _assemble(data, self.backward.wanted, (shape[1], shape[0])).T

    @property
    def _weight_threshold(self) -> int:
        u, v, _ = _powers(self.m, self.n, self.substitution)
        return u * (self.m - 1) + v * (self.n - 1) + 1

    @cached_property
    def _all_scales(self) -> NDArray[np.float64]:
        return scales(self.nodes)

    @cached_property
    def _all_points(self) -> NDArray[Any]:
        """u, v and w of each node, shape (3, P)."""
        z = evaluation_points(self.nodes, self.kind)
        return np.stack([z**power for power in _powers(self.m, self.n, self.substitution)])

    def _scales(self, only: Sequence[int] | None) -> NDArray[np.float64]:
        return self._all_scales if only is None else self._all_scales[list(only)]

    def _points(self, only: Sequence[int] | None) -> NDArray[Any]:
        return self._all_points if only is None else self._all_points[:, list(only)]

    def _encode(self, coefficients: NDArray[Any], matrix: NDArray[Any], rows: int, columns: int) -> _Coded:
        """Combinations of a matrix's blocks: shape (nodes, block's rows, block's columns)."""
        height, width = -(-matrix.shape[0] // rows), -(-matrix.shape[1] // columns)
        padded = np.zeros((rows * height, columns * width), self.dtype)
        padded[: matrix.shape[0], : matrix.shape[1]] = matrix
        blocks = padded.reshape(rows, height, columns, width).swapaxes(1, 2).reshape(rows * columns, -1)
        if self.kind == "real":
            coded = coefficients.astype(self.dtype) @ blocks
        else:  # two real products: blocks have no imaginary part
            coded = np.empty((len(coefficients), blocks.shape[1]), np.result_type(self.dtype, np.complex64))
            coded.real = coefficients.real.astype(self.dtype) @ blocks
            coded.imag = coefficients.imag.astype(self.dtype) @ blocks
        return np.asarray(coded.reshape(-1, height, width))


def _outer(a: NDArray[Any], rows: NDArray[np.int64], b: NDArray[Any], columns: NDArray[np.int64]) -> NDArray[Any]:
    """a^row b^column of each node, shape (nodes, rows * columns)."""
    return np.asarray((a[:, None, None] ** rows[:, None] * b[:, None, None] ** columns).reshape(len(a), -1))


def _assemble(data: NDArray[Any], wanted: NDArray[np.int64], shape: tuple[int, int]) -> NDArray[Any]:
    """A matrix from its blocks, which are these rows of `data`, without what was filled up."""
    rows, columns = wanted.shape
    height, width = -(-shape[0] // rows), -(-shape[1] // columns)
    blocks = data[wanted.ravel()].reshape(rows, columns, height, width)
    whole = blocks.swapaxes(1, 2).reshape(rows * height, columns * width)
    return np.asarray(whole[: shape[0], : shape[1]])
