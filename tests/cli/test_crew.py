"""Work on several processes: everything is done once, no more is taken than is needed, and a death is told."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from edgepeer.cli.crew import crew
from edgepeer.errors import EdgepeerError


def square(number: int) -> int:
    return number * number


def die(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def refuse(number: int) -> int:
    raise EdgepeerError(f"not {number}")


@pytest.mark.parametrize("jobs", [1, 2])
def test_everything_is_done_once(jobs: int) -> None:
    with crew(jobs) as over:
        assert sorted(over(square, iter(range(7)))) == [0, 1, 4, 9, 16, 25, 36]


@pytest.mark.parametrize("jobs", [1, 2])
def test_no_more_is_taken_than_there_are_hands_for(jobs: int) -> None:
    taken: list[int] = []

    def endless() -> Iterator[int]:
        while True:
            taken.append(len(taken))
            yield taken[-1]

    with crew(jobs) as over:
        found = over(square, endless())
        assert {next(found) for _ in range(3)} <= {0, 1, 4, 9, 16}
    assert len(taken) <= 3 + jobs


def test_what_a_process_raises_is_raised_here() -> None:
    with crew(2) as over, pytest.raises(EdgepeerError, match="not 3"):
        list(over(refuse, iter([3])))


def test_a_process_that_is_killed_ends_the_work_in_one_line() -> None:
    with crew(2) as over, pytest.raises(EdgepeerError, match="a process at work was killed"):
        list(over(die, iter([1])))
