"""What benchmarks/stragglers.py takes for granted: who is slow, and when enough is computed."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from edgepeer.coding.spec import parse_code

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SPEED = "stragglers:0.5,8,0.25"
ROUNDS = range(20)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("stragglers_model")


@pytest.mark.parametrize(("peers", "slow"), [(12, 3), (15, 4)])
def test_a_quarter_is_slow_in_each_round(model: ModuleType, peers: int, slow: int) -> None:
    patterns = set()
    for number in ROUNDS:
        times = [model.seconds_of(rank, peers, number, SPEED) for rank in range(peers)]
        assert sorted(times) == [0.5] * (peers - slow) + [4.0] * slow
        patterns.add(tuple(times))
    assert len(patterns) > 10


@pytest.mark.parametrize(
    ("code", "fanout", "seconds"), [("none", 2, 4.0), ("first:s=3", 2, 0.5), ("cyclic:s=3", 11, 2.0)]
)
def test_codes_of_whole_workers(model: ModuleType, code: str, fanout: int, seconds: float) -> None:
    for number in ROUNDS:
        assert model.enough_after(code, fanout, range(12), number, SPEED) == seconds


def test_a_partial_code_has_each_chunk_from_whoever_is_first(model: ModuleType) -> None:
    slots = [*range(1, 12), 0]
    orders = parse_code("partial:l=1,replication=3").build(12, 2).assignment.orders
    for number in ROUNDS:
        ready = [99.0] * 12
        for slot, order in enumerate(orders):
            for place, chunk in enumerate(order, 1):
                ready[chunk] = min(ready[chunk], place * model.seconds_of(slots[slot], 12, number, SPEED))
        assert model.enough_after("partial:l=1,replication=3", 2, slots, number, SPEED) == max(ready)


def test_pieces_of_other_sizes_take_in_proportion(model: ModuleType) -> None:
    """CodedReduce on a star of five: three chunks of what four others and an idle root would have."""
    code = parse_code("coded-reduce:s=1").build(5, 4)
    load = max(code.assignment.loads) * 5 / code.chunks
    assert model.enough_after("coded-reduce:s=1", 4, range(5), 1, "constant:2") == pytest.approx(2 * load)
