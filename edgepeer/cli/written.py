"""Standard output that takes no more: a full disk, a reader that has gone, or none since the beginning."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, cast

__all__ = ["all_written", "go_on_unread", "is_unread"]


class _Output:
    """A stream that remembers why it took no more."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost: OSError | None = None
        self.why = ""
        """What is done even if nobody reads what is printed; empty: nothing."""

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._lose(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        if not self.why or error.errno != errno.EPIPE:
            self.lost = error
            raise error
        _lead_nowhere(self._stream)
        try:
            print(f"edgepeer: nobody reads standard output any more: goes on, to {self.why}", file=sys.stderr)
        except OSError:
            _lead_nowhere(sys.stderr)  # the same pipe: nor may what is said there later end this

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def all_written() -> Iterator[None]:
    """At the end all that was printed is out; where it can't be, that is said in one line.

    Raises:
        SystemExit: so it was.
    """
    _open_what_is_closed()
    before = sys.stdout
    output = _Output(before)
    sys.stdout = cast(TextIO, output)
    try:
        try:
            yield
        finally:
            output.flush()
    except (OSError, BaseExceptionGroup):
        if output.lost is None:
            raise
        _lead_nowhere(before)  # the interpreter tries again when it ends
        if output.lost.errno != errno.EPIPE:  # whoever closes a pipe has seen enough
            reason = (output.lost.strerror or str(output.lost)).lower()
            print(f"edgepeer: standard output: {reason}: what was to be printed is lost", file=sys.stderr)
        raise SystemExit(1) from None
    finally:
        sys.stdout = before


def go_on_unread(*, save: Path | None, report: Path | None) -> None:
    """From now on whoever reads standard output may go: the model is saved and the report written, where one is to."""
    if isinstance(sys.stdout, _Output):
        sys.stdout.why = "save the model" if save is not None else "write the report" if report is not None else ""


def is_unread() -> bool:
    """Whether whoever has read standard output has gone, and that was its end."""
    return isinstance(sys.stdout, _Output) and sys.stdout.lost is not None and sys.stdout.lost.errno == errno.EPIPE


def _lead_nowhere(stream: TextIO) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _open_what_is_closed() -> None:
    """What whoever has started us has closed leads nowhere. Else the next file that is opened would get its number, and
    what is printed; and libuv ends a process that closes a file of such a number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free: this one
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # as long as this process
