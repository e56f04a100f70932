"""Isolation by failed links (Padrão 2020, §6.4, Figure 11), against brute force over all orders of failures."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from edgepeer.simulation.isolation import SYSTEMS, Link, System, failures_until_isolation, links_of, measure, table
from edgepeer.simulation.isolation_plot import plot_png

BROKER = -1


def reaches(left: set[Link], start: int, goal: int) -> bool:
    """Whether there is a path, by search."""
    seen, todo = {start}, [start]
    while todo:
        at = todo.pop()
        for link in left:
            if at in link:
                other = link[0] if link[1] == at else link[1]
                if other not in seen:
                    seen.add(other)
                    todo.append(other)
    return goal in seen


def somebody_is_isolated(system: System, peers: int, left: set[Link]) -> bool:
    """The definitions, word for word."""
    if not system.endswith("-hop"):
        return not all(reaches(left, position, 0) for position in range(1, peers))

    def linked(one: int, other: int) -> bool:
        return (min(one, other), max(one, other)) in left

    for child in range(1, peers):
        parent = (child - 1) // 2
        hops = [h for h in (BROKER, *range(peers)) if h not in (child, parent)]
        if not linked(parent, child) and not any(linked(parent, hop) and linked(hop, child) for hop in hops):
            return True
    return False


def brute_force(system: System, peers: int, links: list[Link], order: tuple[int, ...]) -> int:
    """Let links fail one by one. `order`: as which each fails."""
    for failed in range(1, len(links) + 1):
        left = {link for link, number in zip(links, order, strict=True) if number > failed}
        if somebody_is_isolated(system, peers, left):
            return failed
    raise AssertionError("with no link left somebody must be isolated")


@pytest.mark.parametrize(
    ("system", "peers"), [("tree", 2), ("tree", 5), ("thesis", 3), ("ours", 2), ("ours", 3), ("ours-hop", 3)]
)
def test_every_order_of_failures_of_a_tiny_tree(system: System, peers: int) -> None:
    links = links_of(system, peers)
    orders = list(permutations(range(1, len(links) + 1)))
    found = failures_until_isolation(system, peers, np.array(orders))
    assert found.tolist() == [brute_force(system, peers, links, order) for order in orders]


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("peers", [4, 5, 7, 10])
def test_random_orders_of_larger_trees(system: System, peers: int) -> None:
    links = links_of(system, peers)
    rng = np.random.default_rng(peers)
    orders = rng.permuted(np.tile(np.arange(1, len(links) + 1), (60, 1)), axis=1)
    found = failures_until_isolation(system, peers, orders)
    assert found.tolist() == [brute_force(system, peers, links, tuple(order)) for order in orders.tolist()]


def test_the_links_of_the_thesis_are_those_of_its_figure_7() -> None:
    """§6.1: seven nodes, numbered from 0: main links, brothers, uncles."""
    main = {(0, 1), (0, 2), (1, 3), (1, 4), (2, 5), (2, 6)}
    assert set(links_of("tree", 7)) == main
    assert set(links_of("thesis", 7)) == main | {(1, 2), (3, 4), (5, 6), (2, 3), (2, 4), (1, 5), (1, 6)}
    assert set(links_of("ours", 7)) == set(links_of("thesis", 7)) | {(BROKER, peer) for peer in range(7)}


def test_two_links_at_the_root_can_halt_the_thesis_tree_and_not_ours() -> None:
    """§6.4: "the failure of only two links (links that are connected to the tree root) can halt"."""
    cases: list[tuple[System, bool]] = [("thesis", True), ("thesis-hop", True), ("ours", False), ("ours-hop", False)]
    for system, halted in cases:
        links = links_of(system, 7)
        first = [(0, 1), (0, 2)]
        rest = [link for link in links if link not in first]
        order = np.array([[(first + rest).index(link) + 1 for link in links]])
        assert (failures_until_isolation(system, 7, order).tolist() == [2]) is halted


def test_figure_11_the_number_grows_and_the_share_shrinks_with_the_height_and_ours_is_above_the_others() -> None:
    sizes = (7, 15, 31)
    rows = {system: [measure(system, peers, trials=300, seed=1) for peers in sizes] for system in SYSTEMS}
    assert [row.failed for row in rows["tree"]] == [1, 1, 1]
    for system in SYSTEMS[1:]:
        assert [row.failed for row in rows[system]] == sorted(row.failed for row in rows[system])
        assert [row.percent for row in rows[system]] == sorted((row.percent for row in rows[system]), reverse=True)
    for worse, better in (("tree", "thesis"), ("thesis", "ours"), ("thesis-hop", "ours-hop"), ("ours-hop", "ours")):
        for less, more in zip(rows[worse], rows[better], strict=True):  # type: ignore[index]
            assert less.failed < more.failed
            assert less.percent < more.percent
    everything = [row for some in rows.values() for row in some]
    assert len(table(everything)) == 1 + len(everything)
    assert plot_png(everything).startswith(b"\x89PNG")


def test_the_same_seed_gives_the_same_rows_whatever_the_batch() -> None:
    assert measure("ours", 7, trials=50, seed=3) == measure("ours", 7, trials=50, seed=3)
    assert measure("ours", 7, trials=50, seed=3) != measure("ours", 7, trials=50, seed=4)


def test_an_order_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="shape"):
        failures_until_isolation("tree", 3, np.ones((1, 3), dtype=np.int64))
