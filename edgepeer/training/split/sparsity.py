"""A hidden layer that is to be at rest most of the time: a sparse autoencoder's.

    loss + beta sum_i KL(rho || r_i),   KL = rho log(rho / r_i) + (1 - rho) log((1 - rho) / (1 - r_i))

where r_i is the batch's mean of the layer's i-th activation (Dutta et al., "A unified coded deep neural network
training strategy based on generalized PolyDot codes", appendix D). On the way back it adds to what comes from above

    beta Q_i,   Q_i = (1 - rho) / (1 - r_i) - rho / r_i,

the same for all samples of the batch. The paper's updates lack beta and the batch's 1/B, and take 2 lambda for a weight
decay whose loss is lambda |W|^2; ours is lambda/2 |W|^2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edgepeer.errors import ConfigError
from edgepeer.training.named import Range, parse_values

__all__ = ["Sparsity", "parse_sparsity"]

Array = NDArray[Any]

_TAKES: Final[dict[str, Range | None]] = {
    "rho": Range(0, 1, above=True, below=True),
    "beta": Range(0, 1e6),
    "layer": Range(0, 1000, whole=True),
}


@dataclass(frozen=True, kw_only=True)
class Sparsity:
    """The term above.

    Raises:
        ConfigError: a number is not what is said here.
    """

    rho: float = 0.05
    """What the mean is to be, between 0 and 1."""
    beta: float = 3.0
    """How much that counts, 0 or more."""
    layer: int | None = None
    """Which layer's activations, from 0 on; None: those of the only hidden one."""

    def __post_init__(self) -> None:
        for name, takes in _TAKES.items():
            value = getattr(self, name)
            if value is not None and not (takes is None or takes.holds(value)):
                raise ConfigError(f"sparsity: {name} = {value}: must be {takes}")

    def pull(self, x: Array) -> Array:
        """beta Q, shape (N, 1), of activations of shape (N, B)."""
        least = np.finfo(x.dtype).eps  # rounding may reach 0 and 1, where Q has no value
        r = np.clip(x.mean(axis=1, keepdims=True), least, 1 - least)
        return np.asarray(self.beta * ((1 - self.rho) / (1 - r) - self.rho / r))


def parse_sparsity(text: str) -> Sparsity:
    """As in "rho=0.05,beta=3", with layer=0 where there are several hidden layers.

    Raises:
        ConfigError: it isn't that.
    """
    return Sparsity(**parse_values(f"sparsity = {text}", text, _TAKES, "it"))  # type: ignore[arg-type] # by its range
