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
from edgepeer.fabric.gate import Gate, Outdated
from edgepeer.fabric.topics import Group, Topic, Topics
from edgepeer.ids import PeerId
from edgepeer.topology.view import MAX_MEMBERS
from edgepeer.trust.names import Holder
from edgepeer.wire.documents import pack

__all__ = ["Hearing"]

_LOG = logging.getLogger(__name__)
_SHOWN_CHARS: Final = 200
_LEFT_BEHIND: Final = Group.PEERS | Group.REPORTS | Group.LINKS
"""What stays at a broker when its author is of the fleet no more: nobody else says anything there."""
_OUTDATED: Final = 16 * MAX_MEMBERS
_REASONS: Final = 64
"""So many different ones are kept."""


class Hearing:
    """Of one client, over all its connections.

    Args:
        gate: what counts.
        emit: told every event.
        say_again: told when somebody else has cleared our presence.
        spoiled: told what is in its place, when that is none, or doesn't count; and where, as of the view.
        met: told what else is said of us.
        asked: told who wants to know what we keep.
        listed: told of lists of who is out.
    """

    def __init__(
        self,
        topics: Topics,
        client_id: str,
        interests: Group,
        will_topic: str | None,
        *,
        gate: Gate,
        emit: Callable[[FabricEvent], None],
        say_again: Callable[[str], None],
        spoiled: Callable[[str, bytes], None],
        met: Callable[[Presence], None],
        asked: Callable[[Ask], None],
        listed: Callable[[bytes], None],
    ) -> None:
        self.rejected = Complaints(_LOG)
        self.reasons: dict[str, int] = {}
        """Why documents were refused, and how many for each."""
        self.outdated: set[str] = set()
        """Topics on which the broker keeps what counts no more, for its author is of the fleet no more."""
        self.marker = topics.marker(client_id)
        """A topic for notes to ourselves."""
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
        self._nonce = b""
        self._topics = topics
        self._client_id = client_id
        self._interests = interests
        self._will_topic = will_topic
        self._gate = gate
        self._emit = emit
        self._say_again = say_again
        self._spoiled = spoiled
        self._met = met
        self._asked = asked
        self._listed = listed
        self._markers = f"{topics.root}marker/"
        self._listening = False
        self._catching_up = False
        self._kept = 0

    def reject(self, topic: str, reason: str) -> None:
        """A document on that topic was not what it must be."""
        # ascii(): neither comes from us, and a terminal obeys control characters.
        shown, why = ascii(topic)[:_SHOWN_CHARS], ascii(reason)[:_SHOWN_CHARS]
        self.rejected.add("rejected a document on %s: %s", shown, why)
        line = f"{shown[1:-1]}: {why[1:-1]}"
        if line in self.reasons or len(self.reasons) < _REASONS:
            self.reasons[line] = self.reasons.get(line, 0) + 1

    def question(self) -> tuple[str, bytes]:
        """Where to ask the others what they keep, and how: answers to earlier questions don't count any more."""
        self._nonce = secrets.token_bytes(8)
        name = self._topics.ask
        ask = pack(Ask(client=self._client_id, nonce=self._nonce))
        return name, self._gate.sealed(name, Topic(group=Group.ASK), ask)

    def begin(self) -> tuple[list[str], bytes]:
        """A new connection: what to subscribe to, and a note for `probe` and, after that, for `marker`."""
        self._listening = self._catching_up = True
        self.note = secrets.token_bytes(8)
        self.lives.clear()
        self.outdated.clear()
        self.told.clear()
        self.probed.clear()
        self.answers.clear()
        self.retained.clear()
        groups = self._interests | Group.ASK | Group.ANSWERS | self._gate.hears
        wanted = [*self._topics.filters(groups, self._client_id), self.marker]
        if self._will_topic is not None and Group.PEERS not in self._interests:
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
        parsed = self._topics.parse(topic)
        self.outdated.discard(topic)
        if topic == self._will_topic and not payload:
            self._say_again(topic)
        elif topic == self._will_topic and parsed is not None:
            if not self._read(topic, lambda: self._hear_of_myself(topic, parsed, payload)):
                self._spoiled(topic, payload)
        elif parsed is None:
            # amqtt may hand us what is retained for others; their notes are in order.
            if topic.startswith(self._topics.root) and not topic.startswith(self._markers):
                self.reject(topic, "no such topic")
        elif parsed.group in self._interests:
            if parsed.group is Group.RELAY and (kept or parsed.peer != self._client_id):
                return  # somebody made the broker keep it, or amqtt hands us another's
            left = kept and parsed.group in _LEFT_BEHIND
            in_order = self._read(topic, lambda: self._tell(topic, parsed, payload), kept=left)
            if parsed.group is Group.VIEW and not (in_order and payload):
                self._spoiled(topic, payload)
        elif parsed.group is Group.ASK:
            self._read(topic, lambda: self._hear_question(topic, parsed, payload))
        elif parsed.group is Group.ANSWERS:
            if parsed.peer == self._client_id:
                self._read(topic, lambda: self._hear_answer(topic, parsed, payload))
        elif parsed.group in self._gate.hears:
            self._read(topic, lambda: self._listed(payload))

    def _read(self, topic: str, step: Callable[[], object], *, kept: bool = False) -> bool:
        """Whether what has come is in order."""
        try:
            step()
            return True
        except WireError as error:
            self.reject(topic, str(error))
            if topic == self._topics.job:
                self._emit(JobSpoiled())
            elif kept and isinstance(error, Outdated) and len(self.outdated) < _OUTDATED:
                self.outdated.add(topic)
            return False

    def _tell(self, name: str, topic: Topic, payload: bytes) -> Holder | None:
        body, holder = self._gate.opened(name, topic, payload)
        event = inbox.read(topic, body)
        if event is None:
            return holder
        self._gate.passed(event, holder)
        if isinstance(event, PresenceSeen) and (topic.peer in self.lives or len(self.lives) < MAX_MEMBERS):
            self.lives[PeerId(event.presence.id)] = event.presence.incarnation
        elif isinstance(event, PresenceGone):
            self.lives.pop(event.peer_id, None)
        self._emit(event)
        return holder

    def _hear_of_myself(self, name: str, topic: Topic, payload: bytes) -> None:
        event = inbox.read(topic, self._gate.opened(name, topic, payload)[0])
        assert isinstance(event, PresenceSeen)
        if topic.group in self._interests:
            self.lives[PeerId(event.presence.id)] = event.presence.incarnation
            self._emit(event)
        self._met(event.presence)

    def _hear_question(self, name: str, topic: Topic, payload: bytes) -> None:
        ask = inbox.read_ask(self._gate.opened(name, topic, payload)[0])
        if ask.client != self._client_id:
            self._asked(ask)

    def _hear_answer(self, name: str, topic: Topic, payload: bytes) -> None:
        body, holder = self._gate.opened(name, topic, payload)
        about, answer = inbox.read_answer(self._topics, body)
        self.answers.set()
        if about.group in self._interests:
            author = self._tell(answer.topic, about, answer.payload)
            fresh = holder is None or (answer.nonce == self._nonce and author == holder)
            if about.group is Group.PEERS and about.peer is not None and fresh:
                self._emit(Answered(about.peer))
