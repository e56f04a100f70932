"""No code: each chunk with one worker, and nothing to be had of a worker that isn't there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgepeer.coding.assignment import cyclic_assignment
from edgepeer.coding.linear import LinearCode

__all__ = ["UncodedCode"]


class UncodedCode(LinearCode):
    """As many chunks as workers, one each. The sum lacks the chunks of workers that are not there."""

    def __init__(self, name: str, workers: int) -> None:
        super().__init__(name, cyclic_assignment(workers, 1))

    def _solve(self, there: NDArray[np.bool_]) -> NDArray[np.float64]:
        return there.astype(np.float64)
