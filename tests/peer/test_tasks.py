"""What comes out of a group of tasks."""

from __future__ import annotations

import pytest

from edgepeer.peer.tasks import task_group


async def test_a_failure_comes_with_what_caused_it() -> None:
    cause = ValueError("no number")
    with pytest.raises(RuntimeError, match="a program's own") as raised:
        async with task_group():
            raise RuntimeError("a program's own") from cause
    assert raised.value.__cause__ is cause


async def test_and_with_what_it_came_in_the_middle_of() -> None:
    before = ValueError("no number")

    async def work() -> None:
        try:
            raise before
        except ValueError:
            raise RuntimeError("another") from None

    with pytest.raises(RuntimeError, match="another") as raised:
        async with task_group():
            await work()
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is before
    assert raised.value.__suppress_context__
