"""Garbage on a peer's port and on its topics: refused, counted, and without any effect on the rounds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

import aiomqtt
import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from peer_fleet import DEADLINE_S, Pumps, all_reduce, fleet

from edgepeer import Peer
from edgepeer.errors import WireError
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.fabric.documents import Presence
from edgepeer.peer.switchboard import STRANGERS_BYTES
from edgepeer.wire import codec
from edgepeer.wire import frames as fr
from edgepeer.wire.codec import FRAME_VERSION, PRELUDE, encode
from edgepeer.wire.documents import pack

ME = fr.Hello(fabric="lab", peer="zz", incarnation=1)


async def say(peer: Peer, data: bytes, *, half_close: bool = True) -> bytes:
    """Connect, say this, and return the answer: all that comes until the peer closes the connection."""
    host, _, port = peer.address.rpartition(":")
    async with asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(data)
            if half_close:
                writer.write_eof()
            with contextlib.suppress(ConnectionError):
                return await reader.read()
            return b""
        finally:
            writer.transport.abort()


@contextlib.asynccontextmanager
async def at_work(broker: EmbeddedBroker) -> AsyncIterator[tuple[list[Peer], Pumps]]:
    """Three peers in the middle of rounds; when the context ends they still must be."""
    async with fleet(broker, "a", "b", "c") as peers:
        await all_reduce(peers, [np.ones(4)] * 3)
        async with Pumps(peers) as pumps:
            views = [peer.view for peer in peers]
            await pumps.more(rounds=2)
            yield peers, pumps
            await pumps.more(rounds=2)
            assert [peer.view for peer in peers] == views
            pumps.check()
            assert {frozenset(outcome.contributors) for outcome in pumps.outcomes["a"]} == {frozenset("abc")}
            assert all(outcome.exact for outcome in pumps.outcomes["a"])


REFUSED = {
    "not a frame": (b"GET / HTTP/1.1\r\nHost: edgepeer\r\n\r\n", "not an edgepeer frame"),
    "another version": (PRELUDE.pack(b"EP", 9, 1, 10, 0) + bytes(10), "frame of version 9"),
    "unknown kind": (PRELUDE.pack(b"EP", FRAME_VERSION, 99, 0, 0), "unknown frame kind 99"),
    "oversized vector": (encode(ME) + PRELUDE.pack(b"EP", FRAME_VERSION, 5, 100, (1 << 32) - 1), "limit"),
    "oversized document": (encode(ME) + PRELUDE.pack(b"EP", FRAME_VERSION, 3, 2, (4 << 20) + 1), "limit"),
    "payload where none belongs": (PRELUDE.pack(b"EP", FRAME_VERSION, 1, 10, 5) + bytes(15), "limit 0"),
    "no msgpack": (PRELUDE.pack(b"EP", FRAME_VERSION, 1, 3, 0) + b"\xc1\xc1\xc1", "Hello header"),
    "wrong fields": (PRELUDE.pack(b"EP", FRAME_VERSION, 1, 1, 0) + msgpack.packb([]), "Hello header"),
    "no Hello": (encode(fr.Ping(waiting=False)), "Ping before Hello"),
    "another fabric": (encode(fr.Hello(fabric="other", peer="zz", incarnation=1)), "speaks for fabric 'other'"),
    "its own name": (encode(fr.Hello(fabric="lab", peer="a", incarnation=1)), "that is this peer itself"),
    "payload beyond the vector": (
        encode(ME) + encode(fr.Result(epoch=1, round=1, offset=3, total=4, dtype="<f4"), 8) + bytes(8),
        "Result of 8 bytes at element 3 of 4",
    ),
}


async def test_what_is_no_frame_costs_the_connection_and_is_counted(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgepeer.complaints._EVERY_S", 0.0)
    caplog.set_level(logging.WARNING, "edgepeer")
    async with at_work(broker) as (peers, _):
        a = peers[0]
        for name, (data, reason) in REFUSED.items():
            caplog.clear()
            before = a.traffic.frames_rejected
            await say(a, data, half_close=False)
            assert a.traffic.frames_rejected == before + 1, name
            lines = [record.getMessage() for record in caplog.records if "connection with" in record.getMessage()]
            assert len(lines) == 1, (name, lines)
            assert reason in lines[0], name


@pytest.mark.parametrize("cut", [1, PRELUDE.size, PRELUDE.size + 3])
async def test_what_ends_in_the_middle(cut: int, broker: EmbeddedBroker) -> None:
    async with at_work(broker) as (peers, _):
        await say(peers[0], encode(ME)[:cut])


async def test_who_looks_for_somebody_else_takes_nobodys_connection(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The addresses of the dead are used again, by a peer that is connected with whoever looks for them."""
    caplog.set_level(logging.DEBUG, "edgepeer.peer.driver")
    async with at_work(broker) as (peers, _):
        hello = fr.Hello(fabric="lab", peer="b", incarnation=1, wanted="gone")
        assert b"looking for gone" in await say(peers[0], encode(hello), half_close=False)
        assert "link to b down" not in caplog.text


async def test_who_says_nothing_is_not_waited_for(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with at_work(broker) as (peers, _):
        monkeypatch.setattr("edgepeer.peer.session.HELLO_WITHIN_S", 0.1)  # these have said theirs, however slowly
        await say(peers[0], b"", half_close=False)
        assert "no Hello within 0.1 s" in caplog.text


async def test_too_many_connections(broker: EmbeddedBroker) -> None:
    limit = 256
    async with at_work(broker) as (peers, _), asyncio.timeout(DEADLINE_S):
        host, _, port = peers[0].address.rpartition(":")
        held = [await asyncio.open_connection(host, int(port)) for _ in range(limit + 5)]
        ends = [asyncio.create_task(reader.read()) for reader, _ in held]
        while sum(end.done() for end in ends) < 5:
            await asyncio.wait([end for end in ends if not end.done()], return_when=asyncio.FIRST_COMPLETED)
        for _, writer in held:
            writer.transport.abort()
        await asyncio.gather(*ends, return_exceptions=True)


async def test_refusals_do_not_fill_the_log(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgepeer.complaints._EVERY_S", 3600.0)
    caplog.set_level(logging.WARNING, "edgepeer")
    async with at_work(broker) as (peers, _):
        before = peers[0].traffic.frames_rejected
        for _ in range(20):
            await say(peers[0], b"GET / HTTP/1.1\r\n\r\n")
            await say(peers[0], encode(fr.Ping(waiting=False)), half_close=False)
        assert peers[0].traffic.frames_rejected == before + 40
    lines = [record.getMessage() for record in caplog.records if "connection with" in record.getMessage()]
    assert sorted(line.split(": ")[1].split()[0] for line in lines) == ["Ping", "not"]  # one of each kind


@pytest.mark.parametrize("frame", [fr.ViewFrame(epoch=2), fr.State(run="", round=1, offset=0, total=4 << 20)])
async def test_who_has_not_said_hello_gets_no_memory(frame: fr.Frame, broker: EmbeddedBroker) -> None:
    async with at_work(broker) as (peers, _):
        before = peers[0].traffic.frames_rejected
        await say(peers[0], encode(frame, 4 << 20), half_close=False)  # and none of the payload
        assert peers[0].traffic.frames_rejected == before + 1


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # what is inside of a peer sets no Event
        await asyncio.sleep(0)


async def test_strangers_get_little_memory_together(broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "edgepeer")
    document = 4 << 20
    room = STRANGERS_BYTES // document
    async with fleet(broker, "a") as (a,), asyncio.timeout(DEADLINE_S), contextlib.AsyncExitStack() as stack:
        host, _, port = a.address.rpartition(":")
        switchboard = a._driver.switchboard
        assert switchboard is not None

        async def stranger(name: str) -> asyncio.StreamReader:
            """Announces a document, and leaves it at that."""
            reader, writer = await asyncio.open_connection(host, int(port))
            stack.callback(lambda: writer.transport.abort())  # and keep the writer until then
            hello = fr.Hello(fabric="lab", peer=name, incarnation=1)
            writer.write(encode(hello) + encode(fr.ViewFrame(epoch=2), document) + b"\x81")
            return reader

        holding = [await stranger(f"z{number}") for number in range(room)]
        await until(lambda: switchboard._borrowed == room * document)
        for number in range(3):  # any more are sent away
            with contextlib.suppress(ConnectionError):  # with what they have said not read, it is a reset
                await (await stranger(f"y{number}")).read()
        assert f"{document} bytes of ViewFrame from a peer that is not known" in caplog.text
        assert a.traffic.frames_rejected == 3
        async with aiomqtt.Client("127.0.0.1", broker.address.port) as client:
            told = pack(Presence(id="x", incarnation=1, addresses=("127.0.0.1:1",)))
            await client.publish("edgepeer/v1/lab/peer/x", told, qos=1)
            await until(lambda: a.fabric.is_present("x"))
            await stranger("x")  # who is one no more
            await until(lambda: "x" in switchboard._sessions)
            await client.publish("edgepeer/v1/lab/peer/x", b"", qos=1)
        assert a.traffic.frames_rejected == 3
        assert not any(reader.at_eof() for reader in holding)
        await stack.aclose()
        await until(lambda: switchboard._borrowed == 0)


# -- fuzzed ------------------------------------------------------------------------------------------------

SPOKEN = [
    (ME, b""),
    (fr.Sync(epoch=1, run="", committed=7), b""),
    (fr.Ping(waiting=True), b""),
    (fr.Bye(reason="bye"), b""),
    (fr.StateRequest(run=""), b""),
    (fr.ViewFrame(epoch=2), b"\x81\xa1v\x01"),
    (fr.Reduce(epoch=1, round=2, offset=0, total=4, dtype="<f4", contributors=b"\x02", weight=1.0), bytes(16)),
    (fr.Result(epoch=1, round=2, offset=0, total=4, dtype="<f4"), bytes(16)),
    (fr.State(run="", round=1, offset=0, total=8), bytes(8)),
]


@st.composite
def garbled(draw: st.DrawFn) -> bytes:
    """Frames that went wrong somewhere: cut, overwritten, repeated, or noise from the start."""
    kind = draw(st.sampled_from(["noise", "cut", "overwritten"]))
    if kind == "noise":
        return draw(st.binary(min_size=1, max_size=300))
    frame, payload = draw(st.sampled_from(SPOKEN))
    data = bytearray(encode(frame, len(payload)) + payload)
    if kind == "cut":
        return bytes(data[: draw(st.integers(0, len(data) - 1))]) + draw(st.binary(max_size=20))
    for _ in range(draw(st.integers(1, 3))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


def is_refused(data: bytes) -> bool:
    """Whether there is something in these bytes that no peer may accept; what is cut off is no reason."""
    at = 0
    while len(data) - at >= PRELUDE.size:
        try:
            kind, header, payload = codec.decode_prelude(data, at)
            start = at + PRELUDE.size
            if len(data) < start + header:
                return False
            frame = codec.decode_header(kind, data[start : start + header], payload)
        except WireError:
            return True
        if isinstance(frame, fr.ViewFrame | fr.Bye | fr.Leave | fr.Suspect):
            return False  # what follows is another test's business
        at = start + header + payload
    return False


@pytest.fixture
async def working(broker: EmbeddedBroker) -> AsyncIterator[tuple[list[Peer], Pumps]]:
    """Three peers at work, for many examples of one test."""
    ready: asyncio.Future[tuple[list[Peer], Pumps]] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()

    async def work() -> None:
        async with at_work(broker) as found:
            ready.set_result(found)
            await stop.wait()

    task = asyncio.create_task(work())
    await asyncio.wait([task, ready], return_when=asyncio.FIRST_COMPLETED)
    yield await (ready if ready.done() else task)  # type: ignore[misc]
    stop.set()
    await task


BOUNDED = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@BOUNDED
@given(introduced=st.booleans(), data=garbled())
async def test_noise_on_the_port(introduced: bool, data: bytes, working: tuple[list[Peer], Pumps]) -> None:
    (a, *_), pumps = working
    before = a.traffic.frames_rejected
    await say(a, (encode(ME) if introduced else b"") + data)
    if is_refused(data):
        assert a.traffic.frames_rejected == before + 1
    await pumps.more(rounds=1)


WELL_FORMED = pack(Presence(id="q", incarnation=1, addresses=("127.0.0.1:1",), version="1", started=1.0))
documents = st.one_of(
    st.binary(min_size=1, max_size=200),
    st.integers(1, len(WELL_FORMED) - 1).map(lambda cut: WELL_FORMED[:cut]),
    st.just(WELL_FORMED + b"\x00"),
    st.just(msgpack.packb({"v": 2, "epoch": 10**6, "members": []})),
    st.just(msgpack.packb({"v": 1, "epoch": 10**6, "members": [{"id": "../x", "incarnation": -1}]})),
    st.just(msgpack.packb({"v": 1, "id": "q", "incarnation": 1 << 80 >> 17, "addresses": ["x" * 1000]})),
    st.just(b"\x81" * 5000),
    st.just(bytes(9 << 10)),
    st.recursive(
        st.one_of(st.integers(-(2**63), 2**63), st.text(max_size=9), st.floats(), st.none()),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
        max_leaves=8,
    ).map(msgpack.packb),
)
TOPICS = ("peer/q", "peer/a", "peer/b", "view", "view", "peer/a/b", "peer/", "nothing")


@BOUNDED
@given(messages=st.lists(st.tuples(st.sampled_from(TOPICS), documents, st.booleans()), min_size=1, max_size=8))
async def test_noise_on_the_topics(
    messages: list[tuple[str, bytes, bool]], working: tuple[list[Peer], Pumps], broker: EmbeddedBroker
) -> None:
    peers, pumps = working
    before = [peer.fabric.rejected_documents for peer in peers]
    heard = sum(name in ("peer/q", "peer/a", "peer/b", "view") for name, _, _ in messages)

    def all_heard() -> bool:
        return all(peer.fabric.rejected_documents - count >= heard for peer, count in zip(peers, before, strict=True))

    async with aiomqtt.Client("127.0.0.1", broker.address.port) as client, asyncio.timeout(DEADLINE_S):
        while True:
            for name, payload, retain in messages:
                await client.publish(f"edgepeer/v1/lab/{name}", payload, qos=1, retain=retain)
            for _ in range(100):
                await pumps.more(rounds=1)
                if all_heard():
                    return
            # On a busy machine a peer may have lost its broker for a moment; what is not retained is not said again.


async def test_a_joiner_gets_past_retained_garbage(broker: EmbeddedBroker) -> None:
    async with aiomqtt.Client("127.0.0.1", broker.address.port) as client:
        for name in ("view", "peer/x", "job", "peer/a"):
            await client.publish(f"edgepeer/v1/lab/{name}", b"\xc1garbage", qos=1, retain=True)
    async with fleet(broker, "a", "b") as peers:
        await all_reduce(peers, [np.ones(2)] * 2)
