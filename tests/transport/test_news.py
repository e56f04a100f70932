"""Lists of who is out, over sealed channels: they go from peer to peer, and whoever is on one is off."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator

import pytest
from fleets import Fleet
from speech import Ear, until

from edgepeer.transport import news, secure
from edgepeer.transport.base import Channel
from edgepeer.transport.news import News, in_pieces
from edgepeer.transport.records import MOST_BYTES
from edgepeer.transport.secure import SecureTransport


@pytest.fixture(autouse=True)
def _all_complaints(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("edgepeer.complaints._EVERY_S", 0.0)
    caplog.set_level(logging.WARNING, "edgepeer")


@contextlib.asynccontextmanager
async def linked(fleet: Fleet, *pairs: tuple[str, str]) -> AsyncIterator[dict[str, SecureTransport]]:
    """Peers of which those of each pair have a link."""
    names = sorted({name for pair in pairs for name in pair})
    transports = {name: SecureTransport(fleet.member(name)) for name in names}
    ears, channels = list[Ear](), []

    def accept(channel: Channel) -> Ear:
        ears.append(Ear(channel))
        return ears[-1]

    listeners = {name: await transports[name].listen("127.0.0.1:0", accept) for name in names}
    for one, other in pairs:
        channels.append(await transports[one].dial(listeners[other].address, accept, timeout=5))
    await until(lambda: len(ears) == 2 * len(pairs))
    try:
        yield transports
    finally:
        for channel in channels:
            channel.abort("the test is over")
        await until(lambda: all(ear.reasons for ear in ears))
        for name in names:
            await listeners[name].close()
            transports[name].close()


def knows(transport: SecureTransport) -> int:
    return transport._fleet.identity.evictions.number


async def test_a_list_goes_from_peer_to_peer_and_whoever_is_on_it_is_off(
    tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    async with linked(fleet, ("a", "b"), ("b", "c"), ("c", "d"), ("c", "x"), ("x", "d"), ("a", "d")) as peers:
        signed = fleet.evict("x")
        assert peers["a"]._fleet.identity.evictions.accept(signed)
        await until(lambda: all(knows(peers[name]) == knows(peers["a"]) for name in "bcd"))
        await until(lambda: not peers["x"]._fleet.open)
        assert [len(peers[name]._fleet.open) for name in "abcd"] == [2, 2, 2, 2]
        listener = await peers["b"].listen("127.0.0.1:0", Ear)
        with pytest.raises(ConnectionError, match="peer x of greenhouse was evicted"):
            await peers["x"].dial(listener.address, Ear, timeout=5)
        await listener.close()
    assert "peer x of greenhouse was evicted" in caplog.text


async def test_who_is_expired_keeps_its_links_until_the_other_end_looks_again(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    fleet.directory("late", lifetime_s=7200.0)
    fleet.directory("somebody")
    async with linked(fleet, ("a", "late"), ("a", "b")) as peers:
        then = time.time() + 2 * 7200.0
        monkeypatch.setattr("edgepeer.trust.certificates.believable", lambda: then)
        assert [len(peers[name]._fleet.open) for name in ("a", "b", "late")] == [2, 1, 1]
        assert peers["a"]._fleet.identity.evictions.accept(fleet.evict("somebody"))
        await until(lambda: not peers["late"]._fleet.open)
        assert [len(peers[name]._fleet.open) for name in "ab"] == [1, 1]
    assert "has expired on" in caplog.text


async def test_who_comes_with_an_older_list_is_told_of_the_newer_one_whoever_has_dialled(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    for name in "abcx":
        fleet.directory(name)
    fleet.member("a").evictions.accept(fleet.evict("x"))
    for pair in (("a", "b"), ("c", "a")):
        async with linked(fleet, pair) as peers:
            await until(lambda peers=peers: [knows(peer) for peer in peers.values()] == [2, 2])  # type: ignore[misc]


async def test_a_list_that_is_none_costs_the_link(
    tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    forged = fleet.other("forger").evict()
    async with linked(fleet, ("p1", "p2")) as peers:
        (mine,) = peers["p1"]._fleet.open
        for piece in in_pieces(forged):
            mine._queue(secure.Kind.EVICTIONS, piece)
        mine._schedule()
        await until(lambda: not peers["p2"]._fleet.open)
        assert peers["p2"].traffic.frames_rejected == 1
    assert "list of evictions: an eviction list is signed by no authority of this fleet" in caplog.text


@pytest.mark.parametrize("size", [1, 100, MOST_BYTES - 4, MOST_BYTES - 3, 300_000])
def test_a_list_of_any_length_arrives(size: int) -> None:
    here, text = News(), bytes(n % 251 for n in range(size))
    told = [here.take(piece) for _ in range(2) for piece in in_pieces(text)]
    assert [each for each in told if each is not None] == [text, text]


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ([b"\0"], "begins with 1 bytes"),
        ([b"\0\0\0\0"], "of 0 bytes"),
        ([b"\xff\xff\xff\xff"], "of 4294967295 bytes"),
        ([b"\0\0\0\x05" + b"123456"], "longer than announced"),
        ([b"\0\0\0\x05" + b"123", b"456"], "longer than announced"),
    ],
)
def test_a_list_that_can_not_be(pieces: list[bytes], why: str) -> None:
    here = News()
    for piece in pieces[:-1]:
        here.take(memoryview(piece))
    with pytest.raises(news.WireError, match=why):
        here.take(memoryview(pieces[-1]))
