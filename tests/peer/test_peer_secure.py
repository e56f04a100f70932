"""Peers of a fleet: who may be one, whose word is taken for whose, and what those who carry frames can do to them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from fleets import Fleet, Role
from peer_fleet import DEADLINE_S, QUICK, Pumps, all_reduce, fleet, peer_at, view_of

from edgepeer import Peer
from edgepeer.errors import ConfigError, TrustError
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.ids import PeerId
from edgepeer.peer.last_view import LastView
from edgepeer.peer.letters import SEALED, Letters
from edgepeer.peer.session import Session
from edgepeer.peer.switchboard import Switchboard
from edgepeer.topology.view import Member, View
from edgepeer.transport.base import Traffic
from edgepeer.transport.secure import SecureTransport
from edgepeer.trust.sealing import Correspondence
from edgepeer.wire.codec import wrap
from edgepeer.wire.frames import Frame, Hello, Leave, Ping, StateRequest, Sync, Via, ViewFrame


async def test_peers_of_a_fleet_reduce_as_others_do(broker: EmbeddedBroker, members: Fleet, both_loops: None) -> None:
    async with fleet(broker, "a", "b", "c") as peers:
        value = np.arange(200_000, dtype=np.float32)
        for outcome in await all_reduce(peers, [value] * 3):
            assert outcome.exact
            assert (outcome.sum == 3 * value).all()
        assert peers[0]._trust is not None
        assert all(len(member.key or b"") == 32 for member in (await view_of(peers[0], "a", "b", "c")).members)


def test_without_a_fleet_nobody_loads_cryptography() -> None:
    program = """if True:
        import asyncio, sys, edgepeer, edgepeer.cli
        from edgepeer.fabric.broker import EmbeddedBroker
        async def main():
            async with EmbeddedBroker() as broker, edgepeer.Peer(broker.address.url(), "lab") as peer:
                await peer.ready()
                print(sorted(name for name in sys.modules if name.split(".")[0] == "cryptography"))
        asyncio.run(main())
    """
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=DEADLINE_S
    )
    assert said.stdout == "[]\n"


async def test_whose_certificate_it_is_not(broker: EmbeddedBroker, members: Fleet) -> None:
    url = broker.address.url()
    with pytest.raises(ConfigError, match=r"is of peer a of lab, not of b of lab"):
        Peer(url, "lab", peer_id="b", trust=members.member("a"))
    with pytest.raises(ConfigError, match=r"is of peer a of lab, not of fabric barn"):
        Peer(url, "barn", trust=members.member("a"))
    with pytest.raises(ConfigError, match=r"is of broker mosquitto of lab, but only a peer's"):
        Peer(url, "lab", trust=members.member("mosquitto", Role.BROKER))
    async with Peer(url, "lab", trust=members.member("a")) as peer:
        assert peer.id == "a"


async def test_who_starts_again_by_an_earlier_clock_is_heard(
    broker: EmbeddedBroker, members: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps nothing but what lies beside its certificate; the others know how its last life was numbered."""
    async with asyncio.timeout(DEADLINE_S), fleet(broker, "a", "b") as peers:
        for back in (0, 3600):
            now = time.time() - back
            monkeypatch.setattr(time, "time", lambda now=now: now)
            async with peer_at(broker, "c") as c:
                await asyncio.gather(*(view_of(peer, "a", "b", "c") for peer in [*peers, c]))
            await asyncio.gather(*(view_of(peer, "a", "b") for peer in peers))


# -- whose word is taken for whose ---------------------------------------------------------------------------


class Lines:
    """Hears of links, and of nothing else."""

    def __init__(self) -> None:
        self.up: list[str] = []
        self.heard: list[tuple[str, Frame]] = []
        self.failed: list[tuple[str, str, bool]] = []
        self.news = asyncio.Event()

    def link_up(self, peer: str, incarnation: int, *, dialled: bool) -> None:
        self.up.append(peer)
        self.news.set()

    def link_down(self, peer: str, reason: str) -> None:
        self.news.set()

    def dial_failed(self, peer: str, reason: str, refused: bool) -> None:
        self.failed.append((peer, reason, refused))
        self.news.set()

    def sink(self, *_: Any) -> None:
        return None

    def received(self, peer: str, frame: Frame, *_: Any) -> None:
        self.heard.append((peer, frame))
        self.news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self.news.clear()
                await self.news.wait()


@contextlib.asynccontextmanager
async def board(members: Fleet, name: str, says: str | None = None) -> AsyncIterator[tuple[Switchboard, Lines, str]]:
    """A switchboard with the certificate of one peer, which says that it is that, or another."""
    lines, transport = Lines(), SecureTransport(members.member(name))
    async with asyncio.TaskGroup() as tasks:
        hello = Hello(fabric="lab", peer=says or name, incarnation=1)
        switchboard = Switchboard(transport, lambda: hello, lines, tasks, max_links=9, known=lambda _: True)  # type: ignore[arg-type]
        listener = await switchboard.listen("127.0.0.1:0")
        try:
            yield switchboard, lines, listener.address
        finally:
            switchboard.close("the test is over")
            await listener.close()
            transport.close()


def at(name: str, address: str) -> Member:
    return Member(id=name, incarnation=1, addresses=(address,))


async def test_who_is_dialled_and_says_who_it_is(members: Fleet) -> None:
    async with board(members, "a") as (a, lines, _), board(members, "b") as (_, there, address):
        a.dial(at("b", address))
        await lines.until(lambda: lines.up == ["b"])
        await there.until(lambda: there.up == ["a"])


async def test_a_member_that_says_that_it_is_another(members: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    async with board(members, "evil", says="b") as (evil, hears, _), board(members, "a") as (a, lines, address):
        evil.dial(at("a", address))
        await hears.until(lambda: bool(hears.failed) or not hears.up)
        async with asyncio.timeout(DEADLINE_S):
            while not a.refused.count:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert lines.up == []
    assert "says that it is b of lab, by a certificate of peer evil of lab (serial " in caplog.text


@pytest.mark.parametrize("says", ["evil", "b"])
async def test_a_member_that_answers_at_anothers_address(
    members: Fleet, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with board(members, "a") as (a, lines, _), board(members, "evil", says=says) as (_, _, address):
        a.dial(at("b", address))
        await lines.until(lambda: bool(lines.failed))
        assert lines.up == []
        assert [(peer, refused) for peer, _, refused in lines.failed] == [("b", False)]  # it was never found there


async def test_an_operator_takes_no_peers_place(members: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    """Even one of the same name: in the fabric it is @b."""
    members.directory("b", Role.OPERATOR)
    async with board(members, "b") as (operator, _, _), board(members, "a") as (a, lines, address):
        operator.dial(at("a", address))
        async with asyncio.timeout(DEADLINE_S):
            while not a.refused.count:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert lines.up == []
    assert "says that it is b of lab, by a certificate of operator b of lab" in caplog.text


SAID_BY_PEERS = (
    Leave(peer="a", incarnation=1, until=-1),
    Sync(epoch=0, run="", committed=-1),
    StateRequest(run="a run"),
    ViewFrame(epoch=1),
    Via(source="c", target="a", tunnel=1, serial=0, kind=1, header=b""),
)


@pytest.mark.parametrize("frame", SAID_BY_PEERS, ids=lambda frame: type(frame).__name__)
async def test_an_operator_may_ask_and_nothing_else(
    frame: Frame, members: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    members.directory("b", Role.OPERATOR)
    question = StateRequest(run="job/j1")
    async with board(members, "b", "@b") as (operator, its, _), board(members, "a") as (a, lines, address):
        operator.dial(at("a", address))
        await its.until(lambda: its.up == ["a"])
        operator.send(PeerId("a"), Ping(waiting=False), None)
        operator.send(PeerId("a"), question, None)
        await lines.until(lambda: ("@b", question) in lines.heard)
        operator.send(PeerId("a"), frame, bytes(16) if isinstance(frame, ViewFrame) else None)
        await its.until(lambda: PeerId("a") not in operator._sessions)
        assert not any(type(heard) is type(frame) and heard != question for _, heard in lines.heard)
        assert a.refused.count == 1
    assert "from operator b of lab: only a peer may say that" in caplog.text


# -- who is out ----------------------------------------------------------------------------------------------


async def test_an_evicted_peer_is_off_and_stays_off(
    broker: EmbeddedBroker, members: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list comes to one peer, and goes on from there."""
    monkeypatch.setattr("edgepeer.peer.leaving.LEAVE_S", 0.1)  # nobody lets it go in peace
    seen = False
    with contextlib.suppress(TrustError):  # what the evicted peer ends with, if it has heard of it
        async with fleet(broker, "a", "b", "c", "d") as peers:
            await all_reduce(peers, [np.ones(4)] * 4)
            out = peers[3]
            monkeypatch.setattr(out.fabric, "_fail", lambda error: None)  # it would hear of it, and end
            trust = peers[1]._trust
            assert trust is not None
            trust.evictions.accept(members.evict("d"))
            async with asyncio.timeout(DEADLINE_S):
                while out._driver.switchboard._sessions:  # type: ignore[union-attr]  # noqa: ASYNC110  # no Event
                    await asyncio.sleep(0.001)  # looks again, until the deadline
            for peer in peers[:3]:
                sessions = peer._driver.switchboard._sessions  # type: ignore[union-attr]
                assert "d" not in sessions
                assert peer._trust.evictions.number == trust.evictions.number  # type: ignore[union-attr]
            seen = True
    assert seen


async def test_those_who_are_left_go_on_when_most_were_evicted(
    broker: EmbeddedBroker, members: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is evicted has gone for good: it is not waited for, whether or not it answers."""
    monkeypatch.setattr("edgepeer.peer.leaving.LEAVE_S", 0.1)  # nobody lets it go in peace
    quick = dataclasses.replace(QUICK, anew_s=0.2)
    left = False
    with contextlib.suppress(TrustError):
        async with fleet(broker, "a", "b", "c", limits=quick) as peers:
            a, b, c = peers
            for out in (a, b):
                monkeypatch.setattr(out.fabric, "_fail", lambda error: None)  # it would hear of it, and end
            assert c._trust is not None
            c._trust.evictions.accept(members.evict("a", "b"))
            await view_of(c, "c")
            assert (await c.allreduce(np.ones(4))).contributors == ("c",)
            left = True
    assert left


async def test_a_fleet_of_which_the_others_are_gone_is_begun_anew(
    broker: EmbeddedBroker, members: Fleet, tmp_path: Path
) -> None:
    """Not before the broker has brought back what a peer writes to itself: that is sealed as well."""
    gone = tuple(Member(id=PeerId(name), incarnation=7, key=Correspondence("lab", name).key) for name in "ab")
    LastView(tmp_path, "lab").keep(View(epoch=3, members=gone))
    async with fleet(broker, "c", state_dir=tmp_path, limits=dataclasses.replace(QUICK, anew_s=0.2)) as (c,):
        assert c.traffic.frames_rejected == 0


# -- those who carry frames ----------------------------------------------------------------------------------


def keep_apart(one: Peer, other: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection between these two any more, as if a firewall dropped what they send."""
    for here, there in ((one, other), (other, one)):
        lines = here._driver.switchboard
        assert lines is not None
        introduced, dial = lines.introduced, lines.dial

        def refuses(session: Session, there: Peer = there, introduced: Any = introduced) -> bool:
            return session.peer != there.id and introduced(session)

        def dials(member: Member, here: Peer = here, there: Peer = there, dial: Any = dial) -> None:
            if member.id == there.id:
                here._driver.dial_failed(there.id, "it does not answer", False)
            else:
                dial(member)

        monkeypatch.setattr(lines, "introduced", refuses)
        monkeypatch.setattr(lines, "dial", dials)
    for here, there in ((one, other), (other, one)):
        session = here._driver.switchboard._sessions.get(there.id)  # type: ignore[union-attr]
        if session is not None:
            session.channel.abort("cut")


Carried = tuple[Via, bytes]
AS_IS: dict[str, Any] = {"fanout": 2, "lanes": 1, "limits": dataclasses.replace(QUICK, relay_after_s=600.0)}
"""The tree stays, and nothing goes over the broker because a neighbour is slow for once: so somebody has to carry."""


async def found_out(one: Peer, other: Peer, hop: Peer, pumps: Pumps) -> None:
    """Return once both know that the third is connected with the other: it is asked to carry only then."""
    async with asyncio.timeout(DEADLINE_S):
        while not all(
            there.id in here.diagnosis()["links"][hop.id]["reaches"] for here, there in ((one, other), (other, one))
        ):
            await pumps.more(rounds=1)


@pytest.fixture
def carried(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Carried]]:
    """All that any peer carries for others, and which peer."""
    found: list[tuple[str, Carried]] = []
    received = Session.received

    def hear(self: Session, frame: Frame, payload: Any, *rest: Any) -> None:
        if isinstance(frame, Via) and frame.target != self._hello.peer:
            found.append((self._hello.peer, (frame, bytes(payload))))
        received(self, frame, payload, *rest)

    monkeypatch.setattr(Session, "received", hear)
    return found


async def test_what_a_neighbour_carries_is_sealed_and_the_rounds_go_on(
    broker: EmbeddedBroker, members: Fleet, carried: list[tuple[str, Carried]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet(broker, "a", "b", "c", **AS_IS) as peers, Pumps(peers) as pumps:
        await found_out(*peers, pumps)
        keep_apart(peers[0], peers[1], monkeypatch)
        async with asyncio.timeout(DEADLINE_S):
            while not carried:
                await pumps.more(rounds=1)
        await pumps.more(rounds=5)
        pumps.check()
        assert carried
        for hop, (via, payload) in carried:
            assert hop == "c"
            assert via.kind == SEALED
            assert via.header == b""
            assert np.float32(1).tobytes() * 4 not in payload
        assert {(via.source, via.target) for _, (via, _) in carried} == {("a", "b"), ("b", "a")}
        assert sum(peer.traffic.frames_rejected for peer in peers) == 0


@pytest.mark.parametrize("attack", ["changed", "repeated", "reordered", "reflected", "in plain", "retargeted"])
async def test_what_a_neighbour_does_to_what_it_carries(
    attack: str,
    broker: EmbeddedBroker,
    members: Fleet,
    carried: list[tuple[str, Carried]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """None of it gets through, none of it gets a wrong sum into a round; and what is carried rightly still does."""
    caplog.set_level(logging.WARNING, "edgepeer")
    async with fleet(broker, "a", "b", "c", **AS_IS) as peers, Pumps(peers) as pumps:
        a, b, c = peers
        await found_out(a, b, c, pumps)
        keep_apart(a, b, monkeypatch)
        async with asyncio.timeout(DEADLINE_S):
            while len(carried) < 20:
                await pumps.more(rounds=1)
        _, (via, payload) = next(each for each in reversed(carried) if each[1][0].target == "b")
        before = b.traffic.frames_rejected, a.traffic.frames_rejected
        send = c._driver.switchboard.send  # type: ignore[union-attr]
        victim = b
        if attack == "changed":
            send(b.id, via, payload[:-1] + bytes([payload[-1] ^ 1]))
        elif attack == "repeated":
            send(b.id, via, payload)
        elif attack == "reordered":
            send(b.id, msgspec.structs.replace(via, serial=via.serial + 1), payload)
        elif attack == "reflected":
            victim = a
            send(a.id, msgspec.structs.replace(via, source="b", target="a"), payload)
        elif attack == "in plain":
            kind, header = wrap(Ping(waiting=False))
            send(b.id, msgspec.structs.replace(via, kind=kind, header=header), None)
        else:
            victim = a
            send(a.id, msgspec.structs.replace(via, source="c", target="a"), payload)
        async with asyncio.timeout(DEADLINE_S):
            while (b.traffic.frames_rejected, a.traffic.frames_rejected) == before:
                await pumps.more(rounds=1)
        assert victim.traffic.frames_rejected > before[victim is a]
        await pumps.more(rounds=3)
        pumps.check()
    assert "dropped on its way through others: " in caplog.text


def letters(*names: str) -> list[Letters]:
    """Of peers who know each other's keys."""
    found = {name: Letters(name, Correspondence("lab", name), Traffic()) for name in names}
    for one in names:
        for other in names:
            found[one].learn(other, 1, found[other].key)
    return list(found.values())


VIA = Via(
    source="a", target="b", tunnel=1, serial=2, kind=wrap(Ping(waiting=True))[0], header=wrap(Ping(waiting=True))[1]
)


@pytest.mark.parametrize("payload", [None, b"", b"some", bytes(100_000)])
def test_a_via_is_the_same_again(payload: bytes | None) -> None:
    a, b = letters("a", "b")
    sealed = a.seal(VIA, payload)
    assert sealed is not None
    assert sealed[0] == msgspec.structs.replace(VIA, kind=SEALED, header=b"")
    opened = b.open(*sealed)
    assert opened is not None
    assert (opened[0], bytes(opened[1])) == (VIA, payload or b"")


@pytest.mark.parametrize(
    "change", [{"source": "c"}, {"tunnel": 2}, {"serial": 3}, {"hops": 2}, {"header": b"x"}, {"kind": 4}]
)
def test_nothing_that_is_told_beside_it_can_be_changed(change: dict[str, Any]) -> None:
    a, b, _ = letters("a", "b", "c")
    sealed = a.seal(VIA, b"payload")
    assert sealed is not None
    assert b.open(msgspec.structs.replace(sealed[0], **change), sealed[1]) is None
    assert b._traffic.frames_rejected == 1
    assert b.open(*sealed) is not None


@pytest.mark.parametrize("inside", [b"", b"\1", b"\1\0\5abcd", b"\0\0\0"])
def test_what_a_member_seals_that_is_no_frame_is_dropped(inside: bytes) -> None:
    a, b = letters("a", "b")
    about = msgspec.msgpack.encode(("a", "b", 1, 2))
    sealed = a._correspondence.seal("b", inside, about)
    assert b.open(msgspec.structs.replace(VIA, kind=SEALED, header=b""), sealed) is None


def test_whose_key_is_not_known_is_sent_nothing(caplog: pytest.LogCaptureFixture) -> None:
    (a,) = letters("a")
    assert a.seal(VIA, None) is None
    assert "not sent to b: no key of b is known" in caplog.text
