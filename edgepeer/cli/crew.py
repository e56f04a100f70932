"""The same work on several cores: `map` over processes that never outlive this one."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from typing import Final, Protocol, TypeVar

from edgepeer.errors import EdgepeerError
from edgepeer.processes import dies_with_parent

__all__ = ["Crew", "crew"]

_T = TypeVar("_T")
_R = TypeVar("_R")

LONGEST_S: Final = 600.0
"""No piece of work takes longer."""


class Crew(Protocol):
    """Like `map`, but in any order. Takes items only as it needs them."""

    def __call__(self, do: Callable[[_T], _R], items: Iterator[_T], /) -> Iterator[_R]: ...


@contextmanager
def crew(jobs: int) -> Iterator[Crew]:
    """So many processes; none but this one for one job. At the end, what is begun is still waited for."""
    if jobs == 1:
        yield map
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn, initializer=_begin, initargs=(os.getpid(),)) as pool:

        def over(do: Callable[[_T], _R], items: Iterator[_T], /) -> Iterator[_R]:
            begun: set[Future[_R]] = {pool.submit(do, item) for item in islice(items, jobs)}
            while begun:
                done, begun = wait(begun, LONGEST_S, FIRST_COMPLETED)
                if not done:
                    raise EdgepeerError(f"nothing has been finished within {LONGEST_S:g} s")
                for future in done:
                    try:
                        yield future.result()
                    except BrokenProcessPool:
                        raise EdgepeerError("a process at work was killed, perhaps for want of memory") from None
                begun |= {pool.submit(do, item) for item in islice(items, len(done))}

        try:
            yield over
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _begin(parent: int) -> None:
    """Ctrl-C is the parent's to handle, and nobody is left behind by it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if (ask := dies_with_parent(parent=parent)) is not None:
        ask()
