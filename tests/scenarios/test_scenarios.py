"""Schedules that once broke something, each the smallest that did: a line at its top says what."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgepeer.simulation.schedule import Schedule
from edgepeer.simulation.story import Story

SCENARIOS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_what_was_once_broken(path: Path) -> None:
    schedule = Schedule.parse(path.read_text(encoding="utf-8"), path.name)
    assert schedule.comment, f"{path.name}: a comment at the top must say what broke"
    story = Story(schedule)
    story.tell()
    assert story.happened, f"{path.name}: nothing happened to anybody"


def test_there_are_scenarios_and_no_two_are_the_same() -> None:
    schedules = {str(Schedule.parse(path.read_text(encoding="utf-8"))).partition("peers ")[2] for path in SCENARIOS}
    assert len(schedules) == len(SCENARIOS) > 20
