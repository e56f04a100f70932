"""Trained models in files: .keras for Keras, .npz for NumPy alone.

A .npz file holds a dense network: kernel_0 (inputs, width), bias_0 (width,), kernel_1 ... of its layers, with relu
between them; input_shape, of one sample; and loss, the name of what it was trained on. `load_npz` reads it. The model
in a .keras file puts out what it did in training: built-in ones no probabilities, but their logits.
"""

from __future__ import annotations

import importlib.util
import io
import math
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgepeer.errors import ConfigError, DataError, JobError, ModelError
from edgepeer.processes import os_reason
from edgepeer.training.build import build_trainer
from edgepeer.training.checkpoint import write_atomically
from edgepeer.training.form import CLASSIFYING, Form
from edgepeer.training.job import Job
from edgepeer.training.keras_setup import keras_by_itself
from edgepeer.training.models import DENSE_NETWORKS, keras_model
from edgepeer.training.naming import parse_function
from edgepeer.training.npz import read_npz
from edgepeer.training.split.dense import dense_network
from edgepeer.training.split.export import WHOLE, read_whole
from edgepeer.training.state import parameter_digest, read_about
from edgepeer.training.trainer import Float32Vector, Trainer
from edgepeer.wire.encoding import first_not_finite

__all__ = ["SUFFIXES", "DenseModel", "check_target", "load_npz", "save_model"]

SUFFIXES: Final = (".keras", ".npz")
_MOST_LAYERS: Final = 64

_Layer = tuple[NDArray[np.float32], NDArray[np.float32]]


def _is_installed(package: str) -> bool:
    return package != "__main__" and importlib.util.find_spec(package) is not None  # that is this program itself


def check_target(what: str, path: Path, *, model: str, described: bool) -> None:
    """Refuse what could not be written when the training is over.

    Args:
        what: how the setting is called.
        model: the job's; `described`: whether a Keras config describes it instead.

    Raises:
        ConfigError: the file can't be written, or not in this format, or the model can't be built here.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{what} = {path}: must end in .keras, or in .npz for a model for NumPy")
    if path.suffix == ".npz" and (described or model not in DENSE_NETWORKS):
        raise ConfigError(f"{what} = {path}: only {', '.join(DENSE_NETWORKS)} fit into .npz; use .keras")
    if path.suffix == ".keras" and importlib.util.find_spec("keras") is None:
        raise ConfigError(f"{what} = {path}: needs Keras here: pip install 'edgepeer[tensorflow]'; or use .npz")
    named = parse_function(model) if not described else None
    if named is not None and not _is_installed(named.package):
        raise ConfigError(f"{what} = {path}: needs model {model} here, too: no package {named.package!r} is installed")
    try:
        if path.is_dir():
            raise ConfigError(f"{what} = {path}: is a directory; must be a file")
        if not os.access(path.parent, os.W_OK | os.X_OK) or (path.exists() and not path.is_file()):
            problem = "can't write there" if path.parent.is_dir() else f"there is no directory {path.parent}"
            raise ConfigError(f"{what} = {path}: {problem}")
        probe = path.with_name(f".{path.stem}.never-used{path.suffix}")  # no shorter than what is written first
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT, 0o600))
        probe.unlink(missing_ok=True)
    except OSError as error:  # below what can't be looked into, or too long a name
        raise ConfigError(f"{what} = {path}: can't write there: {os_reason(error)}") from None


def save_model(
    path: Path,
    job: Job,
    state: bytes | memoryview,
    *,
    digest: str,
    models: Collection[str] = (),
    broken: bool = False,
) -> bool:
    """Write the model of a job with the parameters of a trainer's state.

    Args:
        state: a trainer's; of a split job what `split.export.pack_whole` makes.
        digest: what `parameter_digest` must say of them.
        models: the packages that the job may name a function of.
        broken: write it also if it is: the step after a round whose loss was finite may have been too large.

    Returns:
        Whether all parameters are finite.

    Raises:
        EdgepeerError: the model is broken; the state is not of this job, or damaged; or the model can't be built or
            written here.
    """
    kind, form = read_about(state)
    trainer = None
    if kind == WHOLE:
        vector = read_whole(dense_network(job, form), state)
    else:
        trained = msgspec.structs.replace(job, trainer="keras" if kind == "keras" else "numpy")
        trainer = build_trainer(trained, form, models=models)
        trainer.load_state(state)
        vector = trainer.parameters()
    if parameter_digest(vector) != digest:
        raise JobError("the state's parameters are not those that the peers have trained")
    at = first_not_finite(vector)
    if at >= 0 and not broken:
        raise ModelError(f"{path}: the model is broken: its parameter {at} is not finite: train with smaller steps")
    dense = None
    if job.model in DENSE_NETWORKS and not job.model_config:
        dense = _layers(vector, (form.features, *DENSE_NETWORKS[job.model].hidden, form.outputs))
    try:
        if path.suffix == ".npz":
            if dense is None:
                raise ModelError(f"{path}: only {', '.join(DENSE_NETWORKS)} fit into .npz; use .keras")
            _write_npz(path, dense, form)
            return at < 0
        fresh = path.with_name(f".{path.stem}.unfinished.keras")  # Keras goes by the suffix
        try:
            _save_keras(fresh, path, job, _keras_of(job, trainer, form, vector), form)
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        raise ModelError(f"{path}: can't be written: {error.strerror or error}") from error
    return at < 0


def _keras_of(job: Job, trainer: Trainer | None, form: Form, vector: Float32Vector) -> Any:
    """Something that Keras can save."""
    if hasattr(trainer, "save"):
        return trainer
    with keras_by_itself():
        model = keras_model(job.model, job.model_config, form)
        model(np.zeros((1, *form.input_shape), np.float32))  # has it make its variables
    start = 0
    for variable in model.trainable_variables:
        end = start + math.prod(variable.shape)
        variable.assign(vector[start:end].reshape(variable.shape))
        start = end
    return model


def _save_keras(fresh: Path, path: Path, job: Job, model: Any, form: Form) -> None:
    """Write a .keras file. Of a class that Keras has no description of, the training is not to be lost: its weights
    need none, and are written beside `path`; the error says where, and how to use them."""
    try:
        model.save(fresh)
    except ModelError as error:
        beside = path.with_name(f"{path.stem}-{job.id}.weights.h5")
        unfinished = path.with_name(f".{path.stem}.unfinished.weights.h5")
        try:
            model.save_weights(unfinished)
            unfinished.replace(beside)
        except (ModelError, OSError):
            raise error from None  # it was the disk, say
        finally:
            unfinished.unlink(missing_ok=True)
        samples = (1, *form.input_shape)
        raise ModelError(
            f"{str(error).rstrip('.')}. Its weights are in {beside}: make the model with {job.model_name}, as the "
            f"devices do, call it once, as in model(numpy.zeros({samples})), then model.load_weights({str(beside)!r})"
        ) from error


def _layers(vector: Float32Vector, widths: Sequence[int]) -> list[_Layer]:
    """Kernels and biases of a dense network, as both trainers lay them out."""
    layers, start = [], 0
    for rows, columns in pairwise(widths):
        middle = start + rows * columns
        layers.append((vector[start:middle].reshape(rows, columns), vector[middle : middle + columns]))
        start = middle + columns
    return layers


def _write_npz(path: Path, layers: Sequence[_Layer], form: Form) -> None:
    arrays: dict[str, Any] = {"input_shape": np.array(form.input_shape, np.int64), "loss": np.array(form.loss)}
    for number, (kernel, bias) in enumerate(layers):
        arrays |= {f"kernel_{number}": kernel, f"bias_{number}": bias}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    write_atomically(path, buffer.getbuffer(), mode=0o666)  # as any file that somebody asks for


@dataclass(frozen=True, kw_only=True)
class DenseModel:
    """A trained dense network, in NumPy alone."""

    layers: tuple[_Layer, ...]
    """Kernel and bias of each."""
    input_shape: tuple[int, ...]
    """Of one sample."""
    loss: str

    def predict(self, x: ArrayLike) -> NDArray[np.float32]:
        """What the model says of samples, shape (n, *input_shape): probabilities where it classifies, else numbers.

        Raises:
            ModelError: these are no such samples.
        """
        samples = np.asarray(x, np.float32)
        if samples.shape[1:] != self.input_shape:
            raise ModelError(f"samples of shape {samples.shape[1:]} for a model that takes {self.input_shape}")
        outputs = samples.reshape(len(samples), -1)
        for number, (kernel, bias) in enumerate(self.layers):
            outputs = (np.maximum(outputs, 0) if number else outputs) @ kernel + bias
        if self.loss not in CLASSIFYING:
            return outputs
        if self.loss == "binary_crossentropy":
            return np.asarray(0.5 * (1 + np.tanh(0.5 * outputs)), np.float32)
        powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True), np.float32)


def load_npz(path: Path | str) -> DenseModel:
    """The model in a .npz file.

    Raises:
        DataError: the file can't be read, or holds none.
    """
    where = Path(path)
    names = [f"{part}_{number}" for number in range(_MOST_LAYERS) for part in ("kernel", "bias")]
    found = read_npz(where, ("input_shape", "loss", *names))
    layers: list[_Layer] = []
    while f"kernel_{len(layers)}" in found and f"bias_{len(layers)}" in found:
        number = len(layers)
        layers.append((found[f"kernel_{number}"], found[f"bias_{number}"]))
    if not layers or "loss" not in found or "input_shape" not in found or len(found) != 2 * len(layers) + 2:
        raise DataError(f"{where}: is not a saved model: needs input_shape, loss, kernel_0, bias_0 and so on")
    lengths = found["input_shape"].reshape(-1)
    if lengths.dtype.kind not in "iu" or any(array.dtype.kind != "f" for layer in layers for array in layer):
        raise DataError(f"{where}: is not a saved model: its layers are no numbers")
    shape = tuple(int(length) for length in lengths)
    widths = [math.prod(shape), *(bias.size for _, bias in layers)]
    fits = [(rows, columns, columns) for rows, columns in pairwise(widths)]
    if min(shape, default=1) < 1 or [kernel.shape + bias.shape for kernel, bias in layers] != fits:
        raise DataError(f"{where}: is not a saved model: its layers don't fit together")
    return DenseModel(layers=tuple(layers), input_shape=shape, loss=str(found["loss"]))
