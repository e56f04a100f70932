"""By how much a code's coefficients may magnify errors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgepeer.coding.code import GradientCode

__all__ = ["magnified"]


def magnified(code: GradientCode, done: Sequence[int]) -> float:
    """The most that the coefficients of any chunk add up to, signs left out; 1 where they have nothing to cancel."""
    found = np.zeros((code.chunks, code.blocks))
    for worker, order in enumerate(code.assignment.orders):
        found[list(order)] += np.abs(code.encoding(worker, done) * code.column(worker, done))
    return float(found.max())
