"""The network that is divided: sizes, activations, loss, how it is trained, and its weights before training.

    s_l = W_l (x_l, 1),   x_l+1 = f_l(s_l),   l = 0, ..., L - 1         W_l: (N_l+1, N_l + 1), x_l: (N_l, B)
    delta_L-1 = dLoss/ds_L-1,   (c_l, .) = W_l' delta_l,   delta_l-1 = c_l * g(x_l),   g(f(u)) = f'(u)
    W_l <- (1 - eta lambda) W_l - (eta / B) delta_l (x_l, 1)'

The bias is the last column, for an input that is always 1; CodeNet and PolyDot, which have none, divide it like the
others. So weight decay takes it in. Samples are columns. The update is linear in W and adds a product of two things
that every peer knows: that is why coded weights can be updated without communication (Dutta, Bai, Low, Grover 2019,
"CodeNet", §IV). Momentum is linear, too, with a velocity V that is divided and coded as W is,

    G = (1 / B) delta (x, 1)' + lambda W,   V <- mu V - eta G,   W <- W + V,   after Nesterov W <- W + mu V - eta G,

and doubles what nodes store. Adam divides by a root of what it has seen, and is not. The learning rate eta may change
from one iteration to the next, as all peers know how.

Dropout sets each activation of a hidden layer to 0 with probability p, and divides the others by 1 - p. Which ones
follows from seed, iteration and layer alone: all peers leave out the same, also when an iteration is done again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgepeer.errors import ConfigError, ModelError
from edgepeer.training.form import CLASSIFYING, LossChoice, LossName
from edgepeer.training.losses import loss_and_delta
from edgepeer.training.schedules import RateSchedule
from edgepeer.training.seeded import bits, uniform
from edgepeer.training.split.activations import Activation, parse_activation
from edgepeer.training.split.sparsity import Sparsity
from edgepeer.training.trainer import Evaluation

__all__ = ["Direction", "Network", "ProductStep", "Sums"]

Array = NDArray[Any]
Direction = Literal["forward", "backward"]
Sums = tuple[float, float, float]
"""Over samples: of the loss; and over their numbers: right ones, or absolute and squared errors."""

_T = TypeVar("_T")
_OUTPUT_OF: Final[dict[str, str]] = {"crossentropy": "softmax", "binary_crossentropy": "sigmoid"}


@dataclass(frozen=True, slots=True)
class ProductStep:
    """The product of one layer in one direction: one round."""

    layer: int
    direction: Direction

    def __str__(self) -> str:
        return f"{self.direction} {self.layer}"


@dataclass(frozen=True, kw_only=True)
class Network:
    """A dense network and how it is trained.

    Args:
        sizes: N_0, ..., N_L: inputs, hidden layers, outputs.
        activation: of the hidden layers, as `activations` names them: one for all, or one for each.
        output: of the last layer, as well; or softmax.
        objective: the loss, as in `losses`, of a batch its mean. auto: crossentropy for softmax, mse for others.
            crossentropy is of softmax, binary_crossentropy of sigmoid.
        bias: whether layers have one: all alike, or each as said.
        dropout: p of the hidden layers: one for all, or one for each.
        sparsity: of a hidden layer of sigmoids without dropout.
        learning_rate: eta, before the schedule.
        schedule: of the learning rate, which is constant without it.
        momentum: mu; nesterov: whether it is Nesterov's.
        l2: lambda, of the loss lambda/2 |W|^2, biases included.
        dtype: float32 or float64, of everything.
        seed: of the weights before training, and of dropout.

    Raises:
        ConfigError: any of these is not what is said above.
    """

    sizes: tuple[int, ...]
    activation: str | tuple[str, ...] = "relu"
    output: str = "softmax"
    objective: LossChoice = "auto"
    bias: bool | tuple[bool, ...] = True
    dropout: float | tuple[float, ...] = 0.0
    sparsity: Sparsity | None = None
    learning_rate: float = 0.01
    schedule: RateSchedule | None = None
    momentum: float = 0.0
    nesterov: bool = False
    l2: float = 0.0
    dtype: np.dtype[Any] = np.dtype(np.float32)  # noqa: RUF009 - immutable
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.sizes) < 2 or min(self.sizes) < 1:
            raise ConfigError(f"sizes = {self.sizes}: a network has inputs and outputs, 1 or more of each")
        hidden = len(self.sizes) - 2
        for name, count in (("activation", hidden), ("dropout", hidden), ("bias", hidden + 1)):
            value = getattr(self, name)
            if isinstance(value, tuple) and len(value) != count:
                what = "layers" if name == "bias" else "hidden layers"
                raise ConfigError(f"{name} = {value}: there are {count} {what}; give one for each, or one for all")
        for activation in _each(self.activation, hidden):
            if activation == "softmax":
                raise ConfigError("activation = softmax: is for the output only; take another for hidden layers")
            parse_activation(activation)
        if not all(0 <= share < 1 for share in _each(self.dropout, hidden)):
            raise ConfigError(f"dropout = {self.dropout}: must be from 0 to below 1")
        self._check_objective()
        self._check_sparsity()
        self._check_training()

    @property
    def layers(self) -> int:
        """L, how many matrices there are."""
        return len(self.sizes) - 1

    @property
    def loss_name(self) -> LossName:
        """The objective, not auto."""
        if self.objective == "auto":
            return "crossentropy" if self.output == "softmax" else "mse"
        return self.objective

    def has_bias(self, layer: int) -> bool:
        """Whether W_l has a last column for the constant."""
        return _each(self.bias, self.layers)[layer]

    def shape(self, layer: int) -> tuple[int, int]:
        """Of W_l, with the bias."""
        return self.sizes[layer + 1], self.sizes[layer] + self.has_bias(layer)

    def steps(self) -> tuple[ProductStep, ...]:
        """The rounds of an iteration, 2L. The last product, backward through layer 0, gives nothing to anybody: it
        reads the blocks that forward products don't, so that no weight goes into an update unread."""
        forward = [ProductStep(layer, "forward") for layer in range(self.layers)]
        return (*forward, *(ProductStep(step.layer, "backward") for step in reversed(forward)))

    def rate(self, iteration: int) -> float:
        """eta of an iteration, from 0 on; never more than `learning_rate`."""
        base = self.learning_rate
        return base if self.schedule is None else self.schedule.rate(base, iteration)

    def weights(self, layer: int, row: int) -> Array:
        """One row of W_l before training, shape (N_l + 1,): uniform up to sqrt(6 / (N_l + N_l+1)) (Glorot and Bengio
        2010), the bias 0. Every machine can make the rows it needs, one by one."""
        inputs = self.sizes[layer]
        out = np.zeros(self.shape(layer)[1], self.dtype)
        limit = math.sqrt(6 / (inputs + self.sizes[layer + 1]))
        out[:inputs] = uniform(inputs, limit, self.seed, "split", layer, row)
        return out

    def batch(self, x: Array, y: Array) -> tuple[Array, Array]:
        """What W_0 is multiplied by, shape (N_0 + 1, B), and what is wanted: labels (B,), or numbers (N_L, B).

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
        if self.loss_name == "crossentropy":
            wanted = np.asarray(y, np.int64)
            if wanted.ndim != 1 or not 0 <= wanted.min() <= wanted.max() < self.sizes[-1]:
                raise ModelError(f"labels must be one of 0 to {self.sizes[-1] - 1} a sample")
        else:
            wanted = np.asarray(y, self.dtype).reshape(len(y), -1).T
            if len(wanted) != self.sizes[-1]:
                raise ModelError(f"{len(wanted)} numbers to learn for {self.sizes[-1]} outputs")
            if self.loss_name == "binary_crossentropy" and not 0 <= wanted.min() <= wanted.max() <= 1:
                raise ModelError("binary_crossentropy needs a y from 0 to 1")
        return self.with_constant(0, flat.T), wanted

    def with_constant(self, layer: int, x: Array) -> Array:
        """(x_l, 1), what W_l is multiplied by: shape (N_l + 1, B); without a bias x_l itself."""
        if not self.has_bias(layer):
            return np.ascontiguousarray(x)
        out = np.ones((len(x) + 1, x.shape[1]), self.dtype)
        out[:-1] = x
        return out

    def activate(self, layer: int, s: Array, iteration: int | None) -> Array:
        """x_l+1 = f_l(s_l) of a hidden layer, with that iteration's dropout.

        Args:
            iteration: None: without dropout, as in evaluation.
        """
        x = self._activation(layer).apply(s)
        kept = None if iteration is None else self._kept(layer, s.shape[1], iteration)
        return x if kept is None else np.asarray(x * kept)

    def back(self, layer: int, c: Array, x: Array, iteration: int) -> Array:
        """delta_l-1 = c_l * g(x_l), with dropout and sparsity: shape (N_l, B).

        Args:
            layer: l, 1 or more.
            c: W_l' delta_l; x: what W_l was multiplied by. Where there is a bias, their last rows are its.
        """
        below, c, x = layer - 1, c[: self.sizes[layer]], x[: self.sizes[layer]]
        if self.sparsity is not None and self._sparse_layer == below:
            c = c + self.sparsity.pull(x)
        slope, kept = self._activation(below).slope, self._kept(below, x.shape[1], iteration)
        if kept is None:
            return np.asarray(c * slope(x))
        share = self.dtype.type(1 - _each(self.dropout, self.layers - 1)[below])
        return np.asarray(c * slope(x * share) * kept)  # what was left out is anything there, and 0 in the end

    def loss(self, s: Array, wanted: Array) -> tuple[float, Array]:
        """The batch's mean loss, without what l2 and sparsity add; and delta_L-1: its derivative by s, each sample's,
        shape (N_L, B)."""
        summed, delta = self._judge(s, wanted)
        return summed / s.shape[1], delta

    def score(self, s: Array, wanted: Array) -> Sums:
        """How good samples' s_L-1, shape (N_L, B), are. Sums of parts of a test set may be added up.

        Args:
            wanted: as `batch` gives it.
        """
        loss = self._judge(s, wanted)[0]
        if self.loss_name == "crossentropy":
            return loss, float(np.count_nonzero(s.argmax(axis=0) == wanted)), 0.0
        if self.loss_name == "binary_crossentropy":
            return loss, float(np.count_nonzero((s > 0) == (wanted > 0.5))), 0.0
        off = (parse_activation(self.output).apply(s) - wanted).astype(np.float64)
        return loss, float(np.abs(off).sum()), float(np.square(off).sum())

    def evaluation(self, sums: Sums, samples: int) -> Evaluation:
        """From the sums of so many samples' scores."""
        numbers = 1 if self.loss_name == "crossentropy" else self.sizes[-1]
        return Evaluation.of(sums, samples, numbers, classifying=self.loss_name in CLASSIFYING)

    def _judge(self, s: Array, wanted: Array) -> tuple[float, Array]:
        """Summed loss, and its derivative by s."""
        if self.loss_name in CLASSIFYING:
            outputs = np.array(s.T, order="C")
            summed = loss_and_delta(self.loss_name, outputs, wanted.T)
            return summed, np.ascontiguousarray(outputs.T)
        function = parse_activation(self.output)
        x = function.apply(s)
        outputs = np.array(x.T, order="C")
        summed = loss_and_delta(self.loss_name, outputs, wanted.T)
        return summed, np.ascontiguousarray(outputs.T * function.slope(x))

    def _activation(self, layer: int) -> Activation:
        return parse_activation(_each(self.activation, self.layers - 1)[layer])

    def _kept(self, layer: int, batch: int, iteration: int) -> Array | None:
        """What activations are multiplied by: 0 or 1 / (1 - p), shape (N_l+1, B). None: there is no dropout."""
        share = _each(self.dropout, self.layers - 1)[layer]
        if not share:
            return None
        shape = self.sizes[layer + 1], batch
        drawn = bits(math.prod(shape), "dropout", self.seed, iteration, layer).reshape(shape)
        kept = drawn >= np.uint64(int(share * 2.0**64))
        return np.asarray(kept * self.dtype.type(1 / (1 - share)))

    @property
    def _sparse_layer(self) -> int:
        return 0 if self.sparsity is None or self.sparsity.layer is None else self.sparsity.layer

    def _check_objective(self) -> None:
        if self.objective not in ("auto", "crossentropy", "binary_crossentropy", "mse", "mae", "huber"):
            raise ConfigError(
                f"objective = {self.objective}: must be auto, crossentropy, binary_crossentropy, mse, mae or huber"
            )
        wanted = _OUTPUT_OF.get(self.loss_name)
        if wanted is None and self.output == "softmax":
            raise ConfigError(f"output = softmax: its loss is crossentropy, not {self.objective}; take linear for that")
        if wanted is not None and self.output != wanted:
            raise ConfigError(f"output = {self.output}: the loss {self.objective} is of {wanted}; take that")
        if self.output != "softmax":
            parse_activation(self.output)

    def _check_sparsity(self) -> None:
        if self.sparsity is None:
            return
        hidden = self.layers - 1
        if self.sparsity.layer is None and hidden != 1:
            raise ConfigError(f"sparsity: there are {hidden} hidden layers; say of which with layer=0, 1, ...")
        layer = self._sparse_layer
        if layer >= hidden:
            raise ConfigError(f"sparsity: layer = {layer}: hidden layers are 0 to {hidden - 1}")
        if (found := _each(self.activation, hidden)[layer]) != "sigmoid":
            raise ConfigError(f"sparsity: layer {layer} is {found}; means between 0 and 1 need sigmoid there")
        if _each(self.dropout, hidden)[layer]:
            raise ConfigError(f"sparsity: layer {layer} has dropout, which changes its means; take one of both")

    def _check_training(self) -> None:
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ConfigError(f"learning_rate = {self.learning_rate}: must be a number above 0")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum = {self.momentum}: must be from 0 to below 1")
        if not (self.l2 >= 0 and self.learning_rate * self.l2 < 1):
            raise ConfigError(f"l2 = {self.l2}: must be 0 or more, and below 1 / learning_rate")
        if self.dtype not in (np.float32, np.float64):
            raise ConfigError(f"dtype = {self.dtype}: must be float32 or float64")


def _each(value: _T | tuple[_T, ...], count: int) -> tuple[_T, ...]:
    """One for each, where one may be for all."""
    return value if isinstance(value, tuple) else (value,) * count
