"""How long a peer that leaves waits."""

from __future__ import annotations

import asyncio

import pytest

from edgepeer.peer import leaving
from edgepeer.peer.leaving import let_go

LARGE = 1 << 20


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "LEAVE_S", 1e-3)


@pytest.mark.parametrize(
    ("sizes", "looks"),
    [
        ([4 * LARGE, 3 * LARGE, 2 * LARGE, LARGE, 9], 5),  # they get all of it
        ([9], 1),  # a Ping
        ([4 * LARGE, 4 * LARGE], 2),  # nothing of it arrives
        ([4 * LARGE, 5 * LARGE], 2),  # it is not let go, and rounds go on
    ],
)
async def test_it_waits_as_long_as_others_get_what_it_has_sent(sizes: list[int], looks: int) -> None:
    rest = iter(sizes)
    looked = [0]

    def undelivered() -> int:
        looked[0] += 1
        return next(rest)

    await let_go(asyncio.Event(), undelivered)
    assert looked == [looks]


async def test_it_waits_for_a_while_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "_MOST_S", 0.05)
    left = [1 << 40]

    def undelivered() -> int:
        left[0] -= 1
        return left[0]

    async with asyncio.timeout(60):
        await let_go(asyncio.Event(), undelivered)
    assert left[0] < 1 << 40


async def test_who_is_let_go_goes() -> None:
    left = asyncio.Event()

    def undelivered() -> int:
        left.set()
        return LARGE

    await let_go(left, undelivered)
    left.set()
    await let_go(left, lambda: pytest.fail("it has left"))
