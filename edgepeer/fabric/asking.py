"""Who keeps what? A client asks, and all others answer: to it alone, each for itself.

Brokers should say to a new client all that they retain. Some don't: RabbitMQ's plugin gives nothing to a
subscription with a wildcard. And what a broker retains may be of somebody who is dead, while who answers is alive.
"""

from __future__ import annotations

from typing import Final

from edgepeer.fabric.documents import Answer
from edgepeer.fabric.gate import Gate
from edgepeer.fabric.outbox import Letter, Outbox
from edgepeer.fabric.topics import Group, Topics
from edgepeer.wire.documents import pack

__all__ = ["MAX_ANSWERS", "Answers"]

MAX_ANSWERS: Final = 4096


class Answers:
    """What a client has been asked and not yet said. Plain data: no clock, no network.

    The same question of the same asker waits only once, and what is answered is what is kept by then.
    """

    def __init__(self, topics: Topics, outbox: Outbox, gate: Gate) -> None:
        self._topics = topics
        self._outbox = outbox
        self._gate = gate
        self._waiting: dict[tuple[str, str], bytes] = {}
        """The last question of each asker, about each topic."""
        self._letter: Letter | None = None
        self._said: tuple[tuple[str, str], bytes, bytes] | None = None
        """Which of these the letter answers, and by what."""

    def asked_by(self, client: str, nonce: bytes) -> None:
        """Answer that client, unless too many wait for answers already: it can ask again."""
        for topic in self._outbox.kept:
            parsed = self._topics.parse(topic)
            if parsed is not None and parsed.group in Group.KEPT and len(self._waiting) < MAX_ANSWERS:
                self._waiting[client, topic] = nonce

    def next(self) -> Letter | None:
        """What to say now: after a connection that broke with an answer on its way, what is asked and kept by then."""
        while self._waiting:
            (client, topic), nonce = next(iter(self._waiting.items()))
            kept = self._outbox.kept.get(topic)
            if kept is None:
                del self._waiting[client, topic]
                continue
            said = (client, topic), nonce, kept.payload
            if self._letter is None or said != self._said:
                answer = pack(Answer(topic=topic, payload=kept.payload, nonce=nonce))
                name = self._topics.answer(client)
                parsed = self._topics.parse(name)
                assert parsed is not None
                self._letter = Letter(name, self._gate.sealed(name, parsed, answer), retain=False)
                self._said = said
            return self._letter
        return None

    def acknowledged(self, letter: Letter) -> None:
        """The broker has it. Who has asked anew meanwhile is answered once more: the old answer shows nothing to it."""
        if letter is self._letter and self._said is not None:
            question, nonce, _ = self._said
            if self._waiting.get(question) == nonce:
                del self._waiting[question]
            self._letter = self._said = None
