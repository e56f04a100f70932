"""An MQTT broker inside this process, for one machine or a small fleet without a broker of its own.

Speaks MQTT 3.1.1, holds everything in memory, takes packets of up to 16 MiB, and keeps nothing when it ends. Needs the
`broker` extra. A client that vanishes without a word, or says nothing any more, is let go after half a minute.

In a fleet it speaks TLS, and only with members, each of whom may do what its certificate is for (rights.py): who has
been evicted is off at once, and what it has heard of that, it tells whoever comes. Without one it speaks in clear text.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from edgepeer.complaints import Complaints
from edgepeer.errors import ConfigError, TrustError
from edgepeer.fabric.address import BrokerAddress
from edgepeer.fabric.rights import may_connect
from edgepeer.fabric.tls_server import TlsServer
from edgepeer.fabric.topics import Topics
from edgepeer.sockets import expect_life, is_loopback, listen_reason, listening, stop_listening, unguarded
from edgepeer.trust.names import Holder, Role

if TYPE_CHECKING:
    from edgepeer.trust.identity import Identity

__all__ = ["EmbeddedBroker"]

_LOG = logging.getLogger(__name__)
_STOP_S: Final = 0.8
_CONNECT_S: Final = 10.0
"""Who connects says what it wants within this time."""
_OUT_AT_ONCE: Final = 8
"""So many connections of who was evicted are waited for; they, too, are through with TLS."""
_GRACE_S: Final = 0.25
"""Who is evicted may still hear of it, so that it can say why it ends."""


class EmbeddedBroker:
    """The broker, running while its context is open; `stop` and `start` restart it, empty, on the same port.

    Args:
        host: address to listen on.
        port: 0 takes any free one; see `address`.
        username, password: what clients must say; without them everybody is let in.
        identity: of a broker of a fleet, which lets in members of it.
        insecure: listen beyond this machine without an identity, on a network all of which you trust: nothing is
            encrypted then.

    Raises:
        ConfigError: amqtt isn't installed, it can't listen there, or the identity is not a broker's.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        username: str | None = None,
        password: str | None = None,
        identity: Identity | None = None,
        *,
        insecure: bool = False,
    ) -> None:
        if (username is None) != (password is None):
            raise ConfigError("broker login: give both a user name and a password, or neither")
        if identity is not None and identity.holder.role is not Role.BROKER:
            raise ConfigError(f"fleet = {identity.directory}: is of {identity.holder}, and not of a broker")
        if (reason := unguarded(host, guarded=identity is not None, insecure=insecure)) is not None:
            where = f"broker on {host}:{port}"
            raise ConfigError(f"{where}: {reason} and give identity=..., or insecure=True on a network that you trust")
        self._host, self._port = host, port
        self._username, self._password = username, password
        self._identity = identity
        self._broker: Any = None
        self._server: asyncio.Server | TlsServer | None = None
        self._clients: dict[asyncio.Task[None], tuple[asyncio.StreamWriter, Holder | None]] = {}
        self._out: set[asyncio.Task[None]] = set()
        self._forget: Callable[[], None] = lambda: None
        self._refused = Complaints(_LOG)
        self._told: asyncio.Task[None] | None = None

    @property
    def address(self) -> BrokerAddress:
        """Where clients on this machine reach it, with the login."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)
        return BrokerAddress(
            host=host,
            port=self._port,
            username=self._username,
            password=self._password,
            tls=self._identity is not None,
        )

    async def __aenter__(self) -> EmbeddedBroker:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen and serve. Raises ConfigError."""
        _hush("amqtt", logging.CRITICAL)
        _hush("transitions", logging.WARNING)
        try:
            from edgepeer.fabric.amqtt_parts import FleetBroker, TidyBroker
        except ImportError as error:
            raise ConfigError(f"the embedded broker needs amqtt ({error}): pip install 'edgepeer[broker]'") from error
        config = {
            "listeners": {"default": {"type": "external"}},
            # Who connects has been looked at before (`_serve`).
            "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
        }
        identity = self._identity
        if identity is None:
            self._broker = TidyBroker(config)
        else:
            self._broker = FleetBroker(config, Topics(identity.holder.fabric), self._listed)
        await self._broker.start()
        try:
            self._server = await self._listen()
        except BaseException:
            await self._shut_down()
            raise
        self._port = self._server.sockets[0].getsockname()[1]
        if identity is not None:
            await self._broker.keep_list(identity.evictions.signed)
            loop = asyncio.get_running_loop()
            self._forget = identity.on_change(lambda: _from_any_thread(loop, self._list_changed))
        elif not is_loopback(self._host):
            _LOG.warning("broker on %s:%d: links to it are not encrypted", self._host, self._port)

    async def stop(self) -> None:
        """End it, within two seconds, whatever its clients do."""
        server, self._server = self._server, None
        if server is None:
            return
        self._forget()
        await stop_listening(server)
        for writer, _ in self._clients.values():
            writer.transport.abort()  # a client that doesn't read must not hold up the end
        await self._shut_down()
        if self._clients:
            _, late = await asyncio.wait(self._clients, timeout=_STOP_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await server.wait_closed()

    async def _shut_down(self) -> None:
        try:
            async with asyncio.timeout(_STOP_S):
                await self._broker.shutdown()
        except TimeoutError:
            _LOG.warning("broker on %s:%d: did not end within %s s", self._host, self._port, _STOP_S)
        finally:
            self._broker.give_up()

    async def _listen(self) -> asyncio.Server | TlsServer:
        try:
            if self._identity is None:
                server = await asyncio.start_server(self._serve, self._host, self._port, start_serving=False)
                return await listening(server)
            return await TlsServer.listen(self._identity, self._serve, self._host, self._port, self._refused)
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"broker on {self._host}:{self._port}: {listen_reason(error)}") from error
        except OverflowError as error:
            raise ConfigError(f"broker port {self._port}: must be 0 to 65535") from error

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from edgepeer.fabric.amqtt_parts import BoundedReader, NotLetIn, Writer, let_in

        task = asyncio.current_task()
        assert task is not None
        self._clients[task] = writer, None
        try:
            if not self._counts(writer):
                if len(self._out) >= _OUT_AT_ONCE:
                    return
                self._out.add(task)
            # amqtt doesn't enforce MQTT's keepalive, so TCP's must.
            expect_life(writer.get_extra_info("socket"))
            out = Writer(writer)
            async with asyncio.timeout(_CONNECT_S):
                source = await let_in(BoundedReader(reader), out, self._check(task, writer))
            await self._broker.external_connected(source, out, "default")
        except asyncio.CancelledError:
            return  # we are stopping; asyncio.streams would report it as an error
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            return  # whoever looks whether somebody listens says nothing
        except NotLetIn as error:
            self._refused.add("broker on %s:%d: not let in: %s", self._host, self._port, error)
            await _flushed(writer)
        except Exception as error:  # whatever a client sends ends its own connection, nothing else
            _LOG.warning("broker on %s:%d: connection closed: %r", self._host, self._port, error)
        finally:
            del self._clients[task]
            self._out.discard(task)
            writer.transport.abort()

    def _counts(self, writer: asyncio.StreamWriter) -> bool:
        """Whether who has connected is one of the fleet still, if there is one."""
        if self._identity is None:
            return True
        try:
            self._identity.check(writer.get_extra_info("ssl_object").getpeercert(binary_form=True) or b"")
        except TrustError:
            return False
        return True

    def _check(self, task: asyncio.Task[None], writer: asyncio.StreamWriter) -> Callable[[Any], None]:
        """What decides about who has connected."""
        from edgepeer.fabric.amqtt_parts import NotLetIn, anybody, holder_here, login, member

        if self._identity is None:
            if self._username is None or self._password is None:
                return anybody
            return login(self._username, self._password)
        identity, tls = self._identity, writer.get_extra_info("ssl_object")

        def check(connect: Any) -> None:
            try:
                holder = identity.check(tls.getpeercert(binary_form=True) or b"").holder
            except TrustError as error:
                raise NotLetIn(str(error)) from None
            if not may_connect(holder):
                raise NotLetIn(f"{holder} is no client")
            member(holder, Topics(holder.fabric))(connect)
            # Of the connection, not of the session, which may be had by others.
            holder_here.set(holder)
            self._clients[task] = writer, holder

        return check

    # -- the fleet -----------------------------------------------------------------------------------------------

    def _listed(self, signed: bytes) -> bool:
        """Somebody tells who is out. Whether others are to hear it."""
        assert self._identity is not None
        evictions = self._identity.evictions
        try:
            evictions.accept(signed)
        except TrustError as error:
            self._refused.add("broker on %s:%d: %s", self._host, self._port, error)
        return signed == evictions.signed

    def _list_changed(self) -> None:
        if self._server is None or self._identity is None:
            return
        evictions = self._identity.evictions
        for writer, holder in self._clients.values():
            if holder is not None and holder.serial in evictions.serials:
                _LOG.warning("broker on %s:%d: %s", self._host, self._port, evictions.told(holder))
                asyncio.get_running_loop().call_later(_GRACE_S, writer.transport.abort)
        self._told = asyncio.get_running_loop().create_task(self._broker.keep_list(evictions.signed))


def _from_any_thread(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    loop.call_soon_threadsafe(call)


async def _flushed(writer: asyncio.StreamWriter) -> None:
    """Give what was written a moment to go out."""
    try:
        async with asyncio.timeout(_STOP_S):
            writer.close()
            await writer.wait_closed()
    except (TimeoutError, OSError):
        return


def _hush(name: str, level: int) -> None:
    logger = logging.getLogger(name)
    if logger.level == logging.NOTSET:  # whoever wants to read it has set a level
        logger.setLevel(level)
