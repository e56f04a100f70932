"""In what order workers compute their chunks, so that every chunk is computed soon by somebody.

Source: Ramamoorthy, Meng, Girimaji 2024, §III. For chunk i, Q_i is the most chunks that all workers together can have
computed with no copy of i among them:

    Q_i = sum over workers j with i of (O[i, j] - 1) + sum over the others of how many chunks they have,

with O the ordering matrix; 1 + Q_max, the greatest of them, is how many must be computed in the worst case before all
chunks are. If every worker has d chunks and every chunk is with d of m workers, the Q_i add up to the same for every
order, so Q_max >= d (d + 1) / 2 + (m - d - 1) d. Algorithm 2 reaches it: A is a sum of d permutations (perfect
matchings of workers and chunks), and the k-th says what comes k-th at each worker.
"""

from __future__ import annotations

from collections import deque

from edgepeer.coding.assignment import Assignment
from edgepeer.errors import ConfigError

__all__ = ["cyclic_order", "optimal_order"]


def cyclic_order(assignment: Assignment) -> Assignment:
    """Each worker starts with the chunk of its own number, or the next that it has, and goes round.

    On a cyclic assignment this is optimal, too.
    """
    count = assignment.chunks
    orders = tuple(
        tuple(sorted(order, key=lambda chunk: (chunk - worker) % count))
        for worker, order in enumerate(assignment.orders)
    )
    return Assignment(count, orders)


def optimal_order(assignment: Assignment) -> Assignment:
    """The chunks in an order with the least Q_max: Algorithm 2.

    Raises:
        ConfigError: there are not as many chunks as workers, or workers differ in load, or chunks in copies.
    """
    loads, copies = set(assignment.loads.tolist()), set(assignment.replication)
    if assignment.chunks != assignment.workers or len(loads) != 1 or loads != copies:
        raise ConfigError(
            "the optimal order is known for as many chunks as workers, the same load at each and as many copies of "
            f"each; here {assignment.chunks} chunks, {assignment.workers} workers, "
            f"{min(loads)} to {max(loads)} chunks at each, {min(copies)} to {max(copies)} copies"
        )
    left = [list(order) for order in cyclic_order(assignment).orders]
    orders: list[list[int]] = [[] for _ in left]
    for _ in range(loads.pop()):
        for worker, chunk in enumerate(_perfect_matching(left)):
            left[worker].remove(chunk)
            orders[worker].append(chunk)
    return Assignment(assignment.chunks, tuple(map(tuple, orders)))


def _perfect_matching(options: list[list[int]]) -> list[int]:
    """By worker one of its chunks, all different: augmenting paths, shortest first.

    There is one if all have the same number of options and all chunks are optional for as many (Hall; the paper's
    Claim 1).
    """
    holder: dict[int, int] = {}
    has: dict[int, int] = {}
    for start in range(len(options)):
        chunk, reached = _reach_free(options, holder, start)
        while True:  # back along the path: who reached a chunk takes it, and gives up the one before
            worker = reached[chunk]
            before = has.get(worker)
            holder[chunk], has[worker] = worker, chunk
            if before is None:
                break
            chunk = before
    return [has[worker] for worker in range(len(options))]


def _reach_free(options: list[list[int]], holder: dict[int, int], start: int) -> tuple[int, dict[int, int]]:
    """The nearest chunk that nobody has, over chunks that others would have to give up; and who reached which chunk."""
    reached: dict[int, int] = {}
    waiting = deque([start])
    while True:
        worker = waiting.popleft()
        for chunk in options[worker]:
            if chunk not in reached:
                reached[chunk] = worker
                if chunk not in holder:
                    return chunk, reached
                waiting.append(holder[chunk])
