"""Files that a user has named: they may be any, and some have no end."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final

__all__ = ["MOST_BYTES", "read_given"]

MOST_BYTES: Final = 16 << 20
"""More than anything that people write themselves."""


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
