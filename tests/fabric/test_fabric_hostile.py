"""Garbage on a fabric's topics: counted, told in the log once a second, and otherwise without effect."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import re
import time
from itertools import chain, repeat

import aiomqtt
import msgpack
import pytest
from fabric_guests import Broker, Guest, Invite, presence, scripted_broker
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from edgepeer.errors import WireError
from edgepeer.fabric import connection as connection_module
from edgepeer.fabric import inbox
from edgepeer.fabric.connection import LARGEST_BYTES
from edgepeer.fabric.documents import PeerReport, Telemetry
from edgepeer.fabric.envelope import MARGIN_BYTES
from edgepeer.fabric.events import Connected, JobSpoiled, PresenceSeen, RelaySeen, Synced
from edgepeer.fabric.topics import Group, Topics
from edgepeer.wire.documents import DOCUMENT_LIMIT_BYTES, pack

TOPICS = Topics("lab")
EXAMPLES = itertools.count()
EVERY_TOPIC = [
    TOPICS.presence("a"),
    TOPICS.view,
    TOPICS.job,
    TOPICS.report("j1", "a"),
    TOPICS.telemetry("a"),
]
PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
TREES = st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)
FIELDS = st.sampled_from(
    [
        "id",
        "incarnation",
        "addresses",
        "version",
        "started",
        "epoch",
        "members",
        "fanout",
        "run",
        "job",
        "peer",
        "records",
        "state",
        "error",
        "digest",
    ]
)
ALMOST = st.dictionaries(FIELDS, TREES).map(lambda fields: msgpack.packb({"v": 1, **fields}))
PAYLOADS = st.binary(max_size=300) | TREES.map(msgpack.packb) | ALMOST

GOOD = pack(presence("a"))
BAD = {
    "not msgpack": (TOPICS.presence("a"), b"\xc1"),
    "cut short": (TOPICS.presence("a"), GOOD[:-1]),
    "too much": (TOPICS.presence("a"), GOOD + b"\x00"),
    "another version": (TOPICS.presence("a"), msgpack.packb({**msgpack.unpackb(GOOD), "v": 2})),
    "no version": (TOPICS.presence("a"), msgpack.packb({"id": "a", "incarnation": 1, "addresses": []})),
    "another's presence": (TOPICS.presence("b"), GOOD),
    "no name": (TOPICS.root + "peer/..%2F", GOOD),
    "name with a line feed": (TOPICS.root + "peer/a\n", GOOD.replace(b"\xa1a", b"\xa2a\n")),
    "an address too long": (TOPICS.presence("a"), GOOD.replace(b"\xaa[::1]:4000", b"\xd9\xc8" + b"x" * 200)),
    "too large": (TOPICS.presence("a"), pack(presence("a"))[:-1] + b"\xc6\x00\x00\x30\x00" + bytes(0x3000)),
    "a view of nobody": (TOPICS.view, msgpack.packb({"v": 1, "epoch": 1, "members": []})),
    "a peer twice in a view": (
        TOPICS.view,
        msgpack.packb({"v": 1, "epoch": 1, "members": [{"id": "a", "incarnation": 1}] * 2}),
    ),
    "a job too large": (TOPICS.job, bytes(DOCUMENT_LIMIT_BYTES + 1)),
    "another's report": (TOPICS.report("j1", "b"), pack(PeerReport(job="j1", peer="a", state="done"))),
    "another job's report": (TOPICS.report("j2", "a"), pack(PeerReport(job="j1", peer="a", state="done"))),
    "no such state": (TOPICS.report("j1", "a"), msgpack.packb({"v": 1, "job": "j1", "peer": "a", "state": "lost"})),
    "accuracy over 1": (
        TOPICS.report("j1", "a"),
        pack(PeerReport(job="j1", peer="a", state="done", accuracy=1.5)),
    ),
    "accuracy not a number": (
        TOPICS.report("j1", "a"),
        pack(PeerReport(job="j1", peer="a", state="done", accuracy=math.nan)),
    ),
    "another's telemetry": (TOPICS.telemetry("b"), pack(Telemetry(job="j1", peer="a", records=()))),
    "empty telemetry": (TOPICS.telemetry("a"), b""),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_documents_are_refused(what: str) -> None:
    name, payload = BAD[what]
    topic = TOPICS.parse(name)
    if topic is not None:
        with pytest.raises(WireError):
            inbox.read(topic, payload)


@given(st.sampled_from(EVERY_TOPIC), PAYLOADS)
@example(TOPICS.presence("a"), b"\xdf\xff\xff\xff\xff")  # a map that claims four billion entries
@example(TOPICS.view, b"\x81" * 2000)  # nested beyond any recursion
@example(TOPICS.presence("a"), b"\xc7\x0c\xff" + b"\xff" * 12)  # a timestamp out of range
def test_reading_raises_nothing_but_wire_error(name: str, payload: bytes) -> None:
    topic = TOPICS.parse(name)
    assert topic is not None
    with contextlib.suppress(WireError):
        inbox.read(topic, payload)


async def test_bad_documents_are_counted_and_good_ones_pass(
    broker: Broker, invite: Invite, caplog: pytest.LogCaptureFixture
) -> None:
    guest = await invite(broker.address, "guest")
    began = time.monotonic()
    with caplog.at_level(logging.WARNING):
        async with aiomqtt.Client(broker.address.host, broker.address.port) as raw:
            sent = 0
            for name, payload in BAD.values():
                if "\n" not in name:  # a strict broker refuses control characters itself
                    await raw.publish(name, payload, qos=1)
                    sent += 1
            await raw.publish("edgepeer/v1/another/peer/a", b"garbage", qos=1)
            await raw.publish(TOPICS.presence("a"), GOOD, qos=1)
        await guest.until_seen(PresenceSeen(presence("a")))
    assert guest.events == [Connected(), Synced(), JobSpoiled(), PresenceSeen(presence("a"))]
    assert guest.client.rejected_documents == sent
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("edgepeer.fabric")]
    assert 1 <= len(lines) <= 2 + time.monotonic() - began  # once a second
    assert lines[0].startswith("rejected a document on 'edgepeer/v1/lab/peer/a': ")
    assert guest.client.reconnects == 0


def publication(topic: str, length: int) -> bytes:
    """How an MQTT packet begins that brings so many bytes on that topic."""
    name, digits = topic.encode(), b""
    count = 2 + len(name) + length
    while count > 0x7F:
        digits, count = digits + bytes([0x80 | count & 0x7F]), count >> 7
    return b"\x30" + digits + bytes([count]) + len(name).to_bytes(2, "big") + name


async def test_a_packet_without_end_fills_no_memory() -> None:
    """paho would take 256 MiB, which a small device hasn't; and what a broker retains comes again and again."""
    assert max(inbox.LIMIT_BYTES.values()) + MARGIN_BYTES < LARGEST_BYTES
    size, block = 48 << 20, bytes(1 << 20)
    tells = chain(
        [publication(TOPICS.view, size)],
        repeat(block, size // len(block)),
        [publication(TOPICS.presence("a"), len(GOOD)) + GOOD],
    )
    async with scripted_broker(tells=tells) as address:
        guest = Guest(address, "b")
        running = asyncio.create_task(guest.client.run())
        await guest.until_seen(PresenceSeen(presence("a")))
        ((reason, count),) = guest.client.refusals.items()
        looked_at = re.fullmatch(rf"{TOPICS.view}: (\d+) bytes, over the limit of \d+", reason)
        assert looked_at is not None
        assert int(looked_at[1]) < 2 * LARGEST_BYTES
        assert (count, guest.client.reconnects) == (1, 0)
        await guest.client.close(timeout=0.1)
        await running


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(EVERY_TOPIC), PAYLOADS.filter(bool), st.booleans()), max_size=60))
async def test_fuzzed_messages_are_rejected_or_told(
    broker: Broker, invite: Invite, messages: list[tuple[str, bytes, bool]]
) -> None:
    example_number = next(EXAMPLES)
    guest = await invite(broker.address, f"guest{example_number}")
    async with aiomqtt.Client(broker.address.host, broker.address.port) as raw:
        await asyncio.gather(*(raw.publish(name, payload, 1, retain) for name, payload, retain in messages))
        await raw.publish(TOPICS.presence("z"), pack(presence("z")), qos=1)
        await guest.until_seen(PresenceSeen(presence("z")))
        told = [event for event in guest.events if not isinstance(event, Connected | Synced | JobSpoiled)]
        assert guest.client.rejected_documents + len(told) == len(messages) + 1
        # Whoever comes now finds the last of the garbage retained.
        late = await invite(broker.address, f"late{example_number}")
        assert late.events[0] == Connected()
        assert late.events[-1] == Synced()
        assert guest.client.reconnects == late.client.reconnects == 0
        for name in EVERY_TOPIC:
            await raw.publish(name, b"", qos=1, retain=True)


async def test_a_broker_that_always_has_more_to_say_gives_others_their_turn(
    broker: Broker, invite: Invite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In TLS more may be here already than the socket tells of, again and again."""
    asked = 0

    def pending(sock: connection_module._Socket) -> int:
        nonlocal asked
        asked += 1
        return 1

    monkeypatch.setattr(connection_module._Socket, "pending", pending, raising=False)
    monkeypatch.setattr(connection_module, "TlsSocket", connection_module._Socket)
    guest = await invite(broker.address, "a", interests=Group.RELAY)
    assert guest.client.publish_relay("a", b"to myself")
    await guest.until_seen(RelaySeen(b"to myself"))
    assert asked > 64
