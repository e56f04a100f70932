"""CodedReduce by brute force: every pattern of stragglers within the bound on small trees, drawn ones on larger."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from magnification import magnified
from numpy.typing import NDArray
from partial_stragglers_model import sum_of

from edgepeer.coding.coded_reduce import CodedReduceCode
from edgepeer.coding.cyclic import CyclicCode
from edgepeer.coding.encode import encode
from edgepeer.coding.siblings import SiblingGroup, share_out
from edgepeer.coding.tree_allocation import MAX_CHUNKS, Allocation, allocate
from edgepeer.errors import ConfigError

FULL = [(2, 1, 1), (2, 3, 1), (3, 2, 1), (3, 2, 2), (5, 2, 2), (12, 2, 1), (12, 2, 3), (12, 2, 5), (4, 3, 1), (7, 2, 3)]
"""Fan-out, layers, s."""
ANY = [
    (2, 2, 1),
    (6, 3, 1),
    (12, 3, 1),
    (15, 3, 1),
    (16, 4, 1),
    (12, 4, 2),
    (37, 3, 2),
    (100, 3, 1),
    (200, 4, 1),
    (200, 12, 3),
]
"""Positions, fan-out, s."""


def size_of(fanout: int, layers: int) -> int:
    return sum(fanout**layer for layer in range(layers + 1))


def children(parent: int, workers: int, fanout: int) -> list[int]:
    return [child for child in range(1, workers) if (child - 1) // fanout == parent]


def patterns(workers: int, fanout: int, s: int) -> Iterator[set[int]]:
    """Every set of stragglers with at most min(s, c - 1) of any parent's c children."""
    families = [below for parent in range(workers) if (below := children(parent, workers, fanout))]
    some = [
        [set(lost) for count in range(min(s, len(below) - 1) + 1) for lost in itertools.combinations(below, count)]
        for below in families
    ]
    for chosen in itertools.product(*some):
        yield set().union(*chosen)


def drawn(random: np.random.Generator, workers: int, fanout: int, s: int) -> set[int]:
    """As many stragglers as every parent can bear."""
    lost: set[int] = set()
    for parent in range(workers):
        below = children(parent, workers, fanout)
        if below:
            lost.update(random.permutation(below)[: min(s, len(below) - 1)].tolist())
    return lost


def gradients_for(chunks: int, dtype: Any = np.float64, size: int = 20) -> NDArray[Any]:
    return np.random.default_rng(7).standard_normal((chunks, size)).astype(dtype)


def computation_load(fanout: int, layers: int, s: int) -> Fraction:
    """What part of the data each worker of a full tree computes: 1 / (q + ... + q^L), q = n / (s + 1), equation (5)."""
    return 1 / sum((Fraction(fanout, s + 1) ** layer for layer in range(1, layers + 1)), Fraction(0))


def local(allocation: Allocation, worker: int, gradients: NDArray[Any]) -> NDArray[Any]:
    """What a worker computes: its chunks' gradients times its coefficients."""
    order = list(allocation.assignment.orders[worker])
    return encode(list(gradients[order]), allocation.coefficients[worker][:, None])


def collect(allocation: Allocation, parent: int, messages: dict[int, NDArray[Any]]) -> NDArray[Any]:
    """What a parent takes of its children's messages: the sum of all that it handed on; at the root, the gradient."""
    children = allocation.children(parent)
    total = np.zeros_like(next(iter(messages.values())))
    for group in allocation.groups[parent]:
        usable = tuple(children[member] in messages for member in group.members)
        assert group.enough(usable)
        for member, weight in zip(group.members, group.decoding(usable), strict=True):
            if weight:
                total += messages[children[member]] * total.dtype.type(weight)
    return total


def message(allocation: Allocation, worker: int, own: NDArray[Any], messages: dict[int, NDArray[Any]]) -> NDArray[Any]:
    """What a worker sends to its parent: what it has computed, and what its children have."""
    return own + collect(allocation, worker, messages) if allocation.groups[worker] else own


def up_the_tree(allocation: Allocation, gradients: NDArray[Any], lost: set[int]) -> NDArray[Any]:
    """What the root collects, node by node as in the paper's CR.Execute."""
    messages: dict[int, NDArray[Any]] = {}
    for worker in reversed(range(1, allocation.assignment.workers)):
        if worker not in lost:
            own = local(allocation, worker, gradients)
            received = {child: messages[child] for child in allocation.children(worker) if child in messages}
            messages[worker] = message(allocation, worker, own, received)
    return collect(allocation, 0, {child: messages[child] for child in allocation.children(0) if child in messages})


def done_but(code: CodedReduceCode, lost: set[int]) -> list[int]:
    """Progress of a fleet where those lost are one chunk short, if they have any."""
    return [max(0, int(load) - (worker in lost)) for worker, load in enumerate(code.assignment.loads)]


def close(found: NDArray[Any], gradients: NDArray[Any], tolerance: float) -> bool:
    wanted = gradients.astype(np.float64).sum(axis=0)
    return bool(np.linalg.norm(found - wanted) <= tolerance * np.linalg.norm(wanted))


# --- the paper's example -----------------------------------------------------------------------------


def papers_share(capacities: tuple[Fraction, ...], s: int) -> tuple[SiblingGroup, ...]:
    """The matrix B of equation (4) for three alike siblings."""
    matrix = np.array([[1 / 2, 1, 0], [0, 1, -1], [1 / 2, 0, 1]])
    assert len(capacities) == 3
    assert s == 1
    share = sum(capacities, Fraction(0)) / 2
    return (SiblingGroup(members=(0, 1, 2), widths=(share / 3,) * 3, matrix=matrix, spare=1),)


def test_the_papers_example() -> None:
    allocation = allocate(13, 3, 1, share=papers_share)
    assert allocation.load == computation_load(3, 2, 1) == Fraction(4, 15)
    assert allocation.assignment.chunks == 15  # D_1, D_2, D_3 have 5 each; a fifth of D^T(1,1) is 2 chunks
    held = {
        worker: dict(zip(order, allocation.coefficients[worker].tolist(), strict=True))
        for worker, order in enumerate(allocation.assignment.orders)
    }
    assert held[0] == {}
    assert held[1] == {0: 1 / 2, 1: 1 / 2, 2: 1 / 2, 3: 1 / 2}  # the first two fifths of D^T(1,1) = 1/2 D_1 + D_2
    third, fourth, fifth = {4: 1 / 2, 5: 1.0}, {6: 1.0, 7: 1.0}, {8: 1.0, 9: 1.0}
    assert held[4] == {**{chunk: value / 2 for chunk, value in third.items()}, **fourth}  # D(2,1) = 1/2 D_3 + D_4
    assert held[5] == {**fourth, **{chunk: -value for chunk, value in fifth.items()}}  # D(2,2) = D_4 - D_5
    assert held[6] == {**{chunk: value / 2 for chunk, value in third.items()}, **fifth}  # D(2,3) = 1/2 D_3 + D_5
    assert {len(order) for order in allocation.assignment.orders[1:]} == {4}

    gradients = gradients_for(15)
    sent = {worker: local(allocation, worker, gradients) for worker in range(1, 13)}
    first = message(allocation, 1, sent[1], {4: sent[4], 5: sent[5]})  # [2, -1, 0]
    np.testing.assert_allclose(first, 2 * sent[4] - sent[5] + sent[1], rtol=1e-12)
    np.testing.assert_allclose(first, gradients[:5].sum(axis=0) / 2 + gradients[5:10].sum(axis=0), rtol=1e-10)
    third_child = message(allocation, 3, sent[3], {10: sent[10], 12: sent[12]})  # [1, 0, 1]
    np.testing.assert_allclose(collect(allocation, 0, {1: first, 3: third_child}), first + third_child, rtol=1e-12)
    assert close(first + third_child, gradients, 1e-10)


def cyclic_share(capacities: tuple[Fraction, ...], s: int) -> tuple[SiblingGroup, ...]:
    """Cyclic repetition for alike siblings, as the paper has it."""
    count, share = len(capacities), sum(capacities, Fraction(0)) / (s + 1)
    matrix = CyclicCode("cyclic", count, s).coefficients.T
    return (SiblingGroup(members=tuple(range(count)), widths=(share / count,) * count, matrix=matrix, spare=s),)


@pytest.mark.parametrize(("fanout", "layers", "s"), [(3, 2, 2), (4, 3, 1), (12, 2, 3), (5, 2, 2)])
def test_any_gradient_code_will_do(fanout: int, layers: int, s: int) -> None:
    allocation = allocate(size_of(fanout, layers), fanout, s, share=cyclic_share)
    assert allocation.load == computation_load(fanout, layers, s)
    gradients = gradients_for(allocation.assignment.chunks)
    random = np.random.default_rng(fanout)
    for _ in range(10):
        lost = drawn(random, allocation.assignment.workers, fanout, s)
        assert close(up_the_tree(allocation, gradients, lost), gradients, 1e-10)


@pytest.mark.parametrize("share", [papers_share, cyclic_share, share_out])
def test_the_papers_tree_under_every_pattern(share: Any) -> None:
    allocation = allocate(13, 3, 1, share=share)
    gradients = gradients_for(15)
    for lost in patterns(13, 3, 1):
        assert close(up_the_tree(allocation, gradients, lost), gradients, 1e-10), lost


# --- how much everybody computes ---------------------------------------------------------------------


@pytest.mark.parametrize(("fanout", "layers", "s"), FULL)
def test_on_a_full_tree_everybody_computes_the_papers_load(fanout: int, layers: int, s: int) -> None:
    allocation = allocate(size_of(fanout, layers), fanout, s)
    wanted = computation_load(fanout, layers, s) * allocation.assignment.chunks
    assert set(allocation.assignment.loads[1:].tolist()) == {wanted}
    assert allocation.assignment.loads[0] == 0


def test_the_papers_own_settings() -> None:
    assert computation_load(4, 3, 1) == Fraction(1, 14)
    assert computation_load(12, 2, 1) == Fraction(1, 42)
    assert computation_load(12, 2, 5) == Fraction(1, 6)
    assert computation_load(84, 1, 20) == Fraction(21, 84)  # one layer is gradient coding: (S + 1) / N


@pytest.mark.parametrize(("workers", "fanout", "s"), ANY)
def test_on_any_tree_nobody_computes_five_percent_more_than_the_best(workers: int, fanout: int, s: int) -> None:
    allocation = allocate(workers, fanout, s)
    loads = allocation.assignment.loads
    assert loads.max() <= 1.05 * allocation.load * allocation.assignment.chunks
    assert allocation.assignment.chunks <= MAX_CHUNKS
    uncoded = Fraction(1, workers - 1)
    assert uncoded <= allocation.load <= 1


def test_siblings_of_unlike_subtrees_share_by_what_they_can_carry() -> None:
    # 15 positions of fan-out 3: below child 1 are 5 (two of them children of 4), below 2 and 3 are 3 each.
    allocation = allocate(15, 3, 1)
    assert allocation.load == Fraction(1, 4)  # equal shares would make children 2, 3 and theirs compute 4/15
    held = [
        len({chunk for worker in family for chunk in allocation.assignment.orders[worker]})
        for family in ([1, 4, 5, 6, 13, 14], [2, 7, 8, 9], [3, 10, 11, 12])
    ]
    assert held == [6, 5, 5]  # of 8 chunks: 3 : 2.5 : 2.5


def test_a_sibling_who_could_carry_more_than_all_carries_all() -> None:
    groups = share_out((Fraction(9), Fraction(1), Fraction(1), Fraction(1)), 1)
    assert sum((group.share for group in groups), Fraction(0)) == 3  # every piece once at the first, once at another


def test_every_chunk_is_in_as_many_subtrees_of_siblings_as_its_parent_needs() -> None:
    allocation = allocate(200, 12, 3)
    copies = np.array(allocation.assignment.replication)
    assert copies.min() >= 4


# --- exact sums --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "fanout", "s"),
    [(7, 2, 1), (4, 3, 1), (4, 3, 2), (6, 5, 2), (9, 3, 1), (12, 4, 2), (11, 4, 3), (6, 3, 1)],
)
def test_every_pattern_within_the_bound_is_exact(workers: int, fanout: int, s: int) -> None:
    code = CodedReduceCode(f"coded-reduce:s={s}", workers, fanout, s)
    gradients = gradients_for(code.chunks)
    for lost in patterns(workers, fanout, s):
        done = done_but(code, lost)
        recovery = code.recovery(done)
        assert recovery.exact, lost
        assert recovery.error == 0
        assert close(sum_of(code, gradients, done), gradients, 1e-10), lost
        assert close(up_the_tree(code.allocation, gradients, lost), gradients, 1e-10), lost


@pytest.mark.parametrize(
    ("workers", "fanout", "s"), [(size_of(n, layers), n, s) for n, layers, s in FULL] + ANY + [(200, 199, 10)]
)
def test_drawn_patterns_at_the_bound_are_exact(workers: int, fanout: int, s: int) -> None:
    code = CodedReduceCode(f"coded-reduce:s={s}", workers, fanout, s)
    gradients = gradients_for(code.chunks)
    random = np.random.default_rng(workers)
    for _ in range(10):
        done = done_but(code, drawn(random, workers, fanout, s))
        assert code.recovery(done).exact
        assert close(sum_of(code, gradients, done), gradients, 1e-10)


@pytest.mark.parametrize(("workers", "fanout", "s"), [*((size_of(n, layers), n, s) for n, layers, s in FULL), *ANY])
def test_float32(workers: int, fanout: int, s: int) -> None:
    code = CodedReduceCode(f"coded-reduce:s={s}", workers, fanout, s)
    gradients = gradients_for(code.chunks, np.float32, 500)
    random = np.random.default_rng(workers)
    for _ in range(5):
        assert close(sum_of(code, gradients, done_but(code, drawn(random, workers, fanout, s))), gradients, 1e-5)


@pytest.mark.parametrize(("workers", "fanout", "s"), [(7, 2, 1), (9, 3, 1), (8, 4, 2), (7, 3, 2)])
def test_what_is_called_exact_is_and_what_is_not_has_the_coverage_it_says(workers: int, fanout: int, s: int) -> None:
    code = CodedReduceCode("c", workers, fanout, s)
    gradients = gradients_for(code.chunks)
    exact = 0
    for size in range(workers):
        for lost in itertools.combinations(range(1, workers), size):
            done = done_but(code, set(lost))
            recovery = code.recovery(done)
            exact += recovery.exact
            np.testing.assert_allclose(sum_of(code, gradients, done), recovery.coverage @ gradients, atol=1e-9)
            assert recovery.error == pytest.approx(((1 - recovery.coverage) ** 2).sum(), abs=1e-12)
            assert recovery.error <= code.chunks + 1e-9  # never worse than nothing at all
            assert not any(code.brings(done)[worker] for worker in lost)
    assert exact > 0


@pytest.mark.parametrize(("workers", "fanout", "s"), [(4, 3, 1), (6, 5, 2), (6, 5, 3), (8, 3, 1), (8, 7, 2), (9, 4, 2)])
def test_a_mean_lies_between_those_of_the_chunks(workers: int, fanout: int, s: int) -> None:
    """Of whatever batches. Where children's coefficients cancelled out, it was over a 2000th of a chunk, or less."""
    code = CodedReduceCode("c", workers, fanout, s)
    for size in range(workers):
        for lost in itertools.combinations(range(1, workers), size):
            coverage = code.recovery(done_but(code, set(lost))).coverage
            assert coverage.min() > -1e-9
            if coverage.any():
                assert coverage.sum() * (workers - 1) / code.chunks > 0.43


def test_a_group_of_replicas_needs_one_of_them_only() -> None:
    code = CodedReduceCode("c", 5, 4, 1)  # two pairs below the root
    assert [code.recovery(done_but(code, lost)).exact for lost in ({1, 3}, {2, 4}, {1, 2})] == [True, True, False]
    assert magnified(code, done_but(code, {1, 3})) == 1
    half = code.recovery(done_but(code, {1, 2}))
    assert sorted(half.coverage.tolist()) == [0.0, 1.0]
    assert half.error == 1.0


def test_a_worker_without_enough_children_is_a_straggler_itself() -> None:
    code = CodedReduceCode("c", 7, 2, 1)
    assert code.recovery(done_but(code, {3, 4})).exact  # below 1; so 2 has to do
    assert not code.recovery(done_but(code, {3, 4, 2})).exact
    assert not code.brings(done_but(code, {3, 4}))[1]


def test_an_only_child_can_not_be_spared() -> None:
    code = CodedReduceCode("c", 2, 2, 1)
    assert not code.recovery(done_but(code, {1})).exact


@pytest.mark.parametrize(("workers", "fanout", "s"), [(1, 2, 1), (7, 2, 2), (7, 2, -1)])
def test_what_can_not_be(workers: int, fanout: int, s: int) -> None:
    with pytest.raises(ConfigError, match="coded-reduce"):
        CodedReduceCode("c", workers, fanout, s)
