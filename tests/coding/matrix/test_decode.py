"""The decoder: right within its guarantee, whatever the errors look like; beyond it, right or declared."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgepeer.coding.matrix import decode as decoding
from edgepeer.coding.matrix.decode import Decoded, MatrixCode, Undecodable, decode
from edgepeer.coding.matrix.mds import mds_code
from edgepeer.coding.matrix.tolerance import column_bound, relative_noise
from edgepeer.errors import ConfigError

Floats = type[np.floating[Any]]
FLOATS: tuple[Floats, ...] = (np.float32, np.float64)
KINDS = ("dense", "sparse", "single", "equal", "flip", "nan", "mixed")


def words(rng: np.random.Generator, code: MatrixCode, length: int, dtype: Floats) -> tuple[NDArray[Any], NDArray[Any]]:
    data = rng.standard_normal((code.symbols, length))
    return data, (code.generator @ data).astype(dtype)


def spoil(rng: np.random.Generator, rows: NDArray[Any], nodes: Collection[int], kind: str, group: int = 1) -> None:
    """Errors at these nodes, in place."""
    length = rows.shape[1]
    start = rng.integers(length)
    equal = rng.standard_normal((group, length))
    for number, node in enumerate(nodes):
        own = rows[node * group : (node + 1) * group]
        if kind == "dense":
            own += rng.standard_normal(own.shape).astype(rows.dtype)
        elif kind == "sparse":
            own += (rng.standard_normal(own.shape) * (rng.random(own.shape) < 0.3)).astype(rows.dtype)
            own[0, rng.integers(length)] += 2
        elif kind == "single":
            own[rng.integers(group), (start + number) % length] += rng.choice([-2, 2])
        elif kind == "equal":
            own += equal.astype(rows.dtype)
        elif kind == "flip":  # of a number's sign, or of one of the upper bits of its exponent
            whole = np.dtype(f"u{rows.dtype.itemsize}")
            bit = 8 * whole.itemsize - int(rng.integers(1, 6))
            column = rng.choice(np.flatnonzero(np.abs(own[0]) > 0.1))
            own[0, column : column + 1].view(whole)[:] ^= whole.type(1 << bit)
        elif kind == "nan":
            own[0, rng.integers(length)] = rng.choice([np.nan, np.inf, -np.inf])
        elif kind == "mixed":
            own += (rng.standard_normal(own.shape) * 10.0 ** rng.uniform(-1, 20)).astype(rows.dtype)


def close(decoded: Decoded, data: NDArray[Any], code: MatrixCode) -> bool:
    """Within what rounding, and errors that rounding hides, can make of small well-conditioned codes."""
    noise = relative_noise(code.symbols, decoded.data.dtype) * column_bound(code.redundancy, data.shape[1])
    return bool(np.abs(decoded.data - data).max() < 200 * noise * np.abs(data).max())


def patterns(code: MatrixCode) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """All lost and wrong nodes within the guarantee."""
    nodes = range(code.nodes)
    for e in range(code.redundancy + 1):
        for lost in combinations(nodes, e):
            there = sorted(set(nodes) - set(lost))
            for k in range((code.redundancy - e) // 2 + 1):
                for wrong in combinations(there, k):
                    yield lost, wrong


def check_pattern(
    rng: np.random.Generator,
    code: MatrixCode,
    lost: tuple[int, ...],
    wrong: tuple[int, ...],
    kind: str,
    dtype: Floats,
    length: int = 16,
) -> None:
    data, rows = words(rng, code, length, dtype)
    spoil(rng, rows, wrong, kind, code.group)
    spoil(rng, rows, lost, "nan", code.group)
    decoded = decode(code, rows, lost)
    assert decoded.wrong == wrong, (lost, wrong, kind, dtype)
    assert decoded.data.dtype == dtype
    assert close(decoded, data, code), (lost, wrong, kind, dtype, np.abs(decoded.data - data).max())


@pytest.mark.parametrize(("nodes", "symbols"), [(3, 1), (4, 2), (5, 1), (6, 4), (6, 2), (7, 5), (8, 4)])
@pytest.mark.parametrize("kind", KINDS)
def test_all_patterns_within_the_guarantee(nodes: int, symbols: int, kind: str) -> None:
    rng, code = np.random.default_rng(nodes), mds_code(nodes, symbols)
    for number, (lost, wrong) in enumerate(patterns(code)):
        check_pattern(rng, code, lost, wrong, kind, FLOATS[number % 2])


@pytest.mark.parametrize(("nodes", "symbols"), [(9, 5), (10, 6), (11, 7), (12, 10), (12, 8)])
def test_all_patterns_of_more_nodes(nodes: int, symbols: int) -> None:
    """The kinds of errors take turns."""
    rng, code = np.random.default_rng(0), mds_code(nodes, symbols)
    for number, (lost, wrong) in enumerate(patterns(code)):
        check_pattern(rng, code, lost, wrong, KINDS[number % 7], FLOATS[number // 7 % 2])


@pytest.mark.slow
def test_all_29406_patterns_of_12_nodes_and_5_symbols() -> None:
    rng, code, number = np.random.default_rng(0), mds_code(12, 5), 0
    for number, (lost, wrong) in enumerate(patterns(code), 1):
        check_pattern(rng, code, lost, wrong, KINDS[number % 7], FLOATS[number // 7 % 2])
    assert number == 29_406


def test_patterns_of_all_codes_up_to_12_nodes() -> None:
    """70 random ones of each code, on and below the limit."""
    rng = np.random.default_rng(0)
    for nodes in range(2, 13):
        for symbols in range(1, nodes):
            code = mds_code(nodes, symbols)
            for number in range(70):
                order = rng.permutation(nodes)
                k = int(rng.integers(code.redundancy // 2 + 1))
                e = int(rng.integers(code.redundancy - 2 * k + 1))
                lost, wrong = tuple(order[:e].tolist()), tuple(sorted(order[e : e + k].tolist()))
                check_pattern(rng, code, lost, wrong, KINDS[number % 7], FLOATS[number // 7 % 2])


@pytest.mark.slow
def test_never_a_wrong_answer_in_20000_cases_beyond_it() -> None:
    """t = 1, two to all nodes err: declared, or so little is wrong that the data are right all the same."""
    rng, declared, cases = np.random.default_rng(0), 0, 20_000
    codes = [mds_code(symbols + 2, symbols) for symbols in (3, 4, 5, 6, 7)]
    for case in range(cases):
        code = codes[case % 5]
        wrong = rng.choice(code.nodes, rng.integers(2, code.nodes + 1), replace=False)
        data, rows = words(rng, code, (8, 16, 32)[case % 3], FLOATS[case // 3 % 2])
        kinds = [KINDS[case % 7]] * len(wrong) if case % 2 else rng.choice(KINDS, len(wrong))
        for node, kind in zip(wrong, kinds, strict=True):
            spoil(np.random.default_rng(case) if kind == "equal" else rng, rows, [node], kind)
        try:
            decoded = decode(code, rows)
        except Undecodable:
            declared += 1
        else:
            assert np.abs(decoded.data - data).max() < 0.01 * np.abs(data).max(), (case, wrong, kinds)
    assert declared > 0.99 * cases


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", ["dense", "sparse", "mixed"])
def test_generic_errors_up_to_one_less_than_the_redundancy(kind: str, dtype: Floats) -> None:
    """(9, 5): any three wrong nodes are corrected, any four are declared."""
    rng, code = np.random.default_rng(0), mds_code(9, 5)
    for wrong in combinations(range(9), 3):
        data, rows = words(rng, code, 20, dtype)
        spoil(rng, rows, wrong, kind)
        decoded = decode(code, rows, guarantee="generic")
        assert decoded.wrong == wrong
        assert close(decoded, data, code)
        with pytest.raises(Undecodable):
            decode(code, rows)
    for wrong in combinations(range(9), 4):
        _, rows = words(rng, code, 20, dtype)
        spoil(rng, rows, wrong, kind)
        with pytest.raises(Undecodable):
            decode(code, rows, guarantee="generic")


def test_generic_errors_with_one_number_a_node() -> None:
    rng, code = np.random.default_rng(0), mds_code(9, 5)
    for _ in range(60):
        wrong = rng.choice(9, 3, replace=False)
        data, rows = words(rng, code, 1, np.float64)
        spoil(rng, rows, wrong, "dense")
        decoded = decode(code, rows, guarantee="generic")
        assert decoded.wrong == tuple(sorted(wrong))
        assert close(decoded, data, code)
        spoil(rng, rows, np.setdiff1d(np.arange(9), wrong)[:1], "dense")
        with pytest.raises(Undecodable):
            decode(code, rows, guarantee="generic")


def test_generic_errors_with_erasures() -> None:
    """All (e, k) with k + e <= r - 1 of (12, 5), 20 patterns each."""
    rng, code = np.random.default_rng(0), mds_code(12, 5)
    for e in range(7):
        for k in range(7 - e):
            for case in range(20):
                order = rng.permutation(12)
                lost, wrong = order[:e].tolist(), tuple(sorted(order[e : e + k].tolist()))
                data, rows = words(rng, code, 20, FLOATS[case % 2])
                spoil(rng, rows, wrong, "dense")
                decoded = decode(code, rows, lost, guarantee="generic")
                assert decoded.wrong == wrong
                assert close(decoded, data, code)
                assert decoded.checks == 7 - e - k >= 1


def test_the_limit_for_adversarial_errors_is_sharp() -> None:
    """(9, 5): two code words can differ in five rows only. With three of them changed, the two others look wrong."""
    rng, code = np.random.default_rng(0), mds_code(9, 5)
    for same in combinations(range(9), 4):
        data, rows = words(rng, code, 20, np.float64)
        other_data = data + np.linalg.svd(code.generator[list(same)])[2][-1][:, None] * rng.standard_normal(20)
        other = code.generator @ other_data
        differ = np.setdiff1d(np.arange(9), same)
        rows[differ[:3]] = other[differ[:3]]
        decoded = decode(code, rows)
        assert decoded.wrong == tuple(differ[3:])
        assert close(decoded, other_data, code)
        rows[differ[2]] = (code.generator @ data)[differ[2]]
        assert decode(code, rows).wrong == tuple(differ[:2])  # two chosen errors do no harm


@pytest.mark.parametrize(("dtype", "enough"), [(np.float32, 19), (np.float64, 20)])
def test_many_errors_at_40_nodes(dtype: Floats, enough: int) -> None:
    """Q = 5, P = 40, real nodes: 17 within the guarantee, 30 of the 34 that generic errors may be."""
    points = np.cos((2 * np.arange(40) + 1) * np.pi / 80)
    code = MatrixCode(np.vander(points, 5, increasing=True) * np.random.default_rng(5).uniform(0.7, 1.4, (40, 1)))
    rng, right = np.random.default_rng(0), 0
    for _ in range(20):
        data, rows = words(rng, code, 100, dtype)
        wrong = tuple(sorted(rng.choice(40, 30, replace=False).tolist()))
        spoil(rng, rows, wrong[:17], "dense")
        assert decode(code, rows).wrong == wrong[:17]
        spoil(rng, rows, wrong[17:], "dense")
        try:
            decoded = decode(code, rows, guarantee="generic")
        except Undecodable:
            continue
        assert decoded.wrong == wrong
        assert np.abs(decoded.data - data).max() < 0.01
        right += 1
    assert right >= enough
    if dtype is np.float64:
        data, rows = words(rng, code, 100, dtype)
        spoil(rng, rows, range(34), "dense")
        assert decode(code, rows, guarantee="generic").wrong == tuple(range(34))


def pairs(nodes: int, symbols: int) -> MatrixCode:
    """Real polynomials at points of the upper half of the unit circle: each node has two equations."""
    points = np.exp(1j * np.pi * (np.arange(nodes) + 0.5) / nodes)
    powers = points[:, None] ** np.arange(symbols)
    return MatrixCode(np.stack([powers.real, powers.imag], 1).reshape(2 * nodes, symbols), 2)


@pytest.mark.parametrize("kind", KINDS)
def test_nodes_with_two_rows_each(kind: str) -> None:
    """Errors and erasures come by node; an odd number of symbols."""
    rng, code = np.random.default_rng(0), pairs(7, 5)
    assert (code.nodes, code.symbols, code.redundancy) == (7, 5, 4)
    for number, (lost, wrong) in enumerate(patterns(code)):
        check_pattern(rng, code, lost, wrong, kind, FLOATS[number % 2])


def test_nodes_with_two_rows_each_and_generic_errors() -> None:
    rng, code = np.random.default_rng(0), pairs(7, 5)
    for kind in ("dense", "single"):
        for wrong in combinations(range(7), 3):
            data, rows = words(rng, code, 40, np.float64)
            spoil(rng, rows, wrong, kind, 2)
            decoded = decode(code, rows, guarantee="generic")
            assert decoded.wrong == wrong
            assert close(decoded, data, code)
    for wrong in combinations(range(7), 4):
        _, rows = words(rng, code, 40, np.float64)
        spoil(rng, rows, wrong, "dense", 2)
        with pytest.raises(Undecodable):
            decode(code, rows, guarantee="generic")


def oracle(code: MatrixCode, rows: NDArray[Any], lost: Collection[int], limit: int) -> tuple[int, ...] | None:
    """The smallest set of nodes without which least squares fits the rest, by trying all of them."""
    there = [node for node in range(code.nodes) if node not in lost]
    for k in range(limit + 1):
        for wrong in combinations(there, k):
            left = [node for node in there if node not in wrong]
            data = np.linalg.lstsq(code.generator[left], rows[left], rcond=None)[0]
            if np.abs(code.generator[left] @ data - rows[left]).max() < 1e-9 * max(np.abs(rows[left]).max(), 1e-300):
                return wrong
    return None


@pytest.mark.parametrize(("nodes", "symbols"), [(5, 3), (6, 2), (9, 5), (8, 5)])
def test_it_finds_what_trying_all_sets_finds(nodes: int, symbols: int) -> None:
    """Any number of errors and erasures, any mixture of kinds."""
    rng, code = np.random.default_rng(nodes), mds_code(nodes, symbols)
    outcomes: list[bool] = []
    for _ in range(150):
        _, rows = words(rng, code, 6, np.float64)
        order = rng.permutation(nodes)
        e, k = rng.integers(code.redundancy), rng.integers(code.redundancy + 1)
        for node in order[e : e + k]:
            spoil(rng, rows, [node], rng.choice(KINDS))
        lost = order[:e].tolist()
        gone = [node for node in order[e:] if not (np.abs(rows[node]) < 1e154).all()]
        spare = code.redundancy - e - len(gone)
        expected = oracle(code, rows, [*lost, *gone], spare // 2) if spare > 0 or (spare == 0 and not gone) else None
        try:
            found = decode(code, rows, lost).wrong
        except Undecodable:
            assert expected is None
        else:
            assert expected is not None
            assert found == tuple(sorted([*gone, *expected]))
        outcomes.append(expected is None)
    assert 20 < sum(outcomes) < 130


@pytest.mark.parametrize("dtype", FLOATS)
def test_right_data_rows_come_out_with_the_same_bits(dtype: Floats) -> None:
    rng, code = np.random.default_rng(0), mds_code(9, 5)
    _, rows = words(rng, code, 400, dtype)
    clean = decode(code, rows)
    assert clean.data.tobytes() == rows[:5].tobytes()
    assert (clean.wrong, clean.checks) == ((), 4)
    spoiled = rows.copy()
    spoil(rng, spoiled, [1, 7], "dense")
    decoded = decode(code, spoiled)
    assert (decoded.wrong, decoded.checks) == ((1, 7), 2)
    assert np.delete(decoded.data, 1, 0).tobytes() == np.delete(rows[:5], 1, 0).tobytes()
    assert spoiled[1].tobytes() != rows[1].tobytes()  # and what was received is left alone


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [1e-6, 0.3, 0.9, 1.1, 3.0, 1e3, np.inf, np.nan])
def test_what_agrees_beyond_doubt_is_what_a_search_would_leave_as_it_is(
    monkeypatch: pytest.MonkeyPatch, dtype: Floats, size: float
) -> None:
    """Errors from far below the tolerance to far above it, in each row: both ways come to the same."""
    rng, skipped = np.random.default_rng(9), 0
    plainly = decoding._plainly_right
    for nodes, symbols in ((3, 1), (4, 2), (5, 3), (7, 5), (12, 8)):
        code = mds_code(nodes, symbols, dtype)
        noise = relative_noise(500, dtype, 1000)
        for row in range(nodes):
            _, rows = words(rng, code, 50, dtype)
            with np.errstate(all="ignore"):
                rows[row, 7] += size * noise * column_bound(nodes - symbols, 50) * np.abs(rows).max()
                right = plainly(code, rows, noise)
                skipped += right
                found = [_told(code, rows, noise)]
                monkeypatch.setattr(decoding, "_plainly_right", lambda *args: False)
                found.append(_told(code, rows, noise))
                monkeypatch.undo()
            assert found[0] == found[1]
            assert not right or found[0][0] == ()
    assert skipped == 31 or not size <= 0.3  # NaN is neither
    assert not skipped or size < 3


def _told(code: MatrixCode, rows: NDArray[Any], noise: float) -> tuple[object, ...]:
    try:
        found = decode(code, rows, noise=noise)
    except Undecodable as error:
        return (str(error),)
    return found.wrong, found.checks, found.data.tobytes()


def test_of_replicas_the_majority_is_right() -> None:
    code = MatrixCode(np.ones((5, 1)))
    rows = np.tile([[1.0, 2, 3]], (5, 1))
    rows[1], rows[3] = 7.0, 8.0
    decoded = decode(code, rows)
    assert (decoded.wrong, decoded.data.tolist()) == ((1, 3), [[1, 2, 3]])


def test_numbers_whose_squares_overflow_and_garbage_in_lost_rows() -> None:
    rng, code = np.random.default_rng(0), mds_code(9, 5)
    data, rows = words(rng, code, 10, np.float64)
    rows[0, 3], rows[4, 4], rows[6] = 1e308, -1e160, np.nan
    decoded = decode(code, rows, lost=(6,))
    assert (decoded.wrong, decoded.checks) == ((0, 4), 1)
    assert close(decoded, data, code)


def test_broken_rows_leave_at_least_one_check() -> None:
    """All redundancy may go to rows that are known to be lost, but not if others are wrong for certain."""
    rng, code = np.random.default_rng(0), mds_code(7, 5)
    data, rows = words(rng, code, 10, np.float64)
    assert decode(code, rows, (0, 1)).checks == 0
    spoil(rng, rows, [0], "nan")
    decoded = decode(code, rows)
    assert (decoded.wrong, decoded.checks) == ((0,), 1)
    assert close(decoded, data, code)
    with pytest.raises(Undecodable, match="1 node lost and 1 with NaN"):
        decode(code, rows, (1,))
    with pytest.raises(Undecodable, match=r"2 nodes lost and 0 with NaN.*generic decoding of 7 nodes, 2 of them redun"):
        decode(code, rows, (0, 1), guarantee="generic")


def test_answers_that_the_remaining_digits_cannot_check_are_declared() -> None:
    """Two nodes of five with nearly the same equation: an error in one of them shows, but not in which."""
    generator = np.array([[1.0, 0], [0, 1], [1, 1], [1, -1], [2, 1]])
    generator[4] = generator[3] + [0, 1e-6]
    rng, code = np.random.default_rng(0), MatrixCode(generator)
    data, rows = words(rng, code, 10, np.float64)
    spoil(rng, rows, [0, 1], "dense")
    with pytest.raises(Undecodable):
        decode(code, rows.astype(np.float32), guarantee="generic")
    decoded = decode(code, rows, guarantee="generic")
    assert decoded.wrong == (0, 1)
    assert np.abs(decoded.data - data).max() < 1e-8


def test_the_reason_is_given() -> None:
    rng, code = np.random.default_rng(0), mds_code(9, 5)
    _, rows = words(rng, code, 10, np.float64)
    spoil(rng, rows, [1, 2, 3], "dense")
    with pytest.raises(Undecodable, match="9 nodes, 0 nodes missing, contradict each other, and no set of up to 2 err"):
        decode(code, rows)
    with pytest.raises(Undecodable, match="0 errors was found"):
        decode(code, rows, (0, 4, 5))


@pytest.mark.parametrize(
    ("shape", "lost", "noise", "text"),
    [
        ((8, 4), (), None, r"has 9 rows; received has shape \(8, 4\)"),
        ((9,), (), None, r"received has shape \(9,\)"),
        ((9, 0), (), None, r"received has shape \(9, 0\)"),
        ((9, 4), (3, 9), None, "nodes are 0 to 8, and these are said to be lost: 3, 9"),
        ((9, 4), (), 0.0, "above 0 and below 1, not 0.0"),
        ((9, 4), (), 1.0, "not 1.0"),
    ],
)
def test_wrong_arguments(shape: tuple[int, ...], lost: tuple[int, ...], noise: float | None, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        decode(mds_code(9, 5), np.zeros(shape), lost, noise=noise)


@pytest.mark.parametrize(
    ("generator", "group", "text"),
    [
        (np.eye(3), 1, r"more rows than columns.*\(3, 3\)"),
        (np.ones((5, 2)), 2, "2 rows a node"),
        (np.full((3, 1), np.inf), 1, "must be finite"),
    ],
)
def test_wrong_generators(generator: NDArray[np.float64], group: int, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        MatrixCode(generator, group)
    with pytest.raises(ConfigError, match="not of int64"):
        decode(mds_code(3, 2), np.zeros((3, 1), np.int64))
