"""TLS to the broker, on a socket that is connected already, within a deadline, and without keeping the event loop.

Of a broker of the fleet the fleet's authorities and its role count, not the name of the host, which DHCP may change.
Of a foreign one the system's authorities and the name do.

With TLS 1.3 a client is through with the handshake before the broker has looked at its certificate: that it was refused
comes with the first bytes that are read. And paho writes in one thread while the loop reads in another, which OpenSSL
does not take: so sockets here take turns, and remember why they broke.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import ssl
import threading
import time
from collections.abc import Callable
from socket import socket
from typing import TYPE_CHECKING, Any, Final

from edgepeer.errors import FabricError, TrustError
from edgepeer.trust.clock import date
from edgepeer.trust.names import Holder, Role

if TYPE_CHECKING:
    from edgepeer.trust.identity import Identity

__all__ = ["TlsSocket", "secured"]

_HUNG_UP: Final = "hung up while TLS was set up; is it the port for TLS (mostly 8883)?"
_REASONS: Final = {
    "WRONG_VERSION_NUMBER": "does not speak TLS there; is it the port for TLS (mostly 8883)?",
    "TLSV1_ALERT_UNKNOWN_CA": "does not know who has issued our certificate: it is of another fleet, or a mosquitto "
    "that was not given its files again since this fleet has a new authority",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "wants to see a certificate: join its fleet",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "refuses our certificate: it has expired",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "refuses our certificate: this device has been evicted",
    "SSLV3_ALERT_BAD_CERTIFICATE": "refuses our certificate",
    "UNSUPPORTED_PROTOCOL": "speaks no version of TLS that both take",
    "TLSV1_ALERT_PROTOCOL_VERSION": "speaks no version of TLS that both take",
}
_OF_TIME: Final = {9, 10}
"""X509_V_ERR_CERT_NOT_YET_VALID, and ...HAS_EXPIRED."""


class TlsSocket(ssl.SSLSocket):
    """A connection in TLS that two threads may use."""

    turns: threading.Lock | None = None
    """None: it is being made."""
    broken = ""
    """Why it broke, if it did and TLS knows."""
    holder: Holder | None = None
    """Which broker of the fleet is there."""

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        if self.turns is None:  # ssl looks what is left of a connection that is gone: told this, it leaves nothing open
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return bytes(self._in_turn(super().recv, buflen, flags))

    def send(self, data: Any, flags: int = 0) -> int:
        return int(self._in_turn(super().send, data, flags))

    def _in_turn(self, step: Callable[[Any, int], Any], what: Any, flags: int) -> Any:
        assert self.turns is not None
        with self.turns:
            try:
                return step(what, flags)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                self.broken = self.broken or _reason(error)
                raise


async def secured(sock: socket, host: str, identity: Identity | None) -> TlsSocket:
    """The same connection in TLS. The socket is closed if that can't be had.

    Raises:
        FabricError: whoever is there is not the broker that we want.
    """
    secure: socket = sock
    try:
        if identity is not None:
            context = identity.context(server=False)
        else:
            context = await asyncio.get_running_loop().run_in_executor(None, _foreign)  # reads many files
        context.sslsocket_class = TlsSocket
        named = host if context.check_hostname else None
        secure = context.wrap_socket(sock, server_hostname=named, do_handshake_on_connect=False)
        assert isinstance(secure, TlsSocket)
        secure.turns = threading.Lock()
        await _shake_hands(secure)
        if identity is not None:
            _check_role(secure, identity)
    except BaseException as error:
        secure.close()
        if isinstance(error, ssl.SSLError):  # a subclass of OSError, which says less
            hint = ""
            if isinstance(error, ssl.SSLCertVerificationError):
                hint = (
                    "; if it is a fleet's, say where this device has joined: --fleet; if it is of an authority of your "
                    "own, which: SSL_CERT_FILE=ca.pem"
                )
                if identity is not None:
                    identity.doubted = True
                    hint = (
                        f"; it is not of the fleet {identity.holder.fabric} in {identity.directory}, or the fleet has "
                        f"a new authority, as `edgepeer fleet serve` ({identity.where.service}) would say"
                    )
            raise FabricError(_reason(error) + hint) from error
        if isinstance(error, ConnectionError) or (isinstance(error, OSError) and error.errno == errno.ENOTCONN):
            raise FabricError(_HUNG_UP) from error
        raise
    return secure


async def _shake_hands(sock: TlsSocket) -> None:
    loop = asyncio.get_running_loop()
    while True:
        try:
            return sock.do_handshake()
        except ssl.SSLWantReadError:
            await _ready(loop.add_reader, loop.remove_reader, sock)
        except ssl.SSLWantWriteError:
            await _ready(loop.add_writer, loop.remove_writer, sock)


async def _ready(watch: Callable[..., None], forget: Callable[[int], bool], sock: TlsSocket) -> None:
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    number = sock.fileno()
    watch(number, _wake, ready)
    try:
        await ready
    finally:
        forget(number)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _check_role(sock: TlsSocket, identity: Identity) -> None:
    try:
        holder = identity.check(sock.getpeercert(binary_form=True) or b"").holder
    except TrustError as error:
        raise FabricError(str(error)) from error
    if holder.role is not Role.BROKER:
        raise FabricError(f"shows the certificate of {holder}, which is no broker's: somebody else is there")
    sock.holder = holder


@functools.cache
def _foreign() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        today = f" (today is {date(time.time())} by this machine's clock)" if error.verify_code in _OF_TIME else ""
        return f"its certificate is not to be trusted: {error.verify_message.rstrip('.')}{today}"
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return _HUNG_UP
    return _REASONS.get(error.reason or "", f"TLS failed: {error.reason or error}")
