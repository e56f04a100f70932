"""What is set on sockets, and said of hosts and ports."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import ipaddress
import re
import socket
import sys
import termios
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Final, Protocol

from edgepeer.errors import ConfigError
from edgepeer.printable import printable
from edgepeer.processes import os_reason

__all__ = [
    "borrowed",
    "connect_to",
    "expect_life",
    "format_place",
    "host_and_port",
    "is_loopback",
    "listen_reason",
    "listening",
    "look_up",
    "stop_listening",
    "unacknowledged",
    "unguarded",
]

_PLACE: Final = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([A-Za-z0-9._-]{1,253}))(?::([0-9]{1,5}))?\Z")
_LIVENESS: Final = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}
_REASONS: Final = {
    errno.EADDRINUSE: "port is already in use; choose another, or 0 for any free one",
    errno.EADDRNOTAVAIL: "not an address of this machine",
    errno.EACCES: "not allowed to listen there; choose a port of 1024 or more",
}
_MOST_LOOKED_UP: Final = 64
_looked_up: Final[dict[tuple[str, int], Future[list[tuple[Any, ...]]]]] = {}
"""The names that are looked up, by whatever loop."""


class _Lent(socket.socket):
    """Leaves its end to whom it is of: an event loop.

    Also one that loses sight of it: uvloop, of a connection which ends in the turn after it was made. Python's own kind
    would close its number later, by when that may be another connection's.
    """

    def __del__(self) -> None:
        self.detach()


def borrowed(sock: Any) -> socket.socket | None:
    """The socket behind what an event loop hands out, whose it remains: to be dropped when the loop has closed it. None
    if it has already.

    uvloop's makes a socket of Python's for each option that is read or set, which takes ten times as long as to do it.
    """
    number = sock.fileno()
    return _Lent(sock.family, sock.type, sock.proto, number) if number >= 0 else None


def expect_life(sock: socket.socket) -> None:
    """Let a TCP connection break when its other end has been silent, to the kernel's probes too, for half a minute."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _LIVENESS.items():
        if (option := getattr(socket, name, None)) is not None:  # Linux has all four
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def host_and_port(text: str, port: int | None, setting: str = "host") -> tuple[str, int]:
    """What a user has called a place, in that setting, with the port that it has if none is said; None: one must be.

    Raises:
        ConfigError: it is none.
    """
    found = _PLACE.match(text)
    said = None if found is None or found[3] is None else int(found[3])
    if found is None or (said is None and port is None) or (said is not None and not 0 < said < 65536):
        allowed = "host:port" if port is None else "a host, or host:port"
        raise ConfigError(f"{setting} = {printable(text)}: must be {allowed}")
    return found[1] or found[2], said or port or 0


def format_place(host: str, port: int) -> str:
    """The same as text."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def look_up(host: str, port: int, *, told: bool = False) -> list[tuple[Any, ...]]:
    """As `socket.getaddrinfo` for TCP, in a thread of its own, which nobody has to wait for: it can't be interrupted,
    and name servers that don't answer take it many seconds. Loops, and executors, end only when their threads have.

    Of one name there is one such thread at a time, however often it is looked up meanwhile. Of names that somebody else
    has `told` there are not many at once: whoever tells any number of them keeps nobody from those that are set here.
    """
    if _is_address(host):
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)  # of these nobody is asked
    ours: Future[list[tuple[Any, ...]]] = Future()
    ours.set_running_or_notify_cancel()
    found = _looked_up.setdefault((host, port), ours)
    if found is ours:
        _begin_to_look(host, port, ours, told=told)
    return await asyncio.wrap_future(found)


def _begin_to_look(host: str, port: int, found: Future[list[tuple[Any, ...]]], *, told: bool) -> None:
    def look() -> None:
        try:
            addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except BaseException as error:
            del _looked_up[host, port]
            found.set_exception(error)
        else:
            del _looked_up[host, port]
            found.set_result(addresses)

    try:
        if told and len(_looked_up) > _MOST_LOOKED_UP:
            raise OSError(f"{_MOST_LOOKED_UP} other names are looked up already; do name servers answer?")
        threading.Thread(target=look, name=f"look up {host}", daemon=True).start()
    except (OSError, RuntimeError) as error:  # no thread can be had
        del _looked_up[host, port]
        found.set_exception(OSError(str(error)))


async def connect_to(
    host: str,
    port: int,
    within_s: float,
    *,
    source: str | None = None,
    make: type[socket.socket] = _Lent,
    told: bool = False,
) -> socket.socket:
    """A connection with a host, by the first of its addresses where somebody answers.

    Of several one may lead nowhere (IPv6, say). So each has a share of the time that is left: some stays for the next.

    Args:
        source: the address of this machine that it is made from; None: any.
        make: what kind of socket it is to be; if nothing is said, one to hand to an event loop, which closes it.
        told: as of `look_up`.

    Raises:
        OSError (TimeoutError is one): nobody answers; ConnectionRefusedError: nobody listens there, at no address.
        UnicodeError: the host is no name.
    """
    loop = asyncio.get_running_loop()
    ends = loop.time() + within_s
    failures: dict[str, OSError] = {}
    unmade: OSError | None = None
    async with asyncio.timeout_at(ends):
        found = await look_up(host, port, told=told)
        for number, (family, kind, protocol, _, place) in enumerate(found):
            try:
                sock = make(family, kind, protocol)
            except OSError as error:  # no IPv6 in this kernel, or for this unit
                unmade = error
                continue
            try:
                sock.setblocking(False)
                # Without it a round trip can take 44 ms: Nagle waits for a delayed acknowledgement.
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if source is not None:
                    sock.bind((source, 0))
                async with asyncio.timeout((ends - loop.time()) / (len(found) - number)):
                    await loop.sock_connect(sock, place)
            except OSError as error:
                sock.close()
                failures[place[0]] = error
            except BaseException:
                sock.close()
                raise
            else:
                return sock
    if unmade is not None and not failures:
        raise unmade
    if len({type(failure) for failure in failures.values()}) == 1:
        raise failures.popitem()[1]
    reasons = [f"{address}: {os_reason(failure)}" for address, failure in failures.items()]
    raise OSError("; ".join(reasons) or "host has no address")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def unacknowledged(sock: Any) -> int:
    """How many bytes a socket's kernel keeps that the other end's has not acknowledged; 0 where that can't be told."""
    try:
        return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except (OSError, ValueError):  # it is closed
        return 0


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def unguarded(host: str, *, guarded: bool, insecure: bool) -> str | None:
    """Why nobody may listen there: it is beyond this machine, not `guarded` by a fleet, and that was not asked for."""
    if guarded or insecure or is_loopback(host):
        return None
    return "whoever reaches that port could read and change everything: join a fleet (edgepeer join)"


def listen_reason(error: OSError | UnicodeError) -> str:
    """Why nobody can listen there, and what to do."""
    if isinstance(error, UnicodeError):
        return "not a host name"
    if isinstance(error, socket.gaierror):
        return "host name not found"
    return _REASONS.get(error.errno or 0) or os_reason(error)


async def listening(server: asyncio.Server) -> asyncio.Server:
    """The same server, made with start_serving=False, once it listens.

    asyncio's own loop waits for a turn when it does: of who is cancelled in that, a server that listens would be left,
    which is nobody's.
    """
    try:
        await server.start_serving()
    except BaseException:
        await stop_listening(server)
        raise
    return server


class Listening(Protocol):
    """An asyncio.Server, or what is like one."""

    @property
    def sockets(self) -> Sequence[Any]:
        """What it listens on."""

    def close(self) -> None:
        """Listen no more."""


async def stop_listening(server: Listening) -> None:
    """Close a server, once whoever was let in has a connection.

    asyncio's own loop accepts in one turn and makes the connection in the next: of a server that is closed in between
    the connection can't be made, and its socket is nobody's. So nobody is let in any more, two turns pass, and then.

    They pass in any case: a cancellation that comes meanwhile is heeded where the caller waits next, by when it has
    ended those connections.
    """
    loop, task, cancelled = asyncio.get_running_loop(), asyncio.current_task(), False
    for sock in server.sockets:
        loop.remove_reader(sock.fileno())  # nothing in other loops, which don't listen by it
    for _ in range(2):
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            cancelled = True
    server.close()
    if cancelled and task is not None:
        task.uncancel()  # else it counts twice
        task.cancel()
