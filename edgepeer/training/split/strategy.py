"""What a way to divide a matrix has to say. Each is a linear code over the matrix's blocks.

W, shape (M, N), is cut into m x n blocks W_ij of h x w numbers, h = ceil(M / m) and w = ceil(N / n), filled up with
zeros. Node p stores one block's worth of it,

    W~_p = sum_ij a_pi b_pj W_ij,   a: `row_weights`, b: `column_weights`,

real, or complex of two parts. Since the weights are a product, so is what an update adds:

    W <- decay W + step Delta X'   is   W~_p <- decay W~_p + step (sum_i a_pi Delta_i) (sum_j b_pj X_j)'.

In a step each node adds its product into the slot of its line. A line is a row of what is decoded: a sum over a row or
column of nodes (CodeNet), or one node's own (PolyDot, copies). Where a node's part is missing, its line is lost.

A wrong or new node's block is a combination of other nodes' blocks, with the coefficients that solve

    sum_q r_q a_q b_q' = a_p b_p'    over the real parts of each,

by least squares of smallest norm, in float64: so rounding is amplified as little as can be.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from edgepeer.coding.matrix.decode import SEEN
from edgepeer.coding.matrix.tolerance import relative_noise
from edgepeer.errors import ConfigError, Undecodable
from edgepeer.training.split.network import Direction, Network

__all__ = ["Effect", "Reading", "Shape", "Split", "Strike", "combine", "largest", "parts_of"]

Array = NDArray[Any]
Shape = tuple[int, int]


Effect = Callable[[Array], float]
"""What a change of numbers changes."""


class Strike(Protocol):
    """Where a soft error may be put on purpose."""

    def __call__(self, place: str, numbers: Array, effect: Effect | None = None, /) -> None:
        """The name of a place, the numbers there; and how large a change of them is in what is made of them, as a part
        of the largest number there. If that isn't said, the numbers themselves count."""


_SPANNED: Final = 1e-9
"""Residual of the coefficients, of size 1, that says that blocks determine another: float64 leaves 1e-13 to codes whose
condition is up to 1000, and what doesn't lie in the span is off by its distance, a tenth or more."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read off a sum."""

    result: Array
    """S = W X, shape (M, B); or C = W' Delta, shape (N, B)."""
    wrong: tuple[int, ...] = ()
    """Lines that were wrong."""


class Split(ABC):
    """One way to divide matrices: how many nodes, what each does, and how their sum is read.

    `direction` "forward" is W X, "backward" W' Delta. Nodes and lines count from 0.
    """

    name: ClassVar[str]
    compares: ClassVar[bool] = True
    """Whether nodes compare what they have decoded, see `tail`."""

    def __init__(self, m: int, n: int, nodes: int, dtype: np.dtype[Any]) -> None:
        if min(m, n) < 1:
            raise ConfigError(f"split {self.name}: m={m}, n={n}: a matrix is in 1 or more blocks each way")
        self.m, self.n, self.nodes, self.dtype = m, n, nodes, dtype
        self._recovery = lru_cache(maxsize=64)(self._recovered)
        self._checks = lru_cache(maxsize=64)(self._checked)
        self._inspects = lru_cache(maxsize=64)(self._inspected)
        self.caught: set[int] = set()
        """Nodes that found an error of their own and computed again; who counts them takes them out."""

    @abstractmethod
    def row_weights(self, node: int) -> Array:
        """a_p, shape (m,)."""

    @abstractmethod
    def column_weights(self, node: int) -> Array:
        """b_p, shape (n,)."""

    @abstractmethod
    def lines(self, direction: Direction) -> int:
        """How many slots the vector has."""

    @abstractmethod
    def line(self, node: int, direction: Direction) -> int | None:
        """The slot that this node adds to. None: it has no part in it."""

    @abstractmethod
    def read(
        self, direction: Direction, rows: Array, shape: Shape, batch: int, lost: Collection[int], updates: int
    ) -> Reading:
        """What the sum of all contributions says.

        Args:
            rows: shape (lines, numbers).
            shape: of W.
            lost: lines that miss a part, or are known to be wrong.
            updates: how often the weights have been updated.

        Raises:
            Undecodable: too much is lost or wrong.
        """

    @abstractmethod
    def inspect(self, probes: Array, shape: Shape, lost: Collection[int], updates: int) -> tuple[int, ...]:
        """The nodes whose stored blocks are wrong, by their products with dense vectors (`scrub.probe`), ascending.

        Args:
            probes: shape (nodes, numbers), float64 or complex128; of lost ones, anything.
            shape: of W.

        Raises:
            Undecodable: more are wrong than can be named.
        """

    def fit(self, network: Network, updates: int = 0) -> None:
        """Raises ConfigError: the network's matrices can't be divided so, or not for so many updates."""
        if network.dtype != self.dtype:
            raise ConfigError(f"split {self.name} is for {self.dtype}, the network is {network.dtype}; make both alike")
        for layer in range(network.layers):
            rows, columns = network.shape(layer)
            if self.m > rows or self.n > columns:
                biased = " with its bias" if network.has_bias(layer) else ""
                raise ConfigError(
                    f"split {self.name}: layer {layer} is {rows} x {columns}{biased} and can't be cut into "
                    f"m={self.m} x n={self.n} blocks; take m up to {rows}, n up to {columns}"
                )

    def check_sight(self, sees: float, layer: int, product: str, updates: int, cure: str) -> None:
        """Raises ConfigError: errors in a layer's product are seen only from a size on that is too large.

        Args:
            sees: that size, as a part of the largest number.
        """
        if sees > SEEN:
            raise ConfigError(
                f"split {self.name}: in layer {layer}'s {product} products errors below {sees:.1%} of the largest "
                f"number may look like rounding after {updates} updates of {self.dtype}, and {SEEN:.0%} must "
                f"not; take fewer updates, {cure}"
            )

    def block_shape(self, shape: Shape) -> Shape:
        """Of a block of W: (h, w)."""
        return -(-shape[0] // self.m), -(-shape[1] // self.n)

    def stored_shape(self, shape: Shape) -> Shape:
        """Of what a node stores of W."""
        return self.block_shape(shape)

    @property
    def block_dtype(self) -> np.dtype[Any]:
        """Of what a node stores."""
        return self.dtype

    def stored_bytes(self, network: Network) -> int:
        """What a node stores of all layers."""
        blocks = (self.stored_shape(network.shape(layer)) for layer in range(network.layers))
        return sum(h * w for h, w in blocks) * self.block_dtype.itemsize

    def numbers(self, direction: Direction, shape: Shape, batch: int) -> int:
        """How many numbers a line has."""
        h, w = self.block_shape(shape)
        return (h if direction == "forward" else w) * batch

    def members(self, line: int, direction: Direction) -> tuple[int, ...]:
        """The nodes that add to a line."""
        return tuple(node for node in range(self.nodes) if self.line(node, direction) == line)

    def lost_lines(self, direction: Direction, lost: Collection[int]) -> frozenset[int]:
        """The lines that miss a part."""
        lines = (self.line(node, direction) for node in lost)
        return frozenset(line for line in lines if line is not None)

    def store(self, node: int, shape: Shape, rows: Callable[[int], Array]) -> Array:
        """What a node stores of W. The matrix is read row by row, and only the rows that are in the block."""
        h, w = self.block_shape(shape)
        out = np.zeros((h, w), self.block_dtype)
        b = self.column_weights(node)
        for i, a in enumerate(self.row_weights(node)):
            for at in range(i * h, min((i + 1) * h, shape[0]) if a else 0):
                out[at - i * h] += a * combine(b, rows(at)[:, None], w, self.block_dtype)[:, 0]
        return out

    def operand(self, node: int, direction: Direction, whole: Array) -> Array:
        """What this node's block is multiplied by: X, shape (N, B), or Delta, shape (M, B), coded for it."""
        if direction == "forward":
            return combine(self.column_weights(node), whole, -(-len(whole) // self.n), self.block_dtype)
        return combine(self.row_weights(node), whole, -(-len(whole) // self.m), self.block_dtype)

    def product(
        self, node: int, direction: Direction, block: Array, operand: Array, updates: int, strike: Strike
    ) -> Array:
        """What it adds to its line, shape (numbers,), with what soft errors make of it."""
        result = self.multiply(direction, block, operand)
        strike("product", result)
        return result.ravel()

    def multiply(self, direction: Direction, block: Array, operand: Array) -> Array:
        """A block's product, as an array of its own."""
        return np.ascontiguousarray((block if direction == "forward" else block.T) @ operand)

    def update(
        self, node: int, block: Array, delta: Array, x: Array, step: float, decay: float, strike: Strike
    ) -> None:
        """W <- decay W + step Delta X', done to this node's block."""
        left = combine(self.row_weights(node), delta, block.shape[0], self.block_dtype)
        right = combine(self.column_weights(node), x, block.shape[1], self.block_dtype)
        strike("encoding", right, lambda change: abs(step) * largest(left @ change.T) / (largest(block) or 1.0))
        if decay != 1:
            block *= self.dtype.type(decay)
        block += (self.dtype.type(step) * left) @ right.T

    def groups(self, node: int) -> tuple[tuple[int, ...], ...]:
        """Sets of nodes from which this node's block may be had, those with few nodes first."""
        return (tuple(range(self.nodes)),)

    def recovery(self, node: int, without: Collection[int]) -> dict[int, Array]:
        """Which combination of other nodes' blocks is this node's: r, shape (parts, parts) by node.

        Raises:
            Undecodable: they don't determine it.
        """
        return self._recovery(node, frozenset(without))

    def _recovered(self, node: int, without: frozenset[int]) -> dict[int, Array]:
        wanted = self.coefficients(node)
        for group in self.groups(node):
            sources = [each for each in group if each != node and each not in without]
            if not sources:
                continue
            known = np.concatenate([self.coefficients(each) for each in sources])
            found = np.linalg.lstsq(known.T, wanted.T, rcond=None)[0]
            if np.abs(known.T @ found - wanted.T).max() <= _SPANNED * np.abs(wanted).max():
                shares = found.T.reshape(len(wanted), len(sources), len(wanted)).swapaxes(0, 1)
                return dict(zip(sources, shares, strict=True))
        raise Undecodable(f"node {node}'s block can't be had of the others without {sorted({*without} - {node})}")

    def recoverable(self, nodes: Collection[int], without: Collection[int]) -> tuple[int, ...]:
        """Which of these nodes' blocks the others determine."""
        return tuple(node for node in sorted(nodes) if self._is_recoverable(node, without))

    def _is_recoverable(self, node: int, without: Collection[int]) -> bool:
        try:
            self.recovery(node, without)
        except Undecodable:
            return False
        return True

    def readable(self, lost: Collection[int]) -> bool:
        """Whether products can be read without these nodes."""
        directions: tuple[Direction, ...] = ("forward", "backward")
        return all(self._readable(direction, self.lost_lines(direction, lost)) for direction in directions)

    def checks(self, direction: Direction, lost: frozenset[int]) -> bool:
        """Whether a wrong line would be noticed though these are lost: where any of the rest could be lost as well."""
        return self._checks(direction, lost)

    def _checked(self, direction: Direction, lost: frozenset[int]) -> bool:
        return all(self._readable(direction, lost | {line}) for line in range(self.lines(direction)))

    def inspects(self, lost: frozenset[int]) -> bool:
        """Whether a scrub would notice a wrong block of any of the rest though these are lost."""
        return self._inspects(lost)

    def _inspected(self, lost: frozenset[int]) -> bool:
        """Where it could do without any of the rest as well."""
        probes = np.zeros((self.nodes, 1), np.result_type(self.block_dtype, np.float64))
        try:
            for node in range(self.nodes):
                self.inspect(probes, (self.m, self.n), lost | {node}, 0)
        except Undecodable:
            return False
        return True

    def _readable(self, direction: Direction, lost: Collection[int]) -> bool:
        shape = self.m, self.n
        rows = np.zeros((self.lines(direction), self.numbers(direction, shape, 1)), self.dtype)
        try:
            self.read(direction, rows, shape, 1, lost, 0)
        except Undecodable:
            return False
        return True

    def noise(self, summed: int, updates: int) -> float:
        """Rounding noise of a product that sums so many terms, with weights that are sums of m n."""
        return relative_noise(summed + self.m * self.n, self.dtype, updates)

    def coefficients(self, node: int) -> NDArray[np.float64]:
        """a_p b_p' as a row of real numbers for each part of the block, shape (parts, m n)."""
        outer = np.outer(self.row_weights(node), self.column_weights(node)).ravel()
        return np.stack([outer.real, outer.imag]) if self.block_dtype.kind == "c" else outer[None]


def combine(weights: Array, matrix: Array, height: int, dtype: np.dtype[Any]) -> Array:
    """sum_k weights_k matrix_k, of blocks of so many rows; the last ones are filled up with zeros."""
    out = np.zeros((height, matrix.shape[1]), dtype)
    for k in np.flatnonzero(weights):
        part = matrix[k * height : (k + 1) * height]
        out[: len(part)] += part if weights[k] == 1 else dtype.type(weights[k]) * part
    return out


def largest(numbers: Array) -> float:
    """The largest number's size."""
    return float(np.abs(numbers).max(initial=0.0))


def parts_of(block: Array) -> Array:
    """The block as real numbers, shape (parts, h, w), a view of it."""
    if block.dtype.kind != "c":
        return block[None]
    return np.moveaxis(block.view(block.real.dtype).reshape(*block.shape, 2), -1, 0)
