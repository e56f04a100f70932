"""What a driver tells its machine of the time: all of it, that which the device has slept included, and never less."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from edgepeer.ids import PeerId
from edgepeer.peer.driver import Driver
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.protocol.node import Node
from edgepeer.topology.view import Member

A = PeerId("a")


class Clocks:
    """Those of a device: one of them stands still while it sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.awake, self.slept = 1000.0, 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.awake)
        monkeypatch.setattr(time, "clock_gettime", self._gettime)

    def _gettime(self, clock: int) -> float:
        return self.awake + (self.slept if clock == time.CLOCK_BOOTTIME else 0.0)


class Owner:
    """A program, and the broker beside it, that brings letters only when it is told to."""

    def __init__(self) -> None:
        self.control = self
        self.committed: list[int] = []
        self.letters: list[fx.Relay] = []

    def relay(self, effect: fx.Relay) -> None:
        self.letters.append(effect)

    def round_committed(self, effect: fx.RoundCommitted) -> None:
        self.committed.append(effect.round)

    def receiving(self) -> list[tuple[PeerId, float]]:
        return []

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


async def test_a_program_that_keeps_its_loop_to_itself_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clocks, owner = Clocks(monkeypatch), Owner()
    node = Node(Member(id=A, incarnation=1), now=clocks.awake)
    driver = Driver(node, owner)  # type: ignore[arg-type]
    driver.switchboard = owner  # type: ignore[assignment]
    clocks.awake += 5.0  # it took so long to connect
    driver.start()
    driver.dispatch(ev.ControlSynced())
    assert caplog.text == ""
    for busy_s, told in ((0.5, ""), (4.0, "for 4.0 s this process did nothing"), (4.0, "")):
        caplog.clear()
        clocks.awake = max(driver._timer_at, driver._armed_at) + busy_s
        driver.dispatch(ev.ControlSynced())  # a socket is looked at before timers are
        driver._tick()
        assert told in caplog.text
        assert len(caplog.records) == bool(told)
    driver.stop()


async def test_who_wakes_from_a_sleep_decides_nothing_before_it_has_heard_what_happened_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks, owner = Clocks(monkeypatch), Owner()
    node = Node(Member(id=A, incarnation=1), now=clocks.awake)
    driver = Driver(node, owner)  # type: ignore[arg-type]
    driver.switchboard = owner  # type: ignore[assignment]
    driver.dispatch(ev.ControlSynced())
    for _ in range(100):
        clocks.awake = max(clocks.awake, node.next_deadline())
        driver._tick()
        if node.view is not None:
            break
    assert node.view is not None
    driver.dispatch(ev.Contribute(np.ones(1, "<f4"), 1.0))
    assert owner.committed == [1]

    clocks.slept += 600.0
    owner.letters.clear()
    driver.dispatch(ev.Contribute(np.ones(1, "<f4"), 1.0))
    assert owner.committed == [1]
    mine = next(letter for letter in owner.letters if letter.peer == A)
    driver.dispatch(ev.Relayed(mine.frame, mine.payload or b""))
    assert owner.committed == [1, 2]
    driver.stop()


class Impatient:
    """A machine that wants to be called so soon that loops, which count milliseconds, may call it too early."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def handle(self, event: ev.Event, now: float) -> list[fx.Effect]:
        self.times.append(now)
        return []

    def tick(self, now: float) -> list[fx.Effect]:
        self.times.append(now)
        return []

    def next_deadline(self) -> float:
        return self.times[-1] + 0.0004


async def test_the_time_never_goes_back_where_a_timer_has_come_early(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks, owner, machine = Clocks(monkeypatch), Owner(), Impatient()
    driver = Driver(machine, owner)  # type: ignore[arg-type]
    driver.switchboard = owner  # type: ignore[assignment]
    driver.dispatch(ev.ControlSynced())
    driver._tick()
    clocks.awake += 0.0001
    driver.dispatch(ev.ControlSynced())
    assert machine.times == pytest.approx([1000.0, 1000.0004, 1000.0004])
    assert machine.times == sorted(machine.times)
    driver.stop()
