"""The figures on partial stragglers, small: the paper's claims hold, and fast ways to them give what slow ones do."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgepeer.coding.assignment import Assignment, cyclic_assignment
from edgepeer.coding.graphs import adjacency_assignment, expander
from edgepeer.coding.linear import LinearCode
from edgepeer.coding.ordering import optimal_order
from edgepeer.coding.partial import PartialCode

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
DEGREE = 4


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import partial_stragglers_model

    return partial_stragglers_model


@pytest.fixture(params=["cyclic", "graph", "bipartite"])
def assignment(request: pytest.FixtureRequest) -> Assignment:
    if request.param == "cyclic":
        return cyclic_assignment(15, DEGREE)  # its matrix is regular
    if request.param == "graph":
        return optimal_order(adjacency_assignment(expander(15, DEGREE, 1)))
    halves = np.kron([[0, 1], [1, 0]], np.ones((DEGREE, DEGREE)))  # its matrix has rank 2
    return adjacency_assignment(halves > 0)


@pytest.fixture
def finished(model: ModuleType, assignment: Assignment) -> NDArray[np.float64]:
    rng = np.random.default_rng(3)
    times: NDArray[np.float64] = model.finish_times(rng, (30, assignment.workers, DEGREE), 2, "chunk")
    return times


def test_as_many_fail_as_are_asked_for_and_the_others_work_one_chunk_after_the_other(model: ModuleType) -> None:
    for times in model.TIMES:
        found = model.finish_times(np.random.default_rng(0), (50, 12, 4), 3, times)
        failed = np.isinf(found).all(axis=2)
        assert np.all(np.count_nonzero(failed, axis=1) == 3)
        taken = np.diff(found[~failed], axis=1, prepend=0.0)
        assert np.all(taken > 0)
        assert (np.ptp(taken, axis=1).max() < 1e-9) == (times == "worker")


def test_completion_is_when_the_code_says_that_the_sum_is_exact(
    model: ModuleType, assignment: Assignment, finished: NDArray[np.float64]
) -> None:
    code = PartialCode("partial:l=2", assignment, 2)
    ends = model.completion_times(model.copy_times(assignment, finished), 2)
    for times, end in zip(finished, ends, strict=True):
        assert code.recovery(np.count_nonzero(times <= end, axis=1).tolist()).exact
        assert not code.recovery(np.count_nonzero(times < end, axis=1).tolist()).exact
    assert np.all(model.completion_times(model.copy_times(assignment, finished, whole=True), 2) >= ends)


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_errors_of_least_squares_are_those_of_the_code_and_the_estimates(
    model: ModuleType, assignment: Assignment, finished: NDArray[np.float64], blocks: int
) -> None:
    code = PartialCode(f"partial:l={blocks}", assignment, blocks, model.gaussian_columns(assignment.workers, blocks, 5))
    there = model.copy_times(assignment, finished) <= 1.5
    errors = model.least_squares_errors(there, model.projection_errors(code))
    for times, error in zip(finished, errors, strict=True):
        done = np.count_nonzero(times <= 1.5, axis=1).tolist()
        assert error == pytest.approx(code.recovery(done).error * blocks, abs=1e-9)
    np.testing.assert_allclose(model.estimated_errors(there, blocks), errors, atol=1e-9)


def test_normal_equations_leave_what_least_squares_leave(
    model: ModuleType, assignment: Assignment, finished: NDArray[np.float64]
) -> None:
    code = LinearCode("original", assignment)
    complete = finished[:, :, -1] <= 5
    complete[0] = False
    found = model.original_errors(assignment, complete)
    np.testing.assert_allclose(found, [code.decoding(who).residual for who in complete], atol=1e-6)


@pytest.mark.slow
def test_the_paper_s_claims_on_small_graphs(tmp_path: Path) -> None:
    out, plot = tmp_path / "rows.json", tmp_path / "figures.png"
    command = [sys.executable, str(BENCHMARKS / "partial_stragglers.py"), "--workers", "40,50", "--runs", "200"]
    told = subprocess.run([*command, "--json", out, "--plot", plot], capture_output=True, text=True, timeout=280)
    assert told.returncode == 0, told.stderr
    assert plot.read_bytes().startswith(b"\x89PNG")
    checked = re.search(r"l = 1, 2, 3: (.*);", told.stdout)
    assert checked is not None, told.stdout
    ratios = [float(part) for part in checked[1].split(",")]  # of random gradients' squared errors and estimates
    assert ratios == pytest.approx([1, 1, 1], abs=0.15)
    rows: list[dict[str, Any]] = json.loads(out.read_text())["rows"]
    assert all(list(row) == ["figure", "assignment", "l", "protocol", "time", "mean", "std"] for row in rows)
    assert {row["figure"] for row in rows} == {"3a", "3b", "5", "6a", "6b", "7"}
    mean = {(row["figure"], row["assignment"], row["l"], row["protocol"], row["time"]): row["mean"] for row in rows}

    for assignment in ("cyclic-40", "graph-40"):  # figure 3(b)
        for blocks in (1, 2, 3):
            proposed, original = (mean["3b", assignment, blocks, key, None] for key in ("proposed", "original"))
            assert proposed < 0.65 * original
    for figure, assignment in (("3a", "graph-40"), ("5", "graph-50")):
        for until in range(1, 25):
            for blocks in (1, 2, 3):
                error = mean[figure, assignment, blocks, "proposed", until]
                assert error == pytest.approx(mean[figure, assignment, blocks, "estimate", until], abs=1e-9)
            original = mean[figure, assignment, 1, "original", until]
            assert mean[figure, assignment, 1, "proposed", until] < original / 3
            if until >= 5:
                assert error < original  # l = 3
    for figure, assignment in (("6a", "graph-40"), ("6b", "graph-50")):
        ordered, drawn = (
            sum(mean[figure, assignment, 1, f"proposed, {order} order", until] for until in range(1, 25))
            for order in ("optimal", "random")
        )
        assert ordered < drawn
    for blocks in (1, 2, 3):
        ordered, drawn = (
            mean["7", "graph-40", blocks, f"proposed, {order} order", None] for order in ("optimal", "random")
        )
        assert ordered < drawn * (1.0 if blocks == 1 else 1.05)  # optimal is claimed for l = 1 only


def test_the_optimal_order_has_the_least_q_max_of_all(model: ModuleType) -> None:
    graph = adjacency_assignment(expander(40, 8))
    assert model.q_max(optimal_order(graph)) <= model.q_max(model.random_order(graph, 0, 100))
