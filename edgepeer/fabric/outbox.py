"""What a client still has to say, across connections. Plain data: no clock, no network.

Of a retained topic only the last value counts, and it is said again in every new connection. Events are said in
order, each at least once: one whose receipt was lost with the connection is said again. When there are too many, the
oldest is dropped and counted.

Brokers may hang up on who says something that is longer than they take. So what is long, and has been on its way when
one connection after the other ended, is given up, or there would never be one that lasts. Of a retained topic it is
said once more when a later connection has ended without it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = ["BREAKS", "LONG_BYTES", "MAX_EVENTS", "Letter", "Outbox"]

MAX_EVENTS: Final = 1000
LONG_BYTES: Final = 64 << 10
"""What is shorter all brokers take: connections that end with it on its way do so for another reason."""
BREAKS: Final = 3
"""So many that end in a row with the same on its way do because of it."""


class Letter(NamedTuple):
    """One message to publish."""

    topic: str
    payload: bytes
    retain: bool


class Outbox:
    """Letters wait here until the broker has acknowledged them."""

    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        self._max_events = max_events
        self._kept: dict[str, Letter] = {}
        self._unsaid: dict[str, Letter] = {}
        self._events: deque[Letter] = deque()
        self._taken: Letter | None = None
        """What was to be said when that was asked last: it may be on its way."""
        self._breaks: dict[str, tuple[bytes, int]] = {}
        """By topic: what is long and was on its way when connections ended, and how many in a row ..."""
        self._broken = False
        """... of which the last is one."""
        self.given_up: set[str] = set()
        """The topics of which the broker takes no such value, as far as is known."""
        self.dropped_events = 0

    def keep(self, topic: str, payload: bytes) -> None:
        """Say this, and again after every reconnect. An empty payload clears the topic, and is said once."""
        letter = Letter(topic, payload, retain=True)
        if payload:
            self._kept[topic] = letter
        else:
            self._kept.pop(topic, None)
        self.given_up.discard(topic)
        self._unsaid.pop(topic, None)  # to the end of the order
        self._unsaid[topic] = letter

    def forget(self, topic: str) -> None:
        """Don't say it again. What was not yet said once still will be."""
        self._kept.pop(topic, None)

    def hold_back(self, topic: str) -> bool:
        """Say nothing there if the value kept is neither on its way nor acknowledged, in this connection. Whether that
        is so; else nothing changes."""
        letter = self._unsaid.get(topic)
        if letter is self._taken if letter is not None else topic not in self.given_up:
            return False
        self._unsaid.pop(topic, None)
        self.forget(topic)
        return True

    @property
    def kept(self) -> Mapping[str, Letter]:
        """What is said after every reconnect, by topic."""
        return self._kept

    def repeat(self, topic: str) -> None:
        """Say the kept value of this topic once more, also when it is just on its way."""
        self._unsaid[topic] = self._kept[topic]._replace()  # a new letter: the receipt of the old isn't its own

    def repeat_all(self) -> None:
        """A new connection: the broker may have forgotten everything."""
        if not self._broken:
            self.given_up.clear()
        self._broken = False
        for topic in self._kept:
            if topic not in self.given_up:
                self.repeat(topic)

    def add_event(self, topic: str, payload: bytes) -> None:
        if len(self._events) >= self._max_events:
            self._events.popleft()
            self.dropped_events += 1
        self._events.append(Letter(topic, payload, retain=False))

    def next(self) -> Letter | None:
        """What to say now: retained values before events."""
        if self._unsaid:
            self._taken = next(iter(self._unsaid.values()))
        else:
            self._taken = self._events[0] if self._events else None
        return self._taken

    def acknowledged(self, letter: Letter) -> None:
        """The broker has it. A value replaced, or an event dropped, in the meantime is not affected."""
        self._breaks.pop(letter.topic, None)
        self._done(letter)

    def broke_off(self, letter: Letter) -> bool:
        """A connection has ended with that on its way. Whether it is given up."""
        if len(letter.payload) < LONG_BYTES:
            return False
        before, times = self._breaks.get(letter.topic, (b"", 0))
        times = times + 1 if before == letter.payload else 1
        self._broken = True
        if times < BREAKS:
            self._breaks[letter.topic] = letter.payload, times
            return False
        if letter.retain:
            self._breaks[letter.topic] = letter.payload, BREAKS - 1  # it has one more try, some time
            self.given_up.add(letter.topic)
        else:
            del self._breaks[letter.topic]
            self.dropped_events += 1
        self._done(letter)
        return True

    def _done(self, letter: Letter) -> None:
        if letter.retain:
            if self._unsaid.get(letter.topic) is letter:
                del self._unsaid[letter.topic]
        elif self._events and self._events[0] is letter:
            self._events.popleft()

    def __bool__(self) -> bool:
        return bool(self._unsaid or self._events)
