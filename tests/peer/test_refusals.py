"""What a neighbour sends and the machine refuses: counted, told at most so often, and named by the round that waits."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from peer_fleet import DEADLINE_S, Broker, all_reduce, fleet

from edgepeer.errors import RoundTimeout
from edgepeer.ids import PeerId
from edgepeer.peer.bell import Bell
from edgepeer.peer.calls import Calls
from edgepeer.peer.driver import Driver
from edgepeer.peer.letters import SEALED, Letters
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.transport.base import Traffic
from edgepeer.trust.sealing import Correspondence
from edgepeer.wire import encoding
from edgepeer.wire.frames import Via


class Spoilt:
    """Writes a scale that is no number with what begins so."""

    precision = "int8"

    def __init__(self, worth: float) -> None:
        self._worth = worth
        self._codec = encoding.codec_of("int8")
        assert self._codec is not None

    def encode(self, vector: NDArray[np.float32], out: Any) -> bool:
        done = self._codec.encode(vector, out)
        if vector[0] == self._worth:
            np.frombuffer(out, np.uint8)[:4] = np.float32([np.nan]).view(np.uint8)
        return done

    def decode(self, data: Any, out: NDArray[np.float32]) -> str:
        return self._codec.decode(data, out)


async def test_a_neighbour_that_is_refused_over_and_over(
    broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgepeer.complaints._EVERY_S", 3600.0)
    caplog.set_level(logging.WARNING, "edgepeer")
    one, two = np.ones(1000, np.float32), np.full(1000, 2, np.float32)
    async with fleet(broker, "a", "b") as (a, b), asyncio.timeout(DEADLINE_S):
        often, hear = asyncio.Event(), a._calls.refused

        def refused(effect: fx.Refused) -> None:
            hear(effect)
            if a.traffic.frames_rejected == 5:
                often.set()

        with monkeypatch.context() as spoilt:
            spoilt.setitem(encoding._CODECS, "int8", Spoilt(2.0))
            spoilt.setattr(a._calls, "refused", refused)
            waiting = asyncio.create_task(b.allreduce(two, precision="int8", timeout=DEADLINE_S))
            await often.wait()
            with pytest.raises(RoundTimeout, match=r"at a, waiting for b; b was refused: Reduce at 0 has scale nan"):
                await a.allreduce(one, precision="int8", timeout=0.05)
            with pytest.raises(RoundTimeout, match="b was refused: Reduce at 0 has scale nan"):  # as a has told it
                await waiting
        assert a.traffic.frames_rejected >= 5
        assert b.traffic.frames_rejected == 0
        lines = [line for line in caplog.messages if "closed: " in line]
        assert len(lines) == 1
        assert lines[0].startswith("link to b closed: Reduce at 0 has scale nan")
        assert lines[0].endswith("(1 so far)")
        assert {outcome.weight for outcome in await all_reduce([a, b], [one, two], precision="int8")} == {2}
        with pytest.raises(RoundTimeout, match=r"at a, waiting for b$"):  # which was refused in another round
            await a.allreduce(one, timeout=0.05)


@pytest.mark.parametrize(
    ("waits", "told"),
    [
        ("timed out after 9 s at c, waiting for d, b", "; b was refused: bad view"),
        ("timed out after 9 s at c, waiting for d", ""),
        ("timed out after 9 s at c, waiting for b; b was refused: it knows", ""),
    ],
)
async def test_only_a_round_that_waits_for_that_neighbour_names_it(waits: str, told: str) -> None:
    calls = Calls(Bell())
    calls.run_on(SimpleNamespace(node=SimpleNamespace(allreduce=SimpleNamespace(committed=6, owed=0))))  # type: ignore[arg-type]
    calls.refused(fx.Refused(PeerId("b"), "bad view"))
    calls._waiting = asyncio.get_running_loop().create_future()
    calls.aborted(fx.RoundAborted("", 7, "timeout", waits, mine=True))
    with pytest.raises(RoundTimeout) as caught:
        await calls._waiting
    assert str(caught.value) == f"round 7: {waits}{told}"


class Machine:
    """Says this, whatever happens."""

    def __init__(self, *effects: fx.Effect) -> None:
        self._effects = effects

    def handle(self, event: ev.Event, now: float) -> list[fx.Effect]:
        return [*self._effects]

    def next_deadline(self) -> float:
        return float("inf")


class Owner:
    def __init__(self) -> None:
        self.heard: list[fx.Refused] = []

    def refused(self, effect: fx.Refused) -> None:
        self.heard.append(effect)

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


async def test_only_of_links_that_come_and_go_is_little_said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgepeer.complaints._EVERY_S", 3600.0)
    caplog.set_level(logging.INFO, "edgepeer")
    owner, no = Owner(), fx.Refused(PeerId("b"), "bad view")
    notes = (
        fx.Note("warning", "waiting"),
        fx.Note("warning", "closed", often=True),
        fx.Note("info", "goes", often=True),
    )
    driver = Driver(Machine(*notes, no), owner)  # type: ignore[arg-type]
    monkeypatch.setattr(driver, "_arm", lambda due: None)  # no time passes here
    for _ in range(3):
        driver.dispatch(ev.ControlSynced())
    assert caplog.messages == ["waiting", "closed (1 so far)", "goes (1 so far)", *["waiting"] * 2]
    assert owner.heard == [no] * 3
    monkeypatch.setattr("edgepeer.complaints._EVERY_S", 0.0)
    driver.dispatch(ev.ControlSynced())
    assert caplog.messages[-2:] == ["closed (4 so far)", "goes (4 so far)"]
    driver.stop()


async def test_what_others_say_makes_no_line_of_its_own(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever can write at a broker names a source that nobody has checked; and a peer a reason."""
    words = "no\n09:00:00 error edgepeer: \x1b[31mall is lost"
    caplog.set_level(logging.INFO, "edgepeer")
    fleet = Letters("a", Correspondence("lab", "a"), Traffic())
    assert fleet.open(Via(source=words, target="a", tunnel=1, serial=0, kind=SEALED, header=b""), bytes(40)) is None
    notes = fx.Note("warning", f"b is gone: {words}"), fx.Note("warning", f"link closed: {words}", often=True)
    driver = Driver(Machine(*notes), Owner())  # type: ignore[arg-type]
    monkeypatch.setattr(driver, "_arm", lambda due: None)
    driver.dispatch(ev.ControlSynced())
    driver.stop()
    assert len(caplog.messages) == 3
    for line in caplog.messages:
        assert line.isprintable()
        assert r"no\n09:00:00" in line
