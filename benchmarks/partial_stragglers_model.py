"""The simulation of Ramamoorthy, Meng, Girimaji 2024, §IV: when each worker has computed what, and what sum can be had.

All runs at once: arrays have one row per run. `blocks` is the paper's l. Assignments must have as many copies of each
chunk and as many chunks at each worker; errors are in the paper's units, squared entries of a chunk's gradient cut
into `blocks` (`Recovery.error` of the library, times `blocks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeer.coding.assignment import Assignment
from edgepeer.coding.code import GradientCode
from edgepeer.coding.encode import encode, expand
from edgepeer.coding.partial import PartialCode

__all__ = [
    "TIMES",
    "completion_times",
    "copy_times",
    "estimated_errors",
    "finish_times",
    "gaussian_columns",
    "least_squares_errors",
    "optimal_q_max",
    "original_errors",
    "projection_errors",
    "q",
    "q_max",
    "random_order",
    "sum_of",
]

#: What is drawn from the exponential distribution: one time per worker and run, which all of its chunks take, or one
#: for each chunk.
TIMES = ("worker", "chunk")

_RIDGE = 1e-9
"""Added to the Gram matrix, for columns may be dependent; changes the squared error by so much times |r|^2."""


def q(assignment: Assignment) -> NDArray[np.int64]:
    """Q_i of all chunks (ibid., §III), shape (chunks,): how many chunks may be computed without any copy of i."""
    ordering = assignment.ordering
    return np.asarray(np.where(ordering > 0, ordering - 1, assignment.loads).sum(axis=1))


def q_max(assignment: Assignment) -> int:
    """The greatest Q_i: one chunk more, and every chunk is computed, in any case."""
    return int(q(assignment).max())


def optimal_q_max(workers: int, load: int) -> int:
    """The least Q_max of as many chunks as workers, `load` for each worker and each in `load` places."""
    return load * (load + 1) // 2 + (workers - load - 1) * load


def random_order(assignment: Assignment, seed: int, draws: int = 1) -> Assignment:
    """Of so many random orders the first with the least Q_max (the paper compares with the best of 100)."""
    rng = np.random.default_rng(seed)
    drawn = [
        Assignment(assignment.chunks, tuple(tuple(rng.permutation(order).tolist()) for order in assignment.orders))
        for _ in range(draws)
    ]
    return min(drawn, key=q_max)


def gaussian_columns(workers: int, blocks: int, seed: int) -> NDArray[np.float64]:
    """R as the paper draws it: independent, of the standard normal distribution, shape (blocks, workers)."""
    return np.random.default_rng(seed).standard_normal((blocks, workers))


def sum_of(code: GradientCode, gradients: NDArray[Any], done: Sequence[int]) -> NDArray[Any]:
    """What the workers' vectors add up to, all of it in one place.

    Args:
        gradients: by chunk, shape (chunks, size), size a multiple of the code's blocks.
        done: how many of its chunks each worker has computed.

    Returns:
        Shape (size,).
    """
    out = np.zeros(gradients.shape[1], gradients.dtype)
    for worker, brings in enumerate(code.brings(done)):
        if brings:
            order = code.assignment.orders[worker]
            narrow = encode([gradients[i] for i in order], code.encoding(worker, done))
            expand(narrow, code.column(worker, done), out)
    return out


def finish_times(
    rng: np.random.Generator, shape: tuple[int, int, int], failed: int, times: str = TIMES[0]
) -> NDArray[np.float64]:
    """When each worker has finished its k-th chunk: shape (runs, workers, load), infinite at the `failed` workers that
    are drawn anew in each run."""
    runs, workers, _ = shape
    each = rng.exponential(size=shape if times == "chunk" else (runs, workers, 1))
    finished = np.cumsum(np.broadcast_to(each, shape), axis=2)
    finished[rng.random((runs, workers)).argsort(axis=1) < failed] = np.inf
    return finished


def copy_times(assignment: Assignment, finished: NDArray[np.float64], whole: bool = False) -> NDArray[np.float64]:
    """When the copies of each chunk count, shape (runs, chunks, copies), in the order of the workers that have them.

    Args:
        whole: only when its worker has finished all of its chunks, as in the original protocol.
    """
    holders, places = _holders(assignment)
    return np.asarray(finished[:, holders, -1 if whole else places])


def completion_times(copies: NDArray[np.float64], blocks: int) -> NDArray[np.float64]:
    """When there are `blocks` copies of each chunk, shape (runs,)."""
    return np.asarray(np.partition(copies, blocks - 1, axis=2)[:, :, blocks - 1].max(axis=1))


def estimated_errors(there: NDArray[np.bool_], blocks: int) -> NDArray[np.float64]:
    """Equation (6): the sum over chunks of max(0, l - copies), from psi alone, shape (runs,).

    Args:
        there: which copies count by now, shape (runs, chunks, copies).
    """
    missing = np.maximum(0, blocks - np.count_nonzero(there, axis=2))
    return np.asarray(missing.sum(axis=1), np.float64)


def projection_errors(code: PartialCode) -> NDArray[np.float64]:
    """Squared error of Algorithm 1's least squares by chunk and set of its copies, shape (chunks, 2 ** copies).

    Bit k of a set is the k-th worker that has the chunk. A set with X = R[:, set] costs |X pinv(X) - I|^2 (§II-A): the
    squared errors for all l blocks of the sum, added up.
    """
    holders, _ = _holders(code.assignment)
    copies = holders.shape[1]
    sets = np.arange(2**copies)[:, None] >> np.arange(copies) & 1
    out = np.empty((code.chunks, len(sets)))
    for chunk, row in enumerate(code.columns[:, holders].transpose(1, 0, 2)):
        systems = row * sets[:, None, :]
        wrong = systems @ np.linalg.pinv(systems, rcond=1e-9) - np.eye(code.blocks)
        out[chunk] = (wrong**2).sum(axis=(1, 2))
    return out


def least_squares_errors(there: NDArray[np.bool_], table: NDArray[np.float64]) -> NDArray[np.float64]:
    """What the proposed protocol's least squares leave in each run, shape (runs,), looked up in `projection_errors`."""
    sets = there @ (1 << np.arange(there.shape[2]))
    return np.asarray(table[np.arange(len(table)), sets].sum(axis=1))


def original_errors(assignment: Assignment, complete: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Original protocol: min |A r - 1|^2 with r zero where a worker has not finished, shape (runs,).

    By the normal equations: with G = A^T A of those that have, and b = A^T 1, it is chunks - b G^-1 b.

    Args:
        complete: who has finished all of its chunks, shape (runs, workers).
    """
    matrix = assignment.matrix()
    gram = matrix.T @ matrix + _RIDGE * np.eye(assignment.workers)
    loads = matrix.sum(axis=0)
    out = np.full(len(complete), float(assignment.chunks))
    for run, row in enumerate(complete):
        who = np.flatnonzero(row)
        if len(who):
            out[run] -= loads[who] @ np.linalg.solve(gram[np.ix_(who, who)], loads[who])
    return np.asarray(np.maximum(out, 0.0))


def _holders(assignment: Assignment) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """By chunk the workers that have it, and at which place of theirs, from 0 on; shape (chunks, copies)."""
    holders = np.array([np.flatnonzero(row) for row in assignment.ordering])
    return holders, np.asarray(np.take_along_axis(assignment.ordering, holders, axis=1)) - 1
