"""What edgepeer adds to amqtt's broker. The only module that imports amqtt; loaded when a broker is started.

amqtt hands every new client the retained messages of everybody's subscriptions, iterating meanwhile over a
dict that other clients change (which then ends the new connection); it lets two connections of one client
id live side by side; and it takes packets of any size. All three are put right here.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import Any, Final

from amqtt.adapters import StreamReaderAdapter, StreamWriterAdapter
from amqtt.broker import Broker
from amqtt.contexts import BaseContext
from amqtt.plugins.base import BaseAuthPlugin
from amqtt.session import Session

__all__ = ["MAX_READ_BYTES", "BoundedReader", "PasswordPlugin", "StreamWriterAdapter", "TidyBroker"]

MAX_READ_BYTES: Final = 16 << 20


class TidyBroker(Broker):  # type: ignore[misc]  # amqtt isn't followed by mypy
    """amqtt's broker, true to MQTT where two clients connect at once."""

    async def _publish_retained_messages_for_subscription(
        self, subscription: tuple[str, int], session: Session
    ) -> None:
        pattern, _ = subscription
        if any(holder is session for holder, _ in self._subscriptions.get(pattern, ())):
            # At QoS 0: TCP delivers as long as the session lasts, and amqtt would give up on a client that is
            # busy for five seconds.
            await super()._publish_retained_messages_for_subscription((pattern, 0), session)

    async def _delete_session(self, client_id: str) -> None:
        # A second connection with the same id replaces the first, whose will is then sent.
        _, handler = self._sessions.get(client_id, (None, None))
        if handler is not None:
            await handler.handle_connection_closed()
        await super()._delete_session(client_id)


class PasswordPlugin(BaseAuthPlugin):  # type: ignore[misc]  # the same
    """Lets in who knows the one user name and password."""

    @dataclass
    class Config:
        username: str
        password: str = field(repr=False)

    def __init__(self, context: BaseContext) -> None:
        super().__init__(context)
        self._expected = (self.config.username.encode(), self.config.password.encode())

    async def authenticate(self, *, session: Session) -> bool:
        username, password = ((text or "").encode() for text in (session.username, session.password))
        return hmac.compare_digest(username, self._expected[0]) & hmac.compare_digest(password, self._expected[1])


class BoundedReader(StreamReaderAdapter):  # type: ignore[misc]  # the same
    """Ends the connection of a client whose packet claims to be longer than MAX_READ_BYTES."""

    async def read(self, n: int = -1) -> Any:
        if n > MAX_READ_BYTES:
            raise ConnectionAbortedError(f"packet of {n} bytes")
        return await super().read(n)
