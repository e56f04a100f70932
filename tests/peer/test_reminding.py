"""Who of a fleet tells a broker what the fabric is at, in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from virtual_loop import Attentive, VirtualLoop

from edgepeer.ids import PeerId
from edgepeer.peer.bell import Bell
from edgepeer.peer.reminding import TURN_S, Reminder
from edgepeer.simulation.clock import Clock
from edgepeer.topology.view import Member, View

NAMES = ("p0", "p1", "p2", "p3")
WAY_S = 0.02
"""From a device to the broker and back."""


def view_of(*names: str) -> View:
    return View(epoch=1, members=tuple(Member(id=name, incarnation=1) for name in names), run="j1")


class Device:
    """Of a fleet whose broker has lost its memory."""

    def __init__(self, company: Company, name: str) -> None:
        self.id, self.bell = PeerId(name), Bell()
        self.view: View | None = view_of(*NAMES)
        self.untold = False
        self.company = company
        company.loop.create_task(Reminder(self, untold=lambda: self.untold, tell=self._tell).run())

    def _tell(self) -> None:
        self.company.said.append((self.id, self.company.clock.now))
        self.untold = False
        for each in self.company.devices.values():
            self.company.clock.after(WAY_S, partial(each.change, untold=False))

    def change(self, *, untold: bool | None = None, view: View | None = None) -> None:
        with self.company.loop.running():
            self.untold = self.untold if untold is None else untold
            self.view = self.view if view is None else view
            self.bell.ring()


class Company:
    def __init__(self) -> None:
        self.clock = Clock()
        self.loop = VirtualLoop(self.clock, Attentive())
        self.said: list[tuple[str, float]] = []
        with self.loop.running():
            self.devices = {name: Device(self, name) for name in NAMES}

    def find_broker(self, *names: str, at: float = 0.0) -> None:
        for name in names:
            self.clock.at(at, partial(self.devices[name].change, untold=True))

    def settle(self) -> list[tuple[str, float]]:
        """What is said, and when."""
        self.clock.run(until=lambda: False, limit_s=60.0)
        return self.said


@pytest.fixture
def company() -> Iterator[Company]:
    made = Company()
    yield made
    made.loop.end()


def test_the_head_says_it_at_once_and_the_others_hear_it(company: Company) -> None:
    company.find_broker(*NAMES, at=1.0)
    assert company.settle() == [("p0", 1.0)]


def test_where_the_head_does_not_find_the_broker_the_next_says_it(company: Company) -> None:
    company.find_broker("p3", at=1.0)
    company.find_broker("p1", "p2", at=1.1)
    assert company.settle() == [("p1", pytest.approx(1.1 + TURN_S))]


def test_whoever_becomes_the_head_says_it(company: Company) -> None:
    company.find_broker("p2", "p3", at=1.0)
    then = view_of("p2", "p3")
    for name in then.ids:
        company.clock.at(1.5, partial(company.devices[name].change, view=then))
    assert company.settle() == [("p2", 1.5)]


def test_who_is_in_no_view_says_nothing_until_it_is(company: Company) -> None:
    company.devices["p1"].view = None
    company.find_broker("p1", at=1.0)
    company.clock.at(5.0, partial(company.devices["p1"].change, view=view_of("p0", "p1")))
    assert company.settle() == [("p1", pytest.approx(5.0 + TURN_S))]


def test_what_is_told_meanwhile_begins_anew_when_it_is_lost_again(company: Company) -> None:
    company.find_broker("p3", at=1.0)
    company.clock.at(2.0, partial(company.devices["p3"].change, untold=False))
    company.find_broker("p3", at=2.4)
    assert company.settle() == [("p3", pytest.approx(2.4 + 3 * TURN_S))]
