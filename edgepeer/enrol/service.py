"""`edgepeer fleet serve`: lets devices in that have a token, and renews certificates. TLS, one question a connection.

Connections are counted from the first packet on, before TLS has been spoken: so many in all, so many of one address,
and each for so long. Where there are too many, one gives way that has asked nothing, of the address that has most.
Wrong secrets are bounded by address. The secret of a token is in no line of the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections import Counter
from types import TracebackType
from typing import Final, Self

from cryptography.hazmat.primitives.asymmetric import ec

from edgepeer.complaints import Complaints
from edgepeer.enrol import messages
from edgepeer.enrol.guesses import Guesses, source_of
from edgepeer.enrol.registrar import Registrar
from edgepeer.enrol.strings import fingerprint, server_name
from edgepeer.errors import ConfigError, EdgepeerError, TrustError
from edgepeer.printable import printable
from edgepeer.processes import os_reason
from edgepeer.sockets import format_place, listen_reason
from edgepeer.trust.certificates import make_key, pem
from edgepeer.trust.shown import show

__all__ = ["EnrolmentService"]

_CONNECTIONS: Final = 64
_OF_ONE_SOURCE: Final = 32
_HANDSHAKE_S: Final = 5.0
_BACKLOG: Final = 128
_PAUSE_S: Final = 0.2
_FRESH_S: Final = 86400.0
"""So long the service uses one certificate of its own."""
_NO_CHECK_TIME: Final = ssl.VerifyFlags(0x200000)
"""As in trust.identity: the registrar looks at the time."""

_log = logging.getLogger(__name__)


class EnrolmentService:
    """Serves while its context is open.

    Raises:
        ConfigError: it can't listen there; raised by the context.
    """

    def __init__(self, registrar: Registrar, host: str, port: int) -> None:
        self._registrar = registrar
        self._host, self.port = host, port
        self._socket: socket.socket | None = None
        self._resuming: asyncio.TimerHandle | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._silent: dict[asyncio.Task[None], str] = {}
        """Those that have asked nothing yet, or have their answer, longest first, and whence they are."""
        self._sources: Counter[str] = Counter()
        self._guesses = Guesses()
        self._wrong = Complaints(_log)
        self._strange = Complaints(_log)
        self._refused = Complaints(_log)
        self._full = Complaints(_log)
        self._context: tuple[float, tuple[bytes, ...], ssl.SSLContext] | None = None

    @property
    def address(self) -> str:
        return format_place(self._host, self.port)

    async def __aenter__(self) -> Self:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(self._host, self.port, type=socket.SOCK_STREAM)
            family, _, _, _, place = found[0]
            self._socket = socket.create_server(place[:2], family=family, backlog=_BACKLOG)
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"listen = {self.address}: {listen_reason(error)}") from error
        self._socket.setblocking(False)
        self.port = self._socket.getsockname()[1]
        asyncio.get_running_loop().add_reader(self._socket, self._accept)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._resuming is not None:
            self._resuming.cancel()
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self) -> None:
        assert self._socket is not None
        try:
            sock, place = self._socket.accept()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:  # out of descriptors, or the other end was gone at once
            self._full.add("can't accept a connection: %s", os_reason(error))
            self._make_room()
            self._pause()
            return
        source = source_of(place[0])
        crowd = source if self._sources[source] >= _OF_ONE_SOURCE else None
        if (crowd is not None or len(self._connections) >= _CONNECTIONS) and not self._make_room(crowd):
            self._full.add("connection of %s closed: %d are open", source, len(self._connections))
            sock.close()
            return
        sock.setblocking(False)
        self._sources[source] += 1
        task = asyncio.create_task(self._serve(sock, source))
        self._connections.add(task)
        self._silent[task] = source
        task.add_done_callback(lambda task: self._ended(task, source))

    def _pause(self) -> None:
        """Who waits at the door is let in a moment later: asked at once, the kernel would say the same for ever."""
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)
        self._resuming = loop.call_later(_PAUSE_S, loop.add_reader, self._socket, self._accept)

    def _make_room(self, crowd: str | None = None) -> bool:
        """Hang up on somebody who waits for no answer, of that source if one is named; whether there is one."""
        silent = [each for each, source in self._silent.items() if crowd in (None, source)]
        if not silent:
            return False
        task = max(silent, key=lambda each: self._sources[self._silent[each]])  # of equals the first
        self._full.add("connection of %s closed: others wait", self._silent.pop(task))
        task.cancel()
        return True

    def _ended(self, task: asyncio.Task[None], source: str) -> None:
        self._connections.discard(task)
        self._silent.pop(task, None)
        self._sources[source] -= 1
        if not self._sources[source]:
            del self._sources[source]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a connection of %s ended by a mistake of ours", source, exc_info=error)

    async def _serve(self, sock: socket.socket, source: str) -> None:
        loop = asyncio.get_running_loop()
        transport: asyncio.Transport | None = None
        try:
            async with asyncio.timeout(messages.PATIENCE_S):
                reader = asyncio.StreamReader(limit=messages.QUESTION_BYTES)
                protocol = asyncio.StreamReaderProtocol(reader)
                context = await asyncio.to_thread(self._tls)
                transport, _ = await loop.connect_accepted_socket(
                    lambda: protocol, sock, ssl=context, ssl_handshake_timeout=_HANDSHAKE_S, ssl_shutdown_timeout=1.0
                )
                writer = asyncio.StreamWriter(transport, protocol, reader, loop)
                question = messages.question(await messages.receive(reader, messages.QUESTION_BYTES))
                task = asyncio.current_task()
                assert task is not None
                self._silent.pop(task, None)
                held = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
                # On the disk, and that may be slow.
                messages.send(writer, await asyncio.to_thread(self._answer, question, held, source))
                await writer.drain()
                self._silent[task] = source  # as soon as it hangs up, that is; it may never
                with contextlib.suppress(OSError):
                    await reader.read(1)  # until the other end has it all, and hangs up
        except (OSError, EdgepeerError, asyncio.IncompleteReadError) as error:  # of ours: no clock, no room on the disk
            self._strange.add("connection of %s closed: %s", source, _reason(error))
        finally:
            if transport is not None:
                transport.abort()
            else:
                sock.close()

    def _tls(self) -> ssl.SSLContext:
        """A certificate of each authority; who connects says by name whom it trusts."""
        authorities, now = self._registrar.authorities, time.monotonic()
        if self._context is not None and self._context[1] == authorities and now - self._context[0] < _FRESH_S:
            return self._context[2]
        key = make_key()
        issued = self._registrar.own(key.public_key())
        authorities = tuple(issued)  # as of then: the old one may have ended since
        contexts = {
            server_name(fingerprint(each)): _context(key, certificate, authorities)
            for each, certificate in issued.items()
        }

        def choose(connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: object) -> None:
            if name in contexts:
                connection.context = contexts[name]

        newest = contexts[server_name(fingerprint(authorities[-1]))]
        newest.set_servername_callback(choose)
        self._context = now, authorities, newest
        return newest

    def _answer(self, question: messages.Question, held: bytes | None, source: str) -> messages.Answer:
        try:
            match question:
                case messages.Ask():
                    return messages.Authorities(self._registrar.authorities)
                case messages.Enrol():
                    return self._enrol(question, source)
                case messages.Renew():
                    if held is None:
                        raise TrustError("a certificate is renewed only for who has one")
                    granted = self._registrar.renew(held)
                    where, news = granted.where, granted.certificate != held
                    said = "has a new certificate" if news else "asks where its fleet is, and has nothing to renew"
                    _log.log(
                        logging.INFO if news else logging.DEBUG, "%s %s %s, %s", where.role, where.id, said, source
                    )
                    return granted
        except EdgepeerError as error:
            self._refused.add("%s is refused: %s", source, error)
            return messages.Refused(str(error)[:500])

    def _enrol(self, question: messages.Enrol, source: str) -> messages.Answer:
        now = time.monotonic()
        if not self._guesses.allowed(source, now):
            self._wrong.add("%s tries tokens: refused without a look", source)
            return messages.Refused("too many wrong join strings from this address: wait a minute")
        granted = self._registrar.enrol(
            question.token, question.secret, question.request, question.name, exact=question.exact
        )
        if granted is None:
            self._guesses.wrong(source, now)
            self._wrong.add("%s tries token %s, which is unknown, or its secret is wrong", source, question.token.hex())
            return messages.Refused(_UNKNOWN)
        _log.info("%s %s has joined, from %s", granted.where.role, granted.where.id, source)
        return granted


_UNKNOWN: Final = (
    "the token of this join string is not known here, or its secret is wrong: make another with `edgepeer fleet "
    "token`, for an operator with `edgepeer fleet operator add`"
)


def _context(key: ec.EllipticCurvePrivateKey, certificate: bytes, authorities: tuple[bytes, ...]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_OPTIONAL
    context.verify_flags |= _NO_CHECK_TIME
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.load_verify_locations(cadata=pem(authorities).decode())
    show(context, key, certificate)
    return context


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return printable(error.reason or str(error)).lower().replace("_", " ")
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(error, asyncio.IncompleteReadError):
        return "it hung up"
    return os_reason(error) if isinstance(error, OSError) else str(error)
