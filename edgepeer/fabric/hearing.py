"""What a client hears, and what it means: events for its owner, and whatever concerns the client itself.

Only what was subscribed to, what this client may have, and what is in order goes on; the rest is counted.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Final

from edgepeer.complaints import Complaints
from edgepeer.errors import WireError
from edgepeer.fabric import inbox
from edgepeer.fabric.documents import Ask, Presence
from edgepeer.fabric.events import Answered, FabricEvent, JobSpoiled, PresenceGone, PresenceSeen, Synced
from edgepeer.fabric.topics import Group, Topic, Topics
from edgepeer.fabric.twins import TwinWatch
from edgepeer.ids import PeerId
from edgepeer.topology.view import MAX_MEMBERS
from edgepeer.wire.documents import pack, unpack

__all__ = ["Hearing"]

_LOG = logging.getLogger(__name__)
_SHOWN_CHARS: Final = 200


class Hearing:
    """Of one client, over all its connections.

    Args:
        emit: told every event.
        say_again: told when somebody else has cleared our presence.
        asked: told who wants to know what we keep.
        fail: told why this client must end.
    """

    def __init__(
        self,
        topics: Topics,
        client_id: str,
        interests: Group,
        will_topic: str | None,
        *,
        emit: Callable[[FabricEvent], None],
        say_again: Callable[[str], None],
        asked: Callable[[PeerId], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self.rejected = Complaints(_LOG)
        self.me: Presence | None = None
        """What we say of ourselves."""
        self.marker = topics.marker(client_id)
        """A topic for notes to ourselves."""
        self.trace = f"{self.marker}/presence"
        """Where our presence stays when a will has cleared it."""
        self.trace_left = False
        """Whether we have left it at this broker."""
        self.probe = f"{self.marker}/kept/note"
        """Retained: what a broker gives back that tells new subscriptions what it retains, wildcards too."""
        self.note = b""
        """What to send ourselves, to see whether the broker answers."""
        self.lives: dict[PeerId, int] = {}
        """The incarnations of those who are present, as this connection has told."""
        self.told = asyncio.Event()
        """The broker has answered: it has told, if it does so at all, what it retained."""
        self.echoed = asyncio.Event()
        """The same, and again whenever we send ourselves the note once more."""
        self.probed = asyncio.Event()
        """It has given back what we had made it retain."""
        self.retained = asyncio.Event()
        """Something has come that was retained."""
        self.kept_before = 0
        """How much had come that was retained, when the broker answered last."""
        self.answers = asyncio.Event()
        """Another client has answered a question of ours."""
        self.question = (topics.ask, pack(Ask(client=client_id)))
        """Where to ask the others what they keep, and how."""
        self._topics = topics
        self._client_id = client_id
        self._interests = interests
        self._will_topic = will_topic
        self._emit = emit
        self._say_again = say_again
        self._asked = asked
        self._fail = fail
        self._traces = f"{topics.root}marker/"
        self._twins = TwinWatch(topics.fabric)
        self._listening = False
        self._catching_up = False
        self._kept = 0

    def reject(self, topic: str, reason: str) -> None:
        """A document on that topic was not what it must be."""
        # ascii(): neither comes from us, and a terminal obeys control characters.
        shown, why = ascii(topic)[:_SHOWN_CHARS], ascii(reason)[:_SHOWN_CHARS]
        self.rejected.add("rejected a document on %s: %s", shown, why)

    def begin(self) -> tuple[list[str], bytes]:
        """A new connection: what to subscribe to, and a note for `probe` and, after that, for `marker`."""
        self._listening = self._catching_up = True
        self.note = secrets.token_bytes(8)
        self.lives.clear()
        self.told.clear()
        self.probed.clear()
        self.answers.clear()
        self.retained.clear()
        groups = self._interests | Group.ASK | Group.ANSWERS
        wanted = [*self._topics.filters(groups, self._client_id), self.marker]
        if self._will_topic is not None:
            wanted.append(self.trace)
            if Group.PEERS not in self._interests:
                wanted.append(self._will_topic)
        # Said and asked for last: what comes back late comes behind the rest.
        wanted.append(f"{self.marker}/kept/+")
        return wanted, self.note

    def end(self) -> None:
        """The connection is over."""
        self._listening = False

    def settle(self) -> None:
        """All is heard that was said before, as far as it can be had."""
        if self._catching_up:
            self._catching_up, self.note = False, b""
            self._emit(Synced())

    def receive(self, topic: str, payload: bytes, kept: bool) -> None:
        """A message has come."""
        if not self._listening:
            return  # amqtt sends what others subscribed to before we have subscribed to anything
        if topic in (self.marker, self.probe):
            if payload and payload == self.note:
                if topic == self.marker:
                    self.kept_before = self._kept
                    self.echoed.set()
                (self.told if topic == self.marker else self.probed).set()
            return
        if kept:
            self._kept += 1
            self.retained.set()
        if topic == self.trace:
            self._meet(payload)
            return
        parsed = self._topics.parse(topic)
        if topic == self._will_topic and not payload:
            self._say_again(topic)
        elif parsed is None:
            # amqtt may hand us what is retained for others; their traces are in order.
            if topic.startswith(self._topics.root) and not topic.startswith(self._traces):
                self.reject(topic, "no such topic")
        elif parsed.group in self._interests:
            if parsed.group is Group.RELAY and (kept or parsed.peer != self._client_id):
                return  # somebody made the broker keep it, or amqtt hands us another's
            self._read(topic, lambda: self._tell(parsed, payload))
        elif parsed.group is Group.ASK:
            self._read(topic, lambda: self._hear_question(inbox.read_ask(payload)))
        elif parsed.group is Group.ANSWERS:
            self._read(topic, lambda: self._hear_answer(payload))

    def _read(self, topic: str, step: Callable[[], None]) -> None:
        try:
            step()
        except WireError as error:
            self.reject(topic, str(error))
            if topic == self._topics.job:
                self._emit(JobSpoiled())

    def _tell(self, topic: Topic, payload: bytes) -> None:
        event = inbox.read(topic, payload)
        if isinstance(event, PresenceSeen) and (topic.peer in self.lives or len(self.lives) < MAX_MEMBERS):
            self.lives[PeerId(event.presence.id)] = event.presence.incarnation
        elif isinstance(event, PresenceGone):
            self.lives.pop(event.peer_id, None)
        if event is not None:
            self._emit(event)

    def _hear_question(self, client: PeerId) -> None:
        if client != self._client_id:
            self._asked(client)

    def _hear_answer(self, answer: bytes) -> None:
        topic, payload = inbox.read_answer(self._topics, answer)
        self.answers.set()
        if topic.group in self._interests:
            self._tell(topic, payload)
            if topic.group is Group.PEERS and topic.peer is not None:
                self._emit(Answered(topic.peer))

    def _meet(self, payload: bytes) -> None:
        """See who was the last to be here under our name; only what was retained when we came back counts."""
        if self.me is None or not (self.trace_left and self.note and payload) or self.told.is_set():
            return
        try:
            last = unpack(payload, Presence, limit=inbox.LIMIT_BYTES[Group.PEERS])
        except WireError as error:
            self.reject(self.trace, str(error))
            return
        if (reason := self._twins.meet(self.me, last)) is not None:
            self._fail(reason)
