"""Who is called, and how often, where the way there is slow."""

from __future__ import annotations

import heapq

import pytest

from edgepeer.ids import PeerId
from edgepeer.protocol import effects as fx
from edgepeer.protocol.rollcall import RollCall, Word
from edgepeer.topology.view import Member
from edgepeer.wire.frames import Call

ME, PEER = PeerId("a"), PeerId("b")
COUNTS_S = 10.0
"""An answer that takes longer is none."""


class Way:
    """A roll call whose letters take a while, each way. `speaks_every_s`: how often the other one calls of its own."""

    def __init__(self, takes_s: float, speaks_every_s: float = float("inf")) -> None:
        self.now = 0.0
        self.calls: list[float] = []
        self._takes_s = takes_s
        self._every_s = self._speaks_at = speaks_every_s
        self._answers: list[tuple[float, float]] = []
        self._rolls = RollCall(self._sent, None, 0.0)
        self._rolls.on_presence(Member(id=PEER, incarnation=1), 0.0)

    def _sent(self, effect: fx.Effect) -> None:
        assert isinstance(effect, fx.Relay)
        self.calls.append(self.now)
        heapq.heappush(self._answers, (self.now + 2 * self._takes_s, self.now))

    def go_on(self, until: float, *, takes_s: float | None = None) -> int:
        """Look every tenth of a second. Returns how often it has been called meanwhile."""
        self._takes_s = self._takes_s if takes_s is None else takes_s
        before = len(self.calls)
        while self.now < until:
            while self._answers and self._answers[0][0] <= self.now:
                at, asked = heapq.heappop(self._answers)
                self._rolls.on_word(PEER, Word(at, 1, None, 0, answers=at - asked <= COUNTS_S, took_s=at - asked))
            if self.now >= self._speaks_at:
                self._speaks_at = self.now + self._every_s
                self._rolls.on_word(PEER, Word(self.now, 1, None, 0))
            self._rolls.call(ME, [PEER], Call(incarnation=1, generation=None, epoch=0, known=None), self.now)
            self.now += 0.1
        return len(self.calls) - before

    @property
    def is_there(self) -> bool:
        return self._rolls.joiner(PEER, self.now) is not None


def test_who_answers_at_once_is_called_every_second() -> None:
    way = Way(0.01)
    assert 27 <= way.go_on(30.0) <= 32
    assert way.is_there


@pytest.mark.parametrize("takes_s", [0.3, 1.0, 2.0, 4.5])
def test_nobody_is_called_much_more_often_than_it_can_answer(takes_s: float) -> None:
    way = Way(takes_s)
    way.go_on(30.0)
    assert way.go_on(90.0) <= 60 / (1 + min(2 * takes_s, 1.0)) * 2
    assert len(way.calls) > 10


@pytest.mark.parametrize("speaks_every_s", [float("inf"), 5.0, 1.0, 0.2])
def test_answers_that_come_too_late_make_nobody_call_sooner(speaks_every_s: float) -> None:
    """The way through the broker is full: what answers bring about would go over it, too."""
    way = Way(6.0, speaks_every_s)
    way.go_on(30.0)
    assert way.go_on(90.0) <= (60 if speaks_every_s <= 1.0 else 36 if speaks_every_s == 5.0 else 12)


def test_once_the_way_is_free_who_calls_is_called_within_a_second_and_lets_itself_be_heard() -> None:
    way = Way(6.0, 1.0)
    way.go_on(60.0)
    assert not way.is_there
    way.go_on(62.0, takes_s=0.01)
    assert way.is_there
