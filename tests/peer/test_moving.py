"""A machine gets other addresses while its peer runs: it says so, and others find it there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from peer_fleet import DEADLINE_S, peer_at

from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.fabric.documents import Presence
from edgepeer.fabric.events import FabricEvent, PresenceSeen
from edgepeer.following.observe import observe
from edgepeer.peer import api, moving
from edgepeer.peer.moving import follow_addresses, may_move

BEGAN, LATER, LOOPBACK = ("10.0.0.7:1", "127.0.0.1:1"), ("10.0.0.8:1", "127.0.0.1:1"), ("127.0.0.1:1",)
NOBODY = ("127.0.0.1:9",)


def test_only_who_listens_everywhere_may_move() -> None:
    assert may_move("0.0.0.0:7700")
    assert may_move("[::]:7700")
    assert not may_move("127.0.0.1:7700")
    assert not may_move("10.0.0.7:7700")


async def test_what_is_new_is_said_once_and_what_was_at_first_is_said_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has nothing but its loopback for a moment, or doesn't say what it has, keeps what it had."""
    looks: Iterator[tuple[str, ...] | None] = iter([BEGAN, LATER, LATER, LOOPBACK, None, LATER, BEGAN, BEGAN, LATER])

    def look(bound: str) -> tuple[str, ...]:
        assert bound == "0.0.0.0:1"
        try:
            found = next(looks)
        except StopIteration:
            raise KeyboardInterrupt from None
        if found is None:
            raise OSError("no netlink")
        return found

    said: list[tuple[str, ...]] = []
    monkeypatch.setattr(moving, "advertised", look)
    with pytest.raises(KeyboardInterrupt):
        await follow_addresses("0.0.0.0:1", BEGAN, said.append, every_s=0)
    assert said == [LATER, (), LATER]


async def test_others_dial_it_where_it_is_now(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first address is nobody's, and nobody can dial the other: that one finds it where it has said since."""
    moves: asyncio.Queue[tuple[str, ...]] = asyncio.Queue()
    heard: asyncio.Queue[Presence] = asyncio.Queue()

    async def follow(listening: str, began: tuple[str, ...], moved: Callable[[tuple[str, ...]], None]) -> None:
        while True:
            moved(await moves.get())

    def hear(event: FabricEvent) -> None:
        if isinstance(event, PresenceSeen) and event.presence.id == "a":
            heard.put_nowait(event.presence)

    monkeypatch.setattr(api, "follow_addresses", follow)
    monkeypatch.setattr(api, "advertised", lambda bound: NOBODY)
    async with (
        asyncio.timeout(DEADLINE_S),
        observe(broker.address, "lab", hear),
        peer_at(broker, "a", listen="0.0.0.0:0", insecure=True) as a,
    ):
        first = await heard.get()
        assert (first.addresses, first.moved_to, first.places) == (NOBODY, (), NOBODY)
        place = f"127.0.0.1:{a.address.rpartition(':')[2]}"
        moves.put_nowait((place,))
        assert (await heard.get()).places == (place,)
        async with peer_at(broker, "b", advertise=NOBODY) as b:
            await b.ready(2)
            while [link.path for link in b.links] != ["direct"]:  # noqa: ASYNC110  # no bell rings
                await asyncio.sleep(0.01)
            assert a.view is not None
            assert a.view.member(a.id).addresses == NOBODY
        moves.put_nowait(())
        while (await heard.get()).places != NOBODY:
            pass
