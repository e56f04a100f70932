"""What layers do to their sums, f, and its derivative from what came out: g(f(u)) = f'(u).

linear, relu, sigmoid, tanh, softplus, softsign, selu
leaky_relu:slope=0.2     below 0, u times the slope
elu:alpha=1              below 0, alpha (e^u - 1)

Peers know a layer's outputs and go back from them alone, so f must tell by its value where it was: of gelu, silu and
mish, which go down and up again, a value has two slopes. Names and defaults are Keras'.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgepeer.errors import ConfigError
from edgepeer.training.named import Range, parse_named

__all__ = ["ACTIVATIONS", "Activation", "parse_activation"]

Array = NDArray[Any]

ACTIVATIONS: Final[dict[str, dict[str, Range | None]]] = {
    "linear": {},
    "relu": {},
    "sigmoid": {},
    "tanh": {},
    "softplus": {},
    "softsign": {},
    "selu": {},
    "leaky_relu": {"slope": Range(0, 1, above=True)},
    "elu": {"alpha": Range(0, 100, above=True)},
}
"""By name, what each takes."""

_SELU_SCALE: Final = 1.0507009873554805
_SELU_ALPHA: Final = 1.6732632423543772
"""Klambauer et al. 2017, "Self-Normalizing Neural Networks", equation 2."""


class Activation(NamedTuple):
    """f and g. Both take and give arrays of one shape and dtype."""

    apply: Callable[[Array], Array]
    slope: Callable[[Array], Array]


@lru_cache(maxsize=64)
def parse_activation(text: str) -> Activation:
    """The activation that a text names.

    Raises:
        ConfigError: it names none, or one that has no slope by its value.
    """
    if text.partition(":")[0] in ("gelu", "silu", "swish", "mish"):
        raise ConfigError(
            f"activation = {text}: its slope doesn't follow from its value, which is all that peers keep; "
            f"take one of {', '.join(ACTIVATIONS)}"
        )
    named = parse_named("activation", text, ACTIVATIONS)
    match named.kind:
        case "relu":
            return Activation(lambda s: np.asarray(np.maximum(s, 0)), lambda x: np.asarray(x > 0, x.dtype))
        case "sigmoid":
            return Activation(_sigmoid, lambda x: np.asarray(x * (1 - x)))
        case "tanh":
            return Activation(lambda s: np.asarray(np.tanh(s)), lambda x: np.asarray(1 - x * x))
        case "softplus":
            return Activation(lambda s: np.asarray(np.logaddexp(s, 0)), lambda x: np.asarray(-np.expm1(-x)))
        case "softsign":
            return Activation(lambda s: np.asarray(s / (1 + np.abs(s))), lambda x: np.square(1 - np.abs(x)))
        case "selu":
            return _elu(_SELU_ALPHA, _SELU_SCALE)
        case "leaky_relu":
            least = float(named.values.get("slope", 0.2))
            return Activation(
                lambda s: np.asarray(np.where(s > 0, s, least * s)),
                lambda x: np.where(x > 0, 1, least).astype(x.dtype),
            )
        case "elu":
            return _elu(float(named.values.get("alpha", 1.0)), 1.0)
    return Activation(lambda s: s, np.ones_like)


def _sigmoid(s: Array) -> Array:
    small = np.exp(-np.abs(s))  # never of what is above 0
    return np.asarray(np.where(s >= 0, 1.0, small) / (1.0 + small), s.dtype)


def _elu(alpha: float, scale: float) -> Activation:
    """scale u above 0, scale alpha (e^u - 1) below."""
    return Activation(
        lambda s: np.asarray(scale * np.where(s > 0, s, alpha * np.expm1(np.minimum(s, 0)))),
        lambda x: np.where(x > 0, scale, x + scale * alpha).astype(x.dtype),
    )
