"""Shows a job while it runs: a live picture on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self, TextIO

from edgepeer.following.progress import JobProgress
from edgepeer.following.result import JobResult
from edgepeer.following.texts import headline, progress_line, summary

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Display", "LiveDisplay", "PlainDisplay", "open_display"]

_LINE_EVERY_S: Final = 2.0
_REDRAW_EVERY_S: Final = 0.1
_PICTURE_COLUMNS: Final = 50
"""On a narrower terminal there is no room for a picture."""


class Display(AbstractContextManager["Display"], Protocol):
    """What shows a job. Open while the job runs; `summarise` comes after that."""

    def update(self, progress: JobProgress) -> None:
        """Something may have changed. Cheap: called for every event."""

    def leave(self) -> None:
        """Give back the terminal at once; nothing is shown after that."""

    def summarise(self, result: JobResult) -> None:
        """Show how the job has ended; the last call, after the context."""


def open_display(stream: TextIO | None = None) -> Display:
    """A live picture if the stream (standard output) is a terminal that can draw it, else plain lines."""
    stream = sys.stdout if stream is None else stream
    if stream.isatty() and (stream.encoding or "").lower().replace("-", "") == "utf8":
        from rich.console import Console

        console = Console(file=stream)
        if not console.is_dumb_terminal and console.width >= _PICTURE_COLUMNS:
            return LiveDisplay(console)
    return PlainDisplay(stream)


class PlainDisplay(Display):
    """A line when something happens: at most every other second, at least every tenth of the rounds."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._started = False
        self._noted = 0
        self._line = ""
        self._at = 0.0
        self._tenths = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def update(self, progress: JobProgress) -> None:
        if not self._started:
            self._started = True
            self._print(headline(progress))
        unseen = progress.noted - self._noted
        if unseen:
            self._noted = progress.noted
            for note in list(progress.notes)[-unseen:]:
                self._print(note)
        now, line = self._clock(), progress_line(progress)
        tenths = 10 * progress.round // progress.job.rounds
        if line != self._line and (tenths != self._tenths or not self._line or now - self._at >= _LINE_EVERY_S):
            self._line, self._at, self._tenths = line, now, tenths
            self._print(line)

    def leave(self) -> None:
        return None

    def summarise(self, result: JobResult) -> None:
        rows = list(summary(result))
        width = max(len(what) for what, _, _ in rows)
        self._print(f"job {result.job.id} is done")
        for what, value, _ in rows:
            self._print(f"  {what:{width}}  {value}")

    def _print(self, line: str) -> None:
        encoding = self._stream.encoding or "utf-8"
        self._stream.write(line.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        self._stream.flush()


class LiveDisplay(Display):
    """The tree and the numbers, redrawn at every update, but not more often than eyes want."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.live import Live

        self._console = console
        self._clock = clock
        self._began = clock()
        self._drawn = float("-inf")
        # No thread of rich's own: what it would draw changes on the event loop meanwhile.
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def update(self, progress: JobProgress) -> None:
        from edgepeer.following.panels import job_panel

        now = self._clock()
        if now - self._drawn >= _REDRAW_EVERY_S or progress.finished:
            self._drawn = now
            self._live.update(job_panel(progress, elapsed=now - self._began, width=self._console.width), refresh=True)

    def leave(self) -> None:
        self._console.show_cursor()

    def summarise(self, result: JobResult) -> None:
        from edgepeer.following.panels import summary_panel

        self._console.print(summary_panel(result, width=self._console.width))
