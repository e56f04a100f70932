"""Whole matrices, when training is over: as the vector that both trainers have, and as a state that `saved` reads."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edgepeer.training.form import Form
from edgepeer.training.split.network import Network
from edgepeer.training.state import ArraySpec, pack_state, unpack_state
from edgepeer.training.trainer import Float32Vector

__all__ = ["WHOLE", "pack_whole", "parameters_vector", "read_whole"]

Array = NDArray[Any]

WHOLE: Final = "split whole"
"""The kind of such a state."""


def parameters_vector(network: Network, weights: Iterable[Array]) -> Float32Vector:
    """All parameters, float32, layer by layer: the kernel, (N_l, N_l+1) row by row, then the bias, as in Keras.

    Args:
        weights: W_l of each layer, shape (N_l+1, N_l + 1), or without a bias (N_l+1, N_l). One at a time is enough.

    Raises:
        ValueError: they are not this network's.
    """
    out = np.empty(_size(network), np.float32)
    start = 0
    for layer, whole in zip(range(network.layers), weights, strict=True):
        if whole.shape != network.shape(layer):
            raise ValueError(f"layer {layer}: weights of shape {whole.shape}, where {network.shape(layer)} are needed")
        flat = whole.T  # the bias is its last row
        out[start : start + flat.size].reshape(flat.shape)[:] = flat
        start += flat.size
    return out


def pack_whole(network: Network, weights: Iterable[Array], form: Form) -> bytes:
    """The same as a state, for `saved.save_model`.

    Args:
        form: of the data that the network was trained on.

    Raises:
        ValueError: as `parameters_vector`.
    """
    return pack_state(WHOLE, {"parameters": parameters_vector(network, weights)}, form=form)


def read_whole(network: Network, state: bytes | bytearray | memoryview) -> Float32Vector:
    """The vector in such a state.

    Raises:
        WireError: it is not one, damaged, or of another network.
    """
    return unpack_state(state, WHOLE, {"parameters": ArraySpec((_size(network),), "float32")})["parameters"]


def _size(network: Network) -> int:
    return sum(math.prod(network.shape(layer)) for layer in range(network.layers))
