"""Assignments of chunks to workers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepeer.coding.assignment import Assignment, cyclic_assignment
from edgepeer.errors import ConfigError


def test_what_it_says_of_itself() -> None:
    a = Assignment(3, ((0, 2), (), (1, 0, 2)))
    assert (a.workers, a.chunks, a.replication) == (3, 3, (2, 1, 2))
    assert a.loads.tolist() == [2, 0, 3]
    assert a.ordering.tolist() == [[1, 0, 2], [0, 0, 1], [2, 0, 3]]
    assert a.matrix().tolist() == [[1, 0, 1], [0, 0, 1], [1, 0, 1]]
    assert a.complete((2, 0, 2)).tolist() == [True, False, False]


@given(st.data())
def test_computed_is_the_first_of_each_order(data: st.DataObject) -> None:
    chunks = data.draw(st.integers(1, 6))
    orders = data.draw(st.lists(st.permutations(range(chunks)), min_size=1, max_size=5))
    a = Assignment(chunks, tuple(map(tuple, orders)))
    done = [data.draw(st.integers(0, chunks)) for _ in orders]
    for worker, order in enumerate(orders):
        assert set(np.flatnonzero(a.computed(done)[:, worker])) == set(order[: done[worker]])


def test_cyclic() -> None:
    assert cyclic_assignment(4, 3).orders == ((0, 1, 2), (1, 2, 3), (2, 3, 0), (3, 0, 1))


@pytest.mark.parametrize(
    ("chunks", "orders", "text"),
    [
        (2, ((0, 1, 0),), "twice"),
        (2, ((0, 1, 2),), "no chunk 2"),
        (2, ((0,), (0,)), "nobody has chunk 1"),
        (0, ((),), "nobody has chunk 0"),
    ],
)
def test_what_is_refused(chunks: int, orders: tuple[tuple[int, ...], ...], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Assignment(chunks, orders)


def test_more_copies_than_workers() -> None:
    with pytest.raises(ConfigError, match="5 copies"):
        cyclic_assignment(4, 5)
