"""What a model is to be good at: the loss, from the data where the job leaves it open, and what fits to it.

crossentropy         integer labels, one output for each class
binary_crossentropy  labels 0 and 1, or numbers from 0 to 1: one output for each number, the logit of its probability
mse, mae, huber      numbers: one output for each
auto                 crossentropy for integer labels, mse for other numbers
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeer.errors import DataError, ModelError
from edgepeer.training.datasets import Dataset
from edgepeer.training.form import Form, LossChoice, LossName

__all__ = ["expected", "form_of", "loss_and_delta", "losses_of"]

_Matrix = NDArray[Any]
"""Float32 or float64; what is made of it is, too."""


def form_of(dataset: Dataset, loss: LossChoice) -> Form:
    """What a model for these data must be like.

    Raises:
        DataError: the data are nothing for this loss.
    """
    labelled = dataset.classes > 0
    if loss == "auto":
        loss = "crossentropy" if labelled else "mse"
    outputs = 1 if labelled else dataset.y_train.shape[1]
    if loss == "crossentropy":
        if not labelled:
            raise DataError(f"dataset {dataset.name}: loss crossentropy needs integer labels as y; these are numbers")
        outputs = dataset.classes
    elif loss == "binary_crossentropy":
        targets = [y for y in (dataset.y_train, dataset.y_test) if len(y)]
        if any(y.min() < 0 or y.max() > 1 for y in targets) or dataset.classes > 2:
            raise DataError(f"dataset {dataset.name}: loss binary_crossentropy needs a y from 0 to 1")
    return Form(
        input_shape=tuple(dataset.input_shape),
        outputs=outputs,
        loss=loss,
        at_least=dataset.local and loss == "crossentropy",
        name=dataset.name,
    )


def expected(y: NDArray[Any], loss: LossName, outputs: int, what: str) -> NDArray[Any]:
    """What a model is to put out: labels, int32, shape (n,), of crossentropy, else float32, shape (n, outputs).

    Raises:
        ModelError: it has not so many outputs; `what` says what has.
    """
    if loss == "crossentropy":
        labels = np.asarray(y, np.int32)
        if len(labels) and not 0 <= labels.min() <= labels.max() < outputs:
            raise ModelError(f"{what}: labels from {labels.min()} to {labels.max()} for {outputs} outputs")
        return labels
    targets = np.asarray(y, np.float32).reshape(len(y), -1)
    if len(y) and targets.shape[1] != outputs:
        raise ModelError(f"{what}: {targets.shape[1]} numbers to learn for {outputs} outputs")
    return targets


def loss_and_delta(loss: LossName, outputs: _Matrix, wanted: NDArray[Any]) -> float:
    """The summed loss over a batch. `outputs` become its derivative by them, each sample's, not divided by anything.

    Args:
        wanted: as `expected` gives it.
    """
    if loss == "crossentropy":
        outputs -= outputs.max(axis=1, keepdims=True)
        rows = np.arange(len(wanted))
        right = outputs[rows, wanted]
        np.exp(outputs, out=outputs)
        total = outputs.sum(axis=1, keepdims=True)
        outputs /= total
        outputs[rows, wanted] -= 1
        return float(np.sum(np.log(total[:, 0]) - right, dtype=np.float64))
    summed = float(np.sum(losses_of(loss, outputs, wanted), dtype=np.float64))
    if loss == "binary_crossentropy":
        # The logistic function without overflow: exp of what is not above 0.
        small = np.exp(-np.abs(outputs))
        np.copyto(outputs, np.where(outputs >= 0, 1 / (1 + small), small / (1 + small)) - wanted)
    else:
        outputs -= wanted
        if loss == "mse":
            outputs *= 2
        else:
            np.copyto(outputs, np.sign(outputs) if loss == "mae" else np.clip(outputs, -1, 1))
    outputs /= outputs.shape[1]
    return summed


def losses_of(loss: LossName, outputs: _Matrix, wanted: _Matrix) -> _Matrix:
    """The loss of every sample but for crossentropy's, shape (n,): the mean over its outputs, as in Keras."""
    if loss == "binary_crossentropy":
        each = np.maximum(outputs, 0) - outputs * wanted + np.log1p(np.exp(-np.abs(outputs)))
    else:
        off = outputs - wanted
        far = np.abs(off)
        if loss == "mse":
            each = off * off
        elif loss == "mae":
            each = far
        else:
            each = np.where(far <= 1, 0.5 * off * off, far - 0.5)
    result: _Matrix = each.mean(axis=1)
    return result
