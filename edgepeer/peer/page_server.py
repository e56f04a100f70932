"""One page over HTTP, for whoever scrapes it: a small server on the event loop, with a bound on everything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from edgepeer.errors import ConfigError
from edgepeer.sockets import listen_reason, listening, stop_listening

__all__ = ["PageServer"]

_HEAD_LIMIT_BYTES: Final = 8 << 10
_PATIENCE_S: Final = 5.0
_MAX_CONNECTIONS: Final = 16
"""One more, and the oldest ends: whoever is silent keeps nobody else away."""


class PageServer:
    """Serves GET and HEAD of one path while its context is open.

    Args:
        make: the page's bytes, made anew for each request; must be quick.

    Raises:
        ConfigError: it can't listen there; raised by the context, and names `setting`.
    """

    def __init__(
        self, setting: str, host: str, port: int, *, path: str, content_type: str, make: Callable[[], bytes]
    ) -> None:
        self._setting = setting
        self._host, self.port = host, port
        self._path = path
        self._content_type = content_type
        self._make = make
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], None] = {}
        """The oldest first."""

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}{self._path}"

    async def __aenter__(self) -> Self:
        try:
            server = await asyncio.start_server(
                self._serve, self._host, self.port, limit=_HEAD_LIMIT_BYTES, start_serving=False
            )
            self._server = await listening(server)
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"{self._setting} = {self._host}:{self.port}: {listen_reason(error)}") from error
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            await stop_listening(self._server)
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= _MAX_CONNECTIONS:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.cancel()
        self._connections[task] = None
        try:
            async with asyncio.timeout(_PATIENCE_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
                await writer.drain()
                writer.write_eof()
                await reader.read(1)  # until the other end has it all, and hangs up
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return  # whoever does not speak HTTP harms only itself
        except asyncio.CancelledError:
            return  # we are ending, or others want in; asyncio.streams would report it as an error
        finally:
            self._connections.pop(task, None)
            writer.transport.abort()

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        answer = self._of(method, rest.split(b" ", 1)[0].split(b"?", 1)[0].decode("ascii", "replace"))
        return answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if method == b"HEAD" else answer

    def _of(self, method: bytes, path: str) -> bytes:
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", "text/plain", b"only GET\n")
        if path != self._path:
            return _response("404 Not Found", "text/plain", f"there is only {self._path}\n".encode())
        return _response("200 OK", self._content_type, self._make())


def _response(status: str, content_type: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
