"""Runs coroutines under uvloop, and turns signals into something that they can clean up after."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from edgepeer.cli.verb import INTERRUPTED

__all__ = ["run", "run_until_stopped"]

_T = TypeVar("_T")


def run(main: Coroutine[Any, Any, _T], *, leave: Callable[[], object] = lambda: None) -> _T:
    """Run `main` to its end. SIGINT and SIGTERM cancel it, once; a second SIGINT ends the process at once.

    Args:
        leave: called even then, to give back the terminal.

    Raises:
        KeyboardInterrupt: it was SIGINT, and `main` has cleaned up.
        SystemExit: the same for SIGTERM.
    """
    import uvloop

    received: list[signal.Signals] = []

    async def cancellable() -> _T:
        task = asyncio.current_task()
        assert task is not None
        _on_signals(received, task.cancel, leave)
        return await main

    try:
        return uvloop.run(cancellable())
    except asyncio.CancelledError:
        if signal.SIGINT in received:
            raise KeyboardInterrupt from None
        raise SystemExit(128 + signal.SIGTERM) from None


def run_until_stopped(main: Callable[[asyncio.Event], Awaitable[None]]) -> int:
    """Run `main(stop)`, and set `stop` at SIGTERM or SIGINT, for `main` to leave gracefully.

    A second SIGINT ends the process at once. Returns the exit code: 0, or 130 after SIGINT.
    """
    import uvloop

    received: list[signal.Signals] = []

    async def stoppable() -> None:
        stop = asyncio.Event()
        _on_signals(received, stop.set)
        await main(stop)

    uvloop.run(stoppable())
    return INTERRUPTED if signal.SIGINT in received else 0


def _on_signals(
    received: list[signal.Signals], react: Callable[[], object], leave: Callable[[], object] = lambda: None
) -> None:
    def handle(number: signal.Signals) -> None:
        if number == signal.SIGINT and number in received:
            leave()
            os._exit(INTERRUPTED)
        received.append(number)
        if len(received) == 1:  # another one is not to cut short what cleans up
            react()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, handle, number)
