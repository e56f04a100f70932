"""One MQTT connection: opened within a deadline, and never left half open.

aiomqtt opens its socket in a thread that can't be interrupted, and leaves it open when the broker doesn't
answer; such a connection could come up after its owner is gone. So the socket is opened here, and lent; with TLS on
it, where there is to be any (tls.py).

What is used of aiomqtt and paho that is not public, for want of a public way:

    aiomqtt.Client._client              the paho client: hooks for sockets are set on it, and aiomqtt shows it nowhere
    aiomqtt.Client._connected           what it waits for when it connects: it does not see that the broker hangs up
    aiomqtt.Client._disconnected        how it ended: asyncio complains where nobody asks, and aiomqtt may not
    aiomqtt.Client._misc_task, _misc_loop   its pings, which it begins with the socket that it would watch by its number
    paho.Client._create_socket_connection   paho always opens the socket itself, and blocks
    paho.Client._loop_rc_handle         a connection given up as lost; `disconnect` would try to take leave first
    paho.Client._in_packet              what has come of a packet: paho would take 256 MiB from whoever sends them
    paho.Client._in_messages            what it keeps until the broker lets it go, and ...
    paho.Client._out_packet             ... what the broker has yet to read: neither has a bound
    paho.Client._out_messages           what waits for others to be acknowledged: how much goes first
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import aiomqtt
from paho.mqtt.enums import MessageState, MQTTErrorCode
from paho.mqtt.reasoncodes import ReasonCode

from edgepeer.cancelling import mind_cancellation
from edgepeer.errors import FabricError
from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.tls import TlsSocket, secured
from edgepeer.processes import os_reason
from edgepeer.sockets import connect_to, unacknowledged
from edgepeer.trust.directory import JOIN_AGAIN
from edgepeer.trust.names import Holder

if TYPE_CHECKING:
    from edgepeer.trust.identity import Identity

__all__ = [
    "ECHO_S", "KEEPALIVE_S", "LARGEST_BYTES", "SLOWEST_BYTES_PER_S", "Refused", "broker_of", "connection", "describe",
    "publish", "subscribe",
]  # fmt: skip

KEEPALIVE_S: Final = 15
LARGEST_BYTES: Final = 8 << 20
"""Of a packet that comes so much is looked at; no document may be so long."""
_AT_ONCE_BYTES: Final = 64 << 10
_IN_A_TURN: Final = 64
"""Of what is here already so many reads go together. Then it is another's turn, however much more there is."""
SLOWEST_BYTES_PER_S: Final = 10_000
ECHO_S: Final = 5.0
"""What a broker passes on to anybody it passes on to us within this time, and that of its bytes."""
_MOST_UNREAD: Final = 65_536
"""Packets that wait for the broker to read: we send few that it has not asked for by its own."""
_QUEUED: Final = MessageState.MQTT_MS_QUEUED
_GOODBYE_S: Final = 1.0
_HUNG_UP: Final = "hung up"
_TIMED_OUT: Final = "Operation timed out"
"""What aiomqtt says of any answer that has not come."""
_QUIET = logging.getLogger("edgepeer.fabric.mqtt")
_QUIET.setLevel(logging.CRITICAL)  # what paho would say there, our own errors say better
_LOGIN_REFUSED: Final = {"Bad user name or password", "Not authorized"}


class Refused(FabricError):
    """The broker itself said no: trying again soon won't help."""


class _Socket(socket.socket):
    """Gives paho, which asks for the rest of a packet, a little of it at a time. In TLS a record is as much."""

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        return super().recv(min(bufsize, _AT_ONCE_BYTES), flags)


@contextlib.asynccontextmanager
async def connection(
    address: BrokerAddress,
    *,
    identifier: str,
    will_topic: str | None,
    on_message: Callable[[str, bytes, bool], None],
    timeout: float,
    identity: Identity | None = None,
) -> AsyncIterator[aiomqtt.Client]:
    """A client that the broker has let in.

    A regular end takes leave of the broker. After an exception, cancellation included, the socket is just
    closed: the broker then publishes the will, an empty retained message on `will_topic`.

    Args:
        on_message: called on the loop's thread with topic, payload, and whether the broker had kept it; must
            not raise.
        timeout: for each step: finding the host and connecting to it, TLS included; the broker's answer.
        identity: shown to a broker of our fleet, which then must be one; None: there is no fleet.

    Raises:
        FabricError: no connection; one line with the reason.
    """

    class Inbox(asyncio.Queue[aiomqtt.Message]):
        # aiomqtt's queue has no bound, or drops in silence. Messages handed on at once need neither:
        # what we don't read yet waits in TCP.
        def put_nowait(self, item: aiomqtt.Message) -> None:
            on_message(str(item.topic), bytes(item.payload), item.retain)

    sock = await _dial(address, timeout, identity)
    lent = False

    def lend() -> socket.socket:
        nonlocal lent
        lent = True
        return sock

    client = aiomqtt.Client(
        address.host,
        address.port,
        username=address.username,
        password=address.password,
        identifier=identifier,
        protocol=aiomqtt.ProtocolVersion.V311,  # amqtt has no other
        will=None if will_topic is None else aiomqtt.Will(will_topic, b"", qos=1, retain=True),
        clean_session=True,
        keepalive=KEEPALIVE_S,
        timeout=timeout,
        queue_type=Inbox,
        logger=_QUIET,
    )
    client._client._create_socket_connection = lend  # type: ignore[method-assign]  # private: see above
    _watch_socket(client)
    lost = client._disconnected
    try:
        try:
            await client.__aenter__()
        except aiomqtt.MqttError as error:
            mind_cancellation()  # which aiomqtt's wait_for may have forgotten
            raise _refusal(error, address, timeout, sock, identity) from error
        mind_cancellation()
        if lost.done():  # before aiomqtt came to see that it was let in: it has forgotten that, and waits for ever
            raise FabricError(f"broker {address}: {describe(lost.exception() or ConnectionError(_HUNG_UP))}")
        yield client
        client.timeout = _GOODBYE_S
        with contextlib.suppress(aiomqtt.MqttError):
            await client.__aexit__(None, None, None)
    finally:
        # On a socket that is shut down, leaving fails at once, closes it, and says nothing to the broker.
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        client.timeout = 0
        with contextlib.suppress(aiomqtt.MqttError):
            await client.__aexit__(None, None, None)
        if client._disconnected.done() and not client._disconnected.cancelled():
            client._disconnected.exception()  # of a broker that hangs up on who is connecting, nobody asks
        if not lent:
            sock.close()


def broker_of(client: aiomqtt.Client) -> Holder | None:
    """Which broker of a fleet has let that client in."""
    sock = client._client.socket()
    return sock.holder if isinstance(sock, TlsSocket) else None


def _watch_socket(client: aiomqtt.Client) -> None:
    """Tell paho when it can read and write, as aiomqtt does, but for these traps.

    aiomqtt waits for an answer even from a broker that has hung up; where it waits no more, being cancelled, it fails
    at that. It registers a socket's number a turn later without looking: by then the socket may be closed, and the
    number another's. And uvloop ceases to watch a socket once it has been reset, even where what came before is not
    all read: nobody would notice that the connection is lost until the next ping fails. Of a packet that is longer
    than any document may be, the rest is forgotten as it comes: what is handed on is too long all the same, and
    refused. What comes in QoS 2, which nobody has subscribed to, paho keeps until the broker lets it go; and it keeps
    all receipts that the broker does not read. Who goes on so is left.
    """
    paho, loop = client._client, asyncio.get_running_loop()

    def attempt(step: Callable[..., object], *arguments: object) -> None:
        if client._connected.cancelled():  # and so is who opens the connection, but its turn comes after this one
            client._connected = loop.create_future()
            client._connected.set_result(None)
        try:
            hung_up = step(*arguments) == MQTTErrorCode.MQTT_ERR_CONN_LOST
        except Exception:
            hung_up = True
            paho._loop_rc_handle(MQTTErrorCode.MQTT_ERR_CONN_LOST)  # closes the socket, and says so
        if hung_up and not client._connected.done():
            client._connected.set_exception(aiomqtt.MqttError(_HUNG_UP))

    def take() -> MQTTErrorCode:
        done = paho.loop_read()
        del paho._in_packet["packet"][LARGEST_BYTES:]
        if paho._in_messages:
            return leave("sends messages in QoS 2; is it an MQTT broker?")
        return leave("does not read") if len(paho._out_packet) > _MOST_UNREAD else done

    def leave(why: str) -> MQTTErrorCode:
        if not client._disconnected.done():
            client._disconnected.set_exception(aiomqtt.MqttError(why))
        paho._in_messages.clear()
        return paho._loop_rc_handle(MQTTErrorCode.MQTT_ERR_CONN_LOST)

    def read() -> None:
        attempt(take)

    def can_read(sock: socket.socket) -> None:
        for _ in range(_IN_A_TURN):
            read()
            if not (isinstance(sock, TlsSocket) and sock.pending()):
                loop.call_soon(watch, loop.add_reader, sock, can_read, sock)
                return
        # More is here already, from the network: nobody would say so. It is read next, and not twice.
        loop.remove_reader(sock.fileno())
        loop.call_soon(can_read, sock)

    def watch(register: Callable[..., None], sock: socket.socket, *callback: Any) -> None:
        if sock.fileno() >= 0:
            attempt(register, sock.fileno(), *callback)

    def begin(sock: socket.socket) -> None:
        if sock.fileno() >= 0:
            watch(loop.add_reader, sock, can_read, sock)
            client._misc_task = loop.create_task(client._misc_loop())

    def on_open(_client: Any, _userdata: Any, sock: Any) -> None:
        loop.call_soon_threadsafe(begin, sock)  # paho connects in another thread

    def on_write(_client: Any, _userdata: Any, sock: Any) -> None:
        loop.call_soon_threadsafe(watch, loop.add_writer, sock, attempt, paho.loop_write)

    paho.on_socket_open, paho.on_socket_register_write = on_open, on_write


def describe(error: BaseException) -> str:
    """Why a connection ended, in a few words."""
    cause = error.__cause__ or error
    if isinstance(cause, aiomqtt.MqttCodeError):
        return "connection lost"
    if str(cause) == _TIMED_OUT:
        return "it let this client in, and has not answered since: see whether it hangs"
    return str(cause) or type(cause).__name__


async def publish(client: aiomqtt.Client, topic: str, payload: bytes, *, retain: bool = False, timeout: float) -> None:
    """Say this, and return when the broker has acknowledged it.

    Args:
        timeout: seconds that it may take for that, beyond those for all that goes there first, at the slowest rate.

    Raises:
        aiomqtt.MqttError: the connection is of no use any more.
    """
    bytes_first = len(payload) + _on_their_way(client)
    try:
        async with asyncio.timeout(timeout + bytes_first / SLOWEST_BYTES_PER_S):
            await client.publish(topic, payload, qos=1, retain=retain, timeout=math.inf)
    except TimeoutError:
        raise aiomqtt.MqttError(_TIMED_OUT) from None


def _on_their_way(client: aiomqtt.Client) -> int:
    """How many bytes have been said already that the broker's machine has yet to take."""
    paho = client._client
    sock = paho.socket()
    queued = sum(packet["to_process"] for packet in tuple(paho._out_packet))
    # Of what is to be acknowledged paho begins only with some.
    queued += sum(len(each.payload) for each in tuple(paho._out_messages.values()) if each.state is _QUEUED)
    return queued + (unacknowledged(sock) if sock is not None else 0)


async def subscribe(client: aiomqtt.Client, patterns: Sequence[str]) -> None:
    """Hear of these topics from now on.

    Raises:
        Refused: the broker does not let us.
        FabricError: it gave no answer that makes sense.
        aiomqtt.MqttError: the connection is of no use any more.
    """
    codes: Sequence[int | ReasonCode] = await client.subscribe([(pattern, 1) for pattern in patterns])
    mind_cancellation()
    if len(codes) != len(patterns):
        raise FabricError(f"answered {len(patterns)} subscriptions with {len(codes)} codes; is it an MQTT broker?")
    refused = [pattern for pattern, code in zip(patterns, codes, strict=True) if _failed(code)]
    if refused:
        raise Refused(f"not allowed to subscribe to {', '.join(refused)}")


def _failed(code: int | ReasonCode) -> bool:
    return code.is_failure if isinstance(code, ReasonCode) else code >= 0x80


async def _dial(address: BrokerAddress, timeout: float, identity: Identity | None) -> socket.socket:
    try:
        async with asyncio.timeout(timeout):
            sock = await connect_to(address.host, address.port, timeout, make=_Socket)
            return await secured(sock, address.host, identity) if address.tls else sock
    except TimeoutError:
        text = f"timed out after {timeout:g} s; is it running, and reachable from here?"
    except socket.gaierror as error:
        text = f"host name {address.host!r} not found ({error.strerror})"
    except UnicodeError:
        text = f"host name {address.host!r} is not one"
    except ConnectionRefusedError:
        text = "connection refused; is a broker running there?"
    except OSError as error:
        text = os_reason(error)
    except FabricError as error:
        text = str(error)
    raise FabricError(f"broker {address}: {text}")


def _refusal(
    error: aiomqtt.MqttError, address: BrokerAddress, timeout: float, sock: socket.socket, identity: Identity | None
) -> FabricError:
    ours = "" if identity is None else f"; ours is {identity}: {JOIN_AGAIN}"
    code = error.rc if isinstance(error, aiomqtt.MqttCodeError) else None
    if isinstance(sock, TlsSocket) and sock.broken:
        return Refused(f"broker {address}: {sock.broken}{ours if 'our certificate' in sock.broken else ''}")
    if not isinstance(code, ReasonCode):
        silent = _HUNG_UP if str(error) == _HUNG_UP else f"timed out after {timeout:g} s"
        if isinstance(sock, TlsSocket) and silent == _HUNG_UP:
            why = f"hung up on our certificate; is this device of its fleet, and still?{ours}"
            return FabricError(f"broker {address}: {why}")
        asked = "is it an MQTT broker?" if address.tls else "is it an MQTT broker without TLS? (that of a fleet has it)"
        return FabricError(f"broker {address}: {silent} without an MQTT answer; {asked}")
    name = code.getName()
    text = "wrong user name or password" if name in _LOGIN_REFUSED else f"connection refused: {name}"
    if name in _LOGIN_REFUSED and address.tls and address.username is None:
        text = (
            "refuses our certificate: it is not for a client of this fleet, or has expired by the broker's clock, or "
            f"this device has been evicted{ours}"
        )
    return Refused(f"broker {address}: {text}")
