"""The same peer for scripts and notebooks: an event loop in a thread of its own, calls that wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

import uvloop

from edgepeer.ids import PeerId
from edgepeer.peer.api import ROUND_TIMEOUT_S, Peer
from edgepeer.peer.outcome import FloatArray, Outcome
from edgepeer.topology.view import View

__all__ = ["BlockingPeer", "connect"]

_T = TypeVar("_T")


class BlockingPeer:
    """A peer whose calls block. Close it, or use it as a context manager; not for use from several threads at once."""

    def __init__(self, **arguments: Any) -> None:
        self._loop = uvloop.new_event_loop()
        self._stop: asyncio.Event | None = None
        started: Future[Peer] = Future()
        self._thread = threading.Thread(
            target=self._loop.run_until_complete, args=(self._live(arguments, started),), name="edgepeer", daemon=True
        )
        self._thread.start()
        try:
            self._peer = started.result()
        except BaseException:
            self._thread.join()
            self._loop.close()
            raise

    async def _live(self, arguments: dict[str, Any], started: Future[Peer]) -> None:
        self._stop = asyncio.Event()
        try:
            async with Peer(**arguments) as peer:
                started.set_result(peer)
                await self._stop.wait()
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    def _wait(self, call: Coroutine[Any, Any, _T]) -> _T:
        if not self._thread.is_alive():
            call.close()
            raise RuntimeError("this peer is closed")
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    @property
    def id(self) -> PeerId:
        return self._peer.id

    @property
    def view(self) -> View | None:
        """The view this peer works in; None while it is in none."""
        return self._peer.view

    def ready(self, peers: int = 1, *, timeout: float = 60.0) -> View:
        """See Peer.ready."""
        return self._wait(self._peer.ready(peers, timeout=timeout))

    def allreduce(
        self, value: FloatArray | Sequence[FloatArray], *, weight: float = 1.0, timeout: float = ROUND_TIMEOUT_S
    ) -> Outcome:
        """See Peer.allreduce."""
        return self._wait(self._peer.allreduce(value, weight=weight, timeout=timeout))

    def close(self) -> None:
        """Leave the fabric."""
        if self._thread.is_alive() and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        if not self._loop.is_closed():
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(broker: str = "mqtt://127.0.0.1:1883", fabric: str = "default", **arguments: Any) -> BlockingPeer:
    """Join a fabric from code without an event loop. Takes what Peer takes, raises what entering it raises.

    Example:
        with edgepeer.connect("mqtt://broker.local", "greenhouse") as peer:
            peer.ready(peers=2)
            print(peer.allreduce(numpy.ones(3)).mean)
    """
    return BlockingPeer(broker=broker, fabric=fabric, **arguments)
