"""Any Keras model that classifies, with any Keras optimizer, behind flat float32 vectors.

The gradient comes out of one traced TensorFlow function that takes batches of every size, the step goes
into another; both are traced once, when the trainer is made. The loss is sparse categorical
cross-entropy, plus whatever the model's own regularizers add. Whether the model ends in probabilities or
in logits is seen from what it puts out.

What `seed` means here: before each gradient the state of every `keras.random.SeedGenerator` in the model
is set from it, so Dropout and its kin draw the same masks for the same seed. Layers that draw from
TensorFlow's global generator instead do not follow it. Averaging gradients over peers is exact for models
whose loss is a mean over samples; with BatchNormalization it isn't one, and moving statistics stay each
peer's own.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edgepeer.errors import ModelError
from edgepeer.training.keras_setup import load_keras
from edgepeer.training.models import first_line
from edgepeer.training.seeded import bits, uniform
from edgepeer.training.state import ArraySpec, pack_state, unpack_state
from edgepeer.training.trainer import Evaluation, Float32Vector, GradientResult

__all__ = ["KerasTrainer"]

_EVALUATION_BATCH: Final = 512


class KerasTrainer:
    """One replica of a Keras model.

    Args:
        model: a keras.Model; built here for `input_shape` if it isn't yet. The trainer's own from now on.
        optimizer: a fresh keras.optimizers.Optimizer. The trainer's own from now on.
        input_shape: the shape of one sample.
        name: how messages call the model.

    Raises:
        ModelError: Keras isn't there, or the model can't take such samples or be trained by this trainer.
    """

    def __init__(self, model: Any, optimizer: Any, *, input_shape: tuple[int, ...], name: str = "model") -> None:
        self._keras = load_keras()
        import tensorflow

        self._tf = tensorflow
        self._model, self._optimizer = model, optimizer
        self._input_shape = tuple(input_shape)
        self._name = name
        self.outputs, self._from_logits = self._probe()
        """Classes that the model tells apart."""
        self._variables: list[Any] = list(model.trainable_variables)
        self._check_variables()
        self._sizes = [math.prod(variable.shape) for variable in self._variables]
        self._generators = [v for v in model.non_trainable_variables if v.name == "seed_generator_state"]
        optimizer.build(self._variables)
        spec = tensorflow.TensorSpec
        batch = [spec((None, *self._input_shape), "float32"), spec((None,), "int32")]
        seeds = spec((len(self._generators), 2), "int64")
        traced = tensorflow.function
        self._gradient = traced(self._gradient_graph, input_signature=[*batch, seeds], jit_compile=False)
        self._apply = traced(self._apply_graph, input_signature=[spec((self.size,), "float32")], jit_compile=False)
        self._evaluate = traced(self._evaluate_graph, input_signature=batch, jit_compile=False)
        for graph in (self._gradient, self._apply):
            graph.get_concrete_function()  # now, while nobody waits for it

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
            y: integer labels, shape (n,).
            out: float32, shape (size,).
            seed: decides the dropout, as the module's text says.

        Raises:
            ModelError: the batch does not fit the model.
        """
        if out.shape != (self.size,) or out.dtype != np.float32:
            raise ValueError(f"out must be a float32 vector of {self.size} elements")
        inputs, labels = self._batch(x, y)
        if len(inputs) == 0:
            out.fill(0)
            return GradientResult(0.0, 0)
        loss, flat = self._gradient(inputs, labels, self._seeds(seed))
        np.copyto(out, flat.numpy())
        return GradientResult(float(loss), len(inputs))

    def apply(self, gradient: Float32Vector) -> None:
        """One optimizer step with the gradient of the mean loss, shape (size,); deterministic to the bit."""
        if gradient.shape != (self.size,):
            raise ValueError(f"gradient of shape {gradient.shape} for {self.size} parameters")
        self._apply(gradient)

    def evaluate(self, x: NDArray[np.generic], y: NDArray[np.generic]) -> Evaluation:
        """Accuracy and mean loss, without dropout. Raises ModelError for no samples, or misfits."""
        inputs, labels = self._batch(x, y)
        if len(inputs) == 0:
            raise ModelError("no samples to evaluate on")
        loss, correct = 0.0, 0
        for start in range(0, len(inputs), _EVALUATION_BATCH):
            part = slice(start, start + _EVALUATION_BATCH)
            batch_loss, batch_correct = self._evaluate(inputs[part], labels[part])
            loss += float(batch_loss)
            correct += int(batch_correct)
        return Evaluation(correct / len(inputs), loss / len(inputs))

    def state(self) -> bytes:
        """All variables of model and optimizer, with step counter, learning rate and random states."""
        return pack_state("keras", {name: variable.numpy() for name, variable in self._all_variables().items()})

    def load_state(self, state: bytes | bytearray | memoryview) -> None:
        """Become the replica that `state` came from; on WireError this one is left as it was."""
        own = self._all_variables()
        expected = {name: _spec(variable) for name, variable in own.items()}
        found = unpack_state(state, "keras", expected)
        for name, variable in own.items():
            variable.assign(found[name].copy())  # TensorFlow may keep the memory, which is the caller's

    def _all_variables(self) -> dict[str, Any]:
        # Numbered, not named: Keras counts up the names of layers over the life of a process.
        groups = {
            "trainable": self._variables,
            "fixed": self._model.non_trainable_variables,
            "optimizer": self._optimizer.variables,
        }
        return {f"{group}.{i}": variable for group, found in groups.items() for i, variable in enumerate(found)}

    def _probe(self) -> tuple[int, bool]:
        """How many classes the model puts out, and whether as logits."""
        samples = uniform(2 * math.prod(self._input_shape), 1.0, "probe").reshape(2, *self._input_shape)
        shape = self._input_shape
        try:
            outputs = self._model(samples, training=False)
        except Exception as error:
            raise ModelError(f"model {self._name}: can't take samples of shape {shape}: {first_line(error)}") from error
        if not self._tf.is_tensor(outputs) or outputs.shape.rank != 2 or outputs.shape[0] != 2:
            found = getattr(outputs, "shape", type(outputs).__name__)
            raise ModelError(f"model {self._name}: must put out one row of classes per sample, not {found}")
        values = np.asarray(outputs, np.float64)
        # Rows of numbers from 0 on that sum to 1 come out of a softmax, not out of a random linear layer.
        probabilities = bool(np.all(values >= 0) and np.allclose(values.sum(axis=1), 1, atol=1e-3))
        return int(values.shape[1]), not probabilities

    def _check_variables(self) -> None:
        if not self._variables:
            raise ModelError(f"model {self._name}: has no trainable parameters")
        for variable in self._variables:
            if str(variable.dtype) != "float32":
                raise ModelError(f"model {self._name}: {variable.path} is {variable.dtype}; parameters must be float32")

    def _batch(self, x: NDArray[np.generic], y: NDArray[np.generic]) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        if len(x) != len(y) or x.shape[1:] != self._input_shape:
            raise ModelError(
                f"model {self._name}: {len(y)} labels and samples {x.shape}; one takes {self._input_shape}"
            )
        labels = np.asarray(y, np.int32)
        if len(labels) and not 0 <= labels.min() <= labels.max() < self.outputs:
            raise ModelError(
                f"model {self._name}: labels from {labels.min()} to {labels.max()} for {self.outputs} outputs"
            )
        return np.asarray(x, np.float32), labels

    def _seeds(self, seed: int) -> NDArray[np.int64]:
        """A state for each seed generator of the model, shape (generators, 2)."""
        drawn = bits(2 * len(self._generators), "dropout", seed) >> np.uint64(34)  # 30 bits fit every seed dtype
        return drawn.astype(np.int64).reshape(-1, 2)

    # What follows is traced by TensorFlow, each once.

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

    def _evaluate_graph(self, x: Any, y: Any) -> tuple[Any, Any]:
        tf = self._tf
        outputs = self._model(x, training=False)
        correct = tf.equal(tf.argmax(outputs, axis=1, output_type=tf.int32), y)
        return tf.reduce_sum(self._losses(y, outputs)), tf.math.count_nonzero(correct)

    def _losses(self, y: Any, outputs: Any) -> Any:
        """Cross-entropy of every sample, shape (n,)."""
        if outputs.dtype != self._tf.float32:  # mixed precision
            outputs = self._tf.cast(outputs, self._tf.float32)
        crossentropy = self._keras.losses.sparse_categorical_crossentropy
        return crossentropy(y, outputs, from_logits=self._from_logits)


def _spec(variable: Any) -> ArraySpec:
    return ArraySpec(tuple(int(length) for length in variable.shape), str(variable.dtype))
