"""Fleets that round, while something fails: all have the same bits, and those that the trees of a view come to."""

from __future__ import annotations

import pytest

from edgepeer.simulation.schedule import Schedule
from edgepeer.simulation.story import Story

FAULTS = {
    "nothing": "",
    "links": "0.1 reset p1 p3\n0.3..0.8 cut p0 p1\n0.5 reset p0 p2\n0.9..1.4 oneway p4 p1\n",
    "the root dies": "0.35 kill p0\n",
    "one dies and comes back": "0.3..0.9 kill p1\n",
    "some come and go": "0.2 join q1\n0.5 leave p2\n0.9 join q2\n",
    "two parts": "0.3..2.5 partition p0 p1\n",
}


@pytest.mark.parametrize("happens", FAULTS)
@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_sums_are_what_the_trees_come_to(precision: str, lanes: int, happens: str) -> None:
    text = (
        f"peers 7\nlanes {lanes}\nrounds 16\nsize 1100\ncompute_s 0.05\nprecision {precision}\nrate_bytes_per_s 1e5\n"
    )
    story = Story(Schedule.parse(text + FAULTS[happens]))
    world = story.tell()
    assert story.ended_well
    assert world.ledger.rounded >= 16
    committed = [outcome for peer in world.peers.values() for outcome in peer.outcomes]
    assert {outcome.precision for outcome in committed} == {precision}


def test_a_schedule_says_what_it_rounds_to() -> None:
    assert Schedule.parse("peers 3\nprecision int8\n").precision == "int8"
    for text, why in (
        ("peers 3\nprecision fp16\n", "precision fp16: must be one of float32, bf16, int8"),
        ("peers 3\nprecision bf16\ndtype <f8\n", "precision bf16: is for dtype <f4, without code and split"),
        ("peers 3\nprecision bf16\ncode cyclic:s=1\n", "precision bf16: is for dtype <f4, without code and split"),
    ):
        with pytest.raises(Exception, match=f"schedule: {why}$"):
            Schedule.parse(text)
