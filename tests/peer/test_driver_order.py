"""A driver's machine handles one event after the other, and what it wants is done in the order in which it wants it."""

from __future__ import annotations

from typing import Any

from edgepeer.ids import PeerId
from edgepeer.peer.bell import Bell
from edgepeer.peer.calls import Calls
from edgepeer.peer.driver import Driver
from edgepeer.peer.hearsay import Hearsay
from edgepeer.protocol import effects as fx
from edgepeer.protocol import events as ev
from edgepeer.wire.frames import Frame, Ping, State

B = PeerId("b")
FIRST, SECOND = Ping(waiting=False), Ping(waiting=True)


class Machine:
    """Loses its program's state in mid-work: the program says so while the rest is still to be done."""

    def handle(self, event: ev.Event, now: float) -> list[fx.Effect]:
        if isinstance(event, ev.StateLost):
            return [fx.Send(B, SECOND)]
        return [fx.Behind(7), fx.Send(B, FIRST)]

    def tick(self, now: float) -> list[fx.Effect]:
        return [fx.Behind(7), fx.Send(B, FIRST)]

    def next_deadline(self) -> float:
        return float("inf")


class Lines:
    def __init__(self) -> None:
        self.sent: list[Frame] = []

    def send(self, peer: PeerId, frame: Frame, payload: object) -> None:
        self.sent.append(frame)

    def receiving(self) -> list[tuple[PeerId, float]]:
        return []

    def hang_up(self, peer: PeerId, reason: str, *, abrupt: bool) -> None:
        pass


class Owner:
    """A peer whose program has missed too much."""

    def __init__(self) -> None:
        self.calls = Calls(Bell())

    def behind(self, effect: fx.Behind) -> None:
        self.calls.behind(effect)

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def desk(machine: Machine | None = None) -> tuple[Driver, Lines]:
    owner, lines = Owner(), Lines()
    driver = Driver(machine or Machine(), owner)  # type: ignore[arg-type]
    driver.switchboard = lines  # type: ignore[assignment]
    driver._arm = lambda due: None  # type: ignore[method-assign]  # no time passes here
    owner.calls.run_on(driver)
    return driver, lines


async def test_what_the_program_says_meanwhile_is_handled_when_all_is_done() -> None:
    driver, lines = desk()
    driver.dispatch(ev.ControlSynced())
    assert lines.sent == [FIRST, SECOND]
    driver.dispatch(ev.ControlSynced())
    assert lines.sent == [FIRST, SECOND] * 2
    driver.stop()


async def test_so_it_is_after_a_tick() -> None:
    driver, lines = desk()
    driver._tick()
    assert lines.sent == [FIRST, SECOND]
    driver.stop()


class Refusing(Machine):
    """Closes each connection as soon as it stands."""

    def handle(self, event: ev.Event, now: float) -> list[fx.Effect]:
        return [fx.CloseLink(event.peer, "enough")] if isinstance(event, ev.LinkUp) else []


async def test_who_is_hung_up_on_is_told_nothing_more() -> None:
    """And what it had begun to tell is forgotten: nobody says that such a connection is down."""
    driver, lines = desk(Refusing())
    hearsay = driver.hearsay = Hearsay(driver.send, lambda *_: None, limit_bytes=100, piece_bytes=40)
    driver.link_up(B, 1, dialled=True)
    before = len(lines.sent)
    hearsay.say(b"news")
    assert len(lines.sent) == before
    driver.stop()


class Listening(Machine):
    """Notes what it hears of."""

    def __init__(self) -> None:
        self.heard: list[ev.Event] = []

    def handle(self, event: ev.Event, now: float) -> list[fx.Effect]:
        self.heard.append(event)
        return []


async def test_who_tells_owners_something_is_alive() -> None:
    """The machine knows nothing of what is said, but that something was."""
    machine = Listening()
    driver, _ = desk(machine)
    driver.hearsay = Hearsay(driver.send, lambda *_: None, limit_bytes=100, piece_bytes=40)
    driver.received(B, State(run="/job", round=0, offset=0, total=9), None, 9, False, 0.1)
    (event,) = machine.heard
    assert isinstance(event, ev.Heard)
    assert event.peer == B
    driver.stop()
