"""Which functions use a process' processor time: a timer of that time (ITIMER_PROF) asks a thousand times a second.

Python hears of the timer between two of its steps: what a call into the kernel, NumPy or a hash took counts for the
line that called it, and what an event loop has received counts for the first line that looks at it.
"""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, TypeAlias

import edgepeer

__all__ = ["Met", "Sampling"]

Met: TypeAlias = Counter[tuple[str, str]]
"""How often a function was met: by its file, below edgepeer or as benchmarks/..., and its name."""

_TICK_S: Final = 1e-3
_ROOT: Final = f"{Path(edgepeer.__file__).parent}/"
_HERE: Final = f"{Path(__file__).parent}/"


class Sampling:
    """Counts while it is entered; once in a process, in its main thread."""

    def __init__(self) -> None:
        self.met: Met = Counter()

    def __enter__(self) -> Sampling:
        self._before = signal.signal(signal.SIGPROF, self._meet)
        signal.setitimer(signal.ITIMER_PROF, _TICK_S, _TICK_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, self._before)

    def _meet(self, number: int, frame: FrameType | None) -> None:
        if frame is not None:
            file = frame.f_code.co_filename.removeprefix(_ROOT)
            file = f"benchmarks/{file.removeprefix(_HERE)}" if file.startswith(_HERE) else file
            self.met[file, frame.f_code.co_name] += 1
