"""What a trainer is: flat float32 parameters, a gradient of a batch, and an optimizer step.

Any framework fits behind it. Nothing here is asynchronous: the peer calls a trainer from one worker thread.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

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

    accuracy: float
    """Share of samples classified correctly, 0 to 1."""
    loss: float
    """Mean loss."""


@runtime_checkable
class Trainer(Protocol):
    """One model replica on one device."""

    @property
    def size(self) -> int:
        """Number of parameters."""

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
        """Accuracy and loss, without dropout."""

    def state(self) -> bytes:
        """Parameters, optimizer state and step counters, for another replica's `load_state`."""

    def load_state(self, state: bytes | bytearray | memoryview) -> None:
        """Become the replica that `state` came from. Raises WireError if it does not fit this model."""
