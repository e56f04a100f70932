"""The one thread that computes, and that foreign code runs in: models, data sets, whatever they import.

Nothing that is raised there ends the peer, SystemExit neither; and a call that does not come to an end does not keep
the peer from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, Final, ParamSpec, Self, TypeVar

from edgepeer.errors import JobError, PeerError
from edgepeer.training.models import first_line

__all__ = ["ENDING_S", "Worker", "still_at_work"]

_log = logging.getLogger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")

ENDING_S: Final = 5.0
_MOST_WAITING: Final = 64
_NAME: Final = "trainer"

_Call = tuple[Future[Any], Callable[[], Any]]


class Worker(Executor):
    """Does one call after the other in a thread of its own, while its context is open. `ending_s`: how long the call
    that runs may still take at the end."""

    def __init__(self, ending_s: float = ENDING_S) -> None:
        self._ending_s = ending_s
        self._calls: queue.Queue[_Call | None] = queue.Queue(_MOST_WAITING)
        self._ended: Future[None] = Future()
        # Not ThreadPoolExecutor: it, and the interpreter behind it, wait for ever for a call that is stuck.
        self._thread = threading.Thread(target=self._run, name=_NAME, daemon=True)

    async def __aenter__(self) -> Self:
        try:
            self._thread.start()
        except RuntimeError as error:
            why = "let the service have more tasks (TasksMax), or its user more processes (ulimit -u)"
            raise PeerError(f"no thread can be had to compute in: {error}; {why}") from error
        return self

    async def __aexit__(self, *exception: object) -> None:
        with contextlib.suppress(queue.Full):
            self._calls.put_nowait(None)
        try:
            async with asyncio.timeout(self._ending_s):
                await asyncio.wrap_future(self._ended)
        except TimeoutError:
            _log.warning("what the job computes does not come to an end: ending without it")
            self._give_up()

    def _give_up(self) -> None:
        """What has not begun will not."""
        with contextlib.suppress(queue.Empty):
            while True:
                if (call := self._calls.get_nowait()) is not None:
                    call[0].cancel()
        self._calls.put_nowait(None)

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Do it when what was submitted before is done. Raises RuntimeError if far too much is waiting."""
        future: Future[_T] = Future()
        try:
            self._calls.put_nowait((future, lambda: fn(*args, **kwargs)))
        except queue.Full:
            raise RuntimeError(f"more than {_MOST_WAITING} calls are waiting for the trainer's thread") from None
        return future

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            _do(*call)
            del call  # what it holds may be large
        if not self._ended.cancelled():
            self._ended.set_result(None)


def _do(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:
        # What is no Exception would end the event loop, and StopIteration would be lost on the way to it.
        foreign = not isinstance(error, Exception) or isinstance(error, StopIteration)
        future.set_exception(JobError(f"code of the job raised {first_line(error)}") if foreign else error)
    else:
        future.set_result(result)


def still_at_work() -> bool:
    """Whether a worker of this process was left behind in a call."""
    return any(thread.name == _NAME for thread in threading.enumerate())
