"""In which order tests run where several workers share them: what takes long first, dealt out evenly.

`--dist worksteal` gives each worker a part of the list, as long as the others', and lets who is done take over the end
of what another has left. A test that takes half a minute must not stand there: the others would wait for its worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Final

import pytest

__all__ = ["dealt", "is_slow", "place"]

_SECONDS: Final = {"deploy": 8.0, "e2e": 6.0, "simulation": 1.6}
"""What a test that is marked as slow takes, about, by its folder."""
_ELSE_S: Final = 2.0
_QUICK_S: Final = 0.05
_TOGETHER: Final = ("deploy",)
"""Folders whose files stay together: they share what takes long to make."""


def is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None


def dealt(items: Sequence[pytest.Item], shares: int) -> list[pytest.Item]:
    """The same tests: of each share, which are as long as each other, first the files with slow ones, longest first."""
    files = [list(file) for _, file in groupby(items, key=place)]
    slow = sorted((file for file in files if any(map(is_slow, file))), key=_seconds, reverse=True)
    rest = (item for file in files if not any(map(is_slow, file)) for item in file)
    hands: list[list[pytest.Item]] = [[] for _ in range(shares)]
    for file in slow:
        min(hands, key=_seconds).extend(file)
    order: list[pytest.Item] = []
    for number, hand in enumerate(hands):
        size = (len(items) - len(order)) // (shares - number)
        order += hand
        order += islice(rest, max(size - len(hand), 0))
    return order + list(rest)


def place(item: pytest.Item) -> Path:
    """Its file, or the folder whose files stay together."""
    return item.path.parent if item.path.parent.name in _TOGETHER else item.path


def _seconds(items: Sequence[pytest.Item]) -> float:
    return sum(_SECONDS.get(item.path.parent.name, _ELSE_S) if is_slow(item) else _QUICK_S for item in items)
