"""What goes wrong around a Peer, and how it says so."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import resource
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peer_fleet import DEADLINE_S, all_reduce, fleet, peer_at

import edgepeer
from edgepeer import Peer
from edgepeer.baselines import MachineMaker
from edgepeer.errors import (
    ConfigError,
    ContributionMismatch,
    EdgepeerError,
    FabricError,
    LeftFabric,
    NotReady,
    PeerError,
    ProtocolBug,
    RoundTimeout,
    first_error,
)
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.ids import load_identity
from edgepeer.transport.tcp import PlainConnection


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"broker": "http://127.0.0.1"}, "must be mqtt://"),
        ({"fabric": "no/slash"}, "fabric 'no/slash'"),
        ({"fanout": 0}, "fanout = 0: must be an integer from 1 to 64, or 'auto'"),
        ({"fanout": 65}, "fanout = 65"),
        ({"listen": "127.0.0.1"}, "must be host:port"),
        ({"listen": "127.0.0.1:99999"}, "must be host:port"),
        ({"listen": "a..b:0", "insecure": True}, "its host can be none"),
        ({"advertise": ["here"]}, "address 'here'"),
        ({"advertise": ["a..b:80"]}, "its host can be none"),
        ({"advertise": [f"pi{number}:80" for number in range(17)]}, "advertise = pi0:80, .* at most 16 addresses"),
        ({"advertise": [f"{'pi.' * 50}local:80"]}, "at most 128 characters each"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Peer(**arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"broker": ("127.0.0.1", "secret")}, "broker = <tuple>: must be text, such as mqtt://127.0.0.1"),
        ({"broker": None}, "broker = <NoneType>: must be text"),
        ({"fabric": 3}, "fabric = 3: must be text"),
        ({"peer_id": 3}, "peer_id = 3: must be text, or None"),
        ({"state_dir": 3}, "state_dir = 3: must be a path that is not empty, or None"),
        ({"state_dir": ""}, "state_dir = '': must be a path that is not empty, or None"),
        ({"listen": 7700}, "listen = 7700: must be text, such as 127.0.0.1:0"),
        ({"insecure": "no"}, "insecure = 'no': must be True or False"),
        ({"advertise": None}, "advertise = None: must be a list of addresses"),
        ({"advertise": "pi:7700"}, "advertise = 'pi:7700': must be a list of addresses"),
        ({"advertise": [7700]}, "advertise = [7700]: must be a list of addresses"),
        ({"fanout": "x"}, "fanout = 'x': must be an integer from 1 to 64, or 'auto'"),
        ({"lanes": 2.0}, "lanes = 2.0: must be an integer from 1 to 16, or 'auto'"),
        ({"quorum": "3"}, "quorum = '3': must be an integer from 0, for a majority, to 4096"),
        ({"quorum": -1}, "quorum = -1: must be an integer from 0, for a majority, to 4096"),
        ({"code": None}, "code = None: must be text, such as none"),
        ({"wait": 3}, "wait = 3: must be text, such as exact"),
        ({"machine": "ft-tree"}, "machine = 'ft-tree': must be what makes machines"),
        ({"limits": 3}, "limits = 3: must be edgepeer.Limits, or None"),
        (
            {"trust": "~/.edgepeer/fleet"},
            "trust = '~/.edgepeer/fleet': must be what edgepeer.trust.identity.Identity.load",
        ),
        ({"aside": None}, "aside = None: must be True or False"),
        ({"on_fabric_event": "print"}, "on_fabric_event = 'print': must be a function, or None"),
    ],
)
def test_arguments_of_another_kind_are_refused_by_name(arguments: dict[str, Any], said: str) -> None:
    for make in (Peer, edgepeer.connect):
        with pytest.raises(ConfigError, match=re.escape(said)) as caught:
            make(**arguments)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"code": "cyclic:s=1"}, "lanes = 3: a coded round moves over the one tree of its code"),
        ({"machine": MachineMaker("ring", static_timeout_s=1.0)}, "lanes = 3: rounds of ring have none"),
    ],
)
def test_lanes_that_nothing_would_move_in(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Peer(lanes=3, **arguments)
    Peer(lanes=1, **arguments)
    Peer(**arguments)


async def test_a_scheme_is_for_a_peer_that_is_there() -> None:
    with pytest.raises(PeerError, match="enter it first"):
        Peer("mqtt://127.0.0.1:1", "lab").use_scheme(None)


async def test_a_peer_lives_once(broker: EmbeddedBroker) -> None:
    """Half of what it is stays as it was at its end; two lives at once would share it."""
    async with peer_at(broker, "a") as peer:
        with pytest.raises(PeerError, match="make another"):
            await peer.__aenter__()
        assert (await peer.ready()).size == 1
    with pytest.raises(PeerError, match="make another"):
        await peer.__aenter__()


@pytest.mark.parametrize("wrong_s", [-1.0, 5.8e9, 1e18])
async def test_a_clock_that_was_far_off_once_keeps_nobody_out(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong_s: float
) -> None:
    """The number of a life is kept: one that nobody takes would be there at every later start."""
    async with fleet(broker, "a") as (a,):
        for clock in (lambda: wrong_s, time.time):
            with monkeypatch.context() as patch:
                patch.setattr("edgepeer.ids.time.time", clock)
                identity = load_identity(tmp_path, "b")
                assert 0 <= identity.incarnation < 1 << 53
        (tmp_path / "identity").write_text(f"b {10**20} {1 << 53}\n")  # by an older build, and by somebody
        async with peer_at(broker, "b", state_dir=tmp_path) as b:
            await b.ready(2)
            await a.ready(2)


@pytest.fixture
async def taken() -> AsyncIterator[str]:
    """An address that somebody listens on who says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield f"127.0.0.1:{sock.getsockname()[1]}"


async def refusal_of(peer: Peer) -> tuple[Exception, float]:
    began = time.monotonic()
    with pytest.raises(EdgepeerError) as caught:
        async with peer:
            pytest.fail("it was let in")
    return caught.value, time.monotonic() - began


async def test_a_port_in_use(broker: EmbeddedBroker, taken: str) -> None:
    error, _ = await refusal_of(peer_at(broker, listen=taken))
    assert isinstance(error, ConfigError)
    assert str(error).startswith(f"listen {taken}: ")
    assert "in use" in str(error)


async def test_an_address_of_another_machine(broker: EmbeddedBroker) -> None:
    error, _ = await refusal_of(peer_at(broker, listen="203.0.113.7:0", insecure=True))
    assert isinstance(error, ConfigError)
    assert str(error).startswith("listen 203.0.113.7:0: ")


@pytest.mark.parametrize("bad", ["pêer", "a/b", ""])
def test_a_bad_name(bad: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"peer id {bad!r}: allowed are 1 to 63 letters")):
        Peer("mqtt://127.0.0.1:1", "lab", peer_id=bad)


@pytest.mark.parametrize(
    ("number", "reason"), [(errno.ENOSPC, "no space left on device"), (errno.EROFS, "read-only file system")]
)
async def test_a_disk_that_takes_nothing_is_no_wrong_setting(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    """A service whose settings are wrong is not started again; this one must be, until there is room."""

    def full(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    error, _ = await refusal_of(Peer(broker.address.url(), "lab", state_dir=tmp_path))
    assert type(error) is PeerError
    assert str(error) == (
        f"state_dir {tmp_path}: can't keep the identity there: {reason}; not started, for each start must be counted"
    )


async def test_nobody_at_the_brokers_address() -> None:
    error, seconds = await refusal_of(Peer("mqtt://127.0.0.1:1"))
    assert isinstance(error, FabricError)
    assert str(error).startswith("broker mqtt://127.0.0.1:1: connection refused")
    assert seconds < 30


async def test_somebody_else_at_the_brokers_address(taken: str) -> None:
    error, seconds = await refusal_of(Peer(f"mqtt://{taken}"))
    assert isinstance(error, FabricError)
    assert "timed out" in str(error)
    assert seconds < 30


async def test_wrong_credentials() -> None:
    async with EmbeddedBroker(username="fleet", password="right") as broker:
        address = broker.address
        for login in ("", "fleet:wrong@"):
            error, seconds = await refusal_of(Peer(f"mqtt://{login}127.0.0.1:{address.port}"))
            assert isinstance(error, FabricError)
            assert "wrong user name or password" in str(error)
            assert "wrong@" not in str(error)
            assert seconds < 30
        async with Peer(address.url()) as peer:
            await peer.ready()


async def test_not_enough_peers(broker: EmbeddedBroker) -> None:
    async with fleet(broker, "a", "b") as (a, _):
        with pytest.raises(NotReady, match=r"2 of 3 peers are in fabric 'lab' after 0\.2 s"):
            await a.ready(3, timeout=0.2)
        assert (await a.ready(2)).size == 2


async def test_who_is_not_entered_is_not_waited_for() -> None:
    """It would never be ready."""
    with pytest.raises(PeerError, match="enter it first"):
        await Peer().ready()
    with pytest.raises(NotReady):
        await Peer().allreduce(np.ones(3))


@pytest.mark.parametrize("name", ["id", "links", "committed", "traffic"])
def test_what_there_is_only_of_who_is_entered(name: str) -> None:
    peer = Peer()
    assert not hasattr(peer, name)
    with pytest.raises(AttributeError, match=f"this Peer has no '{name}': enter it first"):
        getattr(peer, name)


async def test_who_could_not_be_entered_has_left() -> None:
    """Somebody else may wait for it meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"mqtt://127.0.0.1:{closed.getsockname()[1]}"
    peer = Peer(address)
    entering = asyncio.create_task(peer.__aenter__())
    await asyncio.sleep(0)
    waiting = asyncio.create_task(peer.ready(timeout=2 * DEADLINE_S))
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(FabricError):
            await entering
        assert peer.closed
        with pytest.raises(LeftFabric):
            await waiting
        with pytest.raises(LeftFabric):
            await peer.ready()


async def test_allreduce_before_there_is_a_view(broker: EmbeddedBroker) -> None:
    async with peer_at(broker) as peer:
        with pytest.raises(NotReady, match="await ready"):
            await peer.allreduce(np.ones(1))


async def test_allreduce_after_leaving(broker: EmbeddedBroker) -> None:
    async with fleet(broker, "a") as (peer,):
        pass
    with pytest.raises(LeftFabric):
        await peer.allreduce(np.ones(1))


async def test_a_round_that_someone_stays_away_from(broker: EmbeddedBroker) -> None:
    async with fleet(broker, "a", "b", "c", "d", "e") as peers:
        await all_reduce(peers, [np.ones(4)] * 5)
        async with asyncio.timeout(DEADLINE_S):
            errors = await asyncio.gather(
                *(peer.allreduce(np.ones(4), timeout=0.3) for peer in peers[:4]), return_exceptions=True
            )
        # One of them gave up first, and all got its reason.
        assert [type(error) for error in errors] == [RoundTimeout] * 4
        assert len({str(error) for error in errors}) == 1
        assert "timed out after 0.3 s at" in str(errors[0])
        # The late peer's call belongs to the round that is over: it hears the same at once.
        with pytest.raises(RoundTimeout) as late:
            await peers[4].allreduce(np.ones(4))
        assert str(late.value) == str(errors[0])
        assert {outcome.weight for outcome in await all_reduce(peers, [np.ones(4)] * 5)} == {5}


def still_to_come(peer: Peer) -> tuple[str, ...]:
    """Those below a peer whose part of the round is not here yet."""
    assert peer.view is not None
    return peer.view.names(peer._driver.node.allreduce.round.missing)  # type: ignore[attr-defined]


async def test_a_timeout_names_who_is_missing(broker: EmbeddedBroker) -> None:
    async with fleet(broker, "a", "b", "c") as peers:
        await all_reduce(peers, [np.ones(4)] * 3)
        a, b, _ = peers
        waiting = asyncio.create_task(b.allreduce(np.ones(4), timeout=DEADLINE_S))
        async with asyncio.timeout(DEADLINE_S):
            while still_to_come(a) != ("c",):  # noqa: ASYNC110  # no bell rings when a part has come
                await asyncio.sleep(0.001)  # looks again, until the deadline
        with pytest.raises(RoundTimeout, match=r"timed out after 0.2 s at a, waiting for c$"):
            await a.allreduce(np.ones(4), timeout=0.2)
        with pytest.raises(RoundTimeout, match=r"at a, waiting for c$"):
            await waiting


@pytest.mark.parametrize("odd", range(4))
async def test_vectors_that_do_not_fit_together(odd: int, broker: EmbeddedBroker) -> None:
    async with fleet(broker, "a", "b", "c", "d") as peers:
        values = [np.ones(1000, np.float32)] * 4
        values[odd] = np.ones(999, np.float32)
        async with asyncio.timeout(DEADLINE_S):
            errors = await asyncio.gather(
                *(peer.allreduce(value) for peer, value in zip(peers, values, strict=True)), return_exceptions=True
            )
        assert [type(error) for error in errors] == [ContributionMismatch] * 4
        assert all("1000 x float32" in str(error) and "999 x float32" in str(error) for error in errors)
        outcomes = await all_reduce(peers, [np.ones(1000, np.float32)] * 4)
        assert {(outcome.round, outcome.weight) for outcome in outcomes} == {(2, 4)}


async def test_dtypes_that_do_not_fit_together(broker: EmbeddedBroker) -> None:
    async with fleet(broker, "a", "b") as peers:
        for sizes in ((4, 4), (4, 2)):  # of 4 and 2 elements, the bytes would fit
            values = [np.ones(sizes[0], np.float32), np.ones(sizes[1], np.float64)]
            async with asyncio.timeout(DEADLINE_S):
                errors = await asyncio.gather(
                    *(peer.allreduce(value) for peer, value in zip(peers, values, strict=True)),
                    return_exceptions=True,
                )
            assert [type(error) for error in errors] == [ContributionMismatch] * 2
        await all_reduce(peers, [np.ones(4)] * 2)


class Oops(Exception):
    pass


@pytest.mark.parametrize("error", [Oops("mine"), ExceptionGroup("mine", [Oops(), ValueError()])])
async def test_what_the_body_raises_comes_out_as_it_is(error: Exception, broker: EmbeddedBroker) -> None:
    async def live() -> None:
        async with peer_at(broker) as peer:
            await peer.ready()
            raise error

    with pytest.raises(type(error)) as caught:
        await live()
    assert caught.value is error


async def test_cancelling_the_body(broker: EmbeddedBroker) -> None:
    inside = asyncio.Event()

    async def live() -> None:
        async with peer_at(broker) as peer:
            await peer.ready()
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(live())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("working", [False, True])
async def test_a_bug_in_the_machine_surfaces(
    working: bool, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug = ProtocolBug("made for this test")

    def fail(*_: object) -> list[object]:
        raise bug

    async def live() -> None:
        async with peer_at(broker, "a") as peer:
            await peer.ready()
            monkeypatch.setattr(peer._driver.node, "handle" if working else "tick", fail)
            await (peer.allreduce(np.ones(3)) if working else asyncio.Event().wait())

    with pytest.raises(ProtocolBug) as caught:
        async with asyncio.timeout(DEADLINE_S):
            await live()
    assert caught.value is bug


async def test_after_a_bug_in_mid_round_nothing_goes_out_of_the_programs_array(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is queued lies in that."""
    aborted: list[str] = []
    really = PlainConnection.abort

    def abort(self: PlainConnection, reason: str) -> None:
        aborted.append(reason)
        really(self, reason)

    monkeypatch.setattr(PlainConnection, "abort", abort)

    def fail(*_: object) -> list[object]:
        raise ProtocolBug("made for this test")

    async def live() -> None:
        async with peer_at(broker, "a") as a, peer_at(broker, "b") as b:
            await asyncio.gather(a.ready(2), b.ready(2))
            call = asyncio.create_task(b.allreduce(np.ones(3)))
            for _ in range(10):
                await asyncio.sleep(0)
            assert b._driver.node.allreduce.contributed
            monkeypatch.setattr(b._driver.node, "tick", fail)
            b._driver._tick()  # now: on a busy machine the other would have given up the link before it is time
            await call

    with pytest.raises(ProtocolBug):
        async with asyncio.timeout(DEADLINE_S):
            await live()
    assert "leaving" in aborted


async def test_vectors_that_nobody_takes_are_refused_before_anything_is_copied(broker: EmbeddedBroker) -> None:
    one = np.broadcast_to(np.float32(0), (1 << 28) + 1)  # of four bytes
    async with peer_at(broker, "a") as peer:
        await peer.ready()
        for value in (one, [one[1:], one[:1]], [one] * 1000):
            with pytest.raises(ValueError, match="allreduce takes 1,073,741,824 bytes at most, not "):
                await peer.allreduce(value)
        assert (await peer.allreduce(np.ones(1))).weight == 1


@contextlib.contextmanager
def memory_left(size: int) -> Iterator[None]:
    """This process can have so many bytes more, and no others."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize("names", ["a", "ab"])
async def test_a_peer_whose_memory_is_full_says_so(names: str, broker: EmbeddedBroker) -> None:
    """Where it adds up, and where it makes room for what arrives."""

    async def live() -> None:
        vector = np.zeros(1 << 26, np.float32)
        async with fleet(broker, *names) as peers, asyncio.timeout(DEADLINE_S):
            with memory_left(vector.nbytes // 2):
                await all_reduce(peers, [vector] * len(peers))

    with pytest.raises((PeerError, BaseExceptionGroup)) as caught:
        await live()
    error = caught.value
    said = str(first_error(error) if isinstance(error, BaseExceptionGroup) else error)
    assert said.startswith("out of memory")
    assert said.endswith(": take smaller vectors, or give this peer more")


async def test_two_allreduces_of_one_peer_are_the_callers_mistake_not_a_bug(broker: EmbeddedBroker) -> None:
    async with fleet(broker, "a", "b") as (a, b):
        calls = [asyncio.create_task(a.allreduce(np.ones(2))) for _ in range(3)]
        done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        while len(done) < 2:
            more, _ = await asyncio.wait(set(calls) - done, return_when=asyncio.FIRST_COMPLETED)
            done |= more
        assert all(isinstance(call.exception(), PeerError) for call in done)
        await b.allreduce(np.ones(2))
        (last,) = set(calls) - done
        assert (await last).weight == 2


async def test_a_call_from_another_loop_is_refused(broker: EmbeddedBroker) -> None:
    """It would hear of nothing before its timeout, and the machine would work in two threads at once."""
    async with fleet(broker, "a", "b") as (a, b):
        for call in (lambda: a.allreduce(np.ones(3)), lambda: a.ready(3)):
            with pytest.raises(PeerError, match="lives in another event loop"):
                await asyncio.to_thread(lambda: asyncio.run(call()))  # noqa: B023
        assert all(outcome.exact for outcome in await all_reduce([a, b], [np.ones(3)] * 2))
