"""Files that need not be on the disk before anything else happens are written in a thread: a card may take seconds for
one, in which an event loop that waited would answer nobody, and others would take its peer for gone.

Whoever has something written so says beside it why a loss of power just before does no harm.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Self

__all__ = ["Later"]

_log = logging.getLogger(__name__)

_ENDING_S: Final = 5.0


class Later:
    """While its context is open, what it is given is done in one thread, in order; else at once. Contexts of several
    users may be open. Leaving one waits for the disk, but for `ending_s` at most."""

    def __init__(self, ending_s: float = _ENDING_S) -> None:
        self._ending_s = ending_s
        self._lock = threading.Lock()
        self._users = 0
        self._waiting: dict[str, Callable[[], None]] = {}
        self._done: Future[None] | None = None
        """Of the thread, while there is one."""

    def do(self, name: str, write: Callable[[], None]) -> None:
        """Write what is called so, instead of what waits under that name. `write` tells of what goes wrong itself."""
        with self._lock:
            at_once = not self._users and self._done is None
            if not at_once:
                self._waiting.pop(name, None)
                self._waiting[name] = write
                if self._done is None:
                    # Not an executor's: the interpreter would wait for a disk that is stuck.
                    threading.Thread(target=self._work, name="disk", daemon=True).start()
                    self._done = Future()
        if at_once:
            write()

    async def done(self, name: str, write: Callable[[], None]) -> None:
        """Write it likewise, but instead of nothing, and wait for that: as where what is written counts only then. Who
        is cancelled before its turn has written nothing.

        Raises:
            Exception: what `write` does.
        """
        end: Future[None] = Future()

        def tell() -> None:
            if not end.set_running_or_notify_cancel():
                return
            try:
                write()
            except BaseException as error:
                end.set_exception(error)
            else:
                end.set_result(None)

        self.do(f"{name} {id(end)}", tell)
        await asyncio.wrap_future(end)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    done, self._done = self._done, None
                    break
                name = next(iter(self._waiting))
                write = self._waiting.pop(name)
            try:
                write()
            except Exception:
                _log.exception("%s was not written, by a mistake of ours", name)
        assert done is not None
        done.set_result(None)

    async def __aenter__(self) -> Self:
        with self._lock:
            self._users += 1
        return self

    async def __aexit__(self, *exception: object) -> None:
        with self._lock:
            self._users -= 1
            done = self._done
        if done is None:
            return
        try:
            async with asyncio.timeout(self._ending_s):
                await asyncio.shield(asyncio.wrap_future(done))
        except TimeoutError:
            _log.warning("a disk has not taken in %g s what is to be kept: ending without it", self._ending_s)
