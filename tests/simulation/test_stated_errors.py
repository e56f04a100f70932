"""Coded rounds that are approximate have the error that they state, on average: whatever code, tree and stragglers."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Final

import numpy as np
import pytest
from fleet_stories import told

from edgepeer.protocol import effects as fx
from edgepeer.simulation.drawing import CODES, Random, draw_schedule
from edgepeer.simulation.schedule import Schedule
from edgepeer.simulation.world import World

SIZE: Final = 3000
"""Gradients are random, and so nearly orthogonal, the more the longer they are."""


def squared_error(world: World, outcome: fx.RoundCommitted) -> float:
    """Of the gradient, in units of one chunk's squared gradient norm: its elements have variance 1."""
    (plain,) = world.all_chunks(outcome)
    wrong = (outcome.sum - plain)[:SIZE]
    return float(wrong @ wrong) / SIZE


def approximate(schedule: Schedule) -> list[tuple[float, float]]:
    """What was stated of each approximate round, and what was found."""
    world = told(schedule).world
    rounds = {outcome.round: outcome for peer in world.alive for outcome in peer.outcomes if not outcome.exact}
    return [(outcome.error, squared_error(world, outcome)) for outcome in rounds.values()]


def fleets(code: str, many: int) -> list[Schedule]:
    """Fleets with stragglers, and some in which somebody dies, that close rounds early."""
    drawn = (
        draw_schedule(Random(seed), coded=True, kinds=("slow", "kill"), peers=(4, 9), most_faults=2)
        for seed in range(many)
    )
    early = ("error<2.5", "deadline:0.4")
    return [
        replace(
            schedule, code=code, wait=early[number % 2], size=SIZE, dtype="<f8", compute_s=0.2, rounds=24, fanout=3,
            rate_bytes_per_s=1e9, latency_s=1e-3, jitter_s=0.0, loss=0.0,
        )
        for number, schedule in enumerate(drawn)
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("code", CODES)
def test_the_stated_error_is_right_on_average(code: str) -> None:
    found = [pair for schedule in fleets(code, 5) for pair in approximate(schedule)]
    assert len(found) >= 20
    stated, measured = np.array(found).T
    assert np.all(stated > 0)
    assert measured.mean() == pytest.approx(stated.mean(), rel=0.05)
    by_stated = defaultdict(list)
    for each, error in found:
        by_stated[round(each, 6)].append(error)
    for each, errors in by_stated.items():
        if len(errors) >= 8:
            assert np.mean(errors) == pytest.approx(each, rel=0.1)
