"""The same peer for scripts and notebooks: an event loop in a thread of its own, calls that wait."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import uvloop

from edgepeer.cancelling import unless
from edgepeer.errors import LeftFabric, PeerError
from edgepeer.ids import PeerId
from edgepeer.peer.api import ROUND_TIMEOUT_S, Peer
from edgepeer.peer.outcome import FloatArray, Outcome
from edgepeer.topology.view import View
from edgepeer.wire.precision import Precision

if TYPE_CHECKING:
    from edgepeer.peer.split_training import SplitOutcome
    from edgepeer.training.split.network import Network
    from edgepeer.training.split.program import Batches

__all__ = ["BlockingPeer", "connect"]

_GLANCE_S: Final = 0.5

_T = TypeVar("_T")


class BlockingPeer:
    """A peer whose calls block. Close it, or use it as a context manager; not for use from several threads at once."""

    def __init__(self, **arguments: Any) -> None:
        self._pid = os.getpid()
        self._loop = uvloop.new_event_loop()
        self._stop = asyncio.Event()
        self._life: Future[None] = Future()
        """Done when the thread is through; holds the bug that ended it, if one did."""
        started: Future[Peer] = Future()
        self._thread = threading.Thread(target=self._run, args=(arguments, started), name="edgepeer", daemon=True)
        self._thread.start()
        try:
            _first_of([started])
            self._peer = started.result()
        except BaseException:
            self.close()
            raise

    def _run(self, arguments: dict[str, Any], started: Future[Peer]) -> None:
        try:
            self._loop.run_until_complete(self._live(arguments, started))
        except BaseException as error:
            if started.done():
                self._life.set_exception(error)
            else:
                started.set_exception(error)
        if not self._life.done():
            self._life.set_result(None)

    async def _live(self, arguments: dict[str, Any], started: Future[Peer]) -> None:
        try:
            async with contextlib.AsyncExitStack() as life:
                peer = Peer(**arguments)
                if await unless(self._stop, life.enter_async_context(peer)):
                    started.set_result(peer)
                    await self._stop.wait()
        finally:
            # Calls that wait for something that will not come any more.
            calls = asyncio.all_tasks() - {asyncio.current_task()}
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            await self._loop.shutdown_default_executor()

    def _wait(self, call: Coroutine[Any, Any, _T]) -> _T:
        if os.getpid() != self._pid:
            call.close()
            raise PeerError("this peer lives in the process that connected it, not in a fork of it")
        if self._life.done():
            call.close()
            self._life.result()  # raises the bug, if that was it
            raise LeftFabric("this peer is closed")
        result = asyncio.run_coroutine_threadsafe(call, self._loop)
        either: list[Future[Any]] = [result, self._life]
        try:
            _first_of(either)
            if result.done() and not result.cancelled():
                return result.result()
            self._life.result()
            raise LeftFabric("this peer was closed meanwhile")
        finally:
            if result.cancel() and not self._life.done():  # after Ctrl-C: the array is the caller's again
                _first_of([asyncio.run_coroutine_threadsafe(_turns(), self._loop), self._life])

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
        self,
        value: FloatArray | Sequence[FloatArray],
        *,
        weight: float = 1.0,
        timeout: float = ROUND_TIMEOUT_S,
        precision: Precision = "float32",
    ) -> Outcome:
        """See Peer.allreduce."""
        return self._wait(self._peer.allreduce(value, weight=weight, timeout=timeout, precision=precision))

    def train_split(
        self, network: Network, split: str, batches: Batches, *, iterations: int, **options: Any
    ) -> SplitOutcome:
        """See edgepeer.train_split, which says what else it takes. `batches` is called in another thread."""
        from edgepeer.peer.split_training import train_split

        return self._wait(train_split(self._peer, network, split, batches, iterations=iterations, **options))

    def close(self) -> None:
        """Leave the fabric."""
        if os.getpid() != self._pid:
            return
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        _first_of([self._life])  # unlike join(), this can be interrupted and called again
        self._thread.join()
        if not self._loop.is_closed():
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._pid:
            return  # a fork has no thread that would ever end: the peer is its parent's
        self.close()
        bug = self._life.exception()
        if bug is not None and bug is not error:
            raise bug


def _first_of(futures: Sequence[Future[Any]]) -> None:
    """Wait for one of these. Not in one go: a signal that comes just before the main thread begins to wait for a lock
    is handled only when that wait ends."""
    while not wait(futures, timeout=_GLANCE_S, return_when=FIRST_COMPLETED).done:
        pass


async def _turns() -> None:
    """Let the loop do what was asked of it before."""
    for _ in range(3):
        await asyncio.sleep(0)


def connect(broker: str = "mqtt://127.0.0.1:1883", fabric: str = "default", **arguments: Any) -> BlockingPeer:
    """Join a fabric from code without an event loop. Takes what Peer takes, raises what entering it raises.

    Example:
        with edgepeer.connect("mqtt://broker.local", "greenhouse") as peer:
            peer.ready(peers=2)
            print(peer.allreduce(numpy.ones(3)).mean)
    """
    return BlockingPeer(broker=broker, fabric=fabric, **arguments)
