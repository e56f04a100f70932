"""The network that is divided: sizes, activations, loss, and its weights before training.

    s_l = W_l (x_l, 1),   x_l+1 = f(s_l),   l = 0, ..., L - 1           W_l: (N_l+1, N_l + 1), x_l: (N_l, B)
    delta_L-1 = dLoss/ds_L-1,   (c_l, .) = W_l' delta_l,   delta_l-1 = c_l * g(x_l),   g(f(u)) = f'(u)
    W_l <- (1 - eta lambda) W_l - (eta / B) delta_l (x_l, 1)'

The bias is the last column, for an input that is always 1; CodeNet and PolyDot, which have none, divide it like the
others. So weight decay takes it in. Samples are columns. The update is linear in W and adds a product of two things
that every peer knows: that is why coded weights can be updated without communication (Dutta, Bai, Low, Grover 2019,
"CodeNet", §IV). Momentum is linear, too, and would double what nodes store; Adam divides by a root of what it has seen,
and is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from edgepeer.errors import ConfigError, ModelError
from edgepeer.training.seeded import uniform

__all__ = ["Activation", "Direction", "Network", "Output", "Step"]

Array = NDArray[Any]
Activation = Literal["linear", "relu", "sigmoid", "tanh"]
Output = Literal["softmax", "linear", "sigmoid", "tanh", "relu"]
Direction = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True)
class Step:
    """The product of one layer in one direction: one round."""

    layer: int
    direction: Direction

    def __str__(self) -> str:
        return f"{self.direction} {self.layer}"


def _sigmoid(s: Array) -> Array:
    small = np.exp(-np.abs(s))  # never of what is above 0
    return np.asarray(np.where(s >= 0, 1.0, small) / (1.0 + small), s.dtype)


_APPLY: Final[dict[str, Callable[[Array], Array]]] = {
    "linear": lambda s: s,
    "relu": lambda s: np.asarray(np.maximum(s, 0)),
    "sigmoid": _sigmoid,
    "tanh": lambda s: np.asarray(np.tanh(s)),
}
_SLOPE: Final[dict[str, Callable[[Array], Array]]] = {
    "linear": lambda x: np.ones_like(x),
    "relu": lambda x: np.asarray(x > 0, x.dtype),
    "sigmoid": lambda x: np.asarray(x * (1 - x)),
    "tanh": lambda x: np.asarray(1 - x * x),
}


@dataclass(frozen=True, kw_only=True)
class Network:
    """A dense network and how it is trained.

    Args:
        sizes: N_0, ..., N_L: inputs, hidden layers, outputs.
        activation: of the hidden layers.
        output: of the last layer. softmax: the loss is the cross-entropy, for integer labels. Others: the squared
            error, for numbers, its mean over the outputs. Of a batch it is the mean, always.
        learning_rate: eta.
        l2: lambda, of the loss lambda/2 |W|^2.
        optimizer: "sgd".
        dtype: float32 or float64, of everything.
        seed: of the weights before training.

    Raises:
        ConfigError: any of these is not what is said above.
    """

    sizes: tuple[int, ...]
    activation: Activation = "relu"
    output: Output = "softmax"
    learning_rate: float = 0.01
    l2: float = 0.0
    optimizer: str = "sgd"
    dtype: np.dtype[Any] = np.dtype(np.float32)  # noqa: RUF009 - immutable
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.sizes) < 2 or min(self.sizes) < 1:
            raise ConfigError(f"sizes = {self.sizes}: a network has inputs and outputs, 1 or more of each")
        if self.activation not in _APPLY or self.output not in (*_APPLY, "softmax"):
            raise ConfigError(
                f"activation {self.activation!r}, output {self.output!r}: split training has {', '.join(_APPLY)}, "
                "and softmax for the output"
            )
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ConfigError(f"learning_rate = {self.learning_rate}: must be a number above 0")
        if not (self.l2 >= 0 and self.learning_rate * self.l2 < 1):
            raise ConfigError(f"l2 = {self.l2}: must be 0 or more, and below 1 / learning_rate")
        if self.optimizer != "sgd":
            raise ConfigError(
                f"optimizer = {self.optimizer!r}: coded weights stay coded under updates that are linear in the "
                "gradient; take sgd"
            )
        if self.dtype not in (np.float32, np.float64):
            raise ConfigError(f"dtype = {self.dtype}: must be float32 or float64")

    @property
    def layers(self) -> int:
        """L, how many matrices there are."""
        return len(self.sizes) - 1

    def shape(self, layer: int) -> tuple[int, int]:
        """Of W_l, with the bias."""
        return self.sizes[layer + 1], self.sizes[layer] + 1

    def steps(self) -> tuple[Step, ...]:
        """The rounds of an iteration, 2L. The last product, backward through layer 0, gives nothing to anybody: it
        reads the blocks that forward products don't, so that no weight goes into an update unread."""
        forward = [Step(layer, "forward") for layer in range(self.layers)]
        return (*forward, *(Step(step.layer, "backward") for step in reversed(forward)))

    def weights(self, layer: int, row: int) -> Array:
        """One row of W_l before training, shape (N_l + 1,): uniform up to sqrt(6 / (N_l + N_l+1)) (Glorot and Bengio
        2010), the bias 0. Every machine can make the rows it needs, one by one."""
        out = np.zeros(self.sizes[layer] + 1, self.dtype)
        limit = math.sqrt(6 / (self.sizes[layer] + self.sizes[layer + 1]))
        out[:-1] = uniform(self.sizes[layer], limit, self.seed, "split", layer, row)
        return out

    def batch(self, x: Array, y: Array) -> tuple[Array, Array]:
        """Inputs with the constant, shape (N_0 + 1, B), and what is wanted: labels (B,), or numbers (N_L, B).

        Args:
            x: samples, shape (B, ...) with N_0 numbers each.
            y: labels (B,) or numbers (B, N_L).

        Raises:
            ConfigError: there is no sample.
            ModelError: the samples are not for this network.
        """
        if not len(x):
            raise ConfigError("a batch of 0 samples has no gradient; split training needs 1 or more in each")
        flat = np.asarray(x, self.dtype).reshape(len(x), -1)
        if flat.shape[1] != self.sizes[0] or len(x) != len(y):
            raise ModelError(f"{len(y)} labels and samples {x.shape} for a network with {self.sizes[0]} inputs")
        if self.output == "softmax":
            wanted = np.asarray(y, np.int64)
            if wanted.ndim != 1 or not 0 <= wanted.min() <= wanted.max() < self.sizes[-1]:
                raise ModelError(f"labels must be one of 0 to {self.sizes[-1] - 1} a sample")
        else:
            wanted = np.asarray(y, self.dtype).reshape(len(y), -1).T
            if len(wanted) != self.sizes[-1]:
                raise ModelError(f"{len(wanted)} numbers to learn for {self.sizes[-1]} outputs")
        return self.with_constant(flat.T), wanted

    def with_constant(self, x: Array) -> Array:
        """(x, 1): shape (N + 1, B)."""
        out = np.ones((len(x) + 1, x.shape[1]), self.dtype)
        out[:-1] = x
        return out

    def activate(self, s: Array) -> Array:
        """f(s) of a hidden layer."""
        return _APPLY[self.activation](s)

    def slope(self, x: Array) -> Array:
        """g(x), where g(f(u)) = f'(u)."""
        return _SLOPE[self.activation](x)

    def loss(self, s: Array, wanted: Array) -> tuple[float, Array]:
        """The batch's mean loss, and delta_L-1: its derivative by s, each sample's, shape (N_L, B)."""
        columns = np.arange(s.shape[1])
        if self.output == "softmax":
            shifted = s - s.max(axis=0)
            powers = np.exp(shifted)
            total = powers.sum(axis=0)
            loss = float(np.mean(np.log(total) - shifted[wanted, columns]))
            delta = powers / total
            delta[wanted, columns] -= 1.0
            return loss, delta
        outputs = _APPLY[self.output](s)
        off = outputs - wanted
        delta = off * _SLOPE[self.output](outputs) * self.dtype.type(2 / len(s))
        return float(np.mean(off * off)), np.asarray(delta)
