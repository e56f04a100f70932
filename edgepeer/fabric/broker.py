"""An MQTT broker inside this process, for one machine or a small fleet without a broker of its own.

Speaks MQTT 3.1.1 in clear text, holds everything in memory, takes packets of up to 16 MiB, and keeps nothing
when it ends. Needs the `broker` extra. A client that vanishes without a word is noticed after half a minute.
"""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Any, Final

from edgepeer.errors import ConfigError
from edgepeer.fabric.address import BrokerAddress
from edgepeer.sockets import expect_life, is_loopback, listen_reason

__all__ = ["EmbeddedBroker"]

_LOG = logging.getLogger(__name__)
_STOP_S: Final = 0.8


class EmbeddedBroker:
    """The broker, running while its context is open; `stop` and `start` restart it, empty, on the same port.

    Args:
        host: address to listen on; anything but loopback opens it to the network, unencrypted.
        port: 0 takes any free one; see `address`.
        username, password: what clients must say; without them everybody is let in.

    Raises:
        ConfigError: amqtt isn't installed, or it can't listen there.
    """

    def __init__(
        self, host: str = "127.0.0.1", port: int = 0, username: str | None = None, password: str | None = None
    ) -> None:
        if (username is None) != (password is None):
            raise ConfigError("broker login: give both a user name and a password, or neither")
        self._host, self._port = host, port
        self._username, self._password = username, password
        self._broker: Any = None
        self._server: asyncio.Server | None = None
        self._clients: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @property
    def address(self) -> BrokerAddress:
        """Where clients on this machine reach it, with the login."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)
        return BrokerAddress(host=host, port=self._port, username=self._username, password=self._password)

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
            from edgepeer.fabric.amqtt_parts import PasswordPlugin, TidyBroker
        except ImportError as error:
            raise ConfigError(f"the embedded broker needs amqtt ({error}): pip install 'edgepeer[broker]'") from error
        if self._username is None:
            plugins: dict[str, dict[str, object]] = {
                "amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}
            }
        else:
            name = f"{PasswordPlugin.__module__}.{PasswordPlugin.__name__}"
            plugins = {name: {"username": self._username, "password": self._password}}
        self._broker = TidyBroker({"listeners": {"default": {"type": "external"}}, "plugins": plugins})
        await self._broker.start()
        try:
            self._server = await self._listen()
        except BaseException:
            await self._broker.shutdown()
            raise
        self._port = self._server.sockets[0].getsockname()[1]
        if not is_loopback(self._host):
            _LOG.warning("broker on %s:%d: links to it are not encrypted", self._host, self._port)

    async def stop(self) -> None:
        """End it, within two seconds, whatever its clients do."""
        if self._server is None:
            return
        self._server.close()
        for writer in self._clients.values():
            writer.transport.abort()  # a client that doesn't read must not hold up the end
        try:
            async with asyncio.timeout(_STOP_S):
                await self._broker.shutdown()
        except TimeoutError:
            _LOG.warning("broker on %s:%d: did not end within %s s", self._host, self._port, _STOP_S)
        if self._clients:
            _, late = await asyncio.wait(self._clients, timeout=_STOP_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    async def _listen(self) -> asyncio.Server:
        try:
            return await asyncio.start_server(self._serve, self._host, self._port)
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"broker on {self._host}:{self._port}: {listen_reason(error)}") from error
        except OverflowError as error:
            raise ConfigError(f"broker port {self._port}: must be 0 to 65535") from error

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from edgepeer.fabric.amqtt_parts import BoundedReader, StreamWriterAdapter

        task = asyncio.current_task()
        assert task is not None
        self._clients[task] = writer
        try:
            # amqtt doesn't enforce MQTT's keepalive, so TCP's must.
            expect_life(writer.get_extra_info("socket"))
            await self._broker.external_connected(BoundedReader(reader), StreamWriterAdapter(writer), "default")
        except asyncio.CancelledError:
            return  # we are stopping; asyncio.streams would report it as an error
        except Exception as error:  # whatever a client sends ends its own connection, nothing else
            _LOG.warning("broker on %s:%d: connection closed: %r", self._host, self._port, error)
        finally:
            del self._clients[task]
            writer.transport.abort()


def _hush(name: str, level: int) -> None:
    logger = logging.getLogger(name)
    if logger.level == logging.NOTSET:  # whoever wants to read it has set a level
        logger.setLevel(level)
