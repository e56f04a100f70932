"""Schedules that once broke something, each the smallest that did: a line at its top says what.

Beside each stands its transcript (.out), what happens in it nowadays. Where a change of the protocol is meant to change
what happens, write them anew, and review the difference like code:

    pytest --rewrite-transcripts tests/scenarios && git diff tests/scenarios
"""

from __future__ import annotations

from difflib import unified_diff
from pathlib import Path

import pytest

from edgepeer.simulation.account import Account
from edgepeer.simulation.schedule import Schedule
from edgepeer.simulation.story import Story

SCENARIOS = sorted(Path(__file__).parent.glob("*.txt"))
HINT = "if that is meant: pytest --rewrite-transcripts tests/scenarios, and review what git diff shows"
LONGEST = 90
"""Lines of a transcript: what is longer is reviewed by nobody."""


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_what_was_once_broken(path: Path, pytestconfig: pytest.Config) -> None:
    schedule = Schedule.parse(path.read_text(encoding="utf-8"), path.name)
    assert schedule.comment, f"{path.name}: a comment at the top must say what broke"
    account = Account()
    story = Story(schedule, account=account)
    story.tell()
    assert story.happened, f"{path.name}: nothing happened to anybody"
    transcript, happens = path.with_suffix(".out"), str(account)
    if pytestconfig.getoption("rewrite_transcripts"):
        transcript.write_text(happens, encoding="utf-8")
    expected = transcript.read_text(encoding="utf-8") if transcript.exists() else ""
    if happens != expected:
        other = unified_diff(expected.splitlines(), happens.splitlines(), transcript.name, "now", lineterm="")
        pytest.fail("\n".join([f"{path.name} goes otherwise than {transcript.name} says", *other, HINT]), pytrace=False)
    assert happens.count("\n") <= LONGEST


def test_there_are_scenarios_and_no_two_are_the_same() -> None:
    schedules = {str(Schedule.parse(path.read_text(encoding="utf-8"))).partition("peers ")[2] for path in SCENARIOS}
    assert len(schedules) == len(SCENARIOS) > 20


def test_every_transcript_is_of_a_scenario() -> None:
    assert {path.stem for path in Path(__file__).parent.glob("*.out")} == {path.stem for path in SCENARIOS}
