"""Of the sums that some workers' vectors make, in which no chunk counts less than nothing, the nearest to the whole.

With chunks' mean gradients g_i over b_i samples, a sum that covers them by c = A r is the sum over i of c_i b_i g_i,
and its mean

    sum over i of p_i g_i,    p_i = c_i b_i / (sum over j of c_j b_j),

whose variance, if samples' gradients are unrelated, is that of the mean over all samples times

    sum(b) * sum(c^2 b) / sum(c b)^2,

1 where c is constant. Where all b are alike and c comes of least squares, that is N / |c|^2 with N chunks, for the sum
of such a c is |c|^2: the sum is worth |c|^2 chunks. But nobody knows the b before the sum is there, and batches differ:
the last one of a chunk may have one sample. If c has both signs, sum(c b) is anything then, and so are mean and
variance. Short r don't help: |r| says what float32 loses, and the worst c of both signs come with shorter r than many
an exact sum. If no c_i is below 0, the mean is an average of the g_i, whatever the b are, and no longer than the
longest.

So: min |A r - w|^2 over A r >= 0, of such r the shortest. Where least squares leave some c_i below 0, those are held at
0, and it is solved again, until none is; as with all of them at 0, where nothing better is found, the sum is none. In
all small cases this is the optimum (it may hold one too many in larger ones). Which c_i count as below 0 may depend on
a machine's rounding; what comes out does not, for holding at 0 what is 0 changes nothing.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["LEAST", "RANK", "nearest"]

_BELOW: Final = 1e-9
"""What is as little below 0 is 0, but for rounding."""
RANK: Final = 1e-9
LEAST: Final = 0.43
"""A sum is worth so much of one chunk at least, or is none: what is left may be nothing but rounding, and its mean of
any size. No round number, which might be met: machines round otherwise, and all are to come to the same."""


def nearest(matrix: NDArray[np.float64], wanted: NDArray[np.float64], *, rank: float = RANK) -> NDArray[np.float64]:
    """The weights r of the workers' vectors, shape (workers,).

    Args:
        matrix: A, shape (chunks, workers), of those who are there; one at least.
        wanted: w, shape (chunks,), none below 0.
        rank: singular values below this part of the greatest are zeros: with more of them r is shorter, A r less near.
    """
    found = np.asarray(np.linalg.lstsq(matrix, wanted, rcond=rank)[0], np.float64)
    held = np.zeros(len(matrix), np.bool_)
    while (below := (matrix @ found < -_BELOW) & ~held).any():
        held |= below
        has = matrix[held].any(axis=0)  # who has one of these chunks; the others are free
        _, sizes, rows = np.linalg.svd(matrix[np.ix_(held, has)])
        spared = rows[np.count_nonzero(sizes > rank * sizes[0]) :].T  # the r that leave these at 0
        free = np.concatenate([matrix[:, ~has], matrix[:, has] @ spared], axis=1)
        best = np.linalg.lstsq(free, wanted, rcond=rank)[0] if free.size else np.zeros(0)
        others = np.count_nonzero(~has)
        found[~has], found[has] = best[:others], spared @ best[others:]
    return found
