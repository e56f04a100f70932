"""Codes by name."""

from __future__ import annotations

import numpy as np
import pytest
from partial_stragglers_model import sum_of

from edgepeer.coding.coded_reduce import CodedReduceCode
from edgepeer.coding.cyclic import CyclicCode
from edgepeer.coding.first import FirstCode
from edgepeer.coding.fractional import FractionalCode
from edgepeer.coding.partial import PartialCode
from edgepeer.coding.regular import RegularCode
from edgepeer.coding.spec import parse_code
from edgepeer.coding.uncoded import UncodedCode
from edgepeer.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "name", "kind"),
    [
        ("none", "none", UncodedCode),
        ("first", "first:s=1", FirstCode),
        ("first:s=0", "first:s=0", FirstCode),
        ("cyclic:s=2", "cyclic:s=2", CyclicCode),
        ("fractional", "fractional:s=1", FractionalCode),
        ("coded-reduce:s=1", "coded-reduce:s=1", CodedReduceCode),
        ("graph:degree=4", "graph:degree=4", RegularCode),
        ("partial", "partial:l=1,replication=2", PartialCode),
        ("partial:replication=3,l=2", "partial:l=2,replication=3", PartialCode),
        ("partial:l=2,replication=3,order=optimal", "partial:l=2,replication=3", PartialCode),
        ("partial:order=cyclic,replication=3", "partial:l=1,replication=3,order=cyclic", PartialCode),
        ("partial:replication=4,assignment=pairs", "partial:l=1,replication=4,assignment=pairs", PartialCode),
        ("partial:replication=4,assignment=graph", "partial:l=1,replication=4,assignment=graph", PartialCode),
    ],
)
def test_names(text: str, name: str, kind: type) -> None:
    spec = parse_code(text)
    assert str(spec) == name
    assert parse_code(name) == spec
    code = spec.build(13, 3)
    assert isinstance(code, kind)
    assert (code.name, code.workers) == (name, 13)
    whole = tuple(code.assignment.loads.tolist())
    gradients = np.random.default_rng(0).standard_normal((code.chunks, 4 * code.blocks))
    np.testing.assert_allclose(sum_of(code, gradients, whole), gradients.sum(axis=0), atol=1e-9)
    assert code.recovery(whole).exact

    again = parse_code(name).build(13, 3)
    assert again.assignment == code.assignment
    for worker in range(13):
        assert (again.encoding(worker, whole) == code.encoding(worker, whole)).all()
        assert (again.column(worker, whole) == code.column(worker, whole)).all()


def test_seeds_make_other_graphs() -> None:
    spec = parse_code("graph:degree=4")
    assert spec.build(20, 2, seed=1).assignment != spec.build(20, 2).assignment


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no code ''"),
        ("hamming", "no code 'hamming', only none, first, cyclic"),
        ("cyclic:s=0", "s must be a whole number from 1 on, not '0'"),
        ("cyclic:s=x", "s must be a whole number"),
        ("cyclic:s=", "s must be a whole number"),
        ("cyclic:degree=3", "cyclic takes s, not 'degree'"),
        ("none:s=1", "none takes nothing, not 's'"),
        ("partial:order=random", "order must be optimal or cyclic, not 'random'"),
        ("partial:l", "l must be a whole number"),
        ("cyclic:s=1,", "cyclic takes s, not ''"),
        ("cyclic:", "cyclic takes s, not ''"),
        ("none:", "none takes nothing, not ''"),
        ("fractional:s=1,s=3", "s is given twice"),
        ("partial:order=cyclic,order=optimal", "order is given twice"),
        ("cyclic:s=²", "s must be a whole number"),
    ],
)
def test_what_is_no_name(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_code(text)


@pytest.mark.parametrize(
    ("text", "workers", "problem"),
    [
        ("none", 0, "there must be one at least"),
        ("first:s=3", 3, "code first:s=3 with 3 workers: s, the workers to do without, must be 0 to 2, not 3"),
        ("cyclic:s=4", 4, "code .* with 4 workers: s, the stragglers that do no harm, must be 1 to 3, not 4"),
        ("cyclic:s=1", 1, "a code takes two workers at least"),
        ("fractional:s=4", 4, "code .* with 4 workers: s, the stragglers that do no harm, must be 1 to 3, not 4"),
        ("graph:degree=3", 5, "1 to 4, and even"),
        ("graph:degree=6", 6, "1 to 5"),
        ("partial:l=1,replication=5", 4, "5 copies of each chunk can't be spread over 4 workers"),
        ("partial:l=3,replication=2", 6, "l must be 1 to 2, not 3: each chunk"),
        (
            "partial:replication=4,assignment=pairs",
            5,
            "in pairs, each chunk can have 2 to workers - 2 copies, not 4 wi",
        ),
        ("partial:assignment=pairs,order=cyclic", 6, "an order of their own"),
        ("partial:l=1,replication=3,assignment=graph", 5, "no graph of 5 vertices with degree 3"),
    ],
)
def test_what_cannot_be_had(text: str, workers: int, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as e:
        parse_code(text).build(workers, 3)
    assert "\n" not in str(e.value)
