"""What edgepeer adds to amqtt's broker. The only module that imports amqtt; loaded when a broker is started.

amqtt hands every new client the retained messages of everybody's subscriptions, iterating meanwhile over a
dict that other clients change (which then ends the new connection); it lets two connections of one client
id live side by side; and it takes packets of any size. All three are put right here.

It also ends the session of a client id for whoever asks, let in or not; lets who comes with another's client id have
its session, certificate included; and asks nobody about wills. So whoever connects is looked at before amqtt is: who
is not let in never gets there, and in a fleet a client id is its holder's own, no session outlives its connection, and
a will may be what a message may.

Who publishes what MQTT does not have is hung up on, as MQTT has it: amqtt goes on, with an error that nobody handles,
of which asyncio writes a dozen lines each time; and the same for whoever is to hear of a topic that is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from typing import Any, Final

from amqtt.adapters import ReaderAdapter, StreamReaderAdapter, StreamWriterAdapter
from amqtt.broker import Broker
from amqtt.contexts import Action
from amqtt.errors import AMQTTError, MQTTError, NoDataError, ProtocolHandlerError
from amqtt.mqtt.connack import NOT_AUTHORIZED, ConnackPacket
from amqtt.mqtt.connect import ConnectPacket
from amqtt.session import Session

from edgepeer.fabric.rights import may_read, may_write
from edgepeer.fabric.topics import Topics
from edgepeer.trust.names import Holder

__all__ = [
    "MAX_READ_BYTES",
    "BoundedReader",
    "FleetBroker",
    "NotLetIn",
    "TidyBroker",
    "Writer",
    "anybody",
    "holder_here",
    "let_in",
    "login",
    "member",
]

MAX_READ_BYTES: Final = 16 << 20
MAX_WAITING_BYTES: Final = 128 << 20
"""For one client. A peer hands the broker no more than 8 MiB that has not been taken, whomever it is for."""
_CONNECT: Final = b"\x10"
_CONNECT_BYTES: Final = 64 << 10
_LENGTH_BYTES: Final = 3

holder_here: ContextVar[Holder] = ContextVar("holder_here")
"""Whose certificate the connection has shown that is served here."""


class NotLetIn(Exception):
    """Who has connected is told so."""


class TidyBroker(Broker):  # type: ignore[misc]  # amqtt isn't followed by mypy
    """amqtt's broker, true to MQTT where two clients connect at once, or one says nothing any more."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._tasks_queue = _Deliveries()

    async def _initialize_client_session(self, *connection: Any) -> tuple[Any, Session]:
        handler, session = await super()._initialize_client_session(*connection)
        handler._send_packet = _cancelled_as_asked(handler._send_packet)
        reader, writer, *_ = connection
        handler.handle_publish = _hanging_up(handler.handle_publish, writer)
        handler.handle_read_timeout = _Silence(reader, writer).note
        handler.mqtt_publish = _Waiting(handler.mqtt_publish, writer).publish
        return handler, session

    async def _publish_retained_messages_for_subscription(
        self, subscription: tuple[str, int], session: Session
    ) -> None:
        pattern, _ = subscription
        if any(holder is session for holder, _ in self._subscriptions.get(pattern, ())):
            # At QoS 0: TCP delivers as long as the session lasts, and amqtt would give up on a client that is
            # busy for five seconds.
            await super()._publish_retained_messages_for_subscription((pattern, 0), session)

    def give_up(self) -> None:
        """End what still goes on, where `shutdown` was cancelled."""
        if not self._broadcast_shutdown_waiter.done():
            self._broadcast_shutdown_waiter.set_result(True)
        if self._session_monitor_task is not None:
            self._session_monitor_task.cancel()

    async def _delete_session(self, client_id: str) -> None:
        # A second connection with the same id replaces the first, whose will is then sent.
        _, handler = self._sessions.get(client_id, (None, None))
        if handler is not None:
            await handler.handle_connection_closed()
        await super()._delete_session(client_id)


class FleetBroker(TidyBroker):
    """The same where everybody has shown a certificate, and may do what that is for."""

    def __init__(self, config: dict[str, Any], topics: Topics, listed: Callable[[bytes], bool]) -> None:
        """`listed`: takes the list of who is out of the fleet; False: it is none, or older than ours."""
        super().__init__(config)
        self._topics = topics
        self._listed = listed
        self._readers: dict[str, Holder] = {}

    async def _topic_filtering(self, session: Session, topic: str, action: Action) -> bool:
        if action is Action.RECEIVE:  # asked while somebody else is served
            reader = self._readers.get(session.client_id)
            return reader is not None and may_read(reader, self._topics, topic)
        holder = holder_here.get()
        self._readers[session.client_id] = holder
        return (may_write if action is Action.PUBLISH else may_read)(holder, self._topics, topic)

    async def _cleanup_session(self, client_id: str) -> None:
        self._readers.pop(client_id, None)
        await super()._cleanup_session(client_id)

    async def _handle_message_delivery(self, client_session: Session, handler: Any, wait_deliver: Any) -> bool:
        message = wait_deliver.result()
        if message is not None and message.topic == self._topics.evicted and not self._listed(bytes(message.data)):
            return True
        return bool(await super()._handle_message_delivery(client_session, handler, wait_deliver))

    async def keep_list(self, signed: bytes) -> None:
        """Have it there for whoever comes, and tell those who are here."""
        await self.retain_message(None, self._topics.evicted, signed, 1)
        await self.internal_message_broadcast(self._topics.evicted, signed, 1)


async def let_in(
    reader: StreamReaderAdapter, writer: StreamWriterAdapter, check: Callable[[ConnectPacket], None]
) -> ReaderAdapter:
    """Look at who connects. Returns what amqtt is to read.

    Args:
        check: raises NotLetIn; may change the packet.

    Raises:
        NotLetIn: it has been told.
    """
    try:
        connect = await ConnectPacket.from_stream(_Again(await _first_packet(reader), None))
    except (AMQTTError, MQTTError, NoDataError, ValueError) as error:
        raise NotLetIn(f"no CONNECT: {error}") from error
    try:
        if connect.variable_header is None or connect.payload is None:
            raise NotLetIn("no CONNECT")
        will = connect.payload.will_topic or ""
        if connect.variable_header.will_flag and ("+" in will or "#" in will):
            raise NotLetIn(f"has a will for {will!r}, which is no topic")
        check(connect)
    except NotLetIn:
        await ConnackPacket.build(0, NOT_AUTHORIZED).to_stream(writer)
        raise
    return _Again(connect.to_bytes(), reader)


def login(username: str, password: str) -> Callable[[ConnectPacket], None]:
    """Lets in who knows the one user name and password."""
    expected = username.encode(), password.encode()

    def check(connect: ConnectPacket) -> None:
        said = [(text or "").encode() for text in (connect.payload.username, connect.payload.password)]
        if not hmac.compare_digest(said[0], expected[0]) & hmac.compare_digest(said[1], expected[1]):
            raise NotLetIn("wrong user name or password")

    return check


def anybody(connect: ConnectPacket) -> None:
    """Lets in everybody."""


def member(holder: Holder, topics: Topics) -> Callable[[ConnectPacket], None]:
    """Lets in who has shown that certificate."""

    def check(connect: ConnectPacket) -> None:
        header, payload = connect.variable_header, connect.payload
        will = payload.will_topic or ""
        # A will is sent as it is: nobody looks whether it is the newest list of who is out, as at messages.
        if header.will_flag and (will == topics.evicted or not may_write(holder, topics, will)):
            raise NotLetIn(f"{holder} has a will for {payload.will_topic!r}, where it may not write")
        # Another's session can't be had by its name; nor one's own of a certificate before, by persistence.
        payload.client_id = f"{holder.common_name}/{payload.client_id}"
        header.clean_session_flag = True
        header.username_flag = header.password_flag = False

    return check


class BoundedReader(StreamReaderAdapter):  # type: ignore[misc]  # the same
    """Ends the connection of a client whose packet claims to be longer than MAX_READ_BYTES."""

    async def read(self, n: int = -1) -> Any:
        if n > MAX_READ_BYTES:
            raise ConnectionAbortedError(f"packet of {n} bytes")
        with _gone():
            return await super().read(n)


class Writer(StreamWriterAdapter):  # type: ignore[misc]  # the same
    """Says of a connection that is gone what amqtt expects."""

    def write(self, data: bytes) -> None:
        with _gone():
            super().write(data)

    async def drain(self) -> None:
        with _gone():
            await super().drain()

    def abort(self) -> None:
        self._writer.transport.abort()


@contextlib.contextmanager
def _gone() -> Iterator[None]:
    """However a connection ends, amqtt expects that it was reset. Where the other machine had lost its power, TCP says
    TimeoutError in the end: amqtt would take that for its own, and read again at once, for ever, and out of memory. And
    uvloop says RuntimeError, which nobody would handle."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise ConnectionResetError(str(error)) from None


class _Deliveries(deque[asyncio.Task[Any]]):
    """What is being delivered. amqtt keeps all of it until the oldest is delivered, and that may be to somebody who is
    stuck, while others have read theirs long ago."""

    def append(self, task: asyncio.Task[Any]) -> None:
        super().append(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[Any]) -> None:
        with contextlib.suppress(ValueError):  # amqtt has taken it already
            self.remove(task)
        if not task.cancelled():
            task.exception()


class _Waiting:
    """What waits for a client that reads more slowly than others say something to it: no more than so much."""

    def __init__(self, publish: Callable[..., Awaitable[Any]], writer: Writer) -> None:
        self._publish, self._writer = publish, writer
        self._bytes = 0

    async def publish(self, topic: str, data: bytes, *more: Any, **options: Any) -> Any:
        self._bytes += len(data)
        if self._bytes > MAX_WAITING_BYTES:
            self._writer.abort()
        try:
            return await self._publish(topic, data, *more, **options)
        finally:
            self._bytes -= len(data)


class _Silence:
    """A client that has not said anything for as long as it may is gone: its process stands still, though its machine
    answers. Only the second time in a row, as this process may have stood still itself."""

    def __init__(self, reader: _Again, writer: Writer) -> None:
        self._reader, self._writer = reader, writer
        self._reads = -1

    def note(self) -> None:
        """Nothing has come for that long."""
        if self._reader.reads == self._reads:
            self._writer.abort()
        self._reads = self._reader.reads


def _cancelled_as_asked(send: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
    """amqtt makes an error of its own of it when what it sends is cancelled, as when a client has gone that still said
    something: whoever cancels a task doesn't look for one, and asyncio complains of an error that nobody handles."""

    async def sending(packet: Any) -> None:
        try:
            await send(packet)
        except ProtocolHandlerError as error:
            if isinstance(error.__cause__, asyncio.CancelledError):
                raise error.__cause__ from None
            raise

    return sending


def _hanging_up(handle: Callable[[Any], Awaitable[None]], writer: Writer) -> Callable[[Any], Awaitable[None]]:
    """What takes a packet, or ends its connection."""

    async def handling(packet: Any) -> None:
        try:
            await handle(packet)
        except (AMQTTError, MQTTError):
            writer.abort()

    return handling


async def _first_packet(reader: StreamReaderAdapter) -> bytes:
    """As much as a CONNECT may be, and nothing that isn't one."""
    if await reader.read(1) != _CONNECT:
        raise NotLetIn("the first byte is not that of an MQTT client")
    length = b""
    while True:
        length += bytes(await reader.read(1))
        if length[-1] < 0x80:
            break
        if len(length) == _LENGTH_BYTES:
            raise NotLetIn("a CONNECT that is too long")
    count = sum((digit & 0x7F) << 7 * place for place, digit in enumerate(length))
    if count > _CONNECT_BYTES:
        raise NotLetIn(f"a CONNECT of {count} bytes")
    rest: bytes = await reader.read(count)
    return _CONNECT + length + rest


class _Again(ReaderAdapter):  # type: ignore[misc]  # the same
    """A reader of something, and then of what comes after that."""

    def __init__(self, first: bytes, then: StreamReaderAdapter | None) -> None:
        self._first = memoryview(first)
        self._then = then
        self.reads = 0
        """How often something has come."""

    async def read(self, n: int = -1) -> Any:
        found, self._first = bytes(self._first[:n]), self._first[n:]
        if len(found) == n or self._then is None:
            return found
        more = bytes(await self._then.read(n - len(found) if n >= 0 else n))
        self.reads += 1
        return found + more

    def feed_eof(self) -> None:
        if self._then is not None:
            self._then.feed_eof()
