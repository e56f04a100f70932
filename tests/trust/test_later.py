"""What is written beside the event loop: in order, the newest only, and not waited for for ever."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from fleets import Fleet, Identity

from edgepeer.enrol import renewal
from edgepeer.enrol.keeping import kept
from edgepeer.enrol.messages import Granted
from edgepeer.fabric.announced import Announced
from edgepeer.trust.later import Later


class Card:
    """A disk that takes nothing in before it may, and is waited for by no event loop."""

    def __init__(self) -> None:
        self.asked, self.may = threading.Event(), threading.Event()
        self._sync = os.fsync

    def fsync(self, handle: int) -> None:
        assert threading.current_thread() is not threading.main_thread(), "the event loop waits for the disk"
        self.asked.set()
        assert self.may.wait(60)
        self._sync(handle)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[Card]:
    card = Card()
    monkeypatch.setattr(os, "fsync", card.fsync)
    yield card
    card.may.set()


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path / "fleet")


async def test_an_eviction_counts_before_the_disk_has_it_and_is_there_in_the_end(
    fleet: Fleet, request: pytest.FixtureRequest
) -> None:
    p1, p2, p3 = (fleet.member(name) for name in ("p1", "p2", "p3"))
    card = request.getfixturevalue("card")
    async with kept(p1):
        for gone in (p2, p3):
            assert p1.evictions.accept(fleet.evict(gone.holder.id))
            assert gone.holder.serial in p1.evictions.serials
        assert Identity.load(p1.directory).evictions.number == 1
        assert not p1.refresh()
        card.may.set()
    assert Identity.load(p1.directory).evictions.signed == fleet.founder.signed
    assert not list(p1.directory.glob(".*.new"))


async def test_an_authority_is_on_the_disk_before_the_certificate_that_it_issues(fleet: Fleet) -> None:
    """Else who loses power between the two is of no fleet any more."""
    p1, out = fleet.member("p1"), fleet.member("p2").holder
    async with kept(p1):
        p1.evictions.accept(fleet.evict("p2"))  # may still be under way when the next one is kept
        both = fleet.founder.add_authority()
        assert p1.evictions.accept(both)
        found = Identity.load(p1.directory).evictions
        assert (found.signed, len(found.authorities), out.serial in found.serials) == (both, 2, True)
        p1.renewed(fleet.founder.renew("p1", p1.key.public_key(), p1.holder.role))
    assert Identity.load(p1.directory).evictions.signed == both


async def test_a_new_certificate_counts_when_the_disk_has_it_and_the_event_loop_goes_on_until_then(
    fleet: Fleet, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    p1 = fleet.member("p1")
    after = dataclasses.replace(p1.holder, serial=p1.holder.serial + 1)
    before, fresh = p1.certificate, fleet.founder.issue(after, p1.key.public_key())
    granted = Granted(fresh, (), fleet.founder.signed, p1.where)

    async def renew(*_: object) -> Granted:
        return granted

    monkeypatch.setattr(renewal, "renew", renew)
    card = request.getfixturevalue("card")
    async with kept(p1):
        task = asyncio.create_task(renewal.renew_now(p1))
        await asyncio.to_thread(card.asked.wait, 60)
        assert p1.certificate == Identity.load(p1.directory).certificate == before
        card.may.set()
        await task
        assert p1.certificate == Identity.load(p1.directory).certificate == fresh
        assert not p1.refresh()


async def test_who_waits_for_the_disk_hears_what_went_wrong_and_nobody_is_written_over() -> None:
    may, written = threading.Event(), list[str]()

    async def write(text: str) -> None:
        await later.done("a", lambda: (may.wait(60), written.append(text)))

    async with Later() as later, asyncio.TaskGroup() as tasks:
        first, given_up, last = (tasks.create_task(write(text)) for text in ("first", "given up", "last"))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.sleep(0)
        may.set()
    assert written == ["first", "last"]
    assert (first.cancelled(), given_up.cancelled(), last.cancelled()) == (False, True, False)
    async with later:
        with pytest.raises(ZeroDivisionError):
            await later.done("a", lambda: 1 / 0)


async def test_what_was_announced_counts_before_the_disk_has_it(fleet: Fleet, request: pytest.FixtureRequest) -> None:
    p1, alice = fleet.member("p1"), fleet.operator()
    path = p1.directory / "announced"
    card = request.getfixturevalue("card")
    async with kept(p1):
        announced = Announced(path, p1.later)
        for number in range(1, 100):
            announced.take(float(number), b"job %d" % number, alice.holder, ())
        assert announced.signed == b"job 99"
        assert not path.exists()
        card.may.set()
    assert Announced(path, p1.later).signed == b"job 99"
    assert msgspec.msgpack.decode(path.read_bytes())[1] == 99.0


async def test_of_what_waits_the_newest_is_written_in_order() -> None:
    may, begun, written = threading.Event(), threading.Event(), list[str]()
    async with Later() as later:
        later.do("first", lambda: (begun.set(), may.wait(60), written.append("first")))
        assert begun.wait(60)
        for text in ("old", "newer", "newest"):
            later.do("a", lambda text=text: written.append(text))
            later.do("b", lambda: 1 / 0)  # which keeps nobody else from being written
        may.set()
    assert written == ["first", "newest"]
    later.do("at once", lambda: written.append(threading.current_thread().name))
    assert written[-1] == threading.main_thread().name


async def test_a_disk_that_is_stuck_keeps_nobody_from_ending(caplog: pytest.LogCaptureFixture) -> None:
    may, written = threading.Event(), list[int]()
    began = time.monotonic()
    async with Later(0.05) as later:
        later.do("a", lambda: (may.wait(60), written.append(1)))
    assert time.monotonic() - began < 30
    assert "a disk has not taken in 0.05 s what is to be kept" in caplog.text
    later.do("a", lambda: written.append(2))  # behind what is under way
    assert not written
    may.set()
    async with asyncio.timeout(60), later:
        pass
    assert written == [1, 2]
