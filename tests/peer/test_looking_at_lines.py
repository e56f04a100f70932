"""The driver looks at its lines for as long as something is under way, and tells the machine what is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from edgepeer.ids import PeerId
from edgepeer.peer import driver as drivers
from edgepeer.peer.driver import LOOK_S, LOOK_SELDOM_S, Driver
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.wire.frames import Ping

B, C = PeerId("b"), PeerId("c")
PING = Ping(waiting=False)


class Timer:
    def __init__(self, at: float, do: Callable[[], None]) -> None:
        self.at, self.do = at, do
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Hours:
    """A loop's timers, and the time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[Timer] = []

    def call_later(self, delay: float, do: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self.now + delay, do))
        return self.timers[-1]

    def due(self) -> list[Timer]:
        return [timer for timer in self.timers if not timer.cancelled]

    def run(self, until: float) -> None:
        while found := [timer for timer in self.due() if timer.at <= until]:
            timer = min(found, key=lambda timer: timer.at)
            self.timers.remove(timer)
            self.now = timer.at
            timer.do()
        self.now = until


class Lines:
    """A switchboard to whose peers something may be under way."""

    def __init__(self) -> None:
        self.sent: list[PeerId] = []
        self.under_way: dict[PeerId, tuple[float, float]] = {}
        self.looks: list[float] = []

    def send(self, peer: PeerId, frame: object, payload: object) -> None:
        self.sent.append(peer)

    def receiving(self) -> list[tuple[PeerId, float]]:
        return []

    def missing(self, now: float) -> list[tuple[PeerId, float, float]]:
        self.looks.append(round(now - 100.0, 6))
        return [(peer, *each) for peer, each in self.under_way.items()]


class Node:
    """A machine that says what the test wants, and keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[float, ev.Event]] = []
        self.answers: list[fx.Effect] = []

    def handle(self, event: ev.Event, now: float) -> list[fx.Effect]:
        self.heard.append((round(now - 100.0, 6), event))
        return self.answers

    def tick(self, now: float) -> list[fx.Effect]:
        return []

    def next_deadline(self) -> float:
        return 1e6


class Owner:
    """Nobody who wants to know anything."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


class Desk:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hours, self.lines, self.node = Hours(), Lines(), Node()
        self.driver = Driver(self.node, Owner())  # type: ignore[arg-type]
        self.driver.switchboard = self.lines  # type: ignore[assignment]
        monkeypatch.setattr(self.driver, "_loop", self.hours)
        monkeypatch.setattr(drivers, "elapsed", lambda: self.hours.now)

    def say(self, *peers: PeerId) -> None:
        """The machine sends something."""
        self.node.answers = [fx.Send(peer, PING) for peer in peers]
        self.driver.dispatch(ev.TimedOut("test"))
        self.node.answers, self.node.heard = [], []


@pytest.fixture
async def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(monkeypatch)


def looks(*numbers: int) -> list[float]:
    return [round(number * LOOK_S, 6) for number in numbers]


async def test_nobody_looks_where_nothing_is_sent(desk: Desk) -> None:
    desk.say()
    desk.hours.run(110.0)
    assert desk.lines.looks == []


async def test_all_lines_are_looked_at_once_whatever_was_sent_in_between(desk: Desk) -> None:
    desk.say(B, C, B)
    desk.say(C)
    assert desk.lines.sent == [B, C, B, C]
    desk.hours.run(110.0)
    assert desk.lines.looks == looks(1)


async def test_what_is_sent_beside_the_protocol_is_looked_after_too(desk: Desk) -> None:
    desk.driver.send(B, PING, None)
    desk.hours.run(110.0)
    assert desk.lines.looks == looks(1)


async def test_as_long_as_something_is_under_way_and_no_longer(desk: Desk) -> None:
    desk.say(B)
    desk.lines.under_way[B] = (100.0, 0.002)
    desk.hours.run(100.035)
    assert desk.lines.looks == looks(1, 2, 3)
    desk.lines.under_way.clear()
    desk.hours.run(110.0)
    assert desk.lines.looks == looks(1, 2, 3, 4)
    desk.say(B)
    desk.hours.run(120.0)
    assert desk.lines.looks == [*looks(1, 2, 3, 4), 10.0 + LOOK_S]


async def test_the_machine_hears_of_what_has_been_missing_for_a_while(desk: Desk) -> None:
    desk.say(B)
    desk.lines.under_way = {B: (100.005, 0.002), C: (100.035, 0.002)}
    desk.hours.run(100.051)
    missing = [(at, event.peer, event.since) for at, event in desk.node.heard if isinstance(event, ev.Unacknowledged)]
    assert missing == [*((at, B, 100.005) for at in looks(2, 3, 4, 5)), (0.05, C, 100.035)]
    assert {event.within_s for _, event in desk.node.heard if isinstance(event, ev.Unacknowledged)} == {0.002}


async def test_and_later_where_acknowledgements_take_longer(desk: Desk) -> None:
    desk.say(B)
    desk.lines.under_way = {B: (100.0, 0.3)}
    desk.hours.run(100.201)
    assert [at for at, _ in desk.node.heard] == pytest.approx([0.16, 0.175, 0.19])


@pytest.mark.parametrize(("within_s", "every_s"), [(0.0, LOOK_S), (0.015, 0.015), (0.042, LOOK_SELDOM_S)])
async def test_and_looks_more_seldom_too(desk: Desk, within_s: float, every_s: float) -> None:
    """As often as the slowest of all lines needs."""
    desk.say(B)
    desk.lines.under_way = {B: (200.0, within_s), C: (100.0, 0.001)}
    desk.hours.run(100.001 + LOOK_S + 7 * every_s)
    assert desk.lines.looks == pytest.approx([LOOK_S + each * every_s for each in range(8)])


async def test_but_often_where_one_of_these_is_overdue(desk: Desk) -> None:
    desk.say(B)
    desk.lines.under_way = {B: (100.0, 0.03), C: (100.0, 0.001)}
    desk.hours.run(100.051)
    assert desk.lines.looks == pytest.approx([LOOK_S, LOOK_S + LOOK_SELDOM_S, 0.04, 0.045, 0.05])


async def test_what_the_machine_sends_then_needs_no_second_timer(desk: Desk) -> None:
    desk.say(B)
    desk.lines.under_way = {B: (100.0, 0.002)}
    desk.node.answers = [fx.Send(B, PING)]
    desk.hours.run(100.255)
    assert desk.lines.looks == looks(*range(1, 26))


async def test_who_has_stopped_looks_at_nothing_any_more(desk: Desk) -> None:
    desk.say(B)
    desk.lines.under_way = {B: (100.0, 0.002)}
    desk.hours.run(100.015)
    desk.driver.stop()
    desk.driver.send(B, PING, None)
    desk.hours.run(110.0)
    assert desk.lines.looks == looks(1)
    assert desk.hours.due() == []
