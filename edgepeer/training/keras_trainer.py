"""Any Keras model that puts out a row of numbers per sample, with any Keras optimizer, behind flat float32 vectors.

The gradient comes out of one traced TensorFlow function that takes batches of every size, the step goes
into another; both are traced once, when the trainer is made. To the loss comes whatever the model's own
regularizers add. Whether a model that classifies ends in probabilities or in logits is seen from its last
activation, or the last that TensorFlow computes, where that says it, or else from what it puts out.

What `seed` means here: before each gradient the state of every `keras.random.SeedGenerator` in the model
is set from it, so Dropout and its kin draw the same masks for the same seed. Layers that draw from
TensorFlow's global generator instead do not follow it. Averaging gradients over peers is exact for models
whose loss is a mean over samples; with BatchNormalization it isn't one, and moving statistics stay each
peer's own.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edgepeer.errors import ModelError
from edgepeer.training.architecture import architecture
from edgepeer.training.form import CLASSIFYING, Form, LossName
from edgepeer.training.keras_setup import load_keras
from edgepeer.training.losses import expected
from edgepeer.training.models import first_line
from edgepeer.training.schedules import RateSchedule
from edgepeer.training.seeded import bits, uniform
from edgepeer.training.state import ArraySpec, is_carried, pack_state, unpack_state
from edgepeer.training.trainer import Evaluation, Float32Vector, GradientResult

__all__ = ["KerasTrainer"]

_CARRIED_AS: Final = {"bfloat16": "uint16"}
"""As which numbers a state carries the bits of those that NumPy alone does not know: of layers that aren't trained."""
_ARRANGING: Final = ("Identity", "Cast", "Reshape", "Squeeze", "ExpandDims")


class KerasTrainer:
    """One replica of a Keras model.

    Args:
        model: a keras.Model; built here for `input_shape` if it isn't yet. The trainer's own from now on.
        optimizer: a fresh keras.optimizers.Optimizer. The trainer's own from now on.
        input_shape: the shape of one sample.
        schedule: of the learning rate, which is constant without it.
        name: how messages call the model.
        evaluation_batch: how many samples to evaluate at once.

    Raises:
        ModelError: Keras isn't there, or the model can't take such samples or be trained by this trainer.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        *,
        input_shape: tuple[int, ...],
        loss: LossName = "crossentropy",
        schedule: RateSchedule | None = None,
        name: str = "model",
        evaluation_batch: int = 512,
    ) -> None:
        self._keras = load_keras()
        import tensorflow

        self._tf = tensorflow
        self._model, self._optimizer = model, optimizer
        self._input_shape = tuple(input_shape)
        self._name = name
        self._evaluation_batch = evaluation_batch
        self._loss = loss
        self._schedule, self._base = schedule, float(optimizer.learning_rate)
        self.outputs, self._from_logits = self._probe()
        """Numbers that the model puts out: one a class, or what the loss wants."""
        self.form = Form(input_shape=self._input_shape, outputs=self.outputs, loss=loss)
        self._architecture = architecture(model)
        self._variables: list[Any] = list(model.trainable_variables)
        self._check_variables()
        self._sizes = [math.prod(variable.shape) for variable in self._variables]
        self._generators = [v for v in model.non_trainable_variables if v.name == "seed_generator_state"]
        optimizer.build(self._variables)
        spec = tensorflow.TensorSpec
        wanted = spec((None,), "int32") if loss == "crossentropy" else spec((None, self.outputs), "float32")
        batch = [spec((None, *self._input_shape), "float32"), wanted]
        seeds = spec((len(self._generators), 2), "int64")
        traced = tensorflow.function
        self._gradient = traced(self._gradient_graph, input_signature=[*batch, seeds], jit_compile=False)
        self._apply = traced(self._apply_graph, input_signature=[spec((self.size,), "float32")], jit_compile=False)
        self._evaluate = traced(self._evaluate_graph, input_signature=batch, jit_compile=False)
        for graph in (self._gradient, self._apply, self._evaluate):
            graph.get_concrete_function()  # now, while nobody waits for it
        self._check_gradient()

    @property
    def size(self) -> int:
        """Number of trainable parameters."""
        return sum(self._sizes)

    def parameters(self) -> Float32Vector:
        """A copy of all trainable parameters, shape (size,), variable by variable in the model's order."""
        return np.concatenate([variable.numpy().reshape(-1) for variable in self._variables])

    def gradient(
        self, x: NDArray[np.generic], y: NDArray[np.generic], out: Float32Vector, *, seed: int
    ) -> GradientResult:
        """Write the gradient of the mean loss to `out`; zeros, with loss 0 and weight 0, for an empty batch.

        Args:
            x: shape (n, *input_shape).
            y: labels, shape (n,), or numbers, shape (n, outputs), as the loss wants.
            out: float32, shape (size,).
            seed: decides the dropout, as the module's text says.

        Raises:
            ModelError: the batch does not fit the model.
        """
        if out.shape != (self.size,) or out.dtype != np.float32:
            raise ValueError(f"out must be a float32 vector of {self.size} elements")
        inputs, wanted = self._batch(x, y)
        if len(inputs) == 0:
            out.fill(0)
            return GradientResult(0.0, 0)
        loss, flat = self._gradient(inputs, wanted, self._seeds(seed))
        np.copyto(out, flat.numpy())
        return GradientResult(float(loss), len(inputs))

    def apply(self, gradient: Float32Vector) -> None:
        """One optimizer step with the gradient of the mean loss, shape (size,); deterministic to the bit."""
        if gradient.shape != (self.size,):
            raise ValueError(f"gradient of shape {gradient.shape} for {self.size} parameters")
        if self._schedule is not None:
            self._optimizer.learning_rate = self._schedule.rate(self._base, int(self._optimizer.iterations))
        self._apply(gradient)

    def evaluate(self, x: NDArray[np.generic], y: NDArray[np.generic]) -> Evaluation:
        """Mean loss and accuracy or errors, without dropout. Raises ModelError for no samples, or misfits."""
        inputs, wanted = self._batch(x, y)
        if len(inputs) == 0:
            raise ModelError("no samples to evaluate on")
        loss, first, second = 0.0, 0.0, 0.0
        for start in range(0, len(inputs), self._evaluation_batch):
            part = slice(start, start + self._evaluation_batch)
            sums = self._evaluate(inputs[part], wanted[part])
            loss, first, second = loss + float(sums[0]), first + float(sums[1]), second + float(sums[2])
        numbers = 1 if self._loss == "crossentropy" else self.outputs
        return Evaluation.of((loss, first, second), len(inputs), numbers, classifying=self.form.classifying)

    def save(self, path: Path) -> None:
        """Write the model to a .keras file, for `keras.saving.load_model`. Raises ModelError if Keras can't."""
        try:
            self._model.save(path)
        except Exception as error:
            raise ModelError(f"model {self._name}: Keras can't save it: {first_line(error)}") from error

    def save_weights(self, path: Path) -> None:
        """Write the weights to a .weights.h5 file, for `load_weights`. Raises ModelError if Keras can't."""
        try:
            self._model.save_weights(path)
        except Exception as error:
            raise ModelError(f"model {self._name}: Keras can't save its weights: {first_line(error)}") from error

    def state(self, *, data: str = "") -> bytes:
        """All variables of model and optimizer, with step counter, learning rate and random states."""
        arrays = {name: _as_carried(variable.numpy()) for name, variable in self._all_variables().items()}
        return pack_state("keras", arrays, form=self.form, data=data, model=self._architecture)

    def load_state(self, state: bytes | bytearray | memoryview) -> None:
        """Become the replica that `state` came from; on WireError this one is left as it was."""
        own = self._all_variables()
        expected = {name: _spec(variable) for name, variable in own.items()}
        found = unpack_state(state, "keras", expected, form=self.form, model=self._architecture)
        for name, variable in own.items():
            array = found[name].copy()  # TensorFlow may keep the memory, which is the caller's
            variable.assign(array.view(variable.numpy().dtype) if str(variable.dtype) in _CARRIED_AS else array)

    def _all_variables(self) -> dict[str, Any]:
        # Numbered, not named: Keras counts up the names of layers over the life of a process.
        groups = {
            "trainable": self._variables,
            "fixed": self._model.non_trainable_variables,
            "optimizer": self._optimizer.variables,
        }
        return {f"{group}.{i}": variable for group, found in groups.items() for i, variable in enumerate(found)}

    def _probe(self) -> tuple[int, bool]:
        """How many numbers the model puts out, and whether as logits."""
        samples = uniform(2 * math.prod(self._input_shape), 1.0, "probe").reshape(2, *self._input_shape)
        shape = self._input_shape
        try:
            outputs = self._model(samples, training=False)
        except Exception as error:
            raise ModelError(f"model {self._name}: can't take samples of shape {shape}: {first_line(error)}") from error
        if not self._tf.is_tensor(outputs) or outputs.shape.rank != 2 or outputs.shape[0] != 2:
            found = getattr(outputs, "shape", type(outputs).__name__)
            raise ModelError(f"model {self._name}: must put out one row of numbers per sample, not {found}")
        return int(outputs.shape[1]), not self._puts_out_probabilities()

    def _puts_out_probabilities(self) -> bool:
        """Whether a model that classifies puts out probabilities, not their logits."""
        if self._loss not in CLASSIFYING:
            return False
        activations, last, softmax = self._keras.activations, self._last_layer(), self._loss == "crossentropy"
        activation = getattr(last, "activation", None)
        if activation is (activations.softmax if softmax else activations.sigmoid):
            return True
        if type(last) is self._keras.layers.Dense and activation is activations.linear:
            return False  # unlike a linear Activation: that may be there to cast probabilities
        if self._ends_in("Softmax" if softmax else "Sigmoid"):
            return True
        samples = uniform(16 * math.prod(self._input_shape), 1.0 if softmax else 1e4, "probe")
        pairs = samples.reshape(8, 2, *self._input_shape)  # no more at once than elsewhere
        try:
            values = np.concatenate([np.asarray(self._model(pair, training=False), np.float64) for pair in pairs])
        except Exception:
            return False  # it takes no numbers as large as these, an embedding's for example: what was seen must do
        if softmax:
            # Rows of numbers from 0 on that sum to 1, as far as bfloat16 can tell, come out of a softmax, not out of a
            # random linear layer.
            return bool(np.all(values >= 0) and np.allclose(values.sum(axis=1), 1, atol=1e-2))
        # What comes out of a sigmoid stays between 0 and 1, however large what goes in.
        return bool(np.all((values >= 0) & (values <= 1)) and np.any(values > 0))

    def _last_layer(self) -> Any:
        """What the model ends in; None where it has no graph: the last that a class has made need not be it."""
        found = None
        model = self._model
        while outputs := getattr(model, "outputs", None):
            found = model = outputs[0]._keras_history.operation
        return found

    def _ends_in(self, operation: str) -> bool:
        """Whether TensorFlow computes that last, but for what only casts or arranges it; a softmax of whole rows."""
        samples = self._tf.TensorSpec((2, *self._input_shape), "float32")
        end = found = self._tf.function(self._outputs_graph).get_concrete_function(samples).outputs[0]
        while found.op.type in _ARRANGING:
            found = found.op.inputs[0]
        return found.op.type == operation and (operation != "Softmax" or found.shape[-1:] == end.shape[-1:])

    def _check_variables(self) -> None:
        if not self._variables:
            raise ModelError(f"model {self._name}: has no trainable parameters")
        for variable in self._model.non_trainable_variables:
            if not is_carried(_spec(variable).dtype):
                raise ModelError(f"model {self._name}: {variable.path} is {variable.dtype}, which no state can carry")
        for variable in self._variables:
            if str(variable.dtype) != "float32":
                raise ModelError(f"model {self._name}: {variable.path} is {variable.dtype}; parameters must be float32")

    def _check_gradient(self) -> None:
        """Refuse layers that change parameters by themselves in training, such as SpectralNormalization: a peer that
        computes a gradient once more, or none, would have others than the rest."""
        parameters = [variable.numpy() for variable in self._variables]
        fixed = [(variable, variable.numpy()) for variable in self._model.non_trainable_variables]
        samples = uniform(2 * math.prod(self._input_shape), 1.0, "probe").reshape(2, *self._input_shape)
        wanted = np.zeros(2 if self._loss == "crossentropy" else (2, self.outputs))
        self._gradient(*self._batch(samples, wanted), self._seeds(0))
        for variable, value in zip(self._variables, parameters, strict=True):
            if not np.array_equal(variable.numpy(), value, equal_nan=True):
                raise ModelError(
                    f"model {self._name}: {variable.path} changes when a gradient is computed; only steps may change it"
                )
        for variable, value in fixed:  # moving statistics
            variable.assign(value)

    def _batch(self, x: NDArray[np.generic], y: NDArray[np.generic]) -> tuple[NDArray[np.float32], NDArray[Any]]:
        if len(x) != len(y) or x.shape[1:] != self._input_shape:
            raise ModelError(
                f"model {self._name}: {len(y)} labels and samples {x.shape}; one takes {self._input_shape}"
            )
        return np.asarray(x, np.float32), expected(y, self._loss, self.outputs, f"model {self._name}")

    def _seeds(self, seed: int) -> NDArray[np.int64]:
        """A state for each seed generator of the model, shape (generators, 2)."""
        drawn = bits(2 * len(self._generators), "dropout", seed) >> np.uint64(34)  # 30 bits fit every seed dtype
        return drawn.astype(np.int64).reshape(-1, 2)

    # What follows is traced by TensorFlow, each once.

    def _outputs_graph(self, x: Any) -> Any:
        return self._model(x, training=False)

    def _gradient_graph(self, x: Any, y: Any, seeds: Any) -> tuple[Any, Any]:
        tf = self._tf
        for number, generator in enumerate(self._generators):
            generator.assign(tf.cast(seeds[number], generator.dtype))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self._losses(y, self._model(x, training=True)))
            loss = tf.add_n([loss, *(tf.cast(extra, tf.float32) for extra in self._model.losses)])
        gradients = tape.gradient(loss, [variable.value for variable in self._variables], unconnected_gradients="zero")
        return loss, tf.concat([tf.reshape(tf.convert_to_tensor(gradient), (-1,)) for gradient in gradients], 0)

    def _apply_graph(self, gradient: Any) -> None:
        parts = self._tf.split(gradient, self._sizes)
        shaped = [self._tf.reshape(p, v.shape) for p, v in zip(parts, self._variables, strict=True)]
        self._optimizer.apply(shaped, self._variables)

    def _evaluate_graph(self, x: Any, y: Any) -> tuple[Any, Any, Any]:
        tf = self._tf
        outputs = tf.cast(self._model(x, training=False), tf.float32)
        loss, nothing = tf.reduce_sum(self._losses(y, outputs)), tf.constant(0.0)
        if self._loss == "crossentropy":
            right = tf.equal(tf.argmax(outputs, axis=1, output_type=tf.int32), y)
            return loss, tf.math.count_nonzero(right), nothing
        if self._loss == "binary_crossentropy":
            right = tf.equal(outputs > (0.0 if self._from_logits else 0.5), y > 0.5)
            return loss, tf.math.count_nonzero(right), nothing
        off = outputs - y
        return loss, tf.reduce_sum(tf.abs(off)), tf.reduce_sum(tf.square(off))

    def _losses(self, y: Any, outputs: Any) -> Any:
        """The loss of every sample, shape (n,)."""
        if outputs.dtype != self._tf.float32:  # mixed precision
            outputs = self._tf.cast(outputs, self._tf.float32)
        losses = self._keras.losses
        if self._loss == "crossentropy":
            return losses.sparse_categorical_crossentropy(y, outputs, from_logits=self._from_logits)
        if self._loss == "binary_crossentropy":
            return losses.binary_crossentropy(y, outputs, from_logits=self._from_logits)
        function = {"mse": "mean_squared_error", "mae": "mean_absolute_error", "huber": "huber"}[self._loss]
        return getattr(losses, function)(y, outputs)


def _spec(variable: Any) -> ArraySpec:
    """Of what a state carries of a variable."""
    dtype = str(variable.dtype)
    return ArraySpec(tuple(int(length) for length in variable.shape), _CARRIED_AS.get(dtype, dtype))


def _as_carried(array: NDArray[Any]) -> NDArray[Any]:
    return array.view(_CARRIED_AS.get(array.dtype.name, array.dtype))
