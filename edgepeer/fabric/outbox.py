"""What a client still has to say, across connections. Plain data: no clock, no network.

Of a retained topic only the last value counts, and it is said again in every new connection. Events are said in
order, each at least once: one whose receipt was lost with the connection is said again. When there are too many, the
oldest is dropped and counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = ["MAX_EVENTS", "Letter", "Outbox"]

MAX_EVENTS: Final = 1000


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
        self.dropped_events = 0

    def keep(self, topic: str, payload: bytes) -> None:
        """Say this, and again after every reconnect. An empty payload clears the topic, and is said once."""
        letter = Letter(topic, payload, retain=True)
        if payload:
            self._kept[topic] = letter
        else:
            self._kept.pop(topic, None)
        self._unsaid.pop(topic, None)  # to the end of the order
        self._unsaid[topic] = letter

    def forget(self, topic: str) -> None:
        """Don't say it again. What was not yet said once still will be."""
        self._kept.pop(topic, None)

    @property
    def kept(self) -> Mapping[str, Letter]:
        """What is said after every reconnect, by topic."""
        return self._kept

    def repeat(self, topic: str) -> None:
        """Say the kept value of this topic once more, also when it is just on its way."""
        self._unsaid[topic] = self._kept[topic]._replace()  # a new letter: the receipt of the old isn't its own

    def repeat_all(self) -> None:
        """A new connection: the broker may have forgotten everything."""
        for topic in self._kept:
            self.repeat(topic)

    def add_event(self, topic: str, payload: bytes) -> None:
        if len(self._events) >= self._max_events:
            self._events.popleft()
            self.dropped_events += 1
        self._events.append(Letter(topic, payload, retain=False))

    def next(self) -> Letter | None:
        """What to say now: retained values before events."""
        if self._unsaid:
            return next(iter(self._unsaid.values()))
        return self._events[0] if self._events else None

    def acknowledged(self, letter: Letter) -> None:
        """The broker has it. A value replaced, or an event dropped, in the meantime is not affected."""
        if letter.retain:
            if self._unsaid.get(letter.topic) is letter:
                del self._unsaid[letter.topic]
        elif self._events and self._events[0] is letter:
            self._events.popleft()

    def __bool__(self) -> bool:
        return bool(self._unsaid or self._events)
