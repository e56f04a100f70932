"""What a client hears, and what it means: events for its owner, and whatever concerns the client itself.

Only what was subscribed to, what this client may have, and what is in order goes on; the rest is counted.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable

from edgepeer.errors import WireError
from edgepeer.fabric import inbox
from edgepeer.fabric.complaints import Complaints
from edgepeer.fabric.documents import Presence
from edgepeer.fabric.events import FabricEvent, Synced
from edgepeer.fabric.topics import Group, Topics
from edgepeer.fabric.twins import TwinWatch
from edgepeer.wire.documents import unpack

__all__ = ["Hearing"]

_LOG = logging.getLogger(__name__)


class Hearing:
    """Of one client, over all its connections.

    Args:
        emit: told every event.
        say_again: told when somebody else has cleared our presence.
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
        fail: Callable[[Exception], None],
    ) -> None:
        self.complaints = Complaints()
        self.me: Presence | None = None
        """What we say of ourselves."""
        self.marker = topics.marker(client_id)
        """A topic for notes to ourselves."""
        self.trace = f"{self.marker}/presence"
        """Where our presence stays when a will has cleared it."""
        self.trace_left = False
        """Whether we have left it at this broker."""
        self._topics = topics
        self._client_id = client_id
        self._interests = interests
        self._will_topic = will_topic
        self._emit = emit
        self._say_again = say_again
        self._fail = fail
        self._traces = f"{topics.root}marker/"
        self._twins = TwinWatch(topics.fabric)
        self._listening = False
        self._note = b""

    def begin(self) -> tuple[list[str], bytes]:
        """A new connection: what to subscribe to, and then to publish on `marker`: its echo means Synced."""
        self._listening = True
        self._note = secrets.token_bytes(8)
        wanted = [*self._topics.filters(self._interests, self._client_id), self.marker]
        if self._will_topic is not None:
            wanted.append(self.trace)
            if Group.PEERS not in self._interests:
                wanted.append(self._will_topic)
        return wanted, self._note

    def end(self) -> None:
        """The connection is over."""
        self._listening = False

    def settle(self, broker: str) -> None:
        """The echo has had its time."""
        if self._note:
            _LOG.warning("broker %s: no echo of our own message; what it retains may come later", broker)
            self._synced()

    def _synced(self) -> None:
        if self._note:
            self._note = b""
            self._emit(Synced())

    def receive(self, topic: str, payload: bytes, kept: bool) -> None:
        """A message has come."""
        if not self._listening:
            return  # amqtt sends what others subscribed to before we have subscribed to anything
        if topic == self.marker:
            if payload == self._note:
                self._synced()
            return
        if topic == self.trace:
            self._meet(payload)
            return
        parsed = self._topics.parse(topic)
        if topic == self._will_topic and not payload:
            self._say_again(topic)
        elif parsed is None:
            # amqtt may hand us what is retained for others; their traces are in order.
            if topic.startswith(self._topics.root) and not topic.startswith(self._traces):
                self.complaints.reject(topic, "no such topic")
        elif parsed.group in self._interests:
            if parsed.group is Group.RELAY and (kept or parsed.peer != self._client_id):
                return  # somebody made the broker keep it, or amqtt hands us another's
            try:
                event = inbox.read(parsed, payload)
            except WireError as error:
                self.complaints.reject(topic, str(error))
            else:
                if event is not None:
                    self._emit(event)

    def _meet(self, payload: bytes) -> None:
        """See who was the last to be here under our name; only what was retained when we came back counts."""
        if self.me is None or not (self.trace_left and self._note and payload):
            return
        try:
            last = unpack(payload, Presence, limit=inbox.LIMIT_BYTES[Group.PEERS])
        except WireError as error:
            self.complaints.reject(self.trace, str(error))
            return
        if (reason := self._twins.meet(self.me, last)) is not None:
            self._fail(reason)
