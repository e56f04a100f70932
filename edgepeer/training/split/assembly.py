"""A whole matrix again, from the blocks of enough nodes: to use the network after training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edgepeer.errors import Undecodable
from edgepeer.training.split.strategy import Shape, Split, parts_of

__all__ = ["assembled"]

Array = NDArray[Any]

_RANK: Final = 1e-9
"""Of the singular values of what is solved: those of codes in use are above 1e-4 of the largest."""


def assembled(split: Split, shape: Shape, stored: Mapping[int, Array]) -> Array:
    """W from its blocks, by least squares over all that are there. Where a split stores plain blocks, they come out as
    they are, but for rounding.

    Args:
        shape: of W.
        stored: the blocks, by node.

    Raises:
        Undecodable: these blocks don't determine W.
    """
    h, w = split.block_shape(shape)
    nodes = sorted(stored)
    if nodes:
        coefficients = np.concatenate([split.coefficients(node) for node in nodes])
        parts = np.concatenate([parts_of(stored[node]) for node in nodes])[:, :h, :w]
        right = parts.reshape(len(coefficients), -1).astype(np.float64)
        blocks, _, rank, _ = np.linalg.lstsq(coefficients, right, rcond=_RANK)
        if rank == split.m * split.n:
            whole = blocks.reshape(split.m, split.n, h, w).swapaxes(1, 2).reshape(split.m * h, split.n * w)
            return np.asarray(whole[: shape[0], : shape[1]], split.dtype)
    raise Undecodable(
        f"the blocks of {len(nodes)} of {split.nodes} nodes don't determine the matrix; it takes more of them"
    )
