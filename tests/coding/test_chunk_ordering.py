"""Orders of chunks: the best there is, by trying all of them where that can be done."""

from __future__ import annotations

from itertools import combinations, permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from partial_stragglers_model import optimal_q_max, q, q_max, random_order

from edgepeer.coding.assignment import Assignment, cyclic_assignment, paired_assignment
from edgepeer.coding.graphs import adjacency_assignment, expander, random_regular_graph
from edgepeer.coding.ordering import cyclic_order, optimal_order
from edgepeer.errors import ConfigError


def most_without(assignment: Assignment, chunk: int) -> int:
    """Q_i by trying: of each worker, as many as can be done without it."""
    return sum(max(k for k in range(len(order) + 1) if chunk not in order[:k]) for order in assignment.orders)


@given(st.integers(1, 5).flatmap(lambda n: st.lists(st.permutations(range(n)), min_size=1, max_size=5)), st.data())
def test_q_is_what_its_definition_says(orders: list[list[int]], data: st.DataObject) -> None:
    cut = [order[: data.draw(st.integers(0, len(order)))] for order in orders[1:]]
    assignment = Assignment(len(orders[0]), tuple(map(tuple, [orders[0], *cut])))
    assert q(assignment).tolist() == [most_without(assignment, i) for i in range(assignment.chunks)]


@pytest.mark.parametrize(
    "assignment",
    [
        cyclic_assignment(4, 2),
        cyclic_assignment(4, 3),
        cyclic_assignment(5, 3),
        adjacency_assignment(random_regular_graph(6, 2, 1)),
        adjacency_assignment(random_regular_graph(4, 3, 0)),
        Assignment(4, ((0, 1), (0, 1), (2, 3), (2, 3))),
    ],
)
def test_no_order_is_better(assignment: Assignment) -> None:
    load = len(assignment.orders[0])
    every = product(*(permutations(order) for order in assignment.orders))
    least = min(q_max(Assignment(assignment.chunks, orders)) for orders in every)
    assert q_max(optimal_order(assignment)) == least == optimal_q_max(assignment.workers, load)


@pytest.mark.parametrize(("workers", "degree"), [(10, 3), (16, 7), (200, 8), (300, 8), (13, 12)])
def test_regular_graphs_reach_the_bound(workers: int, degree: int) -> None:
    assignment = adjacency_assignment(expander(workers, degree))
    best = optimal_order(assignment)
    assert q_max(best) == optimal_q_max(workers, degree)
    assert set(q(best).tolist()) == {q_max(best)}, "all chunks alike"
    assert [set(order) for order in best.orders] == [set(order) for order in assignment.orders]
    for place in range(degree):
        assert len({order[place] for order in best.orders}) == workers, "each place is a permutation"


def test_the_example_of_figure_2() -> None:
    """Five workers with three chunks each: 10 in one order, 9 in the best."""
    assert optimal_q_max(5, 3) == 9
    orders = ((0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 0), (4, 0, 1))
    assert q_max(Assignment(5, orders)) == 9
    assert q_max(Assignment(5, (*orders[:4], (0, 4, 1)))) == 10


@pytest.mark.parametrize(("workers", "load"), [(5, 3), (12, 3), (12, 12), (200, 8)])
def test_cyclic_assignments_are_in_the_best_order_as_they_are(workers: int, load: int) -> None:
    assignment = cyclic_assignment(workers, load)
    assert q_max(assignment) == optimal_q_max(workers, load)
    assert cyclic_order(assignment) == assignment == optimal_order(assignment)


@pytest.mark.parametrize(("workers", "load"), [(4, 2), (5, 3), (6, 4), (12, 3), (15, 3), (15, 13), (16, 14)])
def test_paired_assignments_are_in_the_best_order_as_they_are(workers: int, load: int) -> None:
    assignment = paired_assignment(workers, load)
    assert assignment.replication == (load,) * workers
    assert set(assignment.loads.tolist()) == {load}
    for place in range(load):
        assert {order[place] for order in assignment.orders} == set(range(workers))
    assert q_max(assignment) == optimal_q_max(workers, load)


@pytest.mark.parametrize(("workers", "slow", "cyclic", "paired"), [(12, 3, 112, 160), (15, 4, 450, 720)])
def test_in_pairs_fewer_chunks_take_longer_than_two(workers: int, slow: int, cyclic: int, paired: int) -> None:
    """In how many patterns of stragglers, who get nothing done, others have every chunk first or second."""
    for assignment, good in ((cyclic_assignment(workers, 3), cyclic), (paired_assignment(workers, 3), paired)):
        found = 0
        for stragglers in combinations(range(workers), slow):
            done = [0 if worker in stragglers else 2 for worker in range(workers)]
            found += bool(assignment.computed(done).any(axis=1).all())
        assert found == good


def test_random_orders() -> None:
    assignment = cyclic_assignment(12, 4)
    one, best = random_order(assignment, 3), random_order(assignment, 3, draws=50)
    assert one == random_order(assignment, 3) != assignment
    assert optimal_q_max(12, 4) <= q_max(best) <= q_max(one)


@pytest.mark.parametrize(
    "assignment",
    [Assignment(2, ((0, 1), (0, 1), (0, 1))), Assignment(2, ((0, 1), (0,))), Assignment(3, ((0, 1), (0, 1), (0, 2)))],
)
def test_where_no_optimal_order_is_known(assignment: Assignment) -> None:
    with pytest.raises(ConfigError, match="the optimal order is known for"):
        optimal_order(assignment)
