"""Standard output that takes no more: a full disk, or a reader that has gone."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

__all__ = ["all_written"]


class _Output:
    """A stream that remembers why it took no more."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost: OSError | None = None

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self.lost = error
            raise

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self.lost = error
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def all_written() -> Iterator[None]:
    """At the end all that was printed is out; where it can't be, that is said in one line.

    Raises:
        SystemExit: so it was.
    """
    before = sys.stdout
    if before is None:  # closed by whoever has started us
        yield
        return
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
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, before.fileno())  # the interpreter tries again when it ends
        os.close(nowhere)
        if output.lost.errno != errno.EPIPE:  # whoever closes a pipe has seen enough
            reason = (output.lost.strerror or str(output.lost)).lower()
            print(f"edgepeer: standard output: {reason}: what was to be printed is lost", file=sys.stderr)
        raise SystemExit(1) from None
    finally:
        sys.stdout = before
