"""Who starts again where the broker has forgotten the others looks for them before it begins something of its own."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import numpy as np
import pytest
from peer_fleet import DEADLINE_S, QUICK, all_reduce, peer_at, view_of

from edgepeer import Peer
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.ids import Generation, PeerId, load_identity
from edgepeer.peer.last_view import LastView
from edgepeer.topology.view import Member, View

VIEW = View(epoch=3, members=tuple(Member(id=PeerId(name), incarnation=7) for name in "ab"))


async def test_who_is_back_beside_another_broker_waits_for_its_fleet(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """It knows their generation, so one that it began alone would count more than theirs, and end what they do."""
    one = np.ones(3)
    async with contextlib.AsyncExitStack() as stack:
        elsewhere = await stack.enter_async_context(contextlib.AsyncExitStack())
        first = await elsewhere.enter_async_context(EmbeddedBroker())
        both = f"{first.address.url()},{broker.address.url()}"
        others = [await stack.enter_async_context(Peer(both, "lab", peer_id=name, limits=QUICK)) for name in "ab"]
        async with peer_at(first, "c", state_dir=tmp_path) as c:
            await asyncio.gather(*(view_of(peer, "a", "b", "c") for peer in (*others, c)))
            before = await all_reduce([*others, c], [one] * 3)
        await asyncio.gather(*(view_of(peer, "a", "b") for peer in others))
        back = await stack.enter_async_context(peer_at(broker, "c", state_dir=tmp_path))
        async with asyncio.timeout(DEADLINE_S):
            while back.view is None and not any(link.up for link in back.links):  # noqa: ASYNC110  # no bell rings
                await asyncio.sleep(0.001)  # looks again, until the deadline
        assert back.view is None
        await all_reduce(others, [one] * 2)
        await elsewhere.aclose()  # now they meet
        await asyncio.gather(*(view_of(peer, "a", "b", "c") for peer in (*others, back)))
        after = await all_reduce([*others, back], [one] * 3)
        assert {(outcome.generation, outcome.round) for outcome in after} == {(before[0].generation, 3)}


async def test_a_generation_that_could_not_be_kept_is_kept_with_the_next_view(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Else whoever starts again after a disk that was full for a moment may begin one that comes before it."""
    (tmp_path / "generation.new").mkdir()
    async with peer_at(broker, "a", state_dir=tmp_path) as a:
        world = await view_of(a, "a")
        assert not (tmp_path / "generation").exists()
        (tmp_path / "generation.new").rmdir()
        async with peer_at(broker, "b") as b:
            await asyncio.gather(*(view_of(peer, "a", "b") for peer in (a, b)))
    assert load_identity(tmp_path).known == world.generation


def test_what_is_kept_is_of_one_fabric(tmp_path: Path) -> None:
    assert LastView(tmp_path, "lab").load() is None
    LastView(tmp_path, "lab").keep(VIEW)
    assert LastView(tmp_path, "lab").load() == VIEW
    assert LastView(tmp_path, "other").load() is None


def test_half_of_it_is_no_hint(tmp_path: Path) -> None:
    LastView(tmp_path, "lab").keep(VIEW)
    path = tmp_path / "view"
    path.write_bytes(path.read_bytes()[:-5])
    assert LastView(tmp_path, "lab").load() is None


def test_it_is_written_when_others_are_in_it(tmp_path: Path) -> None:
    kept = LastView(tmp_path, "lab")
    kept.keep(VIEW)
    (tmp_path / "view").unlink()
    kept.keep(View(epoch=4, members=VIEW.members[::-1], fanout=3))
    assert kept.load() is None
    kept.keep(View(generation=Generation(counter=2), epoch=1, members=VIEW.members))
    assert kept.load() is not None


def test_and_when_another_run_is_worked_on(tmp_path: Path) -> None:
    """Whoever waits for those who are at work on what it wants has to know that they are: a fleet that has come
    together begins its run in a view of the same lives."""
    kept = LastView(tmp_path, "lab")
    kept.keep(VIEW)
    kept.keep(at_work := VIEW.successor(first_round=1, run="r"))
    assert kept.load() == at_work
    kept.keep(over := at_work.successor(first_round=9, run=""))
    assert kept.load() == over


def test_nothing_is_kept_without_a_directory() -> None:
    kept = LastView(None, "lab")
    kept.keep(VIEW)
    assert kept.load() is None


def test_a_directory_that_can_not_be_written_is_told_of(tmp_path: Path) -> None:
    kept = LastView(tmp_path / "gone", "lab")
    with pytest.raises(FileNotFoundError):
        kept.keep(VIEW)
