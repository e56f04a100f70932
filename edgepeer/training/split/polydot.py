"""Generalized PolyDot codes as a way to divide matrices (`coding.matrix.polydot` has the code itself).

Node p stores the value of a polynomial, and its product is one, too: P nodes, whose products are P lines. From P - Q of
them being too many, r = P - ceil(Q / g), k wrong and e missing ones are corrected if 2k + e <= r, or k + e <= r - 1 if
errors are unrelated. Q differs between forward and backward products; `plan` computes both, and refuses what P, or the
digits of the dtype, don't give. `fit` does so for a network's sizes and a training's length.

Vectors are longer than CodeNet's: P blocks of a result, where m would hold it. For that, any P - r nodes are enough,
wherever they are. At pairs of points a node's numbers are complex; the vector has their real parts, then their
imaginary ones.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeer.coding.matrix.decode import Guarantee, decode
from edgepeer.coding.matrix.nodes import Kind
from edgepeer.coding.matrix.plan import plan
from edgepeer.coding.matrix.polydot import PolyDot
from edgepeer.errors import ConfigError
from edgepeer.training.split.network import Direction, Network
from edgepeer.training.split.strategy import Reading, Shape, Split, Strike

__all__ = ["PolyDotSplit"]

Array = NDArray[Any]


class PolyDotSplit(Split):
    """P nodes, with so many wrong and missing ones in each product.

    Args:
        m, n, nodes, dtype, errors, erasures, guarantee, kind: as of `plan`.
        d: inputs are in n x d blocks, errors in d x m: d1 = d2.

    Raises:
        ConfigError: as `plan`.
    """

    name = "polydot"

    def __init__(
        self,
        m: int,
        n: int,
        nodes: int,
        dtype: np.dtype[Any],
        *,
        d: int = 1,
        errors: int = 1,
        erasures: int = 0,
        guarantee: Guarantee = "adversarial",
        kind: Kind | None = None,
    ) -> None:
        super().__init__(m, n, nodes, dtype)
        try:
            self.plan = plan(
                m, n, nodes, d1=d, d2=d, dtype=dtype, errors=errors, erasures=erasures, guarantee=guarantee, kind=kind
            )
        except ConfigError as error:
            raise ConfigError(f"split polydot: {error}") from None
        self.code, self.guarantee = self.plan.code, guarantee
        exact = PolyDot(m=m, n=n, nodes=nodes, d1=d, d2=d, kind=self.code.kind)
        units = np.eye(m * n).reshape(-1, m, n)
        outer = np.stack([exact.encode_weights(unit)[:, 0, 0] for unit in units], axis=1).reshape(-1, m, n)
        self._rows, self._columns = outer[:, :, 0], outer[:, 0] / outer[:, :1, 0]

    def fit(self, network: Network, updates: int = 0) -> None:
        """Also raises ConfigError: at its sizes, and after so many updates, errors can't be told from rounding."""
        super().fit(network, updates)
        for layer in range(network.layers):
            h, w = self.block_shape(network.shape(layer))
            for each, name, summed in ((self.plan.forward, "forward", w), (self.plan.backward, "backward", h)):
                sees = each.sees(self.code.noise(summed, updates))
                self.check_sight(sees, layer, name, updates, "more nodes or fewer blocks")

    @property
    def block_dtype(self) -> np.dtype[Any]:
        return np.result_type(self.dtype, np.complex64) if self.code.kind == "pairs" else self.dtype

    def row_weights(self, node: int) -> Array:
        return np.asarray(self._rows[node])

    def column_weights(self, node: int) -> Array:
        return np.asarray(self._columns[node])

    def lines(self, direction: Direction) -> int:
        return self.nodes

    def line(self, node: int, direction: Direction) -> int | None:
        return node

    def numbers(self, direction: Direction, shape: Shape, batch: int) -> int:
        d = self.code.d1 if direction == "forward" else self.code.d2
        return self.code.group * super().numbers(direction, shape, -(-batch // d))

    def operand(self, node: int, direction: Direction, whole: Array) -> Array:
        encode = self.code.encode_inputs if direction == "forward" else self.code.encode_errors
        return np.ascontiguousarray(encode(whole, only=[node])[0])

    def product(
        self, node: int, direction: Direction, block: Array, operand: Array, updates: int, strike: Strike
    ) -> Array:
        result = self.multiply(direction, block, operand)
        strike("product", result)
        flat = result.ravel()
        return np.concatenate([flat.real, flat.imag]) if self.code.kind == "pairs" else flat

    def multiply(self, direction: Direction, block: Array, operand: Array) -> Array:
        return np.ascontiguousarray(block @ operand if direction == "forward" else operand @ block)

    def read(
        self, direction: Direction, rows: Array, shape: Shape, batch: int, lost: Collection[int], updates: int
    ) -> Reading:
        code, forward = self.code, direction == "forward"
        h, w = self.block_shape(shape)
        found = decode(
            code.forward_code if forward else code.backward_code,
            rows.reshape(self.nodes * code.group, -1),
            lost,
            guarantee=self.guarantee,
            noise=code.noise(w if forward else h, updates),
        )
        if forward:
            return Reading(code.outputs(found.data, (shape[0], batch)), found.wrong)
        return Reading(code.gradients(found.data, (shape[1], batch)), found.wrong)

    def inspect(self, probes: Array, shape: Shape, lost: Collection[int], updates: int) -> tuple[int, ...]:
        code = self.code
        noise = code.weight_noise(updates)
        return decode(code.weight_code, code.received(probes), lost, guarantee=self.guarantee, noise=noise).wrong
