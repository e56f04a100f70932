"""Schedules that are drawn, by a seed or by Hypothesis, and what the simulator's tests share."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from hypothesis import Phase, settings
from hypothesis import strategies as st

from edgepeer.errors import ProtocolBug
from edgepeer.simulation.drawing import Picker, Random, draw_schedule
from edgepeer.simulation.schedule import Schedule
from edgepeer.simulation.soak import smallest
from edgepeer.simulation.story import Story

__all__ = ["drawn", "examples", "schedules", "told"]

_T = TypeVar("_T")


class _Drawn:
    """Choices that Hypothesis makes."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self._draw = draw

    def integer(self, least: int, most: int) -> int:
        return int(self._draw(st.integers(least, most)))

    def choice(self, of: Sequence[_T]) -> _T:
        chosen: _T = self._draw(st.sampled_from(of))
        return chosen

    def many(self, most: int, make: Callable[[Picker], _T]) -> list[_T]:
        one = st.composite(lambda draw: make(_Drawn(draw)))()
        found: list[_T] = self._draw(st.lists(one, max_size=most))
        return found


def schedules(**how: Any) -> st.SearchStrategy[Schedule]:
    """What `draw_schedule` draws with these arguments."""
    return st.composite(lambda draw: draw_schedule(_Drawn(draw), **how))()


def drawn(many: int, *of: object, **how: Any) -> Iterator[Schedule]:
    """So many of what `draw_schedule` draws with these arguments: the same in every run, and others for others in `of`.
    Each by itself: what Hypothesis draws are half of them earlier ones with a fault more or less. A search goes through
    others, and as many as its profile says."""
    rng = random.Random(None if _searching() else repr(of))
    for _ in range(settings.default.max_examples if _searching() else many):
        yield draw_schedule(Random(rng.getrandbits(63)), **how)


def examples(many: int) -> settings:
    """So many; a search goes through as many as its profile says. What fails is made smaller by `told`, which knows
    what a schedule is, and when to stop."""
    most = settings.default.max_examples if _searching() else many
    return settings(max_examples=most, phases=(Phase.explicit, Phase.generate))


def _searching() -> bool:
    return os.environ.get("HYPOTHESIS_PROFILE", "ci") == "search"


def told(schedule: Schedule, make: Callable[..., Story] = Story) -> Story:
    """Let it happen; where it breaks something, show the smallest schedule that does, as text for tests/scenarios."""
    story = make(schedule)
    try:
        story.tell()
    except ProtocolBug as error:
        raise ProtocolBug(f"{error}\n\n{_smallest(schedule, make)}") from error
    except Exception as error:
        error.add_note(str(schedule))
        raise
    return story


@lru_cache(maxsize=8)
def _smallest(schedule: Schedule, make: Callable[..., Story]) -> str:
    return str(smallest(schedule, tries=150, make=make))
