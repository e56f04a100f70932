"""What a trainer is: flat float32 parameters, a gradient of a batch, and an optimizer step.

Any framework fits behind it. Nothing here is asynchronous: the peer calls a trainer from one worker thread.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from edgepeer.training.form import Form

__all__ = ["Evaluation", "Float32Vector", "GradientResult", "Trainer"]

Float32Vector = NDArray[np.float32]


class GradientResult(NamedTuple):
    """What one batch gave."""

    loss: float
    """Mean loss over the batch."""
    samples: int
    """How many samples the batch held: the weight of its gradient."""


class Evaluation(NamedTuple):
    """How good the parameters are on held-out data."""

    loss: float
    """Mean loss."""
    accuracy: float | None = None
    """Share classified correctly, 0 to 1; None where nothing is classified."""
    mae: float | None = None
    """Mean absolute error, where numbers are to be put out ..."""
    rmse: float | None = None
    """... and the root of the mean squared error."""

    @classmethod
    def of(cls, sums: tuple[float, float, float], samples: int, numbers: int, *, classifying: bool) -> Evaluation:
        """From sums over all samples: of the loss; and over their numbers: right ones, or absolute and squared errors.

        Args:
            numbers: how many a sample is measured by.
        """
        loss, first, second = sums
        count = samples * numbers
        if classifying:
            return cls(float(loss / samples), accuracy=float(first / count))
        return cls(float(loss / samples), mae=float(first / count), rmse=math.sqrt(second / count))


@runtime_checkable
class Trainer(Protocol):
    """One model replica on one device."""

    @property
    def size(self) -> int:
        """Number of parameters."""

    @property
    def form(self) -> Form:
        """What the model takes and puts out. A state says it, too: see `state.read_about`."""

    def parameters(self) -> Float32Vector:
        """A copy of all trainable parameters, shape (size,)."""

    def gradient(
        self, x: NDArray[np.generic], y: NDArray[np.generic], out: Float32Vector, *, seed: int
    ) -> GradientResult:
        """Write the gradient of the *mean* loss over the batch to `out`, shape (size,).

        `seed` drives everything random in the forward pass (dropout), so that a batch can be computed again.
        """

    def apply(self, gradient: Float32Vector) -> None:
        """One optimizer step with the gradient of the mean loss, shape (size,). Same bits in, same bits out."""

    def evaluate(self, x: NDArray[np.generic], y: NDArray[np.generic]) -> Evaluation:
        """Loss and what else says how good it is, without dropout."""

    def state(self, *, data: str = "") -> bytes:
        """Parameters, optimizer state and step counters, for another replica's `load_state`. `data`: what it is trained
        on, for `state.read_data`."""

    def load_state(self, state: bytes | bytearray | memoryview) -> None:
        """Become the replica that `state` came from. Raises WireError if it does not fit this model."""
