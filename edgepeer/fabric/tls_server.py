"""Listening for TLS of members of a fleet: few connections at a time may be half-way in (transport/door.py).

asyncio's own server would build all that TLS needs for whoever connects, and hold it for a minute.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Final

from edgepeer.complaints import Complaints
from edgepeer.transport.door import WITHIN_S, Door

if TYPE_CHECKING:
    from edgepeer.trust.identity import Identity

__all__ = ["TlsServer"]

_REASONS: Final = {
    "TLSV1_ALERT_UNKNOWN_CA": "does not believe this broker: it has joined another fleet, or none",
    "WRONG_VERSION_NUMBER": "speaks no TLS: clients of a fleet use mqtts://",
    "HTTP_REQUEST": "speaks HTTP",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "shows no certificate: it has joined no fleet",
    "CERTIFICATE_VERIFY_FAILED": "shows a certificate of another fleet",
    "UNSUPPORTED_PROTOCOL": "speaks no TLS 1.3",
}
_PAUSE_S: Final = 0.1
_BACKLOG: Final = 128

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class _Guest:
    """A connection that is half-way in."""

    def __init__(self, host: str, sock: socket.socket, shake: Callable[[_Guest], Coroutine[None, None, None]]) -> None:
        self.host = host
        self.sock = sock
        self.handed_over = False
        """Whether the event loop closes the socket."""
        self.task = asyncio.create_task(shake(self))

    def turn_away(self, reason: str = "") -> None:
        self.task.cancel()
        if not self.handed_over:  # it may not have begun
            self.sock.close()


class TlsServer:
    """As asyncio.Server, as far as it is needed here. Use `listen`."""

    def __init__(self, identity: Identity, serve: Serve, sockets: list[socket.socket], refused: Complaints) -> None:
        self.sockets = sockets
        self._identity = identity
        self._serve = serve
        self._refused = refused
        self._door = Door()
        self._guests: set[_Guest] = set()
        self._accepting = [asyncio.create_task(self._accept(each)) for each in sockets]
        for task, sock in zip(self._accepting, sockets, strict=True):
            task.add_done_callback(lambda _, sock=sock: sock.close())  # type: ignore[misc]

    @classmethod
    async def listen(cls, identity: Identity, serve: Serve, host: str, port: int, refused: Complaints) -> TlsServer:
        """Accept whoever shows a certificate of the fleet.

        Raises:
            OSError, UnicodeError, OverflowError: not there.
        """
        loop = asyncio.get_running_loop()
        if not 0 <= port <= 65535:
            raise OverflowError(port)
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        sockets: list[socket.socket] = []
        try:
            for family, _, _, _, place in dict.fromkeys(found):
                sock = socket.create_server(place, family=family, backlog=_BACKLOG)
                sock.setblocking(False)
                sockets.append(sock)
        except BaseException:
            for sock in sockets:
                sock.close()
            raise
        return cls(identity, serve, sockets, refused)

    def close(self) -> None:
        """Accept nobody any more, and turn away who is half-way in."""
        for task in self._accepting:
            task.cancel()
        for guest in [*self._guests]:
            guest.turn_away()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._accepting, *(guest.task for guest in self._guests), return_exceptions=True)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, place = await loop.sock_accept(listening)
            except OSError:  # too many files are open
                await asyncio.sleep(_PAUSE_S)
                continue
            host = place[0] if isinstance(place, tuple) else ""
            guest = _Guest(host, sock, self._shake_hands)
            self._guests.add(guest)
            guest.task.add_done_callback(lambda _, guest=guest: self._over(guest))  # type: ignore[misc]
            self._door.enter(guest)

    def _over(self, guest: _Guest) -> None:
        self._door.leave(guest)
        self._guests.discard(guest)

    async def _shake_hands(self, guest: _Guest) -> None:
        loop = asyncio.get_running_loop()
        try:
            context = self._identity.context(server=True)
            protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader(), self._serve)
            guest.handed_over = True
            await loop.connect_accepted_socket(
                lambda: protocol, guest.sock, ssl=context, ssl_handshake_timeout=WITHIN_S, ssl_shutdown_timeout=WITHIN_S
            )
        except OSError as error:  # ssl.SSLError is one
            why = (error.reason if isinstance(error, ssl.SSLError) else "") or str(error) or type(error).__name__
            self._refused.add("no TLS with %s: %s", guest.host, _REASONS.get(why, why))
            if not guest.handed_over:
                guest.sock.close()
