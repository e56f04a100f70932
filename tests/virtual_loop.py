"""asyncio in virtual time: the event loop of one simulated process, and the thread beside it that computes.

Nothing here waits. What a loop is to call goes into the simulation's queue and through the process, so a frozen one
calls nothing until it goes on, and a slow one takes its time for each.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextvars import Context
from functools import partial
from typing import Any, Protocol

from edgepeer.simulation.clock import Clock
from edgepeer.simulation.process import Process

__all__ = ["Attentive", "VirtualLoop", "VirtualWorker"]


class Attentive:
    """A process that does at once what it gets to do."""

    def soon(self, do: Callable[[], None]) -> None:
        do()


class Doing(Protocol):
    """As much of a process as a loop takes."""

    def soon(self, do: Callable[[], None]) -> None:
        """Do it when the process gets to it."""


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop that is never run: the clock calls what it is given."""

    def __init__(self, clock: Clock, process: Doing) -> None:
        super().__init__()
        self._clock = clock
        self._process = process
        self._soon: dict[asyncio.Handle, None] = {}
        """What is to be called as soon as the process gets to it."""
        self._ended = False

    def time(self) -> float:
        return self._clock.now

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._soon[handle] = None
        if not self._ended:
            self._put(self._clock.now, handle)
        return handle

    call_soon_threadsafe = call_soon  # there is but one thread

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self._ended:
            self._put(when, handle)
        return handle

    def _put(self, when: float, handle: asyncio.Handle) -> None:
        self._clock.at(when, lambda: self._process.soon(partial(self._call, handle)))

    def _call(self, handle: asyncio.Handle) -> None:
        if not self._ended:
            self._do(handle)

    def _do(self, handle: asyncio.Handle) -> None:
        """What the callback raises ends the simulation."""
        self._soon.pop(handle, None)
        if not handle.cancelled():
            with self.running():
                handle._context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Whatever is done in this context, this loop does."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            yield
        finally:
            asyncio._set_running_loop(before)

    def end(self) -> None:
        """The process has ended, and with it its tasks. Not from within the loop."""
        if self._ended:
            return
        self._ended = True
        for task in asyncio.all_tasks(self):
            task.cancel()
        while self._soon:
            self._do(next(iter(self._soon)))
        self.close()


class VirtualWorker(Executor):
    """Does one call after the other, as `edgepeer.peer.worker` does: each at some moment of the time that it takes.

    Args:
        half_s: how long it takes until a call does what it does, and again until the loop hears of that.
    """

    def __init__(self, process: Process, half_s: Callable[[], float]) -> None:
        self._process = process
        self._half_s = half_s
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._busy = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._calls.append((future, partial(fn, *args, **kwargs)))
        self._next()
        return future

    def _next(self) -> None:
        if self._calls and not self._busy:
            self._busy = True
            self._process.later(self._half_s(), partial(self._do, *self._calls.popleft()))

    def _do(self, future: Future[Any], call: Callable[[], Any]) -> None:
        if not self._process.alive:
            return
        tell: Callable[[], None] = lambda: None  # noqa: E731
        if future.set_running_or_notify_cancel():
            try:
                tell = partial(future.set_result, call())
            except Exception as error:
                tell = partial(future.set_exception, error)

        def done() -> None:
            self._busy = False
            if self._process.alive:
                tell()
                self._next()

        self._process.later(self._half_s(), done)
