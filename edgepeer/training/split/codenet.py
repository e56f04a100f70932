"""CodeNet: MDS codes over block rows and block columns (Dutta, Bai, Low, Grover 2019, §IV).

    W~ = (G_r x I) W (G_c x I)',   G_r: (m + 2t, m), G_c: (n + 2t, n), systematic MDS codes (`mds`)

Node (i, j) stores block ij of it. Nodes with i >= m and j >= n would take part in no product and don't exist, so there
are mn + 2t(m + n): 38 for m=5, n=4, t=1, where two copies are 40. Forward, the nodes (i, j < n) have the row sums
s_i = sum_j W~_ij x_j, which are a word of G_r; backward, the nodes (i < m, j) have the column sums, a word of G_c. Up
to t wrong lines are corrected, whatever is wrong in them; k wrong and e missing ones if 2k + e <= 2t. Several wrong
nodes in one line count once.

In the paper one node of a row decodes, applies f, and broadcasts: if that goes wrong, its whole column goes on with a
valid word of a wrong x, and nobody sees it. Here every node does that for itself, from the same sums. So whatever one
node gets wrong stays in its own line.

Conditioning: that of the codes, at most 13 for (7, 5) whatever is lost, see `mds`. A line that isn't lost comes out
with the bits it had. Of many lines, neighbours that are wrong leave checks that see little: `fit` refuses what can't be
told from rounding then, such as m = 20 and t = 2 in float32 for more than 300 updates.

A line's wrong node isn't known, so all of them are regenerated: from their column after a forward product, where other
rows are right, from their row after a backward one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeer.coding.matrix.decode import Guarantee, MatrixCode, decode
from edgepeer.coding.matrix.mds import mds_code
from edgepeer.coding.matrix.sight import least_sight
from edgepeer.coding.matrix.tolerance import relative_noise
from edgepeer.errors import ConfigError, Undecodable
from edgepeer.training.split.network import Direction, Network
from edgepeer.training.split.strategy import Reading, Shape, Split

__all__ = ["CodeNet"]

Array = NDArray[Any]
_Word = tuple[tuple[int, ...], MatrixCode]
"""Nodes whose blocks are a word of a code, and that code."""
_Check = Callable[[tuple[int, ...], MatrixCode, Collection[int]], Collection[int]]


class CodeNet(Split):
    """mn + 2t(m + n) nodes; up to t wrong lines a step."""

    name = "codenet"

    def __init__(self, m: int, n: int, t: int, dtype: np.dtype[Any], guarantee: Guarantee = "adversarial") -> None:
        if t < 1:
            raise ConfigError(f"split codenet: t={t}: 1 or more wrong lines are corrected; without any, take none")
        super().__init__(m, n, m * n + 2 * t * (m + n), dtype)
        self.t, self.guarantee = t, guarantee
        self._row_code = mds_code(m + 2 * t, m, dtype)
        self._column_code = mds_code(n + 2 * t, n, dtype)
        self.places = tuple((i, j) for i in range(m + 2 * t) for j in range(n + 2 * t) if i < m or j < n)
        """(i, j) of each node."""
        self._at = {place: node for node, place in enumerate(self.places)}

    def fit(self, network: Network, updates: int = 0) -> None:
        """Also raises ConfigError: at its sizes, and after so many updates, errors can't be told from rounding."""
        super().fit(network, updates)
        wrong = self.t if self.guarantee == "adversarial" else 2 * self.t - 1
        sights = {code.nodes: least_sight(code, wrong) for code in (self._row_code, self._column_code)}
        for layer in range(network.layers):
            summed = network.shape(layer)
            directions: tuple[Direction, Direction] = "backward", "forward"
            for direction, terms in zip(directions, summed, strict=True):
                sees = sights[self._code(direction).nodes].sees(self.noise(terms, updates))
                self.check_sight(sees, layer, direction, updates, "fewer blocks, a smaller t or float64")

    def row_weights(self, node: int) -> Array:
        return np.asarray(self._row_code.generator[self.places[node][0]])

    def column_weights(self, node: int) -> Array:
        return np.asarray(self._column_code.generator[self.places[node][1]])

    def lines(self, direction: Direction) -> int:
        return self._code(direction).nodes

    def line(self, node: int, direction: Direction) -> int | None:
        i, j = self.places[node]
        if direction == "forward":
            return i if j < self.n else None
        return j if i < self.m else None

    def read(
        self, direction: Direction, rows: Array, shape: Shape, batch: int, lost: Collection[int], updates: int
    ) -> Reading:
        result, summed = shape if direction == "forward" else shape[::-1]
        noise = self.noise(summed, updates)
        found = decode(self._code(direction), rows, lost, guarantee=self.guarantee, noise=noise)
        return Reading(found.data.reshape(-1, batch)[:result], found.wrong)

    def inspect(self, probes: Array, shape: Shape, lost: Collection[int], updates: int) -> tuple[int, ...]:
        """Every column of nodes is a word of G_r, every row one of G_c: what one can't say the other may."""
        noise = relative_noise(self.m * self.n, self.dtype, updates)

        def check(nodes: tuple[int, ...], code: MatrixCode, gone: Collection[int]) -> Collection[int]:
            return decode(code, probes[list(nodes)], gone, guarantee=self.guarantee, noise=noise).wrong

        return _peel(self._words(), check, lost)

    def _inspected(self, lost: frozenset[int]) -> bool:
        """A block is in a word or two: it is enough if one of them has a check left."""
        seen = set(lost)
        for nodes, code in self._words():
            if len(lost.intersection(nodes)) < code.redundancy:
                seen |= {*nodes}
        return len(seen) == self.nodes

    def groups(self, node: int) -> tuple[tuple[int, ...], ...]:
        words = [nodes for nodes, _ in self._words() if node in nodes]
        return (*words, *super().groups(node))

    def _code(self, direction: Direction) -> MatrixCode:
        return self._row_code if direction == "forward" else self._column_code

    def _words(self) -> Iterator[_Word]:
        """Columns of the grid, then rows."""
        rows, columns = self._row_code.nodes, self._column_code.nodes
        for j in range(self.n):
            yield tuple(self._at[i, j] for i in range(rows)), self._row_code
        for i in range(self.m):
            yield tuple(self._at[i, j] for j in range(columns)), self._column_code


def _peel(words: Iterable[_Word], check: _Check, lost: Collection[int]) -> tuple[int, ...]:
    """The wrong nodes of words that share nodes: what one word finds is an erasure of the next, until none finds more.

    Args:
        check: the wrong places of a word, with some lost.
        lost: nodes that sent nothing.

    Raises:
        Undecodable: some word stays beyond what it can correct.
    """
    left, wrong = list(words), set[int]()
    while True:
        failed: list[_Word] = []
        before, reason = len(wrong), None
        for nodes, code in left:
            gone = [place for place, node in enumerate(nodes) if node in wrong or node in lost]
            try:
                wrong |= {nodes[place] for place in check(nodes, code, gone)}
            except Undecodable as error:
                failed.append((nodes, code))
                reason = error
        if reason is None:
            return tuple(sorted(wrong))
        if len(wrong) == before:
            raise reason
        left = failed
