"""Files that a user has named, or may have put there: they may be any, and some have no end, or never begin."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

__all__ = ["MOST_BYTES", "open_regular", "read_given"]

MOST_BYTES: Final = 16 << 20
"""More than anything that people write themselves."""


def open_regular(path: Path) -> BinaryIO:
    """A file to be read, of which nothing is waited for: of a pipe, nobody knows whether anything ever comes.

    Raises:
        OSError: it can't be read, or is something else.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    kind = os.fstat(handle).st_mode
    if stat.S_ISREG(kind):
        return os.fdopen(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(f"{path.name} is no regular file")


def read_given(path: Path, most_bytes: int = MOST_BYTES) -> str:
    """The text in a file.

    Raises:
        OSError: it can't be read, or is longer than that; UnicodeDecodeError: it is no text.
    """
    with path.open("rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"has more than {most_bytes >> 20} MiB", str(path))
    return content.decode().removeprefix("\ufeff")  # as some editors begin a file
