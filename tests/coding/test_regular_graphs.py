"""Random regular graphs."""

from __future__ import annotations

import numpy as np
import pytest

from edgepeer.coding.graphs import (
    adjacency_assignment,
    expander,
    ramanujan_bound,
    random_regular_graph,
    second_eigenvalue,
)
from edgepeer.errors import ConfigError


@pytest.mark.parametrize("vertices", range(2, 14))
def test_all_degrees(vertices: int) -> None:
    for degree in range(1, vertices):
        if vertices * degree % 2:
            with pytest.raises(ConfigError, match=f"no graph of {vertices} vertices with degree {degree}.*even"):
                random_regular_graph(vertices, degree)
            continue
        for seed in range(5):
            graph = random_regular_graph(vertices, degree, seed)
            assert (graph == graph.T).all()
            assert not graph.diagonal().any()
            assert (graph.sum(axis=0) == degree).all()


def test_too_many_neighbours() -> None:
    with pytest.raises(ConfigError, match="1 to 5"):
        random_regular_graph(6, 6)


def test_seeds() -> None:
    assert (random_regular_graph(20, 4, 1) == random_regular_graph(20, 4, 1)).all()
    assert (random_regular_graph(20, 4, 1) != random_regular_graph(20, 4, 2)).any()


def test_all_graphs_are_found() -> None:
    """The three perfect matchings of four vertices, about equally often."""
    found = [random_regular_graph(4, 1, seed).tobytes() for seed in range(300)]
    counts = [found.count(each) for each in set(found)]
    assert len(counts) == 3
    assert min(counts) > 60


@pytest.mark.parametrize("vertices", [200, 300])
def test_the_graphs_of_the_figures(vertices: int) -> None:
    """§IV: second eigenvalues below 2 sqrt(7)."""
    assert second_eigenvalue(expander(vertices, 8)) < ramanujan_bound(8) == 2 * np.sqrt(7)


def test_known_eigenvalues() -> None:
    complete = ~np.eye(6, dtype=np.bool_)
    assert second_eigenvalue(complete) == pytest.approx(1)
    circle = np.roll(np.eye(7, dtype=np.bool_), 1, axis=0)
    assert second_eigenvalue(circle | circle.T) == pytest.approx(2 * np.cos(np.pi / 7))


def test_where_no_graph_is_below_the_bound() -> None:
    graph = expander(6, 1)
    assert (graph.sum(axis=0) == 1).all()


def test_adjacency() -> None:
    graph = random_regular_graph(9, 4, 0)
    assignment = adjacency_assignment(graph)
    assert (assignment.matrix() == graph).all()
    assert set(assignment.replication) == {4}
