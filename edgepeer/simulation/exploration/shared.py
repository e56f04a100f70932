"""One exploration by several processes.

Each goes through a part of the surprises of the first depth, and everything that comes of them, by itself. At the end
of a depth they exchange the fingerprints of what they have seen; what several have come to goes on in the first of them
only. So every state counts once, and is gone through again at most within one depth.

    the parent                            | a process
    --------------------------------------+-------------------------------------------------
    starts it                             | depth 0, then its part of the next
                                          | <- now and then how far it is
    says to stop when time is up          | ends the depth at once
                                          | <- what it has found, and its new fingerprints
    what others have seen ->              | the next depth, or the end
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Final

from edgepeer.errors import ProtocolBug
from edgepeer.simulation.exploration.search import Bounds, Find, Search, Tally
from edgepeer.simulation.exploration.state import Setting

__all__ = ["explore"]

_TELL_EVERY: Final = 200
"""A process says how far it is after so many ways on."""
_STOPPED_WITHIN_S: Final = 30.0


def explore(
    setting: Setting, bounds: Bounds, go_on: Callable[[Tally], bool], *, jobs: int = 1
) -> tuple[Tally, Find | None]:
    """Go through everything within the bounds, or until something breaks.

    Args:
        setting: what is explored.
        bounds: how far; `states` holds for all processes together, about.
        go_on: asked now and then whether to, with what has been gone through so far.
        jobs: how many processes.
    """
    if jobs == 1:
        search = Search(setting, bounds, go_on)
        found = search.run()
        return search.tally, found
    with _Crew(setting, bounds, jobs) as crew:
        return crew.run(go_on)


class _Crew:
    """The processes, as the parent sees them."""

    def __init__(self, setting: Setting, bounds: Bounds, jobs: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._bounds = bounds
        self._pipes: list[Connection[Any, Any]] = []
        self._processes: list[BaseProcess] = []
        self._tallies = [Tally()] * jobs
        each = replace(bounds, states=max(1, bounds.states // jobs))
        for part in range(jobs):
            mine, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, setting, each, part, jobs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)

    def __enter__(self) -> _Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            process.join(_STOPPED_WITHIN_S)
            pipe.close()

    def run(self, go_on: Callable[[Tally], bool]) -> tuple[Tally, Find | None]:
        seen: set[bytes] = set()
        by_depth: tuple[int, ...] = ()
        while True:
            finds, fresh, going = self._depth(go_on)
            news = [prints - seen for prints in fresh]
            before = len(seen)
            for prints in news:
                seen |= prints
            by_depth += (len(seen) - before,)
            found = min(filter(None, finds), key=lambda find: len(find.actions), default=None)
            done = found is not None or not going or len(by_depth) > self._bounds.depth or not by_depth[-1]
            if done:
                tally = self._total()
                tally.states, tally.by_depth = len(seen), by_depth
                tally.whole = going and found is None
                return tally, found
            taken: set[bytes] = set()
            for pipe, prints in zip(self._pipes, news, strict=True):
                pipe.send((prints & taken if len(by_depth) > 1 else set(), seen - prints))
                taken |= prints

    def _depth(self, go_on: Callable[[Tally], bool]) -> tuple[list[Find | None], list[set[bytes]], bool]:
        """One depth, at all of them. Returns what they have found and seen, and whether to go on."""
        finds: list[Find | None] = [None] * len(self._pipes)
        fresh: list[set[bytes]] = [set()] * len(self._pipes)
        going, waiting = True, dict(zip(self._pipes, range(len(self._pipes)), strict=True))
        while waiting:
            for pipe in wait(list(waiting), timeout=1.0):
                assert isinstance(pipe, Connection)
                part = waiting[pipe]
                try:
                    self._tallies[part], ended = pipe.recv()
                except EOFError:
                    raise ProtocolBug(f"process {part} of the exploration has ended") from None
                if ended is not None:
                    finds[part], fresh[part] = ended
                    del waiting[pipe]
            if going and not go_on(self._total()):
                going = False
                for pipe in waiting:
                    pipe.send("stop")
        return finds, fresh, going

    def _total(self) -> Tally:
        """What all have gone through, together."""
        first, *others = self._tallies
        total = replace(first)
        for other in others:
            for name in ("states", "transitions", "committed", "views", "probes", "cut_short"):
                setattr(total, name, getattr(total, name) + getattr(other, name))
            total.depth, total.longest = max(total.depth, other.depth), max(total.longest, other.longest)
        return total


def _work(pipe: Connection[Any, Any], setting: Setting, bounds: Bounds, part: int, jobs: int) -> None:
    """What a process does."""
    asked, stopped = 0, False

    def go_on(tally: Tally) -> bool:
        nonlocal asked, stopped
        asked += 1
        if asked % _TELL_EVERY == 0:
            pipe.send((tally, None))
        stopped = stopped or (pipe.poll() and pipe.recv() == "stop")
        return not stopped

    search = Search(setting, bounds, go_on)
    found = search.begin()
    search.keep(lambda number: number % jobs == part)
    while True:
        pipe.send((search.tally, (found, search.fresh())))
        given = pipe.recv()
        while given == "stop":
            given = pipe.recv()
        search.forget(*given)
        found = search.deepen()
