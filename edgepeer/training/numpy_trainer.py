"""The dense network in NumPy alone, for small devices and for tests.

Flatten, dense layers with relu and inverted dropout, a dense layer to the outputs, and a loss of `losses`.
All parameters lie in one float32 vector, layer by layer (kernel, then bias, as in Keras); the layers are
views into it, and gradients are written straight into the caller's vector. Nothing is allocated per
parameter, and nothing but the batch is copied. Set OPENBLAS_NUM_THREADS=1 where several peers share cores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeer.errors import ModelError, WireError
from edgepeer.training.form import Form, LossName
from edgepeer.training.losses import expected, loss_and_delta
from edgepeer.training.optimizers import make_optimizer
from edgepeer.training.schedules import RateSchedule
from edgepeer.training.seeded import uniform
from edgepeer.training.state import ArraySpec, pack_state, unpack_state
from edgepeer.training.trainer import Evaluation, Float32Vector, GradientResult

__all__ = ["NumpyTrainer"]

_Matrix = NDArray[np.float32]


class NumpyTrainer:
    """One replica of the network.

    Args:
        features: numbers per sample, whatever their arrangement; or the shape of one sample.
        outputs: with crossentropy, labels go from 0 to outputs-1.
        hidden: width of each hidden layer; none for a linear model.
        dropout: share of each hidden layer's outputs that a gradient leaves out, 0 to less than 1.
        optimizer: as `optimizers.parse_optimizer` reads it.
        schedule: of the learning rate, which is constant without it.
        seed: decides the initial parameters (Glorot uniform kernels, zero biases), alike on every device.
        evaluation_batch: how many samples to evaluate at once.

    Raises:
        ModelError: the sizes make no network.
        ConfigError: there is no such optimizer.
    """

    def __init__(
        self,
        *,
        features: int | tuple[int, ...],
        outputs: int,
        hidden: Sequence[int] = (512,),
        dropout: float = 0.2,
        loss: LossName = "crossentropy",
        optimizer: str = "sgd",
        learning_rate: float = 0.1,
        schedule: RateSchedule | None = None,
        seed: int = 0,
        evaluation_batch: int = 512,
    ) -> None:
        shape = (features,) if isinstance(features, int) else tuple(features)
        widths = (math.prod(shape), *hidden, outputs)
        if min(widths) < 1 or not 0 <= dropout < 1:
            raise ModelError(f"no network with layers {widths} and dropout {dropout}")
        self.form = Form(input_shape=shape, outputs=outputs, loss=loss)
        self._shapes = tuple(pairwise(widths))
        self._dropout = dropout
        self._evaluation_batch = evaluation_batch
        self._vector = np.zeros(sum((rows + 1) * columns for rows, columns in self._shapes), np.float32)
        self._layers = self._views(self._vector)
        for number, (kernel, _) in enumerate(self._layers):
            limit = math.sqrt(6 / sum(kernel.shape))
            kernel[:] = uniform(kernel.size, limit, "kernel", seed, number).reshape(kernel.shape)
        self._optimizer = make_optimizer(optimizer, size=self.size, learning_rate=learning_rate)
        self._base, self._schedule = learning_rate, schedule
        self._kind = f"numpy {optimizer.partition(':')[0]}"
        self._forward_buffers: list[_Matrix] = []
        self._backward_buffers: list[_Matrix] = []
        self._reserve(1)

    @property
    def size(self) -> int:
        """Number of parameters."""
        return len(self._vector)

    def parameters(self) -> Float32Vector:
        """A copy of all parameters, shape (size,)."""
        return self._vector.copy()

    def gradient(
        self, x: NDArray[np.generic], y: NDArray[np.generic], out: Float32Vector, *, seed: int
    ) -> GradientResult:
        """Write the gradient of the mean loss to `out`; zeros, with loss 0 and weight 0, for an empty batch.

        Args:
            x: shape (n, ...) with `features` numbers per sample.
            y: labels, shape (n,), or numbers, shape (n, outputs), as the loss wants.
            out: float32, contiguous, shape (size,).
            seed: decides the dropout; the same seed and batch give the same bits.

        Raises:
            ModelError: the batch does not fit the network.
        """
        if out.shape != self._vector.shape or out.dtype != np.float32 or not out.flags.c_contiguous:
            raise ValueError(f"out must be a contiguous float32 vector of {self.size} elements")
        inputs, wanted = self._batch(x, y)
        count = len(inputs)
        if count == 0:
            out.fill(0)
            return GradientResult(0.0, 0)
        activations = self._forward(inputs, np.random.Generator(np.random.PCG64(seed)))
        delta = activations[-1]
        loss = loss_and_delta(self.form.loss, delta, wanted) / count
        delta *= np.float32(1 / count)
        gradients = self._views(out)
        for number in range(len(self._layers) - 1, -1, -1):
            kernel_gradient, bias_gradient = gradients[number]
            np.matmul(activations[number].T, delta, out=kernel_gradient)
            np.sum(delta, axis=0, out=bias_gradient)
            if number:
                below = self._backward_buffers[number - 1][:count]
                np.matmul(delta, self._layers[number][0].T, out=below)
                # An output is above zero just where relu let it through and dropout kept it.
                below *= activations[number] > 0
                if self._dropout:
                    below *= np.float32(1 / (1 - self._dropout))
                delta = below
        return GradientResult(loss, count)

    def apply(self, gradient: Float32Vector) -> None:
        """One optimizer step with the gradient of the mean loss, shape (size,); deterministic to the bit."""
        if gradient.shape != self._vector.shape:
            raise ValueError(f"gradient of shape {gradient.shape} for {self.size} parameters")
        if self._schedule is not None:
            self._optimizer.learning_rate = self._schedule.rate(self._base, self._optimizer.iterations)
        self._optimizer.step(self._vector, gradient)

    def evaluate(self, x: NDArray[np.generic], y: NDArray[np.generic]) -> Evaluation:
        """Mean loss and accuracy or errors, without dropout. Raises ModelError for no samples, or misfits."""
        inputs, wanted = self._batch(x, y)
        if len(inputs) == 0:
            raise ModelError("no samples to evaluate on")
        form, loss, first, second = self.form, 0.0, 0.0, 0.0
        for start in range(0, len(inputs), self._evaluation_batch):
            right = wanted[start : start + self._evaluation_batch]
            outputs = self._forward(inputs[start : start + self._evaluation_batch], None)[-1]
            if form.loss == "crossentropy":
                first += np.count_nonzero(outputs.argmax(axis=1) == right)
            elif form.classifying:
                first += np.count_nonzero((outputs > 0) == (right > 0.5))
            else:
                off = (outputs - right).astype(np.float64)
                first, second = first + float(np.abs(off).sum()), second + float(np.square(off).sum())
            loss += loss_and_delta(form.loss, outputs, right)
        numbers = 1 if form.loss == "crossentropy" else form.outputs
        return Evaluation.of((loss, first, second), len(inputs), numbers, classifying=form.classifying)

    def state(self, *, data: str = "") -> bytes:
        """Parameters, optimizer state and step counter."""
        return pack_state(self._kind, self._arrays(), form=self.form, data=data)

    def load_state(self, state: bytes | bytearray | memoryview) -> None:
        """Become the replica that `state` came from; on WireError this one is left as it was."""
        own = self._arrays()
        expected = {name: ArraySpec(array.shape, array.dtype.name) for name, array in own.items()}
        found = unpack_state(state, self._kind, expected, form=self.form)
        iterations, learning_rate = int(found["iterations"]), float(found["learning_rate"])
        if iterations < 0 or not (learning_rate >= 0 and math.isfinite(learning_rate)):
            raise WireError(f"state after {iterations} steps with learning rate {learning_rate}")
        for name, array in own.items():
            np.copyto(array, found[name])
        self._optimizer.iterations, self._optimizer.learning_rate = iterations, learning_rate

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {
            "parameters": self._vector,
            **{f"optimizer.{name}": slot for name, slot in self._optimizer.slots.items()},
            "iterations": np.array(self._optimizer.iterations, np.int64),
            "learning_rate": np.array(self._optimizer.learning_rate, np.float64),
        }

    def _views(self, vector: Float32Vector) -> list[tuple[_Matrix, Float32Vector]]:
        """Kernel and bias of every layer, as views into `vector`."""
        views: list[tuple[_Matrix, Float32Vector]] = []
        start = 0
        for rows, columns in self._shapes:
            middle = start + rows * columns
            views.append((vector[start:middle].reshape(rows, columns), vector[middle : middle + columns]))
            start = middle + columns
        return views

    def _batch(self, x: NDArray[np.generic], y: NDArray[np.generic]) -> tuple[_Matrix, NDArray[Any]]:
        features = self._shapes[0][0]
        if len(x) != len(y) or math.prod(x.shape[1:]) != features:
            raise ModelError(f"{len(y)} labels and samples {x.shape} for a network with {features} inputs")
        inputs = np.ascontiguousarray(x, np.float32).reshape(len(x), features)
        return inputs, expected(y, self.form.loss, self.form.outputs, "the network")

    def _reserve(self, count: int) -> None:
        if not self._forward_buffers or len(self._forward_buffers[0]) < count:
            widths = [columns for _, columns in self._shapes]
            self._forward_buffers = [np.empty((count, width), np.float32) for width in widths]
            self._backward_buffers = [np.empty((count, width), np.float32) for width in widths[:-1]]

    def _forward(self, inputs: _Matrix, random: np.random.Generator | None) -> list[_Matrix]:
        """Inputs and every layer's outputs, the last before softmax; dropout where `random` is given."""
        count = len(inputs)
        self._reserve(count)
        activations = [inputs]
        last = len(self._layers) - 1
        for number, (kernel, bias) in enumerate(self._layers):
            outputs = self._forward_buffers[number][:count]
            np.matmul(activations[-1], kernel, out=outputs)
            outputs += bias
            if number < last:
                np.maximum(outputs, 0, out=outputs)
                if random is not None and self._dropout:
                    keep = self._backward_buffers[number][:count]  # not in use before the way back
                    random.random(dtype=np.float32, out=keep)
                    np.greater_equal(keep, np.float32(self._dropout), out=keep)
                    outputs *= keep
                    outputs *= np.float32(1 / (1 - self._dropout))
            activations.append(outputs)
        return activations
